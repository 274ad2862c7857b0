//! The switch's queue of packets to one port of a host. Pure.
//!
//! Packets of all senders wait here while the link is busy or paused by the receiving RNIC. The switch marks
//! packets by the length of the queue (ECN), pauses the port on which a packet came (PFC), and drops packets
//! for which there is no room.

use super::booked_queue::BookedQueue;
use crate::hardware_units::Ps;
use headworks_faults::Random;

/// Constants of the queue, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwitchConstants {
    /// Capacity; 0 is unlimited.
    pub(crate) capacity: u64,
    /// Lengths at which a sender's port is paused and resumed; 0 never pauses.
    pub(crate) pause_at: u64,
    pub(crate) resume_at: u64,
    /// No packet is marked below the first length, and each above the second. Between them the probability
    /// grows to `mark_share`; a second length of 0 marks nothing.
    pub(crate) mark_from: u64,
    pub(crate) mark_all_from: u64,
    pub(crate) mark_share: f64,
}

/// Decision of the switch about packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Whether they are dropped.
    pub(crate) is_dropped: bool,
    /// Whether they are marked.
    pub(crate) is_marked: bool,
    /// Time until which their sender's port is paused.
    pub(crate) pauses_until: Option<Ps>,
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct SwitchPort {
    queue: BookedQueue,
    /// Time from which the link is free.
    free_at: Ps,
}

impl SwitchPort {
    /// Decides about packets of `bytes` that arrive `now`.
    pub(crate) fn admit(
        &mut self,
        now: Ps,
        bytes: u64,
        constants: &SwitchConstants,
        random: &mut Random,
    ) -> Admission {
        self.queue.advance(now);
        let queued = self.queue.bytes_at(now);
        let length = queued + bytes;
        // Packets that find the queue empty pass, however long they are.
        let is_dropped = constants.capacity > 0 && queued > 0 && length > constants.capacity;
        let is_marked = !is_dropped && is_marked(queued, constants, random);
        let pauses = constants.pause_at > 0 && length > constants.pause_at;
        let pauses_until = match pauses {
            true => self.queue.falls_to(constants.resume_at),
            false => None,
        };
        Admission {
            is_dropped,
            is_marked,
            pauses_until,
        }
    }

    /// Returns the number of bytes that wait at `now`.
    pub(crate) fn bytes_at(&self, now: Ps) -> u64 {
        self.queue.bytes_at(now)
    }

    /// Returns the earliest time at which the next packets may leave.
    pub(crate) fn free_at(&self) -> Ps {
        self.free_at
    }

    /// Adds packets that leave completely at that time.
    pub(crate) fn put(&mut self, leaves: Ps, bytes: u64) {
        self.free_at = self.free_at.max(leaves);
        self.queue.put(leaves, bytes);
    }
}

fn is_marked(queued: u64, constants: &SwitchConstants, random: &mut Random) -> bool {
    let (from, to) = (constants.mark_from, constants.mark_all_from);
    if to == 0 || queued <= from {
        return false;
    }
    if queued >= to {
        return true;
    }
    let chance = constants.mark_share * (queued - from) as f64 / (to - from) as f64;
    (random.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64) < chance
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSTANTS: SwitchConstants = SwitchConstants {
        capacity: 1000,
        pause_at: 500,
        resume_at: 300,
        mark_from: 100,
        mark_all_from: 400,
        mark_share: 0.5,
    };

    /// A queue of packets of 100 bytes, of which one leaves every 10.
    fn filled(count: u64) -> SwitchPort {
        let mut port = SwitchPort::default();
        (1..=count).for_each(|at| port.put(10 * at, 100));
        port
    }

    #[test]
    fn a_long_queue_marks_then_pauses_then_drops() {
        let mut random = Random::new(1);
        let mut of = |count| filled(count).admit(0, 100, &CONSTANTS, &mut random);
        let nothing = Admission {
            is_dropped: false,
            is_marked: false,
            pauses_until: None,
        };
        assert_eq!(of(0), nothing);
        assert_eq!(of(1), nothing);
        assert!(of(4).is_marked && of(4).pauses_until.is_none());
        // 300 bytes are left when the second packet has left.
        assert_eq!(of(5).pauses_until, Some(20));
        assert!(of(10).is_dropped && !of(9).is_dropped);
    }

    #[test]
    fn marks_grow_with_the_queue() {
        let mut random = Random::new(1);
        let mut count = |queued| {
            (0..1000)
                .filter(|_| is_marked(queued, &CONSTANTS, &mut random))
                .count()
        };
        let (some, more) = (count(200), count(390));
        assert!(
            (100..240).contains(&some) && (400..560).contains(&more),
            "{some} {more}"
        );
        assert_eq!((count(100), count(400)), (0, 1000));
    }

    #[test]
    fn zeros_switch_everything_off() {
        let off = SwitchConstants {
            capacity: 0,
            pause_at: 0,
            mark_all_from: 0,
            ..CONSTANTS
        };
        let found = filled(1000).admit(0, 100, &off, &mut Random::new(1));
        assert!(!found.is_dropped && !found.is_marked && found.pauses_until.is_none());
    }
}

//! A stream as its poller knows it: what is to be reported, and what is armed.

use std::sync::Arc;

use headworks_client::connection::ConnectionShared;
use headworks_client::control_block::Arrived;
use headworks_shm::EventCount;

use super::{Interest, PollEvent, PollState};

/// A stream in a poller.
pub(super) struct PolledStream {
    pub(super) key: u64,
    pub(super) interest: Interest,
    pub(super) state: Arc<PollState>,
    pub(super) known: Arc<ConnectionShared>,
    /// The sets that name it, and its number in each.
    pub(super) names: Vec<(usize, u32)>,
    pub(super) is_unsettled: bool,
    /// The received bytes and the status that the last report was about.
    pub(super) reported: Option<Arrived>,
    /// Whether room was reported since the interest was set, or since a call failed for lack of it.
    pub(super) is_room_reported: bool,
}

impl PolledStream {
    /// Returns what is to be reported now. `is_notified` tells that the stream was armed again just now, so that it may have
    /// been notified before.
    pub(super) fn report(&mut self, is_gone: bool, is_notified: bool) -> Option<PollEvent> {
        // Taken in any case: a report makes the caller look at the bytes again.
        let is_moved = is_notified && self.state.take_withheld();
        let mut arrived = self.known.arrived();
        // The peer can write what `is_some` was computed of.
        arrived.is_some &= !self.state.is_known_empty(&arrived);
        let is_reset = arrived.status.reset.is_some();
        // As `ReceiveHalf::needs_daemon` and `SendHalf::needs_daemon` say: the calls fail then.
        let (receives_there, sends_there) = match self.known.direct() {
            _ if !is_gone => (false, false),
            Some(direct) if direct.is_taken_by_peer() => {
                (direct.is_diverted(), direct.sends_through_daemons())
            }
            _ => (true, true),
        };
        let is_over = is_reset || receives_there;
        let is_news = !self.interest.is_edge_triggered || self.reported != Some(arrived);
        let is_readable = self.interest.receive && {
            let has_some = arrived.is_some || arrived.status.is_ended;
            (has_some || is_over) && (is_news || is_moved)
        };
        let is_writable = self.interest.send && {
            let has_room = is_over || sends_there || self.has_room();
            has_room && !(self.interest.is_edge_triggered && self.is_room_reported)
        };
        let is_hung_up = is_over && is_news;
        if !(is_readable || is_writable || is_hung_up) {
            return None;
        }
        self.reported = Some(arrived);
        self.is_room_reported |= is_writable;
        Some(PollEvent {
            key: self.key,
            is_readable,
            is_writable,
            is_hung_up: is_over,
        })
    }

    /// Has everything reported again.
    pub(super) fn forget_reports(&mut self) {
        self.reported = None;
        self.is_room_reported = false;
    }

    /// Whether there is room, as far as the stream's calls have not found otherwise.
    pub(super) fn has_room(&mut self) -> bool {
        let mut blocked = self.state.blocked();
        if let Some(seen) = *blocked {
            // The next room is news, also if it was made before this look.
            self.is_room_reported = false;
            if seen == self.known.room_now() {
                return false;
            }
        }
        *blocked = None;
        true
    }

    /// Arms the event counts, so that the daemon inserts the stream into the ready set. Returns whether one that tells of
    /// what arrives was not armed, so that it may have been notified.
    pub(super) fn arm(&self) -> bool {
        // The status is reported with what arrives, so it is armed in any case.
        let count = if self.interest.send { 4 } else { 2 };
        let mut is_notified = false;
        for (at, event_count) in self.event_counts().take(count).enumerate() {
            // One that is armed already stays as it is: a store could hide that it is notified now.
            if !event_count.is_armed_in_set() {
                event_count.arm_in_set();
                is_notified |= at < 2;
            }
        }
        is_notified
    }

    /// The event counts that tell of what arrives, at the daemon and on the direct path, and then those that tell of room.
    /// Without a direct path each is there twice.
    pub(super) fn event_counts(&self) -> impl Iterator<Item = &EventCount> {
        let block = self.known.block();
        let direct = self.known.direct();
        let incoming = direct.map_or(block, |direct| direct.incoming());
        let outgoing = direct.map_or(block, |direct| direct.outgoing());
        let arrived = [block.event_count(), incoming.event_count()];
        let room = [block.room_event_count(), outgoing.room_event_count()];
        arrived.into_iter().chain(room)
    }
}

#[cfg(test)]
mod tests {
    use headworks_client::connection::Received;
    use headworks_client::testing::{DIRECT_PLACE, direct_pair};
    use headworks_shm::WakeBy;

    use super::*;

    fn polled(known: &Arc<ConnectionShared>, interest: Interest) -> PolledStream {
        PolledStream {
            key: 1,
            interest,
            state: Arc::default(),
            known: known.clone(),
            names: Vec::new(),
            is_unsettled: true,
            reported: None,
            is_room_reported: false,
        }
    }

    /// Does what the poller does with a stream that may have news.
    fn settle(polled: &mut PolledStream) -> Option<PollEvent> {
        let first = polled.report(false, false);
        first.or_else(|| {
            let is_notified = polled.arm();
            polled.report(false, is_notified)
        })
    }

    /// The peer sets the number of consumed bytes to a wrong one, at any time. A level-triggered caller that received
    /// everything is not told that there is more.
    #[test]
    fn a_peer_cannot_have_a_stream_reported_that_has_nothing() {
        let ([mut near, far], [memory, _]) = direct_pair();
        let mut polled = polled(far.connection.receiving.known(), Interest::RECEIVE);
        near.connection.sending.send(b"some").expect("sends");
        assert!(settle(&mut polled).is_some_and(|event| event.is_readable));
        let mut receiving = far.connection.receiving;
        let mut buffer = [0; 8];
        let received = receiving.recv(&mut buffer).expect("receives").0;
        assert_eq!(received, Received::Bytes(4));
        assert_eq!(settle(&mut polled), None);
        // Where the receiver publishes how much it consumed.
        let block = memory.view(DIRECT_PLACE.block).expect("its block");
        block.write(192, &1u64.to_le_bytes()).expect("its head");
        assert!(
            settle(&mut polled).is_some(),
            "no call has found nothing yet"
        );
        let seen = polled.known.arrived().bytes;
        let received = receiving.recv(&mut buffer).expect("nothing").0;
        assert_eq!(received, Received::Nothing);
        polled.state.found_nothing(seen);
        for wrong in [1u64, 2, u64::MAX] {
            block.write(192, &wrong.to_le_bytes()).expect("its head");
            assert_eq!(settle(&mut polled), None);
        }
        // The poller reports bytes that arrive. A call that receives them does not mark the stream as empty.
        near.connection.sending.send(b"more").expect("sends");
        assert!(settle(&mut polled).is_some_and(|event| event.is_readable));
        assert!(settle(&mut polled).is_some_and(|event| event.is_readable));
    }

    #[test]
    fn bytes_that_the_daemon_has_moved_are_reported_again_to_an_edge_triggered_caller() {
        let ([mut near, far], _memory) = direct_pair();
        let mut polled = polled(
            far.connection.receiving.known(),
            Interest::RECEIVE.edge_triggered(),
        );
        near.connection.sending.send(b"to be moved").expect("sends");
        assert!(settle(&mut polled).is_some_and(|event| event.is_readable));
        assert_eq!(settle(&mut polled), None);
        let moved = || {
            let notified = far.block.event_count().notify_waiter();
            assert_eq!(notified, Some(WakeBy::Set));
        };
        for _ in 0..3 {
            // The caller finds that the bytes are being moved. That alone is no news.
            polled.state.withhold();
            assert_eq!(settle(&mut polled), None);
            moved();
            assert!(settle(&mut polled).is_some_and(|event| event.is_readable));
            assert_eq!(settle(&mut polled), None);
        }
        // Also if the daemon had moved them before the caller said so.
        moved();
        polled.state.withhold();
        assert!(settle(&mut polled).is_some_and(|event| event.is_readable));
        assert_eq!(settle(&mut polled), None);
        // Without a call in between a notification is no news.
        moved();
        assert_eq!(settle(&mut polled), None);
    }
}

//! Records what the ends of rings did, and judges whether they kept their promises. Pure.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use headworks::ring::RingError;
use headworks::sim::ObjectCounts;

use crate::plan::Plan;

/// A plan that is run, and the observations of its ends.
pub(super) struct SoakRun {
    pub(super) plan: Plan,
    observations: Mutex<Observations>,
}

impl SoakRun {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            observations: Mutex::new(Observations {
                rings: (0..plan.rings).map(|_| RingRecord::default()).collect(),
                ..Observations::default()
            }),
            plan,
        }
    }

    pub(super) fn observations(&self) -> MutexGuard<'_, Observations> {
        self.observations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a message came over a ring.
    pub(super) fn record_message(&self, ring: usize, bytes: &[u8]) {
        let mut observations = self.observations();
        observations.moved += 1;
        let record = &mut observations.rings[ring];
        let wrong = self.plan.wrong(ring, record.received, bytes);
        record.received += 1;
        // After one wrong message, later ones are wrong as well and say nothing new.
        if record.wrong.is_empty() {
            record.wrong.extend(wrong);
        }
    }

    pub(super) fn received(&self, ring: usize) -> u64 {
        self.observations().rings[ring].received
    }

    pub(super) fn has_all(&self, ring: usize) -> bool {
        self.received(ring) >= self.plan.messages
    }
}

/// Observations of all ends.
#[derive(Debug, Default)]
pub(super) struct Observations {
    pub(super) rings: Vec<RingRecord>,
    /// Increases whenever something is sent or received, or an end ends.
    pub(super) moved: u64,
    /// Roles that have everything and stay to be inspected, with the objects that each has.
    pub(super) lingering: BTreeMap<String, ObjectCounts>,
}

/// Observations of the ends of one ring.
#[derive(Debug, Default)]
pub(super) struct RingRecord {
    /// For each accepted message, the number of slots sent up to its end.
    pub(super) tails: Vec<u64>,
    /// Whether sending a message failed with an error, but the message may have gone out.
    pub(super) in_doubt: bool,
    /// Slots sent, published and consumed, as the sender reported when it ended.
    pub(super) cursors: [u64; 3],
    /// Number of messages received.
    pub(super) received: u64,
    /// Number of slots consumed, as the receiver reports.
    pub(super) consumed: Option<u64>,
    /// Results of the sending end and of the receiving end.
    pub(super) ends: [Option<EndResult>; 2],
    /// Whether the receiver removed the ring on purpose.
    pub(super) removed: bool,
    /// Errors that the receiver saw.
    pub(super) wrong: Vec<String>,
}

/// How an end ended. It is whole if it had no error and was not told that the other end is gone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EndResult {
    pub(super) error: Option<RingError>,
    /// Whether it was told that the other end is gone.
    pub(super) told: bool,
}

impl EndResult {
    pub(super) fn is_whole(self) -> bool {
        self.error.is_none() && !self.told
    }
}

impl Observations {
    /// Returns the objects that the living roles have, if all of them linger.
    pub(super) fn held_by(&self, alive: &[&String]) -> Option<ObjectCounts> {
        let mut all = ObjectCounts::default();
        for role in alive {
            let own = self.lingering.get(*role)?;
            all.queue_pairs += own.queue_pairs;
            all.completion_queues += own.completion_queues;
            all.completion_channels += own.completion_channels;
            all.regions += own.regions;
        }
        Some(all)
    }

    /// Returns the broken promises, one a line.
    pub(super) fn judge(&self, plan: &Plan) -> Vec<String> {
        let mut wrong = Vec::new();
        for (ring, record) in self.rings.iter().enumerate() {
            let lines = record.judge(plan.messages, plan.may_break(ring) || record.removed);
            wrong.extend(lines.into_iter().map(|line| format!("ring {ring}: {line}")));
        }
        wrong
    }
}

impl RingRecord {
    pub(super) fn is_broken(&self) -> bool {
        !self
            .ends
            .iter()
            .all(|end| end.is_some_and(EndResult::is_whole))
    }

    /// Returns the broken promises. `messages` must pass, unless the ring may break.
    fn judge(&self, messages: u64, may_break: bool) -> Vec<String> {
        let mut wrong = self.wrong.clone();
        let (accepted, received, ends) = (self.tails.len() as u64, self.received, &self.ends);
        let mut promise = |is_kept: bool, otherwise: String| {
            if !is_kept {
                wrong.push(otherwise);
            }
        };
        promise(
            received <= accepted + u64::from(self.in_doubt),
            format!("{received} messages came, but {accepted} were sent"),
        );
        promise(
            may_break || !self.is_broken(),
            format!("broke without a cause: {ends:?}"),
        );
        for error in ends.iter().flatten().filter_map(|end| end.error) {
            // Here a ring can break only because its other end is gone.
            promise(
                error.is_peer_gone(),
                format!("broke with an unexpected error: {error}"),
            );
        }
        promise(
            self.is_broken() || (accepted, received) == (messages, messages),
            format!("ended whole with {accepted} sent and {received} received of {messages}"),
        );
        let [Some(end), _] = ends else {
            return wrong;
        };
        // Every message that a sender reports as delivered was received, and the receiver saw only what was published.
        let cursors @ [sent, published, consumed] = self.cursors;
        let seen = match received {
            0 => 0,
            // The last message may be the one in doubt, which has no tail.
            _ => self
                .tails
                .get(received as usize - 1)
                .copied()
                .unwrap_or(sent),
        };
        promise(
            seen <= published,
            format!("{seen} slots were seen by the receiver, and {published} published"),
        );
        if let Some(by) = self.consumed {
            promise(
                consumed <= by,
                format!("the sender says that {consumed} slots are consumed, the receiver {by}"),
            );
        }
        let delivered = self.tails.partition_point(|tail| *tail <= consumed) as u64;
        promise(
            delivered <= received,
            format!(
                "{delivered} messages are delivered according to the sender, {received} were received"
            ),
        );
        promise(
            cursors.is_sorted_by(|higher, lower| higher >= lower),
            format!("cursors cross each other: {cursors:?}"),
        );
        promise(
            !end.is_whole() || consumed == sent,
            format!("ended, and not all was consumed: {cursors:?}"),
        );
        wrong
    }
}

#[cfg(test)]
mod tests {
    use headworks::verbs::QpState;

    use super::*;

    /// Returns the violations after `change` to a correct record of three messages of two slots each.
    fn judged(may_break: bool, change: impl FnOnce(&mut RingRecord)) -> String {
        let mut record = RingRecord {
            tails: vec![2, 4, 6],
            cursors: [6, 6, 6],
            received: 3,
            consumed: Some(6),
            ends: [Some(EndResult::default()); 2],
            ..RingRecord::default()
        };
        change(&mut record);
        record.judge(3, may_break).join("; ")
    }

    fn breaks(record: &mut RingRecord, error: RingError) {
        let (error, told) = (Some(error), false);
        record.ends[0] = Some(EndResult { error, told });
    }

    #[test]
    fn promised_behaviour_is_accepted() {
        assert_eq!(judged(false, |_| {}), "");
        let broke = |record: &mut RingRecord| {
            (record.received, record.consumed) = (2, Some(4));
            record.cursors = [6, 4, 2];
            breaks(record, RingError::QueuePair(QpState::Error));
        };
        assert_eq!(judged(true, broke), "");
        assert!(judged(false, broke).contains("without a cause"));
    }

    #[test]
    fn every_violation_is_reported() {
        type Change = fn(&mut RingRecord);
        let changes: [(&str, Change); 9] = [
            ("ended whole", |record| record.received = 2),
            ("4 messages came", |record| record.received = 4),
            ("3 messages are delivered", |record| record.received = 2),
            ("seen by the receiver", |record| record.cursors[1] = 4),
            ("the receiver 5", |record| record.consumed = Some(5)),
            ("cross", |record| record.cursors[1] = 7),
            ("not all was consumed", |record| record.cursors[2] = 4),
            ("unexpected error", |record| {
                breaks(record, RingError::Header(7))
            }),
            ("twice", |record| record.wrong.push("twice".to_owned())),
        ];
        for (what, change) in changes {
            let judged = judged(true, change);
            assert!(judged.contains(what), "{what}: {judged}");
        }
    }
}

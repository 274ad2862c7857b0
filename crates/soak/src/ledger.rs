//! What the ends of rings did, and whether that is what they promise. Pure.

use std::collections::BTreeMap;

use headworks::ring::RingError;
use headworks::sim::Census;

use super::plan::Plan;

/// What all ends did.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) rings: Vec<RingRecord>,
    /// Goes up whenever something is sent or received, or an end ends.
    pub(super) moved: u64,
    /// Who has all it wanted and stays to be looked at, and the objects that it has.
    pub(super) lingering: BTreeMap<String, Census>,
}

/// What the ends of one ring did.
#[derive(Debug, Default)]
pub(super) struct RingRecord {
    /// Slots taken, ever, behind each message that was accepted.
    pub(super) tails: Vec<u64>,
    /// A message met with an error, and may have gone out all the same.
    pub(super) in_doubt: bool,
    pub(super) sender: Option<SenderEnd>,
    /// Messages received.
    pub(super) received: u64,
    /// Slots consumed, ever, as the receiver says; a group does not say it of skips.
    pub(super) consumed: Option<u64>,
    pub(super) receiver: Option<ReceiverEnd>,
    /// The receiver ended it on purpose.
    pub(super) removed: bool,
    /// What the receiver saw that must not be.
    pub(super) wrong: Vec<String>,
}

/// How the sending end ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct SenderEnd {
    pub(super) sent: u64,
    pub(super) published: u64,
    pub(super) consumed: u64,
    /// `None`: everything was consumed, or it was told that the other end is gone.
    pub(super) error: Option<RingError>,
    pub(super) told: bool,
}

/// How the receiving end ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiverEnd {
    pub(super) error: Option<RingError>,
    /// It was told that the other end is gone.
    pub(super) told: bool,
}

impl RingRecord {
    pub(super) fn is_broken(&self) -> bool {
        self.sender
            .is_none_or(|end| end.error.is_some() || end.told)
            || self
                .receiver
                .is_none_or(|end| end.error.is_some() || end.told)
    }
}

impl Ledger {
    pub(super) fn new(rings: usize) -> Self {
        let none = std::iter::repeat_with(RingRecord::default);
        Self {
            rings: none.take(rings).collect(),
            moved: 0,
            lingering: BTreeMap::new(),
        }
    }

    /// What those who are alive have, if all of them linger.
    pub(super) fn held_by(&self, alive: &[&String]) -> Option<Census> {
        let mut all = Census::default();
        for role in alive {
            let own = self.lingering.get(*role)?;
            all.queue_pairs += own.queue_pairs;
            all.completion_queues += own.completion_queues;
            all.completion_channels += own.completion_channels;
            all.regions += own.regions;
        }
        Some(all)
    }

    /// What was not as promised, a line each.
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
    /// `messages` are to pass, unless the ring may break.
    fn judge(&self, messages: u64, may_break: bool) -> Vec<String> {
        let mut wrong = self.wrong.clone();
        let accepted = self.tails.len() as u64;
        if self.received > accepted + u64::from(self.in_doubt) {
            let received = self.received;
            wrong.push(format!(
                "{received} messages came of {accepted} that were sent"
            ));
        }
        if self.is_broken() && !may_break {
            let ends = (&self.sender, &self.receiver);
            wrong.push(format!("broke without a cause: {ends:?}"));
        }
        let errors = [
            self.sender.and_then(|end| end.error),
            self.receiver.and_then(|end| end.error),
        ];
        for error in errors.into_iter().flatten() {
            // All that breaks rings here is that one end is gone, for the other.
            if !error.is_peer_gone() {
                wrong.push(format!("broke of what nothing here causes: {error}"));
            }
        }
        if !self.is_broken() && (accepted, self.received) != (messages, messages) {
            let received = self.received;
            wrong.push(format!(
                "ended whole with {accepted} sent and {received} received of {messages}"
            ));
        }
        if let Some(end) = &self.sender {
            self.judge_sender(end, &mut wrong);
        }
        wrong
    }

    /// What a sender says was delivered, was, and nothing that it did not publish.
    fn judge_sender(&self, end: &SenderEnd, wrong: &mut Vec<String>) {
        let (published, consumed) = (end.published, end.consumed);
        let last = self.received.checked_sub(1);
        let seen = last.and_then(|last| self.tails.get(last as usize).copied());
        let seen = match last {
            // The one in doubt.
            Some(last) if last >= self.tails.len() as u64 => end.sent,
            _ => seen.unwrap_or(0),
        };
        if seen > published {
            wrong.push(format!(
                "{seen} slots were seen by the receiver, and {published} published"
            ));
        }
        if let Some(by) = self.consumed
            && consumed > by
        {
            wrong.push(format!(
                "the sender says that {consumed} slots are consumed, the receiver {by}"
            ));
        }
        let delivered = self.tails.partition_point(|tail| *tail <= consumed) as u64;
        if delivered > self.received {
            let received = self.received;
            wrong.push(format!(
                "{delivered} messages are delivered by the sender's word, {received} were received"
            ));
        }
        if published > end.sent || consumed > published {
            wrong.push(format!("cursors cross each other: {end:?}"));
        }
        if end.error.is_none() && !end.told && consumed != end.sent {
            wrong.push(format!("ended, and not all was consumed: {end:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use headworks::verbs::QpState;

    use super::*;

    /// Three messages of two slots each, of which all were received.
    fn whole() -> RingRecord {
        RingRecord {
            tails: vec![2, 4, 6],
            in_doubt: false,
            sender: Some(SenderEnd {
                sent: 6,
                published: 6,
                consumed: 6,
                error: None,
                told: false,
            }),
            received: 3,
            consumed: Some(6),
            receiver: Some(ReceiverEnd {
                error: None,
                told: false,
            }),
            removed: false,
            wrong: Vec::new(),
        }
    }

    /// What is wrong once `change` was made to a record of nothing wrong.
    fn judged(may_break: bool, change: impl FnOnce(&mut RingRecord)) -> String {
        let mut record = whole();
        change(&mut record);
        record.judge(3, may_break).join("; ")
    }

    fn end(record: &mut RingRecord) -> &mut SenderEnd {
        record.sender.as_mut().expect("ended")
    }

    #[test]
    fn what_is_as_promised_is_not_wrong() {
        assert_eq!(judged(false, |_| {}), "");
        let broke = |record: &mut RingRecord| {
            record.received = 2;
            record.consumed = Some(4);
            let end = end(record);
            (end.published, end.consumed) = (4, 2);
            end.error = Some(RingError::QueuePair(QpState::Error));
        };
        assert_eq!(judged(true, broke), "");
        assert!(judged(false, broke).contains("without a cause"));
    }

    #[test]
    fn what_is_not_is_said() {
        let says = |what: &str, change: &dyn Fn(&mut RingRecord)| {
            let judged = judged(true, change);
            assert!(judged.contains(what), "{what}: {judged}");
        };
        says("ended whole", &|record| record.received = 2);
        says("4 messages came", &|record| record.received = 4);
        says("3 messages are delivered", &|record| record.received = 2);
        says("seen by the receiver", &|record| end(record).published = 4);
        says("the receiver 5", &|record| record.consumed = Some(5));
        says("cross", &|record| end(record).published = 7);
        says("not all was consumed", &|record| end(record).consumed = 4);
        says("nothing here causes", &|record| {
            end(record).error = Some(RingError::Header(7));
        });
        let doubled = |record: &mut RingRecord| record.wrong.push("twice".to_owned());
        says("twice", &doubled);
    }
}

//! The two sides: the tap, which sees the packets, and the monitor, which counts them.

use headworks::ring::{MessageReceiver, MessageSender};

use super::{FlowCounts, RECORD, Record, Replay};
use crate::apps::request_response::PollTurns;
use crate::apps::{StepProgress, in_order, malformed, room};
use crate::error::Result;

/// Maximum number of records sent or taken in one step, by default.
const BATCH: usize = 64;

/// The side that sees the packets: sends a record for each.
#[derive(Clone, Debug)]
pub struct Tap {
    source: Replay,
    /// The next record to send. It is kept while the channel is full, so that none is lost.
    next: Record,
    left: u64,
    /// Maximum number of messages that a step handles; at least 1.
    pub batch: usize,
    polling: PollTurns,
}

impl Tap {
    /// Makes a tap that sends the next `records` records of `source`.
    pub fn new(mut source: Replay, records: u64) -> Self {
        Self {
            next: source.record(),
            source,
            left: records,
            batch: BATCH,
            polling: PollTurns::default(),
        }
    }

    /// Sends what there is room for. [`StepProgress::Done`] once the last record is on its way.
    #[inline]
    pub fn step(&mut self, out: &mut impl MessageSender) -> Result<StepProgress> {
        for sent in 0..self.batch.max(1) {
            if self.left == 0 {
                return Ok(match out.flush()? {
                    true => StepProgress::Done,
                    false => StepProgress::Idle,
                });
            }
            let next = self.next;
            if !room(out.try_send_with(RECORD, |place| next.emit(place)))? {
                self.polling.serve_while_full(out)?;
                return Ok(StepProgress::of(sent));
            }
            self.next = self.source.record();
            self.left -= 1;
        }
        Ok(StepProgress::Worked)
    }

    /// Returns how many records are not sent yet.
    pub fn left(&self) -> u64 {
        self.left
    }
}

/// The network function: counts every flow, and reports a record that is lost, duplicated or out of order.
#[derive(Clone, Debug)]
pub struct Monitor {
    meter: FlowCounts,
    taken: u64,
    records: u64,
    /// Maximum number of messages that a step handles; at least 1.
    pub batch: usize,
    polling: PollTurns,
}

impl Monitor {
    /// Makes a monitor that counts `records` records with `meter`.
    pub fn new(meter: FlowCounts, records: u64) -> Self {
        Self {
            meter,
            taken: 0,
            records,
            batch: BATCH,
            polling: PollTurns::default(),
        }
    }

    /// Counts the records that are there. [`StepProgress::Done`] once all records were counted.
    #[inline]
    pub fn step(&mut self, from: &mut impl MessageReceiver) -> Result<StepProgress> {
        for taken in 0..self.batch.max(1) {
            if self.taken == self.records {
                return Ok(StepProgress::Done);
            }
            let (meter, due) = (&mut self.meter, self.taken);
            let Some(counted) = from.try_recv_with(|message| count(meter, due, message))? else {
                self.polling.serve_while_empty(from)?;
                return Ok(StepProgress::of(taken));
            };
            counted?;
            self.polling.found();
            self.taken += 1;
        }
        Ok(StepProgress::Worked)
    }

    /// Returns how many records were counted so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the counts.
    pub fn meter(&self) -> &FlowCounts {
        &self.meter
    }
}

#[inline(always)]
fn count(meter: &mut FlowCounts, due: u64, message: &[u8]) -> Result<()> {
    let wrong = || malformed("record of a packet", message);
    let record = Record::parse(message).ok_or_else(wrong)?;
    in_order("record", record.sequence, due)?;
    meter.count(record.key, record.size_bytes)
}

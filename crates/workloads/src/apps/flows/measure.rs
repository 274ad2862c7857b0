//! The two sides: the tap that sees the packets, and the function that measures.

use headworks::ring::{MessageReceiver, MessageSender};

use super::{Meter, RECORD, Record, Replay};
use crate::apps::exchange::Polling;
use crate::apps::{Progress, in_order, malformed, room};
use crate::error::Result;

/// Records sent or taken in one step at most, by default.
const BATCH: usize = 64;

/// The side that sees the packets: sends a record of each.
#[derive(Clone, Debug)]
pub struct Tap {
    source: Replay,
    /// Made and not yet sent: a full channel loses none.
    next: Record,
    left: u64,
    /// Messages that a step handles at most; at least 1.
    pub batch: usize,
    polling: Polling,
}

impl Tap {
    /// Sends the next `records` of `source`.
    pub fn new(mut source: Replay, records: u64) -> Self {
        Self {
            next: source.record(),
            source,
            left: records,
            batch: BATCH,
            polling: Polling::default(),
        }
    }

    /// Sends what there is room for. [`Progress::Done`] once the last record is on its way.
    #[inline]
    pub fn step(&mut self, out: &mut impl MessageSender) -> Result<Progress> {
        for sent in 0..self.batch.max(1) {
            if self.left == 0 {
                return Ok(match out.flush()? {
                    true => Progress::Done,
                    false => Progress::Idle,
                });
            }
            let next = self.next;
            if !room(out.try_send_with(RECORD, |place| next.emit(place)))? {
                self.polling.full_alone(out)?;
                return Ok(Progress::of(sent));
            }
            self.next = self.source.record();
            self.left -= 1;
        }
        Ok(Progress::Worked)
    }

    /// Records that are not sent yet.
    pub fn left(&self) -> u64 {
        self.left
    }
}

/// The network function: counts every flow, and reports a record that is lost, doubled or out of order.
#[derive(Clone, Debug)]
pub struct Monitor {
    meter: Meter,
    taken: u64,
    records: u64,
    /// Messages that a step handles at most; at least 1.
    pub batch: usize,
    polling: Polling,
}

impl Monitor {
    /// Counts `records` records with `meter`.
    pub fn new(meter: Meter, records: u64) -> Self {
        Self {
            meter,
            taken: 0,
            records,
            batch: BATCH,
            polling: Polling::default(),
        }
    }

    /// Counts what is there. [`Progress::Done`] once all records were counted.
    #[inline]
    pub fn step(&mut self, from: &mut impl MessageReceiver) -> Result<Progress> {
        for taken in 0..self.batch.max(1) {
            if self.taken == self.records {
                return Ok(Progress::Done);
            }
            let (meter, due) = (&mut self.meter, self.taken);
            let Some(counted) = from.try_recv_with(|message| count(meter, due, message))? else {
                self.polling.empty_alone(from)?;
                return Ok(Progress::of(taken));
            };
            counted?;
            self.polling.found();
            self.taken += 1;
        }
        Ok(Progress::Worked)
    }

    /// Records counted so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// What was counted.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }
}

#[inline(always)]
fn count(meter: &mut Meter, due: u64, message: &[u8]) -> Result<()> {
    let wrong = || malformed("record of a packet", message);
    let record = Record::parse(message).ok_or_else(wrong)?;
    in_order("record", record.sequence, due)?;
    meter.count(record.key, record.size_bytes)
}

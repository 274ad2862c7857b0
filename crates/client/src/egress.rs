//! The egress ring: what an application wants sent, as records, oldest first (RaaS's egress queue, section IV.B,
//! and the memory that its descriptors refer to, in one).
//!
//! A record begins with a word: its kind in the lowest byte, its length in the upper four. It never wraps, and
//! takes a multiple of 8 bytes.
//!
//! | kind | behind the word | what |
//! |---|---|---|
//! | 1, data | so many bytes, and up to 7 more that mean nothing | bytes of the stream |
//! | 2, pad | so many bytes that mean nothing | the ring's end is too near for what comes next |
//! | 3, lend | two words: slab and length, offset | bytes of the stream that lie elsewhere in the session's memory, and are the daemon's until the head passes the record |
//! | 4, end | nothing | the stream ends here |
//! | 5, switch | nothing | the next record is the first of the next ring |
//! | 6, operate | eight words: see [`Operation`] | an operation on memory of the other end's |

use headworks_shm::cursor::check_within;
use headworks_shm::view::CursorRef;

use crate::control_block::{ControlBlock, Transfer, Way};
use crate::error::ContractError;
use crate::memory::{ByteRing, Extent, Slabs};
use crate::one_sided::{OPERATION_BYTES, Operation};

const DATA: u8 = 1;
const PAD: u8 = 2;
const LEND: u8 = 3;
const END: u8 = 4;
const SWITCH: u8 = 5;
const OPERATE: u8 = 6;

/// Bytes of a record's first word.
const HEADER: u64 = 8;
/// Bytes of a lending record.
const LEND_BYTES: u64 = HEADER + 16;
/// Bytes that one record carries at most: a long message goes in several, so that the daemon sends the first
/// while the next is copied.
pub const DATA_MAX: usize = 64 << 10;

const fn header(kind: u8, len: u32) -> [u8; 8] {
    ((len as u64) << 32 | kind as u64).to_le_bytes()
}

/// The application's end.
#[derive(Debug)]
pub struct EgressWriter {
    block: ControlBlock,
    tail: CursorRef,
    head: CursorRef,
    ring: ByteRing,
    /// Which ring that is.
    number: u64,
    /// Bytes of records written.
    at: u64,
    /// The head as last observed.
    freed: u64,
    is_ended: bool,
}

/// Until when lent memory is the daemon's: see [`EgressWriter::is_returned`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lent(u64);

impl EgressWriter {
    /// The writer of a new connection.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`], and [`ContractError::ControlBlock`] where there is no ring.
    pub fn new(slabs: &Slabs, block: &ControlBlock) -> Result<Self, ContractError> {
        let ring = block.ring_told(slabs, Way::Egress, 1)?;
        let ring = ring.and_then(|told| told.ring);
        Ok(Self {
            tail: block.tail(Way::Egress),
            head: block.head(Way::Egress),
            block: block.clone(),
            ring: ring.ok_or(ContractError::ControlBlock)?,
            number: 1,
            at: 0,
            freed: 0,
            is_ended: false,
        })
    }

    /// Hints that a record will be written soon.
    #[inline]
    pub fn expect(&self) {
        self.ring.expect(self.at);
        self.block.expect();
    }

    /// Copies as many of the bytes as there is room for, and says how many; none where there is too little to be
    /// worth a record, or where the stream was ended. The daemon is to be told if any were.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn write(&mut self, slabs: &Slabs, bytes: &[u8]) -> Result<usize, ContractError> {
        let mut written = 0;
        while written < bytes.len() && !self.is_ended {
            let left = &bytes[written..];
            let want = HEADER + padded(left.len().min(DATA_MAX));
            let room = self.room(slabs, want.min(self.ring.len() / 4))?;
            if room == 0 {
                break;
            }
            let beside_header = |room: u64| usize::try_from(room - HEADER).unwrap_or(usize::MAX);
            let near = self.ring.contiguous(self.at, self.ring.len() as usize) as u64;
            let len = left.len().min(DATA_MAX);
            let len = len.min(beside_header(room)).min(beside_header(near));
            if len > 0 {
                self.ring.write(self.at + HEADER, &left[..len]);
            }
            self.publish(header(DATA, len as u32), HEADER + padded(len));
            written += len;
        }
        Ok(written)
    }

    /// Has memory of the session sent from where it is, at least a byte of it. `None`: no room. The daemon is to be
    /// told if there was. The memory must stay as it is until it is [returned](Self::is_returned).
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn lend(&mut self, slabs: &Slabs, extent: Extent) -> Result<Option<Lent>, ContractError> {
        if self.is_ended || extent.len == 0 {
            return Ok(None);
        }
        if !self.has_room_for(slabs, LEND_BYTES)? {
            return Ok(None);
        }
        let shape = u64::from(extent.slab) << 32 | u64::from(extent.len);
        self.ring.write(self.at + HEADER, &shape.to_le_bytes());
        let offset = extent.offset.to_le_bytes();
        self.ring.write(self.at + HEADER + 8, &offset);
        self.publish(header(LEND, 16), LEND_BYTES);
        Ok(Some(Lent(self.at)))
    }

    /// Asks for a one-sided operation. `None`: no room. The daemon is to be told if there was. The operation is over when
    /// it is said what became of it, or, if that is never said, when it is [returned](Self::is_returned): then it was
    /// lost.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn operate(
        &mut self,
        slabs: &Slabs,
        operation: &Operation,
    ) -> Result<Option<Lent>, ContractError> {
        const BYTES: u64 = HEADER + OPERATION_BYTES as u64;
        if self.is_ended || !self.has_room_for(slabs, BYTES)? {
            return Ok(None);
        }
        for (at, word) in (1..).zip(operation.words()) {
            self.ring.write(self.at + at * HEADER, &word.to_le_bytes());
        }
        self.publish(header(OPERATE, OPERATION_BYTES), BYTES);
        Ok(Some(Lent(self.at)))
    }

    /// Goes on to where a record of so many bytes lies without a break; says whether there is room for it.
    fn has_room_for(&mut self, slabs: &Slabs, bytes: u64) -> Result<bool, ContractError> {
        let near = self.ring.contiguous(self.at, bytes as usize) as u64;
        let pad = if near < bytes { near } else { 0 };
        if self.room(slabs, pad + bytes)? == 0 {
            return Ok(false);
        }
        // Where the ring is another one now, it begins here.
        let near = self.ring.contiguous(self.at, bytes as usize) as u64;
        if near < bytes {
            self.publish(header(PAD, (near - HEADER) as u32), near);
        }
        Ok(true)
    }

    /// Ends the stream; says whether there was room to say so. Nothing can be written any more then.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    pub fn end(&mut self, slabs: &Slabs) -> Result<bool, ContractError> {
        if !self.is_ended && self.room(slabs, HEADER)? > 0 {
            self.publish(header(END, 0), HEADER);
            self.is_ended = true;
        }
        Ok(self.is_ended)
    }

    /// Whether memory that was lent is the application's again.
    ///
    /// # Errors
    ///
    /// [`ContractError::Cursor`].
    pub fn is_returned(&mut self, lent: Lent) -> Result<bool, ContractError> {
        if self.freed < lent.0 {
            self.look()?;
        }
        Ok(self.freed >= lent.0)
    }

    /// Whether the stream was ended.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether the daemon has sent everything and needs none of it any more.
    ///
    /// # Errors
    ///
    /// [`ContractError::Cursor`].
    pub fn is_drained(&mut self) -> Result<bool, ContractError> {
        self.is_returned(Lent(self.at))
    }

    fn look(&mut self) -> Result<(), ContractError> {
        self.freed = self.head.observe_within(self.freed, self.at - self.freed)?;
        Ok(())
    }

    fn free(&self) -> u64 {
        // What lies in the ring before takes no room in this one; and where it goes on is to be said, too.
        self.ring.len() - (self.at - self.freed.max(self.ring.from())) - HEADER
    }

    /// Bytes that may be written: at least `want`, or 0.
    fn room(&mut self, slabs: &Slabs, want: u64) -> Result<u64, ContractError> {
        if self.free() < want {
            self.look()?;
        }
        if self.free() < want
            && let Some(next) = self.block.ring_told(slabs, Way::Egress, self.number + 1)?
            && let Some(next) = next.ring
        {
            self.publish(header(SWITCH, 0), HEADER);
            self.ring = ByteRing::new(slabs, next.extent(), self.at)?;
            self.number += 1;
        }
        let free = self.free();
        Ok(if free < want { 0 } else { free })
    }

    /// The record at the tail is whole but for its first word.
    fn publish(&mut self, header: [u8; 8], bytes: u64) {
        self.ring.write(self.at, &header);
        self.at += bytes;
        self.tail.publish(self.at);
    }
}

fn padded(len: usize) -> u64 {
    (len as u64).next_multiple_of(HEADER)
}

/// What an application wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Kind of the record.
    pub what: What,
    /// Where it ends: what the head is once the daemon needs it no more.
    pub end: u64,
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Bytes of the stream, at least one, and where they are.
    Bytes(Extent),
    /// A one-sided operation, on memory that is there.
    Operation(Operation),
    /// The stream ends.
    End,
}

/// The daemon's end: believes nothing that it reads.
#[derive(Debug)]
pub struct EgressReader {
    block: ControlBlock,
    tail: CursorRef,
    head: CursorRef,
    ring: ByteRing,
    /// The ring that the application may go over to.
    next: Option<ByteRing>,
    /// Where the ring before lies, and where its last record ends, until that is not needed any more.
    before: Option<(Extent, u64)>,
    number: u64,
    /// The tail as last observed.
    seen: u64,
    /// Where the next record begins.
    at: u64,
    /// Where the last one that was read ended.
    last_end: u64,
    /// What was given back.
    freed: u64,
    was_pad: bool,
    is_ended: bool,
}

impl EgressReader {
    /// How the application wants its bytes carried.
    pub fn transfer(&self) -> Transfer {
        self.block.transfer()
    }

    /// The reader of a new connection, whose words are clear; the application will write to the ring at `extent`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`].
    pub fn new(slabs: &Slabs, block: &ControlBlock, extent: Extent) -> Result<Self, ContractError> {
        let ring = ByteRing::new(slabs, extent, 0)?;
        block.tell_ring(Way::Egress, 1, &ring);
        Ok(Self {
            tail: block.tail(Way::Egress),
            head: block.head(Way::Egress),
            block: block.clone(),
            ring,
            next: None,
            before: None,
            number: 1,
            seen: 0,
            at: 0,
            last_end: 0,
            freed: 0,
            was_pad: false,
            is_ended: false,
        })
    }

    /// Hints that the next record will be read soon.
    #[inline]
    pub fn expect(&self) {
        self.ring.expect(self.at);
    }

    /// The next record, where there is one. It is the caller's until [`EgressReader::release`] passes it.
    ///
    /// # Errors
    ///
    /// What the application wrote that it must not; the reader is not to be used any more.
    pub fn next(&mut self, slabs: &Slabs) -> Result<Option<Record>, ContractError> {
        loop {
            if self.seen == self.at && !self.look()? {
                // Behind the last record there may be a pad, or another ring has begun.
                if self.freed == self.last_end && self.at > self.freed {
                    self.release(self.last_end);
                }
                return Ok(None);
            }
            let available = (self.seen - self.at).checked_sub(HEADER);
            let available = available.ok_or(ContractError::RecordLength {
                len: 0,
                available: self.seen - self.at,
            })?;
            // Read once.
            let word = self.ring.read_word(self.at);
            let (kind, len) = (word as u8, (word >> 32) as u32);
            let takes = padded(len as usize);
            let near = self.ring.contiguous(self.at, self.ring.len() as usize) as u64;
            if takes > available || takes > near - HEADER {
                return Err(ContractError::RecordLength { len, available });
            }
            if self.is_ended {
                return Err(ContractError::AfterEnd);
            }
            let body = self.at + HEADER;
            let end = body + takes;
            let was_pad = std::mem::replace(&mut self.was_pad, kind == PAD);
            let what = match kind {
                DATA if len > 0 => What::Bytes(self.ring.stretch(body, len as usize)),
                // One is all that can be needed; more would keep whoever reads busy.
                DATA | PAD if was_pad => return Err(ContractError::RecordKind(kind)),
                DATA | PAD => {
                    self.was_pad = true;
                    self.at = end;
                    continue;
                }
                LEND if len == 16 => What::Bytes(self.lent(slabs, body)?),
                OPERATE if len == OPERATION_BYTES => {
                    let words = std::array::from_fn(|at| self.ring.read_word(body + at as u64 * 8));
                    What::Operation(Operation::parse(words, slabs)?)
                }
                END if len == 0 => {
                    self.is_ended = true;
                    What::End
                }
                SWITCH if len == 0 => {
                    self.go_over(slabs, end)?;
                    continue;
                }
                kind => return Err(ContractError::RecordKind(kind)),
            };
            self.at = end;
            self.last_end = end;
            return Ok(Some(Record { what, end }));
        }
    }

    fn lent(&self, slabs: &Slabs, body: u64) -> Result<Extent, ContractError> {
        let shape = self.ring.read_word(body);
        let extent = Extent {
            slab: (shape >> 32) as u32,
            len: shape as u32,
            offset: self.ring.read_word(body + 8),
        };
        // Only where there are such bytes.
        match extent.len {
            0 => Err(ContractError::Extent(extent)),
            _ => slabs.view(extent).map(|_| extent),
        }
    }

    /// Looks at the tail; says whether there is more.
    fn look(&mut self) -> Result<bool, ContractError> {
        let free_from = self.freed.max(self.ring.from());
        let next = self.next.as_ref().map_or(0, ByteRing::len);
        let highest = free_from + self.ring.len() + next;
        let span = highest.saturating_sub(self.seen);
        self.seen = check_within(self.tail.observe(), self.seen, span)?;
        Ok(self.seen != self.at)
    }

    fn go_over(&mut self, slabs: &Slabs, from: u64) -> Result<(), ContractError> {
        let next = self.next.take().ok_or(ContractError::RecordKind(SWITCH))?;
        let next = ByteRing::new(slabs, next.extent(), from)?;
        let before = std::mem::replace(&mut self.ring, next);
        self.before = Some((before.extent(), self.last_end));
        self.at = from;
        Ok(())
    }

    /// Everything up to there is not needed any more: the end of a record that was read.
    pub fn release(&mut self, end: u64) {
        debug_assert!((self.freed..=self.at).contains(&end));
        // With what is behind it and no record.
        let mut end = end;
        if end == self.last_end {
            end = self.at;
            self.last_end = end;
        }
        self.freed = end;
        self.head.publish(end);
    }

    /// Nothing that was written is needed any more, read or not.
    pub fn release_all(&mut self) {
        // A tail that cannot be is not followed.
        let _ = self.look();
        self.at = self.seen;
        self.last_end = self.at;
        self.release(self.at);
    }

    /// Offers the application another ring, to which it will go over when this one is too small. `false`: it has
    /// not gone over to the latest one, or not left the one before.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`].
    pub fn offer(&mut self, slabs: &Slabs, extent: Extent) -> Result<bool, ContractError> {
        if self.next.is_some() || self.before.is_some() {
            return Ok(false);
        }
        let ring = ByteRing::new(slabs, extent, 0)?;
        self.number += 1;
        self.block.tell_ring(Way::Egress, self.number, &ring);
        self.next = Some(ring);
        Ok(true)
    }

    /// The memory of the ring before, once nothing of it is needed any more: once.
    pub fn left(&mut self) -> Option<Extent> {
        let (extent, _) = self.before.take_if(|(_, end)| *end <= self.freed)?;
        Some(extent)
    }

    /// All memory that it has: the caller's once the reader is gone and the application knows that.
    pub fn memory(&self) -> impl Iterator<Item = Extent> {
        let next = self.next.as_ref().map(ByteRing::extent);
        [
            Some(self.ring.extent()),
            next,
            self.before.map(|(extent, _)| extent),
        ]
        .into_iter()
        .flatten()
    }

    /// Bytes of records that were given back.
    pub fn released(&self) -> u64 {
        self.freed
    }

    /// Rings that the application was told of.
    pub fn rings(&self) -> u64 {
        self.number
    }

    /// Bytes of records that were written and not released, as far as the tail was seen.
    pub fn backlog(&self) -> u64 {
        self.seen - self.freed
    }

    /// The same, having looked at the tail. One that cannot be is not followed.
    pub fn backlog_now(&mut self) -> u64 {
        let _ = self.look();
        self.backlog()
    }

    /// Bytes of the ring that is written to.
    pub fn ring_len(&self) -> u64 {
        self.ring.len()
    }

    /// Whether another ring was offered that the application has not gone over to.
    pub fn has_offered(&self) -> bool {
        self.next.is_some()
    }

    /// Whether the application ended the stream.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether all records were read, as far as the tail was seen.
    pub fn is_drained(&self) -> bool {
        self.at == self.seen
    }
}

#[cfg(test)]
mod tests;

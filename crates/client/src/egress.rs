//! Egress ring: records that an application wants sent, oldest first. It combines RaaS's egress queue
//! (section IV.B) and the memory that the queue's descriptors refer to.
//!
//! A record begins with a word: its kind in the lowest byte, how its bytes are carried ([`Transfer`]) in the next one,
//! its length in bytes in the upper four. A record never wraps, and takes a multiple of 8 bytes.
//!
//! | kind | after the first word | what |
//! |---|---|---|
//! | 1, data | `length` bytes, and up to 7 bytes of padding | bytes of the stream |
//! | 2, pad | `length` bytes of padding | the next record does not fit before the ring's end |
//! | 3, lend | two words: slab and length, offset | bytes of the stream that lie elsewhere in the slabs |
//! | 4, end | nothing | the stream ends here |
//! | 5, switch | nothing | the next record is the first of the next ring |
//! | 6, operate | eight words: see [`Operation`] | a one-sided operation on memory of the peer |
//!
//! Memory that a lend record names belongs to the daemon until the head passes the record.

use headworks_shm::cursor::check_within;

use crate::control_block::{ControlBlock, Direction, Room, Transfer};
use crate::error::ContractError;
use crate::one_sided::{OPERATION_BYTES, Operation};
use crate::slabs::{ByteRing, Extent, Slabs};

const DATA: u8 = 1;
const PAD: u8 = 2;
const LEND: u8 = 3;
const END: u8 = 4;
const SWITCH: u8 = 5;
const OPERATE: u8 = 6;

/// Bytes of a record's first word.
const HEADER: u64 = 8;
/// Bytes of a lend record.
const LEND_BYTES: u64 = HEADER + 16;
/// Maximum number of bytes in one data record. A longer message takes several, so that the daemon sends the
/// first while the application copies the next.
pub const DATA_MAX: usize = 64 << 10;

const fn header(kind: u8, len: u32) -> [u8; 8] {
    carried(kind, Transfer::Any, len)
}

/// The first word of a record whose bytes are to be carried in a way of its own.
const fn carried(kind: u8, transfer: Transfer, len: u32) -> [u8; 8] {
    ((len as u64) << 32 | (transfer as u64) << 8 | kind as u64).to_le_bytes()
}

/// The application's end.
#[derive(Debug)]
pub struct EgressWriter {
    block: ControlBlock,
    ring: ByteRing,
    /// Number of that ring, starting at 1.
    number: u64,
    /// Bytes of records written, and so the position of the next one.
    at: u64,
    /// The head as last observed.
    freed: u64,
    is_ended: bool,
    is_withheld: bool,
}

/// End of the record that lent memory: see [`EgressWriter::is_returned`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LendTicket(u64);

impl EgressWriter {
    /// The writer of a new connection.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`], and [`ContractError::ControlBlock`] if the daemon has published no ring.
    pub fn new(slabs: &Slabs, block: &ControlBlock) -> Result<Self, ContractError> {
        let ring = block.published_ring(slabs, Direction::Egress, 1)?;
        let ring = ring.and_then(|told| told.ring);
        Ok(Self {
            block: block.clone(),
            ring: ring.ok_or(ContractError::ControlBlock)?,
            number: 1,
            at: 0,
            freed: 0,
            is_ended: false,
            is_withheld: false,
        })
    }

    /// Prefetches the memory that the next record will be written to.
    #[inline]
    pub fn expect(&self) {
        self.ring.expect(self.at);
        self.block.expect();
    }

    /// Copies as many bytes as there is room for, and returns their number. Returns 0 if there is too little
    /// room for a record to be worthwhile, or if the stream was ended. If it is not 0, tell the daemon.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn write(&mut self, slabs: &Slabs, bytes: &[u8]) -> Result<usize, ContractError> {
        self.write_as(slabs, bytes, Transfer::Any)
    }

    /// Like [`write`](Self::write), for bytes that are carried in this way whatever the connection's way is;
    /// [`Transfer::Any`] stands for the connection's.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_as(
        &mut self,
        slabs: &Slabs,
        bytes: &[u8],
        transfer: Transfer,
    ) -> Result<usize, ContractError> {
        let mut written = 0;
        while written < bytes.len() && !self.is_ended {
            let left = &bytes[written..];
            let want = HEADER + padded(left.len().min(DATA_MAX));
            // A piece that this ring holds more than once is not torn where it can wait.
            let least = match want <= self.ring.len() / 8 * 5 {
                true => want,
                false => self.ring.len() / 4,
            };
            let room = self.room(slabs, least)?;
            if room == 0 {
                break;
            }
            let near = self.ring.contiguous(self.at, self.ring.len() as usize) as u64;
            if near < want && near + want < self.ring.len() {
                // In one piece at the ring's beginning, the record takes one transfer.
                self.look()?;
                if near + want <= self.free() {
                    self.publish(header(PAD, (near - HEADER) as u32), near);
                    continue;
                }
            }
            let beside_header = |room: u64| usize::try_from(room - HEADER).unwrap_or(usize::MAX);
            let len = left.len().min(DATA_MAX);
            let len = len.min(beside_header(room)).min(beside_header(near));
            if len > 0 {
                self.ring.write(self.at + HEADER, &left[..len]);
            }
            let word = carried(DATA, transfer, len as u32);
            self.publish(word, HEADER + padded(len));
            written += len;
        }
        Ok(written)
    }

    /// Asks the daemon to send memory of the session in place, at least 1 byte. Returns `None` if there is no
    /// room; otherwise, tell the daemon. The memory must not change until it is
    /// [returned](Self::is_returned).
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn lend(
        &mut self,
        slabs: &Slabs,
        extent: Extent,
    ) -> Result<Option<LendTicket>, ContractError> {
        self.lend_as(slabs, extent, Transfer::Any)
    }

    /// Like [`lend`](Self::lend), for bytes that are carried in this way, as with [`write_as`](Self::write_as).
    ///
    /// # Errors
    ///
    /// As [`lend`](Self::lend).
    pub fn lend_as(
        &mut self,
        slabs: &Slabs,
        extent: Extent,
        transfer: Transfer,
    ) -> Result<Option<LendTicket>, ContractError> {
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
        self.publish(carried(LEND, transfer, 16), LEND_BYTES);
        Ok(Some(LendTicket(self.at)))
    }

    /// Asks the daemon for a one-sided operation. Returns `None` if there is no room; otherwise, tell the
    /// daemon. The operation is over when its outcome is written. If its record is
    /// [returned](Self::is_returned) without an outcome, the operation was lost.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn operate(
        &mut self,
        slabs: &Slabs,
        operation: &Operation,
    ) -> Result<Option<LendTicket>, ContractError> {
        const BYTES: u64 = HEADER + OPERATION_BYTES as u64;
        if self.is_ended || !self.has_room_for(slabs, BYTES)? {
            return Ok(None);
        }
        for (at, word) in (1..).zip(operation.words()) {
            self.ring.write(self.at + at * HEADER, &word.to_le_bytes());
        }
        self.publish(header(OPERATE, OPERATION_BYTES), BYTES);
        Ok(Some(LendTicket(self.at)))
    }

    /// Returns whether there is room for a record of `bytes` that does not wrap, and writes a pad before it
    /// if needed.
    fn has_room_for(&mut self, slabs: &Slabs, bytes: u64) -> Result<bool, ContractError> {
        let near = self.ring.contiguous(self.at, bytes as usize) as u64;
        let pad = if near < bytes { near } else { 0 };
        if self.room(slabs, pad + bytes)? == 0 {
            return Ok(false);
        }
        // `room` may have switched to another ring, which begins at this position.
        let near = self.ring.contiguous(self.at, bytes as usize) as u64;
        if near < bytes {
            self.publish(header(PAD, (near - HEADER) as u32), near);
        }
        Ok(true)
    }

    /// Ends the stream. Returns whether it is ended: it is not if there is no room for the record. Nothing
    /// can be written after that.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn end(&mut self, slabs: &Slabs) -> Result<bool, ContractError> {
        if !self.is_ended && self.room(slabs, HEADER)? > 0 {
            self.publish(header(END, 0), HEADER);
            self.is_ended = true;
        }
        Ok(self.is_ended)
    }

    /// Whether memory that was lent belongs to the application again.
    ///
    /// # Errors
    ///
    /// [`ContractError::Cursor`], [`ContractError::ControlBlock`].
    pub fn is_returned(&mut self, lent: LendTicket) -> Result<bool, ContractError> {
        if self.freed < lent.0 {
            self.look()?;
        }
        Ok(self.freed >= lent.0)
    }

    /// Whether the latest record found no room because the next ring lies in a slab that the session has not read from its
    /// socket.
    pub fn is_withheld(&self) -> bool {
        self.is_withheld
    }

    /// Returns the room in the ring that the writer read last.
    pub fn room_seen(&self) -> Room {
        Room {
            freed: self.freed,
            ring: self.number,
            direct: 0,
            direct_ring: 0,
        }
    }

    /// Whether the stream was ended.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether the daemon has sent all records and needs none of them any more.
    ///
    /// # Errors
    ///
    /// [`ContractError::Cursor`], [`ContractError::ControlBlock`].
    pub fn is_drained(&mut self) -> Result<bool, ContractError> {
        self.is_returned(LendTicket(self.at))
    }

    fn look(&mut self) -> Result<(), ContractError> {
        let freed = self
            .block
            .head(Direction::Egress)
            .observe_within(self.freed, self.at - self.freed)?;
        // Records end at multiples of 8. With another head, a record could take more room than there is.
        if !freed.is_multiple_of(HEADER) {
            return Err(ContractError::ControlBlock);
        }
        self.freed = freed;
        Ok(())
    }

    fn free(&self) -> u64 {
        // Records in the ring before take no room in this one. Room for a switch record is always kept.
        self.ring.len() - (self.at - self.freed.max(self.ring.from())) - HEADER
    }

    /// Number of bytes that may be written: at least `want`, or 0. Switches to the next ring if this one is
    /// too full.
    fn room(&mut self, slabs: &Slabs, want: u64) -> Result<u64, ContractError> {
        if self.free() < want {
            self.look()?;
        }
        self.is_withheld = false;
        if self.free() < want
            && let Some(next) =
                self.block
                    .published_ring(slabs, Direction::Egress, self.number + 1)?
        {
            match next.ring {
                Some(next) => {
                    self.publish(header(SWITCH, 0), HEADER);
                    self.ring = ByteRing::new(slabs, next.extent(), self.at)?;
                    self.number += 1;
                }
                None => self.is_withheld = true,
            }
        }
        let free = self.free();
        Ok(if free < want { 0 } else { free })
    }

    /// Completes the record at the tail with its first word, and publishes it.
    fn publish(&mut self, header: [u8; 8], bytes: u64) {
        self.ring.write(self.at, &header);
        self.at += bytes;
        self.block.tail(Direction::Egress).publish(self.at);
    }
}

fn padded(len: usize) -> u64 {
    (len as u64).next_multiple_of(HEADER)
}

/// A record that an application wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressRecord {
    /// Kind of the record.
    pub what: RecordKind,
    /// How its bytes are to be carried; [`Transfer::Any`] stands for the connection's way.
    pub transfer: Transfer,
    /// Where the record ends: [`EgressReader::release`] takes this once the daemon needs it no more.
    pub end: u64,
}

/// Kind and content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// At least one byte of the stream, and where it lies.
    Bytes(Extent),
    /// A one-sided operation; its local memory exists.
    Operation(Operation),
    /// The stream ends.
    End,
}

/// The daemon's end. It checks everything that it reads.
#[derive(Debug)]
pub struct EgressReader {
    block: ControlBlock,
    ring: ByteRing,
    /// The ring that was offered and that the application has not switched to yet.
    next: Option<Extent>,
    /// Memory of the previous ring, and where its last record ends, until the daemon has freed all its records.
    before: Option<(Extent, u64)>,
    number: u64,
    /// The tail as last observed.
    seen: u64,
    /// Position of the next record.
    at: u64,
    /// End of the last record that was read.
    last_end: u64,
    /// Position up to which records were released: the head.
    freed: u64,
    was_pad: bool,
    is_ended: bool,
}

impl EgressReader {
    /// How the application wants its bytes carried.
    pub fn transfer(&self) -> Transfer {
        self.block.transfer()
    }

    /// The reader of a new connection, whose control block is clear. The application will write to the ring
    /// at `extent`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`].
    pub fn new(slabs: &Slabs, block: &ControlBlock, extent: Extent) -> Result<Self, ContractError> {
        let ring = ByteRing::new(slabs, extent, 0)?;
        block.publish_ring(Direction::Egress, 1, &ring);
        Ok(Self {
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

    /// Prefetches the next record.
    #[inline]
    pub fn expect(&self) {
        self.ring.expect(self.at);
    }

    /// The next record, if there is one. Its memory must not be used after [`EgressReader::release`] passes
    /// it.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the application broke the contract. The reader must not be used after that.
    pub fn next(&mut self, slabs: &Slabs) -> Result<Option<EgressRecord>, ContractError> {
        loop {
            if self.seen == self.at && !self.look()? {
                // Only a pad or a switch may follow the last released record; it is released here.
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
            // Read the word once: the application may change it at any time.
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
                DATA if len > 0 => RecordKind::Bytes(self.ring.stretch(body, len as usize)),
                // One empty record in a row suffices. More would keep the reader busy for nothing.
                DATA | PAD if was_pad => return Err(ContractError::RecordKind(kind)),
                DATA | PAD => {
                    self.was_pad = true;
                    let is_next = self.freed == self.last_end;
                    self.at = end;
                    if is_next {
                        // It is released at once, so that it does not count as backlog.
                        self.release(self.last_end);
                    }
                    continue;
                }
                LEND if len == 16 => RecordKind::Bytes(self.lent(slabs, body)?),
                OPERATE if len == OPERATION_BYTES => {
                    let words = std::array::from_fn(|at| self.ring.read_word(body + at as u64 * 8));
                    RecordKind::Operation(Operation::parse(words, slabs)?)
                }
                END if len == 0 => {
                    self.is_ended = true;
                    RecordKind::End
                }
                SWITCH if len == 0 => {
                    self.go_over(slabs, end)?;
                    continue;
                }
                kind => return Err(ContractError::RecordKind(kind)),
            };
            self.at = end;
            self.last_end = end;
            let transfer = Transfer::from_code(word >> 8 & 0xff);
            return Ok(Some(EgressRecord {
                what,
                transfer,
                end,
            }));
        }
    }

    fn lent(&self, slabs: &Slabs, body: u64) -> Result<Extent, ContractError> {
        let shape = self.ring.read_word(body);
        let extent = Extent {
            slab: (shape >> 32) as u32,
            len: shape as u32,
            offset: self.ring.read_word(body + 8),
        };
        // Memory that was lent must exist and must not be empty.
        match extent.len {
            0 => Err(ContractError::Extent(extent)),
            _ => slabs.view(extent).map(|_| extent),
        }
    }

    /// Reads the tail. Returns whether there are unread records.
    fn look(&mut self) -> Result<bool, ContractError> {
        let free_from = self.freed.max(self.ring.from());
        let next = self.next.map_or(0, |next| u64::from(next.len));
        let highest = free_from + self.ring.len() + next;
        let span = highest.saturating_sub(self.seen);
        self.seen = check_within(
            self.block.tail(Direction::Egress).observe(),
            self.seen,
            span,
        )?;
        Ok(self.seen != self.at)
    }

    fn go_over(&mut self, slabs: &Slabs, from: u64) -> Result<(), ContractError> {
        let next = self.next.take().ok_or(ContractError::RecordKind(SWITCH))?;
        let next = ByteRing::new(slabs, next, from)?;
        let before = std::mem::replace(&mut self.ring, next);
        self.before = Some((before.extent(), self.last_end));
        self.at = from;
        Ok(())
    }

    /// Releases all records up to `end`, which is the end of a record that was read.
    pub fn release(&mut self, end: u64) {
        debug_assert!((self.freed..=self.at).contains(&end));
        // A pad or switch after the last record is released with it.
        let mut end = end;
        if end == self.last_end {
            end = self.at;
            self.last_end = end;
        }
        self.freed = end;
        self.block.head(Direction::Egress).publish(end);
    }

    /// Releases everything that was written, read or not.
    pub fn release_all(&mut self) {
        // An invalid tail is ignored.
        let _ = self.look();
        self.at = self.seen;
        self.last_end = self.at;
        self.release(self.at);
    }

    /// Offers the application another ring, to which it switches when this one is too small. Returns `false`
    /// if the application has not switched to the ring offered last, or the ring before is not
    /// [left](Self::left) yet.
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
        self.block
            .publish_ring(Direction::Egress, self.number, &ring);
        self.next = Some(extent);
        Ok(true)
    }

    /// Returns the memory of the previous ring, once, when the daemon needs no record in it.
    pub fn left(&mut self) -> Option<Extent> {
        let (extent, _) = self.before.take_if(|(_, end)| *end <= self.freed)?;
        Some(extent)
    }

    /// All memory of the reader. It belongs to the caller when the reader is gone and the application knows
    /// that.
    pub fn memory(&self) -> impl Iterator<Item = Extent> {
        [
            Some(self.ring.extent()),
            self.next,
            self.before.map(|(extent, _)| extent),
        ]
        .into_iter()
        .flatten()
    }

    /// Bytes of records that were released.
    pub fn released(&self) -> u64 {
        self.freed
    }

    /// Number of rings published to the application so far.
    pub fn rings(&self) -> u64 {
        self.number
    }

    /// Bytes of records that were written and not released, as of the last look at the tail.
    pub fn backlog(&self) -> u64 {
        self.seen - self.freed
    }

    /// Like [`Self::backlog`], after looking at the tail. An invalid tail is ignored.
    pub fn backlog_now(&mut self) -> u64 {
        let _ = self.look();
        self.backlog()
    }

    /// Bytes of the ring that the reader currently reads.
    pub fn ring_len(&self) -> u64 {
        self.ring.len()
    }

    /// Whether a ring was offered that the application has not switched to.
    pub fn has_offered(&self) -> bool {
        self.next.is_some()
    }

    /// Whether the application ended the stream.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether all records were read, as of the last look at the tail.
    pub fn is_drained(&self) -> bool {
        self.at == self.seen
    }
}

#[cfg(test)]
mod tests;

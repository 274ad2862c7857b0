//! The two formats, packet by packet.
//!
//! pcap: a header of 24 bytes says byte order, unit of time and link type; then each packet with a
//! header of 16. pcapng: blocks, each of which says its type and its length twice; a section begins
//! with the byte order, interfaces describe themselves before their packets come.

use std::io::{ErrorKind, Read};

use super::Fault;

/// Bytes recorded of one packet at most: the largest that the usual programs write.
const RECORDED_MAX: u32 = 256 << 10;
/// Bytes of a pcapng block at most: a packet and whatever is noted beside it.
const BLOCK_MAX: u32 = 1 << 20;
/// Interfaces of a section at most.
const INTERFACES_MAX: usize = 4096;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
/// Of old programs: an enhanced one whose interface has half a word, beside a count of packets lost.
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// The option of an interface that says its unit of time.
const TIME_RESOLUTION: u16 = 9;

/// A packet as the file has it.
pub(super) struct Seen<'a> {
    pub(super) link: u32,
    pub(super) time_ns: u64,
    pub(super) size_bytes: u32,
    pub(super) bytes: &'a [u8],
}

/// A file being read.
pub(super) struct Packets<R> {
    bytes: Bytes<R>,
    format: Format,
}

enum Format {
    Pcap { link: u32, unit: Unit },
    Pcapng { interfaces: Vec<Interface> },
}

#[derive(Clone, Copy)]
struct Interface {
    link: u32,
    unit: Unit,
}

/// The unit of a file's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// A power of ten, negative: 6 for microseconds.
    Ten(u8),
    /// A power of two, negative.
    Two(u8),
}

impl Unit {
    fn ns(self, count: u64) -> u64 {
        let ns = u128::from(count) * 1_000_000_000;
        let ns = match self {
            // A u64 of so small units is no nanosecond at all.
            Self::Ten(digits) => 10u128.checked_pow(digits.into()).map_or(0, |per| ns / per),
            Self::Two(bits) => ns.checked_shr(bits.into()).unwrap_or(0),
        };
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

impl<R: Read> Packets<R> {
    /// Reads what is in front of the packets.
    pub(super) fn open(reader: R) -> Result<Self, Fault> {
        let mut bytes = Bytes {
            reader,
            big_endian: true,
            held: Vec::new(),
        };
        let magic = bytes.word().map_err(|fault| match fault {
            Fault::Ends => Fault::Malformed("too short to be a capture"),
            fault => fault,
        })?;
        let (big_endian, unit) = match magic {
            SECTION => {
                let mut interfaces = Vec::new();
                bytes.section(&mut interfaces)?;
                let format = Format::Pcapng { interfaces };
                return Ok(Self { bytes, format });
            }
            0xa1b2_c3d4 => (true, Unit::Ten(6)),
            0xd4c3_b2a1 => (false, Unit::Ten(6)),
            0xa1b2_3c4d => (true, Unit::Ten(9)),
            0x4d3c_b2a1 => (false, Unit::Ten(9)),
            magic => return Err(Fault::NotCapture { magic }),
        };
        bytes.big_endian = big_endian;
        // Version, time zone, accuracy, length recorded: nothing that matters here.
        bytes.fill(16)?;
        // The upper bits say whether frames end with a checksum.
        let link = bytes.word()? & 0x0fff_ffff;
        if super::Link::numbered(link).is_none() {
            return Err(Fault::Link(link));
        }
        let format = Format::Pcap { link, unit };
        Ok(Self { bytes, format })
    }

    /// The next packet; `None` at the end of the file.
    pub(super) fn next_packet(&mut self) -> Result<Option<Seen<'_>>, Fault> {
        match &mut self.format {
            Format::Pcap { link, unit } => self.bytes.packet(*link, *unit),
            Format::Pcapng { interfaces } => self.bytes.block_of_packet(interfaces),
        }
    }
}

/// The bytes of a file.
struct Bytes<R> {
    reader: R,
    big_endian: bool,
    /// What was read last.
    held: Vec<u8>,
}

impl<R: Read> Bytes<R> {
    /// Reads the next `len` bytes.
    fn fill(&mut self, len: u32) -> Result<&[u8], Fault> {
        self.held.resize(len as usize, 0);
        match self.reader.read_exact(&mut self.held) {
            Ok(()) => Ok(&self.held),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(Fault::Ends),
            Err(error) => Err(Fault::Io(error)),
        }
    }

    fn word(&mut self) -> Result<u32, Fault> {
        self.fill(4)?;
        Ok(self.held_word(0))
    }

    /// The first word of what follows; `None` at the end of the file.
    fn word_or_end(&mut self) -> Result<Option<u32>, Fault> {
        self.held.resize(4, 0);
        let first = loop {
            match self.reader.read(&mut self.held[..1]) {
                Ok(0) => return Ok(None),
                Ok(_) => break self.held[0],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Io(error)),
            }
        };
        self.fill(3)?;
        self.held.insert(0, first);
        Ok(Some(self.held_word(0)))
    }

    /// The word at `at` of what was read last; zero where it has none.
    fn held_word(&self, at: usize) -> u32 {
        let word = self.held.get(at..at + 4).unwrap_or(&[0; 4]);
        let word = [word[0], word[1], word[2], word[3]];
        match self.big_endian {
            true => u32::from_be_bytes(word),
            false => u32::from_le_bytes(word),
        }
    }

    /// The half word at `at`; zero where there is none.
    fn held_half(&self, at: usize) -> u16 {
        let half = self.held.get(at..at + 2).unwrap_or(&[0; 2]);
        match self.big_endian {
            true => u16::from_be_bytes([half[0], half[1]]),
            false => u16::from_le_bytes([half[0], half[1]]),
        }
    }

    /// A packet of pcap.
    fn packet(&mut self, link: u32, unit: Unit) -> Result<Option<Seen<'_>>, Fault> {
        let Some(seconds) = self.word_or_end()? else {
            return Ok(None);
        };
        self.fill(12)?;
        let [fraction, recorded, size_bytes] = [0, 4, 8].map(|at| self.held_word(at));
        if recorded > RECORDED_MAX {
            return Err(Fault::Malformed("a packet of more than 256 KiB"));
        }
        let since_1970 = u64::from(seconds) * 1_000_000_000;
        Ok(Some(Seen {
            link,
            time_ns: since_1970 + unit.ns(fraction.into()),
            size_bytes,
            bytes: self.fill(recorded)?,
        }))
    }

    /// The packet of the next block that has one.
    fn block_of_packet(
        &mut self,
        interfaces: &mut Vec<Interface>,
    ) -> Result<Option<Seen<'_>>, Fault> {
        loop {
            let Some(kind) = self.word_or_end()? else {
                return Ok(None);
            };
            if kind == SECTION {
                interfaces.clear();
                self.section(interfaces)?;
                continue;
            }
            let body = self.length()?;
            self.fill(body)?;
            match kind {
                INTERFACE => {
                    let interface = self.interface();
                    if interfaces.len() == INTERFACES_MAX {
                        return Err(Fault::Malformed("more than 4096 interfaces"));
                    }
                    interfaces.push(interface);
                }
                ENHANCED_PACKET | OLD_PACKET => {
                    let interface = match kind {
                        OLD_PACKET => self.held_half(0).into(),
                        _ => self.held_word(0) as usize,
                    };
                    let count = u64::from(self.held_word(4)) << 32 | u64::from(self.held_word(8));
                    let (recorded, size_bytes) = (self.held_word(12), self.held_word(16));
                    let interface = *interfaces.get(interface).ok_or(NO_INTERFACE)?;
                    let end = 20u64 + u64::from(recorded);
                    if end > body.into() {
                        return Err(Fault::Malformed("a packet longer than its block"));
                    }
                    self.block_end(body)?;
                    return Ok(Some(Seen {
                        link: interface.link,
                        time_ns: interface.unit.ns(count),
                        size_bytes,
                        bytes: &self.held[20..end as usize],
                    }));
                }
                SIMPLE_PACKET => {
                    let size_bytes = self.held_word(0);
                    let interface = *interfaces.first().ok_or(NO_INTERFACE)?;
                    self.block_end(body)?;
                    let packet = self.held.get(4..).unwrap_or_default();
                    return Ok(Some(Seen {
                        link: interface.link,
                        // It has no time.
                        time_ns: 0,
                        size_bytes,
                        bytes: &packet[..packet.len().min(size_bytes as usize)],
                    }));
                }
                // Names, statistics, notes.
                _ => {}
            }
            self.block_end(body)?;
        }
    }

    /// The beginning of a section, behind its type: it says the byte order.
    fn section(&mut self, interfaces: &mut Vec<Interface>) -> Result<(), Fault> {
        interfaces.clear();
        self.fill(8)?;
        self.big_endian = true;
        self.big_endian = match self.held_word(4) {
            0x1a2b_3c4d => true,
            0x4d3c_2b1a => false,
            _ => return Err(Fault::Malformed("a section without a byte order")),
        };
        let body = body_of(self.held_word(0))?;
        let rest = body.checked_sub(4).ok_or(TOO_SHORT)?;
        self.fill(rest)?;
        self.block_end(body)
    }

    /// Bytes between a block's two lengths.
    fn length(&mut self) -> Result<u32, Fault> {
        body_of(self.word()?)
    }

    /// The second length of a block with `body` bytes. What was read before it stays at hand.
    fn block_end(&mut self, body: u32) -> Result<(), Fault> {
        let held = std::mem::take(&mut self.held);
        let length = self.word();
        self.held = held;
        match length? == body + 12 {
            true => Ok(()),
            false => Err(Fault::Malformed("a block with two lengths that differ")),
        }
    }

    /// The interface that the block read last describes.
    fn interface(&self) -> Interface {
        let link = self.held_half(0).into();
        let mut unit = Unit::Ten(6);
        let mut at = 8;
        while at + 4 <= self.held.len() {
            let (code, len) = (self.held_half(at), usize::from(self.held_half(at + 2)));
            match (code, self.held.get(at + 4)) {
                (0, _) => break,
                (TIME_RESOLUTION, Some(&said)) if len == 1 => {
                    unit = match said & 0x80 {
                        0 => Unit::Ten(said),
                        _ => Unit::Two(said & 0x7f),
                    };
                }
                _ => {}
            }
            at += 4 + len.next_multiple_of(4);
        }
        Interface { link, unit }
    }
}

const NO_INTERFACE: Fault = Fault::Malformed("a packet of an interface that was not described");
const TOO_SHORT: Fault = Fault::Malformed("a block shorter than its own header");

fn body_of(length: u32) -> Result<u32, Fault> {
    match length {
        ..12 => Err(TOO_SHORT),
        _ if length > BLOCK_MAX => Err(Fault::Malformed("a block of more than 1 MiB")),
        _ if !length.is_multiple_of(4) => Err(Fault::Malformed("a block of no whole words")),
        _ => Ok(length - 12),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_nanoseconds() {
        let ns = |unit: Unit, count| unit.ns(count);
        assert_eq!(
            ns(Unit::Ten(6), 1_700_000_000_000_001),
            1_700_000_000_000_001_000
        );
        assert_eq!(ns(Unit::Ten(9), 7), 7);
        assert_eq!(ns(Unit::Ten(0), u64::MAX), u64::MAX);
        assert_eq!(ns(Unit::Ten(127), u64::MAX), 0);
        assert_eq!(ns(Unit::Two(10), 1024), 1_000_000_000);
        assert_eq!(ns(Unit::Two(127), u64::MAX), 0);
    }
}

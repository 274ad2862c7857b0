//! Packets of a file in pcap or pcapng, one after the other.
//!
//! `pcap-parser` takes frames and blocks apart. This module bounds how much of a file it is shown at once, keeps the
//! interfaces of a section, and makes nanoseconds of all units of time.

use std::borrow::Cow;
use std::io::{self, Read};

use pcap_parser::nom::{Err as Stop, IResult, Needed};
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{
    Block, EPB_MAGIC, IDB_MAGIC, PcapError, PcapHeader, SHB_MAGIC, SPB_MAGIC, parse_block_be,
    parse_block_le, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header,
    parse_sectionheaderblock, parse_unknownblock_be, parse_unknownblock_le,
};

use super::packet::Link;

/// Bytes of a frame of pcap at most, with its header of 16: the usual programs record up to 256 KiB of a packet.
const FRAME_MAX: usize = 16 + (256 << 10);
/// Bytes of a block of pcapng at most.
const BLOCK_MAX: usize = 1 << 20;
/// Interfaces of a section at most.
const INTERFACES_MAX: usize = 4096;
/// Bytes that are read from the file at once.
const CHUNK: u64 = 256 << 10;
/// What a file of pcapng and each of its sections begin with, in either byte order.
const SECTION: [u8; 4] = *b"\n\r\r\n";
/// A packet block of old programs.
const OLD_PACKET: u32 = 2;

/// What is wrong with a capture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It cannot be read.
    #[error("{0}")]
    Io(io::Error),
    /// It is something else.
    #[error("begins with {magic:#010x}: neither pcap nor pcapng")]
    NotCapture {
        /// Its first four bytes, the first one highest.
        magic: u32,
    },
    /// Its link type is not known here.
    #[error(
        "link type {0}: 1 (Ethernet), 12, 101, 228 or 229 (IP), 113 and 276 (Linux cooked) are known"
    )]
    Link(u32),
    /// It contradicts itself.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// It ends in the middle of something.
    #[error("ends too early")]
    Ends,
    /// No packet can be replayed.
    #[error("no packet of IP in it ({skipped} others)")]
    Nothing {
        /// How many packets there were.
        skipped: u64,
    },
}

type Rest<'a> = Result<&'a [u8], Stop<PcapError<&'a [u8]>>>;

/// Reads a file. Hands `take` the link type, the time in ns, the size on the wire and the bytes of each packet, until
/// it answers that it wants no more.
pub(super) fn each_packet(
    reader: impl Read,
    take: impl FnMut(u32, u64, u32, &[u8]) -> bool,
) -> Result<(), Fault> {
    let mut file = Unread {
        reader,
        held: Vec::new(),
        taken: 0,
    };
    file.more()?;
    let Some(&magic) = file.held.first_chunk() else {
        return Err(Fault::Malformed("too short to be a capture"));
    };
    if magic == SECTION {
        return blocks(file, take);
    }
    match parse_pcap_header(&file.held) {
        Ok((_, header)) if !header.is_modified_format() => {
            file.taken = header.size();
            frames(file, &header, take)
        }
        Err(Stop::Incomplete(_)) => Err(Fault::Ends),
        _ => Err(Fault::NotCapture {
            magic: u32::from_be_bytes(magic),
        }),
    }
}

/// Reads the packets of pcap.
fn frames(
    mut file: Unread<impl Read>,
    header: &PcapHeader,
    mut take: impl FnMut(u32, u64, u32, &[u8]) -> bool,
) -> Result<(), Fault> {
    // The upper bits say whether frames end with a checksum.
    let link = header.network.0 as u32 & 0x0fff_ffff;
    if Link::numbered(link).is_none() {
        return Err(Fault::Link(link));
    }
    let parse = match header.is_bigendian() {
        true => parse_pcap_frame_be,
        false => parse_pcap_frame,
    };
    let unit = match header.is_nanosecond_precision() {
        true => 9,
        false => 6,
    };
    let too_long = "a packet of more than 256 KiB";
    while let Some(raw) = file.next(FRAME_MAX, too_long, |bytes| rest(parse(bytes)))? {
        let Ok((_, frame)) = parse(raw) else { break };
        let time_ns = u64::from(frame.ts_sec) * 1_000_000_000 + ns(unit, frame.ts_usec.into());
        if !take(link, time_ns, frame.origlen, frame.data) {
            break;
        }
    }
    Ok(())
}

/// Reads the packets of pcapng.
fn blocks(
    mut file: Unread<impl Read>,
    mut take: impl FnMut(u32, u64, u32, &[u8]) -> bool,
) -> Result<(), Fault> {
    let mut big_endian = false;
    // Link types and units of time.
    let mut interfaces: Vec<(u32, u8)> = Vec::new();
    let too_long = "a block of more than 1 MiB";
    while let Some(raw) = file.next(BLOCK_MAX, too_long, |b| rest_of_block(big_endian, b))? {
        // A whole block has two lengths at least.
        if !raw.len().is_multiple_of(4) {
            return Err(Fault::Malformed("a block of no whole words"));
        }
        if raw[4..8] != raw[raw.len() - 4..] {
            return Err(Fault::Malformed("a block with two lengths that differ"));
        }
        let (mut raw, mut kind) = (Cow::Borrowed(raw), word(big_endian, raw));
        if kind == OLD_PACKET {
            (raw, kind) = (as_enhanced(big_endian, &raw).into(), EPB_MAGIC);
        }
        // The others are names, statistics and notes.
        if ![SHB_MAGIC, IDB_MAGIC, EPB_MAGIC, SPB_MAGIC].contains(&kind) {
            continue;
        }
        let parsed = match big_endian {
            true => parse_block_be(&raw),
            false => parse_block_le(&raw),
        };
        let described = |number: u32| {
            let unknown = Fault::Malformed("a packet of an interface that was not described");
            interfaces.get(number as usize).copied().ok_or(unknown)
        };
        let wants_more = match parsed {
            Ok((_, Block::EnhancedPacket(packet))) => {
                let (link, unit) = described(packet.if_id)?;
                let count = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                take(link, ns(unit, count), packet.origlen, packet.packet_data())
            }
            Ok((_, Block::SimplePacket(packet))) => {
                let (link, _) = described(0)?;
                // It has no time.
                take(link, 0, packet.origlen, packet.packet_data())
            }
            Ok((_, Block::SectionHeader(section))) => {
                big_endian = section.big_endian();
                interfaces.clear();
                true
            }
            Ok((_, Block::InterfaceDescription(_))) if interfaces.len() == INTERFACES_MAX => {
                return Err(Fault::Malformed("more than 4096 interfaces"));
            }
            Ok((_, Block::InterfaceDescription(new))) => {
                interfaces.push((new.linktype.0 as u32, new.if_tsresol));
                true
            }
            Err(_) if kind == EPB_MAGIC => {
                return Err(Fault::Malformed("a packet longer than its block"));
            }
            _ => return Err(TOO_SHORT),
        };
        if !wants_more {
            break;
        }
    }
    Ok(())
}

const TOO_SHORT: Fault = Fault::Malformed("a block shorter than its own header");

fn word(big_endian: bool, bytes: &[u8]) -> u32 {
    let word = bytes.first_chunk().copied().unwrap_or_default();
    match big_endian {
        true => u32::from_be_bytes(word),
        false => u32::from_le_bytes(word),
    }
}

/// What follows the block that `bytes` begin with.
fn rest_of_block(big_endian: bool, bytes: &[u8]) -> Rest<'_> {
    match big_endian {
        _ if bytes.starts_with(&SECTION) => rest(parse_sectionheaderblock(bytes)),
        true => rest(parse_unknownblock_be(bytes)),
        false => rest(parse_unknownblock_le(bytes)),
    }
}

/// An old packet block as an enhanced one. Its interface has half a word, and a count of lost packets the other half.
fn as_enhanced(big_endian: bool, old: &[u8]) -> Vec<u8> {
    let (kind, interface) = match big_endian {
        true => (EPB_MAGIC.to_be_bytes(), [0, 0, old[8], old[9]]),
        false => (EPB_MAGIC.to_le_bytes(), [old[8], old[9], 0, 0]),
    };
    [&kind, &old[4..8], &interface, &old[12..]].concat()
}

fn rest<'a, T>(parsed: IResult<&'a [u8], T, PcapError<&'a [u8]>>) -> Rest<'a> {
    parsed.map(|(rest, _)| rest)
}

/// Nanoseconds of a count of time in `unit`, as `if_tsresol` has it: a negative power of ten, or with the highest
/// bit of two.
fn ns(unit: u8, count: u64) -> u64 {
    let ns = u128::from(count) * 1_000_000_000;
    let ns = match unit {
        // A u64 of smaller units is no nanosecond at all.
        ..0x80 => 10u128.checked_pow(unit.into()).map_or(0, |per| ns / per),
        _ => ns.checked_shr((unit & 0x7f).into()).unwrap_or(0),
    };
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// The part of a file that is not parsed yet.
struct Unread<R> {
    reader: R,
    held: Vec<u8>,
    /// Bytes of `held` that are parsed.
    taken: usize,
}

impl<R: Read> Unread<R> {
    /// Reads on. Whether there was more.
    fn more(&mut self) -> Result<bool, Fault> {
        self.held.drain(..std::mem::take(&mut self.taken));
        let chunk = self.reader.by_ref().take(CHUNK);
        let read = { chunk }.read_to_end(&mut self.held).map_err(Fault::Io)?;
        Ok(read > 0)
    }

    /// Takes the bytes of the next item, of which `rest` says what follows it; `None` at the end of the file. An item
    /// of more than `longest` bytes is refused as soon as its length is known.
    fn next(
        &mut self,
        longest: usize,
        too_long: &'static str,
        rest: impl for<'a> Fn(&'a [u8]) -> Rest<'a>,
    ) -> Result<Option<&[u8]>, Fault> {
        loop {
            let unread = &self.held[self.taken..];
            let has = unread.len();
            let missing = match rest(unread) {
                Ok(rest) => {
                    let (from, to) = (self.taken, self.held.len() - rest.len());
                    self.taken = to;
                    return Ok(Some(&self.held[from..to]));
                }
                Err(Stop::Incomplete(Needed::Size(missing))) => missing.get(),
                Err(Stop::Incomplete(Needed::Unknown)) => 1,
                Err(Stop::Error(PcapError::HeaderNotRecognized)) => {
                    return Err(Fault::Malformed("a section without a byte order"));
                }
                Err(Stop::Error(_) | Stop::Failure(_)) => return Err(TOO_SHORT),
            };
            if has.saturating_add(missing) > longest {
                return Err(Fault::Malformed(too_long));
            }
            if !self.more()? {
                return match has {
                    0 => Ok(None),
                    _ => Err(Fault::Ends),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_nanoseconds() {
        for (unit, count, expected) in [
            (6, 1_700_000_000_000_001, 1_700_000_000_000_001_000),
            (9, 7, 7),
            (0, u64::MAX, u64::MAX),
            (127, u64::MAX, 0),
            (0x80 | 10, 1024, 1_000_000_000),
            (0x80 | 127, u64::MAX, 0),
        ] {
            assert_eq!(ns(unit, count), expected, "{count} in unit {unit:#x}");
        }
    }
}

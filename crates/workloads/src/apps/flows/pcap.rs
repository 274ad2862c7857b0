//! Reads the packets of a pcap or pcapng file.
//!
//! A file may hold anything. One frame or block of it is in memory at a time, and its length is checked
//! before it is read. The crates `pcap-file` and `pcap-parser` are not used, because they refuse valid files:
//! files with a time zone in the description of an interface, with packets longer than the snapshot length,
//! or with an empty name block.

use std::io::{self, BufRead, BufReader, Read};

use super::packet::LinkType;

/// Maximum number of bytes of a packet in a pcap file: the usual programs record up to 256 KiB of one.
const PACKET_MAX: u32 = 256 << 10;
/// Maximum number of bytes of a pcapng block.
const BLOCK_MAX: u32 = 1 << 20;
/// Maximum number of interfaces of a section.
const INTERFACES_MAX: usize = 4096;
/// Number of bytes that are read from the file at once.
const CHUNK: usize = 256 << 10;
/// Type of the block that begins a pcapng section, the same in both byte orders.
const SECTION: [u8; 4] = *b"\n\r\r\n";
/// Code of the option that holds an interface's unit of time.
const UNIT: usize = 9;

const TOO_SHORT: &str = "a block shorter than its own header";

/// Error: the file was read, but is not a capture or contradicts itself.
fn invalid(wrong: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, wrong.into())
}

fn ensure(is_right: bool, wrong: &str) -> io::Result<()> {
    match is_right {
        true => Ok(()),
        false => Err(invalid(format!("malformed: {wrong}"))),
    }
}

/// Reads a file. Passes `take` the link type, the time in ns, the size on the wire and the bytes of each
/// packet, until `take` returns false. The error is an [`UnexpectedEof`](io::ErrorKind) if the file ends
/// within a frame or block.
pub(super) fn each_packet(
    mut reader: impl Read,
    take: impl FnMut(u32, u64, u32, &[u8]) -> bool,
) -> io::Result<()> {
    let mut magic = [0; 4];
    reader
        .read_exact(&mut magic)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => invalid("malformed: too short to be a capture"),
            _ => error,
        })?;
    let mut file = Unread {
        reader: BufReader::with_capacity(CHUNK, magic.chain(reader)),
        big_endian: false,
        item: Vec::new(),
    };
    let unit = match magic {
        SECTION => return file.blocks(take),
        [0xa1, 0xb2, 0xc3, 0xd4] | [0xd4, 0xc3, 0xb2, 0xa1] => 6,
        [0xa1, 0xb2, 0x3c, 0x4d] | [0x4d, 0x3c, 0xb2, 0xa1] => 9,
        _ => {
            let magic = u32::from_be_bytes(magic);
            let text = format!("begins with {magic:#010x}: neither pcap nor pcapng");
            return Err(invalid(text));
        }
    };
    file.big_endian = magic[0] == 0xa1;
    file.frames(unit, take)
}

/// The rest of a file, which is not read yet.
struct Unread<R> {
    reader: BufReader<R>,
    big_endian: bool,
    /// The frame or block that is being read.
    item: Vec<u8>,
}

impl<R: Read> Unread<R> {
    /// Reads the packets of a pcap file.
    fn frames(
        mut self,
        unit: u8,
        mut take: impl FnMut(u32, u64, u32, &[u8]) -> bool,
    ) -> io::Result<()> {
        self.begin(24)?;
        let [.., link]: [u32; 6] = self.words(&self.item)?;
        // The upper bits hold whether frames end with a checksum.
        let link = link & 0x0fff_ffff;
        if LinkType::numbered(link).is_none() {
            return Err(invalid(format!(
                "link type {link}: 1 (Ethernet), 12, 101, 228 or 229 (IP), 113 and 276 (Linux cooked) are known"
            )));
        }
        while self.begin(16)? {
            let [seconds, fraction, len, size] = self.words(&self.item)?;
            ensure(len <= PACKET_MAX, "a packet of more than 256 KiB")?;
            self.go_on(len)?;
            let time_ns = u64::from(seconds) * 1_000_000_000 + ns(unit, fraction.into());
            if !take(link, time_ns, size, &self.item[16..]) {
                break;
            }
        }
        Ok(())
    }

    /// Reads the packets of a pcapng file.
    fn blocks(mut self, mut take: impl FnMut(u32, u64, u32, &[u8]) -> bool) -> io::Result<()> {
        // Link type and unit of time of each interface.
        let mut interfaces: Vec<(u32, u8)> = Vec::new();
        // The shortest block consists of its type and two lengths.
        while self.begin(12)? {
            if self.item.starts_with(&SECTION) {
                self.big_endian = self.item[8] == 0x1a;
                let [_, _, order] = self.words(&self.item)?;
                ensure(order == 0x1a2b_3c4d, "a section without a byte order")?;
            }
            let [kind, len] = self.words(&self.item)?;
            ensure(
                len.is_multiple_of(4),
                "a block whose length is not a multiple of 4",
            )?;
            ensure(len <= BLOCK_MAX, "a block of more than 1 MiB")?;
            ensure(len >= 12, TOO_SHORT)?;
            self.go_on(len - 12)?;
            let (head, body) = self.item.split_at(8);
            let (body, second_len) = body.split_at(body.len() - 4);
            let are_same = head[4..] == *second_len;
            ensure(are_same, "a block with two lengths that differ")?;
            let (interface, time, size, bytes) = match kind {
                _ if head.starts_with(&SECTION) => {
                    let _header: [u32; 4] = self.words(body)?;
                    interfaces.clear();
                    continue;
                }
                // Interface description.
                1 => {
                    let [link, _snapshot] = self.words(body)?;
                    let few = interfaces.len() < INTERFACES_MAX;
                    ensure(few, "more than 4096 interfaces")?;
                    let [link, _reserved] = self.halves(link);
                    interfaces.push((link as u32, self.unit(&body[8..])));
                    continue;
                }
                // Packet: the current block type (6) and the obsolete one (2).
                2 | 6 => {
                    let [interface, high, low, len, size] = self.words(body)?;
                    let (bytes, len) = (&body[20..], len as usize);
                    ensure(len <= bytes.len(), "a packet longer than its block")?;
                    let interface = match kind {
                        // The other half counts lost packets.
                        2 => self.halves(interface)[0],
                        _ => interface as usize,
                    };
                    let time = u64::from(high) << 32 | u64::from(low);
                    (interface, time, size, &bytes[..len])
                }
                // Simple packet: of the first interface, without a time.
                3 => {
                    let [size] = self.words(body)?;
                    let bytes = &body[4..];
                    (0, 0, size, &bytes[..bytes.len().min(size as usize)])
                }
                // Names, statistics and notes.
                _ => continue,
            };
            let unknown = "a packet of an interface that was not described";
            ensure(interface < interfaces.len(), unknown)?;
            let (link, unit) = interfaces[interface];
            if !take(link, ns(unit, time), size, bytes) {
                break;
            }
        }
        Ok(())
    }

    /// Reads the first `len` bytes of an item; `false` at the end of the file.
    fn begin(&mut self, len: u32) -> io::Result<bool> {
        self.item.clear();
        match self.reader.fill_buf()?.is_empty() {
            true => Ok(false),
            false => self.go_on(len).map(|()| true),
        }
    }

    /// Reads `len` more bytes of the item.
    fn go_on(&mut self, len: u32) -> io::Result<()> {
        let has = self.item.len();
        self.item.resize(has + len as usize, 0);
        self.reader.read_exact(&mut self.item[has..])
    }

    /// Returns the first `N` words of `bytes`.
    fn words<const N: usize>(&self, bytes: &[u8]) -> io::Result<[u32; N]> {
        ensure(bytes.len() >= 4 * N, TOO_SHORT)?;
        let (words, _) = bytes.as_chunks();
        Ok(std::array::from_fn(|at| match self.big_endian {
            true => u32::from_be_bytes(words[at]),
            false => u32::from_le_bytes(words[at]),
        }))
    }

    /// Returns the halves of a word in the order in which they lie in the file.
    fn halves(&self, word: u32) -> [usize; 2] {
        let [high, low] = [word >> 16, word & 0xffff].map(|half| half as usize);
        match self.big_endian {
            true => [high, low],
            false => [low, high],
        }
    }

    /// Returns the unit of time in an interface's options; the default is a microsecond.
    fn unit(&self, mut options: &[u8]) -> u8 {
        let mut unit = 6;
        while let Ok([head]) = self.words(options) {
            let [code, len] = self.halves(head);
            match (code, options.get(4..4 + len)) {
                // The end of the options, or a truncated option.
                (0, _) | (_, None) => break,
                (UNIT, Some(&[named, ..])) => unit = named,
                _ => {}
            }
            let next = 4 + len.next_multiple_of(4);
            options = options.get(next..).unwrap_or_default();
        }
        unit
    }
}

/// Converts a count of time units to nanoseconds. `unit` is encoded as in `if_tsresol`: a negative power of
/// ten, or of two if the highest bit is set.
fn ns(unit: u8, count: u64) -> u64 {
    let ns = u128::from(count) * 1_000_000_000;
    let ns = match unit {
        // The power overflows. A u64 of such small units is less than a nanosecond.
        ..0x80 => 10u128.checked_pow(unit.into()).map_or(0, |per| ns / per),
        _ => ns.checked_shr((unit & 0x7f).into()).unwrap_or(0),
    };
    u64::try_from(ns).unwrap_or(u64::MAX)
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

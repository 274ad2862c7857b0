//! Packets of a file, in pcap or pcapng, read once and replayed from memory.
//!
//! A reader of our own: of both formats only the few fields are wanted that say when a packet was
//! seen, how long it was and what it begins with. The crate `pcap-parser` would take the blocks apart and leave
//! to us what is most of the work, interfaces with their units, limits and errors; for that it brings
//! a library of parsers along.

mod blocks;
mod error;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use super::packet::{Link, Odd, flow};
use super::{FlowKey, Record, Source};
use blocks::{Packets, Seen};

pub use error::{CaptureError, Fault};

/// A packet of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its flow.
    pub key: FlowKey,
    /// When it was seen, in ns since 1970.
    pub time_ns: u64,
    /// Its size on the wire, in bytes.
    pub size_bytes: u32,
}

/// Packets that were passed over, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Not of IP.
    pub not_ip: u64,
    /// Recorded too short to know the flow.
    pub cut_off: u64,
    /// With headers that contradict themselves.
    pub malformed: u64,
    /// Of an interface whose link type is not known here.
    pub other_link: u64,
}

impl Skipped {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.not_ip + self.cut_off + self.malformed + self.other_link
    }
}

/// What was read from a file: at least one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The packets whose flow is known, in the order of the file.
    pub packets: Vec<Packet>,
    /// The others.
    pub skipped: Skipped,
    /// Whether the file ends in the middle of a packet.
    pub ends_early: bool,
}

impl Capture {
    /// Reads the first `most` packets of the file at `path`.
    pub fn read(path: &Path, most: usize) -> Result<Self, CaptureError> {
        let read = || {
            // Opening a named pipe would wait for somebody to write.
            if !std::fs::metadata(path).map_err(Fault::Io)?.is_file() {
                let kind = io::ErrorKind::InvalidInput;
                return Err(Fault::Io(io::Error::new(kind, "not a regular file")));
            }
            let file = File::open(path).map_err(Fault::Io)?;
            Self::read_from(BufReader::with_capacity(1 << 20, file), most)
        };
        read().map_err(|fault| CaptureError {
            path: path.to_owned(),
            fault,
        })
    }

    /// Reads the first `most` packets of what has the form of a file.
    pub fn read_from(reader: impl Read, most: usize) -> Result<Self, Fault> {
        let mut read = Packets::open(reader)?;
        let mut capture = Self {
            packets: Vec::new(),
            skipped: Skipped::default(),
            ends_early: false,
        };
        while capture.packets.len() < most {
            match read.next_packet() {
                Ok(Some(seen)) => capture.take(&seen),
                Ok(None) => break,
                // Somebody ended the recording: what came before is good.
                Err(Fault::Ends) => {
                    capture.ends_early = true;
                    break;
                }
                Err(fault) => return Err(fault),
            }
        }
        if capture.packets.is_empty() {
            return Err(Fault::Nothing {
                skipped: capture.skipped.total(),
            });
        }
        Ok(capture)
    }

    /// The next so many records of `source`, at least one: to be replayed by who must spend as little as
    /// possible on each.
    pub fn drawn(source: &mut impl Source, packets: usize) -> Self {
        let packet = |record: Record| Packet {
            key: record.key,
            time_ns: record.time_ns,
            size_bytes: u32::try_from(record.size_bytes).unwrap_or(u32::MAX),
        };
        Self {
            packets: (0..packets.max(1))
                .map(|_| packet(source.record()))
                .collect(),
            skipped: Skipped::default(),
            ends_early: false,
        }
    }

    fn take(&mut self, seen: &Seen<'_>) {
        let skipped = &mut self.skipped;
        let Some(link) = Link::numbered(seen.link) else {
            skipped.other_link += 1;
            return;
        };
        match flow(link, seen.bytes) {
            Ok(key) => self.packets.push(Packet {
                key,
                time_ns: seen.time_ns,
                size_bytes: seen.size_bytes,
            }),
            Err(Odd::NotIp) => skipped.not_ip += 1,
            Err(Odd::CutOff) => skipped.cut_off += 1,
            Err(Odd::Malformed) => skipped.malformed += 1,
        }
    }

    /// What a report should say about how it was read, if there is anything.
    pub fn note(&self) -> Option<String> {
        let skipped = self.skipped;
        let mut parts: Vec<_> = [
            (skipped.not_ip, "not of IP"),
            (skipped.cut_off, "recorded too short"),
            (skipped.malformed, "malformed"),
            (skipped.other_link, "of another link type"),
        ]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} packets skipped: {what}"))
        .collect();
        if self.ends_early {
            parts.push("the file ends within a packet".to_owned());
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// The packets of a capture, again and again: each round begins where the one before it ended, as if
/// the traffic went on.
#[derive(Clone, Debug)]
pub struct Replay {
    capture: Arc<Capture>,
    at: usize,
    sequence: u64,
    /// When the capture began, and what is added to its times in this round.
    began_ns: u64,
    shift_ns: u64,
    latest_ns: u64,
}

impl Replay {
    /// Of this capture, from its beginning, which is time 0. `None` if it has no packet; one that was
    /// read has.
    pub fn new(capture: Arc<Capture>) -> Option<Self> {
        let began_ns = capture.packets.first()?.time_ns;
        Some(Self {
            capture,
            at: 0,
            sequence: 0,
            began_ns,
            shift_ns: 0,
            latest_ns: 0,
        })
    }
}

impl Source for Replay {
    #[inline]
    fn record(&mut self) -> Record {
        if self.at == self.capture.packets.len() {
            self.at = 0;
            self.shift_ns = self.latest_ns.saturating_add(1);
        }
        let packet = &self.capture.packets[self.at];
        // Packets of several interfaces may be a little out of order.
        let since_ns = packet.time_ns.saturating_sub(self.began_ns);
        let time_ns = self.shift_ns.saturating_add(since_ns);
        let record = Record {
            key: packet.key,
            time_ns,
            sequence: self.sequence,
            size_bytes: packet.size_bytes.into(),
        };
        self.latest_ns = self.latest_ns.max(time_ns);
        self.at += 1;
        self.sequence += 1;
        record
    }
}

#[cfg(test)]
mod tests;

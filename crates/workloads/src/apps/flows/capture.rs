//! Captures: the packets of a file, read once and replayed from memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

use super::packet::{LinkType, OTHER_LINK, flow};
use super::pcap::each_packet;
use super::{FlowKey, Record};
use crate::error::{Result, WorkloadError};

/// A packet of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The packet's flow.
    pub key: FlowKey,
    /// Time of the packet, in ns since 1970.
    pub time_ns: u64,
    /// Size of the packet on the wire, in bytes.
    pub size_bytes: u32,
}

/// Packets of a file, or synthetic packets: at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The packets whose flow is known, in file order.
    pub packets: Vec<Packet>,
    /// Number of packets that were skipped because their flow is unknown.
    pub skipped: u64,
    /// Remark on the reading for the report, if there is one.
    pub note: Option<String>,
}

impl Capture {
    /// Reads the first `most` packets of the file at `path`, at least one.
    pub fn read(path: &Path, most: usize) -> Result<Self> {
        let read = || {
            // Opening a named pipe would block until somebody opens it for writing.
            match std::fs::metadata(path)?.is_file() {
                true => Self::read_from(File::open(path)?, most),
                false => Err(io::Error::other("not a regular file")),
            }
        };
        read().map_err(|why| WorkloadError(format!("{}: {why}", path.display())))
    }

    /// Reads the first `most` packets from a reader, at least one.
    pub fn read_from(reader: impl Read, most: usize) -> io::Result<Self> {
        let (mut packets, mut skipped) = (Vec::new(), BTreeMap::new());
        let ended = each_packet(reader, |link, time_ns, size_bytes, bytes| {
            let link = LinkType::numbered(link).ok_or(OTHER_LINK);
            match link.and_then(|link| flow(link, bytes)) {
                Ok(key) => packets.push(Packet {
                    key,
                    time_ns,
                    size_bytes,
                }),
                Err(why) => *skipped.entry(why).or_insert(0) += 1,
            }
            packets.len() < most
        });
        let others = skipped.values().sum();
        let notes = skipped.iter();
        let notes = notes.map(|(why, count)| format!("{count} packets skipped: {why}"));
        let mut notes: Vec<_> = notes.collect();
        match ended {
            // The recording was interrupted: the packets before that are valid.
            Err(why) if why.kind() == ErrorKind::UnexpectedEof => {
                if packets.is_empty() && others == 0 {
                    return Err(io::Error::other("ends too early"));
                }
                notes.push("the file ends within a packet".to_owned());
            }
            ended => ended?,
        }
        if packets.is_empty() {
            let text = format!("it contains no IP packet ({others} other packets)");
            return Err(io::Error::other(text));
        }
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        Ok(Self {
            packets,
            skipped: others,
            note,
        })
    }
}

/// Replays the packets of a capture in an endless loop. The time of each round begins where the previous
/// round ended.
#[derive(Clone, Debug)]
pub struct Replay {
    capture: Arc<Capture>,
    at: usize,
    sequence: u64,
    /// Time of the first packet of the capture; `shift_ns` is added to the times since then in this round.
    began_ns: u64,
    shift_ns: u64,
    latest_ns: u64,
}

impl Replay {
    /// Replays `capture` from its beginning, which is time 0.
    pub fn new(capture: Capture) -> Self {
        Self {
            began_ns: capture.packets.first().map_or(0, |first| first.time_ns),
            capture: Arc::new(capture),
            at: 0,
            sequence: 0,
            shift_ns: 0,
            latest_ns: 0,
        }
    }

    /// Returns the next record. Sequence numbers count from 0. A clone returns the same records.
    #[inline]
    pub fn record(&mut self) -> Record {
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

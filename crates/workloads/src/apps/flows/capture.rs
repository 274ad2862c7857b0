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
    /// Its flow.
    pub key: FlowKey,
    /// When it was seen, in ns since 1970.
    pub time_ns: u64,
    /// Its size on the wire, in bytes.
    pub size_bytes: u32,
}

/// Packets of a file, or synthetic ones: at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The packets whose flow is known, in the order of the file.
    pub packets: Vec<Packet>,
    /// Packets before the last of these whose flow is not known.
    pub skipped: u64,
    /// The report's remark about the reading, if there is one.
    pub note: Option<String>,
}

impl Capture {
    /// Reads the first `most` packets of the file at `path`, at least one.
    pub fn read(path: &Path, most: usize) -> Result<Self> {
        let read = || {
            // Opening a named pipe would wait for somebody to write.
            match std::fs::metadata(path)?.is_file() {
                true => Self::read_from(File::open(path)?, most),
                false => Err(io::Error::other("not a regular file")),
            }
        };
        read().map_err(|why| WorkloadError(format!("{}: {why}", path.display())))
    }

    /// Reads the first `most` packets of what has the form of a file, at least one.
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
            // Somebody ended the recording: what came before is good.
            Err(why) if why.kind() == ErrorKind::UnexpectedEof => {
                if packets.is_empty() && others == 0 {
                    return Err(io::Error::other("ends too early"));
                }
                notes.push("the file ends within a packet".to_owned());
            }
            ended => ended?,
        }
        if packets.is_empty() {
            let text = format!("no packet of IP in it ({others} others)");
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

/// The packets of a capture, again and again. The time of each round begins where the round before it ended.
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

    /// The next record. Their sequence counts from 0; a clone gives the same ones again.
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

//! Captures: the packets of a file, read once and replayed from memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::packet::{Link, Odd, flow};
use super::pcap::each_packet;
use super::{FlowKey, Record, Source};

pub use super::pcap::Fault;

/// A capture could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct CaptureError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
}

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

/// What was read from a file: at least one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The packets whose flow is known, in the order of the file.
    pub packets: Vec<Packet>,
    /// How many others there were, by [`Odd`].
    skipped: [u64; Odd::ALL.len()],
    /// Whether the file ends in the middle of a packet.
    pub ends_early: bool,
}

impl Capture {
    /// Reads the first `most` packets of the file at `path`, at least one.
    pub fn read(path: &Path, most: usize) -> Result<Self, CaptureError> {
        let read = || {
            // Opening a named pipe would wait for somebody to write.
            if !std::fs::metadata(path).map_err(Fault::Io)?.is_file() {
                let kind = io::ErrorKind::InvalidInput;
                return Err(Fault::Io(io::Error::new(kind, "not a regular file")));
            }
            Self::read_from(File::open(path).map_err(Fault::Io)?, most)
        };
        read().map_err(|fault| CaptureError {
            path: path.to_owned(),
            fault,
        })
    }

    /// Reads the first `most` packets of what has the form of a file, at least one.
    pub fn read_from(reader: impl Read, most: usize) -> Result<Self, Fault> {
        let mut capture = Self {
            packets: Vec::new(),
            skipped: Default::default(),
            ends_early: false,
        };
        let ended = each_packet(reader, |link, time_ns, size_bytes, bytes| {
            let link = Link::numbered(link).ok_or(Odd::OtherLink);
            match link.and_then(|link| flow(link, bytes)) {
                Ok(key) => capture.packets.push(Packet {
                    key,
                    time_ns,
                    size_bytes,
                }),
                Err(odd) => capture.skipped[odd as usize] += 1,
            }
            capture.packets.len() < most
        });
        match ended {
            Ok(()) => {}
            // Somebody ended the recording: what came before is good.
            Err(Fault::Ends) => capture.ends_early = true,
            Err(fault) => return Err(fault),
        }
        match (capture.packets.len(), capture.skipped()) {
            (0, 0) if capture.ends_early => Err(Fault::Ends),
            (0, skipped) => Err(Fault::Nothing { skipped }),
            _ => Ok(capture),
        }
    }

    /// The next `packets` records of `source`, at least one, to be replayed at the least cost for each.
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
            skipped: Default::default(),
            ends_early: false,
        }
    }

    /// How many packets were skipped, as their flow is not known.
    pub fn skipped(&self) -> u64 {
        self.skipped.iter().sum()
    }

    /// What a report should say about how it was read, if there is anything.
    pub fn note(&self) -> Option<String> {
        let counts = self.skipped.iter().zip(Odd::ALL);
        let mut parts: Vec<_> = counts
            .filter(|(count, _)| **count > 0)
            .map(|(count, odd)| format!("{count} packets skipped: {odd}"))
            .collect();
        if self.ends_early {
            parts.push("the file ends within a packet".to_owned());
        }
        (!parts.is_empty()).then(|| parts.join("; "))
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
    /// Replays `capture` from its beginning, which is time 0. `None` if it has no packet.
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

//! Format of the entries. Peers write them, so parsing does not trust them.

use std::fmt;
use std::time::Duration;

use headworks_wire::{Decoder, Encoder, Malformed};

use super::RegistryError;
use crate::liveness::{COMMAND_BYTES_MAX, ProcessId, clock_nanos};

/// One open device of one process in a soft host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextRecord {
    /// The process that owns it.
    pub process: ProcessId,
    /// The layout version of its segments.
    pub layout_version: u32,
    /// A number that differs from that of earlier owners of the same index, and the object under which its
    /// process hands out its descriptors; see [`Member::serve`](super::Member::serve).
    pub incarnation: u64,
    /// The soft host's name; at most [`HOST_NAME_BYTES_MAX`] bytes.
    pub host_name: String,
}

/// One hold of one process on a common segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommonSegmentRecord {
    /// The process that holds it.
    pub process: ProcessId,
    /// Version of what its users keep in the segment.
    pub layout_version: u32,
    /// Object under which that process hands out the segment's descriptor.
    pub object: u64,
    /// Inode of the memory file. Files with the same inode are the same memory.
    pub inode: u64,
    /// Payload size in bytes.
    pub len: u64,
}

/// What a process writes about itself into its entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRecord {
    /// Its identity.
    pub process: ProcessId,
    /// Its process id in its own PID namespace. It is for people: another namespace has other ids.
    pub pid: u32,
    /// When it joined the registry, in nanoseconds since the machine started (`CLOCK_BOOTTIME`).
    pub joined_nanos: u64,
    /// Name of its command, at most 15 arbitrary bytes.
    pub command: Vec<u8>,
}

/// Maximum length of a host name, in bytes.
pub const HOST_NAME_BYTES_MAX: usize = 255;

/// Version of the entries. From version 2 on, all versions begin with magic, version and process.
const VERSION: u32 = 2;
const MAGIC: &[u8; 4] = b"HWrg";

const PREFIX_BYTES: usize = 4 + 4 + 4 + 8;
const FIXED_BYTES: usize = PREFIX_BYTES + 4 + 8 + 2;
pub(super) const ENTRY_BYTES_MAX: usize = FIXED_BYTES + HOST_NAME_BYTES_MAX;

impl ContextRecord {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let to = prefix(self.process).u32(self.layout_version);
        let to = to.u64(self.incarnation);
        to.bytes(self.host_name.as_bytes()).finish()
    }

    pub(super) fn parse(entry: &str, bytes: &[u8]) -> Result<Self, RegistryError> {
        let (process, mut of) = parse_prefix(entry, bytes)?;
        let body = || {
            let record = Self {
                process,
                layout_version: of.u32()?,
                incarnation: of.u64()?,
                host_name: of
                    .text(HOST_NAME_BYTES_MAX)
                    .map_err(|_| Malformed("its host name is cut off, too long or not UTF-8"))?
                    .to_owned(),
            };
            of.end()?;
            Ok(record)
        };
        body().map_err(|Malformed(what)| malformed(entry, what))
    }
}

impl CommonSegmentRecord {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let to = prefix(self.process).u32(self.layout_version);
        let to = to.u64(self.object).u64(self.inode);
        to.u64(self.len).finish()
    }

    pub(super) fn parse(entry: &str, bytes: &[u8]) -> Result<Self, RegistryError> {
        let (process, mut of) = parse_prefix(entry, bytes)?;
        let body = || {
            let record = Self {
                process,
                layout_version: of.u32()?,
                object: of.u64()?,
                inode: of.u64()?,
                len: of.u64()?,
            };
            of.end()?;
            Ok(record)
        };
        body().map_err(|Malformed(what)| malformed(entry, what))
    }
}

impl ProcessRecord {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let to = prefix(self.process).u32(self.pid).u64(self.joined_nanos);
        to.u8(self.command.len() as u8).raw(&self.command).finish()
    }

    pub(super) fn parse(entry: &str, bytes: &[u8]) -> Result<Self, RegistryError> {
        let (process, mut of) = parse_prefix(entry, bytes)?;
        let body = || {
            let (pid, joined_nanos) = (of.u32()?, of.u64()?);
            let len = usize::from(of.u8()?);
            if len > COMMAND_BYTES_MAX {
                return Err(Malformed("its command is too long"));
            }
            let command = of.raw(len)?.to_owned();
            let record = Self {
                process,
                pid,
                joined_nanos,
                command,
            };
            of.end()?;
            Ok(record)
        };
        body().map_err(|Malformed(what)| malformed(entry, what))
    }

    /// Returns how long ago the process joined.
    pub fn age(&self) -> Duration {
        Duration::from_nanos(clock_nanos().saturating_sub(self.joined_nanos))
    }

    /// Returns the name of its command; bytes that are not UTF-8 are replaced.
    pub fn command(&self) -> String {
        String::from_utf8_lossy(&self.command).into_owned()
    }
}

impl fmt::Display for ProcessRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |c: char| if c.is_control() { '?' } else { c };
        let command: String = self.command().chars().map(shown).collect();
        match &command[..] {
            "" => write!(f, "process {}", self.pid),
            command => write!(f, "process {} ({command})", self.pid),
        }
    }
}

fn malformed(entry: &str, what: &'static str) -> RegistryError {
    RegistryError::Malformed {
        entry: entry.to_owned(),
        what,
    }
}

/// Begins an entry of this version: magic, version and process.
pub(super) fn prefix(process: ProcessId) -> Encoder {
    let bytes = Vec::with_capacity(ENTRY_BYTES_MAX);
    let to = Encoder::after(bytes).raw(MAGIC).u32(VERSION);
    to.u32(process.slot).u64(process.generation)
}

/// Splits an entry of this version into its process and what comes after that.
pub(super) fn parse_prefix<'a>(
    entry: &str,
    bytes: &'a [u8],
) -> Result<(ProcessId, Decoder<'a>), RegistryError> {
    let (version, process, rest) =
        any_version(bytes).map_err(|_| malformed(entry, "its magic or prefix is invalid"))?;
    if version != VERSION {
        let entry = entry.to_owned();
        return Err(RegistryError::Layout {
            entry,
            found: version,
            expected: VERSION,
        });
    }
    Ok((process, rest))
}

/// Returns the process that owns an entry of any version.
pub(super) fn owner(bytes: &[u8]) -> Option<ProcessId> {
    any_version(bytes).ok().map(|(_, process, _)| process)
}

fn any_version(bytes: &[u8]) -> Result<(u32, ProcessId, Decoder<'_>), Malformed> {
    let mut of = Decoder::new(bytes);
    if of.array()? != *MAGIC {
        return Err(Malformed("its magic"));
    }
    let version = of.u32()?;
    let process = ProcessId {
        slot: of.u32()?,
        generation: of.u64()?,
    };
    Ok((version, process, of))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PROCESS: ProcessId = ProcessId {
        slot: 7,
        generation: 1 << 40,
    };

    fn sample() -> ContextRecord {
        ContextRecord {
            process: PROCESS,
            layout_version: 3,
            incarnation: u64::MAX,
            host_name: "h1".to_owned(),
        }
    }

    fn common_record() -> CommonSegmentRecord {
        CommonSegmentRecord {
            process: PROCESS,
            layout_version: 3,
            object: 5,
            inode: u64::MAX,
            len: 64,
        }
    }

    fn process_record() -> ProcessRecord {
        ProcessRecord {
            process: PROCESS,
            pid: 1,
            joined_nanos: 2,
            command: b"a command\xff name".to_vec(),
        }
    }

    /// Parses an entry of one kind and writes it again.
    type Again = fn(&[u8]) -> Result<Vec<u8>, RegistryError>;
    fn kinds() -> [(Vec<u8>, Again); 3] {
        [
            (sample().to_bytes(), |bytes| {
                ContextRecord::parse("c", bytes).map(|record| record.to_bytes())
            }),
            (common_record().to_bytes(), |bytes| {
                CommonSegmentRecord::parse("s", bytes).map(|record| record.to_bytes())
            }),
            (process_record().to_bytes(), |bytes| {
                ProcessRecord::parse("p", bytes).map(|record| record.to_bytes())
            }),
        ]
    }

    #[test]
    fn records_parse_back_as_they_were_written() {
        assert_eq!(
            ContextRecord::parse("c", &sample().to_bytes()).expect("parses"),
            sample()
        );
        assert_eq!(
            CommonSegmentRecord::parse("s", &common_record().to_bytes()).expect("parses"),
            common_record()
        );
        let process = ProcessRecord::parse("p", &process_record().to_bytes()).expect("parses");
        assert_eq!(process, process_record());
        assert_eq!(process.to_string(), "process 1 (a command\u{fffd} name)");
    }

    #[test]
    fn every_truncation_and_extension_is_malformed() {
        for (bytes, again) in kinds() {
            for len in 0..bytes.len() {
                let error = again(&bytes[..len]).expect_err("cut off");
                assert!(
                    matches!(error, RegistryError::Malformed { .. }),
                    "{len}: {error}"
                );
            }
            let longer = [&bytes[..], b"x"].concat();
            let error = again(&longer).expect_err("longer");
            assert!(matches!(error, RegistryError::Malformed { .. }), "{error}");
        }
    }

    #[test]
    fn another_version_is_reported_and_its_process_named() {
        for (mut bytes, again) in kinds() {
            bytes[4] = 9;
            let error = again(&bytes).expect_err("version");
            assert!(matches!(
                error,
                RegistryError::Layout {
                    found: 9,
                    expected: VERSION,
                    ..
                }
            ));
            assert_eq!(owner(&bytes), Some(PROCESS));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), keep in 0..24_usize) {
            for (mut mixed, again) in kinds() {
                mixed.truncate(keep);
                mixed.extend(&bytes);
                if let Ok(written) = again(&mixed) {
                    prop_assert_eq!(written, mixed);
                }
            }
        }
    }
}

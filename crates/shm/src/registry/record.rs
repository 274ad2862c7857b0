//! Format of the entries: fixed order, little endian. Peers write them, so parsing does not trust them.

use super::RegistryError;
use crate::ProcessId;

/// One open device of one process in a soft host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextRecord {
    /// The process that owns it.
    pub process: ProcessId,
    /// The layout version of its segment.
    pub layout_version: u32,
    /// Number of its segment's descriptor; see [`ProcessId::open_fd`].
    pub segment_fd: i32,
    /// Number of its wake pipe's write end; see [`WakeSender::open`](crate::WakeSender::open).
    pub wake_fd: i32,
    /// A number that differs from that of earlier owners of the same index.
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
    /// Number of the segment's descriptor in that process.
    pub segment_fd: i32,
    /// Inode of the memory file. Files with the same inode are the same memory. A descriptor with another
    /// inode is no longer the one that was recorded.
    pub inode: u64,
    /// Payload size in bytes.
    pub len: u64,
}

/// Maximum length of a host name, in bytes.
pub const HOST_NAME_BYTES_MAX: usize = 255;

/// Version of the entries. All versions begin with magic, version and process.
const VERSION: u32 = 1;
const MAGIC: &[u8; 4] = b"HWfb";

const PREFIX_BYTES: usize = 4 + 4 + 4 + 8;
const FIXED_BYTES: usize = PREFIX_BYTES + 4 + 4 + 4 + 8 + 2;
pub(super) const ENTRY_BYTES_MAX: usize = FIXED_BYTES + HOST_NAME_BYTES_MAX;

impl ContextRecord {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = prefix(self.process);
        bytes.extend(self.layout_version.to_le_bytes());
        bytes.extend(self.segment_fd.to_le_bytes());
        bytes.extend(self.wake_fd.to_le_bytes());
        bytes.extend(self.incarnation.to_le_bytes());
        bytes.extend((self.host_name.len() as u16).to_le_bytes());
        bytes.extend(self.host_name.as_bytes());
        bytes
    }

    pub(super) fn parse(entry: &str, bytes: &[u8]) -> Result<Self, RegistryError> {
        let (process, mut rest) = parse_prefix(entry, bytes)?;
        let malformed = |what| malformed(entry, what);
        let mut body = || {
            let fields = (
                u32::from_le_bytes(take(&mut rest)?),
                i32::from_le_bytes(take(&mut rest)?),
                i32::from_le_bytes(take(&mut rest)?),
                u64::from_le_bytes(take(&mut rest)?),
            );
            Some((fields, u16::from_le_bytes(take(&mut rest)?) as usize, rest))
        };
        let ((layout_version, segment_fd, wake_fd, incarnation), name_bytes, name) =
            body().ok_or_else(|| malformed(SHORT))?;
        if name.len() != name_bytes || name_bytes > HOST_NAME_BYTES_MAX {
            return Err(malformed("its host name has a wrong length"));
        }
        let host_name =
            str::from_utf8(name).map_err(|_| malformed("its host name is not UTF-8"))?;
        if segment_fd < 0 || wake_fd < 0 {
            return Err(malformed(NEGATIVE));
        }
        let host_name = host_name.to_owned();
        Ok(Self {
            process,
            layout_version,
            segment_fd,
            wake_fd,
            incarnation,
            host_name,
        })
    }
}

impl CommonSegmentRecord {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = prefix(self.process);
        bytes.extend(self.layout_version.to_le_bytes());
        bytes.extend(self.segment_fd.to_le_bytes());
        bytes.extend(self.inode.to_le_bytes());
        bytes.extend(self.len.to_le_bytes());
        bytes
    }

    pub(super) fn parse(entry: &str, bytes: &[u8]) -> Result<Self, RegistryError> {
        let (process, mut rest) = parse_prefix(entry, bytes)?;
        let mut body = || {
            Some(Self {
                process,
                layout_version: u32::from_le_bytes(take(&mut rest)?),
                segment_fd: i32::from_le_bytes(take(&mut rest)?),
                inode: u64::from_le_bytes(take(&mut rest)?),
                len: u64::from_le_bytes(take(&mut rest)?),
            })
        };
        let record = body().ok_or_else(|| malformed(entry, SHORT))?;
        if !rest.is_empty() {
            return Err(malformed(entry, "too long"));
        }
        if record.segment_fd < 0 {
            return Err(malformed(entry, NEGATIVE));
        }
        Ok(record)
    }
}

const SHORT: &str = "too short";
const NEGATIVE: &str = "a descriptor number is negative";

fn malformed(entry: &str, what: &'static str) -> RegistryError {
    RegistryError::Malformed {
        entry: entry.to_owned(),
        what,
    }
}

/// Returns the beginning of every entry of this version: magic, version and process.
pub(super) fn prefix(process: ProcessId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ENTRY_BYTES_MAX);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(process.pid.to_le_bytes());
    bytes.extend(process.start_time.to_le_bytes());
    bytes
}

/// Splits an entry of this version into its process and the bytes after that.
pub(super) fn parse_prefix<'a>(
    entry: &str,
    bytes: &'a [u8],
) -> Result<(ProcessId, &'a [u8]), RegistryError> {
    let (version, process, rest) =
        any_version(bytes).ok_or_else(|| malformed(entry, "its magic or prefix is invalid"))?;
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
    any_version(bytes).map(|(_, process, _)| process)
}

fn any_version(mut bytes: &[u8]) -> Option<(u32, ProcessId, &[u8])> {
    if take::<4>(&mut bytes)? != *MAGIC {
        return None;
    }
    let version = u32::from_le_bytes(take(&mut bytes)?);
    let pid = u32::from_le_bytes(take(&mut bytes)?);
    let start_time = u64::from_le_bytes(take(&mut bytes)?);
    Some((version, ProcessId { pid, start_time }, bytes))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PROCESS: ProcessId = ProcessId {
        pid: 7,
        start_time: 1 << 40,
    };

    fn sample() -> ContextRecord {
        ContextRecord {
            process: PROCESS,
            layout_version: 3,
            segment_fd: 5,
            wake_fd: 6,
            incarnation: u64::MAX,
            host_name: "h1".to_owned(),
        }
    }

    fn common_record() -> CommonSegmentRecord {
        CommonSegmentRecord {
            process: PROCESS,
            layout_version: 3,
            segment_fd: 5,
            inode: u64::MAX,
            len: 64,
        }
    }

    /// Parses an entry of one kind and writes it again.
    type Again = fn(&[u8]) -> Result<Vec<u8>, RegistryError>;
    fn kinds() -> [(Vec<u8>, Again); 2] {
        [
            (sample().to_bytes(), |bytes| {
                ContextRecord::parse("c", bytes).map(|record| record.to_bytes())
            }),
            (common_record().to_bytes(), |bytes| {
                CommonSegmentRecord::parse("s", bytes).map(|record| record.to_bytes())
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
    fn no_descriptor_is_negative() {
        let negative = CommonSegmentRecord {
            segment_fd: -1,
            ..common_record()
        };
        let error = CommonSegmentRecord::parse("s", &negative.to_bytes()).expect_err("negative");
        assert!(matches!(error, RegistryError::Malformed { .. }), "{error}");
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

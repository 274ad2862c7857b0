//! Memory of fixtures.

use headworks_verbs::Access;

use super::{CaseContext, Host, QpFixture};
use crate::Verdict;
use crate::call::{Call, Id, Reply};

impl CaseContext<'_> {
    /// Registers the fixture's buffer once more, in the domain `pd`.
    pub fn register(&mut self, side: QpFixture, pd: Id, access: Access) -> Result<Id, String> {
        let region = self.new_id();
        let call = Call::Register {
            region,
            pd,
            buffer: side.buffer,
            access,
        };
        self.call_ok(side.host.id, call)?;
        Ok(region)
    }

    /// Allocates a protection domain.
    pub fn new_pd(&mut self, host: Host) -> Result<Id, String> {
        let (pd, device) = (self.new_id(), host.device);
        self.call_ok(host.id, Call::AllocPd { pd, device })?;
        Ok(pd)
    }

    /// Writes bytes to the fixture's buffer.
    pub fn write_buffer(&mut self, side: QpFixture, offset: usize, bytes: &[u8]) -> Verdict {
        let call = Call::Put {
            buffer: side.buffer,
            offset,
            bytes: bytes.to_vec(),
        };
        self.call_ok(side.host.id, call).map(drop)
    }

    /// Reads bytes of the fixture's buffer.
    pub fn read_buffer(
        &mut self,
        side: QpFixture,
        offset: usize,
        len: usize,
    ) -> Result<Vec<u8>, String> {
        let buffer = side.buffer;
        let call = Call::Get {
            buffer,
            offset,
            len,
        };
        match self.call_ok(side.host.id, call)? {
            Reply::Bytes(bytes) => Ok(bytes),
            other => Err(format!("instead of bytes: {other:?}")),
        }
    }

    /// Reads a native-endian 8-byte word of the fixture's buffer.
    pub fn read_u64(&mut self, side: QpFixture, offset: usize) -> Result<u64, String> {
        let bytes = self.read_buffer(side, offset, 8)?;
        let bytes = bytes.try_into().map_err(|_| "not eight bytes")?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Fills a range of the fixture's buffer with the pattern of `seed`.
    pub fn fill_buffer(
        &mut self,
        side: QpFixture,
        offset: usize,
        len: usize,
        seed: u64,
    ) -> Verdict {
        let buffer = side.buffer;
        let call = Call::Fill {
            buffer,
            offset,
            len,
            seed,
        };
        self.call_ok(side.host.id, call).map(drop)
    }

    /// Returns whether a range of the fixture's buffer holds the pattern of `seed`.
    pub fn buffer_matches(
        &mut self,
        side: QpFixture,
        offset: usize,
        len: usize,
        seed: u64,
    ) -> Result<bool, String> {
        let buffer = side.buffer;
        let call = Call::Check {
            buffer,
            offset,
            len,
            seed,
        };
        match self.call_ok(side.host.id, call)? {
            Reply::Flag(same) => Ok(same),
            other => Err(format!("instead of a flag: {other:?}")),
        }
    }
}

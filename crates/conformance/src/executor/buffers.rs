//! Calls that access memory.

use std::sync::Arc;

use headworks_verbs::Buffer;

use super::{Answer, CallExecutor};
use crate::buffer_access;
use crate::call::{ByteCondition, Call, Id, Refusal, Reply};

impl CallExecutor {
    pub(super) fn access_buffer(&self, call: &Call) -> Answer {
        match *call {
            Call::Put {
                buffer,
                offset,
                ref bytes,
            } => {
                let buffer = self.inside(buffer, offset, bytes.len())?;
                buffer_access::write(&buffer, offset, bytes.len(), |index| bytes[index]);
                Ok(Reply::Done)
            }
            Call::Get {
                buffer,
                offset,
                len,
            } => {
                let buffer = self.inside(buffer, offset, len)?;
                let mut bytes = Vec::with_capacity(len);
                buffer_access::read(&buffer, offset, len, |byte| bytes.push(byte));
                Ok(Reply::Bytes(bytes))
            }
            Call::Fill {
                buffer,
                offset,
                len,
                seed,
            } => {
                let buffer = self.inside(buffer, offset, len)?;
                let mut next = buffer_access::random_bytes(seed);
                buffer_access::write(&buffer, offset, len, |_| next());
                Ok(Reply::Done)
            }
            Call::Check {
                buffer,
                offset,
                len,
                seed,
            } => {
                let buffer = self.inside(buffer, offset, len)?;
                let (mut next, mut same) = (buffer_access::random_bytes(seed), true);
                buffer_access::read(&buffer, offset, len, |byte| same &= byte == next());
                Ok(Reply::Flag(same))
            }
            _ => Err(Refusal::mistake("nothing about memory")),
        }
    }

    pub(super) fn is_there(&self, sign: &ByteCondition) -> Result<bool, Refusal> {
        let buffer = self.inside(sign.buffer, sign.offset, 1)?;
        let mut is_there = false;
        buffer_access::read(&buffer, sign.offset, 1, |byte| is_there = byte == sign.byte);
        Ok(is_there)
    }

    fn inside(&self, id: Id, offset: usize, len: usize) -> Result<Arc<dyn Buffer>, Refusal> {
        let buffer = self.buffer(id)?;
        if !buffer_access::is_inside(&buffer, offset, len) {
            let text = format!("{len} bytes from {offset} are not inside buffer {id}");
            return Err(Refusal::mistake(text));
        }
        Ok(buffer)
    }
}

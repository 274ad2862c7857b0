//! Requests that a program builds one call at a time, with the extended interface.

use std::ops::Range;

use headworks_verbs::{
    Destination, Payload, PostError, QueuePair, RemoteAddr, SendFlags, SendOp, SendWr, Sge,
};

use crate::errors::Errno;

/// Requests that are handed to the device at a time.
const CHAIN: usize = 16;

/// A request that fills an array until it is replaced.
pub(crate) const EMPTY_SEND: SendWr<'static> = SendWr {
    wr_id: 0,
    op: SendOp::Send,
    payload: Payload::Inline(&[]),
    flags: SendFlags::NONE,
};

/// The local bytes of a request: places in the builder's lists.
enum Local {
    Entries(Range<usize>),
    Inline(Range<usize>),
}

struct BuiltWr {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    local: Local,
}

/// Requests between `wr_start` and `wr_complete`.
#[derive(Default)]
pub(crate) struct Builder {
    requests: Vec<BuiltWr>,
    entries: Vec<Sge>,
    bytes: Vec<u8>,
    /// The first mistake: nothing is posted then.
    mistake: Option<Errno>,
}

impl Builder {
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.entries.clear();
        self.bytes.clear();
        self.mistake = None;
    }

    /// Notes a mistake, which `wr_complete` reports.
    pub(crate) fn refuse(&mut self, error: Errno) {
        self.mistake.get_or_insert(error);
    }

    /// Begins a request without local bytes.
    pub(crate) fn begin(&mut self, wr_id: u64, flags: SendFlags, op: SendOp) {
        self.requests.push(BuiltWr {
            wr_id,
            op,
            flags,
            local: Local::Entries(0..0),
        });
    }

    /// Sets the destination of the request begun last, a datagram.
    pub(crate) fn send_to(&mut self, to: Result<Destination, Errno>) {
        let last = self.requests.last_mut();
        match (last, to) {
            (Some(last), Ok(to)) => {
                last.op = match last.op {
                    SendOp::SendImm(imm) => SendOp::SendToImm(to, imm),
                    _ => SendOp::SendTo(to),
                }
            }
            (_, Err(error)) => self.refuse(error),
            (None, _) => self.refuse(Errno::INVALID),
        }
    }

    /// Sets the local bytes of the request begun last.
    pub(crate) fn set_entries(&mut self, entries: &[Sge]) {
        let from = self.entries.len();
        self.entries.extend_from_slice(entries);
        let local = Local::Entries(from..self.entries.len());
        self.set_local(local);
    }

    /// Sets the inline bytes of the request begun last.
    pub(crate) fn set_inline(&mut self, pieces: &[&[u8]]) {
        let from = self.bytes.len();
        for piece in pieces {
            self.bytes.extend_from_slice(piece);
        }
        let local = Local::Inline(from..self.bytes.len());
        self.set_local(local);
    }

    fn set_local(&mut self, local: Local) {
        match self.requests.last_mut() {
            Some(last) => last.local = local,
            None => self.refuse(Errno::INVALID),
        }
    }

    /// Posts the requests, and begins anew.
    ///
    /// # Errors
    ///
    /// The first mistake, and nothing is posted; or the device's refusal of a request, and those before it are posted.
    pub(crate) fn post(&mut self, qp: &mut dyn QueuePair) -> Result<(), Errno> {
        let posted = self.post_all(qp);
        self.clear();
        posted
    }

    fn post_all(&self, qp: &mut dyn QueuePair) -> Result<(), Errno> {
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        for requests in self.requests.chunks(CHAIN) {
            let mut chain = [EMPTY_SEND; CHAIN];
            for (to, request) in chain.iter_mut().zip(requests) {
                *to = SendWr {
                    wr_id: request.wr_id,
                    op: request.op,
                    payload: match &request.local {
                        Local::Entries(range) => Payload::Gather(&self.entries[range.clone()]),
                        Local::Inline(range) => Payload::Inline(&self.bytes[range.clone()]),
                    },
                    flags: request.flags,
                };
            }
            qp.post_send(&chain[..requests.len()])
                .map_err(|PostError { kind, .. }| Errno::from(kind))?;
        }
        Ok(())
    }
}

/// Remote memory from the arguments of a call.
pub(crate) fn remote(rkey: u32, addr: u64) -> RemoteAddr {
    RemoteAddr { addr, rkey }
}

//! Messages of 4 KiB, which clients SEND into receives that all connections share (Jet 4.1.1).
//!
//! The server grants a message by a WRITE of eight bytes into the client's memory: the number of messages granted so far
//! on that connection. The client SENDs them. Each message begins with the time of its SEND and the number of its
//! connection. Both hosts are in virtual time, so they share the clock.

use headworks::verbs::{
    AllocRequest, Completion, Instant, Pages, Payload, QpCaps, RecvWr, SendFlags, SendOp, SendWr,
};
use headworks_runtime::Step;

use super::super::endpoint::acting;
use super::super::requester::{Requester, polled};
use super::super::{Made, Setup, Verb, VerbLoad};
use super::StorageLoad;
use crate::actor_pair::{PairMail, wait};
use crate::error::{Result, WorkloadError};
use crate::report::Report;
use headworks_baselines::EndSizes;

/// Bytes of a message that is sent.
pub(super) const SHORT: usize = 4096;
/// Receives of the pool (4.1.3), and receives that each connection has where they do not share a pool.
const POOL_RECEIVES: usize = 1024;
const RECEIVES_EACH: usize = 128;
/// Distance between the counters of two connections in the client's memory.
const COUNTER: usize = 64;
/// Requests that a queue pair holds.
const REQUESTS: usize = 64;
/// Completions taken at a time.
const BATCH: usize = 32;

/// Returns the number of receives.
fn receives(load: &StorageLoad) -> usize {
    match load.is_pool && load.has_windows {
        true => POOL_RECEIVES,
        false => load.connections * RECEIVES_EACH,
    }
}

/// Makes an end for short messages: the server's, which has receives, or the client's.
pub(super) fn end(load: &StorageLoad, setup: &Setup<'_>, is_server: bool) -> Result<Requester> {
    let receives = if is_server { receives(load) } else { 0 };
    let sizes = EndSizes {
        queue_pairs: load.connections,
        caps: QpCaps {
            max_send_wr: REQUESTS as u32,
            max_recv_wr: 1,
            max_inline: 8,
            ..QpCaps::default()
        },
        cq_depth: (load.connections * REQUESTS).max(receives) as u32,
        shared_receives: receives as u32,
        channel: false,
    };
    let len = match is_server {
        true => receives * SHORT,
        false => load.connections * (COUNTER + load.outstanding * SHORT),
    };
    let verb = VerbLoad::of(Verb::Send, SHORT);
    let mut end = super::super::endpoint::open(setup.pair, &sizes)?;
    end.populate(&sizes)?;
    let memory = end.memory_as(&AllocRequest {
        pages: Pages::PreferHuge,
        ..AllocRequest::of(len)
    })?;
    Ok(Requester::new(verb, end, memory))
}

/// A short message that has arrived.
pub(super) struct ShortMessage {
    pub(super) connection: usize,
    pub(super) sent: Instant,
    /// Number of the receive that it took.
    pub(super) slot: usize,
}

/// The server's end.
pub(super) struct ShortServer {
    end: Requester,
    /// Messages granted, by connection.
    granted: Vec<u64>,
    found: [Completion; BATCH],
}

impl ShortServer {
    pub(super) fn new(load: &StorageLoad, end: Requester) -> Result<Self> {
        let server = Self {
            end,
            granted: vec![0; load.connections],
            found: [Completion::default(); BATCH],
        };
        (0..receives(load)).try_for_each(|slot| server.receive(slot))?;
        Ok(server)
    }

    /// Posts a receive.
    pub(super) fn receive(&self, slot: usize) -> Result<()> {
        let Some(srq) = &self.end.end.srq else {
            return Ok(());
        };
        let sges = [self.end.memory.region().sge(slot * SHORT, SHORT as u32)];
        let posted = srq.post_recv(&[RecvWr {
            wr_id: slot as u64,
            sges: &sges,
        }]);
        posted.map_err(|e| WorkloadError::at("posting receives", e))
    }

    /// Returns the address of a receive's memory.
    pub(super) fn place(&self, slot: usize) -> *const u8 {
        let memory = self.end.memory.region().buffer();
        memory.as_ptr().wrapping_add(slot * SHORT)
    }

    /// Grants a message on a connection.
    pub(super) fn grant(&mut self, connection: usize) -> Result<()> {
        self.granted[connection] += 1;
        let count = self.granted[connection].to_le_bytes();
        let target = self.end.target.plus((connection * COUNTER) as u64);
        let posted = self.end.end.queue_pairs[connection].post_send(&[SendWr {
            wr_id: 0,
            op: SendOp::Write(target),
            payload: Payload::Inline(&count),
            flags: SendFlags::SIGNALED,
        }]);
        posted.map_err(|e| WorkloadError::at("posting", e))
    }

    /// Takes messages that have arrived.
    pub(super) fn take(&mut self) -> Result<Vec<ShortMessage>> {
        let mut sent = [Completion::default(); BATCH];
        while polled(&*self.end.end.send_cq, &mut sent)?.len() == BATCH {}
        let found = polled(&*self.end.end.recv_cq, &mut self.found)?;
        let memory = &self.end.memory;
        let message = |completion: &Completion| {
            let slot = completion.wr_id as usize;
            let word = |at: usize| {
                let bytes = memory.bytes(slot * SHORT + at, 8);
                u64::from_le_bytes(bytes.try_into().unwrap_or_default())
            };
            ShortMessage {
                connection: word(8) as usize,
                sent: Instant::from_nanos(word(0)),
                slot,
            }
        };
        Ok(found.iter().map(message).collect())
    }
}

/// Makes the client's program: it SENDs what the server grants, until mail comes. `bulk` is the memory that the server
/// READs.
pub(super) fn client(load: StorageLoad, bulk: Requester, mut short: Requester) -> Made {
    let mut sent = vec![0u64; load.connections];
    acting(move |cx| {
        let _ = &bulk;
        if cx.receive_mail().is_some() {
            return cx.done(&Report::None);
        }
        let mut count = 0;
        for (connection, sent) in sent.iter_mut().enumerate() {
            let granted = short.memory.bytes(connection * COUNTER, 8);
            let granted = u64::from_le_bytes(granted.try_into().unwrap_or_default());
            while *sent < granted {
                let slot = connection * load.outstanding + *sent as usize % load.outstanding;
                let at = load.connections * COUNTER + slot * SHORT;
                short.memory.fill(at, &cx.now().nanos().to_le_bytes());
                short
                    .memory
                    .fill(at + 8, &(connection as u64).to_le_bytes());
                let sges = [short.memory.region().sge(at, SHORT as u32)];
                let posted = short.end.queue_pairs[connection].post_send(&[SendWr {
                    wr_id: connection as u64,
                    op: SendOp::Send,
                    payload: Payload::Gather(&sges),
                    flags: SendFlags::SIGNALED,
                }]);
                posted.map_err(|e| WorkloadError::at("posting", e))?;
                *sent += 1;
                count += 1;
            }
        }
        count += short.completed()?;
        Ok(match count {
            0 => wait(),
            _ => Step::Again,
        })
    })
}

//! Calls on queue pairs: states, posting, connecting.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::datagram::{AhKey, Destination};
use headworks_verbs::{
    Access, Atomics, BringUp, Buffer, Gid, HeapBuffer, Lid, Payload, PostError, PostErrorKind,
    QpAttr, Qpn, RecvWr, RemoteAddr, ResourceError, SendFlags, SendOp, SendWr, Sge,
};

use super::{Answer, CallExecutor, Object, Qp};
use crate::buffer_access;
use crate::call::{
    Call, Data, Id, Op, Peer, Piece, PortAddress, Receive, Refusal, Remote, Reply, Send,
};

impl CallExecutor {
    pub(super) fn use_queue_pair(&self, call: &Call) -> Answer {
        match call {
            Call::Modify { qp, attr, peer } => {
                let (port, dest_qpn) = peer.as_ref().map(peer_at).transpose()?.unzip();
                let attr = QpAttr {
                    dest_gid: port.map(|port| Gid(port.gid)),
                    dest_lid: port.and_then(|port| Lid::new(port.lid)),
                    dest_qpn,
                    ..*attr
                };
                let qp = self.qp(*qp)?;
                let modified = lock(&qp).queue.modify(&attr);
                modified.map_err(|e| Refusal::of(&e))?;
                Ok(Reply::Done)
            }
            Call::State { qp } => Ok(Reply::State(lock(&self.qp(*qp)?).queue.state())),
            Call::PostSend { qp, chain } => {
                if self.lacks_atomics() && chain.iter().any(|send| send.op.is_atomic()) {
                    return Err(Refusal::of(&ResourceError::Unsupported { what: "atomics" }));
                }
                let pieces = self.gathers(*qp, chain)?;
                let wrs = self.requests(chain, &pieces)?;
                let qp = self.qp(*qp)?;
                let mut qp = lock(&qp);
                let posted = self.post_with_retries(&wrs, |wrs| qp.queue.post_send(wrs));
                posted.map_err(Refusal::from)?;
                Ok(Reply::Done)
            }
            Call::PostRecv { queue, chain } => self.post_recv(*queue, chain),
            Call::SetLimit { srq, limit } => {
                let set = self.srq(*srq)?.set_limit(*limit);
                set.map_err(|e| Refusal::of(&e))?;
                Ok(Reply::Done)
            }
            Call::GreetFirst {
                qp,
                device,
                seed,
                payload,
            } => {
                let device = self.device(*device)?;
                let (qp, payload) = (self.qp(*qp)?, payload.clone());
                let mut qp = lock(&qp);
                let tuning = ConnectionParams::default();
                let started =
                    BringUp::start(device.info(), qp.queue.as_mut(), tuning, *seed, payload);
                qp.up = Some(started.map_err(|e| Refusal::of(&e))?);
                qp.start_bring_up(&[])
            }
            Call::Greet { qp, bytes } => lock(&self.qp(*qp)?).start_bring_up(bytes),
            _ => Err(Refusal::mistake("nothing to post")),
        }
    }

    fn post_recv(&self, queue: Id, chain: &[Receive]) -> Answer {
        let pieces = chain.iter().map(|receive| self.sges(&receive.pieces));
        let pieces = pieces.collect::<Result<Vec<_>, _>>()?;
        let wr = |(receive, sges): (&Receive, _)| RecvWr {
            wr_id: receive.wr_id,
            sges,
        };
        let slices = pieces.iter().map(Vec::as_slice);
        let wrs: Vec<_> = chain.iter().zip(slices).map(wr).collect();
        let shared = match self.state().objects.get(&queue) {
            Some(Object::Srq(srq)) => Some(srq.clone()),
            _ => None,
        };
        let posted = match shared {
            Some(srq) => self.post_with_retries(&wrs, |wrs| srq.post_recv(wrs)),
            None => {
                let qp = self.qp(queue)?;
                let mut qp = lock(&qp);
                self.post_with_retries(&wrs, |wrs| qp.queue.post_recv(wrs))
            }
        };
        posted.map_err(Refusal::from)?;
        Ok(Reply::Done)
    }

    /// Posts `wrs`. Retries a post refused as queue full as often as the device may refuse without reason.
    fn post_with_retries<W>(
        &self,
        wrs: &[W],
        mut post: impl FnMut(&[W]) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let (mut posted, mut refused) = (0, 0);
        loop {
            let Err(error) = post(&wrs[posted..]) else {
                return Ok(());
            };
            if error.index > 0 {
                posted += error.index;
                refused = 0;
            }
            if error.kind != PostErrorKind::QueueFull || refused == self.spurious_refusals {
                return Err(error.kind.at(posted));
            }
            refused += 1;
        }
    }

    fn sges(&self, pieces: &[Piece]) -> Result<Vec<Sge>, Refusal> {
        let state = self.state();
        let sge = |piece: &Piece| {
            let known = state.keys.get(&piece.region);
            let (base, key) =
                known.ok_or_else(|| Refusal::mistake(format!("no region {}", piece.region)))?;
            let (addr, lkey) = piece.address_fault.apply(*base, piece.offset, *key);
            Ok(Sge {
                addr,
                len: piece.len,
                lkey,
            })
        };
        pieces.iter().map(sge).collect()
    }

    fn lacks_atomics(&self) -> bool {
        let facts = self.state().facts;
        facts.is_some_and(|(abilities, _)| abilities.atomics == Atomics::None)
    }

    /// Whether payloads that a case posts inline must lie in registered memory, because the device takes none.
    fn posts_outline(&self) -> bool {
        self.state().facts.is_some_and(|(_, copies)| !copies)
    }

    /// The entries of each request of a chain for the queue pair `qp`.
    fn gathers(&self, qp: Id, chain: &[Send]) -> Result<Vec<Vec<Sge>>, Refusal> {
        let outline = self.posts_outline();
        let sges = |send: &Send| match &send.data {
            Data::Gather(pieces) => self.sges(pieces),
            Data::Inline(bytes) if outline && !bytes.is_empty() => self.outline(qp, bytes),
            Data::Inline(_) => Ok(Vec::new()),
        };
        chain.iter().map(sges).collect()
    }

    /// Puts bytes into registered memory of the queue pair's domain, which is kept.
    fn outline(&self, qp: Id, bytes: &[u8]) -> Result<Vec<Sge>, Refusal> {
        let pd = self.state().domains.get(&qp).copied();
        let pd = self.pd(pd.ok_or_else(|| Refusal::mistake("a queue pair without a domain"))?)?;
        let buffer: Arc<dyn Buffer> = HeapBuffer::new(bytes.len().max(8));
        buffer_access::write(&buffer, 0, bytes.len(), |at| bytes[at]);
        let region = pd
            .register(&buffer, Access::NONE)
            .map_err(|e| Refusal::of(&e))?;
        let sge = region.sge(0, bytes.len() as u32);
        self.state().outline.push(region);
        Ok(vec![sge])
    }

    fn requests<'a>(
        &self,
        chain: &'a [Send],
        pieces: &'a [Vec<Sge>],
    ) -> Result<Vec<SendWr<'a>>, Refusal> {
        let wr = |(send, sges): (&'a Send, &'a Vec<Sge>)| {
            let flag = |set, flag| if set { flag } else { SendFlags::NONE };
            Ok(SendWr {
                wr_id: send.wr_id,
                op: self.op(&send.op)?,
                payload: match &send.data {
                    Data::Inline(_) if !sges.is_empty() => Payload::Gather(sges),
                    Data::Gather(_) => Payload::Gather(sges),
                    Data::Inline(bytes) => Payload::Inline(bytes),
                },
                flags: flag(send.signaled, SendFlags::SIGNALED)
                    | flag(send.fence, SendFlags::FENCE)
                    | flag(send.solicited, SendFlags::SOLICITED),
            })
        };
        chain.iter().zip(pieces).map(wr).collect()
    }

    fn op(&self, op: &Op) -> Result<SendOp, Refusal> {
        Ok(match *op {
            Op::Send => SendOp::Send,
            Op::SendImm(imm) => SendOp::SendImm(imm),
            Op::Write(remote) => SendOp::Write(at(remote)?),
            Op::WriteImm(remote, imm) => SendOp::WriteImm(at(remote)?, imm),
            Op::Read(remote) => SendOp::Read(at(remote)?),
            Op::CompareSwap {
                remote,
                expect,
                swap,
            } => SendOp::CompareSwap {
                remote: at(remote)?,
                expect,
                swap,
            },
            Op::FetchAdd { remote, add } => SendOp::FetchAdd {
                remote: at(remote)?,
                add,
            },
            Op::SendTo {
                ah,
                ref peer,
                qkey,
                imm,
            } => {
                let key = self.state().handles.get(&ah).copied();
                let key = key.ok_or_else(|| Refusal::mistake(format!("no address handle {ah}")))?;
                let (_, qpn) = peer_at(peer)?;
                let to = Destination {
                    ah: AhKey(key),
                    qpn,
                    qkey,
                };
                match imm {
                    None => SendOp::SendTo(to),
                    Some(imm) => SendOp::SendToImm(to, imm),
                }
            }
        })
    }
}

impl Qp {
    fn start_bring_up(&mut self, bytes: &[u8]) -> Answer {
        let Some(up) = &mut self.up else {
            return Err(Refusal::mistake("a greeting out of place"));
        };
        up.input(self.queue.as_mut(), bytes)
            .map_err(|e| Refusal::of(&e))?;
        Ok(Reply::Greeting {
            out: up.output(),
            connected: up.is_connected(),
            payload: up.peer().map(|hello| hello.payload.clone()),
        })
    }
}

/// Locks a queue pair. Poisoning is ignored: a panic leaves the queue pair usable.
fn lock(qp: &Arc<Mutex<Qp>>) -> MutexGuard<'_, Qp> {
    qp.lock().unwrap_or_else(PoisonError::into_inner)
}

fn at(remote: Remote) -> Result<RemoteAddr, Refusal> {
    match remote {
        Remote::At { addr, rkey } => Ok(RemoteAddr { addr, rkey }),
        Remote::Of { .. } => Err(Refusal::mistake("a remote address that was not filled in")),
    }
}

fn peer_at(peer: &Peer) -> Result<(PortAddress, Qpn), Refusal> {
    match *peer {
        Peer::At { port, qpn } => {
            let qpn = Qpn::new(qpn).ok_or_else(|| Refusal::mistake("a QPN of over 24 bits"))?;
            Ok((port, qpn))
        }
        Peer::Of { .. } => Err(Refusal::mistake("a peer that was not filled in")),
    }
}

//! Calls that create objects.

use std::sync::{Arc, Mutex};

use headworks_verbs::datagram::AhInit;
use headworks_verbs::{AllocRequest, CqInit, Gid, HeapBuffer, Lid, QpInit, SrqInit};

use super::{Answer, CallExecutor, Object, Qp};
use crate::call::{Call, DeviceFacts, Id, Port, PortAddress, QpCreateCall, Refusal, Reply};
use crate::world::HostRole;

impl CallExecutor {
    pub(super) fn create(&self, call: &Call) -> Answer {
        match *call {
            Call::Open { device, end } => return self.open(device, end),
            Call::CreateQp(ref plan) => return self.create_qp(plan),
            Call::Register {
                region,
                pd,
                buffer,
                access,
            } => {
                let (pd_, buffer) = (self.pd(pd)?, self.buffer(buffer)?);
                let made = pd_.register(&buffer, access).map_err(|e| Refusal::of(&e))?;
                let reply = Reply::Keys {
                    addr: made.addr(0),
                    lkey: made.lkey(),
                    rkey: made.rkey(),
                    whole_words: made.atomic_aligned_8(),
                };
                let keys = (made.addr(0), made.lkey());
                self.state().keys.insert(region, keys);
                self.keep(region, Object::Region(Arc::new(made)))?;
                return Ok(reply);
            }
            Call::AllocPd { pd, device } => {
                let made = self.device(device)?.alloc_pd();
                self.keep(pd, Object::Pd(made.map_err(|e| Refusal::of(&e))?))?;
            }
            Call::Alloc {
                buffer,
                device,
                len,
                align,
            } => {
                let request = AllocRequest {
                    align,
                    ..AllocRequest::of(len)
                };
                let made = self.device(device)?.alloc(&request);
                self.keep(buffer, Object::Buffer(made.map_err(|e| Refusal::of(&e))?))?;
            }
            Call::Heap { buffer, len } => {
                self.keep(buffer, Object::Buffer(HeapBuffer::new(len)))?;
            }
            Call::CreateChannel { channel, device } => {
                let made = self.device(device)?.create_channel();
                self.keep(channel, Object::Channel(made.map_err(|e| Refusal::of(&e))?))?;
            }
            Call::CreateCq {
                cq,
                device,
                depth,
                channel,
                timestamps,
            } => {
                let init = CqInit {
                    depth,
                    channel: channel.map(|id| self.channel(id)).transpose()?,
                    timestamps,
                };
                let made = self.device(device)?.create_cq(&init);
                let made = made.map_err(|e| Refusal::of(&e))?;
                let depth = u64::from(made.depth());
                self.state().cqs.insert(made.id().0, cq);
                self.keep(cq, Object::Cq(made))?;
                return Ok(Reply::Number(depth));
            }
            Call::CreateSrq {
                srq,
                pd,
                max_wr,
                max_sge,
                limit,
            } => {
                let init = SrqInit {
                    max_wr,
                    max_sge,
                    limit,
                };
                let made = self.pd(pd)?.create_srq(&init);
                let made = made.map_err(|e| Refusal::of(&e))?;
                let size = u64::from(made.max_wr());
                self.state().srqs.insert(made.id().0, srq);
                self.keep(srq, Object::Srq(made))?;
                return Ok(Reply::Number(size));
            }
            Call::CreateAh { ah, pd, to } => {
                let Port::At { port } = to else {
                    return Err(Refusal::mistake("a port that was not filled in"));
                };
                let made = self.pd(pd)?.create_ah(&AhInit {
                    dlid: Lid::new(port.lid),
                    ..AhInit::to(Gid(port.gid))
                });
                let made = made.map_err(|e| Refusal::of(&e))?;
                self.state().handles.insert(ah, made.key().0);
                self.keep(ah, Object::Ah(made))?;
            }
            _ => return Err(Refusal::mistake("nothing to make")),
        }
        Ok(Reply::Done)
    }

    fn open(&self, device: Id, end: HostRole) -> Answer {
        let name = self.names.get(&end);
        let name = name.ok_or_else(|| Refusal::mistake(format!("no device at {end:?}")))?;
        let opened = (self.opener)(name).map_err(|e| Refusal::of(&e))?;
        let info = opened.info();
        let facts = DeviceFacts {
            kind: info.name.kind().to_owned(),
            port: PortAddress {
                gid: info.gid.0,
                lid: info.lid.map_or(0, Lid::raw),
            },
            mtu: info.mtu,
            limits: info.limits,
            promises: info.promises,
            abilities: info.abilities,
        };
        let copies = info.limits.max_inline > 0;
        self.state().facts = Some((info.abilities, copies));
        self.keep(device, Object::Device(opened))?;
        Ok(Reply::Device(facts))
    }

    fn create_qp(&self, plan: &QpCreateCall) -> Answer {
        let pd = self.pd(plan.pd)?;
        let init = QpInit {
            qp_type: plan.qp_type,
            send_cq: self.cq(plan.send_cq)?,
            recv_cq: self.cq(plan.recv_cq)?,
            srq: plan.srq.map(|id| self.srq(id)).transpose()?,
            caps: plan.caps,
            signal_all: plan.signal_all,
        };
        let queue = pd.create_qp(&init).map_err(|e| Refusal::of(&e))?;
        let reply = Reply::Queue {
            qpn: queue.qpn().raw(),
            caps: *queue.caps(),
        };
        self.state().qpns.insert(queue.qpn().raw(), plan.qp);
        self.state().domains.insert(plan.qp, plan.pd);
        let qp = Qp { queue, up: None };
        self.keep(plan.qp, Object::Qp(Arc::new(Mutex::new(qp))))?;
        Ok(reply)
    }
}

//! Calls for completions and events.

use headworks_verbs::{AsyncEvent, Completion, Duration, Status};

use super::{Answer, CallExecutor, State};
use crate::call::{Call, Done, Event, Refusal, Reply};

impl CallExecutor {
    pub(super) fn poll_or_arm(&self, call: &Call) -> Answer {
        match *call {
            Call::TakeEvents { device } => {
                let device = self.device(device)?;
                let all = std::iter::from_fn(|| device.next_async_event());
                let all: Vec<_> = all.collect();
                let state = self.state();
                Ok(Reply::Events(
                    all.into_iter().map(|e| state.event(e)).collect(),
                ))
            }
            Call::DeviceTime { device } => {
                let now = self.device(device)?.now();
                Ok(Reply::Number(now.nanos()))
            }
            Call::Poll { cq, most } => {
                let mut out = vec![Completion::default(); most];
                let count = self.cq(cq)?.poll(&mut out)?;
                let state = self.state();
                let done = out[..count].iter().map(|found| state.done(found));
                Ok(Reply::Completions(done.collect()))
            }
            Call::Arm { cq, solicited_only } => {
                self.cq(cq)?.arm(solicited_only);
                Ok(Reply::Done)
            }
            Call::ChannelEvent { channel } => {
                let found = self.channel(channel)?.next_event();
                let found = found.map_err(|e| Refusal::of(&e))?;
                let state = self.state();
                let whose = |id: headworks_verbs::CqId| state.cqs.get(&id.0).copied();
                Ok(Reply::CqEvent(found.and_then(whose)))
            }
            Call::Sleep {
                channel,
                at_most_ms,
            } => {
                let channel = self.channel(channel)?;
                let at_most = Duration::from_millis(at_most_ms.into());
                let ready = self.time.sleep(channel.fd(), at_most);
                Ok(Reply::Flag(ready.map_err(|e| Refusal::of(&e))?))
            }
            _ => Err(Refusal::mistake("nothing to watch")),
        }
    }
}

impl State {
    fn done(&self, found: &Completion) -> Done {
        // The other fields of a failed completion are undefined, and no case may rely on them.
        let failed = Completion {
            wr_id: found.wr_id,
            status: found.status,
            qpn: found.qpn,
            timestamp: found.timestamp,
            ..Completion::default()
        };
        let found = match found.status {
            Status::Success => found,
            _ => &failed,
        };
        Done {
            wr_id: found.wr_id,
            status: found.status,
            opcode: found.opcode,
            qp: self.qpns.get(&found.qpn.raw()).copied(),
            byte_len: found.byte_len,
            imm: found.imm,
            src_qpn: found.src_qpn.raw(),
            grh: found.flags.grh,
            timestamp: found.timestamp,
        }
    }

    fn event(&self, event: AsyncEvent) -> Event {
        let qp = |qpn: headworks_verbs::Qpn| self.qpns.get(&qpn.raw()).copied();
        match event {
            AsyncEvent::QpFatal(qpn) => Event::QpFatal(qp(qpn)),
            AsyncEvent::QpLastWqe(qpn) => Event::QpLastWqe(qp(qpn)),
            AsyncEvent::CqError(id) => Event::CqError(self.cqs.get(&id.0).copied()),
            AsyncEvent::SrqLimit(id) => Event::SrqLimit(self.srqs.get(&id.0).copied()),
            _ => Event::Other,
        }
    }
}

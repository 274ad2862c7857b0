//! Making sides, and moving them from state to state.

use headworks_verbs::{Psn, QpAttr, QpState};

use super::{Bench, Host, Options, Side};
use crate::Verdict;
use crate::call::{Call, Id, Peer, QpPlan, Refusal, Reply};

impl Bench<'_> {
    /// Two connected sides of the usual kind.
    pub fn pair(&mut self) -> Result<(Side, Side), String> {
        self.pair_of(&Options::default(), &Options::default())
    }

    /// Two connected sides.
    pub fn pair_of(&mut self, a: &Options, b: &Options) -> Result<(Side, Side), String> {
        let (first, second) = (self.first()?, self.second()?);
        let pair = (self.side(first, a)?, self.side(second, b)?);
        self.connect(pair.0, a, pair.1, b)?;
        Ok(pair)
    }

    /// A queue pair in RESET, with CQs, a domain and a buffer of its own.
    pub fn side(&mut self, host: Host, options: &Options) -> Result<Side, String> {
        let pd = self.id();
        let device = host.device;
        self.done(host.id, Call::AllocPd { pd, device })?;
        self.side_within(host, pd, None, options)
    }

    /// A queue pair of `pd` that receives from `srq`, if that is given.
    pub fn side_within(
        &mut self,
        host: Host,
        pd: Id,
        srq: Option<Id>,
        options: &Options,
    ) -> Result<Side, String> {
        self.try_side(host, pd, srq, options).map_err(super::line)
    }

    /// The same, where it may be refused.
    pub fn try_side(
        &mut self,
        host: Host,
        pd: Id,
        srq: Option<Id>,
        options: &Options,
    ) -> Result<Side, Refusal> {
        let device = host.device;
        let [channel, send_cq, recv_cq] = [self.id(), self.id(), self.id()];
        let [buffer, region, qp] = [self.id(), self.id(), self.id()];
        let cq = |cq| Call::CreateCq {
            cq,
            device,
            depth: options.depth,
            channel: Some(channel),
            timestamps: options.timestamps,
        };
        let memory = if options.heap {
            let len = options.len;
            Call::Heap { buffer, len }
        } else {
            Call::Alloc {
                buffer,
                device,
                len: options.len,
                align: 64,
            }
        };
        let calls = vec![
            Call::CreateChannel { channel, device },
            cq(send_cq),
            cq(recv_cq),
            memory,
            Call::Register {
                region,
                pd,
                buffer,
                access: options.region,
            },
            Call::CreateQp(QpPlan {
                qp,
                pd,
                qp_type: options.qp_type,
                send_cq,
                recv_cq,
                srq,
                caps: options.caps,
                signal_all: options.signal_all,
            }),
        ];
        let Reply::Each(replies) = self.tried(host.id, Call::Each(calls))? else {
            return Err(Refusal::mistake("a side was answered otherwise"));
        };
        match &replies[..] {
            [.., Reply::No(refusal)] => Err(refusal.clone()),
            [_, Reply::Number(depth), .., Reply::Queue { caps, .. }] => Ok(Side {
                host,
                pd,
                channel,
                send_cq,
                recv_cq,
                buffer,
                len: options.len,
                region,
                srq,
                qp,
                caps: *caps,
                depth: *depth as u32,
            }),
            _ => Err(Refusal::mistake("a side was answered otherwise")),
        }
    }

    /// Brings two sides up from RESET.
    pub fn connect(&mut self, a: Side, of_a: &Options, b: Side, of_b: &Options) -> Verdict {
        // Far from those of the connection before, which may be one of the same queue pairs: what is still
        // under way of that must not be taken for an answer (which is what TimeWait is for, chapter 12).
        self.psn += 1 << 17;
        // Both may receive before one may send.
        for (side, options, peer) in [(a, of_a, b), (b, of_b, a)] {
            let init = self.init_attr(options);
            let rtr = self.rtr_attr(side, options)?;
            let calls = vec![
                self.modify_call(side, init, None),
                self.modify_call(side, rtr, Some(peer)),
            ];
            self.done(side.host.id, Call::Each(calls))?;
        }
        self.to_rts(a, of_a)?;
        self.to_rts(b, of_b)
    }

    fn modify_call(&self, side: Side, attr: QpAttr, peer: Option<Side>) -> Call {
        Call::Modify {
            qp: side.qp,
            attr,
            peer: peer.map(|peer| Peer::Of {
                host: peer.host.id,
                qp: peer.qp,
            }),
        }
    }

    /// Changes state and attributes.
    pub fn modify(&mut self, side: Side, attr: QpAttr, peer: Option<Side>) -> Result<(), Refusal> {
        let call = self.modify_call(side, attr, peer);
        self.tried(side.host.id, call).map(drop)
    }

    /// What moves a side of these options to INIT.
    pub fn init_attr(&self, options: &Options) -> QpAttr {
        QpAttr {
            state: Some(QpState::Init),
            access: Some(options.access),
            ..QpAttr::default()
        }
    }

    /// What moves a side of these options from INIT to RTR.
    pub fn rtr_attr(&self, side: Side, options: &Options) -> Result<QpAttr, String> {
        let facts = self.facts(side.host)?;
        let most = facts.limits.max_rd_atomic;
        Ok(QpAttr {
            state: Some(QpState::Rtr),
            rq_psn: Some(Psn::truncated(self.psn)),
            path_mtu: Some(facts.mtu),
            max_dest_rd_atomic: Some(options.max_dest_rd_atomic.unwrap_or(most)),
            min_rnr_timer: Some(options.min_rnr_timer),
            ..QpAttr::default()
        })
    }

    /// What moves a side of these options from RTR to RTS.
    pub fn rts_attr(&self, side: Side, options: &Options) -> Result<QpAttr, String> {
        let most = self.facts(side.host)?.limits.max_rd_atomic;
        Ok(QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::truncated(self.psn)),
            timeout: Some(options.timeout),
            retry_count: Some(options.retry_count),
            rnr_retry: Some(options.rnr_retry),
            max_rd_atomic: Some(options.max_rd_atomic.unwrap_or(most)),
            ..QpAttr::default()
        })
    }

    /// Moves a side by hand to INIT.
    pub fn to_init(&mut self, side: Side, options: &Options) -> Verdict {
        let attr = self.init_attr(options);
        self.modify(side, attr, None).map_err(super::line)
    }

    /// Moves a side by hand from INIT to RTR, connected to `peer`.
    pub fn to_rtr(&mut self, side: Side, options: &Options, peer: Side) -> Verdict {
        let attr = self.rtr_attr(side, options)?;
        self.modify(side, attr, Some(peer)).map_err(super::line)
    }

    /// Moves a side by hand from RTR to RTS.
    pub fn to_rts(&mut self, side: Side, options: &Options) -> Verdict {
        let attr = self.rts_attr(side, options)?;
        self.modify(side, attr, None).map_err(super::line)
    }

    /// Moves a side to a state that needs no attributes.
    pub fn to_state(&mut self, side: Side, state: QpState) -> Verdict {
        let attr = QpAttr::to_state(state);
        self.modify(side, attr, None).map_err(super::line)
    }

    /// Moves a side to the error state.
    pub fn to_error(&mut self, side: Side) -> Verdict {
        self.to_state(side, QpState::Error)
    }

    /// Moves a side to RESET.
    pub fn to_reset(&mut self, side: Side) -> Verdict {
        self.to_state(side, QpState::Reset)
    }

    /// The state of a side.
    pub fn state(&mut self, side: Side) -> Result<QpState, String> {
        match self.done(side.host.id, Call::State { qp: side.qp })? {
            Reply::State(state) => Ok(state),
            other => Err(format!("instead of a state: {other:?}")),
        }
    }

    /// Drops everything of a side, the queue pair first.
    pub fn drop_side(&mut self, side: Side) -> Verdict {
        let objects = [
            side.qp,
            side.region,
            side.buffer,
            side.send_cq,
            side.recv_cq,
            side.channel,
            side.pd,
        ];
        let destroy = |object| Call::Destroy { object };
        let calls = objects.map(destroy).to_vec();
        self.done(side.host.id, Call::Each(calls)).map(drop)
    }
}

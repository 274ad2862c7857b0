//! Creates fixtures and moves their queue pairs between states.

use headworks_verbs::{Psn, QpAttr, QpCaps, QpState};

use super::{CaseContext, Host, QpFixture, QpOptions};
use crate::Verdict;
use crate::call::{Call, Id, Peer, QpCreateCall, Refusal, Reply};

impl CaseContext<'_> {
    /// Returns two connected fixtures with default options.
    pub fn connected_pair(&mut self) -> Result<(QpFixture, QpFixture), String> {
        self.connected_pair_with(&QpOptions::default(), &QpOptions::default())
    }

    /// Returns two connected fixtures.
    pub fn connected_pair_with(
        &mut self,
        a: &QpOptions,
        b: &QpOptions,
    ) -> Result<(QpFixture, QpFixture), String> {
        let (first, second) = (self.first_host()?, self.second_host()?);
        let pair = (self.new_qp(first, a)?, self.new_qp(second, b)?);
        self.connect(pair.0, a, pair.1, b)?;
        Ok(pair)
    }

    /// Creates a queue pair in RESET, with its own CQs, protection domain and buffer.
    pub fn new_qp(&mut self, host: Host, options: &QpOptions) -> Result<QpFixture, String> {
        let pd = self.new_id();
        let device = host.device;
        self.call_ok(host.id, Call::AllocPd { pd, device })?;
        self.new_qp_in_pd(host, pd, None, options)
    }

    /// Creates a queue pair in `pd` that receives from `srq`, if given.
    pub fn new_qp_in_pd(
        &mut self,
        host: Host,
        pd: Id,
        srq: Option<Id>,
        options: &QpOptions,
    ) -> Result<QpFixture, String> {
        self.try_new_qp(host, pd, srq, options)
            .map_err(super::error_line)
    }

    /// As [`CaseContext::new_qp_in_pd`], but returns a refusal.
    pub fn try_new_qp(
        &mut self,
        host: Host,
        pd: Id,
        srq: Option<Id>,
        options: &QpOptions,
    ) -> Result<QpFixture, Refusal> {
        let device = host.device;
        let mut caps = options.caps;
        if caps.max_inline == QpCaps::default().max_inline {
            // A case that asks for no certain length takes what there is.
            let most = self
                .facts(host)
                .map_err(Refusal::mistake)?
                .limits
                .max_inline;
            caps.max_inline = caps.max_inline.min(most);
        }
        let [channel, send_cq, recv_cq] = [self.new_id(), self.new_id(), self.new_id()];
        let [buffer, region, qp] = [self.new_id(), self.new_id(), self.new_id()];
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
            Call::CreateQp(QpCreateCall {
                qp,
                pd,
                qp_type: options.qp_type,
                send_cq,
                recv_cq,
                srq,
                caps,
                signal_all: options.signal_all,
            }),
        ];
        let Reply::Each(replies) = self.try_call(host.id, Call::Each(calls))? else {
            return Err(Refusal::mistake("unexpected reply"));
        };
        match &replies[..] {
            [.., Reply::No(refusal)] => Err(refusal.clone()),
            [_, Reply::Number(depth), .., Reply::Queue { caps, .. }] => Ok(QpFixture {
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
            _ => Err(Refusal::mistake("unexpected reply")),
        }
    }

    /// Connects two queue pairs, from RESET to RTS.
    pub fn connect(
        &mut self,
        a: QpFixture,
        of_a: &QpOptions,
        b: QpFixture,
        of_b: &QpOptions,
    ) -> Verdict {
        // The new PSNs are far from those of the previous connection, which may have used the same queue
        // pairs: its late packets must not be taken for answers (TimeWait in chapter 12 has this purpose).
        self.psn += 1 << 17;
        // Both must be able to receive before one may send.
        for (side, options, peer) in [(a, of_a, b), (b, of_b, a)] {
            let init = self.init_attr(options);
            let rtr = self.rtr_attr(side, options)?;
            let calls = vec![
                self.modify_call(side, init, None),
                self.modify_call(side, rtr, Some(peer)),
            ];
            self.call_ok(side.host.id, Call::Each(calls))?;
        }
        self.to_rts(a, of_a)?;
        self.to_rts(b, of_b)
    }

    fn modify_call(&self, side: QpFixture, attr: QpAttr, peer: Option<QpFixture>) -> Call {
        Call::Modify {
            qp: side.qp,
            attr,
            peer: peer.map(|peer| Peer::Of {
                host: peer.host.id,
                qp: peer.qp,
            }),
        }
    }

    /// Changes the state and attributes of a queue pair.
    pub fn modify(
        &mut self,
        side: QpFixture,
        attr: QpAttr,
        peer: Option<QpFixture>,
    ) -> Result<(), Refusal> {
        let call = self.modify_call(side, attr, peer);
        self.try_call(side.host.id, call).map(drop)
    }

    /// Returns the attributes for the transition to INIT.
    pub fn init_attr(&self, options: &QpOptions) -> QpAttr {
        QpAttr {
            state: Some(QpState::Init),
            access: Some(options.access),
            ..QpAttr::default()
        }
    }

    /// Returns the attributes for the transition from INIT to RTR.
    pub fn rtr_attr(&self, side: QpFixture, options: &QpOptions) -> Result<QpAttr, String> {
        let facts = self.facts(side.host)?;
        let most = facts.limits.max_rd_atomic;
        // A UC queue pair is refused the attributes of acknowledgements, READs and atomics.
        let is_reliable = options.qp_type.is_reliable();
        Ok(QpAttr {
            state: Some(QpState::Rtr),
            rq_psn: Some(Psn::truncated(self.psn)),
            path_mtu: Some(facts.mtu),
            max_dest_rd_atomic: is_reliable.then_some(options.max_dest_rd_atomic.unwrap_or(most)),
            min_rnr_timer: is_reliable.then_some(options.min_rnr_timer),
            ..QpAttr::default()
        })
    }

    /// Returns the attributes for the transition from RTR to RTS.
    pub fn rts_attr(&self, side: QpFixture, options: &QpOptions) -> Result<QpAttr, String> {
        let most = self.facts(side.host)?.limits.max_rd_atomic;
        let is_reliable = options.qp_type.is_reliable();
        Ok(QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::truncated(self.psn)),
            timeout: is_reliable.then_some(options.timeout),
            retry_count: is_reliable.then_some(options.retry_count),
            rnr_retry: is_reliable.then_some(options.rnr_retry),
            max_rd_atomic: is_reliable.then_some(options.max_rd_atomic.unwrap_or(most)),
            ..QpAttr::default()
        })
    }

    /// Moves a queue pair to INIT.
    pub fn to_init(&mut self, side: QpFixture, options: &QpOptions) -> Verdict {
        let attr = self.init_attr(options);
        self.modify(side, attr, None).map_err(super::error_line)
    }

    /// Moves a queue pair from INIT to RTR, connected to `peer`.
    pub fn to_rtr(&mut self, side: QpFixture, options: &QpOptions, peer: QpFixture) -> Verdict {
        let attr = self.rtr_attr(side, options)?;
        self.modify(side, attr, Some(peer))
            .map_err(super::error_line)
    }

    /// Moves a queue pair from RTR to RTS.
    pub fn to_rts(&mut self, side: QpFixture, options: &QpOptions) -> Verdict {
        let attr = self.rts_attr(side, options)?;
        self.modify(side, attr, None).map_err(super::error_line)
    }

    /// Moves a queue pair to a state that needs no attributes.
    pub fn to_state(&mut self, side: QpFixture, state: QpState) -> Verdict {
        let attr = QpAttr::to_state(state);
        self.modify(side, attr, None).map_err(super::error_line)
    }

    /// Moves a queue pair to the error state.
    pub fn to_error(&mut self, side: QpFixture) -> Verdict {
        self.to_state(side, QpState::Error)
    }

    /// Moves a queue pair to RESET.
    pub fn to_reset(&mut self, side: QpFixture) -> Verdict {
        self.to_state(side, QpState::Reset)
    }

    /// Returns the state of a queue pair.
    pub fn state(&mut self, side: QpFixture) -> Result<QpState, String> {
        match self.call_ok(side.host.id, Call::State { qp: side.qp })? {
            Reply::State(state) => Ok(state),
            other => Err(format!("instead of a state: {other:?}")),
        }
    }

    /// Destroys everything of a fixture, the queue pair first.
    pub fn destroy_qp_fixture(&mut self, side: QpFixture) -> Verdict {
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
        self.call_ok(side.host.id, Call::Each(calls)).map(drop)
    }
}

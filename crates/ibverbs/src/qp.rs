//! Queue pairs.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use headworks_verbs::{
    ModifyError, PostError, PostErrorKind, QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, QueuePair,
    RecvWr, ResourceError, SendWr, state,
};

use crate::abi;
use crate::attributes;
use crate::chain::{Receives, RecvChain, Rules, SendChain};
use crate::cq::IbvCq;
use crate::device::{Context, Pd, Ticket, refused, within};
use crate::raw::Object;
use crate::srq::IbvSrq;

/// How often a queue pair is asked for its state before the device is: that is a system call, and firmware
/// may have to answer it.
const ASKED_PER_QUERY: u32 = 64;

/// The state of a queue pair, as far as it is known: what it was moved to, and what completions and
/// asynchronous events said since.
pub(crate) struct Life {
    pub(crate) qp_type: QpType,
    state: AtomicU8,
}

impl Life {
    pub(crate) fn state(&self) -> QpState {
        QpState::from_code(self.state.load(Ordering::Acquire)).unwrap_or_default()
    }

    pub(crate) fn set(&self, state: QpState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Moved by the device itself, unless it is in RESET, where nothing of before counts.
    pub(crate) fn fail(&self, to: QpState) {
        let moves = |now| (now != QpState::Reset as u8).then_some(to as u8);
        let _ = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, moves);
    }
}

/// A queue pair of libibverbs.
pub(crate) struct IbvQp {
    sends: SendChain,
    receives: Option<RecvChain>,
    qp: Arc<Object<abi::Qp>>,
    rules: Rules,
    caps: QpCaps,
    life: Arc<Life>,
    /// How often it was asked for its state since the device was.
    asked: Cell<u32>,
    _send_cq: Arc<IbvCq>,
    _recv_cq: Arc<IbvCq>,
    _srq: Option<Arc<dyn headworks_verbs::SharedReceiveQueue>>,
    pd: Arc<Pd>,
    _ticket: Ticket,
}

impl IbvQp {
    pub(crate) fn create(pd: &Arc<Pd>, init: &QpInit) -> Result<Self, ResourceError> {
        let context = &pd.context;
        let code = match init.qp_type {
            QpType::Rc => abi::QPT_RC,
            QpType::Ud => abi::QPT_UD,
            _ => {
                let what = "queue pairs of another type than RC and UD";
                return Err(ResourceError::Unsupported { what });
            }
        };
        let mut caps = checked_caps(context, init)?;
        let send_cq = context.own_cq(&init.send_cq)?;
        let recv_cq = context.own_cq(&init.recv_cq)?;
        let srq = match &init.srq {
            None => None,
            Some(srq) => {
                let ours = srq.as_any().downcast_ref::<IbvSrq>();
                let ours = ours.filter(|ours| Arc::ptr_eq(&ours.pd.context, context));
                Some(ours.ok_or(ResourceError::Foreign("the shared receive queue"))?)
            }
        };
        let ops = context.raw.ops();
        let (Some(post_send), Some(post_recv)) = (ops.post_send, ops.post_recv) else {
            let what = "queue pairs";
            return Err(ResourceError::Unsupported { what });
        };
        let limit = context.info.limits.max_qp;
        let ticket = context.counts.qps.take("queue pairs", limit)?;
        let cqs = (&*send_cq.cq, &*recv_cq.cq);
        let shared = srq.map(|srq| &*srq.srq);
        let made = pd
            .object
            .create_qp(code, cqs, shared, &mut caps, init.signal_all);
        let qp = Arc::new(made.map_err(|error| refused("making a queue pair", error))?);
        let caps = given(init, &caps);
        let life = Arc::new(Life {
            qp_type: init.qp_type,
            state: AtomicU8::new(QpState::Reset as u8),
        });
        context.enter_qp(qp.qpn(), &life);
        let own = Receives::Own(qp.clone(), post_recv);
        let receives =
            (srq.is_none()).then(|| RecvChain::new(own, caps.max_recv_wr, caps.max_recv_sge));
        Ok(Self {
            sends: SendChain::new(qp.clone(), post_send, caps.max_send_wr),
            receives,
            rules: Rules::of(init.qp_type, &caps, context.max_message(init.qp_type)),
            qp,
            caps,
            life,
            asked: Cell::new(0),
            _send_cq: send_cq,
            _recv_cq: recv_cq,
            _srq: init.srq.clone(),
            pd: pd.clone(),
            _ticket: ticket,
        })
    }
}

fn checked_caps(context: &Context, init: &QpInit) -> Result<abi::QpCap, ResourceError> {
    let (caps, limits) = (&init.caps, &context.info.limits);
    within("send queue size", caps.max_send_wr, 0..=limits.max_qp_wr)?;
    let what = "scatter/gather entries of a send request";
    within(what, caps.max_send_sge, 0..=limits.max_sge)?;
    within("inline payload", caps.max_inline, 0..=limits.max_inline)?;
    let mut asked = abi::QpCap {
        max_send_wr: caps.max_send_wr,
        max_send_sge: caps.max_send_sge.max(1),
        max_inline_data: caps.max_inline,
        ..abi::QpCap::default()
    };
    if init.srq.is_none() {
        within("receive queue size", caps.max_recv_wr, 0..=limits.max_qp_wr)?;
        let what = "scatter/gather entries of a receive";
        within(what, caps.max_recv_sge, 0..=limits.max_sge)?;
        asked.max_recv_wr = caps.max_recv_wr;
        asked.max_recv_sge = caps.max_recv_sge.max(1);
    }
    Ok(asked)
}

/// What a queue pair got. What the device does not say is what was asked for.
fn given(init: &QpInit, got: &abi::QpCap) -> QpCaps {
    let asked = &init.caps;
    QpCaps {
        max_send_wr: got.max_send_wr.max(asked.max_send_wr),
        max_recv_wr: got.max_recv_wr.max(asked.max_recv_wr),
        max_send_sge: got.max_send_sge.max(asked.max_send_sge),
        max_recv_sge: got.max_recv_sge.max(asked.max_recv_sge),
        max_inline: got.max_inline_data.max(asked.max_inline),
    }
}

/// Why the device refused a change, in our words.
fn refusal((from, to): (QpState, QpState), error: &io::Error) -> ModifyError {
    let reason = error.to_string();
    let unreachable = [
        libc::ENETUNREACH,
        libc::EHOSTUNREACH,
        libc::EHOSTDOWN,
        libc::ETIMEDOUT,
    ];
    match error.raw_os_error() {
        Some(code) if unreachable.contains(&code) => ModifyError::PeerUnreachable {
            what: "finding the way to its address",
            reason,
        },
        _ => ModifyError::Refused { from, to, reason },
    }
}

impl IbvQp {
    /// Asks the device for the state, now and then: not every device tells of a failure that is the
    /// other end's fault (the kernel's rxe does not).
    fn ask(&self) {
        let known = self.life.state();
        if !matches!(known, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return;
        }
        let asked = self.asked.get();
        self.asked.set((asked + 1) % ASKED_PER_QUERY);
        if asked > 0 {
            return;
        }
        let now = self.qp.state().ok().and_then(|now| u8::try_from(now).ok());
        if let Some(now @ (QpState::Error | QpState::Sqe)) = now.and_then(QpState::from_code) {
            self.life.fail(now);
        }
    }
}

impl QueuePair for IbvQp {
    fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    fn state(&self) -> QpState {
        let context = &self.pd.context;
        if !context.raw.is_foreign() {
            context.pump();
            self.ask();
        }
        self.life.state()
    }

    fn caps(&self) -> &QpCaps {
        &self.caps
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        let context = &self.pd.context;
        if context.raw.is_foreign() {
            return Err(ModifyError::Forked);
        }
        attributes::check_values(attr, context.info.limits.max_rd_atomic)?;
        let from = self.state();
        let to = state::check(self.life.qp_type, from, attr)?;
        let (out, mask) = context.port.attributes(self.life.qp_type, (from, to), attr);
        let moved = self.qp.modify(out, mask);
        moved.map_err(|error| refusal((from, to), &error))?;
        self.life.set(to);
        self.asked.set(1);
        if let Some(count) = attr.max_rd_atomic {
            self.rules.may_read = count > 0;
        }
        Ok(())
    }

    fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let context = &self.pd.context;
        if context.raw.is_foreign() {
            return Err(PostErrorKind::Forked.at(0));
        }
        let state = self.life.state();
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostErrorKind::State(state).at(0));
        }
        if self.rules.qp_type == QpType::Rc {
            return self.sends.post(wrs, &self.rules, None);
        }
        let handles = context.handles.lookup(self.pd.number);
        self.sends.post(wrs, &self.rules, Some(&handles))
    }

    fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.pd.context.raw.is_foreign() {
            return Err(PostErrorKind::Forked.at(0));
        }
        let Some(receives) = &mut self.receives else {
            return Err(PostErrorKind::HasSrq.at(0));
        };
        let state = self.life.state();
        if state == QpState::Reset {
            return Err(PostErrorKind::State(state).at(0));
        }
        receives.post(wrs)
    }
}

impl Drop for IbvQp {
    fn drop(&mut self) {
        let context = &self.pd.context;
        // In a forked child the table may be locked by a thread that is not here.
        if !context.raw.is_foreign() {
            context.leave_qp(self.qp.qpn(), &self.life);
        }
    }
}

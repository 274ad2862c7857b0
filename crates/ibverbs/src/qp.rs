//! Queue pairs.

use std::io;
use std::sync::Arc;

use headworks_shm::fork::ForkGeneration;
use headworks_verbs::{
    Access, AsyncEvent, CompletionQueue, ModifyError, PostError, PostErrorKind, QpAttr, QpCaps,
    QpInit, QpState, QpType, Qpn, QueuePair, RecvWr, ResourceError, SendWr, qp_state,
};

use crate::abi;
use crate::cq::IbvCq;
use crate::device::{Context, CountTicket, Pd, coarse_ms, refused_or};
use crate::post_chain::{CachedAh, Connected, Datagrams, Receives, RecvChain, Rules, SendChain};
use crate::qp_state_cache::QpStateCache;
use crate::raw::{Object, ObjectRef};
use crate::srq::IbvSrq;
use crate::throttle::Throttle;

/// Minimum interval between queries of a queue pair's state when nothing indicates a failure. A query is a
/// system call, and firmware may have to answer it.
const QUERIES_MS: u64 = 100;

/// A queue pair of libibverbs.
pub(crate) struct IbvQp {
    sends: SendChain,
    receives: Option<RecvChain>,
    qp: Arc<Object<abi::Qp>>,
    is_ud: bool,
    named: CachedAh,
    /// Whether the state that the program moved it to allows posting sends.
    may_send: bool,
    /// Whether the state that the program moved it to allows posting receives.
    may_receive: bool,
    made_by: ForkGeneration,
    caps: QpCaps,
    life: Arc<QpStateCache>,
    /// Limits the queries of the state. `None` if the device reports each failure, so that only a suspect state is asked for.
    queries: Option<Throttle>,
    _send_cq: Arc<IbvCq>,
    _recv_cq: Arc<IbvCq>,
    _srq: Option<Arc<dyn headworks_verbs::SharedReceiveQueue>>,
    pd: Arc<Pd>,
    _ticket: CountTicket,
}

impl IbvQp {
    pub(crate) fn create(pd: &Arc<Pd>, init: &QpInit) -> Result<Self, ResourceError> {
        let context = &pd.context;
        let abilities = context.info().abilities;
        let lacks = |what| Err(ResourceError::Unsupported { what });
        let code = match init.qp_type {
            QpType::Rc => abi::QPT_RC,
            QpType::Uc if !abilities.uc => return lacks("unreliable connections (UC)"),
            QpType::Ud if !abilities.ud => return lacks("datagrams (UD)"),
            QpType::Uc => abi::QPT_UC,
            QpType::Ud => abi::QPT_UD,
            _ => {
                let what = "queue pairs of another type than RC, UC and UD";
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
        let limit = context.info().limits.max_qp;
        let ticket = context.counts.qps.take("queue pairs", limit)?;
        let cqs = (&*send_cq.cq, &*recv_cq.cq);
        let shared = srq.map(|srq| &*srq.srq);
        let made = pd
            .object
            .create_qp(code, cqs, shared, &mut caps, init.signal_all);
        let or = ", or the queues are too large together";
        let qp = made.map_err(|error| refused_or("making a queue pair", or, error))?;
        let qp = Arc::new(qp);
        let mut caps = given(
            init,
            &caps,
            &qp.caps().unwrap_or_default(),
            context.traits.inflates_sizes,
        );
        // Some devices return what was asked for, and ignore the flag of inline payloads.
        caps.max_inline = caps.max_inline.min(context.info().limits.max_inline);
        let life = Arc::new(QpStateCache::new(
            init.qp_type,
            [send_cq.id(), recv_cq.id()],
        ));
        context.enter_qp(&qp, &life);
        let mut rules = Rules::of(&caps, context.max_message(init.qp_type));
        rules.may_read(init.qp_type.is_reliable());
        let own = Receives::Own(ObjectRef::of(&qp), post_recv);
        let receives =
            (srq.is_none()).then(|| RecvChain::new(own, caps.max_recv_wr, caps.max_recv_sge));
        Ok(Self {
            sends: SendChain::new(ObjectRef::of(&qp), post_send, caps.max_send_wr, rules),
            receives,
            named: CachedAh::new(),
            is_ud: init.qp_type == QpType::Ud,
            may_send: false,
            may_receive: false,
            made_by: context.raw.made_by(),
            qp,
            caps,
            life,
            queries: (!context.traits.reports_failures).then(|| Throttle::new(QUERIES_MS)),
            _send_cq: send_cq,
            _recv_cq: recv_cq,
            _srq: init.srq.clone(),
            pd: pd.clone(),
            _ticket: ticket,
        })
    }
}

fn checked_caps(context: &Context, init: &QpInit) -> Result<abi::QpCap, ResourceError> {
    let (caps, limits) = (&init.caps, &context.info().limits);
    ResourceError::check("send queue size", caps.max_send_wr, 0..=limits.max_qp_wr)?;
    let what = "scatter/gather entries of a send request";
    ResourceError::check(what, caps.max_send_sge, 0..=limits.max_sge)?;
    ResourceError::check("inline payload", caps.max_inline, 0..=limits.max_inline)?;
    let mut asked = abi::QpCap {
        max_send_wr: caps.max_send_wr,
        max_send_sge: caps.max_send_sge.max(1),
        max_inline_data: caps.max_inline,
        ..abi::QpCap::default()
    };
    if init.srq.is_none() {
        ResourceError::check("receive queue size", caps.max_recv_wr, 0..=limits.max_qp_wr)?;
        let what = "scatter/gather entries of a receive";
        ResourceError::check(what, caps.max_recv_sge, 0..=limits.max_sge)?;
        asked.max_recv_wr = caps.max_recv_wr;
        asked.max_recv_sge = caps.max_recv_sge.max(1);
    }
    Ok(asked)
}

/// The capabilities of a queue pair: those that the device reports when asked (`said`), else those that it returned on creation
/// (`made`), else those asked for. A device reports 0 for what it does not say. Of a device that `inflates` its answers the smaller
/// counts. Sends have room for at least one entry.
fn given(init: &QpInit, made: &abi::QpCap, said: &abi::QpCap, inflates: bool) -> QpCaps {
    let size = |asked: u32, made: u32, said: u32| match (made, said) {
        (made, 0) => made.max(asked),
        (0, said) => said,
        (made, said) if inflates => made.min(said),
        (_, said) => said,
    };
    let asked = &init.caps;
    QpCaps {
        max_send_wr: size(asked.max_send_wr, made.max_send_wr, said.max_send_wr),
        max_recv_wr: size(asked.max_recv_wr, made.max_recv_wr, said.max_recv_wr),
        max_send_sge: size(
            asked.max_send_sge.max(1),
            made.max_send_sge,
            said.max_send_sge,
        ),
        max_recv_sge: size(asked.max_recv_sge, made.max_recv_sge, said.max_recv_sge),
        max_inline: size(asked.max_inline, made.max_inline_data, said.max_inline_data),
    }
}

/// Converts the device's error for a state change.
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
            what: "resolving its address",
            reason,
        },
        _ => ModifyError::Refused { from, to, reason },
    }
}

impl IbvQp {
    /// Asks the device for the state if the cached one is suspect, or if it is time to. Some devices report
    /// no failure that the peer caused (the kernel's rxe does not).
    #[inline]
    fn refresh(&self, now_ms: u64) {
        let is_due = || {
            self.queries
                .as_ref()
                .is_some_and(|queries| queries.passes(now_ms))
        };
        if self.life.is_to_be_asked(is_due) {
            self.ask();
        }
    }

    #[cold]
    fn ask(&self) {
        let now = match self.qp.state() {
            // A device that cannot be asked, such as MANA: only a failure makes a reliable connection suspect.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                let is_suspect = self.life.qp_type.is_reliable() && self.life.was_suspect();
                is_suspect.then_some(QpState::Error as u8)
            }
            now => now.ok().and_then(|now| u8::try_from(now).ok()),
        };
        if let Some(now) = now.and_then(QpState::from_code)
            && self.life.answered(now)
        {
            let event = AsyncEvent::QpFatal(self.qpn());
            self.pd.context.tell(event);
        }
    }

    /// Changes state and attributes. If they include a destination, `way` (if given) replaces the path to
    /// `attr.dest_gid`.
    pub(crate) fn modify_by(
        &mut self,
        way: Option<abi::AhAttr>,
        attr: &QpAttr,
    ) -> Result<(), ModifyError> {
        if self.made_by.is_foreign() {
            return Err(ModifyError::Forked);
        }
        let context = &self.pd.context;
        attr.check_values(&context.info().limits)?;
        let now_ms = coarse_ms();
        context.pump();
        self.refresh(now_ms);
        let from = self.life.state();
        let to = qp_state::check_transition(self.life.qp_type, from, attr)?;
        let port = context.port();
        port.check_way((from, to), attr)?;
        let modify = |(from, to), attr: &QpAttr| {
            let (mut out, mask) = port.attributes(self.life.qp_type, (from, to), attr);
            if let Some(way) = way {
                // The connection manager says 0 if nobody has asked for a class. Then the administrator's holds.
                let class = out.ah_attr.grh.traffic_class;
                out.ah_attr = way;
                if way.grh.traffic_class == 0 {
                    out.ah_attr.grh.traffic_class = class;
                }
            }
            self.qp.modify(out, mask)
        };
        let modified = match (from, to) {
            // This is the one transition to ERR that the kernel rejects, for every driver.
            (QpState::Reset, QpState::Error) => {
                let is_ud = self.life.qp_type == QpType::Ud;
                let init = QpAttr {
                    access: (!is_ud).then_some(Access::NONE),
                    qkey: is_ud.then_some(0),
                    ..QpAttr::to_state(QpState::Init)
                };
                modify((from, QpState::Init), &init)
                    .and_then(|()| modify((QpState::Init, to), attr))
            }
            transition => modify(transition, attr),
        };
        if let Err(error) = modified {
            // The queue pair may be in another state than the cached one.
            self.life.doubt();
            return Err(refusal((from, to), &error));
        }
        self.life.moved((from, to));
        if to == QpState::Init {
            self.life.uses_port(port.version);
        }
        // The device need not be asked for a state that it just entered.
        if let Some(queries) = &self.queries {
            queries.close(now_ms);
        }
        self.may_receive = to != QpState::Reset;
        self.may_send = self.may_receive && !matches!(to, QpState::Init | QpState::Rtr);
        if let Some(count) = attr.max_rd_atomic {
            self.sends.rules.may_read(count > 0);
        }
        Ok(())
    }

    #[inline(always)]
    fn post_datagrams(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let handles = self.pd.context.handles.lookup(self.pd.number);
        let to = Datagrams::to(handles, &mut self.named, wrs);
        self.sends.post(wrs, to)
    }

    /// The state, if it is one in which nothing may be sent yet. If the device has moved the queue pair to
    /// ERR, posting is allowed, and the request is flushed.
    #[cold]
    fn sends_too_early(&self) -> Option<QpState> {
        match self.life.state() {
            state @ (QpState::Reset | QpState::Init | QpState::Rtr) => Some(state),
            _ => None,
        }
    }
}

impl QueuePair for IbvQp {
    fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    fn state(&self) -> QpState {
        if !self.made_by.is_foreign() {
            let now_ms = coarse_ms();
            self.pd.context.glance(now_ms);
            // Rings ask for the state only while no completion arrives, so the device may be asked for its tables here.
            self.pd.context.settle_port();
            self.refresh(now_ms);
        }
        self.life.state()
    }

    fn caps(&self) -> &QpCaps {
        &self.caps
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        self.modify_by(None, attr)
    }

    fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if self.made_by.is_foreign() {
            return Err(PostErrorKind::Forked.at(0));
        }
        if !self.may_send
            && let Some(state) = self.sends_too_early()
        {
            return Err(PostErrorKind::State(state).at(0));
        }
        if self.is_ud {
            return self.post_datagrams(wrs);
        }
        self.sends.post(wrs, Connected)
    }

    fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.made_by.is_foreign() {
            return Err(PostErrorKind::Forked.at(0));
        }
        let Some(receives) = &mut self.receives else {
            return Err(PostErrorKind::HasSrq.at(0));
        };
        if !self.may_receive {
            return Err(PostErrorKind::State(QpState::Reset).at(0));
        }
        receives.post(wrs)
    }

    fn as_any_mut(&mut self) -> Option<&mut dyn std::any::Any> {
        Some(self)
    }
}

impl Drop for IbvQp {
    fn drop(&mut self) {
        // In a forked child, a thread that does not exist there may hold the table's lock.
        if !self.made_by.is_foreign() {
            self.pd.context.leave_qp(self.qp.qpn(), &self.life);
        }
    }
}

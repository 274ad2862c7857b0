//! Sending datagrams. A UD queue pair has no connection; it caches the path to each recent destination.
//! A datagram is sent within the posting call; it waits only while its queue pair is drained.
//!
//! An error on this side ends the request and stops the send queue (SQE). An error on the other side
//! (no such queue pair, another Q_Key, no receive) loses the datagram silently: the request completes
//! when the datagram has been sent.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use headworks_shm::HostKey;
use headworks_verbs::{
    Access, AhInit, Destination, Duration, GRH_BYTES, Grh, Instant, Opcode, Payload, SendOp, Status,
};

use super::deliver::ReceiveClaim;
use super::engine::{Outcome, Request};
use super::{QpCore, RemoteQp};
use crate::crash_points;
use crate::datapath::copy::Span;
use crate::datapath::cross_process_copy::Direction;
use crate::datapath::datagram_senders::Registration;
use crate::datapath::mr_key_check::MrKeyCheck;
use crate::datapath::remote_memory::{RemoteSpan, transfer};
use crate::table::addresses::{DEFAULT_HOST, PeerKey, gid_of, host_of, ipv4_gid, is_ipv4, key_of};
use crate::table::clock;
use crate::table::peer::Peer;
use crate::table::rows::{CqSlot, GRH, IPV4_HEADER, MAX_SGE};

/// Maximum number of destinations whose path a queue pair caches.
pub(crate) const LINKS_MAX: usize = 256;
/// How long a destination that was not found is not looked for again.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// The cached paths to a queue pair's latest destinations.
#[derive(Default)]
pub(crate) struct Datagrams {
    ways: HashMap<(u64, u32), DatagramPath>,
    /// The keys of `ways`, oldest first.
    ages: VecDeque<(u64, u32)>,
    /// Our sender row in each context that the paths lead to.
    targets: HashMap<PeerKey, Arc<Registration>>,
    /// Destinations that were not found, and when to look for them again.
    nowhere: HashMap<(u64, u32), Instant>,
    /// The context's count of deaths when dead destinations were last removed.
    deaths: u64,
    /// The warning about datagrams longer than the MTU was logged.
    warned: bool,
}

/// The path to one queue pair.
struct DatagramPath {
    remote_qp: RemoteQp,
    registration: Arc<Registration>,
    remote_keys: MrKeyCheck,
}

/// A datagram to be delivered.
struct Datagram<'a> {
    /// The GRH, then the payload.
    spans: &'a [Span],
    len: u64,
    qkey: u32,
    imm: Option<u32>,
    from: u32,
    solicited: bool,
    /// Kind of its header: a value of [`CqSlot::header`].
    header: u8,
}

impl Datagram<'_> {
    /// Copies the datagram into a receive of `peer`. The error is the receive's status: memory that is
    /// registered and not mapped, or cannot be reached, is treated like a wrong key.
    fn place(&self, peer: &Peer, receive: &[RemoteSpan]) -> Result<(), Status> {
        let (way, len) = (Direction::Place, self.len as usize);
        let mut placed = 0;
        match transfer(way, peer, self.spans, receive, &mut placed, len) {
            Ok(()) if placed == self.len => Ok(()),
            _ => Err(Status::LocalProtection),
        }
    }
}

impl Datagrams {
    /// Sends the datagram that `request` describes. With `is_lost` it is checked like any other, and then
    /// dropped.
    pub(crate) fn send(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        is_lost: bool,
        local: &mut MrKeyCheck,
    ) -> Outcome {
        let (to, imm) = match request.op {
            SendOp::SendTo(to) => (to, None),
            SendOp::SendToImm(to, imm) => (to, Some(imm)),
            _ => return Outcome::Failed(Status::LocalQpOperation),
        };
        let Some(ah) = core.context.handles.get(to.ah, core.pd) else {
            return Outcome::Failed(Status::LocalQpOperation);
        };
        // C10-93.1.1: no packet of a message longer than the port's MTU is sent, and that is no error.
        // Users do not expect that, so it is logged.
        if request.len > u64::from(core.context.info.mtu.bytes()) {
            if !std::mem::replace(&mut self.warned, true) {
                let len = request.len;
                tracing::warn!(len, "datagrams longer than the MTU are not sent");
            }
            return Outcome::Done;
        }
        let (header, kind) = Self::header(core, &ah, request.len, imm.is_some());
        let mut spans = [Span::EMPTY; MAX_SGE + 1];
        spans[0] = Span::of_inline(&header);
        let count = match request.payload {
            Payload::Inline(bytes) => {
                spans[1] = Span::of_inline(bytes);
                1
            }
            Payload::Gather(sges) => {
                let rest = &mut spans[1..];
                if local
                    .list(&core.context.own, core.pd, sges, Access::NONE, rest)
                    .is_err()
                {
                    return Outcome::Failed(Status::LocalProtection);
                }
                sges.len()
            }
        };
        // If the highest bit is set, the queue pair's own Q_Key is sent (10.2.5).
        let qkey = match to.qkey >> 31 {
            0 => to.qkey,
            _ => core.row().qkey.load(Ordering::Relaxed),
        };
        let datagram = Datagram {
            spans: &spans[..=count],
            len: GRH_BYTES as u64 + request.len,
            qkey,
            imm,
            from: core.qpn,
            solicited: request.solicited,
            header: kind,
        };
        if !is_lost {
            self.carry(core, &ah, to, &datagram);
        }
        Outcome::Done
    }

    /// Delivers a datagram to its destination, or loses it.
    fn carry(&mut self, core: &QpCore, ah: &AhInit, to: Destination, datagram: &Datagram<'_>) {
        let host = host_of(ah.dgid);
        // Not the address of a soft host: a multicast group, for example.
        if gid_of(HostKey(host)) != ah.dgid && !is_ipv4(ah.dgid) {
            return;
        }
        self.forget_the_dead(core);
        let key = (host, to.qpn.raw());
        if self
            .ways
            .get_mut(&key)
            .is_some_and(|way| way.carry(datagram))
        {
            return;
        }
        self.forget(key);
        // A failed search costs system calls.
        let now = clock::now();
        if self.nowhere.get(&key).is_some_and(|again| now < *again) {
            return;
        }
        if let Some(mut way) = self.find(core, key) {
            self.nowhere.remove(&key);
            way.carry(datagram);
            self.remember(key, way);
        } else {
            if self.nowhere.len() >= LINKS_MAX {
                self.nowhere.clear();
            }
            self.nowhere.insert(key, now + LOOK_AGAIN);
        }
        self.leave_unused(core);
    }

    /// Returns the path to a queue pair, if that exists.
    fn find(&mut self, core: &QpCore, (host, qpn): (u64, u32)) -> Option<DatagramPath> {
        let at = key_of(host, qpn);
        let way = |registration: &Arc<Registration>| {
            let remote_qp = RemoteQp::to_datagrams(&registration.target, qpn)?;
            Some(DatagramPath {
                remote_qp,
                registration: registration.clone(),
                remote_keys: MrKeyCheck::default(),
            })
        };
        let usable = |known: &&Arc<Registration>| known.is_held() && !known.target.is_dead();
        if let Some(known) = self.targets.get(&at).filter(usable)
            && let Some(found) = way(known)
        {
            return Some(found);
        }
        let target = core.context.peers.hold(host, qpn).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot reach a peer");
            None
        })?;
        if let Some(known) = self.targets.get(&at).filter(usable)
            && Arc::ptr_eq(&known.target, &target)
        {
            return way(known);
        }
        // Look first: a sender row in a context without such a queue pair would be wasted.
        RemoteQp::to_datagrams(&target, qpn)?;
        let registration = Arc::new(Registration::enter(&core.context.own, target)?);
        let found = way(&registration);
        self.targets.insert(at, registration);
        found
    }

    fn remember(&mut self, key: (u64, u32), way: DatagramPath) {
        while self.ways.len() >= LINKS_MAX
            && let Some(oldest) = self.ages.pop_front()
        {
            self.ways.remove(&oldest);
        }
        self.ways.insert(key, way);
        self.ages.push_back(key);
    }

    fn forget(&mut self, key: (u64, u32)) {
        if self.ways.remove(&key).is_some() {
            self.ages.retain(|known| *known != key);
        }
    }

    /// Drops the paths to contexts that died.
    fn forget_the_dead(&mut self, core: &QpCore) {
        let deaths = core.context.progress.deaths();
        if self.deaths == deaths {
            return;
        }
        self.deaths = deaths;
        self.ways.retain(|_, way| way.is_open());
        let ways = &self.ways;
        self.ages.retain(|key| ways.contains_key(key));
        self.leave_unused(core);
    }

    /// Drops the sender rows in contexts that no path leads to.
    fn leave_unused(&mut self, core: &QpCore) {
        let before = self.targets.len();
        self.targets.retain(|_, known| Arc::strong_count(known) > 1);
        if self.targets.len() < before {
            core.context.progress.kick();
        }
    }

    /// Returns the header in front of a datagram, and its kind. Between IPv4 addresses it is an IPv4 header.
    fn header(core: &QpCore, ah: &AhInit, len: u64, has_imm: bool) -> ([u8; GRH_BYTES], u8) {
        let info = &core.context.info;
        if is_ipv4(ah.dgid)
            && let Some(sgid) = ipv4_gid(info.name.name().unwrap_or(DEFAULT_HOST))
            && let Some(header) = Grh::of_datagram(ah, sgid, len, has_imm).emit_ipv4()
        {
            return (header, IPV4_HEADER);
        }
        let header = Grh::of_datagram(ah, info.gid, len, has_imm);
        (header.emit(), GRH)
    }

    #[cfg(test)]
    pub(crate) fn remembered(&self) -> (usize, usize) {
        (self.ways.len(), self.targets.len())
    }
}

impl DatagramPath {
    fn is_open(&self) -> bool {
        self.registration.is_held() && !self.remote_qp.peer.is_dead() && self.remote_qp.is_up()
    }

    /// Delivers a datagram to the queue pair, or loses it there. `false` if the queue pair is gone.
    fn carry(&mut self, datagram: &Datagram<'_>) -> bool {
        let Self {
            remote_qp,
            remote_keys,
            ..
        } = self;
        let registration = self.registration.clone();
        let _delivering = registration.deliver(remote_qp.full_fences);
        if !(registration.is_held() && !remote_qp.peer.is_dead() && remote_qp.is_up()) {
            return false;
        }
        if remote_qp.row().qkey.load(Ordering::Relaxed) != datagram.qkey {
            return true;
        }
        let Some(claim) =
            ReceiveClaim::take_fitting(remote_qp, remote_keys, registration.who, datagram.len)
        else {
            return true;
        };
        crash_points::at("claimed");
        let mut receive = [RemoteSpan::EMPTY; MAX_SGE];
        let placed = claim
            .spans(remote_qp, remote_keys, datagram.len, &mut receive)
            .map_err(|(_, status)| status)
            .and_then(|count| datagram.place(&remote_qp.peer, &receive[..count]));
        let slot = match placed {
            Ok(()) => CqSlot {
                byte_len: datagram.len as u32,
                imm: datagram.imm.unwrap_or_default(),
                has_imm: datagram.imm.is_some().into(),
                header: datagram.header,
                src_qpn: datagram.from,
                opcode: Opcode::Recv as u8,
                ..claim.slot(remote_qp, Status::Success)
            },
            // The receiver's own fault, which fails its queue pair. Only the sender that failed it reports
            // the error: a receive that another sender held by then is flushed like the rest.
            Err(Status::LocalProtection) if !remote_qp.fail_peer() => {
                claim.slot(remote_qp, Status::Flushed)
            }
            // Too short a receive of an SRQ is not fatal: class E of the responder's errors (9.9.3) ends
            // the receive only.
            Err(status) => claim.slot(remote_qp, status),
        };
        claim.complete_datagram(remote_qp, registration.as_ref(), slot, datagram.solicited);
        true
    }
}

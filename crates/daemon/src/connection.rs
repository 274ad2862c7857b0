//! An end of a connection: its two halves, and its life.
//!
//! An end is over when nothing more is sent for it and no request of this host touches the other's memory for it:
//! then it says so ([`Kind::Closed`]). Its own memory is used again when the other end has said the same, or when
//! the queue pairs that could reach it are gone, and when its application has no more use for it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use headworks_client::{ContractError, ControlBlock, Extent, Outcome, Reset, Status, Vqpn};

use crate::daemon::WatchId;
use crate::egress::{EgressHalf, PiggybackInfo, SendStep};
use crate::exports::Exports;
use crate::frame::{Header, Kind, OFFER, RING, Remote};
use crate::ingress::IngressHalf;
use crate::limits::DaemonLimits;
use crate::memory::Memory;
use crate::qp_group::{QpGroup, QpRole};
use crate::send_queue::OnCompletion;

/// Where it is and whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionOwner {
    /// The link, by its number; `None` once that is gone.
    pub(crate) link: Option<usize>,
    /// The session, by its number.
    pub(crate) session: usize,
    /// What the application calls it.
    pub(crate) handle: u32,
    /// The words that it shares with the application.
    pub(crate) block: Extent,
    /// This end's address and port.
    pub(crate) local: SocketAddr,
    /// Address and port of the other end.
    pub(crate) peer: SocketAddr,
}

/// What happened to an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EndState {
    /// The application has no more use for it.
    is_left: bool,
    /// It left something unread, or it was given up: the peer is told by a reset.
    is_lost: bool,
    is_end_sent: bool,
    reset: Option<Reset>,
    is_reset_due: bool,
    is_closed_sent: bool,
    is_closed_heard: bool,
    /// Whether it stands in its link's queue for control frames.
    is_queued: bool,
    /// There is no other end: it goes once no request of this side's is under way.
    is_refused: bool,
}

/// An end of a connection.
pub(crate) struct Connection {
    pub(crate) number: Vqpn,
    /// The other end's number, once that is known.
    pub(crate) remote: Option<Vqpn>,
    pub(crate) place: ConnectionOwner,
    block: ControlBlock,
    pub(crate) outlet: EgressHalf,
    pub(crate) inlet: IngressHalf,
    /// What was READ and the peer is to be told of: where in the stream, and how much.
    pub(crate) fetched: VecDeque<(u64, u32)>,
    /// Memory that the peer may use.
    pub(crate) exports: Exports,
    /// What became of atomics that the peer asked for: which, and what was there before.
    pub(crate) answers: VecDeque<(u64, Outcome, u64)>,
    /// The descriptor by which the application is told of it, instead of by packets.
    pub(crate) watch: Option<WatchId>,
    life: EndState,
    rung: NotifiedState,
}

/// What its application's bells were last rung for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NotifiedState {
    come: u64,
    status: Status,
    released: u64,
    rings: u64,
    operations: u64,
}

impl Connection {
    pub(crate) fn new(
        number: Vqpn,
        place: ConnectionOwner,
        block: ControlBlock,
        outlet: EgressHalf,
        inlet: IngressHalf,
    ) -> Self {
        Self {
            number,
            remote: None,
            place,
            block,
            outlet,
            inlet,
            fetched: VecDeque::new(),
            exports: Exports::default(),
            answers: VecDeque::new(),
            watch: None,
            life: EndState::default(),
            rung: NotifiedState::default(),
        }
    }

    /// Hints that it will be looked after soon: see [`prefetch_object`](headworks_shm::ordered_copy::prefetch_object), which comes before.
    #[inline]
    pub(crate) fn expect(&self) {
        self.block.expect();
        self.outlet.expect();
    }

    /// The other end is there: its number and its first ring.
    pub(crate) fn connect(&mut self, remote: Vqpn, ring: Remote) {
        self.remote = Some(remote);
        self.outlet.connect(ring);
    }

    /// Whether it still sends and receives.
    pub(crate) fn is_alive(&self) -> bool {
        self.life.reset.is_none()
    }

    /// Whether the application has no more use for it.
    pub(crate) fn is_left(&self) -> bool {
        self.life.is_left
    }

    fn status(&self) -> Status {
        Status {
            is_ended: self.inlet.is_complete(),
            reset: self.life.reset,
        }
    }

    /// Says to the application what there is to say.
    fn tell_application(&self) {
        self.block.set_status(self.status());
    }

    /// Whether the application waits for something to come, and for room, and is to be woken since there is some.
    pub(crate) fn ring_bells(&mut self) -> (bool, bool) {
        if self.life.is_left {
            return (false, false);
        }
        let now = NotifiedState {
            come: self.inlet.come(),
            status: self.status(),
            released: self.outlet.released(),
            rings: self.outlet.rings(),
            operations: self.outlet.operations_done(),
        };
        let before = std::mem::replace(&mut self.rung, now);
        let has_ended = now.status != before.status;
        let has_more = now.come != before.come || has_ended;
        let has_room = now.released != before.released
            || now.rings != before.rings
            || now.operations != before.operations
            || has_ended;
        (
            has_more && self.block.bell().notify(false),
            has_room && self.block.room_bell().notify(false),
        )
    }

    /// The application may have armed its bell for room after there was some: it is rung for that again.
    pub(crate) fn offer_room(&mut self) {
        if self.outlet.has_room() {
            self.rung.released = u64::MAX;
        }
    }

    /// Something more can be read.
    pub(crate) fn came(&mut self) {
        if self.inlet.is_complete() {
            self.tell_application();
        }
    }

    /// The peer's stream ends here.
    pub(crate) fn ended(&mut self, at: u64) -> bool {
        let ended = self.inlet.end(at).is_ok();
        self.came();
        ended
    }

    /// The connection is no more. The peer is told, unless it said so itself.
    pub(crate) fn reset(&mut self, why: Reset, is_peer_told: bool) {
        if self.life.reset.is_some() {
            return;
        }
        self.life.reset = Some(why);
        self.life.is_reset_due = !is_peer_told;
        self.tell_application();
    }

    /// The application has no more use for it. Where it gives it up, nothing more is sent.
    pub(crate) fn leave(&mut self, gives_up: bool) {
        self.life.is_left = true;
        let has_unread = self.inlet.look().is_err() || self.inlet.has_unread();
        self.life.is_lost = has_unread || !self.inlet.is_idle();
        self.inlet.discard();
        if gives_up {
            self.reset(Reset::ByPeer, false);
        }
    }

    /// Something comes although the application has no more use for it. The peer is told once all that was written here
    /// has gone; until then what comes is discarded, since who sends it may read nothing before it could.
    pub(crate) fn comes_late(&mut self) {
        self.life.is_lost = true;
    }

    /// Whether all that was written here has gone, with its end.
    pub(crate) fn is_all_said(&self) -> bool {
        self.life.is_end_sent && self.outlet.is_settled()
    }

    /// There is no other end, and this one goes: at once, or when what was asked for before has come.
    pub(crate) fn refuse(&mut self) {
        self.leave(true);
        self.life.is_reset_due = false;
        self.life.is_refused = true;
    }

    /// Whether there is no other end and nothing reaches its memory for this one, so that it can go.
    pub(crate) fn is_refused(&self) -> bool {
        self.life.is_refused && self.outlet.is_idle() && self.inlet.is_idle()
    }

    /// The other end is no more, and never was on this link.
    pub(crate) fn miss(&mut self) {
        self.reset(Reset::Unreachable, true);
        self.closed();
    }

    /// Its link is gone, and with it all that was under way.
    pub(crate) fn cut(&mut self, why: Reset) {
        self.reset(why, true);
        self.place.link = None;
        self.life.is_reset_due = false;
        self.life.is_queued = false;
        self.outlet.abandon();
        self.inlet.abandon();
    }

    /// The other end is over.
    pub(crate) fn closed(&mut self) {
        if std::mem::replace(&mut self.life.is_closed_heard, true) {
            return;
        }
        self.outlet.windows.close();
        self.outlet.withdraw();
        self.settle();
    }

    /// What was written is the application's again once nobody touches it.
    pub(crate) fn settle(&mut self) {
        if self.is_alive() || !self.is_untouched() {
            return;
        }
        // What was offered after the other end had said that it is over is not READ either.
        self.outlet.withdraw();
        if self.outlet.is_settled() {
            self.outlet.abandon();
        }
    }

    /// Whether the other end touches no memory of this one any more.
    pub(crate) fn is_untouched(&self) -> bool {
        self.life.is_closed_heard || self.place.link.is_none()
    }

    /// Whether nothing of it is needed any more.
    pub(crate) fn is_over(&self) -> bool {
        let is_closed = self.life.is_closed_sent && self.life.is_closed_heard;
        self.life.is_left && (is_closed || self.place.link.is_none())
    }

    /// All memory that it has.
    pub(crate) fn memory(&self) -> Vec<Extent> {
        let halves = self.outlet.memory().chain(self.inlet.memory());
        halves.chain([self.place.block]).collect()
    }

    fn is_window_due(&self) -> bool {
        self.is_alive() && self.inlet.is_to_tell()
    }

    fn is_end_due(&self) -> bool {
        self.is_alive() && !self.life.is_end_sent && self.outlet.end().is_some()
    }

    /// Whether it may say that it is over.
    fn is_closed_due(&self) -> bool {
        let is_done = match self.life.reset {
            Some(_) => !self.life.is_reset_due,
            None => {
                let is_all_said = self.life.is_end_sent
                    && self.fetched.is_empty()
                    && self.answers.is_empty()
                    && !self.has_memory_news();
                self.life.is_left && is_all_said && self.outlet.is_settled()
            }
        };
        is_done && !self.life.is_closed_sent && self.outlet.is_idle() && self.inlet.is_idle()
    }

    /// A window that the peer wants back, and that nothing uses any more.
    fn unused_window(&self) -> Option<u32> {
        let windows = &self.outlet.windows;
        windows.unused(|window| self.outlet.uses(window))
    }

    /// Whether the peer is to be told of memory, or to have some back.
    fn has_memory_news(&self) -> bool {
        self.exports.has_news() || self.unused_window().is_some()
    }

    /// Whether it has a control frame to send.
    fn has_control(&self) -> bool {
        self.remote.is_some()
            && (self.life.is_reset_due
                || (self.is_alive() && !self.fetched.is_empty())
                || (self.is_alive() && (!self.answers.is_empty() || self.has_memory_news()))
                || self.is_window_due()
                || self.is_end_due()
                || self.is_closed_due())
    }

    /// Puts it into its link's queue, if it has a control frame to send and is not there.
    pub(crate) fn queue(&mut self, link: &mut QpGroup) {
        // What was left unread is told of when everything else is done.
        if self.life.is_lost && self.is_all_said() {
            self.life.is_lost = false;
            self.reset(Reset::ByPeer, false);
        }
        if !self.life.is_queued && self.has_control() {
            self.life.is_queued = true;
            link.control.push_back(self.number);
        }
    }

    /// Sends a control frame, for which there is room and credit, and stands in the queue again if there is more.
    pub(crate) fn control(&mut self, memory: &Memory, link: &mut QpGroup, load: u8) {
        self.life.is_queued = false;
        let Some(to) = self.remote.filter(|_| self.has_control()) else {
            return;
        };
        let (mut body, mut then) = (0, OnCompletion::Nothing);
        let of = |kind| Header {
            load,
            ..Header::of(kind)
        };
        let header = if self.life.is_reset_due {
            self.life.is_reset_due = false;
            let why = match self.life.reset {
                Some(Reset::Misuse | Reset::ByPeer) | None => Reset::ByPeer,
                Some(why) => why,
            };
            Header {
                code: why as u8,
                ..of(Kind::Reset)
            }
        } else if let Some((at, len)) = self.fetched.pop_front().filter(|_| self.is_alive()) {
            Header {
                at,
                len,
                ..of(Kind::Fetched)
            }
        } else if let Some((at, outcome, before)) =
            self.answers.pop_front().filter(|_| self.is_alive())
        {
            Header {
                at,
                code: outcome as u8,
                window: before,
                ..of(Kind::Answer)
            }
        } else if let Some((window, extent, rights)) =
            self.exports.next_news().filter(|_| self.is_alive())
        {
            let (view, at, _) = link.body();
            let written = view.write(at, &memory.remote(extent).emit_offer());
            debug_assert_eq!(written, Ok(()));
            body = OFFER;
            then = OnCompletion::Exported(self.number);
            Header {
                at: window.into(),
                code: rights.bits(),
                len: extent.len,
                ..of(Kind::Export)
            }
        } else if let Some(window) = self.exports.next_wanted().filter(|_| self.is_alive()) {
            Header {
                at: window.into(),
                ..of(Kind::Revoke)
            }
        } else if let Some(window) = self.unused_window().filter(|_| self.is_alive()) {
            self.outlet.windows.give_back(window);
            Header {
                at: window.into(),
                ..of(Kind::Revoked)
            }
        } else if self.is_window_due() {
            if let Some((ring, from)) = self.inlet.ring_news() {
                let (view, at, _) = link.body();
                let ring = memory.remote(ring).emit_ring(from);
                let written = view.write(at, &ring);
                debug_assert_eq!(written, Ok(()));
                body = RING;
            }
            Header {
                len: body as u32,
                window: self.inlet.tell(),
                ..of(Kind::Window)
            }
        } else if let Some(at) = self.outlet.end().filter(|_| self.is_end_due()) {
            self.life.is_end_sent = true;
            Header {
                at,
                ..of(Kind::End)
            }
        } else if self.is_closed_due() {
            self.life.is_closed_sent = true;
            of(Kind::Closed)
        } else {
            return;
        };
        link.send(QpRole::Frames, to, header, body, then);
        self.queue(link);
    }

    /// Takes a turn at sending data.
    pub(crate) fn turn(
        &mut self,
        memory: &mut Memory,
        link: &mut QpGroup,
        load: u8,
        config: &DaemonLimits,
    ) -> Result<SendStep, ContractError> {
        let Some(to) = self.remote.filter(|_| self.is_alive()) else {
            return Ok(SendStep::Nothing);
        };
        if self.life.is_left && self.outlet.end().is_some() {
            // What an application writes after it has left is nobody's.
            return Ok(SendStep::Nothing);
        }
        let window = self.inlet.window();
        let aside = PiggybackInfo { window, load };
        let turn = self
            .outlet
            .turn(self.number, to, memory, link, aside, config)?;
        match turn {
            SendStep::Framed(_) => drop(self.inlet.tell()),
            SendStep::Nothing if self.life.is_left && self.outlet.is_drained() => {
                self.outlet.end_here();
            }
            _ => {}
        }
        if !self.life.is_left {
            self.outlet.grow(memory, config.ring_max);
        }
        Ok(turn)
    }
}

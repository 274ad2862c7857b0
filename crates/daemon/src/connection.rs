//! One end of a connection: its sending half, its receiving half, and its lifecycle.
//!
//! An end is over when it sends nothing more and no request of this host touches the peer's memory for it. It
//! then sends [`Kind::Closed`]. Its own memory is used again once two things hold: the peer has sent the
//! same, or the queue pairs that could reach the memory are gone; and the application has closed the
//! connection.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use headworks_client::{ContractError, ControlBlock, Extent, Outcome, Reset, Status, Vqpn};
use headworks_shm::{EventCount, EventCountRef, WakeBy};

use crate::control::PlaceId;
use crate::copy_log::CopyLog;
use crate::egress::{EgressHalf, PiggybackInfo, SendStep};
use crate::exports::Exports;
use crate::frame::{Header, Kind, MEMORY};
use crate::ids::WatchId;
use crate::ingress::IngressHalf;
use crate::limits::DaemonLimits;
use crate::pair_memory::PairMemory;
use crate::qp_group::{QpGroup, QpRole};
use crate::send_queue::OnCompletion;
use crate::session_memory::SessionMemory;

/// Where a connection belongs: its queue-pair group, session, control block and addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionOwner {
    /// Index of its queue-pair group; `None` once the group has failed.
    pub(crate) group: Option<usize>,
    /// Index of its session.
    pub(crate) session: usize,
    /// The application's handle for it.
    pub(crate) handle: u32,
    /// Its control block.
    pub(crate) block: Extent,
    /// This end's address and port.
    pub(crate) local: SocketAddr,
    /// Address and port of the other end.
    pub(crate) peer: SocketAddr,
}

/// Use of an end by its application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Use {
    /// The application has the end open.
    #[default]
    Open,
    /// The application has closed the end or exited.
    Left,
    /// As [`Use::Left`], data for the end was not read, and the application has not ended the stream. A reset tells the peer in
    /// place of the end of the stream, once everything written here has arrived: a peer that was told of the end might not
    /// see the reset behind it.
    LeftUnread,
    /// As [`Use::Left`], and data came later, or was not read after the application had ended the stream, or the application
    /// is gone. A reset tells the peer after the end of the stream.
    LeftLate,
}

/// Progress of this end in ending the stream that it sends: the last frame of these that it has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Sent {
    /// Data, or nothing.
    #[default]
    Data,
    /// The end of the stream.
    End,
    /// [`Kind::Closed`].
    Closed,
}

/// Reset of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ResetState {
    #[default]
    None,
    /// The connection is reset, and a frame is to tell the peer.
    Due(Reset),
    /// The connection is reset. The peer knows, or is not told.
    Done(Reset),
}

impl ResetState {
    const fn reason(self) -> Option<Reset> {
        match self {
            Self::None => None,
            Self::Due(why) | Self::Done(why) => Some(why),
        }
    }

    /// Ends a reset that is due.
    fn settle(&mut self) {
        if let Self::Due(why) = *self {
            *self = Self::Done(why);
        }
    }
}

/// State of the peer's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PeerEnd {
    #[default]
    Open,
    /// The peer has sent [`Kind::Closed`].
    Closed,
    /// The peer has no end for this one. This end is removed once no request of this host for it is in flight.
    Refused,
}

/// State of an end's shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EndState {
    application: Use,
    sent: Sent,
    reset: ResetState,
    peer: PeerEnd,
}

/// One end of a connection.
pub(crate) struct Connection {
    pub(crate) number: Vqpn,
    /// The other end's number, once it is known.
    pub(crate) remote: Option<Vqpn>,
    pub(crate) place: ConnectionOwner,
    block: ControlBlock,
    pub(crate) egress: EgressHalf,
    pub(crate) ingress: IngressHalf,
    /// Memory that this end exports to the peer.
    pub(crate) exports: Exports,
    /// Results of atomics that the peer requested: the request's identifier, the outcome, the previous value.
    pub(crate) answers: VecDeque<(u64, Outcome, u64)>,
    /// The memory of the pair in which the application sends directly, and the connection's place there.
    pub(crate) direct: Option<(Arc<PairMemory>, PlaceId)>,
    /// The descriptor that notifies the application. If there is none, packets do.
    pub(crate) watch: Option<WatchId>,
    life: EndState,
    /// Whether [`note_reset`](Self::note_reset) has reported a reset.
    is_reset_noted: bool,
    /// Whether the connection is in its group's queue for control frames.
    is_queued: bool,
    notified: NotifiedState,
}

/// State of the connection when its application was last notified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NotifiedState {
    come: u64,
    status: Status,
    released: u64,
    rings: u64,
    operations: u64,
    moved: u32,
}

impl Connection {
    pub(crate) fn new(
        number: Vqpn,
        place: ConnectionOwner,
        block: ControlBlock,
        egress: EgressHalf,
        ingress: IngressHalf,
    ) -> Self {
        Self {
            number,
            remote: None,
            place,
            block,
            egress,
            ingress,
            exports: Exports::default(),
            answers: VecDeque::new(),
            direct: None,
            watch: None,
            life: EndState::default(),
            is_reset_noted: false,
            is_queued: false,
            notified: NotifiedState::default(),
        }
    }

    /// Serves what the application asks for on the direct path.
    pub(crate) fn serve_direct(&mut self) {
        if let Some((memory, place)) = &self.direct
            && memory.serve(*place, &self.block)
        {
            // The next notification reports it.
            self.notified.released = u64::MAX;
        }
    }

    /// Prefetches what serving the connection will touch. Before it, call
    /// [`prefetch_object`](headworks_shm::ordered_copy::prefetch_object) for the connection itself.
    #[inline]
    pub(crate) fn expect(&self) {
        self.block.expect();
        self.egress.expect();
    }

    /// Sets the other end's number and the window of its first ring.
    pub(crate) fn connect(&mut self, remote: Vqpn, window: u32) {
        self.remote = Some(remote);
        self.egress.connect(window);
    }

    /// Whether the connection still sends and receives: it was not reset.
    pub(crate) fn is_alive(&self) -> bool {
        self.life.reset == ResetState::None
    }

    /// Returns whether the connection was reset, the first time that it is called after that. A reset after both streams have
    /// ended loses nothing, and is none: the peer's application has exited.
    pub(crate) fn note_reset(&mut self) -> bool {
        let have_ended = self.ingress.is_complete() && self.life.sent >= Sent::End;
        !self.is_alive() && !std::mem::replace(&mut self.is_reset_noted, true) && !have_ended
    }

    /// Whether the application has closed the connection or exited.
    pub(crate) fn is_left(&self) -> bool {
        self.life.application != Use::Open
    }

    fn status(&self) -> Status {
        Status {
            is_ended: self.ingress.is_complete(),
            reset: self.life.reset.reason(),
        }
    }

    /// Publishes the status to the application.
    fn notify_application(&self) {
        self.block.set_status(self.status());
    }

    /// Notifies the event counts for data and for room if there is news for them since the last call. Returns
    /// for each how a waiter must be woken, if one must.
    pub(crate) fn ring_doorbells(&mut self) -> (Option<WakeBy>, Option<WakeBy>) {
        if self.is_left() {
            return (None, None);
        }
        let now = NotifiedState {
            come: self.ingress.come(),
            status: self.status(),
            released: self.egress.released(),
            rings: self.egress.rings(),
            operations: self.egress.operations_done(),
            moved: self.ingress.moved(),
        };
        let before = std::mem::replace(&mut self.notified, now);
        let has_ended = now.status != before.status;
        let has_more = now.come != before.come || now.moved != before.moved || has_ended;
        let has_room = now.released != before.released
            || now.rings != before.rings
            || now.operations != before.operations
            || has_ended;
        let notify = |event_count: &EventCount| event_count.notify_waiter();
        (
            has_more.then(|| notify(self.block.event_count())).flatten(),
            has_room
                .then(|| notify(self.block.room_event_count()))
                .flatten(),
        )
    }

    /// Returns the event count on which a thread of the application sleeps: for data, or for room if `for_room`.
    pub(crate) fn event_count(&self, for_room: bool) -> EventCountRef {
        self.block.event_count_ref(for_room)
    }

    /// If there is room, has the next notification report it again. The application may have armed its event
    /// count for room after the last one.
    pub(crate) fn offer_room(&mut self) {
        if self.egress.has_room() {
            self.notified.released = u64::MAX;
        }
    }

    /// Handles an arrival of data: publishes the status if the stream is complete.
    pub(crate) fn came(&mut self) {
        if self.ingress.is_complete() {
            self.notify_application();
        }
    }

    /// Handles the end of the peer's stream at `at`. Returns whether that position is possible.
    pub(crate) fn ended(&mut self, at: u64) -> bool {
        let ended = self.ingress.end(at).is_ok();
        self.came();
        ended
    }

    /// Resets the connection if it is not reset already. A frame tells the peer, unless the peer knows
    /// already (`is_peer_told`).
    pub(crate) fn reset(&mut self, why: Reset, is_peer_told: bool) {
        if !self.is_alive() {
            return;
        }
        self.life.reset = match is_peer_told {
            true => ResetState::Done(why),
            false => ResetState::Due(why),
        };
        self.notify_application();
    }

    /// Handles the application's close. If the application gives the connection up, nothing more is sent.
    pub(crate) fn leave(&mut self, gives_up: bool) {
        let has_unread = self.ingress.look().is_err() || self.ingress.has_unread();
        self.life.application = match has_unread || !self.ingress.is_idle() {
            true => Use::LeftUnread,
            false => Use::Left,
        };
        self.ingress.discard();
        if gives_up {
            self.reset(Reset::ByPeer, false);
        }
    }

    /// Records that data arrived after the application had closed the connection. The connection is reset once
    /// everything written here has been sent. Until then, arriving data is discarded, because the peer may
    /// not read before it could send.
    pub(crate) fn comes_late(&mut self) {
        if self.life.application == Use::Left {
            self.life.application = Use::LeftLate;
        }
    }

    /// Whether everything written here has arrived, and the end of the stream was sent, or a reset takes its place.
    pub(crate) fn is_all_delivered(&self) -> bool {
        let is_end_told = match self.life.application {
            Use::LeftUnread => self.egress.end().is_some(),
            Use::Open | Use::Left | Use::LeftLate => self.life.sent >= Sent::End,
        };
        is_end_told && self.egress.is_settled()
    }

    /// Ends this end because the peer has no end for it. It can be removed once earlier requests have
    /// completed.
    pub(crate) fn refuse(&mut self) {
        self.leave(true);
        self.direct = None;
        self.life.reset.settle();
        self.life.peer = PeerEnd::Refused;
    }

    /// Whether the peer has no end for this one and no request in flight reaches its memory, so that it can
    /// be removed.
    pub(crate) fn is_refused(&self) -> bool {
        self.life.peer == PeerEnd::Refused && self.egress.is_idle() && self.ingress.is_idle()
    }

    /// Records that the other end is gone, and never was on this queue-pair group.
    pub(crate) fn miss(&mut self) {
        // Its daemon answers, so the host can be reached.
        self.reset(Reset::ByPeer, true);
        self.closed();
    }

    /// Handles the failure of the connection's group, which ends everything in flight.
    pub(crate) fn cut(&mut self, why: Reset) {
        self.reset(why, true);
        self.place.group = None;
        self.life.reset.settle();
        self.is_queued = false;
        self.egress.abandon();
        self.ingress.abandon();
    }

    /// Handles the peer's [`Kind::Closed`].
    pub(crate) fn closed(&mut self) {
        if self.life.peer != PeerEnd::Open {
            return;
        }
        self.life.peer = PeerEnd::Closed;
        self.egress.imports.close();
        self.egress.withdraw();
        self.settle();
    }

    /// Releases written records to the application, if the connection was reset and nobody touches them any
    /// more.
    pub(crate) fn settle(&mut self) {
        if self.is_alive() || !self.is_untouched() {
            return;
        }
        // The peer does not READ transfers that were announced after its `Closed` either.
        self.egress.withdraw();
        if self.egress.is_settled() {
            self.egress.abandon();
        }
    }

    /// Whether the other end can no longer touch this end's memory.
    pub(crate) fn is_untouched(&self) -> bool {
        self.life.peer == PeerEnd::Closed || self.place.group.is_none()
    }

    /// Whether nothing of this end is needed any more.
    pub(crate) fn is_over(&self) -> bool {
        let is_closed = self.life.sent == Sent::Closed && self.life.peer == PeerEnd::Closed;
        self.is_left() && (is_closed || self.place.group.is_none())
    }

    /// Returns all memory of the connection.
    pub(crate) fn memory(&self) -> Vec<Extent> {
        let halves = self.egress.memory().chain(self.ingress.memory());
        halves.chain([self.place.block]).collect()
    }

    fn is_window_due(&self) -> bool {
        self.is_alive() && self.ingress.is_update_due()
    }

    fn is_end_due(&self) -> bool {
        self.is_alive()
            && self.life.application != Use::LeftUnread
            && self.life.sent < Sent::End
            && self.egress.end().is_some()
    }

    /// Whether a [`Kind::Closed`] may be sent.
    fn is_closed_due(&self) -> bool {
        let is_done = match self.life.reset {
            ResetState::Due(_) => false,
            ResetState::Done(_) => true,
            ResetState::None => {
                let is_all_delivered = self.life.sent >= Sent::End
                    && self.ingress.acknowledgement().is_none()
                    && self.answers.is_empty()
                    && !self.has_memory_news();
                self.is_left() && is_all_delivered && self.egress.is_settled()
            }
        };
        is_done && self.life.sent < Sent::Closed && self.egress.is_idle() && self.ingress.is_idle()
    }

    /// Returns an exported range that the peer wants back and that no operation uses any more.
    fn unused_import(&self) -> Option<u32> {
        let imports = &self.egress.imports;
        imports.unused(|export_id| self.egress.uses(export_id))
    }

    /// Whether an export or a revocation is to be announced to the peer, or exported memory can be given back.
    fn has_memory_news(&self) -> bool {
        self.exports.has_news() || self.unused_import().is_some()
    }

    /// Whether the connection has a control frame to send.
    fn has_control(&self) -> bool {
        self.remote.is_some()
            && (matches!(self.life.reset, ResetState::Due(_))
                || (self.is_alive() && self.ingress.acknowledgement().is_some())
                || (self.is_alive() && (!self.answers.is_empty() || self.has_memory_news()))
                || self.is_window_due()
                || self.is_end_due()
                || self.is_closed_due())
    }

    /// Adds the connection to its group's control queue, if it has a control frame to send and is not queued.
    pub(crate) fn queue(&mut self, group: &mut QpGroup) {
        // The peer is told of an end that the application wrote, before the reset.
        if self.life.application == Use::LeftUnread && self.egress.is_end_written() {
            self.life.application = Use::LeftLate;
        }
        // The reset for unread data is sent only when everything else is done.
        let is_reset_due = matches!(self.life.application, Use::LeftUnread | Use::LeftLate);
        if is_reset_due && self.is_all_delivered() {
            self.life.application = Use::Left;
            self.reset(Reset::ByPeer, false);
        }
        if !self.is_queued && self.has_control() {
            self.is_queued = true;
            group.control.push_back(self.number);
        }
    }

    /// Sends one control frame, and queues the connection again if it has more. The group must have room and
    /// credit.
    pub(crate) fn control(&mut self, memory: &SessionMemory, group: &mut QpGroup, is_short: bool) {
        self.is_queued = false;
        let Some(to) = self.remote.filter(|_| self.has_control()) else {
            return;
        };
        let (mut body, mut then) = (0, OnCompletion::Nothing);
        let of = |kind| Header {
            is_short,
            ..Header::of(kind)
        };
        let header = if let ResetState::Due(why) = self.life.reset {
            self.life.reset.settle();
            // The peer is not told that this application broke a rule of its own daemon.
            let why = match why {
                Reset::Misuse | Reset::Kept => Reset::ByPeer,
                why => why,
            };
            Header {
                code: why as u8,
                ..of(Kind::Reset)
            }
        } else if let Some(at) = self.ingress.acknowledgement().filter(|_| self.is_alive()) {
            self.ingress.tell_acknowledged();
            Header {
                at,
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
        } else if let Some((export_id, extent, rights)) =
            self.exports.next_news().filter(|_| self.is_alive())
        {
            let (view, at, _) = group.body();
            let written = view.write(at, &memory.remote(extent).emit_memory());
            debug_assert_eq!(written, Ok(()));
            body = MEMORY;
            then = OnCompletion::Exported(self.number);
            Header {
                at: export_id.into(),
                code: rights.bits(),
                len: extent.len,
                ..of(Kind::Export)
            }
        } else if let Some(export_id) = self.exports.next_wanted().filter(|_| self.is_alive()) {
            Header {
                at: export_id.into(),
                ..of(Kind::Revoke)
            }
        } else if let Some(export_id) = self.unused_import().filter(|_| self.is_alive()) {
            self.egress.imports.give_back(export_id);
            Header {
                at: export_id.into(),
                ..of(Kind::Revoked)
            }
        } else if self.is_window_due() {
            Header {
                window: self.ingress.tell(),
                ..of(Kind::Window)
            }
        } else if let Some(at) = self.egress.end().filter(|_| self.is_end_due()) {
            self.life.sent = Sent::End;
            Header {
                at,
                ..of(Kind::End)
            }
        } else if self.is_closed_due() {
            self.life.sent = Sent::Closed;
            of(Kind::Closed)
        } else {
            return;
        };
        group.send(QpRole::Frames, to, header, body, then);
        self.queue(group);
    }

    /// Takes a turn at sending data.
    pub(crate) fn turn(
        &mut self,
        memory: &mut SessionMemory,
        group: &mut QpGroup,
        is_short: bool,
        config: &DaemonLimits,
        copies: &mut CopyLog,
    ) -> Result<SendStep, ContractError> {
        let Some(to) = self.remote.filter(|_| self.is_alive()) else {
            return Ok(SendStep::Nothing);
        };
        if self.is_left() && self.egress.end().is_some() {
            // Records that the application writes after it has closed the connection are ignored.
            return Ok(SendStep::Nothing);
        }
        let window = self.ingress.window();
        let aside = PiggybackInfo { window, is_short };
        let turn = self
            .egress
            .turn((self.number, to), memory, group, aside, config, copies)?;
        match turn {
            SendStep::Framed(_) => drop(self.ingress.tell()),
            SendStep::Nothing if self.is_left() && self.egress.is_drained() => {
                self.egress.end_here();
            }
            _ => {}
        }
        if !self.is_left() {
            self.egress.grow(memory, config.ring_max);
        }
        Ok(turn)
    }
}

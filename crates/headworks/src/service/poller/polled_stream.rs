//! A stream as its poller knows it: what is to be reported, and what is armed.

use std::sync::Arc;

use headworks_client::connection::ConnectionShared;
use headworks_client::control_block::Arrived;
use headworks_shm::EventCount;

use super::{Interest, PollEvent, PollState};

/// A stream in a poller.
pub(super) struct PolledStream {
    pub(super) key: u64,
    pub(super) interest: Interest,
    pub(super) state: Arc<PollState>,
    pub(super) known: ConnectionShared,
    /// The sets that name it, and its number in each.
    pub(super) names: Vec<(usize, u32)>,
    pub(super) is_unsettled: bool,
    /// The received bytes and the status that the last report was about.
    pub(super) reported: Option<Arrived>,
    /// Whether room was reported since the interest was set, or since a call failed for lack of it.
    pub(super) is_room_reported: bool,
}

impl PolledStream {
    /// Returns what is to be reported now.
    pub(super) fn report(&mut self, is_gone: bool) -> Option<PollEvent> {
        let arrived = self.known.arrived();
        let is_reset = arrived.status.reset.is_some();
        // As `ReceiveHalf::needs_daemon` and `SendHalf::needs_daemon` say: the calls fail then.
        let (receives_there, sends_there) = match self.known.direct() {
            _ if !is_gone => (false, false),
            Some(direct) if direct.is_taken_by_peer() => {
                (direct.is_diverted(), direct.sends_through_daemons())
            }
            _ => (true, true),
        };
        let is_over = is_reset || receives_there;
        let is_readable = self.interest.receive && {
            let has_some = arrived.is_some || arrived.status.is_ended;
            let is_news = !self.interest.is_edge_triggered || self.reported != Some(arrived);
            (has_some || is_over) && is_news
        };
        let is_writable = self.interest.send && {
            let has_room = is_over || sends_there || self.has_room();
            has_room && !(self.interest.is_edge_triggered && self.is_room_reported)
        };
        let is_news = !self.interest.is_edge_triggered || self.reported != Some(arrived);
        let is_hung_up = is_over && is_news;
        if !(is_readable || is_writable || is_hung_up) {
            return None;
        }
        self.reported = Some(arrived);
        self.is_room_reported |= is_writable;
        Some(PollEvent {
            key: self.key,
            is_readable,
            is_writable,
            is_hung_up: is_over,
        })
    }

    /// Has everything reported again.
    pub(super) fn forget_reports(&mut self) {
        self.reported = None;
        self.is_room_reported = false;
    }

    /// Whether there is room, as far as the stream's calls have not found otherwise.
    pub(super) fn has_room(&mut self) -> bool {
        let mut blocked = self.state.blocked();
        if let Some(seen) = *blocked {
            // The next room is news, also if it was made before this look.
            self.is_room_reported = false;
            if seen == self.known.room_now() {
                return false;
            }
        }
        *blocked = None;
        true
    }

    /// Arms the event counts, so that the daemon inserts the stream into the ready set.
    pub(super) fn arm(&self) {
        // The status is reported with what arrives, so it is armed in any case.
        let count = if self.interest.send { 4 } else { 2 };
        self.event_counts()
            .take(count)
            .for_each(EventCount::arm_in_set);
    }

    /// The event counts that tell of what arrives, at the daemon and on the direct path, and then those that tell of room.
    /// Without a direct path each is there twice.
    pub(super) fn event_counts(&self) -> impl Iterator<Item = &EventCount> {
        let block = self.known.block();
        let direct = self.known.direct();
        let incoming = direct.map_or(block, |direct| direct.incoming());
        let outgoing = direct.map_or(block, |direct| direct.outgoing());
        let arrived = [block.event_count(), incoming.event_count()];
        let room = [block.room_event_count(), outgoing.room_event_count()];
        arrived.into_iter().chain(room)
    }
}

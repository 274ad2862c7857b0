//! Path of short WRITEs from the same region to the same region as those before them, posted alone or as a chain of two: what the
//! engine has cached decides, in one place and with the fewest instructions.

use std::sync::atomic::Ordering;

use headworks_shm::asymmetric_fence;
use headworks_verbs::{Access, Payload, PostError, QpCaps, RemoteAddr, SendFlags, SendOp, SendWr};

use super::engine::{Engine, WrIds};
use super::{INLINE_MAX, RemoteQp, SoftQp};
use crate::crash_points;
use crate::datapath::copy::{Span, copy_short_span, copy_span};
use crate::table::rows::{QpLife, QpRow, count};

#[cfg(test)]
std::thread_local! {
    /// Number of chains of two that took the path on this thread.
    pub(crate) static TWICE_TAKEN: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Knowledge of an engine about the peer's queue pair.
#[derive(Default)]
pub(crate) enum PeerLink {
    /// Nothing yet.
    #[default]
    None,
    /// Its rows and queues.
    Known(RemoteQp),
    /// The same, and all of this holds:
    ///
    /// - No request of the queue pair is pending. Only the posting thread makes requests pending.
    /// - The first translation on the peer's side allows WRITEs.
    /// - Asymmetric fences work, and only signalled requests complete.
    ///
    /// A call that may change one of these closes the link first.
    Open(RemoteQp),
}

impl PeerLink {
    /// Returns the peer's queue pair, if it is known.
    #[inline(always)]
    pub(super) fn get(&self) -> Option<&RemoteQp> {
        match self {
            Self::None => None,
            Self::Known(peer) | Self::Open(peer) => Some(peer),
        }
    }

    fn set_open(&mut self, is_open: bool) {
        *self = match std::mem::take(self) {
            Self::Known(peer) | Self::Open(peer) if is_open => Self::Open(peer),
            Self::Known(peer) | Self::Open(peer) => Self::Known(peer),
            Self::None => Self::None,
        };
    }
}

impl Engine {
    /// Closes the path.
    #[inline]
    pub(super) fn close_path(&mut self) {
        if let PeerLink::Open(_) = self.remote_qp {
            self.remote_qp.set_open(false);
        }
    }

    /// Opens the path if the WRITE `wr` to `remote`, which was posted alone and executed at once, can be followed by others on
    /// it.
    #[cold]
    pub(super) fn open_path(&mut self, signal_all: bool, wr: &SendWr<'_>, remote: RemoteAddr) {
        let Payload::Gather([sge]) = wr.payload else {
            return;
        };
        let is_known = self.local.first(sge.lkey, Access::NONE).is_some()
            && self
                .remote
                .first(remote.rkey, Access::REMOTE_WRITE)
                .is_some();
        if is_known && !signal_all && !self.full_fences() {
            self.remote_qp.set_open(true);
        }
    }

    /// Opens the path if the chain of two WRITEs, which was executed at once, can be followed by others on it.
    #[cold]
    pub(super) fn open_path_for_two(
        &mut self,
        signal_all: bool,
        first: &SendWr<'_>,
        last: &SendWr<'_>,
    ) {
        let is_same_source = match (&first.payload, &last.payload) {
            (Payload::Gather([one]), Payload::Gather([other])) => one.lkey == other.lkey,
            (Payload::Gather([_]), Payload::Inline(_)) => true,
            _ => false,
        };
        if let (SendOp::Write(one), SendOp::Write(other)) = (first.op, last.op)
            && is_same_source
            && one.rkey == other.rkey
        {
            self.open_path(signal_all, first, one);
        }
    }

    /// Returns where the bytes of the WRITE `wr` to `remote` go, and where they are, if it takes the open path to `peer` and can
    /// be executed now. The queue pair, whose row is `row`, is marked as executing, and its send queue has room.
    #[inline(always)]
    pub(super) fn take_path(
        &self,
        peer: &RemoteQp,
        (row, rts, caps): (&QpRow, &QpLife, &QpCaps),
        wr: &SendWr<'_>,
        remote: &RemoteAddr,
    ) -> Option<(Span, Span)> {
        if !peer.takes_writes_in_rts() || row.life() != *rts {
            return None;
        }
        self.spans_on_path(caps, wr, remote)
    }

    /// [`Engine::take_path`] for two WRITEs of at most [`INLINE_MAX`] bytes. The send queue has room for both.
    #[inline(always)]
    pub(super) fn take_path_twice(
        &self,
        peer: &RemoteQp,
        (row, rts, caps): (&QpRow, &QpLife, &QpCaps),
        [(first, first_to), (last, last_to)]: [(&SendWr<'_>, &RemoteAddr); 2],
    ) -> Option<[(Span, Span); 2]> {
        if !peer.takes_writes_in_rts() || row.life() != *rts {
            return None;
        }
        let both = [
            self.spans_on_path(caps, first, first_to)?,
            self.spans_on_path(caps, last, last_to)?,
        ];
        let are_short = both.iter().all(|(_, from)| from.len() <= INLINE_MAX);
        are_short.then_some(both)
    }

    #[inline(always)]
    fn spans_on_path(
        &self,
        caps: &QpCaps,
        wr: &SendWr<'_>,
        remote: &RemoteAddr,
    ) -> Option<(Span, Span)> {
        let from = match &wr.payload {
            Payload::Gather([sge]) => {
                self.local
                    .first_span(sge.lkey, sge.addr, sge.len as usize)?
            }
            Payload::Inline(bytes) if bytes.len() <= caps.max_inline as usize => {
                Span::of_inline(bytes)
            }
            _ => return None,
        };
        let to = self
            .remote
            .first_span(remote.rkey, remote.addr, from.len())?;
        Some((to, from))
    }
}

impl SoftQp {
    /// Posts a chain that `post` did not execute on the open path.
    #[inline(never)]
    pub(super) fn post_more(
        &mut self,
        wrs: &[SendWr<'_>],
        numbers: impl WrIds,
    ) -> Result<(), PostError> {
        match wrs {
            [first, last] if self.post_two_on_path(first, last, numbers) => Ok(()),
            _ => self.post_checked(wrs, numbers),
        }
    }

    /// Posts two WRITEs of which the first is not signalled, if they may take the path of those before them. Returns whether
    /// they did. If not, nothing was done. A ring usually publishes this way.
    #[inline(always)]
    fn post_two_on_path(
        &mut self,
        first: &SendWr<'_>,
        last: &SendWr<'_>,
        numbers: impl WrIds,
    ) -> bool {
        let (PeerLink::Open(peer), SendOp::Write(first_to), SendOp::Write(last_to)) =
            (&self.engine.remote_qp, &first.op, &last.op)
        else {
            return false;
        };
        if first.flags.contains(SendFlags::SIGNALED) || self.release.is_foreign() {
            return false;
        }
        let (row, posted) = (self.core.row(), self.posted);
        if posted + 2 > self.room_until {
            self.room_until = Self::room_of(row, posted, &self.caps);
            if posted + 2 > self.room_until {
                return false;
            }
        }
        let executing = row.executing.post(posted);
        asymmetric_fence::light_assuming_supported();
        let ours = (row, &self.rts, &self.caps);
        let Some([one, two]) =
            self.engine
                .take_path_twice(peer, ours, [(first, first_to), (last, last_to)])
        else {
            executing.end(posted);
            return false;
        };
        let mut bytes = 0;
        for (to, from) in [one, two] {
            crash_points::at("write");
            if !copy_short_span(to, from) {
                copy_span(to, from);
                to.expect_next();
            }
            bytes += from.len() as u64;
        }
        count(&row.executing.sent_bytes, bytes);
        #[cfg(test)]
        TWICE_TAKEN.with(|taken| taken.set(taken.get() + 1));
        self.posted = posted + 2;
        if last.flags.contains(SendFlags::SIGNALED) {
            self.core.complete_write(numbers.of(last), posted + 2);
        }
        executing.end(posted + 2);
        true
    }

    /// Returns the number of requests up to which the send queue has room, after `posted` ones.
    #[inline(always)]
    pub(super) fn room_of(row: &QpRow, posted: u64, caps: &QpCaps) -> u64 {
        // A peer may write nonsense to the row.
        let retired = row.sq_retired.load(Ordering::Relaxed).min(posted);
        retired + u64::from(caps.max_send_wr)
    }
}

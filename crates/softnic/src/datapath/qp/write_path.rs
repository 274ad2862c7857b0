//! Path of a short WRITE that is posted alone, from the same region to the same region as the one before it: what the engine has
//! cached decides, in one place and with the fewest instructions.

use headworks_verbs::{Access, Payload, QpCaps, RemoteAddr, SendWr};

use super::RemoteQp;
use super::engine::Engine;
use crate::datapath::copy::Span;
use crate::table::rows::{QpLife, QpRow};

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

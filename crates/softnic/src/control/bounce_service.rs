//! Serves the calls that peers put into their bounce buffers. Runs in the progress thread.

use std::sync::atomic::Ordering;

use headworks_verbs::QpState;

use crate::crash_points;
use crate::datapath::bounce::{ServedBounceBuffer, ServedQp};
use crate::datapath::context::Context;
use crate::datapath::qp::{QpCore, QueuePairs};
use crate::table::addresses::slot_of;

/// Serves the calls of the queue pairs that are marked in the table.
pub(crate) fn serve(context: &Context, queue_pairs: &QueuePairs) {
    context.table.attention().calls.take(|slot| {
        if let Some(core) = queue_pairs.get(slot) {
            serve_one(context, &core);
        }
    });
}

/// Serves the call of the peer that `core` is connected to, if there is one. Meanwhile no region is
/// deregistered, and no queue pair passes `QpCore::quiesce`.
fn serve_one(context: &Context, core: &QpCore) -> Option<()> {
    let peer = core.peer()?;
    let ours = core.row();
    let target = ServedQp {
        row: ours,
        pd: core.pd,
        receives_pd: core.srq.as_ref().map_or(core.pd, |srq| srq.pd),
        areas: context.local_mrs.lock(),
    };
    let serving = ours.executing.serve();
    let dest = ours.dest_qpn.load(Ordering::Relaxed);
    let slot = slot_of(dest);
    let theirs = peer.table.qp(slot);
    let is_up = core.state().can_receive()
        && matches!(theirs.life().state(), QpState::Rts | QpState::Sqd)
        && theirs.sends_to(core);
    if !is_up {
        return None;
    }
    let served = ServedBounceBuffer::open(&peer, peer.table.bounce_buffer(slot), &target)?;
    let number = served.carry_out()?;
    drop(serving);
    tracing::trace!(number, "served a call");
    crash_points::at("answered");
    peer.kick();
    Some(())
}

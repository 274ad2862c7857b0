//! The queue pairs that have work to do, in the order of their turns.

use std::collections::VecDeque;

use super::qp_slots::{QpFlags, QpSendState};

/// The slots of queue pairs that have waiting requests.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Queue pairs with requests to post, the next one first. Each is here once, and has the flag
    /// [`IN_ROW`](QpFlags::IN_ROW). Every queue pair with waiting requests is here unless it is broken; one that
    /// broke while it was here leaves at its turn.
    pub(super) waiting: VecDeque<u32>,
    /// Queue pairs with requests to flush. Each is here once, and has the flag [`BROKEN`](QpFlags::BROKEN).
    pub(super) broken: VecDeque<u32>,
}

impl Turns {
    /// Whether no queue pair has a turn.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.broken.is_empty()
    }

    /// Gives a queue pair a turn after the others.
    pub(super) fn enqueue(&mut self, slot: u32, sending: &mut QpSendState) {
        if !sending.is(QpFlags::IN_ROW) {
            sending.set(QpFlags::IN_ROW, true);
            self.waiting.push_back(slot);
        }
    }

    /// Marks a queue pair as broken, so that its waiting requests are flushed.
    pub(super) fn mark_broken(&mut self, slot: u32, sending: &mut QpSendState) {
        if !sending.is(QpFlags::BROKEN) {
            sending.set(QpFlags::BROKEN, true);
            self.broken.push_back(slot);
        }
    }

    /// Marks a queue pair as broken no longer: nothing is left to flush.
    pub(super) fn mark_whole(&mut self, slot: u32, sending: &mut QpSendState) {
        sending.set(QpFlags::BROKEN, false);
        self.broken.retain(|other| *other != slot);
    }

    /// Removes a queue pair whose requests are dropped.
    pub(super) fn forget(&mut self, slot: u32, sending: &mut QpSendState) {
        self.mark_whole(slot, sending);
        sending.set(QpFlags::IN_ROW, false);
        self.waiting.retain(|other| *other != slot);
    }
}

//! What is known of a queue pair's state between asking the device for it: pure.
//!
//! Completions and asynchronous events say that something failed, and they may be late: what is still in
//! a CQ or in the device's queue of events when a queue pair is reset is of its life before. So what they
//! say holds where it can be of no other life, and otherwise makes the queue pair *suspect*: whoever wants
//! to know its state next asks the device.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use headworks_verbs::{CqId, QpState, QpType, Status};

/// Beside the state: it was reset, so there was a life before.
const WAS_RESET: u8 = 0x80;

/// What a queue pair was moved to, and what was heard since.
pub(crate) struct QpStateCache {
    pub(crate) qp_type: QpType,
    /// Where it completes.
    cqs: [CqId; 2],
    word: AtomicU8,
    is_suspect: AtomicBool,
    /// The program was told of its failure, in this life.
    is_told: AtomicBool,
}

/// What a queue pair in `now` becomes by a failure that leads to `to`, if that is anything else.
fn fails(now: QpState, to: QpState) -> Option<QpState> {
    match (now, to) {
        // Nothing of before counts, and nothing can be worse.
        (QpState::Reset | QpState::Error, _) => None,
        (QpState::Rts | QpState::Sqd, QpState::Sqe) => Some(QpState::Sqe),
        (_, QpState::Error) => Some(QpState::Error),
        _ => None,
    }
}

impl QpStateCache {
    /// Of a queue pair that was just made and completes on these.
    pub(crate) const fn new(qp_type: QpType, cqs: [CqId; 2]) -> Self {
        Self {
            qp_type,
            cqs,
            word: AtomicU8::new(QpState::Reset as u8),
            is_suspect: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        QpState::from_code(self.word.load(Relaxed) & !WAS_RESET).unwrap_or_default()
    }

    pub(crate) fn completes_on(&self, cq: CqId) -> bool {
        self.cqs.contains(&cq)
    }

    /// Changes the state as `change` says, who is told of it and of whether it was ever reset. Whether
    /// it changed.
    fn update(&self, change: impl Fn(QpState, bool) -> Option<QpState>) -> bool {
        let changed = |word: u8| {
            let state = QpState::from_code(word & !WAS_RESET).unwrap_or_default();
            let to = change(state, word & WAS_RESET != 0)?;
            Some(to as u8 | word & WAS_RESET)
        };
        self.word.fetch_update(Relaxed, Relaxed, changed).is_ok()
    }

    /// The program moved it, by a change that the device made.
    pub(crate) fn moved(&self, (from, to): (QpState, QpState)) {
        match to {
            QpState::Reset => {
                self.word.store(to as u8 | WAS_RESET, Relaxed);
                self.is_suspect.store(false, Relaxed);
                self.is_told.store(false, Relaxed);
            }
            QpState::Error => {
                self.update(|_, _| Some(to));
            }
            // It may have failed meanwhile.
            _ => {
                self.update(|now, _| (now == from).then_some(to));
            }
        }
    }

    /// Something speaks against what is known of it.
    pub(crate) fn doubt(&self) {
        self.is_suspect.store(true, Relaxed);
    }

    /// A request of it failed with `status`.
    pub(crate) fn request_failed(&self, status: Status) {
        // A flush says of no life which, since numbers are used again. Of datagrams a failure to send
        // leads to SQE and one to receive to ERROR (InfiniBand specification, section 10.3.1), and the
        // completion of neither says which it was.
        let is_certain = self.qp_type == QpType::Rc && status != Status::Flushed;
        let fails = |now, was_reset: bool| fails(now, QpState::Error).filter(|_| !was_reset);
        if !is_certain || !self.update(fails) {
            self.doubt();
        }
    }

    /// The device told that it failed. Whether the program is to hear of it, which it has not yet.
    pub(crate) fn device_told(&self) -> bool {
        if !self.update(|now, was_reset| fails(now, QpState::Error).filter(|_| !was_reset)) {
            self.doubt();
        }
        !self.is_told.swap(true, Relaxed)
    }

    /// What it cannot do without is broken: its CQ, its device.
    pub(crate) fn is_lost(&self) {
        self.update(|now, _| fails(now, QpState::Error));
    }

    /// Whether the device is to be asked for the state: it is suspect, which it is no longer then, or
    /// `may_ask` and in a state in which it can fail by itself.
    #[inline]
    pub(crate) fn is_to_be_asked(&self, may_ask: impl FnOnce() -> bool) -> bool {
        match self.state() {
            QpState::Reset | QpState::Error => false,
            _ if self.is_suspect.load(Relaxed) => self.is_suspect.swap(false, Relaxed),
            QpState::Rtr | QpState::Rts | QpState::Sqd => may_ask(),
            QpState::Init | QpState::Sqe => false,
        }
    }

    /// The device was asked and says `now`. Whether the program is to hear of a failure that nothing has
    /// told it of.
    pub(crate) fn answered(&self, now: QpState) -> bool {
        match now {
            QpState::Error => {
                self.update(|known, _| fails(known, now)) && !self.is_told.swap(true, Relaxed)
            }
            QpState::Sqe => {
                self.update(|known, _| fails(known, now));
                false
            }
            // What it was told of was of the life before.
            _ => {
                self.is_told.store(false, Relaxed);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};

    /// A queue pair that went this way.
    fn through(qp_type: QpType, way: &[QpState]) -> QpStateCache {
        let life = QpStateCache::new(qp_type, [CqId(1), CqId(2)]);
        for &to in way {
            life.moved((life.state(), to));
            assert_eq!(life.state(), to);
        }
        life
    }

    #[test]
    fn a_connection_that_was_never_reset_is_in_error_as_soon_as_a_request_failed() {
        let life = through(QpType::Rc, &[Init, Rtr, Rts]);
        life.request_failed(Status::RemoteAccess);
        assert_eq!(life.state(), Error);
        // Nobody has to be asked any more.
        assert!(!life.is_to_be_asked(|| true));
    }

    #[test]
    fn a_failure_that_may_be_of_another_life_is_asked_for_once() {
        let again = [Init, Rtr, Rts, Reset, Init];
        for (qp_type, way, status) in [
            (QpType::Rc, &again[..], Status::RetryExceeded),
            (QpType::Rc, &again[..], Status::Flushed),
            (QpType::Rc, &again[..1], Status::Flushed),
            (QpType::Ud, &again[..3], Status::LocalProtection),
        ] {
            let life = through(qp_type, way);
            let before = life.state();
            life.request_failed(status);
            assert_eq!(life.state(), before);
            assert!(life.is_to_be_asked(|| false));
            assert!(!life.is_to_be_asked(|| false));
        }
        let life = through(QpType::Rc, &again);
        assert!(life.device_told());
        assert_eq!(life.state(), Init);
        assert!(life.is_to_be_asked(|| false));
        // It was of the life before: a failure of this one is news.
        assert!(!life.answered(Init));
        life.moved((Init, Rtr));
        assert!(life.device_told());
    }

    #[test]
    fn in_reset_nothing_counts_and_leaving_it_forgets() {
        let life = through(QpType::Rc, &[Init, Rtr, Rts]);
        life.request_failed(Status::Flushed);
        life.moved((Rts, Reset));
        assert!(!life.is_to_be_asked(|| true));
        life.is_lost();
        assert_eq!(life.state(), Reset);
        life.moved((Reset, Init));
        assert!(!life.is_to_be_asked(|| true));
    }

    #[test]
    fn the_program_is_told_of_a_failure_once() {
        let life = through(QpType::Rc, &[Init, Rtr, Rts]);
        assert!(life.answered(Error));
        assert!(!life.device_told() && !life.answered(Error));
        let life = through(QpType::Rc, &[Init, Rtr, Rts]);
        assert!(life.device_told());
        assert!(!life.device_told() && !life.answered(Error));
        // It knows of what it did itself, and of what a completion said.
        let life = through(QpType::Rc, &[Init, Error]);
        assert!(!life.answered(Error));
        let life = through(QpType::Rc, &[Init, Rtr, Rts]);
        life.request_failed(Status::RemoteAccess);
        assert!(!life.answered(Error));
    }

    #[test]
    fn the_send_queue_alone_may_fail_and_be_mended() {
        let life = through(QpType::Ud, &[Init, Rtr, Rts]);
        assert!(!life.answered(Sqe));
        assert_eq!(life.state(), Sqe);
        life.moved((Sqe, Rts));
        assert_eq!(life.state(), Rts);
        assert!(life.answered(Error));
        assert!(!life.answered(Sqe));
        assert_eq!(life.state(), Error);
    }

    #[test]
    fn a_failure_is_not_lost_to_a_move_at_the_same_time() {
        let life = through(QpType::Rc, &[Init, Rtr, Rts]);
        life.request_failed(Status::RetryExceeded);
        life.moved((Rts, Sqd));
        assert_eq!(life.state(), Error);
        life.moved((Error, Reset));
        assert_eq!(life.state(), Reset);
    }

    #[test]
    fn the_device_is_asked_now_and_then_where_it_may_fail_unheard() {
        for (way, is_asked) in [
            (&[][..], false),
            (&[Init], false),
            (&[Init, Rtr], true),
            (&[Init, Rtr, Rts], true),
            (&[Init, Rtr, Rts, Sqd], true),
            (&[Error], false),
        ] {
            let life = through(QpType::Rc, way);
            assert_eq!(life.is_to_be_asked(|| true), is_asked, "{way:?}");
            assert!(!life.is_to_be_asked(|| false), "{way:?}");
        }
    }
}

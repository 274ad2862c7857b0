//! Cached state of a queue pair, used between queries of the device: pure.
//!
//! Completions and asynchronous events report failures, possibly late: those that are still in a CQ or in the
//! device's event queue when a queue pair is reset are from before the reset. A report changes the cached
//! state only if it cannot be from before a reset. Otherwise it marks the queue pair as *suspect*, and the
//! next call that needs the state asks the device.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

use headworks_verbs::{CqId, QpState, QpType, Status};

/// Bit beside the state: the queue pair was reset, so a report may be from before that.
const WAS_RESET: u8 = 0x80;

/// The state that a queue pair was moved to, and what was reported since.
pub(crate) struct QpStateCache {
    pub(crate) qp_type: QpType,
    /// CQs of its send and receive queue.
    cqs: [CqId; 2],
    word: AtomicU8,
    is_suspect: AtomicBool,
    /// Whether the last question was asked because the queue pair was suspect.
    was_suspect: AtomicBool,
    /// Whether the program was told of its failure since the last reset.
    is_told: AtomicBool,
    /// [Version of the port](crate::attributes::Port::version) with which it was moved to INIT.
    port_version: AtomicU64,
}

/// State of a queue pair in `now` after a failure that leads to `to`; `None` if it does not change.
fn fails(now: QpState, to: QpState) -> Option<QpState> {
    match (now, to) {
        // In RESET old failures do not count, and ERROR cannot get worse.
        (QpState::Reset | QpState::Error, _) => None,
        (QpState::Rts | QpState::Sqd, QpState::Sqe) => Some(QpState::Sqe),
        (_, QpState::Error) => Some(QpState::Error),
        _ => None,
    }
}

impl QpStateCache {
    /// Cached state of a queue pair that was just created, with its CQs.
    pub(crate) const fn new(qp_type: QpType, cqs: [CqId; 2]) -> Self {
        Self {
            qp_type,
            cqs,
            word: AtomicU8::new(QpState::Reset as u8),
            is_suspect: AtomicBool::new(false),
            was_suspect: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            port_version: AtomicU64::new(0),
        }
    }

    /// Records that the queue pair was moved to INIT with this version of the port.
    pub(crate) fn uses_port(&self, version: u64) {
        self.port_version.store(version, Relaxed);
    }

    /// Whether it has a peer, or will have one, by the port as it was before `version`.
    pub(crate) fn is_of_port_before(&self, version: u64) -> bool {
        let is_in_use = !matches!(self.state(), QpState::Reset | QpState::Error);
        is_in_use && self.qp_type.is_connected() && self.port_version.load(Relaxed) < version
    }

    /// Records that it was ended. Returns whether to tell the program: it was not told yet.
    pub(crate) fn end(&self) -> bool {
        self.is_lost();
        !self.is_told.swap(true, Relaxed)
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        QpState::from_code(self.word.load(Relaxed) & !WAS_RESET).unwrap_or_default()
    }

    pub(crate) fn completes_on(&self, cq: CqId) -> bool {
        self.cqs.contains(&cq)
    }

    /// Replaces the state by what `change` returns for it and for whether the queue pair was ever reset.
    /// Returns whether the state changed.
    fn update(&self, change: impl Fn(QpState, bool) -> Option<QpState>) -> bool {
        let changed = |word: u8| {
            let state = QpState::from_code(word & !WAS_RESET).unwrap_or_default();
            let to = change(state, word & WAS_RESET != 0)?;
            Some(to as u8 | word & WAS_RESET)
        };
        self.word.fetch_update(Relaxed, Relaxed, changed).is_ok()
    }

    /// Records that the program moved the queue pair, after the device did so.
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
            // The queue pair may have failed meanwhile; that state stays.
            _ => {
                self.update(|now, _| (now == from).then_some(to));
            }
        }
    }

    /// Marks the queue pair as suspect: its cached state may be wrong.
    pub(crate) fn doubt(&self) {
        self.is_suspect.store(true, Relaxed);
    }

    /// Records that a request of the queue pair completed with the error `status`.
    pub(crate) fn request_failed(&self, status: Status) {
        // A flush may be from before a reset, or from another queue pair of the same number. On a UC or UD queue
        // pair, a failed send leads to SQE and a failed receive to ERROR (InfiniBand specification, section
        // 10.3.1), and a failed completion does not say which of the two it is.
        let is_certain = self.qp_type.is_reliable() && status != Status::Flushed;
        let fails = |now, was_reset: bool| fails(now, QpState::Error).filter(|_| !was_reset);
        if !is_certain || !self.update(fails) {
            self.doubt();
        }
    }

    /// Records an event of failure from the device. Returns whether to pass it on: the program was not told
    /// yet.
    pub(crate) fn record_device_failure(&self) -> bool {
        if !self.update(|now, was_reset| fails(now, QpState::Error).filter(|_| !was_reset)) {
            self.doubt();
        }
        !self.is_told.swap(true, Relaxed)
    }

    /// Records that the queue pair's CQ or device is broken.
    pub(crate) fn is_lost(&self) {
        self.update(|now, _| fails(now, QpState::Error));
    }

    /// Returns whether to ask the device for the state: if the queue pair is suspect, which this clears, or
    /// if `may_ask` agrees and the state is one in which it can fail by itself.
    #[inline]
    pub(crate) fn is_to_be_asked(&self, may_ask: impl FnOnce() -> bool) -> bool {
        match self.state() {
            QpState::Reset | QpState::Error => false,
            _ if self.is_suspect.load(Relaxed) => {
                self.was_suspect.store(true, Relaxed);
                self.is_suspect.swap(false, Relaxed)
            }
            QpState::Rtr | QpState::Rts | QpState::Sqd => may_ask(),
            QpState::Init | QpState::Sqe => false,
        }
    }

    /// Returns whether the last question was asked because the queue pair was suspect, once.
    pub(crate) fn was_suspect(&self) -> bool {
        self.was_suspect.swap(false, Relaxed)
    }

    /// Records that the device, when asked, reported `now`. Returns whether to tell the program of a failure
    /// that nothing has told it of.
    pub(crate) fn answered(&self, now: QpState) -> bool {
        match now {
            QpState::Error => {
                self.update(|known, _| fails(known, now)) && !self.is_told.swap(true, Relaxed)
            }
            QpState::Sqe => {
                self.update(|known, _| fails(known, now));
                false
            }
            // The failure that the program was told of was from before a reset.
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

    /// The cached state of a queue pair that was moved through these states.
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
        // The device need not be asked any more.
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
        assert!(life.record_device_failure());
        assert_eq!(life.state(), Init);
        assert!(life.is_to_be_asked(|| false));
        // That event was from before the reset, so a new failure is passed on.
        assert!(!life.answered(Init));
        life.moved((Init, Rtr));
        assert!(life.record_device_failure());
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
    fn a_failure_is_reported_to_the_program_once() {
        let life = through(QpType::Rc, &[Init, Rtr, Rts]);
        assert!(life.answered(Error));
        assert!(!life.record_device_failure() && !life.answered(Error));
        let life = through(QpType::Rc, &[Init, Rtr, Rts]);
        assert!(life.record_device_failure());
        assert!(!life.record_device_failure() && !life.answered(Error));
        // The program knows what it did itself and what a completion reported.
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

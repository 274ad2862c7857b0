//! Logs rejected callers at a limited rate, because anybody can call a network address.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use headworks_verbs::{Duration, Instant};

/// Shortest time between two lines of a kind.
const INTERVAL: Duration = Duration::from_secs(10);

/// Kinds of rejected callers. Each has a rate limit of its own, so that many silent callers hide no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The caller said nothing, like a port scanner.
    Silent,
    /// The caller said something, and did not become the other side.
    Failed,
}

/// Logs rejected callers: at most one line of each kind per [`INTERVAL`], with the number of callers that were
/// left out since the line before. When it is dropped, it logs how many were left out since the last lines.
#[derive(Debug, Default)]
pub(crate) struct RejectionLog(Mutex<[RateLimit; 2]>);

#[derive(Clone, Copy, Debug, Default)]
struct RateLimit {
    last: Option<Instant>,
    left_out: u64,
}

impl RateLimit {
    /// Decides about a line. Returns `None` if it is left out, otherwise how many were left out before it.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.since(last) < INTERVAL) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

impl RejectionLog {
    /// Logs a rejected caller. `name` is the address that it called.
    pub(crate) fn log(
        &self,
        kind: Rejection,
        now: Instant,
        name: &str,
        caller: Option<IpAddr>,
        error: &dyn Display,
    ) {
        let due = self.limits()[kind as usize].due(now);
        let caller = describe_caller(caller);
        match due {
            None => tracing::debug!(%error, caller, name, "turned a caller away"),
            Some(0) => tracing::warn!(%error, caller, name, "turned a caller away"),
            Some(others) => tracing::warn!(
                %error, caller, name, others,
                "turned a caller away, and others since the last line like this"
            ),
        }
    }

    fn limits(&self) -> MutexGuard<'_, [RateLimit; 2]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many callers were left out since the last lines.
    fn left_out(&self) -> u64 {
        self.limits().iter().map(|limit| limit.left_out).sum()
    }
}

impl Drop for RejectionLog {
    fn drop(&mut self) {
        let others = self.left_out();
        if others > 0 {
            tracing::warn!(others, "turned more callers away");
        }
    }
}

/// Formats a caller's address for people.
fn describe_caller(caller: Option<IpAddr>) -> String {
    caller.map_or_else(|| "unknown".to_owned(), |caller| caller.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_silent_callers_make_one_line_and_hide_no_other() {
        let log = RejectionLog::default();
        let due = |kind: Rejection, now| log.limits()[kind as usize].due(now);
        let began = Instant::from_nanos(77);
        assert_eq!(due(Rejection::Silent, began), Some(0));
        let last = began + Duration::from_nanos(INTERVAL.nanos() - 1);
        for now in [began, last, last] {
            assert_eq!(due(Rejection::Silent, now), None);
        }
        assert_eq!(due(Rejection::Failed, last), Some(0));
        assert_eq!(log.left_out(), 3);
        assert_eq!(due(Rejection::Silent, began + INTERVAL), Some(3));
        assert_eq!(log.left_out(), 0);
    }
}

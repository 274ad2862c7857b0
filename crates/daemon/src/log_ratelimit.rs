//! Rate limiter for log lines that others can provoke: a few lines of a kind pass per interval, and the
//! others are counted.
//!
//! Otherwise, an application or another daemon that repeats an error would fill the operator's disk and hide
//! every other line. A *kind* is whatever distinguishes lines, mostly the place in the code that logs them.

use std::collections::HashMap;
use std::hash::Hash;

use headworks_verbs::{Duration, Instant};

/// Most lines of a kind per [`WHILE`].
pub const LINES: u32 = 5;
/// Length of the interval, which begins with its first line.
pub const WHILE: Duration = Duration::from_secs(10);

/// State of each kind. There must be few kinds, because none is ever removed.
#[derive(Debug)]
pub struct LogRateLimit<K> {
    kinds: HashMap<K, LineKind>,
}

#[derive(Debug)]
struct LineKind {
    since: Instant,
    said: u32,
    unsaid: u64,
}

impl<K: Eq + Hash> LogRateLimit<K> {
    /// Decides about a line of this kind. Returns `None` if it is suppressed, otherwise how many were
    /// suppressed before it.
    pub fn due(&mut self, kind: K, now: Instant) -> Option<u64> {
        let new = LineKind {
            since: now,
            said: 0,
            unsaid: 0,
        };
        let kind = self.kinds.entry(kind).or_insert(new);
        if now.since(kind.since) >= WHILE {
            (kind.since, kind.said) = (now, 0);
        }
        if kind.said == LINES {
            kind.unsaid += 1;
            return None;
        }
        kind.said += 1;
        Some(std::mem::take(&mut kind.unsaid))
    }
}

impl<K> Default for LogRateLimit<K> {
    fn default() -> Self {
        Self {
            kinds: HashMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_lines_are_limited_per_kind_and_counted() {
        let mut seldom = LogRateLimit::default();
        let began = Instant::from_nanos(77);
        for _ in 0..LINES {
            assert_eq!(seldom.due("one", began), Some(0));
        }
        let last = began + Duration::from_nanos(WHILE.nanos() - 1);
        for now in [began, began, last] {
            assert_eq!(seldom.due("one", now), None);
        }
        // Another kind is not affected.
        assert_eq!(seldom.due("another", last), Some(0));
        assert_eq!(seldom.due("one", began + WHILE), Some(3));
        for _ in 1..LINES {
            assert_eq!(seldom.due("one", began + WHILE), Some(0));
        }
        assert_eq!(seldom.due("one", began + WHILE), None);
        // A clock that goes back allows no more lines than one that stands still.
        assert_eq!(seldom.due("one", began), None);
    }

    #[test]
    fn infrequent_lines_are_all_logged() {
        let mut seldom = LogRateLimit::default();
        let between = Duration::from_secs(3);
        let mut now = Instant::ZERO;
        for _ in 0..100 {
            assert_eq!(seldom.due((), now), Some(0));
            now += between;
        }
    }
}

//! Rates between two snapshots.

use std::collections::HashMap;
use std::time::Duration;

use headworks::inspect::{ContextSnapshot, ProcessId, QueuePairSnapshot, RegistrySnapshot};

/// Unique key of a queue pair: incarnation of its context, its process, its number.
pub(super) type Key = (u64, ProcessId, u32);

/// Requests and bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    pub(super) requests: f64,
    pub(super) bytes: f64,
}

impl std::ops::AddAssign for Rate {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
    }
}

/// Rates of all queue pairs in the later of two snapshots, including those that are not in the earlier one.
pub(super) struct Rates(HashMap<Key, Rate>);

impl Rates {
    pub(super) fn between(
        earlier: &RegistrySnapshot,
        later: &RegistrySnapshot,
        time: Duration,
    ) -> Self {
        let counts = |snapshot: &RegistrySnapshot| -> HashMap<Key, (u64, u64)> {
            let each = snapshot.contexts.iter().flat_map(|context| {
                let pairs = context.queue_pairs.iter();
                pairs.map(move |qp| (key(context, qp), traffic_of(qp)))
            });
            each.collect()
        };
        let (before, seconds) = (counts(earlier), time.as_secs_f64().max(1e-9));
        let rate = |(key, (requests, bytes)): (Key, (u64, u64))| {
            let (then, bytes_then) = before.get(&key).copied().unwrap_or_default();
            let rate = Rate {
                requests: requests.saturating_sub(then) as f64 / seconds,
                bytes: bytes.saturating_sub(bytes_then) as f64 / seconds,
            };
            (key, rate)
        };
        Self(counts(later).into_iter().map(rate).collect())
    }

    pub(super) fn of(&self, context: &ContextSnapshot, qp: &QueuePairSnapshot) -> Rate {
        let key = key(context, qp);
        self.0.get(&key).copied().unwrap_or_default()
    }

    pub(super) fn of_all(&self, context: &ContextSnapshot) -> Rate {
        let mut sum = Rate::default();
        for qp in &context.queue_pairs {
            sum += self.of(context, qp);
        }
        sum
    }
}

fn key(context: &ContextSnapshot, qp: &QueuePairSnapshot) -> Key {
    (context.incarnation, context.process, qp.qpn)
}

/// Returns the number of requests posted and of bytes that they moved.
pub(super) fn traffic_of(qp: &QueuePairSnapshot) -> (u64, u64) {
    let counters = &qp.counters;
    let bytes = counters.sent_bytes.saturating_add(counters.read_bytes);
    (counters.sends_posted, bytes)
}

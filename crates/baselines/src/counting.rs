//! A device wrapper that counts posted requests and polled completions, whatever runs on the device.
//!
//! It produces the counts by which the RB² paper's Table I compares designs. Counting costs time, so
//! timings are never taken on a counted device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_verbs::interpose::{InterposedDevice, Interposer};
use headworks_verbs::{Device, RemoteAddr, SendOp, SendWr};
use serde::{Deserialize, Serialize};

/// Bytes of a cache line.
const LINE: u64 = 64;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Numbers of requests posted and completions polled.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counts {
            /// Returns the difference to the earlier counts `before`.
            pub fn since(self, before: Self) -> Self {
                Self { $($name: self.$name - before.$name,)* }
            }
        }

        /// The counters of a device.
        #[derive(Debug, Default)]
        pub struct Tally {
            $($name: AtomicU64,)*
        }

        impl Tally {
            /// Returns the counts so far.
            pub fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counts! {
    /// Chains of send requests, each of which rings one doorbell.
    doorbells,
    /// WRITEs, including those with immediate.
    writes,
    /// WRITEs with immediate.
    immediates,
    /// READs.
    reads,
    /// Payload bytes of all WRITEs.
    bytes,
    /// Cache lines that the WRITEs touch at the target. A line counts once for every WRITE that touches it.
    lines,
    /// Completions polled.
    completions,
    /// Receives posted.
    receives,
}

/// Wraps `device` in a counter. Returns the wrapped device and its counters.
pub fn counted(device: Arc<dyn Device>) -> (Arc<dyn Device>, Arc<Tally>) {
    let tally = Arc::new(Tally::default());
    (
        Arc::new(InterposedDevice::new(device, tally.clone())),
        tally,
    )
}

/// Adds to a counter. Relaxed suffices: counters order no other memory accesses.
fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Interposer for Tally {
    fn on_send_posted(&self, posted: &[SendWr<'_>]) {
        add(&self.doorbells, 1);
        for wr in posted {
            let to = match wr.op {
                SendOp::Write(to) => to,
                SendOp::WriteImm(to, _) => {
                    add(&self.immediates, 1);
                    to
                }
                SendOp::Read(_) => {
                    add(&self.reads, 1);
                    continue;
                }
                _ => continue,
            };
            add(&self.writes, 1);
            add(&self.bytes, wr.payload.len());
            add(&self.lines, lines(to, wr.payload.len()));
        }
    }

    fn on_receives_posted(&self, posted: usize) {
        add(&self.receives, posted as u64);
    }

    fn on_polled(&self, count: usize) {
        add(&self.completions, count as u64);
    }
}

/// Returns the number of cache lines that `len` bytes at `to` touch.
fn lines(to: RemoteAddr, len: u64) -> u64 {
    match len {
        0 => 0,
        _ => (to.addr.wrapping_add(len - 1)) / LINE - to.addr / LINE + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_where_the_bytes_lie() {
        let at = |addr| RemoteAddr { addr, rkey: 0 };
        assert_eq!(lines(at(0), 0), 0);
        assert_eq!(lines(at(0), 64), 1);
        assert_eq!(lines(at(8), 64), 2);
        assert_eq!(lines(at(63), 2), 2);
        assert_eq!(lines(at(40), 128), 3);
    }
}

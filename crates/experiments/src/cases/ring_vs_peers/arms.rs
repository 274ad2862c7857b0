//! The arms: names, descriptions, and which of them carry what.

use crate::outcome::ArmNote;
use crate::transports::job::{Buffering, Channel, RingMode, Transport, Waiting};

/// The ring's size in slots, by default and for the cache-resident points.
pub(super) const SLOTS: [usize; 2] = [128, 4];

/// What is measured by the parts of this program.
pub(super) fn channels() -> Vec<Channel> {
    let mut all = vec![
        Channel::Bare,
        Channel::Ring(RingMode::Default),
        Channel::Ring(RingMode::Unbatched),
        Channel::Ring(RingMode::Latency),
    ];
    for transport in [Transport::Unix, Transport::Pipe, Transport::Tcp] {
        for buffering in [Buffering::None, Buffering::Buffered] {
            for waiting in [Waiting::Spinning, Waiting::Blocking] {
                all.push(Channel::Stream(transport, waiting, buffering));
            }
        }
    }
    all
}

/// An arm's name in the points.
pub(super) fn name(channel: Channel) -> String {
    channel.name()
}

/// Whether gathering messages in the application makes a difference at `size`.
pub(super) fn sensible(channel: Channel, size: usize) -> bool {
    size <= 4096 || !matches!(channel, Channel::Stream(_, _, Buffering::Buffered))
}

/// Whether latency is measured: gathering is not for latency.
pub(super) fn for_latency(channel: Channel) -> bool {
    !matches!(channel, Channel::Stream(_, _, Buffering::Buffered))
}

/// The arms measured under load.
pub(super) const LOADED: [Channel; 4] = [
    Channel::Ring(RingMode::Default),
    Channel::Ring(RingMode::Latency),
    Channel::Stream(Transport::Tcp, Waiting::Blocking, Buffering::None),
    Channel::Stream(Transport::Unix, Waiting::Blocking, Buffering::None),
];

/// How each arm works, for the report.
pub(super) fn notes() -> Vec<ArmNote> {
    let note = |name: &str, what: &str, waiting, copies: &str| ArmNote {
        name: name.to_owned(),
        what: what.to_owned(),
        waiting,
        copies: copies.to_owned(),
    };
    let mut notes: Vec<ArmNote> = channels().into_iter().map(Channel::note).collect();
    notes.extend([
        note(
            "ucx-am",
            "ucx_perftest, ucp_am_bw and ucp_am_lat",
            "poll",
            "1 (16 KiB and more: cma)",
        ),
        note(
            "ucx-put",
            "ucx_perftest, ucp_put_bw and ucp_put_lat: the receiver takes nothing",
            "poll",
            "1",
        ),
        note(
            "memcpy",
            "slot by slot from one array to another, as large as the ring's",
            "-",
            "1",
        ),
        note(
            "c2c",
            "a flag on a cache line, there and back between two threads, halved",
            "poll",
            "0",
        ),
    ]);
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_arm_has_a_name_of_its_own() {
        let names: BTreeSet<_> = notes().into_iter().map(|n| n.name).collect();
        assert_eq!(names.len(), notes().len());
        for wanted in [
            "rb2",
            "bare",
            "unix-socket-blocking",
            "tcp-blocking",
            "tcp-spinning-buffered",
        ] {
            assert!(names.contains(wanted), "{wanted}");
        }
    }
}

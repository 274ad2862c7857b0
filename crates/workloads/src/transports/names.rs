//! What channels are called in results, and how each works, so that a reader can judge a comparison.

use std::fmt;

use super::ArmNote;
use super::job::{Buffering, Channel, Combination, RingMode, Rival, Transport, Variant, Waiting};

/// Into the sender's slot, from there into the receiver's.
const RING_COPIES: &str = "2 (64 KiB and more: 1, written in place)";
/// The copy that the device makes is counted with the others.
const IN_PLACE: &str = "1 (0 + the device's + 0)";

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl Channel {
    /// Its name in the points.
    pub fn name(self) -> String {
        match self {
            Self::Bare => "bare".into(),
            Self::Ring(mode) => ring(mode),
            Self::Rival(rival) => rival_name(rival),
            Self::Stream(transport, waiting, buffering) => {
                let transport = match transport {
                    Transport::Tcp => "tcp",
                    Transport::Unix => "unix-socket",
                    Transport::Pipe => "pipe",
                };
                let waiting = match waiting {
                    Waiting::Spinning => "spinning",
                    Waiting::Blocking => "blocking",
                };
                let buffered = match buffering {
                    Buffering::Buffered => "-buffered",
                    Buffering::None => "",
                };
                format!("{transport}-{waiting}{buffered}")
            }
        }
    }

    /// How it works.
    pub fn note(self) -> ArmNote {
        let (what, waiting, copies) = match self {
            Self::Bare => (
                "the ring over plain shared memory, no verbs; publishes, transmits and pushes as rb2"
                    .into(),
                Waiting::Spinning,
                RING_COPIES,
            ),
            Self::Ring(mode) => {
                let copies = match mode {
                    RingMode::Paper(Variant::Copies) => "3 (1 + the device's + 1)",
                    RingMode::Paper(_) => IN_PLACE,
                    _ => RING_COPIES,
                };
                (ring_what(mode).into(), Waiting::Spinning, copies)
            }
            Self::Rival(rival) => {
                let copies = match rival {
                    Rival::Farm => "2 (0 + the device's + 1)",
                    Rival::SocksDirect | Rival::L5 | Rival::FarmAsPublished => {
                        "3 (1 + the device's + 1)"
                    }
                    Rival::Raw | Rival::Points(_) => IN_PLACE,
                };
                (rival_what(rival), Waiting::Spinning, copies)
            }
            Self::Stream(transport, waiting, buffering) => {
                (stream_what(transport, buffering).into(), waiting, "2")
            }
        };
        ArmNote {
            name: self.name(),
            what,
            waiting: match waiting {
                Waiting::Spinning => "poll",
                Waiting::Blocking => "block",
            },
            copies: copies.into(),
        }
    }
}

fn ring(mode: RingMode) -> String {
    match mode {
        RingMode::Default => "rb2".into(),
        RingMode::Unbatched => "rb2-unbatched".into(),
        RingMode::Latency => "rb2-latency".into(),
        RingMode::Paper(variant) => match variant {
            Variant::Full => "rb2-in-place".into(),
            Variant::HugePages => "M1-full".into(),
            Variant::NoBatching => "M2-no-batching".into(),
            Variant::NoEarlyTransmission => "M3-no-early-transmission".into(),
            Variant::NoElasticThreshold => "M4-no-elastic-threshold".into(),
            Variant::NoLazyPush => "M5-no-lazy-push".into(),
            Variant::Copies => "M6-copies".into(),
            Variant::Unaligned => "M7-unaligned".into(),
            Variant::OrdinaryPages => "M8-ordinary-pages".into(),
            Variant::WrongNode(_) => "M9-wrong-node".into(),
            Variant::Unbatched => "rb2-in-place-unbatched".into(),
            Variant::Latency => "rb2-in-place-latency".into(),
            Variant::Huge => "rb2-in-place-huge".into(),
            Variant::NotCacheFriendly => "M7-not-cache-friendly".into(),
            Variant::WrongThreads(_) => "M9-wrong-threads".into(),
        },
    }
}

fn ring_what(mode: RingMode) -> &'static str {
    const DEFAULT: &str =
        "publish every 32, transmit every 16, push every 32 of 128 slots; every 1 of 4 slots";
    const LATENCY: &str = "latency mode: one WRITE a message, whose last word is polled";
    match mode {
        RingMode::Default => DEFAULT,
        RingMode::Unbatched => "publish and transmit every message",
        RingMode::Latency => LATENCY,
        RingMode::Paper(variant) => match variant {
            Variant::Full => "publish every 32, transmit every 16, push every 32; in place",
            Variant::HugePages | Variant::Huge => {
                "publish every 32, transmit every 16, push every 32; in place; huge pages if there are any"
            }
            Variant::NoBatching => "publish, transmit and push every message, no gate",
            Variant::NoEarlyTransmission => "transmit when publishing",
            Variant::NoElasticThreshold => "publish although an earlier tail is under way",
            Variant::NoLazyPush => "push the head for every message",
            Variant::Copies => "copied into the slot and out of it",
            Variant::Unaligned => "arrays begin 8 bytes behind a cache line",
            Variant::OrdinaryPages => "as M1 on ordinary pages",
            Variant::WrongNode(_) => "memory on another NUMA node",
            Variant::Unbatched => "publish and transmit every message, push every 32; in place",
            Variant::Latency => LATENCY,
            Variant::NotCacheFriendly => {
                "as M7-unaligned, and the pointers of an end share one cache line"
            }
            Variant::WrongThreads(_) => "threads on another NUMA node",
        },
    }
}

fn rival_name(rival: Rival) -> String {
    match rival {
        Rival::Farm => "farm".into(),
        Rival::FarmAsPublished => "farm-as-published".into(),
        Rival::SocksDirect => "socksdirect".into(),
        Rival::L5 => "l5".into(),
        Rival::Raw => "raw-write".into(),
        Rival::Points(Combination { pull, cq, .. }) => {
            let head = if pull { "pull" } else { "push" };
            let tail = if cq { "cq" } else { "wt" };
            format!("{head}-{tail}")
        }
    }
}

fn rival_what(rival: Rival) -> String {
    match rival {
        Rival::Farm => {
            "FaRM-style: WRITE of the bytes, WRITE of the length; the receiver polls that and clears"
                .into()
        }
        Rival::FarmAsPublished => {
            "as farm, but the message is copied into the memory that is sent, the next one waits for its completion, \
             and huge pages if there are any"
                .into()
        }
        Rival::SocksDirect => {
            "SocksDirect-style: WRITE with immediate, all signalled, 10 in flight, then batches".into()
        }
        Rival::L5 => "L5-style: WRITE of the bytes, WRITE of the tail, for every message".into(),
        Rival::Raw => {
            "WRITEs without a protocol; one way nobody reads them, there and back the last word is \
             polled"
                .into()
        }
        Rival::Points(Combination {
            pull,
            cq,
            batch,
            lazy,
        }) => {
            let head = match pull {
                true => "READ by the sender",
                false => "WRITTEN by the receiver",
            };
            let tail = match cq {
                true => "by WRITE with immediate",
                false => "by a second WRITE",
            };
            format!("tail {tail} every {batch} slots, head {head} every {lazy}; in place")
        }
    }
}

fn stream_what(transport: Transport, buffering: Buffering) -> &'static str {
    match (transport, buffering) {
        (Transport::Tcp, Buffering::None) => {
            "TCP_NODELAY, best of three socket buffers, one message per call"
        }
        (Transport::Tcp, Buffering::Buffered) => {
            "TCP_NODELAY, best of three socket buffers, 64 KiB gathered on either side"
        }
        (Transport::Unix, Buffering::None) => {
            "stream socket, best of three buffers, one message per call"
        }
        (Transport::Unix, Buffering::Buffered) => {
            "stream socket, best of three buffers, 64 KiB gathered on either side"
        }
        (Transport::Pipe, Buffering::None) => "best of three pipe sizes, one message per call",
        (Transport::Pipe, Buffering::Buffered) => {
            "best of three pipe sizes, 64 KiB gathered on either side"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_settings_of_the_ring_have_one_name() {
        let modes = [RingMode::Default, RingMode::Unbatched, RingMode::Latency];
        let all = modes.into_iter().chain(Variant::ALL.map(RingMode::Paper));
        let names: Vec<_> = all.map(|mode| Channel::Ring(mode).name()).collect();
        let different: BTreeSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{names:?}");
        for number in 1..=9 {
            let row = format!("M{number}-");
            let of = names.iter().filter(|name| name.starts_with(&row));
            // M7 and M9 switch two things off, which are also measured alone.
            assert_eq!(
                of.count(),
                if [7, 9].contains(&number) { 2 } else { 1 },
                "{row}"
            );
        }
    }
}

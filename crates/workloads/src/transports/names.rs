//! What channels are called in results, and how each works, so that a reader can judge a comparison.

use std::fmt;

use super::ArmNote;
use super::job::{Buffering, Channel, Combination, RingMode, Rival, Transport, Variant, Waiting};

/// Into the sender's slot, from there into the receiver's.
const RING_COPIES: &str = "2 (64 KiB and more: 1, written in place)";
/// The copy that the device makes is counted with the others.
const IN_PLACE: &str = "1 (0 + the device's + 0)";
const EACH_END: &str = "3 (1 + the device's + 1)";

const LATENCY: &str = "latency mode: one WRITE a message, whose last word is polled";
const HUGE: &str =
    "publish every 32, transmit every 16, push every 32; in place; huge pages if there are any";

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl Channel {
    /// Its name in the points.
    pub fn name(self) -> String {
        self.note().name
    }

    /// How it works.
    pub fn note(self) -> ArmNote {
        let fixed = |(name, what, copies): (&str, &str, &str)| {
            let [name, what, copies] = [name, what, copies].map(str::to_owned);
            let waiting = "poll";
            ArmNote {
                name,
                what,
                waiting,
                copies,
            }
        };
        match self {
            Self::Bare => fixed((
                "bare",
                "the ring over plain shared memory, no verbs; publishes, transmits and pushes as rb2",
                RING_COPIES,
            )),
            Self::Ring(RingMode::Paper(variant)) => {
                let copies = match variant {
                    Variant::Copies => EACH_END,
                    _ => IN_PLACE,
                };
                let (name, what) = paper(variant);
                fixed((name, what, copies))
            }
            Self::Ring(RingMode::Default) => fixed((
                "rb2",
                "publish every 32, transmit every 16, push every 32 of 128 slots; every 1 of 4 slots",
                RING_COPIES,
            )),
            Self::Ring(RingMode::Unbatched) => fixed((
                "rb2-unbatched",
                "publish and transmit every message",
                RING_COPIES,
            )),
            Self::Ring(RingMode::Latency) => fixed(("rb2-latency", LATENCY, RING_COPIES)),
            Self::Rival(Rival::Points(combination)) => points(combination),
            Self::Rival(rival) => fixed(rival_is(rival)),
            Self::Stream(transport, waiting, buffering) => stream(transport, waiting, buffering),
        }
    }
}

/// The name of a row of the paper's Table II or of its figures, and how it works.
fn paper(variant: Variant) -> (&'static str, &'static str) {
    match variant {
        Variant::Full => (
            "rb2-in-place",
            "publish every 32, transmit every 16, push every 32; in place",
        ),
        Variant::HugePages => ("M1-full", HUGE),
        Variant::NoBatching => (
            "M2-no-batching",
            "publish, transmit and push every message, no gate",
        ),
        Variant::NoEarlyTransmission => ("M3-no-early-transmission", "transmit when publishing"),
        Variant::NoElasticThreshold => (
            "M4-no-elastic-threshold",
            "publish although an earlier tail is under way",
        ),
        Variant::NoLazyPush => ("M5-no-lazy-push", "push the head for every message"),
        Variant::Copies => ("M6-copies", "copied into the slot and out of it"),
        Variant::Unaligned => ("M7-unaligned", "arrays begin 8 bytes behind a cache line"),
        Variant::OrdinaryPages => ("M8-ordinary-pages", "as M1 on ordinary pages"),
        Variant::WrongNode(_) => ("M9-wrong-node", "memory on another NUMA node"),
        Variant::Unbatched => (
            "rb2-in-place-unbatched",
            "publish and transmit every message, push every 32; in place",
        ),
        Variant::Latency => ("rb2-in-place-latency", LATENCY),
        Variant::Huge => ("rb2-in-place-huge", HUGE),
        Variant::NotCacheFriendly => (
            "M7-not-cache-friendly",
            "as M7-unaligned, and the pointers of an end share one cache line",
        ),
        Variant::WrongThreads(_) => ("M9-wrong-threads", "threads on another NUMA node"),
    }
}

/// The name of another design, how it works, and its copies.
fn rival_is(rival: Rival) -> (&'static str, &'static str, &'static str) {
    match rival {
        Rival::Farm => (
            "farm",
            "FaRM-style: WRITE of the bytes, WRITE of the length; the receiver polls that and clears",
            "2 (0 + the device's + 1)",
        ),
        Rival::FarmAsPublished => (
            "farm-as-published",
            "as farm, but the message is copied into the memory that is sent, the next one waits for its completion, \
             and huge pages if there are any",
            EACH_END,
        ),
        Rival::SocksDirect => (
            "socksdirect",
            "SocksDirect-style: WRITE with immediate, all signalled, 10 in flight, then batches",
            EACH_END,
        ),
        Rival::L5 => (
            "l5",
            "L5-style: WRITE of the bytes, WRITE of the tail, for every message",
            EACH_END,
        ),
        Rival::Raw | Rival::Points(_) => (
            "raw-write",
            "WRITEs without a protocol; one way nobody reads them, there and back the last word is \
             polled",
            IN_PLACE,
        ),
    }
}

fn points(of: Combination) -> ArmNote {
    let (head, written) = match of.pull {
        true => ("pull", "READ by the sender"),
        false => ("push", "WRITTEN by the receiver"),
    };
    let (tail, told) = match of.cq {
        true => ("cq", "by WRITE with immediate"),
        false => ("wt", "by a second WRITE"),
    };
    let (batch, lazy) = (of.batch, of.lazy);
    ArmNote {
        name: format!("{head}-{tail}"),
        what: format!("tail {told} every {batch} slots, head {written} every {lazy}; in place"),
        waiting: "poll",
        copies: IN_PLACE.into(),
    }
}

fn stream(transport: Transport, waiting: Waiting, buffering: Buffering) -> ArmNote {
    let (name, what) = match transport {
        Transport::Tcp => ("tcp", "TCP_NODELAY, best of three socket buffers"),
        Transport::Unix => ("unix-socket", "stream socket, best of three buffers"),
        Transport::Pipe => ("pipe", "best of three pipe sizes"),
    };
    let (waits, polls_or_blocks) = match waiting {
        Waiting::Spinning => ("spinning", "poll"),
        Waiting::Blocking => ("blocking", "block"),
    };
    let (buffered, gathers) = match buffering {
        Buffering::Buffered => ("-buffered", "64 KiB gathered on either side"),
        Buffering::None => ("", "one message per call"),
    };
    ArmNote {
        name: format!("{name}-{waits}{buffered}"),
        what: format!("{what}, {gathers}"),
        waiting: polls_or_blocks,
        copies: "2".into(),
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

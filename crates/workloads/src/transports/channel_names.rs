//! Names of the channels in results, and notes on how each works, so that a reader can judge a comparison.

use std::fmt;

use super::ArmNote;
use super::job::{
    Buffering, Channel, Combination, PaperBaseline, RingMode, StreamKind, Variant, Waiting,
};

/// One copy into the sender's slot, one from there into the receiver's.
const RING_COPIES: &str = "2 (64 KiB and more: 1, written in place)";
/// The device's copy is counted with the others.
const IN_PLACE: &str = "1 (0 + the device's + 0)";
const EACH_END: &str = "3 (1 + the device's + 1)";

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl Channel {
    /// Returns the channel's name in the points.
    pub fn name(self) -> String {
        self.note().name
    }

    /// Returns the note on how the channel works.
    pub fn note(self) -> ArmNote {
        let (about, copies) = match self {
            Self::Bare => (
                (
                    "bare",
                    "the ring over plain shared memory, no verbs; publishes, transmits and pushes as rb2",
                ),
                RING_COPIES,
            ),
            Self::Ring(RingMode::Paper(Variant::Copies)) => (Variant::Copies.about(), EACH_END),
            Self::Ring(RingMode::Paper(variant)) => (variant.about(), IN_PLACE),
            Self::Ring(mode) => (mode.about(), RING_COPIES),
            Self::Baseline(PaperBaseline::SyncVariant(combination)) => {
                return sync_variant_note(combination);
            }
            Self::Baseline(PaperBaseline::Raw) => (PaperBaseline::Raw.about(), IN_PLACE),
            Self::Baseline(PaperBaseline::Farm) => {
                (PaperBaseline::Farm.about(), "2 (0 + the device's + 1)")
            }
            Self::Baseline(baseline) => (baseline.about(), EACH_END),
            Self::Stream(transport, waiting, buffering) => {
                return stream(transport, waiting, buffering);
            }
        };
        ArmNote {
            name: about.0.into(),
            what: about.1.into(),
            waiting: "poll",
            copies: copies.into(),
        }
    }
}

fn sync_variant_note(of: Combination) -> ArmNote {
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

fn stream(transport: StreamKind, waiting: Waiting, buffering: Buffering) -> ArmNote {
    let (name, what) = match transport {
        StreamKind::Tcp => ("tcp", "TCP_NODELAY, best of three socket buffers"),
        StreamKind::Unix => ("unix-socket", "stream socket, best of three buffers"),
        StreamKind::Pipe => ("pipe", "best of three pipe sizes"),
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
        let variants = Variant::ALL.iter().skip(1).copied();
        let all = RingMode::ALL
            .iter()
            .copied()
            .chain(variants.map(RingMode::Paper));
        let names: Vec<_> = all.map(|mode| Channel::Ring(mode).name()).collect();
        let different: BTreeSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{names:?}");
        for number in 1..=9 {
            let row = format!("M{number}-");
            let of = names.iter().filter(|name| name.starts_with(&row));
            // M7 and M9 have two variants each.
            assert_eq!(
                of.count(),
                if [7, 9].contains(&number) { 2 } else { 1 },
                "{row}"
            );
        }
    }
}

//! The arms: what each pair of parts does, under which name.

use crate::nic::{Way, What};
use crate::outcome::ArmNote;

/// Every pair, those to be compared next to each other.
pub(super) fn all() -> Vec<What> {
    let mut all = Vec::new();
    for chain in [1, 16] {
        for way in [Way::PolledMemory, Way::SharedReceives] {
            all.push(What::Flow { way, chain });
        }
    }
    all
}

/// An arm's name in the points.
pub(super) fn name(what: What) -> String {
    match what {
        What::Flow { way, chain } => {
            let way = match way {
                Way::PolledMemory => "write-and-poll",
                Way::SharedReceives => "srq",
            };
            format!("{way}-chain{chain}")
        }
    }
}

/// All arms, described.
pub(super) fn notes() -> Vec<ArmNote> {
    all().into_iter().map(describe).collect()
}

fn describe(what: What) -> ArmNote {
    let (text, waiting, copies) = match what {
        What::Flow { way, chain } => {
            let way = match way {
                Way::PolledMemory => "WRITEs of 64 B into memory that the receiver polls",
                Way::SharedReceives => {
                    "SENDs of 64 B into 128 receives of an SRQ, each posted again when its \
                     completion was polled"
                }
            };
            let text = format!(
                "{way}; one queue pair; {chain} per call (the receiver polls and posts as many); \
                 1 in 32 signalled, 128 under way at most, the receiver WRITEs its head every 32; \
                 first and last word of each written and checked"
            );
            (text, "poll", "1")
        }
    };
    ArmNote {
        name: name(what),
        what: text,
        waiting,
        copies: copies.into(),
    }
}

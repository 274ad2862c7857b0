//! The evaluation of "RB²: Narrow the Gap between RDMA Abstraction and Performance via a Middle
//! Layer" (sections IV-A and V) on whatever device is given.
//!
//! | module | what |
//! |---|---|
//! | [`figures`] | Figures 3, 5, 6 and 7, and batching on the kernel's rxe |
//! | [`table2`] | Table II: one optimisation switched off at a time |
//! | [`studies`] | Figures 8 to 10: the three case studies |
//! | `sweep` | rates and round trips of message channels over size and pairs |
//! | `counts` | what each design posts and polls for a message, beside Table I |

pub mod figures;
pub mod studies;
pub mod table2;

mod counts;
mod sweep;

use crate::bench::Bench;
use crate::experiment::Paper;
use crate::outcome::Outcome;
use crate::transports::job::{Channel, RingMode, Rival, Variant};

const fn paper(figure: &'static str) -> Option<Paper> {
    Some(Paper {
        title: "RB²: Narrow the Gap between RDMA Abstraction and Performance via a Middle Layer",
        year: 2024,
        figure,
    })
}

/// N, for every message size.
const SLOTS: usize = 128;
const MIB: u64 = 1 << 20;

const fn variant(variant: Variant) -> Channel {
    Channel::Ring(RingMode::Paper(variant))
}

const RB2: Channel = variant(Variant::Full);
const RB2_LATENCY: Channel = variant(Variant::Latency);
const RB2_UNBATCHED: Channel = variant(Variant::Unbatched);
const FARM: Channel = Channel::Rival(Rival::Farm);
const SOCKSDIRECT: Channel = Channel::Rival(Rival::SocksDirect);
const L5: Channel = Channel::Rival(Rival::L5);
const RAW: Channel = Channel::Rival(Rival::Raw);
const RIVALS: [Channel; 3] = [FARM, SOCKSDIRECT, L5];

/// What an arm is called in keys: the only one of its kind in an experiment.
fn key(channel: Channel) -> String {
    match channel {
        RB2_LATENCY => "rb2_latency".into(),
        Channel::Ring(_) => "rb2".into(),
        RAW => "raw".into(),
        other => other.name().replace('-', "_"),
    }
}

/// Of figures of all simulated machines.
const SIMULATED: &str = "Simulated: processors are charged cpu.message for each message at either end (assumed), copies at \
    cpu.copy and cpu.copy_rate, clearing as half a copy, and what perftest does for each plain WRITE with \
    cpu.bench, beside what calls of verbs cost. There is one repeat: the same would come of another. The \
    paper's figures are printed beside, and nothing was fitted to them.";

/// Says why figures of simulated machines differ from the paper's, where they are.
fn note_if_simulated(bench: &Bench<'_>, outcome: &mut Outcome, of: &str) {
    if bench.place.is_simulated() {
        let notes = [SIMULATED.to_owned(), format!("Simulated: {of}")];
        outcome.notes.extend(notes);
    }
}

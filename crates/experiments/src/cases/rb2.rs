//! The evaluation of "RB²: Narrow the Gap between RDMA Abstraction and Performance via a Middle
//! Layer" (sections IV-A and V) on whatever device is given: figures 3, 5, 6 and 7, Table II and the
//! three case studies.
//!
//! | module | what |
//! |---|---|
//! | [`fig3`], [`fig5`], [`fig6`], [`fig7`], [`table2`] | an experiment each |
//! | [`cases`] | the case studies, an experiment each |
//! | [`rxe_ring`] | batching on the kernel's rxe |
//! | `sweep` | measuring arms over sizes in turns; tables and lines from that |
//! | `simulated` | what there is to say of figures of simulated machines |
//! | `counts` | what each design posts and polls for a message, beside Table I |

pub mod cases;
pub mod fig3;
pub mod fig5;
pub mod fig6;
pub mod fig7;
pub mod rxe_ring;
pub mod table2;

mod counts;
mod simulated;
mod sweep;

use crate::bench::Bench;
use crate::experiment::Paper;
use crate::outcome::Outcome;
use crate::transports::job::{Channel, RingMode, Rival, Variant};

const TITLE: &str =
    "RB²: Narrow the Gap between RDMA Abstraction and Performance via a Middle Layer";

/// The paper, with what is repeated of it.
const fn paper(figure: &'static str) -> Paper {
    Paper {
        title: TITLE,
        year: 2024,
        figure,
    }
}

/// N, for every message size.
const SLOTS: usize = 128;

const RB2: Channel = Channel::Ring(RingMode::Paper(Variant::Full));
const RB2_LATENCY: Channel = Channel::Ring(RingMode::Paper(Variant::Latency));
const FARM: Channel = Channel::Rival(Rival::Farm);
const SOCKSDIRECT: Channel = Channel::Rival(Rival::SocksDirect);
const L5: Channel = Channel::Rival(Rival::L5);
const RAW: Channel = Channel::Rival(Rival::Raw);

/// What an arm is called in keys: the only one of its kind in an experiment.
fn key(channel: Channel) -> String {
    match channel {
        RB2_LATENCY => "rb2_latency".into(),
        Channel::Ring(_) => "rb2".into(),
        RAW => "raw".into(),
        other => other.name().replace('-', "_"),
    }
}

/// Message sizes: as the paper's, every other power of two.
const SIZES: &[usize] = &[64, 256, 1024, 4096, 16384, 65536, 256 * 1024, MIB];
/// Those of a quick run.
const QUICK_SIZES: &[usize] = &[64, 4096, MIB];
const MIB: usize = 1 << 20;

fn sizes(bench: &Bench<'_>) -> &'static [usize] {
    match bench.options.quick {
        true => QUICK_SIZES,
        false => SIZES,
    }
}

/// Where the parts run, and what there is to say of that.
fn begin(bench: &Bench<'_>, arms: &[Channel]) -> Outcome {
    let mut outcome = bench.pinned(|[here, there]| {
        format!("sender on cpu {here}, receiver on cpu {there}, for every arm")
    });
    outcome.arms = arms.iter().map(|channel| channel.note()).collect();
    outcome.notes.push(
        "Ratios are medians of the ratios within each round, in which all arms take their turn."
            .into(),
    );
    outcome
}

#[cfg(test)]
pub(in crate::cases) mod tests {
    use super::sweep::Sweep;
    use super::*;
    use crate::experiment::About;

    /// That `outcome`, of an experiment that measured nothing at all, says of every key why, has no key
    /// that is not declared, and can be drawn.
    pub(in crate::cases) fn assert_skipped(about: &About, outcome: &Outcome) {
        for key in about.keys {
            let why = outcome.skipped().get(*key).map_or("", String::as_str);
            assert!(!why.is_empty(), "{}: no word on {key}", about.name);
        }
        assert!(outcome.ratios().is_empty(), "{}", about.name);
        let others = outcome.undeclared(about.keys);
        assert!(others.is_empty(), "{}: {others:?}", about.name);
        for figure in &outcome.figures {
            figure.to_svg().expect("a figure of nothing");
        }
    }

    /// [`assert_skipped`] of a sweep without samples.
    pub(super) fn assert_nothing_is_skipped(about: &About, record: fn(&mut Outcome, &Sweep)) {
        let (mut outcome, nothing) = (Outcome::default(), Sweep::default());
        nothing.record(&mut outcome);
        record(&mut outcome, &nothing);
        assert_skipped(about, &outcome);
    }

    #[test]
    fn arms_are_keyed_apart() {
        let keys = [RB2, RB2_LATENCY, FARM, SOCKSDIRECT, L5, RAW].map(key);
        assert_eq!(
            keys,
            ["rb2", "rb2_latency", "farm", "socksdirect", "l5", "raw"]
        );
    }
}

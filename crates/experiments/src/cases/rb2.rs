//! The evaluation of "RB²: Narrow the Gap between RDMA Abstraction and Performance via a Middle Layer"
//! (sections IV-A and V), on the device of the options.
//!
//! | module | content |
//! |---|---|
//! | [`figures`] | Figures 3, 5, 6 and 7, and batching on the kernel's rxe |
//! | [`table2`] | Table II: one optimisation switched off at a time |
//! | [`case_studies`] | Figures 8 to 10: the three case studies |
//! | `sweep` | plans of rates and round trips over size and pairs, and their measurement |
//! | `huge_pages` | the huge pages and NUMA nodes that points need |
//! | `operation_counts` | Table I, and the requests and completions of each design for a message |

pub mod case_studies;
pub mod figures;
pub mod table2;

mod huge_pages;
mod operation_counts;
mod sweep;

use crate::bench::Bench;
use crate::experiment::{About, Paper};
use crate::transports::job::{Channel, PaperBaseline, RingMode, Variant};

/// Describes an experiment that reproduces `figure`.
const fn about(
    figure: &'static str,
    name: &'static str,
    line: &'static str,
    measures: &'static str,
) -> About {
    const TITLE: &str =
        "RB²: Narrow the Gap between RDMA Abstraction and Performance via a Middle Layer";
    About {
        paper: Some(Paper {
            title: TITLE,
            year: 2024,
            figure,
        }),
        ..About::new(name, line, measures)
    }
}

/// The paper's N: slots of a ring, for every message size.
const SLOTS: u64 = 128;
const MIB: u64 = 1 << 20;

const fn variant(variant: Variant) -> Channel {
    Channel::Ring(RingMode::Paper(variant))
}

const RB2: Channel = variant(Variant::Full);
const RB2_HUGE: Channel = variant(Variant::Huge);
const RB2_LATENCY: Channel = variant(Variant::Latency);
const RB2_UNBATCHED: Channel = variant(Variant::Unbatched);
const FARM: Channel = Channel::Baseline(PaperBaseline::Farm);
/// FaRM as Table I describes it.
const FARM_PAPER: Channel = Channel::Baseline(PaperBaseline::FarmAsPublished);
/// The ring of SocksDirect.
const SD: Channel = Channel::Baseline(PaperBaseline::SocksDirect);
const L5: Channel = Channel::Baseline(PaperBaseline::L5);
const RAW: Channel = Channel::Baseline(PaperBaseline::Raw);
const BASELINES: [Channel; 3] = [FARM, SD, L5];

/// Returns an arm's name in keys. All rings of an experiment are called RB², except the one in latency mode.
fn name(channel: Channel) -> String {
    match channel {
        RB2_LATENCY => "rb2_latency".into(),
        Channel::Ring(_) => "rb2".into(),
        RAW => "raw".into(),
        other => other.name().replace('-', "_"),
    }
}

/// Returns the key of an arm's metric: `rb2_64_mmsg_per_s`, and `rb2_64_mmsg_per_s_huge` on huge pages.
fn key(channel: Channel, figure: &str) -> String {
    let huge = if channel == RB2_HUGE { "_huge" } else { "" };
    format!("{}_{figure}{huge}", name(channel))
}

/// Returns the remarks of a report on simulated machines. The last one says why the results differ from the
/// paper's.
fn simulated_notes(bench: &Bench<'_>, why: &str) -> Vec<String> {
    const SIMULATED: &str = "Simulated: besides what calls of verbs cost, each end is charged cpu.message for a \
        message (assumed), cpu.copy and cpu.copy_rate for a copy, half a copy for clearing, and cpu.bench for a \
        plain WRITE, as perftest needs it. There is one repeat, because another would give the same. The paper's \
        figures are printed beside; nothing was fitted to them.";
    match bench.testbed.is_simulated() && !why.is_empty() {
        true => vec![SIMULATED.to_owned(), format!("Simulated: {why}")],
        false => Vec::new(),
    }
}

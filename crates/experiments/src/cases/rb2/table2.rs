//! Table II: RB² with one optimisation switched off at a time.

use std::time::Duration;

use crate::arms::job::{Channel, RingMode, Variant};
use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::outcome::Outcome;
use crate::runner::RunError;

use super::sweep::{Point, Sample, Sweep, What};
use super::{MIB, RB2, begin, counts, paper};

/// The experiment.
#[derive(Debug)]
pub struct Table2;

/// Bytes of the two messages.
const SIZES: [usize; 2] = [512, MIB];

const fn variant(variant: Variant) -> Channel {
    Channel::Ring(RingMode::Paper(variant))
}

/// M1, with huge pages where the machine has some.
const M1: Channel = variant(Variant::HugePages);

/// The rows M2 to M7; M8 and M9 depend on the machine.
const ROWS: [(&str, Channel); 6] = [
    ("m2_over_m1", variant(Variant::NoBatching)),
    ("m3_over_m1", variant(Variant::NoEarlyTransmission)),
    ("m4_over_m1", variant(Variant::NoElasticThreshold)),
    ("m5_over_m1", variant(Variant::NoLazyPush)),
    ("m6_over_m1", variant(Variant::Copies)),
    ("m7_over_m1", variant(Variant::Unaligned)),
];

static ABOUT: About = About {
    name: "rb2-table2",
    line: "RB² with one optimisation switched off at a time: throughput at 512 B and 1 MiB.",
    measures: "Messages per second of RB² in full (M1) and without batching (M2), early transmission \
               (M3), the elastic threshold (M4), lazy push (M5), zero copy (M6), alignment (M7), huge \
               pages (M8) and the right NUMA node (M9).",
    paper: Some(paper("Table II (Exp#4)")),
    keys: &[
        "m2_over_m1_512",
        "m3_over_m1_512",
        "m4_over_m1_512",
        "m5_over_m1_512",
        "m6_over_m1_512",
        "m7_over_m1_512",
        "m8_over_m1_512",
        "m9_over_m1_512",
        "m2_over_m1_1m",
        "m3_over_m1_1m",
        "m4_over_m1_1m",
        "m5_over_m1_1m",
        "m6_over_m1_1m",
        "m7_over_m1_1m",
        "m8_over_m1_1m",
        "m9_over_m1_1m",
        "m1_512_mmsg_per_s",
        "m1_1m_gb_per_s",
    ],
    paper_values: &[
        ("m2_over_m1_512", 0.33),
        ("m7_over_m1_512", 0.92),
        ("m7_over_m1_1m", 0.71),
    ],
    replays: false,
};

const fn rate(channel: Channel, size: usize) -> Point {
    Point::new(What::Rate, channel, size)
}

impl Experiment for Table2 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut rows = ROWS.to_vec();
        let huge = huge_pages_free() * 2;
        let needed = 2 * super::SLOTS * MIB / (1 << 20) + 8;
        let has_huge = huge >= needed;
        if has_huge {
            rows.push(("m8_over_m1", RB2));
        }
        let node = other_node();
        if let Some(node) = node {
            rows.push(("m9_over_m1", variant(Variant::WrongNode(node))));
        }
        let channels: Vec<Channel> = [M1]
            .into_iter()
            .chain(rows.iter().map(|(_, channel)| *channel))
            .collect();
        let mut outcome = begin(bench, &channels);
        let points = SIZES
            .iter()
            .flat_map(|&size| channels.iter().map(move |&channel| rate(channel, size)));
        let points = points.collect();
        let sweep = Sweep::measure(bench, points, 0.8, Duration::from_secs(1))?;
        sweep.record(&mut outcome);
        record(&mut outcome, &sweep, &rows);
        for suffix in ["512", "1m"] {
            if !has_huge {
                let why = format!(
                    "{huge} MiB of 2 MiB pages are reserved and free, {needed} are needed (root \
                     reserves them in vm.nr_hugepages)"
                );
                outcome.skip(format!("m8_over_m1_{suffix}"), why);
            }
            if node.is_none() {
                let why = "this machine has one NUMA node";
                outcome.skip(format!("m9_over_m1_{suffix}"), why);
            }
        }
        counts::record(bench, &mut outcome, &channels, &[512])?;
        outcome.notes.push(
            "M3, M4 and M5 are each RB² in full without one of its batching policies; the paper's text \
             leaves open whether its rows M3 to M5 are that or RB² with only one of them. M7's arrays \
             begin 8 bytes behind a cache line, so that every message takes part of one line more and \
             shares two with its neighbours."
                .into(),
        );
        Ok(outcome)
    }
}

fn record(outcome: &mut Outcome, sweep: &Sweep, rows: &[(&str, Channel)]) {
    let per_second = |sample: &Sample| sample.per_second;
    for (size, suffix) in SIZES.into_iter().zip(["512", "1m"]) {
        for &(key, channel) in rows {
            let ratio = sweep.ratio(rate(channel, size), rate(M1, size), per_second);
            let why = sweep.why(rate(channel, size));
            outcome.measured_or(&format!("{key}_{suffix}"), ratio, why);
        }
    }
    let [small, large] = SIZES.map(|size| rate(M1, size));
    let millions = sweep.spread(small, |sample| sample.per_second * 1e-6);
    outcome.measured_or("m1_512_mmsg_per_s", millions, sweep.why(small));
    let bytes = sweep.spread(large, |sample| sample.per_second * MIB as f64 * 1e-9);
    outcome.measured_or("m1_1m_gb_per_s", bytes, sweep.why(large));
}

/// Huge pages of 2 MiB that nobody has.
fn huge_pages_free() -> usize {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// A NUMA node with memory that the first processor does not belong to.
fn other_node() -> Option<u32> {
    let text = std::fs::read_to_string("/sys/devices/system/node/has_memory").ok()?;
    nodes(text.trim()).into_iter().find(|&node| {
        let mine = format!("/sys/devices/system/node/node{node}/cpu{}", first_cpu());
        !std::path::Path::new(&mine).exists()
    })
}

fn first_cpu() -> usize {
    crate::pin::two_cpus()[0]
}

/// The numbers in a list like `0,2-3`.
fn nodes(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes() {
        assert_eq!(nodes("0"), [0]);
        assert_eq!(nodes("0,2-4"), [0, 2, 3, 4]);
        assert!(nodes("").is_empty() && nodes("x-3").is_empty());
    }
}

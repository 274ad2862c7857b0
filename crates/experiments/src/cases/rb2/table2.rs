//! Table II: RB² with one optimisation switched off at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::outcome::Outcome;
use crate::pages::HugePages;
use crate::runner::RunError;
use crate::transports::job::{Channel, RingMode, Variant};

use super::sweep::{Point, Sample, Sweep, What};
use super::{MIB, SLOTS, begin, counts, paper, simulated};

/// The experiment.
#[derive(Debug)]
pub struct Table2;

/// Bytes of the two messages.
const SIZES: [usize; 2] = [512, MIB];
/// What they are called in keys.
const SUFFIXES: [&str; 2] = ["512", "1m"];

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// Bytes that a segment and a ring have before the slots, at most.
const BEFORE: usize = 16 << 10;

const fn variant(variant: Variant) -> Channel {
    Channel::Ring(RingMode::Paper(variant))
}

/// M1: on huge pages, where the machine has some.
const M1: Channel = variant(Variant::HugePages);
/// M8: on ordinary ones.
const M8: Channel = variant(Variant::OrdinaryPages);

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
        let (pages, m9);
        if bench.place.is_simulated() {
            (pages, m9) = (Pages::simulated(), None);
        } else {
            m9 = other_node().map(|node| variant(Variant::WrongNode(node)));
            let arms: Vec<Channel> = [M1].into_iter().chain(m9).collect();
            pages = Pages::probe(bench, &arms)?;
        }
        let rows = Rows::of(&pages, m9);
        let channels = rows.channels();
        let mut outcome = begin(bench, &channels);
        let points = SIZES
            .iter()
            .flat_map(|&size| channels.iter().map(move |&channel| rate(channel, size)));
        let points = points.collect();
        let sweep = Sweep::measure(bench, points, 0.8, Duration::from_secs(1))?;
        sweep.record(&mut outcome);
        record(&mut outcome, &sweep, &rows);
        counts::record(bench, &mut outcome, &channels, &[512])?;
        outcome.notes.push(pages.note());
        outcome.notes.push(
            "M3, M4 and M5 are each RB² in full without one of its batching policies; the paper's text \
             leaves open whether its rows M3 to M5 are that or RB² with only one of them. M7's arrays \
             begin 8 bytes behind a cache line, so that every message takes part of one line more and \
             shares two with its neighbours."
                .into(),
        );
        simulated::note(bench, &mut outcome, simulated::TABLE2);
        Ok(outcome)
    }
}

/// The pages that arms got at each size, at both ends, or why that is not known: asked of the parts
/// themselves, in runs of their own.
#[derive(Debug, Default)]
struct Pages {
    got: BTreeMap<(Channel, usize), Result<[HugePages; 2], String>>,
    /// Bytes of the pages that the system has reserved and that were free before.
    pool_bytes: u64,
    /// Whether the machines are simulated, and have pages as they are asked for.
    simulated: bool,
}

/// Bytes of huge pages that both arrays take: each its slots, and what stands before them.
fn both(size: usize) -> u64 {
    2 * (SLOTS * size + BEFORE).next_multiple_of(HUGE_PAGE) as u64
}

fn pool_bytes() -> u64 {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    let free = std::fs::read_to_string(path).ok();
    let free: Option<u64> = free.and_then(|text| text.trim().parse().ok());
    free.unwrap_or(0).saturating_mul(HUGE_PAGE as u64)
}

impl Pages {
    fn simulated() -> Self {
        Self {
            simulated: true,
            ..Self::default()
        }
    }

    fn probe(bench: &mut Bench<'_>, channels: &[Channel]) -> Result<Self, RunError> {
        let mut pages = Self {
            pool_bytes: pool_bytes(),
            ..Self::default()
        };
        for &channel in channels {
            for size in SIZES {
                let label = format!("pages of {} {size} B", channel.name());
                let counted = bench.once(&label, |bench| counts::count(bench, channel, size))?;
                let got = counted.map(|counted| counted.pages);
                pages.got.insert((channel, size), got);
            }
        }
        Ok(pages)
    }

    /// Whether an arm has huge pages at both ends, or why it has not.
    fn huge(&self, channel: Channel, size: usize) -> Result<(), String> {
        let name = channel.name();
        match self.got.get(&(channel, size)) {
            _ if self.simulated => Ok(()),
            // Either process maps both arrays, so that what one of them has shows at both ends.
            Some(Ok([ours, _])) if ours.reserved_bytes > 0 && self.pool_bytes < both(size) => {
                Err(format!(
                    "{} MiB of reserved huge pages are free, {name} at {size} B takes {} (root reserves them \
                     in vm.nr_hugepages)",
                    self.pool_bytes >> 20,
                    both(size) >> 20
                ))
            }
            Some(Ok([ours, theirs])) if ours.any() && theirs.any() => Ok(()),
            Some(Ok([ours, theirs])) => Err(format!(
                "{name} at {size} B has no huge pages (sender: {ours}; receiver: {theirs}; root reserves \
                 some in vm.nr_hugepages)"
            )),
            Some(Err(why)) => Err(format!("which pages {name} has is not known: {why}")),
            None => Err(format!("which pages {name} has was not looked at")),
        }
    }

    /// What was got, in words.
    fn note(&self) -> String {
        if self.simulated {
            let note = "Simulated machines have huge pages wherever they are asked for. They have no lines of \
                        caches: that M7 lies across them costs nothing there.";
            return note.into();
        }
        let got = self.got.iter().map(|((channel, size), got)| {
            let name = channel.name();
            match got {
                Ok([ours, theirs]) => {
                    format!("{name} at {size} B, sender: {ours}, receiver: {theirs}")
                }
                Err(why) => format!("{name} at {size} B: not known, {why}"),
            }
        });
        let got: Vec<String> = got.collect();
        format!(
            "Pages that were got, of all that a process maps: {}. Where M1 has no huge ones it is what M8 \
             is.",
            got.join("; ")
        )
    }
}

/// Which rows are measured at all, and why figures of others are not there.
struct Rows {
    measured: Vec<(&'static str, Channel)>,
    skipped: BTreeMap<String, String>,
}

impl Rows {
    fn of(pages: &Pages, m9: Option<Channel>) -> Self {
        let mut measured = ROWS.to_vec();
        let mut skipped = BTreeMap::new();
        let mut huge = false;
        for (size, suffix) in SIZES.into_iter().zip(SUFFIXES) {
            let m1 = pages.huge(M1, size);
            huge |= m1.is_ok();
            if let Err(why) = &m1 {
                let why = format!("{why}: M8 is M1 then");
                skipped.insert(format!("m8_over_m1_{suffix}"), why);
            }
            let why = match m9.map(|m9| pages.huge(m9, size)) {
                None if pages.simulated => {
                    Some("the simulated machines have one NUMA node each".to_owned())
                }
                None => Some("this machine has one NUMA node".to_owned()),
                Some(m9) if m9.is_ok() != m1.is_ok() => {
                    let why = [m9.err(), m1.err()].into_iter().flatten();
                    let why: Vec<String> = why.collect();
                    Some(format!(
                        "M9 and M1 differ in their pages: {}",
                        why.join(", ")
                    ))
                }
                Some(_) => None,
            };
            if let Some(why) = why {
                skipped.insert(format!("m9_over_m1_{suffix}"), why);
            }
        }
        if huge {
            measured.push(("m8_over_m1", M8));
        }
        measured.extend(m9.map(|m9| ("m9_over_m1", m9)));
        Self { measured, skipped }
    }

    fn channels(&self) -> Vec<Channel> {
        let others = self.measured.iter().map(|(_, channel)| *channel);
        [M1].into_iter().chain(others).collect()
    }
}

fn record(outcome: &mut Outcome, sweep: &Sweep, rows: &Rows) {
    let per_second = |sample: &Sample| sample.per_second;
    for (key, why) in &rows.skipped {
        outcome.skip(key, why);
    }
    for (size, suffix) in SIZES.into_iter().zip(SUFFIXES) {
        for &(key, channel) in &rows.measured {
            let key = format!("{key}_{suffix}");
            if rows.skipped.contains_key(&key) {
                continue;
            }
            let ratio = sweep.ratio(rate(channel, size), rate(M1, size), per_second);
            let why = sweep.why(rate(channel, size));
            outcome.measured_or(&key, ratio, why);
        }
    }
    let [small, large] = SIZES.map(|size| rate(M1, size));
    let millions = sweep.spread(small, |sample| sample.per_second * 1e-6);
    outcome.measured_or("m1_512_mmsg_per_s", millions, sweep.why(small));
    let bytes = sweep.spread(large, |sample| sample.per_second * MIB as f64 * 1e-9);
    outcome.measured_or("m1_1m_gb_per_s", bytes, sweep.why(large));
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

    use crate::cases::rb2::tests::assert_skipped;

    const ORDINARY: HugePages = HugePages {
        reserved_bytes: 0,
        merged_bytes: 0,
    };
    const HUGE: HugePages = HugePages {
        reserved_bytes: 2 << 20,
        merged_bytes: 0,
    };

    fn got(of: &[(Channel, [HugePages; 2])]) -> Pages {
        let each = of
            .iter()
            .flat_map(|&(channel, pages)| SIZES.map(|size| ((channel, size), Ok(pages))));
        Pages {
            got: each.collect(),
            pool_bytes: u64::MAX,
            simulated: false,
        }
    }

    #[test]
    fn without_huge_pages_at_both_ends_there_is_no_m8() {
        for pages in [[ORDINARY; 2], [HUGE, ORDINARY], [ORDINARY, HUGE]] {
            let rows = Rows::of(&got(&[(M1, pages)]), None);
            assert!(!rows.channels().contains(&M8));
            for suffix in SUFFIXES {
                let why = &rows.skipped[&format!("m8_over_m1_{suffix}")];
                assert!(why.contains("no huge pages"), "{why}");
            }
        }
        let pages = got(&[(M1, [HUGE; 2])]);
        let rows = Rows::of(&pages, None);
        assert!(rows.channels().contains(&M8));
        assert!(!rows.skipped.contains_key("m8_over_m1_512"));
        assert!(
            pages.note().contains("2 MiB on reserved"),
            "{}",
            pages.note()
        );
        // Both are mapped at both ends, so that one array on huge pages shows at either.
        let mut pages = got(&[(M1, [HUGE; 2])]);
        pages.pool_bytes = 150 << 20;
        let rows = Rows::of(&pages, None);
        assert!(!rows.skipped.contains_key("m8_over_m1_512"));
        let why = &rows.skipped["m8_over_m1_1m"];
        assert!(why.contains("takes 260"), "{why}");
        // At one size only: the other one is skipped.
        let mut pages = got(&[(M1, [HUGE; 2])]);
        pages.got.insert((M1, 512), Ok([ORDINARY; 2]));
        let rows = Rows::of(&pages, None);
        assert!(rows.channels().contains(&M8) && rows.skipped.contains_key("m8_over_m1_512"));
        assert!(!rows.skipped.contains_key("m8_over_m1_1m"));
    }

    #[test]
    fn m9_is_compared_on_equal_pages_only() {
        let m9 = variant(Variant::WrongNode(1));
        let of = |ours, theirs| Rows::of(&got(&[(M1, ours), (m9, theirs)]), Some(m9));
        for pages in [[HUGE; 2], [ORDINARY; 2]] {
            let rows = of(pages, pages);
            assert!(!rows.skipped.contains_key("m9_over_m1_1m"));
            assert!(rows.channels().contains(&m9));
        }
        for (ours, theirs) in [([HUGE; 2], [ORDINARY; 2]), ([ORDINARY; 2], [HUGE; 2])] {
            let why = &of(ours, theirs).skipped["m9_over_m1_1m"];
            assert!(why.contains("differ in their pages"), "{why}");
        }
    }

    #[test]
    fn what_was_not_measured_is_skipped_key_by_key() {
        let m9 = variant(Variant::WrongNode(1));
        let known = got(&[(M1, [HUGE; 2]), (m9, [HUGE; 2])]);
        for (pages, m9) in [(Pages::default(), None), (known, Some(m9))] {
            let mut outcome = Outcome::default();
            let sweep = Sweep::default();
            sweep.record(&mut outcome);
            record(&mut outcome, &sweep, &Rows::of(&pages, m9));
            assert_skipped(&ABOUT, &outcome);
        }
    }
}

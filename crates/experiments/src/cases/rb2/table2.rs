//! Table II: RB² with one optimisation switched off at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::sweep::{self, RATES, rate};
use super::{MIB, SLOTS, counts, note_if_simulated, paper, variant};
use crate::bench::Bench;
use crate::claim::Claim::{About as Around, Exactly};
use crate::error::RunError;
use crate::experiment::{About, Case};
use crate::outcome::Outcome;
use crate::pages::HugePages;
use crate::table::{Measured, Table, grid};
use crate::transports::job::{Channel, Variant};

/// The experiment.
pub static TABLE2: Case<Channel> = Case {
    about: About {
        paper: paper("Table II (Exp#4)"),
        ..About::new(
            "rb2-table2",
            "RB² with one optimisation switched off at a time: throughput at 512 B and 1 MiB.",
            "Messages per second of RB² in full (M1) and without batching (M2), early transmission \
             (M3), the elastic threshold (M4), lazy push (M5), zero copy (M6), alignment (M7), huge \
             pages (M8) and the right NUMA node (M9).",
        )
    },
    table,
    measure,
};

/// Bytes of the two messages, and what they are called in keys.
const SIZES: [(u64, &str); 2] = [(512, "512"), (MIB, "1m")];
/// Bytes of a huge page.
const HUGE_PAGE: u64 = 2 << 20;
/// Bytes that a segment and a ring have before the slots, at most.
const BEFORE: u64 = 16 << 10;

/// On huge pages, where the machine has some.
const M1: Channel = variant(Variant::HugePages);
/// On ordinary ones.
const M8: Channel = variant(Variant::OrdinaryPages);

/// The rows M2 to M7; M8 and M9 depend on the machine.
const ROWS: [Channel; 6] = [
    variant(Variant::NoBatching),
    variant(Variant::NoEarlyTransmission),
    variant(Variant::NoElasticThreshold),
    variant(Variant::NoLazyPush),
    variant(Variant::Copies),
    variant(Variant::Unaligned),
];

/// M9: memory on a NUMA node that the first processor does not belong to.
fn m9() -> (Channel, bool) {
    let node = other_node();
    let channel = variant(Variant::WrongNode(node.unwrap_or(0)));
    (channel, node.is_some())
}

fn table() -> Table<Channel> {
    let mut t = sweep::table(&[]);
    for (size, suffix) in SIZES {
        for (row, channel) in (2..).zip(ROWS.into_iter().chain([M8, m9().0])) {
            let ratio = rate(channel, size) / rate(M1, size);
            t.metric(format!("m{row}_over_m1_{suffix}"), ratio);
        }
    }
    t.metric("m1_512_mmsg_per_s", rate(M1, 512) * 1e-6);
    t.metric("m1_1m_gb_per_s", rate(M1, MIB) * MIB as f64 * 1e-9);
    t.of("m2_over_m1_512").paper(Exactly(0.33), "V-B");
    t.of("m7_over_m1_512").paper(Exactly(0.92), "V-B");
    t.of("m7_over_m1_1m").paper(Exactly(0.71), "V-B");
    for (_, suffix) in SIZES {
        t.of(&format!("m8_over_m1_{suffix}"))
            .paper(Around(1.0), "V-B: not evident");
    }
    t.check(
        "512 B: of the batching policies, leaving out M4's costs most (V-B)",
        |of| {
            let [m3, m4, m5] =
                [ROWS[1], ROWS[2], ROWS[3]].map(|row| (rate(row, 512) / rate(M1, 512)).median(of));
            let (m3, m4, m5) = (m3?, m4?, m5?);
            let ours = format!("M3 {m3:.2}, M4 {m4:.2}, M5 {m5:.2} of M1");
            Some((ours, m4 < m3.min(m5)))
        },
    );
    t.note(
        "M3, M4 and M5 are each RB² in full without one of its batching policies; the paper's text \
         leaves open whether its rows M3 to M5 are that or RB² with only one of them. M7's arrays \
         begin 8 bytes behind a cache line, so that every message takes part of one line more and \
         shares two with its neighbours.",
    );
    t
}

fn measure(
    bench: &mut Bench<'_>,
    t: &mut Table<Channel>,
    outcome: &mut Outcome,
) -> Result<Measured<Channel>, RunError> {
    let simulated = bench.place.is_simulated();
    let m9 = Some(m9()).filter(|(_, exists)| *exists && !simulated);
    let m9 = m9.map(|(channel, _)| channel);
    let pages = match simulated {
        true => Pages::simulated(),
        false => Pages::probe(bench, &[M1].into_iter().chain(m9).collect::<Vec<_>>())?,
    };
    let rows = Rows::of(&pages, m9);
    for (key, why) in &rows.skipped {
        outcome.skip(key, why);
    }
    t.arms = rows.measured.iter().map(|channel| channel.note()).collect();
    let points = grid(RATES, &rows.measured, &SIZES.map(|(size, _)| size));
    let measured = sweep::measure(bench, t, points, 0.8, Duration::from_secs(1))?;
    counts::record(bench, outcome, &rows.measured, &[512])?;
    t.note(pages.note());
    note_if_simulated(
        bench,
        outcome,
        "without batching (M2) the unit that sends takes two WRITEs for each \
         message. The elastic threshold (M4) costs throughput here, since nothing on the way is congested and it \
         holds slots back for a round trip. Misaligned arrays (M7) cost nothing, because the model has no cache lines \
         and no memory. Ordinary pages (M8) cost at 1 MiB what is missing in nic.mtt, of which no size was published.",
    );
    Ok(measured)
}

/// The pages that arms got at each size, at both ends, or why that is not known: asked of the parts
/// themselves, in runs of their own.
#[derive(Debug, Default)]
struct Pages {
    got: BTreeMap<(Channel, u64), Result<[HugePages; 2], String>>,
    /// Bytes of the pages that the system has reserved and that were free before.
    pool_bytes: u64,
    /// Whether the machines are simulated, and have pages as they are asked for.
    simulated: bool,
}

/// Bytes of huge pages that both arrays take: each its slots, and what stands before them.
fn both(size: u64) -> u64 {
    2 * (SLOTS as u64 * size + BEFORE).next_multiple_of(HUGE_PAGE)
}

fn pool_bytes() -> u64 {
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    let free = std::fs::read_to_string(path).ok();
    let free: Option<u64> = free.and_then(|text| text.trim().parse().ok());
    free.unwrap_or(0).saturating_mul(HUGE_PAGE)
}

impl Pages {
    fn simulated() -> Self {
        let simulated = true;
        Self {
            simulated,
            ..Self::default()
        }
    }

    fn probe(bench: &mut Bench<'_>, channels: &[Channel]) -> Result<Self, RunError> {
        let pool_bytes = pool_bytes();
        let mut pages = Self {
            pool_bytes,
            ..Self::default()
        };
        for point in grid(RATES, channels, &SIZES.map(|(size, _)| size)) {
            let (channel, size) = (point.arm, point.x);
            let label = format!("pages of {} {size} B", channel.name());
            let counted = bench.once(&label, |bench| counts::count(bench, channel, size))?;
            let got = counted.map(|counted| counted.pages);
            pages.got.insert((channel, size), got);
        }
        Ok(pages)
    }

    /// Whether an arm has huge pages at both ends, or why it has not.
    fn huge(&self, channel: Channel, size: u64) -> Result<(), String> {
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
            "Pages that were got, of all that a process maps: {}. Where M1 has no huge ones it is what M8 is.",
            got.join("; ")
        )
    }
}

/// Which rows are measured at all, M1 first, and why figures of others are not there.
struct Rows {
    measured: Vec<Channel>,
    skipped: BTreeMap<String, String>,
}

impl Rows {
    fn of(pages: &Pages, m9: Option<Channel>) -> Self {
        let (mut skipped, mut huge) = (BTreeMap::new(), false);
        for (size, suffix) in SIZES {
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
                    let why: Vec<String> = [m9.err(), m1.err()].into_iter().flatten().collect();
                    Some(format!(
                        "M9 and M1 differ in their pages: {}",
                        why.join(", ")
                    ))
                }
                Some(_) => None,
            };
            skipped.extend(why.map(|why| (format!("m9_over_m1_{suffix}"), why)));
        }
        let measured = [M1]
            .into_iter()
            .chain(ROWS)
            .chain(huge.then_some(M8))
            .chain(m9);
        let measured = measured.collect();
        Self { measured, skipped }
    }
}

/// A NUMA node with memory that the first processor does not belong to.
fn other_node() -> Option<u32> {
    let text = std::fs::read_to_string("/sys/devices/system/node/has_memory").ok()?;
    let [first, _] = crate::pin::two_cpus();
    nodes(text.trim()).into_iter().find(|&node| {
        let mine = format!("/sys/devices/system/node/node{node}/cpu{first}");
        !std::path::Path::new(&mine).exists()
    })
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
            .flat_map(|&(channel, pages)| SIZES.map(|(size, _)| ((channel, size), Ok(pages))));
        Pages {
            got: each.collect(),
            pool_bytes: u64::MAX,
            simulated: false,
        }
    }

    #[test]
    fn lists_of_nodes() {
        assert_eq!(nodes("0"), [0]);
        assert_eq!(nodes("0,2-4"), [0, 2, 3, 4]);
        assert!(nodes("").is_empty() && nodes("x-3").is_empty());
    }

    #[test]
    fn m8_is_measured_where_m1_has_huge_pages_at_both_ends() {
        let mut few = got(&[(M1, [HUGE; 2])]);
        few.pool_bytes = 150 << 20;
        let mut one_size = got(&[(M1, [HUGE; 2])]);
        one_size.got.insert((M1, 512), Ok([ORDINARY; 2]));
        for (case, pages, measured, skipped) in [
            (
                "none",
                got(&[(M1, [ORDINARY; 2])]),
                false,
                ["no huge pages", "no huge pages"],
            ),
            (
                "none at the receiver",
                got(&[(M1, [HUGE, ORDINARY])]),
                false,
                ["no huge pages"; 2],
            ),
            (
                "none at the sender",
                got(&[(M1, [ORDINARY, HUGE])]),
                false,
                ["no huge pages"; 2],
            ),
            ("at both", got(&[(M1, [HUGE; 2])]), true, ["", ""]),
            // Both are mapped at both ends, so that one array on huge pages shows at either.
            ("too few for 1 MiB", few, true, ["", "takes 260"]),
            ("at 1 MiB alone", one_size, true, ["no huge pages", ""]),
        ] {
            let rows = Rows::of(&pages, None);
            assert_eq!(rows.measured.contains(&M8), measured, "{case}");
            for ((_, suffix), wanted) in SIZES.into_iter().zip(skipped) {
                let why = rows.skipped.get(&format!("m8_over_m1_{suffix}"));
                assert_eq!(why.is_some(), !wanted.is_empty(), "{case}, {suffix}");
                assert!(
                    why.is_none_or(|why| why.contains(wanted)),
                    "{case}: {why:?}"
                );
            }
        }
        assert!(got(&[(M1, [HUGE; 2])]).note().contains("2 MiB on reserved"));
    }

    #[test]
    fn m9_is_compared_on_equal_pages_only() {
        let m9 = variant(Variant::WrongNode(1));
        for (ours, theirs, is_compared) in [
            (HUGE, HUGE, true),
            (ORDINARY, ORDINARY, true),
            (HUGE, ORDINARY, false),
            (ORDINARY, HUGE, false),
        ] {
            let rows = Rows::of(&got(&[(M1, [ours; 2]), (m9, [theirs; 2])]), Some(m9));
            let why = rows.skipped.get("m9_over_m1_1m");
            assert_eq!(why.is_none(), is_compared, "{ours:?}, {theirs:?}");
            assert!(
                why.is_none_or(|why| why.contains("differ in their pages")),
                "{why:?}"
            );
            assert!(rows.measured.contains(&m9));
        }
    }
}

//! Table II: RB² with one optimisation switched off at a time.

use super::sweep::{SweepPlan, bandwidth, rate};
use super::{MIB, about, variant};
use crate::claim::Claim::{About as Around, Above, Below, Exactly};
use crate::cpu_affinity::numa_nodes;
use crate::experiment::Case;
use crate::table::Table;
use crate::transports::job::{Channel, Variant};

/// The experiment `rb2-table2`, Table II.
pub static TABLE2: Case<Channel> = Case {
    about: about(
        "Table II (Exp#4), Table I",
        "rb2-table2",
        "RB² with one optimisation switched off at a time: throughput at 512 B and 1 MiB.",
        "Messages per second of RB² in full (M1) and without batching (M2), early transmission \
             (M3), the elastic threshold (M4), lazy push (M5), zero copy (M6), alignment alone and the cache-friendly \
             structure whole (M7), huge pages (M8), and memory or threads on the right NUMA node (M9).",
    ),
    table,
    measure: |bench, t, outcome| plan().measure(bench, t, outcome),
};

/// Bytes of the two messages, and their names in keys.
const SIZES: [(u64, &str); 2] = [(512, "512"), (MIB, "1m")];
/// M1: RB² with everything on huge pages; the other rows are compared with it.
pub(super) const M1: Channel = variant(Variant::HugePages);
/// The rows of the batching policies, of the copies and of the structure.
const M3: Channel = variant(Variant::NoEarlyTransmission);
const M4: Channel = variant(Variant::NoElasticThreshold);
const M5: Channel = variant(Variant::NoLazyPush);
const M6: Channel = variant(Variant::Copies);
const M7: Channel = variant(Variant::NotCacheFriendly);

/// Returns the rows except M1, with their names in keys.
fn rows() -> [(&'static str, Channel); 10] {
    let [home, other] = numa_nodes().map(|node| node.unwrap_or(0));
    [
        ("m2", variant(Variant::NoBatching)),
        ("m3", M3),
        ("m4", M4),
        ("m5", M5),
        ("m6", M6),
        ("m7", variant(Variant::Unaligned)),
        ("m7_whole", M7),
        ("m8", variant(Variant::OrdinaryPages)),
        ("m9", variant(Variant::WrongNode(other))),
        ("m9_thread", variant(Variant::WrongThreads(home))),
    ]
}

fn plan() -> SweepPlan {
    let arms: Vec<_> = [M1].into_iter().chain(rows().map(|(_, arm)| arm)).collect();
    SweepPlan {
        rates: arms.clone(),
        sizes: [&[512, MIB]; 2],
        counted: (arms, &[512]),
        simulated: "without batching (M2) the RNIC's sending unit handles two WRITEs for each message. The elastic \
            threshold (M4) costs throughput here: nothing on the way is congested, and the threshold holds slots \
            back for a round trip. Misaligned arrays and pointers that share a line (M7) cost nothing, because the \
            model has neither cache lines nor memory. Simulated machines have huge pages wherever they are \
            requested. Ordinary pages (M8) cost misses of nic.mtt at 1 MiB; no publication states the size of this \
            cache.",
        ..SweepPlan::default()
    }
}

fn table() -> Table<Channel> {
    let mut t = plan().table();
    for (size, suffix) in SIZES {
        for (row, channel) in rows() {
            let ratio = rate(channel, size) / rate(M1, size);
            t.metric(format!("{row}_over_m1_{suffix}"), ratio);
        }
        t.of(&format!("m8_over_m1_{suffix}"))
            .paper(Around(1.0), "V-B: not evident");
    }
    t.metric("m1_512_mmsg_per_s", rate(M1, 512) * 1e-6);
    t.metric("m1_1m_gb_per_s", bandwidth(M1, MIB));
    for (key, claim) in [
        ("m2_over_m1_512", Exactly(0.33)),
        ("m7_whole_over_m1_512", Exactly(0.92)),
        ("m7_whole_over_m1_1m", Exactly(0.71)),
        ("m9_thread_over_m1_512", Below(1.0)),
    ] {
        t.of(key).paper(claim, "derived: so many percent less, V-B");
    }
    let costs_more = |size, costly: Channel, other: Channel| {
        let what = format!("{other} over {costly}");
        (what, rate(other, size) / rate(costly, size), Above(1.0))
    };
    t.sentence(
        "512 B: of the batching policies, leaving out M4's costs most (V-B)",
        [M3, M5].map(|other| costs_more(512, M4, other)),
    );
    let policies = [M3, M4, M5].into_iter();
    t.sentence(
        "1 MiB: copying (M6 and M7) is the main bottleneck (V-B)",
        policies.flat_map(|other| [M6, M7].map(|costly| costs_more(MIB, costly, other))),
    );
    t.note(
        "M3, M4 and M5 are each RB² in full without one of its batching policies. The paper's text leaves open \
         whether its rows M3 to M5 are that, or RB² with only one of the policies. The arrays of M7-unaligned begin \
         8 bytes after a cache line boundary, so every message covers part of one more line and shares two with its \
         neighbours. M7-not-cache-friendly is the paper's row: in addition, for every message, each end stores its \
         own three pointers in the line of the pointer that its peer WRITEs. M9-wrong-node has its memory on another \
         NUMA node; M9-wrong-threads has its threads there, as in the paper.",
    );
    t
}

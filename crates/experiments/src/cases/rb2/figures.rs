//! Figures 3, 5, 6 and 7, and the gain of batching on the kernel's rxe.

use super::sweep::{
    RATES, SweepPlan, THREAD_RATES, THREAD_TRIPS, TRIPS, bandwidth, chart, rate, trip,
};
use super::{
    BASELINES, FARM, FARM_PAPER, L5, MIB, RAW, RB2, RB2_HUGE, RB2_LATENCY, RB2_UNBATCHED, SD,
    about, key, name, variant,
};
use crate::claim::Claim::{About as Around, Above, Below, Between, Exactly, More};
use crate::cpu_affinity::allowed_cpus;
use crate::experiment::{About, Case, RunsOn};
use crate::table::{Expr, MEAN, P999, Point, Quantity, RATE, Table};
use crate::transports::job::{Channel, Combination, PaperBaseline, Variant};

/// Message sizes: every other power of two of the paper's range.
const SIZES: &[u64] = &[64, 256, 1024, 4096, 16384, 65536, 262_144, MIB];
/// Message sizes of Figure 3, with those that its text distinguishes.
const FIG3_SIZES: &[u64] = &[
    64, 256, 1024, 2048, 4096, 16384, 32768, 65536, 131_072, 262_144, MIB,
];
const QUICK_SIZES: &[u64] = &[64, 4096, MIB];

/// The arms of figures 5 and 7.
const ARMS: [Channel; 7] = [RB2, RB2_HUGE, FARM, FARM_PAPER, SD, L5, RAW];
/// RB² on ordinary pages and the rings that it is compared with; and RB² on huge pages, as in the paper, and
/// the rings as Table I describes them.
const COMPARED: [(Channel, [Channel; 3]); 2] = [(RB2, BASELINES), (RB2_HUGE, [FARM_PAPER, SD, L5])];
const PAGES: &str = "RB² is measured on ordinary pages and on huge ones (rb2-in-place-huge), which the paper's RB² \
    has. Metrics that end in _huge belong to the latter. FaRM is measured twice. The arm farm writes its messages \
    directly into the memory that it sends, and never waits for a completion. The arm farm-as-published follows \
    Table I: it copies, has one message in flight, and uses huge pages where the machine has some. All other arms \
    have ordinary pages.";

/// Figure 3: the head is pulled or pushed; the tail is known by a completion or by a second WRITE.
pub static FIG3: Case<Channel> = Case {
    about: about(
        "Figure 3",
        "rb2-fig3",
        "Head pulled or pushed, tail by completion or write twice: throughput and round trips.",
        "The four combinations on rings of 128 slots, 64 B to 1 MiB: throughput in batches of 16 slots; round trips \
             without batches, mean and 99.9th percentile. The head lags by 16 slots.",
    ),
    table: fig3,
    measure: |bench, t, outcome| fig3_plan().measure(bench, t, outcome),
};

/// Slots of a batch, and the slots by which the head lags behind (section IV-A).
const THRESHOLD: u32 = 16;

/// Returns Pull+CQ, Pull+WT, Push+CQ and Push+WT, in batches of `batch` slots.
fn combinations(batch: u32) -> [Channel; 4] {
    [(true, true), (true, false), (false, true), (false, false)].map(|(pull, cq)| {
        Channel::Baseline(PaperBaseline::SyncVariant(Combination {
            pull,
            cq,
            batch,
            lazy: THRESHOLD,
        }))
    })
}

fn fig3_plan() -> SweepPlan {
    let batched = combinations(THRESHOLD).to_vec();
    SweepPlan {
        // For latency every message is sent at once; heads lag behind as before.
        trips: combinations(1).to_vec(),
        rates: batched.clone(),
        sizes: [FIG3_SIZES, QUICK_SIZES],
        counted: (batched, &[64]),
        soft: "The paper explains the round trips by the completions that a receiver polls and the receives that it \
            posts for each. Here these cost what the software RNIC's queues cost.",
        simulated: "pushing wins at 64 B because a sender that pulls waits for the round trip of a READ while its \
            128 slots are full. The tail latency of CQ arises because receives are posted again 32 at a time \
            (cpu.post_recv each), at both ends in the same round trip. The mean of CQ is lower, because the request \
            of a WRITE with immediate reaches the RNIC with its doorbell, while the RNIC fetches two WRITEs by a DMA \
            read (pcie.read).",
        ..SweepPlan::default()
    }
}

fn fig3() -> Table<Channel> {
    let mut t = fig3_plan().table();
    let (batched, unbatched) = (combinations(THRESHOLD), combinations(1));
    let [pull_cq, pull_wt, push_cq, push_wt] = batched;
    let gains = [push_cq, push_wt]
        .map(|push| [pull_cq, pull_wt].map(|pull| rate(push, 64) / rate(pull, 64)));
    let gains = gains.concat();
    t.metric("push_over_pull_64_lowest", Expr::Lowest(gains.clone()))
        .paper(Exactly(1.359), "IV-A");
    t.metric("push_over_pull_64_highest", Expr::Highest(gains))
        .paper(Exactly(1.517), "IV-A");
    for (size, suffix) in [(64, "64"), (MIB, "1m")] {
        let ratio = rate(push_wt, size) / rate(push_cq, size);
        t.metric(format!("push_wt_over_push_cq_{suffix}"), ratio);
    }
    let [.., slow, fast] = unbatched;
    for (name, quantity) in [("mean", MEAN), ("p999", P999)] {
        let ratio = trip(slow, 64, quantity) / trip(fast, 64, quantity);
        t.metric(format!("push_cq_over_push_wt_rtt64_{name}"), ratio);
    }
    for (batched, unbatched) in batched.into_iter().zip(unbatched) {
        t.metric(key(batched, "64_mmsg_per_s"), rate(batched, 64) * 1e-6);
        t.metric(key(batched, "rtt64_mean_ns"), trip(unbatched, 64, MEAN));
    }
    let of = |keeps: fn(u64) -> bool| FIG3_SIZES.iter().copied().filter(move |size| keeps(*size));
    t.sentence(
        "below 32 KB Push+CQ takes 10 µs to 16 µs on average (IV-A, read as the level, not as the excess)",
        of(|size| size < 32768).map(|size| {
            let microseconds = trip(slow, size, MEAN) * 1e-3;
            (format!("{size} B"), microseconds, Between(10.0, 16.0))
        }),
    );
    t.sentence(
        "Push+CQ and Push+WT have roughly equivalent throughput but for messages of 1 KB and 2 KB (IV-A)",
        of(|size| size != 1024 && size != 2048).map(|size| {
            let ratio = rate(push_cq, size) / rate(push_wt, size);
            (format!("{size} B"), ratio, Around(1.0))
        }),
    );
    t.sentence(
        "below 128 KB the 99.9th percentile of Push+CQ is significantly higher (Figure 3c)",
        of(|size| size < 131_072).map(|size| {
            let ratio = trip(slow, size, P999) / trip(fast, size, P999);
            (format!("{size} B: over that of Push+WT"), ratio, More(1.0))
        }),
    );
    t.sentence(
        "from 256 B to 4 KB pushing is ahead (Figure 3a)",
        of(|size| (256..=4096).contains(&size)).map(|size| {
            let lowest = Expr::Lowest(vec![rate(push_cq, size), rate(push_wt, size)]);
            let highest = Expr::Highest(vec![rate(pull_cq, size), rate(pull_wt, size)]);
            (format!("{size} B"), lowest / highest, More(1.0))
        }),
    );
    t.note("Round trips are measured with the same combinations in batches of one slot.");
    t
}

/// Figure 5: throughput over the message size, RB² compared with the other designs.
pub static FIG5: Case<Channel> = Case {
    about: about(
        "Figure 5 (Exp#1), Table I",
        "rb2-fig5",
        "RB² against FaRM-, SocksDirect- and L5-style rings and raw WRITEs: throughput over size.",
        "Messages per second one way, 64 B to 1 MiB, in rings of 128 messages; and what each design posts, completes \
             and copies for a message.",
    ),
    table: fig5,
    measure: |bench, t, outcome| fig5_plan().measure(bench, t, outcome),
};

fn fig5_plan() -> SweepPlan {
    SweepPlan {
        rates: ARMS.to_vec(),
        sizes: [SIZES, QUICK_SIZES],
        counted: (ARMS[..6].to_vec(), &[64, MIB]),
        soft: "The paper's link carries 100 Gbit/s. Here there is no link, and the machine's memory bounds large \
               messages.",
        simulated: "at 64 B, FaRM and L5 are limited by the RNIC's sending unit, which handles two WRITEs for each \
            message (nic.tx_message); farm-as-published by a round trip for each message; SocksDirect by its \
            sender's processor, because fewer than ten requests are ever in flight and so each message goes alone; \
            RB² by the elastic threshold, which publishes once a round trip. With more work for each message RB² \
            comes closer to plain WRITEs. At 1 MiB the designs that copy are limited by the processor. The model \
            copies at cpu.copy_rate, the rate for cached buffers, although the arrays of 128 messages fit no cache, \
            because it has no memory bandwidth. On ordinary pages RB² and plain WRITEs wait for address translations \
            at 1 MiB (nic.mtt). Nothing in the model brings L5 down to 10 Gbit/s.",
        ..SweepPlan::default()
    }
}

fn fig5() -> Table<Channel> {
    let mut t = fig5_plan().table();
    for (size, suffix) in [(64, "64"), (MIB, "1m")] {
        for (ours, baselines) in COMPARED {
            for &baseline in &ARMS[2..] {
                let over = format!("over_{}_{suffix}", name(baseline));
                t.metric(key(ours, &over), rate(ours, size) / rate(baseline, size));
            }
            // The baseline is chosen by its median, so it is the same one in every round.
            let baselines = || baselines.map(|baseline| rate(baseline, size)).to_vec();
            for (which, baseline, claims) in [
                ("fastest", Expr::Highest(baselines()), [2.5, 1.8]),
                ("slowest", Expr::Lowest(baselines()), [7.5, 8.5]),
            ] {
                let ratio = rate(ours, size) / baseline;
                t.metric(key(ours, &format!("over_{which}_{suffix}")), ratio)
                    .paper(Exactly(claims[usize::from(size == MIB)]), "I");
            }
        }
        for channel in ARMS {
            match size {
                64 => t.metric(key(channel, "64_mmsg_per_s"), rate(channel, 64) * 1e-6),
                _ => t.metric(key(channel, "1m_gb_per_s"), bandwidth(channel, MIB)),
            };
        }
    }
    let ratio = rate(SD, 64) / rate(RAW, 64);
    t.metric("socksdirect_over_raw_64", ratio)
        .paper(Around(1.0), "V-B: similar to raw WRITE");
    for huge in ["", "_huge"] {
        t.of(&format!("rb2_over_raw_64{huge}"))
            .paper(Above(2.0), "V-B");
        t.of(&format!("rb2_over_raw_1m{huge}"))
            .paper(Around(1.0), "V-B: almost the same");
    }
    for key in ["rb2_1m_gb_per_s", "rb2_1m_gb_per_s_huge", "raw_1m_gb_per_s"] {
        t.of(key).paper(Around(11.25), "V-B: close to 90 Gbit/s");
    }
    t.of("l5_1m_gb_per_s")
        .paper(Around(1.25), "V-B: around 10 Gbit/s");
    t.sentence(
        "for large messages L5 is always around 10 Gbit/s (V-B)",
        [65536, 262_144, MIB].map(|size| {
            let gigabits = bandwidth(L5, size) * 8.0;
            (format!("{size} B"), gigabits, Around(10.0))
        }),
    );
    t.note(PAGES);
    t.note(
        "The application writes and reads one word of a message. Designs that copy touch all of it, at either end; \
         those that do not copy leave it where the device put it. RB² has fixed framing without a header, so a \
         message of 64 B is one line. The rivals that pack messages have a header of 8 bytes. The receiver of raw \
         WRITEs reads nothing, so their rate is that of the sender alone, and the lines stay in its cache.",
    );
    t
}

/// Figure 6: round trips over the message size.
pub static FIG6: Case<Channel> = Case {
    about: about(
        "Figure 6 (Exp#2)",
        "rb2-fig6",
        "RB² against FaRM-, SocksDirect- and L5-style rings and raw WRITEs: round trips over size.",
        "A message there and back, one at a time, 64 B to 1 MiB: mean and 99.9th percentile of 300,000 round trips \
             after a warm-up of 100,000, divided among the repeats.",
    ),
    table: fig6,
    measure: |bench, t, outcome| fig6_plan().measure(bench, t, outcome),
};

fn fig6_plan() -> SweepPlan {
    SweepPlan {
        trips: [&ARMS[..], &[RB2_LATENCY]].concat(),
        sizes: [SIZES, QUICK_SIZES],
        simulated: "the RNIC fetches two WRITEs that are posted together by a DMA read, at either end; this is what \
            RB² takes beyond plain WRITEs. A WRITE that is posted alone comes with its doorbell. The device does not \
            promise to place bytes in order, so rb2-latency works as the ring without batches. Neither interrupts \
            nor a scheduler disturb anything, so tails are short. The tail of SocksDirect arises because receives \
            are posted again 32 at a time (cpu.post_recv each), at both ends in the same round trip.",
        ..SweepPlan::default()
    }
}

fn fig6() -> Table<Channel> {
    let plan = fig6_plan();
    let mut t = plan.table();
    for channel in plan.trips {
        for (name, quantity) in [("mean", MEAN), ("p999", P999)] {
            let figure = format!("rtt64_{name}_ns");
            t.metric(key(channel, &figure), trip(channel, 64, quantity));
        }
    }
    for (ours, baselines) in COMPARED {
        let below = trip(SD, 64, P999) - trip(ours, 64, P999);
        t.metric(key(ours, "rtt64_below_socksdirect_p999_ns"), below)
            .paper(Exactly(6000.0), "V-B");
        let baselines = || baselines.map(|baseline| trip(baseline, MIB, P999)).to_vec();
        for (which, baseline, claim) in [
            ("slowest", Expr::Highest(baselines()), 0.06),
            ("fastest", Expr::Lowest(baselines()), 0.23),
        ] {
            let ratio = trip(ours, MIB, P999) / baseline;
            t.metric(key(ours, &format!("rtt1m_p999_over_{which}")), ratio)
                .paper(Exactly(claim), "I");
        }
        t.of(&key(ours, "rtt64_mean_ns"))
            .paper(Around(4000.0), "V-B");
    }
    t.metric("l5_rtt1m_p999_ns", trip(L5, MIB, P999))
        .paper(Exactly(4e6), "V-B");
    t.of("l5_rtt64_mean_ns").paper(Exactly(2500.0), "V-B");
    let mean = |ours, theirs, size| trip(ours, size, MEAN) / trip(theirs, size, MEAN);
    t.sentence(
        "64 B: RB² is very close to SocksDirect, and L5 to plain WRITEs; 1 MiB: RB² is comparable to plain WRITEs (V-B)",
        [
            ("RB² over SocksDirect", mean(RB2_HUGE, SD, 64), Around(1.0)),
            ("L5 over plain WRITEs", mean(L5, RAW, 64), Around(1.0)),
            ("1 MiB: RB² over plain WRITEs", mean(RB2_HUGE, RAW, MIB), Around(1.0)),
        ],
    );
    t.note(PAGES);
    t
}

/// Figure 7: several pairs of senders and receivers at the same time.
pub static FIG7: Case<Channel> = Case {
    about: about(
        "Figure 7 (Exp#3)",
        "rb2-fig7",
        "RB² against FaRM-, SocksDirect- and L5-style rings and raw WRITEs: 1 to 8 pairs at once.",
        "Messages of 64 B per second of all pairs together, and the slowest pair's 99.9th percentile of round trips, \
             for 1 to 8 pairs of a sending and a receiving process; for RB² also with pairs of threads of one \
             process.",
    ),
    table: fig7,
    measure: |bench, t, outcome| {
        let cores = allowed_cpus().len();
        if !bench.testbed.is_simulated() {
            outcome.pinning = format!(
                "{cores} processors; sender and receiver of a pair on two of them, pair after pair until none are \
                 left, then from the first again"
            );
        }
        if let Some(first) = PAIRS
            .iter()
            .find(|&&n| bench.testbed.is_crowded(n as usize))
        {
            t.note(format!(
                "From {first} pairs on there are more senders and receivers than processors ({cores}), and one that \
                 has nothing to do yields its processor to the others. The processors then bound the throughput. The \
                 cost of sharing a processor depends on how much a sender hands over before another one runs: RB² \
                 hands over its whole ring. Round trips include the wait for a processor. Only a machine with two \
                 processors for each pair can show whether a design scales."
            ));
        }
        fig7_plan().measure(bench, t, outcome)
    },
};

const PAIRS: &[u64] = &[1, 2, 3, 4, 5, 6, 7, 8];

fn fig7_plan() -> SweepPlan {
    SweepPlan {
        rates: ARMS.to_vec(),
        trips: ARMS.to_vec(),
        threads: vec![RB2],
        sizes: [&[64]; 2],
        pairs: [PAIRS, &[1, 2, 8]],
        simulated: "each of up to eight pairs has cores, queue pairs and sending units of its own, so pairs share \
            only the bus and the link. With eight pairs RB² fills the link; the others are as far from filling it as \
            with one pair. Senders and receivers are not processes here, so threads of one process would give the \
            same.",
        ..SweepPlan::default()
    }
}

fn fig7() -> Table<Channel> {
    let mut t = fig7_plan().table();
    let at = |load, channel, pairs, quantity: Quantity| {
        Expr::At(Point::of(load, channel, 64).with(pairs), quantity)
    };
    let rate = |channel, pairs| at(RATES, channel, pairs, RATE);
    for channel in ARMS {
        let ratio = rate(channel, 8) / rate(channel, 1);
        t.metric(key(channel, "8_pairs_over_1"), ratio);
    }
    for ours in [RB2, RB2_HUGE] {
        t.metric(key(ours, "1_pair_mmsg_per_s"), rate(ours, 1) * 1e-6);
        t.metric(key(ours, "8_pairs_mmsg_per_s"), rate(ours, 8) * 1e-6);
        for &baseline in &ARMS[2..6] {
            let over = format!("over_{}_8_pairs", name(baseline));
            t.metric(key(ours, &over), rate(ours, 8) / rate(baseline, 8));
        }
        t.metric(key(ours, "8_pairs_p999_ns"), at(TRIPS, ours, 8, P999))
            .paper(Below(7000.0), "V-B");
        t.of(&key(ours, "8_pairs_over_1"))
            .paper(Around(8.0), "V-B: almost linearly");
    }
    let threads = |pairs| at(THREAD_RATES, RB2, pairs, RATE);
    for (figure, expr) in [
        ("8_pairs_mmsg_per_s", threads(8) * 1e-6),
        ("8_pairs_over_1", threads(8) / threads(1)),
        ("over_processes_8_pairs", threads(8) / rate(RB2, 8)),
        ("8_pairs_p999_ns", at(THREAD_TRIPS, RB2, 8, P999)),
    ] {
        t.metric(format!("rb2_threads_{figure}"), expr);
    }
    t.of("rb2_threads_8_pairs_over_1")
        .paper(Around(8.0), "V-B: almost linearly");
    t.of("rb2_threads_8_pairs_p999_ns")
        .paper(Below(7000.0), "V-B");
    let tail = |channel| at(TRIPS, channel, 8, P999);
    t.sentence(
        "RB² keeps the lowest tail (V-B); 8 pairs",
        COMPARED.into_iter().flat_map(|(ours, baselines)| {
            baselines.map(|baseline| {
                (
                    format!("{baseline} over {ours}"),
                    tail(baseline) / tail(ours),
                    More(1.0),
                )
            })
        }),
    );
    chart(&mut t, "rate.svg", "rate [Mmsg/s]", RATE, true);
    let tail = "99.9th percentile of the slowest pair [µs]";
    chart(&mut t, "rtt-p999.svg", tail, P999, true);
    t.note(PAGES);
    t.note(
        "Once all pairs are connected, their senders begin and warm up. The rate counts all messages received (raw \
         WRITEs: posted) while their pair measured, divided by the time from the start of the first pair's \
         measurement to the end of the last one's. So a pair that is late lowers it.",
    );
    t
}

/// The gain of batching on real verbs without an RDMA NIC: on the kernel's rxe, every request costs a packet
/// and its acknowledgement.
pub static RXE_RING: Case<Channel> = Case {
    about: About {
        runs_on: RunsOn::Kind("ibv"),
        ..about(
            "Table II (M2), section V-B (Exp#4)",
            "rxe-ring",
            "Short messages with and without batching, meant for the kernel's rxe (--device ibv:rxe0).",
            "Messages of 64 B per second, one way, in a ring of 128 slots, written and read in place: with its \
             default settings; without any batching (the paper's M2: α = β = γ = 1, no gate), so that every message \
             takes one WRITE of the message, one of the tail and one of the head; and without batching except for \
             the lazy head. On a device of libibverbs, which determines the cost of every request.",
        )
    },
    table: rxe_ring,
    measure: |bench, t, outcome| rxe_plan().measure(bench, t, outcome),
};

/// M2 of the paper: a WRITE, a tail and a head for every message.
const M2: Channel = variant(Variant::NoBatching);

fn rxe_plan() -> SweepPlan {
    let arms = vec![RB2, M2, RB2_UNBATCHED];
    SweepPlan {
        rates: arms.clone(),
        sizes: [&[64]; 2],
        counted: (arms, &[64]),
        ..SweepPlan::default()
    }
}

fn rxe_ring() -> Table<Channel> {
    let mut t = rxe_plan().table();
    for (head, channel) in [("", M2), ("_lazy_head", RB2_UNBATCHED)] {
        let ratio = rate(RB2, 64) / rate(channel, 64);
        t.metric(format!("ring64_over_unbatched{head}"), ratio);
        let rate = rate(channel, 64) * 1e-3;
        t.metric(format!("unbatched64{head}_kmsg_per_s"), rate);
    }
    t.metric("ring64_kmsg_per_s", rate(RB2, 64) * 1e-3);
    t
}

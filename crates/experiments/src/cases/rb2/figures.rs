//! Figures 3, 5, 6 and 7, and what batching is worth on the kernel's rxe.

use std::time::Duration;

use super::sweep::{self, RATES, TRIPS, chart, rate, trip};
use super::{
    FARM, L5, MIB, RAW, RB2, RB2_LATENCY, RB2_UNBATCHED, RIVALS, SOCKSDIRECT, counts, key,
    note_if_simulated, paper, variant,
};
use crate::bench::Bench;
use crate::claim::Claim::{About as Around, Above, Below, Exactly};
use crate::error::RunError;
use crate::experiment::{About, Case, RunsOn};
use crate::format::svg::Axis;
use crate::outcome::Outcome;
use crate::pin::allowed_cpus;
use crate::table::{Expr, MEAN, Measured, P999, Point, RATE, Table, grid};
use crate::transports::job::{Channel, Combination, Rival, Variant};

type Result<T> = std::result::Result<T, RunError>;

/// Message sizes: as the paper's, every other power of two.
const SIZES: &[u64] = &[64, 256, 1024, 4096, 16384, 65536, 256 * 1024, MIB];
const QUICK_SIZES: &[u64] = &[64, 4096, MIB];

fn sizes(bench: &Bench<'_>) -> &'static [u64] {
    if bench.options.quick {
        QUICK_SIZES
    } else {
        SIZES
    }
}

/// The rate over the size, and the bandwidth.
fn rate_charts(table: &mut Table<Channel>) {
    let rate = ("rate.svg", "Messages over size", "rate [msg/s]");
    chart(table, rate, RATES, |point| Expr::At(*point, RATE));
    let bandwidth = ("bandwidth.svg", "Throughput over size", "throughput [GB/s]");
    chart(table, bandwidth, RATES, |point| {
        Expr::At(*point, RATE) * point.x as f64 / 1e9
    });
}

/// Mean and 99.9th percentile of round trips over the size.
fn trip_charts(table: &mut Table<Channel>) {
    let mean = (
        "rtt-mean.svg",
        "Round trip over size: mean",
        "round trip [µs]",
    );
    chart(table, mean, TRIPS, |point| Expr::At(*point, MEAN) / 1e3);
    let tail = (
        "rtt-p999.svg",
        "Round trip over size: 99.9th percentile",
        "round trip [µs]",
    );
    chart(table, tail, TRIPS, |point| Expr::At(*point, P999) / 1e3);
}

/// Figure 3: the head pulled or pushed, the tail by completion or by a second WRITE.
pub static FIG3: Case<Channel> = Case {
    about: About {
        paper: paper("Figure 3"),
        ..About::new(
            "rb2-fig3",
            "Head pulled or pushed, tail by completion or write twice: throughput and round trips.",
            "The four combinations on rings of 128 slots, 64 B to 1 MiB: throughput in batches of 16 \
             slots; round trips without batches, mean and 99.9th percentile. Heads are 16 slots behind.",
        )
    },
    table: fig3,
    measure: measure_fig3,
};

/// Slots of a batch, and what the head is behind (section IV-A).
const THRESHOLD: u32 = 16;

const fn combinations(batch: u32) -> [Channel; 4] {
    const fn of(pull: bool, cq: bool, batch: u32) -> Channel {
        let lazy = THRESHOLD;
        Channel::Rival(Rival::Points(Combination {
            pull,
            cq,
            batch,
            lazy,
        }))
    }
    [
        of(true, true, batch),
        of(true, false, batch),
        of(false, true, batch),
        of(false, false, batch),
    ]
}

/// For throughput, in batches; for latency every message at once, heads as lazy as before.
const BATCHED: [Channel; 4] = combinations(THRESHOLD);
const UNBATCHED: [Channel; 4] = combinations(1);

fn fig3() -> Table<Channel> {
    let mut t = sweep::table(&BATCHED);
    let [pull_cq, pull_wt, push_cq, push_wt] = BATCHED;
    let gains = [push_cq, push_wt]
        .map(|push| [pull_cq, pull_wt].map(|pull| rate(push, 64) / rate(pull, 64)));
    let gains = gains.concat();
    t.metric("push_over_pull_64_lowest", Expr::Lowest(gains.clone()))
        .paper(Exactly(1.359), "IV-A");
    t.metric("push_over_pull_64_highest", Expr::Highest(gains))
        .paper(Exactly(1.517), "IV-A");
    t.metric(
        "push_wt_over_push_cq_64",
        rate(push_wt, 64) / rate(push_cq, 64),
    );
    t.metric(
        "push_wt_over_push_cq_1m",
        rate(push_wt, MIB) / rate(push_cq, MIB),
    );
    let [.., slow, fast] = UNBATCHED;
    for (name, quantity) in [("mean", MEAN), ("p999", P999)] {
        let ratio = trip(slow, 64, quantity) / trip(fast, 64, quantity);
        t.metric(format!("push_cq_over_push_wt_rtt64_{name}"), ratio);
    }
    for (batched, unbatched) in BATCHED.into_iter().zip(UNBATCHED) {
        let name = key(batched);
        t.metric(format!("{name}_64_mmsg_per_s"), rate(batched, 64) * 1e-6);
        t.metric(format!("{name}_rtt64_mean_ns"), trip(unbatched, 64, MEAN));
    }
    rate_charts(&mut t);
    trip_charts(&mut t);
    t.note("Round trips are of the same combinations with batches of one slot.");
    t
}

fn measure_fig3(
    bench: &mut Bench<'_>,
    t: &mut Table<Channel>,
    outcome: &mut Outcome,
) -> Result<Measured<Channel>> {
    let points = sizes(bench).iter().flat_map(|&size| {
        [
            grid(RATES, &BATCHED, &[size]),
            grid(TRIPS, &UNBATCHED, &[size]),
        ]
        .concat()
    });
    let points = points.collect();
    let measured = sweep::measure(bench, t, points, 0.7, Duration::from_millis(500))?;
    counts::record(bench, outcome, &BATCHED, &[64])?;
    if bench.options.device.kind() == "soft" {
        t.note(
            "What the paper sees in round trips, the completions that a receiver polls and the receives that \
             it posts for each, costs here what the software RNIC's queues cost.",
        );
    }
    note_if_simulated(
        bench,
        outcome,
        "pushing wins at 64 B because a sender that pulls waits for a READ's \
         round trip while its 128 slots are full. The tail of CQ is that receives are posted again 32 at a time \
         (cpu.post_recv each), at both ends on the same way there and back; its mean is lower, because a WRITE with \
         immediate comes with its doorbell, while two WRITEs are fetched by a DMA read (pcie.read).",
    );
    Ok(measured)
}

/// Figure 5: throughput over the message size, RB² against the designs that it beats.
pub static FIG5: Case<Channel> = Case {
    about: About {
        paper: paper("Figure 5 (Exp#1), Table I"),
        ..About::new(
            "rb2-fig5",
            "RB² against FaRM-, SocksDirect- and L5-style rings and raw WRITEs: throughput over size.",
            "Messages per second one way, 64 B to 1 MiB, in rings of 128 messages; and what each \
             design posts, completes and copies for a message.",
        )
    },
    table: fig5,
    measure: measure_fig5,
};

const ARMS: [Channel; 5] = [RB2, FARM, SOCKSDIRECT, L5, RAW];

fn fig5() -> Table<Channel> {
    let mut t = sweep::table(&ARMS);
    for (size, suffix) in [(64, "64"), (MIB, "1m")] {
        for rival in [FARM, SOCKSDIRECT, L5, RAW] {
            let ratio = rate(RB2, size) / rate(rival, size);
            t.metric(format!("rb2_over_{}_{suffix}", key(rival)), ratio);
        }
        // By the medians: which rival it is does not change from round to round.
        let rivals = || RIVALS.map(|rival| rate(rival, size)).to_vec();
        let (slowest, fastest) = (Expr::Lowest(rivals()), Expr::Highest(rivals()));
        t.metric(
            format!("rb2_over_slowest_{suffix}"),
            rate(RB2, size) / slowest,
        );
        t.metric(
            format!("rb2_over_fastest_{suffix}"),
            rate(RB2, size) / fastest,
        );
        for channel in ARMS {
            let (unit, scale) = match size {
                64 => ("mmsg", 1e-6),
                _ => ("gb", size as f64 * 1e-9),
            };
            t.metric(
                format!("{}_{suffix}_{unit}_per_s", key(channel)),
                rate(channel, size) * scale,
            );
        }
    }
    t.of("rb2_over_fastest_64").paper(Exactly(2.5), "I");
    t.of("rb2_over_slowest_64").paper(Exactly(7.5), "I");
    t.of("rb2_over_fastest_1m").paper(Exactly(1.8), "I");
    t.of("rb2_over_slowest_1m").paper(Exactly(8.5), "I");
    t.of("rb2_over_raw_64").paper(Above(2.0), "V-B");
    t.of("l5_1m_gb_per_s")
        .paper(Around(1.25), "V-B: around 10 Gbit/s");
    t.of("rb2_1m_gb_per_s")
        .paper(Around(11.25), "V-B: close to 90 Gbit/s");
    t.of("raw_1m_gb_per_s")
        .paper(Around(11.25), "V-B: close to 90 Gbit/s");
    rate_charts(&mut t);
    t
}

fn measure_fig5(
    bench: &mut Bench<'_>,
    t: &mut Table<Channel>,
    outcome: &mut Outcome,
) -> Result<Measured<Channel>> {
    let points = grid(RATES, &ARMS, sizes(bench));
    let measured = sweep::measure(bench, t, points, 0.8, Duration::from_millis(700))?;
    counts::record(bench, outcome, &ARMS[..4], &[64, MIB])?;
    t.note(
        "The application writes and reads one word of a message. Designs that copy touch all of it, at \
         either end; those that do not leave it where the device put it. RB² has fixed framing, without \
         a header: a message of 64 B is one line. The rivals that pack messages have a header of 8 \
         bytes. Every arm has ordinary pages, also FaRM, which Table I gives huge ones. \
         Nobody takes what the raw WRITEs bring: their rate is the sender's own, and the lines stay in \
         its cache.",
    );
    if bench.options.device.kind() == "soft" {
        t.note("The paper's link carries 100 Gbit/s; here there is none, and the machine's memory bounds large messages.");
    }
    note_if_simulated(
        bench,
        outcome,
        "at 64 B FaRM and L5 are held back by the unit that sends, which takes \
         two WRITEs for each message (nic.tx_message); SocksDirect by its sender's processor, as fewer than ten \
         requests are ever under way and each message goes alone; RB² by the elastic threshold, which publishes once \
         a round trip. With more work for each message RB² comes closer to plain WRITEs. At 1 MiB the designs that \
         copy are held back by the processor: at cpu.copy_rate, which is of cached buffers, whereas the arrays of 128 \
         messages are in no cache, and the model has no memory to be slow. RB² and plain WRITEs wait for translations \
         of ordinary pages there (nic.mtt). Nothing in the model brings L5 down to 10 Gbit/s.",
    );
    Ok(measured)
}

/// Figure 6: round trips over the message size.
pub static FIG6: Case<Channel> = Case {
    about: About {
        paper: paper("Figure 6 (Exp#2)"),
        ..About::new(
            "rb2-fig6",
            "RB² against FaRM-, SocksDirect- and L5-style rings and raw WRITEs: round trips over size.",
            "A message there and back, one at a time, 64 B to 1 MiB: mean and 99.9th percentile of \
             300,000 round trips after 100,000, divided among the repeats.",
        )
    },
    table: fig6,
    measure: measure_fig6,
};

const FIG6_ARMS: [Channel; 6] = [RB2, RB2_LATENCY, FARM, SOCKSDIRECT, L5, RAW];

fn fig6() -> Table<Channel> {
    let mut t = sweep::table(&FIG6_ARMS);
    for channel in FIG6_ARMS {
        for (name, quantity) in [("mean", MEAN), ("p999", P999)] {
            t.metric(
                format!("{}_rtt64_{name}_ns", key(channel)),
                trip(channel, 64, quantity),
            );
        }
    }
    let below = trip(SOCKSDIRECT, 64, P999) - trip(RB2, 64, P999);
    t.metric("rb2_rtt64_below_socksdirect_p999_ns", below)
        .paper(Exactly(6000.0), "V-B");
    let rivals = || RIVALS.map(|rival| trip(rival, MIB, P999)).to_vec();
    let ours = || trip(RB2, MIB, P999);
    t.metric(
        "rb2_rtt1m_p999_over_slowest",
        ours() / Expr::Highest(rivals()),
    )
    .paper(Exactly(0.06), "I");
    t.metric(
        "rb2_rtt1m_p999_over_fastest",
        ours() / Expr::Lowest(rivals()),
    )
    .paper(Exactly(0.23), "I");
    t.metric("l5_rtt1m_p999_ns", trip(L5, MIB, P999))
        .paper(Exactly(4e6), "V-B");
    t.of("rb2_rtt64_mean_ns").paper(Around(4000.0), "V-B");
    t.of("l5_rtt64_mean_ns").paper(Exactly(2500.0), "V-B");
    trip_charts(&mut t);
    t
}

fn measure_fig6(
    bench: &mut Bench<'_>,
    t: &mut Table<Channel>,
    outcome: &mut Outcome,
) -> Result<Measured<Channel>> {
    let points = grid(TRIPS, &FIG6_ARMS, sizes(bench));
    note_if_simulated(
        bench,
        outcome,
        "two WRITEs that are posted together are fetched by a DMA read, at \
         either end, which is what RB² takes beyond plain WRITEs; one that is posted alone comes with its doorbell. \
         The device does not promise to place bytes in order, so rb2-latency works as the ring without batches. \
         Neither interrupts nor a scheduler disturb anything, so tails are short; SocksDirect's is that \
         receives are posted again 32 at a time (cpu.post_recv each), at both ends on the same way there and back.",
    );
    sweep::measure(bench, t, points, 0.9, Duration::from_millis(500))
}

/// Figure 7: pairs of senders and receivers beside each other.
pub static FIG7: Case<Channel> = Case {
    about: About {
        paper: paper("Figure 7 (Exp#3)"),
        ..About::new(
            "rb2-fig7",
            "RB² against FaRM-, SocksDirect- and L5-style rings and raw WRITEs: 1 to 8 pairs at once.",
            "Messages of 64 B per second of all pairs together, and the slowest pair's 99.9th \
             percentile of round trips, for 1 to 8 pairs of a sending and a receiving process.",
        )
    },
    table: fig7,
    measure: measure_fig7,
};

const PAIRS: &[u64] = &[1, 2, 3, 4, 5, 6, 7, 8];
const QUICK_PAIRS: &[u64] = &[1, 2, 8];

fn fig7() -> Table<Channel> {
    let mut t = sweep::table(&ARMS);
    let rate = |channel, pairs| Expr::At(Point::of(RATES, channel, 64).with(pairs), RATE);
    t.metric("rb2_1_pair_mmsg_per_s", rate(RB2, 1) * 1e-6);
    t.metric("rb2_8_pairs_mmsg_per_s", rate(RB2, 8) * 1e-6);
    for channel in ARMS {
        let ratio = rate(channel, 8) / rate(channel, 1);
        t.metric(format!("{}_8_pairs_over_1", key(channel)), ratio);
    }
    for rival in RIVALS {
        t.metric(
            format!("rb2_over_{}_8_pairs", key(rival)),
            rate(RB2, 8) / rate(rival, 8),
        );
    }
    let tail = Expr::At(Point::of(TRIPS, RB2, 64).with(8), P999);
    t.metric("rb2_8_pairs_p999_ns", tail)
        .paper(Below(7000.0), "V-B");
    let (pairs, rates) = (Axis::linear("pairs"), Axis::linear("rate [Mmsg/s]"));
    t.chart(
        "rate.svg",
        "64 B messages of all pairs",
        (pairs.clone(), rates),
        |point| {
            let rate = || {
                (
                    point.arm.name(),
                    point.n as f64,
                    Expr::At(*point, RATE) / 1e6,
                )
            };
            (point.load == RATES).then(rate)
        },
    );
    let title = "Round trip of 64 B, 99.9th percentile of the slowest pair";
    t.chart(
        "rtt-p999.svg",
        title,
        (pairs, Axis::log("round trip [µs]")),
        |point| {
            let tail = || {
                (
                    point.arm.name(),
                    point.n as f64,
                    Expr::At(*point, P999) / 1e3,
                )
            };
            (point.load == TRIPS).then(tail)
        },
    );
    t.note(
        "The senders of all pairs are told to begin once all pairs are connected. Each pair then warms \
         up and measures for the same time; the rate is all messages that were received (raw WRITEs: \
         posted) while their pair measured, divided by the time from the first pair that began to \
         measure to the last that ended. So a pair that is late lowers it.",
    );
    t
}

fn measure_fig7(
    bench: &mut Bench<'_>,
    t: &mut Table<Channel>,
    outcome: &mut Outcome,
) -> Result<Measured<Channel>> {
    let cores = allowed_cpus().len();
    if !bench.place.is_simulated() {
        outcome.pinning = format!(
            "{cores} processors; the parts of a pair on two of them, one pair after the other until \
             there are none left, then from the first again"
        );
    }
    if let Some(first) = PAIRS.iter().find(|&&n| bench.place.is_crowded(n as usize)) {
        t.note(format!(
            "From {first} pairs on there are more parts than processors ({cores}): a part that has \
             nothing to do offers its processor to the others. What grows with pairs then is not \
             throughput, which the processors bound; what is seen is what it costs that rings share \
             them: how much a sender hands over before another one runs, which for RB² is its whole \
             ring. Round trips include the wait for a processor. Whether it scales has to be seen on \
             a machine with two processors to a pair."
        ));
    }
    let pairs = if bench.options.quick {
        QUICK_PAIRS
    } else {
        PAIRS
    };
    let points = pairs.iter().flat_map(|&pairs| {
        let both = [grid(RATES, &ARMS, &[64]), grid(TRIPS, &ARMS, &[64])].concat();
        both.into_iter().map(move |point| point.with(pairs))
    });
    let points = points.collect();
    note_if_simulated(
        bench,
        outcome,
        "every pair has cores, queue pairs and sending units of its own up to \
         eight, so nothing is shared but bus and link: with eight pairs RB² fills the link, the others are as far \
         from it as one pair is.",
    );
    sweep::measure(bench, t, points, 0.9, Duration::from_millis(300))
}

/// What batching is worth on real verbs without an RDMA NIC: the kernel's rxe, where every request
/// costs a packet and its acknowledgement.
pub static RXE_RING: Case<Channel> = Case {
    about: About {
        paper: paper("Table II (M2), section V-B (Exp#4)"),
        runs_on: RunsOn::Kind("ibv"),
        ..About::new(
            "rxe-ring",
            "Short messages with and without batching, meant for the kernel's rxe (--device ibv:rxe0).",
            "Messages of 64 B per second, one way, in a ring of 128 slots, written and read in place: with its \
             default settings; without any batching (the paper's M2: α = β = γ = 1, no gate), so that every \
             message is a WRITE, one of the tail and one of the head; and so but for the lazy head. On a \
             device of libibverbs: every request costs what the device makes of it.",
        )
    },
    table: rxe_ring,
    measure: |bench, t, outcome| {
        let points = grid(RATES, &RXE_ARMS, &[64]);
        let measured = sweep::measure(bench, t, points, 0.8, Duration::from_secs(3))?;
        counts::record(bench, outcome, &RXE_ARMS, &[64])?;
        Ok(measured)
    },
};

/// M2 of the paper: a WRITE, a tail and a head for every message.
const M2: Channel = variant(Variant::NoBatching);
const RXE_ARMS: [Channel; 3] = [RB2, M2, RB2_UNBATCHED];

fn rxe_ring() -> Table<Channel> {
    let mut t = sweep::table(&RXE_ARMS);
    t.metric("ring64_over_unbatched", rate(RB2, 64) / rate(M2, 64));
    t.metric(
        "ring64_over_unbatched_lazy_head",
        rate(RB2, 64) / rate(RB2_UNBATCHED, 64),
    );
    t.metric("ring64_kmsg_per_s", rate(RB2, 64) * 1e-3);
    t.metric("unbatched64_kmsg_per_s", rate(M2, 64) * 1e-3);
    t.metric(
        "unbatched64_lazy_head_kmsg_per_s",
        rate(RB2_UNBATCHED, 64) * 1e-3,
    );
    t
}

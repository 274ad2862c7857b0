//! Figures 4 and 10: the delay from a request's doorbell to its completion. Figure 4 shows it within a batch,
//! by size; Figure 10(a) shows where pacing settles it, by the base delay that pacing is given; Figure 10(b)
//! shows how the rate of paced doorbells converges to what the network carries.

use std::collections::BTreeMap;
use std::fmt;

use super::arms::{self, Arm, COUNTED, PAIRS};
use super::{about, word};
use crate::cases::prelude::*;
use crate::nic::{Batches, SampledLoad, Verb, VerbLoad};
use crate::stats::median;
use headworks_workloads::report::PacingSample;

/// Requests of a batch (section III-C).
pub const BATCH: usize = 100;
/// Pause after a batch, in nanoseconds (section III-C).
pub const PAUSE_NS: u64 = 1_000_000;
/// Warm-up and measured time. About twenty batches are measured, after one or two that find the RNIC's caches
/// empty.
const TIMES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
/// The delay is stable if the last request of a batch takes at most this multiple of the first one's time.
const STABLE: f64 = 1.15;

/// Sizes of Figure 4. The second parameter of the points is the bytes of a message; x is the index of the
/// request.
const TINY: Point<&str> = Point::at("64 B", 0).with(64);
const SMALL: Point<&str> = Point::at("4096 B", 0).with(4096);
const LARGE: Point<&str> = Point::at("8192 B", 0).with(8192);

/// Figure 4.
pub static FIG4: Case<&str> = Case {
    about: about(
        "weir-fig4",
        "Figure 4",
        "Delay from the doorbell to the completion of each request in a batch, by size: the queue in an RNIC.",
        "One process SENDs 100 messages of 64 B, 4 KiB or 8 KiB on one queue pair as fast as it can, each with its \
         own doorbell, pauses for 1 ms, and begins again. Measured is the time from each request's doorbell to the \
         poll of its completion.",
    ),
    table: fig4,
    measure: |bench, _, _| {
        bench.measure_lists(
            &[TINY, SMALL, LARGE],
            Sweep::in_virtual_time("", ""),
            |bench, point| {
                let load = VerbLoad {
                    depth: BATCH,
                    work_ns: bench.perftest_ns(),
                    ..VerbLoad::of(Verb::Send, point.n as usize)
                };
                let pause_ns = PAUSE_NS;
                let delays = Batches { load, pause_ns }.batch_delays(&bench.testbed, TIMES)?;
                Ok(delays.into_iter().map(Sample::from).collect())
            },
        )
    },
};

fn fig4() -> Table<&'static str> {
    let what = "100 requests on one queue pair, each posted by a separate call and signalled; between two posts the \
                program polls once, and takes the constant cpu.bench. The paper does not state the verb: these are \
                perftest's SENDs, as in its evaluation";
    let mut t = Table::new(vec![arm("SEND", what, "poll", "0")]);
    t.unlisted();
    let micros = |quantity| move |point: &Point<&'static str>| Expr::At(*point, quantity) * 1e-3;
    let number = |point: &Point<&'static str>| point.x as f64 + 1.0;
    t.n("size [B]");
    t.cell("request in the batch", move |point| number(point).into());
    t.median("delay, median of all batches [µs]", micros(P50));
    t.median("delay, longest [µs]", micros(MAX));
    t.value("batches", COUNT);
    let first = |size| micros(P50)(&size);
    let last = |size| {
        let x = BATCH as u64 - 1;
        micros(P50)(&Point { x, ..size })
    };
    let growth = |size| last(size) - first(size);
    let times = |size| last(size) / first(size);
    for size in [TINY, SMALL, LARGE] {
        let word = word(size.n);
        t.metric(format!("delay{word}_first_us"), first(size));
        t.metric(format!("delay{word}_last_us"), last(size));
        t.metric(format!("last_over_first_{word}"), times(size));
    }
    let faster = growth(LARGE) / growth(SMALL);
    t.metric("growth_8k_over_growth_4k", faster.clone());
    let slowest = micros(MAX)(&LARGE) / first(LARGE);
    t.metric("first_8k_slowest_batch_over_median", slowest.clone());
    t.sentence(
        "4 KB and 8 KB: the time grows continuously within a batch of 100 (III-C)",
        [SMALL, LARGE].map(|size| {
            let what = format!("{}: last over first", size.arm);
            (what, times(size), Claim::Above(STABLE))
        }),
    );
    let says = "8 KB grows faster, as it takes longer to serialise (III-C)";
    t.sentence(
        says,
        [("growth over that of 4 KiB", faster, Claim::Above(1.0))],
    );
    t.sentence(
        "64 B: one core does not reach the line rate, the time remains stable (III-C)",
        [("last over first", times(TINY), Claim::Below(STABLE))],
    );
    t.sentence(
        "after a pause of 1 ms it increases again from the smaller value: the batch before is consumed (III-C)",
        [
            ("last of 8 KiB [µs]", last(LARGE), Claim::Below(PAUSE_NS as f64 / 1e3)),
            ("first in the slowest batch over the median", slowest, Claim::Below(STABLE)),
        ],
    );
    let title = "From doorbell to completion, by request in a batch";
    let x = Axis::linear("request in the batch");
    let axes = (x, Axis::linear("delay [µs]"));
    t.chart("delay.svg", title, axes, move |point| {
        Some((point.arm.to_owned(), number(point), micros(P50)(point)))
    });
    t
}

/// Milliseconds since the first request.
const AT: Quantity = "time";
/// Rate of doorbells, in Gbit/s.
const DOORBELLS: Quantity = "rate";
/// Throughput since the previous moment, as the port counts it, in Gbit/s.
const DELIVERED: Quantity = "delivered";
/// Delay, in microseconds.
const DELAY: Quantity = "delay";
/// The columns of a moment of Figure 10.
const MOMENT: [(Quantity, &str); 8] = [
    (AT, "time [ms]"),
    (DOORBELLS, "rate [Gbit/s]"),
    (DELIVERED, "delivered as the port counts [Gbit/s]"),
    (DELAY, "delay [µs]"),
    ("ratio", "delay beyond the base [base delays]"),
    ("raise", "raised up to [base delays]"),
    ("lower", "lowered from [base delays]"),
    ("active", "active queue pairs"),
];
/// Load of the derived points that hold the moments of the second half of the time, in which pacing has
/// settled.
const SETTLED: &str = "settled";
/// Load of the derived points that hold two times in milliseconds: when the rate of doorbells first comes
/// near its settled median, and from when on it stays near.
const CONVERGED: &str = "converged";
const REACHES: Quantity = "reaches";
const SETTLES: Quantity = "settles";
/// Two rates are near each other if they differ by at most this fraction.
const WITHIN: f64 = 0.1;

/// Bytes of a message of Figure 10.
const SIZE: usize = 512;
/// Interval between two samples of the pacing.
const EVERY: Duration = Duration::from_micros(50);

/// Returns a quantity of a point's settled moments.
fn settled<A>(point: Point<A>, quantity: Quantity) -> Expr<A> {
    let load = SETTLED;
    Expr::At(Point { load, ..point }, quantity)
}

/// Adds the columns of a moment. The points are not listed in the report, because there are too many.
fn moment_columns<A: Copy + PartialEq + fmt::Display + 'static>(t: &mut Table<A>) {
    t.unlisted();
    for (quantity, header) in MOMENT {
        t.value(header, quantity);
    }
}

/// Makes a mark of a chart over time.
fn mark<A: Copy>(name: String, point: &Point<A>, quantity: Quantity) -> Mark<A> {
    (name, Expr::At(*point, AT), Expr::At(*point, quantity))
}

/// Measures each of `points` with all processes sending as much as they can. `paced` returns the testbed with
/// paced devices. The result has a point for each moment, and the points that are derived from all moments.
fn timelines<A: Copy + PartialEq + fmt::Display + 'static>(
    bench: &mut Bench<'_>,
    t: &mut Table<A>,
    points: &[Point<A>],
    unit: &'static str,
    paced: impl for<'a> Fn(&Bench<'a>, &Point<A>, Duration) -> Result<Testbed<'a>, WorkloadError>,
) -> Result<Measured<A>, RunError> {
    let base_delay = arms::base_delay(bench, t)?;
    // No more than 1,024 (`qps_per_step`), so the thresholds are the same as with few queue pairs.
    let (queue_pairs, run) = match bench.options.quick {
        true => (256, Duration::from_millis(5)),
        false => (1024, Duration::from_millis(20)),
    };
    let load = VerbLoad {
        queue_pairs: queue_pairs / PAIRS,
        work_ns: bench.perftest_ns(),
        ..VerbLoad::of(Verb::Send, SIZE)
    };
    let watched = SampledLoad {
        load: Arm::Paced.load(load),
        every_ns: EVERY.nanos(),
    };
    // Sampling begins with the first request, and ends that long after all processes are warm.
    let times = (Duration::from_millis(5), run);
    let mut derived = Vec::new();
    let mut measured =
        bench.measure_lists(points, Sweep::in_virtual_time("", unit), |bench, point| {
            let looks = watched.pacing_samples(&paced(bench, point, base_delay)?, PAIRS, times)?;
            let moments = moments(&looks);
            let [reaches, settles] = near_median(&moments).map(|at| at.unwrap_or(f64::NAN));
            let converged = Sample::of([(REACHES, reaches), (SETTLES, settles)]);
            for (load, samples) in [
                (SETTLED, second_half(&moments)),
                (CONVERGED, &[converged][..]),
            ] {
                let samples = samples.iter().cloned().map(Some).collect();
                derived.push((Point { load, ..*point }, samples));
            }
            Ok(moments)
        })?;
    for (point, samples) in derived {
        measured.derive(point, samples);
    }
    Ok(measured)
}

/// Combines the samples of all processes into moments: the throughput of all processes, and the pacing as the
/// first one saw it.
fn moments(looks: &[Vec<PacingSample>]) -> Vec<Sample> {
    let begun = looks.iter().filter_map(|looks| looks.first());
    let Some(begun) = begun.map(|look| look.at_ns).min() else {
        return Vec::new();
    };
    // By the number of the interval: how many processes sampled in it, and the sum of their messages per
    // second.
    let mut delivered: BTreeMap<u64, (usize, f64)> = BTreeMap::new();
    for pair in looks.iter().flat_map(|looks| looks.windows(2)) {
        let [before, now] = pair else { continue };
        let seconds = (now.at_ns - before.at_ns) as f64 * 1e-9;
        let (seen, sum) = delivered.entry(now.at_ns / EVERY.nanos()).or_default();
        *seen += 1;
        *sum += (now.done - before.done) as f64 / seconds;
    }
    let moment = |look: &PacingSample| {
        let (seen, per_second) = delivered.get(&(look.at_ns / EVERY.nanos()))?;
        let pacing = look.pacing.filter(|_| *seen == looks.len())?;
        let (raise, lower) = pacing.thresholds;
        let values = [
            (look.at_ns - begun) as f64 * 1e-6,
            pacing.rate * 8e-9,
            per_second * (SIZE as f64 + COUNTED) * 8e-9,
            pacing.delay_ns * 1e-3,
            pacing.ratio,
            raise,
            lower,
            f64::from(pacing.active),
        ];
        let quantities = MOMENT.map(|(quantity, _)| quantity);
        Some(Sample::of(quantities.into_iter().zip(values)))
    };
    looks[0].iter().filter_map(moment).collect()
}

/// Returns the moments of the second half of the time, in which pacing has settled.
fn second_half(moments: &[Sample]) -> &[Sample] {
    let until = moments.last().map_or(0.0, |last| last.get(AT));
    let from = moments.partition_point(|moment| moment.get(AT) < until / 2.0);
    &moments[from..]
}

/// Returns two times in milliseconds: when the rate of doorbells first comes near its settled median, and
/// from when on it stays near; `None` if it never does.
fn near_median(moments: &[Sample]) -> [Option<f64>; 2] {
    let rates = second_half(moments).iter();
    let rates: Vec<f64> = rates.map(|moment| moment.get(DOORBELLS)).collect();
    let Some(goal) = median(&rates) else {
        return [None; 2];
    };
    let is_off = |moment: &Sample| (moment.get(DOORBELLS) / goal - 1.0).abs() > WITHIN;
    let came = moments.iter().find(|moment| !is_off(moment));
    let last = moments.iter().rposition(is_off);
    let stays = moments.get(last.map_or(0, |last| last + 1));
    [came, stays].map(|moment| moment.map(|moment| moment.get(AT)))
}

/// Base delays of Figure 10(a), as multiples of the measured one; the multiple is the second parameter of the
/// points.
const BASES: [Point<&str>; 4] = [
    Point::at("base delay x1", 0).with(1),
    Point::at("base delay x2", 0).with(2),
    Point::at("base delay x4", 0).with(4),
    Point::at("base delay x8", 0).with(8),
];

/// Figure 10(a).
pub static FIG10A: Case<&str> = Case {
    about: About {
        paces: true,
        ..about(
            "weir-fig10a",
            "Figure 10(a)",
            "Level at which the delay of paced requests settles, by the configured base delay.",
            "Eight processes SEND messages of 512 B over 1,024 queue pairs (256 in a quick run), 128 outstanding on \
             each, with paced doorbells. Pacing is configured with the measured base delay, and with twice, four and \
             eight times that. Recorded is the delay that pacing measures, every 50 µs.",
        )
    },
    table: fig10a,
    measure: |bench, t, _| {
        timelines(bench, t, &BASES, "", |bench, point, base_delay| {
            Arm::Paced.testbed(&bench.testbed, &[0], base_delay.times(point.n), "")
        })
    },
};

fn fig10a() -> Table<&'static str> {
    let mut t = Table::new(vec![Arm::Paced.note()]);
    t.n("base delay [measured ones]");
    moment_columns(&mut t);
    for point in BASES {
        let times = point.n;
        t.metric(format!("settled_delay_us_x{times}"), settled(point, DELAY));
        t.metric(format!("settled_gbps_x{times}"), settled(point, DELIVERED));
    }
    let [x1, x2, x4, x8] = BASES.map(|point| settled(point, DELAY).all(|spread| spread.median));
    t.metric("delay_grows_with_base", x8.clone() / x1.clone());
    t.sentence(
        "the larger the base delay, the higher the delay at which the cache's occupancy settles (V-C)",
        [
            ("twice the base delay: delay times", x2.clone() / x1, Claim::Above(1.05)),
            ("four times: over that", x4.clone() / x2, Claim::Above(1.05)),
            ("eight times: over that", x8 / x4, Claim::Above(1.05)),
        ],
    );
    let axes = (Axis::linear("time [ms]"), Axis::linear("delay [µs]"));
    let title = "Delay of paced requests against time, by base delay";
    t.marks("delay.svg", title, axes, |point| match point.load {
        "" => vec![mark(point.arm.to_owned(), point, DELAY)],
        _ => Vec::new(),
    });
    t
}

/// Links of Figure 10(b), in Gbit/s; the rate is the second parameter of the points.
const FAST: Point<Arm> = Point::at(Arm::Paced, 0).with(100);
const SLOW: Point<Arm> = Point::at(Arm::Paced, 0).with(40);
const WINDOWED: Point<Arm> = Point::at(Arm::Windowed, 0).with(40);
/// Pacing option for the line rate, which is the same for all links.
const STARTS: &str = ",pace_line_rate_gbps=100";

/// Figure 10(b).
pub static FIG10B: Case<Arm> = Case {
    about: About {
        paces: true,
        ..about(
            "weir-fig10b",
            "Figure 10(b)",
            "The rate of paced doorbells over time, on links of 100 and 40 Gbit/s.",
            "Eight processes SEND messages of 512 B over 1,024 queue pairs (256 in a quick run), 128 outstanding on \
             each. Doorbells are paced, at 100 Gbit/s at first, over a link of 100 Gbit/s and over one of 40. \
             Recorded are the rate and the throughput, every 50 µs. The link of 40 is also measured with pacing by a \
             window. The rate includes the bytes that frames add to each message.",
        )
    },
    table: fig10b,
    measure: |bench, t, outcome| {
        let points = [FAST, SLOW, WINDOWED];
        let measured = timelines(bench, t, &points, "Gbit/s", |bench, point, base_delay| {
            let place = bench.testbed_with(&[format!("link.rate={}", point.n)])?;
            point.arm.testbed(&place, &[0], base_delay, STARTS)
        })?;
        if settled(SLOW, DOORBELLS).median(&measured).is_some()
            && converged(SETTLES).median(&measured).is_none()
        {
            let why =
                "the rate leaves its settled value by more than a tenth until the end of the run";
            outcome.skip("settles_40_after_ms", why);
        }
        Ok(measured)
    },
};

/// Returns when the rate over the slow link converges.
fn converged(quantity: Quantity) -> Expr<Arm> {
    let load = CONVERGED;
    Expr::At(Point { load, ..SLOW }, quantity)
}

fn fig10b() -> Table<Arm> {
    let mut t = Table::new([Arm::Paced, Arm::Windowed].map(Arm::note).to_vec());
    t.n("link [Gbit/s]");
    moment_columns(t.arm());
    for (suffix, point) in [("100", FAST), ("40", SLOW), ("40_windowed", WINDOWED)] {
        let delivered = settled(point, DELIVERED);
        t.metric(format!("delivered_gbps_{suffix}"), delivered);
    }
    for (suffix, point) in [("40", SLOW), ("40_windowed", WINDOWED)] {
        t.metric(format!("delay_us_{suffix}"), settled(point, DELAY));
    }
    for (suffix, point) in [("100", FAST), ("40", SLOW)] {
        let stated = Claim::About(point.n as f64);
        t.metric(format!("settled_gbps_{suffix}"), settled(point, DOORBELLS))
            .paper(stated, "V-C");
    }
    t.metric("reaches_40_after_ms", converged(REACHES));
    t.metric("settles_40_after_ms", converged(SETTLES));
    let moved = settled(SLOW, DOORBELLS).fluctuation();
    t.metric("fluctuation_40", moved.clone());
    let [rate, delivered] =
        [DOORBELLS, DELIVERED].map(|of| settled(SLOW, of).all(|spread| spread.median));
    let near = Claim::Between(1.0 - WITHIN, 1.0 + WITHIN);
    t.sentence(
        "40 Gbit/s: quickly converges to that level, thus matching the rate of consumption (V-C)",
        [
            ("first after [ms]", converged(REACHES), Claim::Below(1.0)),
            ("throughput over the rate", delivered / rate, near),
        ],
    );
    let says = "40 Gbit/s: and fluctuates slightly (V-C)";
    let moves = "highest less lowest, as a part of the median";
    t.sentence(says, [(moves, moved, Claim::Below(2.0 * WITHIN))]);
    t.note(
        "The paper slows a port of the switch down. Here all links have the lower rate (link.rate), so that requests \
         wait in the sending RNIC, because the model has no way for a full switch to tell it. The base delay is that \
         of the preset's own link.",
    );
    let axes = (Axis::linear("time [ms]"), Axis::linear("[Gbit/s]"));
    let title = "Rate of paced doorbells, and throughput, against time";
    t.marks("rate.svg", title, axes, |point| {
        let lines: &[(&str, Quantity)] = match (point.load, point.arm) {
            ("", Arm::Windowed) => &[("delivered by a window", DELIVERED)],
            ("", _) => &[("rate", DOORBELLS), ("delivered", DELIVERED)],
            _ => &[],
        };
        let name = |name| format!("{name}, link {}", point.n);
        let lines = lines.iter().map(|(what, of)| mark(name(what), point, of));
        lines.collect()
    });
    t
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_workloads::report::PacingState;

    #[test]
    fn throughput_of_all_processes_adds_up_by_time() {
        let pacing = PacingState {
            rate: 1e9,
            delay_ns: 5_000.0,
            ratio: 1.5,
            thresholds: (2.0, 4.0),
            active: 16,
        };
        let look = |micros: u64, done| PacingSample {
            at_ns: micros * 1000,
            done,
            pacing: Some(pacing),
        };
        let one = vec![look(10, 0), look(50, 40), look(101, 91), look(150, 140)];
        let other = vec![look(20, 0), look(52, 64), look(100, 160), look(150, 260)];
        // The second process ended early.
        let found = moments(&[one.clone(), other[..3].to_vec()]);
        let times: Vec<f64> = found.iter().map(|moment| moment.get(AT)).collect();
        assert_eq!(times, [0.04, 0.091]);
        // The processes complete one and two requests each microsecond.
        let rate = 3e6 * 574.0 * 8e-9;
        for moment in &found {
            assert!(
                (moment.get(DELIVERED) / rate - 1.0).abs() < 1e-9,
                "{found:?}"
            );
            assert_eq!((moment.get(DOORBELLS), moment.get(DELAY)), (8.0, 5.0));
        }
        assert_eq!(moments(&[one, other]).len(), 3);
        assert_eq!(moments(&[]), []);
    }

    #[test]
    fn it_settles_when_the_rate_leaves_its_median_no_more() {
        let rates = [100.0, 60.0, 41.0, 50.0, 43.0, 39.0, 40.0, 42.0, 40.0];
        let told = |rates: &[f64]| {
            let moments = (0..).zip(rates);
            let moment = |(at, rate): (u32, &f64)| [(AT, f64::from(at)), (DOORBELLS, *rate)];
            let moments = moments.map(moment).map(Sample::of);
            moments.collect::<Vec<_>>()
        };
        assert_eq!(second_half(&told(&rates)).len(), 5);
        for (case, rates, wanted) in [
            ("it does", &rates[..], [Some(2.0), Some(4.0)]),
            ("from the first", &[40.0; 3], [Some(0.0); 2]),
            ("never", &[100.0, 60.0, 40.0, 40.0, 60.0], [Some(2.0), None]),
            ("nothing", &[], [None; 2]),
        ] {
            assert_eq!(near_median(&told(rates)), wanted, "{case}");
        }
    }
}

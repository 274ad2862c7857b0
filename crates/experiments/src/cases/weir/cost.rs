//! Figure 11: (a) the completion time of flows with and without pacing, by message size; (b) the processor
//! time of pacing on this machine and its software RNIC, in nanoseconds and instructions of a request and in
//! a ping-pong.

use headworks::verbs::DeviceName;

use super::arms::{self, Arm, PAIRS};
use super::{about, word};
use crate::cases::prelude::*;
use crate::child_programs;
use crate::nic::{CHAIN_MAX, Flows, Verb, VerbLoad};
use crate::nic_measurements::{self, half_round_trip};
use crate::stats::median;

/// The loads of Figure 11(a): flows of all processes; one request at a time; a message there and back.
const FLOW: &str = "flow";
const SINGLE: &str = "single request";
const PINGPONG: &str = "ping-pong, one way";

/// Bytes of a message, and of a message of the ping-pong.
const SIZES: [u64; 7] = [128, 256, 512, 1024, 4096, 16384, 65536];
const BALL: u64 = 512;
/// Requests of a flow of one process, and queue pairs of a process.
const REQUESTS: usize = 1000;
const QUEUE_PAIRS: usize = 8;
/// Warm-up and measured time of loads with one request at a time, which have the link for themselves.
const ALONE: (Duration, Duration) = (Duration::from_micros(100), Duration::from_micros(500));

const ARMS: [Arm; 2] = [Arm::PLAIN, Arm::Paced];

/// Figure 11(a).
pub static FIG11A: Case<Arm> = Case {
    about: About {
        paces: true,
        ..about(
            "weir-fig11a",
            "Figure 11(a)",
            "Completion times of flows, single requests and round trips, with pacing over without, by size.",
            "Median times, paced over plain, 128 B to 64 KiB. Flows: 1,000 SENDs over eight queue pairs with 128 \
             outstanding on each, from the first doorbell until all have completed; eight processes run one flow \
             after the other. Single SENDs of one process. A ping-pong of 512 B.",
        )
    },
    table: fig11a,
    measure: |bench, t, _| {
        let base_delay = arms::base_delay(bench, t)?;
        let run = if bench.options.quick { 1 } else { 5 };
        let times = (Duration::from_millis(5), Duration::from_millis(run));
        let (flows, singles) = (grid(FLOW, &ARMS, &SIZES), grid(SINGLE, &ARMS, &SIZES));
        let points = [flows, singles, grid(PINGPONG, &ARMS, &[BALL])].concat();
        bench.measure(
            points,
            Sweep::in_virtual_time("B", ""),
            |bench, point, _| {
                // Both ends of a ping-pong send.
                let place = point.arm.testbed(&bench.testbed, &[0, 1], base_delay, "")?;
                let nanos = nanos(&place, point, bench.perftest_ns(), times)?;
                Ok(nanos.map(Into::into))
            },
        )
    },
};

fn fig11a() -> Table<Arm> {
    let mut t = Table::new(ARMS.map(Arm::note).to_vec());
    let micros = |point: &Point<Arm>| Expr::At(*point, VALUE) * 1e-3;
    t.cell("what", |point| point.load.into()).x("size [B]");
    t.arm().median("median [µs]", micros);
    let ratio = |what, size| {
        let [plain, paced] = ARMS.map(|arm| Expr::At(Point::of(what, arm, size), VALUE));
        paced / plain
    };
    for (what, key) in [(FLOW, "fct"), (SINGLE, "single")] {
        for size in SIZES {
            let key = format!("{key}_paced_over_plain_{}", word(size));
            t.metric(key, ratio(what, size));
        }
    }
    let ball = ratio(PINGPONG, BALL);
    t.metric("pingpong_paced_over_plain", ball.clone());
    let same = Claim::Between(0.95, 1.05);
    t.sentence(
        "flows take essentially the same with pacing (V-D)",
        SIZES.map(|size| (format!("{size} B:"), ratio(FLOW, size), same)),
    );
    let says =
        "our own bar, not the paper's: a round trip that nothing limits takes 3 % more at most";
    t.sentence(says, [("times", ball, Claim::Below(1.03))]);
    let axes = (Axis::log("size [B]"), Axis::log("completion time [µs]"));
    let title = "Flows of 1,000 requests and single requests, by size";
    t.chart("fct.svg", title, axes, move |point| {
        let name = format!("{}, {}", point.load, point.arm);
        (point.load != PINGPONG).then(|| (name, point.x as f64, micros(point)))
    });
    t
}

/// Returns the median in nanoseconds; for flows it is the median of the processes' medians.
fn nanos(
    place: &Testbed<'_>,
    point: &Point<Arm>,
    work_ns: u64,
    times: (Duration, Duration),
) -> Result<Option<f64>, WorkloadError> {
    let load = point.arm.load(VerbLoad {
        work_ns,
        ..VerbLoad::of(Verb::Send, point.x as usize)
    });
    let single = VerbLoad { depth: 1, ..load };
    let mut several = load;
    several.queue_pairs = QUEUE_PAIRS;
    let (load, requests, pairs, times) = match point.load {
        PINGPONG => {
            let found = half_round_trip(&single, place, ALONE)?;
            return Ok(found.map(|found| found.p50_ns));
        }
        SINGLE => (single, 1, 1, ALONE),
        _ => (several, REQUESTS, PAIRS, times),
    };
    let found = Flows { load, requests }.times(place, pairs, times)?;
    let medians: Vec<f64> = found.iter().map(|found| found.p50_ns).collect();
    Ok(median(&medians))
}

/// The arms of Figure 11(b), and the loads that both are measured with.
const PLAIN: &str = "plain";
const PACED: &str = "paced";
const ONE: &str = "1 a call";
const CHAIN: &str = "16 a call";
const TRIP: &str = "ping-pong";
/// The metrics of counted instructions.
const INSTRUCTIONS: [&str; 2] = ["instructions_plain", "instructions_paced"];

/// Figure 11(b).
pub static OVERHEAD: Case<&str> = Case {
    about: About {
        paces: true,
        runs_on: RunsOn::Real("it measures what pacing costs on this machine, by the wall clock"),
        ..about(
            "weir-overhead",
            "Figure 11(b)",
            "Processor time of pacing for each request on the software RNIC, when no request has to wait.",
            "WRITEs of 64 B by one queue pair, on the plain and on the paced device in turn; each call is timed from \
             posting to the poll of its completions. Instructions of a post under callgrind. A ping-pong.",
        )
    },
    table: overhead,
    measure: measure_overhead,
};

fn overhead() -> Table<&'static str> {
    let plain = "the device without pacing; every request signalled, and its completion polled before the next call";
    let paced = "the same program on the same device with pacing and its default constants; no request has to wait";
    let notes = [(PLAIN, plain), (PACED, paced)].map(|(name, what)| arm(name, what, "poll", "1"));
    let mut t = Table::new(notes.to_vec());
    let name = |point: &Point<&str>| format!("{}, {}", point.arm, point.load);
    t.cell("arm", move |point| name(point).as_str().into());
    t.value("calls", COUNT);
    let at = |what, arm, quantity| Expr::At(Point::of(what, arm, 0), quantity);
    // The difference is taken round by round, because both devices were measured close together in each
    // round.
    let added = |what, quantity| at(what, PACED, quantity) - at(what, PLAIN, quantity);
    let quantities = [P50, MEAN, P99, P999];
    for (name, of) in ["median", "mean", "p99", "p999"]
        .into_iter()
        .zip(quantities)
    {
        t.spread(format!("{name} [ns/call]"), move |at| Expr::At(*at, of));
        t.metric(format!("added_ns_{name}"), added(ONE, of));
    }
    t.repeats(|point| Expr::At(*point, P50));
    // The paper's processors nominally run two cycles per nanosecond.
    let most = "derived: most within 1,000 cycles (V-D), at 2.0 GHz (V-A)";
    let rare = "derived: one in a thousand about 4,000 cycles (V-D), at 2.0 GHz (V-A)";
    t.of("added_ns_median").paper(Claim::Below(500.0), most);
    t.of("added_ns_p99").paper(Claim::Below(500.0), most);
    t.of("added_ns_p999").paper(Claim::About(2000.0), rare);
    let each = added(CHAIN, P50) / CHAIN_MAX as f64;
    t.metric("added_ns_median_chain16", each);
    let ratio = at(TRIP, PACED, P50) / at(TRIP, PLAIN, P50);
    t.metric("pingpong_paced_over_plain", ratio);
    // The measured value is half a round trip; each end posts two requests for a whole one.
    t.metric("pingpong_added_ns", added(TRIP, P50) * 2.0);
    t.metric("pingpong_allowed_ns", added(ONE, P50) * 4.0);
    t.declare(INSTRUCTIONS).declare(["added_instructions"]);
    t.note(
        "A call is timed from the end of the previous call to the poll of its last completion, with one read of the \
         clock. What is added is the difference between both devices' figures, round by round. Pacing itself \
         measures one request in eight (the constant sample_every), which shows in the tail of the distribution. \
         pingpong_allowed_ns follows from the added time of a request: twice the requests of a round trip, because \
         the other side may wait for both posting and polling.",
    );
    t.note(
        "The paper counts cycles. It explains the slowest call in a thousand by the comparison of the device's clock \
         with the host's after every 1,000 requests. The software RNIC uses the host's clock, so nothing is compared \
         here. Cycles are not counted here: the paper's are converted to nanoseconds at the clock rate of its \
         processors.",
    );
    let y = Axis::linear("part of all calls that were no slower");
    let axes = (Axis::log("nanoseconds"), y);
    let title = "A WRITE of 64 B from its post to its completion";
    t.marks("calls.svg", title, axes, |point| {
        let places = [(P50, 0.5), (P99, 0.99), (P999, 0.999)].into_iter();
        let places = places.filter(|_| point.load == ONE);
        let mark = |(of, part)| (point.arm.to_owned(), Expr::At(*point, of), Expr::Is(part));
        places.map(mark).collect()
    });
    t
}

fn paced(device: &DeviceName) -> Result<DeviceName, WorkloadError> {
    let name = format!("{device},pace").parse();
    name.map_err(|e| WorkloadError::at("device", e))
}

fn measure_overhead(
    bench: &mut Bench<'_>,
    _: &mut Table<&'static str>,
    outcome: &mut Outcome,
) -> Result<Measured<&'static str>, RunError> {
    let whats = [ONE, CHAIN, TRIP];
    let points = whats.map(|what| grid(what, &[PLAIN, PACED], &[0])).concat();
    let sweep = Sweep {
        // The rest of the budget is for counting instructions.
        share: 0.6,
        ..Sweep::over("", Wall::from_millis(300), Wall::from_secs(1))
    };
    let measured = bench.measure(points, sweep, |bench, point, run| {
        let mut place = bench.testbed.clone();
        for device in place.devices.iter_mut().filter(|_| point.arm == PACED) {
            *device = paced(device)?;
        }
        let run = Duration::from_nanos(run.as_nanos() as u64);
        let times = (Duration::from_millis(100), run);
        let found = match point.load {
            ONE => nic_measurements::call_times(&place, 1, times)?,
            CHAIN => nic_measurements::call_times(&place, CHAIN_MAX, times)?,
            _ => half_round_trip(&VerbLoad::of(Verb::Write, 64), &place, times)?,
        };
        Ok(found.map(Sample::from))
    })?;
    let plain = bench.testbed.devices[0].clone();
    let Ok(with_pacing) = paced(&plain) else {
        return Ok(measured);
    };
    for (key, device) in INSTRUCTIONS.into_iter().zip([plain, with_pacing]) {
        let label = format!("instructions of a post, {device}");
        let counted = bench.once(&label, |b| {
            child_programs::post_instructions(&device, b.stop())
        })?;
        match counted {
            Ok((count, version)) => {
                let note = format!("{device}: counted by {version}");
                outcome.notes.push(note);
                outcome.measured(key, Spread::single(count));
            }
            Err(why) => outcome.skip(key, why.to_string()),
        }
    }
    let [plain, paced] = INSTRUCTIONS.map(|key| Some(outcome.ratios().get(key)?.median));
    let added = plain
        .zip(paced)
        .map(|(plain, paced)| Spread::single(paced - plain));
    outcome.measured_or(
        "added_instructions",
        added,
        "the instructions could not be counted",
    );
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated_machine::SimulatedMachine;

    #[test]
    fn pacing_costs_a_single_request_little_and_comes_out_the_same() {
        let device = "sim:cx6-100g".parse().unwrap();
        let machines = SimulatedMachine::on(&device, &[], None).unwrap().unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let place = machines.testbed(&stop);
        let base_delay = arms::probe(&place, 100.0).unwrap();
        let times = (Duration::from_micros(20), Duration::from_micros(100));
        for what in [SINGLE, PINGPONG, FLOW] {
            let of = |arm: Arm| {
                let place = arm.testbed(&place, &[0, 1], base_delay, "").unwrap();
                let found = nanos(&place, &Point::of(what, arm, 512), 100, times);
                found.unwrap().expect("a time")
            };
            let [plain, paced] = ARMS.map(of);
            assert_eq!(paced, of(Arm::Paced), "{what}");
            assert!(
                (0.9..1.2).contains(&(paced / plain)),
                "{what}: {plain} {paced}"
            );
        }
    }

    #[test]
    fn added_cost_is_the_median_of_round_differences() {
        let mut measured = Measured::default();
        let whats = [ONE, CHAIN, TRIP];
        for point in whats.map(|what| grid(what, &[PLAIN, PACED], &[0])).concat() {
            let more = if point.arm == PACED { 50.0 } else { 0.0 };
            let rounds = [100.0, 101.0, 102.0].map(|p50: f64| {
                let times = |factor| factor * (p50 + more);
                let quantities = [(P50, times(1.0)), (P99, times(2.0)), (P999, times(3.0))];
                Some(Sample::of(quantities))
            });
            measured.insert(point, rounds.to_vec());
        }
        let mut outcome = Outcome::default();
        overhead().render(&measured, &mut outcome);
        for (key, wanted) in [
            ("added_ns_median", 50.0),
            ("added_ns_p999", 150.0),
            ("added_ns_median_chain16", 50.0 / 16.0),
            ("pingpong_added_ns", 100.0),
            ("pingpong_allowed_ns", 200.0),
            ("pingpong_paced_over_plain", 151.0 / 101.0),
        ] {
            assert!(
                (outcome.ratios()[key].median - wanted).abs() < 1e-9,
                "{key}"
            );
        }
        let drawn = &outcome.figures[0].series;
        assert_eq!(
            drawn[1].points,
            [(151.0, 0.5), (302.0, 0.99), (453.0, 0.999)]
        );
    }
}

//! The three case studies (section V-C): an application over each design.

use std::time::Duration;

use super::{
    BASELINES, FARM, L5, RB2, RB2_LATENCY, RB2_UNBATCHED, SD, about, key, name, simulated_notes,
};
use crate::apps::flows::Capture;
use crate::apps::kv;
use crate::bench::{Bench, Sweep};
use crate::case_studies::{CaseStudy, PACKETS_MAX, StudyTask};
use crate::claim::Claim::{About as Around, Exactly};
use crate::error::RunError;
use crate::experiment::{About, Case};
use crate::format::svg::Axis;
use crate::table::{COUNT, Expr, Measured, P50, P999, Point, Quantity, RATE, Sample, Table};
use crate::transports::job::{Channel, Report};

const BATCHED: [Channel; 4] = [RB2, FARM, SD, L5];
const PROMPT: [Channel; 5] = [RB2_UNBATCHED, RB2_LATENCY, FARM, SD, L5];

/// Records of case 1, as in the paper.
const RECORDS: u64 = 30_000_000;
/// Requests of case 2, as in the paper.
const READS: u64 = 3_000_000;
/// Requests outstanding in case 2; the paper does not say how many.
const WINDOW: usize = 96;
/// Requests of case 3, as in the paper, and of its warm-up.
const GETS: u64 = 1_000_000;
const WARM_GETS: u64 = 10_000;
/// Most time that a side takes to make its table and to connect.
const SET_UP: Duration = Duration::from_secs(5);
/// Case 1: a network function counts flows.
pub static CASE1: Case<Channel> = Case {
    about: About {
        replays: true,
        ..about(
            "Figure 8 (Case#1)",
            "rb2-case1",
            "A network function that counts flows, over RB², FaRM-, SocksDirect- and L5-style rings.",
            "The time to send 30 million packet records of 40 bytes and to count them by flow. The counts are \
             checked.",
        )
    },
    table: || {
        let mut t = batched("Records", RECORDS);
        t.of("rb2_over_farm").paper(Around(5.0), "V-C");
        t.of("rb2_seconds").paper(Exactly(4.1), "V-C");
        t
    },
    measure: |bench, t, _| {
        let capture = bench.options.trace.clone();
        let records = match &capture {
            Some(path) => {
                let note = match Capture::read(path, PACKETS_MAX) {
                    Ok(capture) => capture.note,
                    Err(why) => Some(why.to_string()),
                };
                t.notes
                    .extend(note.map(|note| format!("Of the capture: {note}.")));
                "The records are those of the first 4,194,304 packets with a known flow in the capture that --trace \
                 names, repeated as often as needed."
            }
            None => {
                "A million records are generated before the measurement and replayed: 65,536 flows whose sizes \
                 follow a bounded Pareto distribution of shape 1.2. --trace FILE takes the records from a capture \
                 instead."
            }
        };
        t.note(records);
        let study = |records| CaseStudy::Flows {
            records,
            capture: capture.clone(),
        };
        measure(bench, t, &BATCHED, study, (RECORDS, 200_000))
    },
};

/// Case 2: a key-value store is read.
pub static CASE2: Case<Channel> = Case {
    about: about(
        "Figure 9 (Case#2)",
        "rb2-case2",
        "A key-value store under YCSB-C, over RB², FaRM-, SocksDirect- and L5-style rings.",
        "The time of 3 million reads of keys drawn by Zipf's law, with requests of 16 bytes, responses of 128 bytes \
             and 96 requests outstanding. Every value is checked.",
    ),
    table: || {
        let mut t = batched("Reads", READS);
        t.of("rb2_over_farm").paper(Around(4.0), "V-C");
        t.of("rb2_seconds").paper(Around(1.0), "V-C");
        t
    },
    measure: |bench, t, _| {
        let study = |requests| CaseStudy::Kv {
            requests,
            window: WINDOW,
            records: kv::RECORDS,
        };
        measure(bench, t, &BATCHED, study, (READS, 100_000))
    },
};

/// Case 3: an HTTP server serves files.
pub static CASE3: Case<Channel> = Case {
    about: about(
        "Figure 10 (Case#3)",
        "rb2-case3",
        "An HTTP server of small files, over RB², FaRM-, SocksDirect- and L5-style rings.",
        "Requests per second, and the 99.9th percentile of the response time, of 1 million GETs of 1 KiB, one after \
             the other, without batches. Every file is checked.",
    ),
    table: || {
        let mut t = table(&PROMPT, RB2_UNBATCHED, "Requests");
        let ratio = rate(RB2_LATENCY) / rate(RB2_UNBATCHED);
        t.metric("rb2_latency_over_rb2", ratio);
        for channel in PROMPT {
            t.metric(key(channel, "requests_per_s"), rate(channel));
            t.metric(key(channel, "p999_ns"), of(channel, P999));
        }
        for (key, value, section) in [
            (
                "rb2_over_socksdirect",
                1.007,
                "derived: 138 over 137 K, V-C",
            ),
            ("rb2_requests_per_s", 138_000.0, "V-C"),
            ("socksdirect_requests_per_s", 137_000.0, "V-C"),
            ("rb2_p999_ns", 7_000.0, "V-C"),
            ("socksdirect_p999_ns", 8_300.0, "derived: 1.3 µs more, V-C"),
        ] {
            t.of(key).paper(Exactly(value), section);
        }
        t
    },
    measure: |bench, t, _| {
        let study = |requests| CaseStudy::Http {
            requests,
            warm: WARM_GETS.min(requests / 10),
        };
        measure(bench, t, &PROMPT, study, (GETS, 20_000))
    },
};

const fn of(channel: Channel, quantity: Quantity) -> Expr<Channel> {
    Expr::At(Point::at(channel, 0), quantity)
}

const fn rate(channel: Channel) -> Expr<Channel> {
    of(channel, RATE)
}

/// Makes a table of what all cases have: the ratios of RB²'s rate to every rival's, the points and a chart.
fn table(arms: &'static [Channel], ours: Channel, what: &str) -> Table<Channel> {
    let mut t = Table::new(arms.iter().map(|channel| channel.note()).collect());
    let at = |quantity: Quantity| move |point: &Point<Channel>| Expr::At(*point, quantity);
    t.arm().median("messages", at(COUNT));
    t.spread("rate [1/s]", at(RATE));
    t.median("p50 [ns]", at(P50)).median("p99.9 [ns]", at(P999));
    t.repeats(at(RATE));
    for baseline in BASELINES {
        let ratio = rate(ours) / rate(baseline);
        t.metric(format!("rb2_over_{}", name(baseline)), ratio);
    }
    let order = (1..).zip(arms);
    let order: Vec<_> = order.map(|(at, arm)| format!("{at} {arm}")).collect();
    let axes = (Axis::linear(&order.join(", ")), Axis::linear("1/s"));
    let title = format!("{what} per second");
    t.chart("rate.svg", title.clone(), axes, move |point| {
        let place = arms.iter().position(|arm| *arm == point.arm)?;
        Some((title.clone(), place as f64 + 1.0, rate(point.arm)))
    });
    t
}

/// Makes the table of case 1 or 2, which also has the time that `messages` would take at the measured rate.
fn batched(what: &str, messages: u64) -> Table<Channel> {
    let mut t = table(&BATCHED, RB2, what);
    for channel in BATCHED {
        let seconds = Expr::Is(messages as f64) / rate(channel);
        t.metric(key(channel, "seconds"), seconds);
    }
    t.of("rb2_over_l5").paper(Around(2.0), "V-C");
    t.of("rb2_over_socksdirect").paper(Around(2.0), "V-C");
    t
}

/// Measures `study` over every arm alternately. A quick run handles fewer messages, and so does a run in
/// virtual time. No design handles fewer messages per second than `slowest`.
fn measure(
    bench: &mut Bench<'_>,
    t: &mut Table<Channel>,
    arms: &[Channel],
    study: impl Fn(u64) -> CaseStudy,
    (messages, slowest): (u64, u64),
) -> Result<Measured<Channel>, RunError> {
    let quick = bench.options.quick;
    // In virtual time every message takes the same time, so fewer messages suffice.
    let handled = match (bench.testbed.is_simulated(), quick) {
        (true, true) => messages / 300,
        (true, false) => messages / 30,
        (false, true) => messages / 60,
        (false, false) => messages,
    };
    if handled < messages {
        t.note(format!(
            "A repeat handles {handled} messages, or a tenth of that in a quick run whose time is up. Seconds are \
             extrapolated to {messages} messages at the measured rate."
        ));
    }
    let what = "the processor time of the applications for a message was measured with this code, in loops without a \
                channel.";
    t.notes.extend(simulated_notes(bench, what));
    let points = arms.iter().map(|arm| Point::at(*arm, 0)).collect();
    let sweep = Sweep::over("", Duration::ZERO, Duration::ZERO);
    bench.measure(points, sweep, |bench, point, _| {
        let handled = handled / if bench.is_late() { 10 } else { 1 };
        let planned = SET_UP + Duration::from_secs(handled / slowest);
        let task = StudyTask {
            study: study(handled),
            channel: point.arm,
            yields: bench.testbed.is_crowded(1),
            planned_ns: planned.as_nanos() as u64,
        };
        let reports = bench.testbed.run_pair(task)?;
        Ok(reports.iter().find_map(sample))
    })
}

fn sample(report: &Report) -> Option<Sample> {
    let per_second = report.per_second()?;
    let (messages, sample) = match *report {
        Report::Rate { messages, .. } => (messages, Sample::default()),
        Report::Served {
            messages, latency, ..
        } => (messages, latency.into()),
        _ => return None,
    };
    let sample = sample.with(RATE, per_second);
    Some(sample.with(COUNT, messages as f64))
}

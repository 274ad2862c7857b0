//! The three case studies (section V-C): an application over every design.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::apps::flows::Capture;
use crate::apps::kv;
use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::latency::Quantiles;
use crate::outcome::{Grid, Outcome};
use crate::report::csv::{Cell, Table};
use crate::report::human;
use crate::report::svg::{Axis, Figure, Series};
use crate::runner::RunError;
use crate::stats::{Spread, paired_ratio};
use crate::study::{PACKETS_MAX, Study, Task};
use crate::transports::job::{Channel, Report, RingMode, Variant};

use super::{FARM, L5, RB2, RB2_LATENCY, SOCKSDIRECT, begin, key, paper, simulated};

/// Batching off, for case 3.
const RB2_UNBATCHED: Channel = Channel::Ring(RingMode::Paper(Variant::Unbatched));

/// Case 1: traffic is measured.
#[derive(Debug)]
pub struct Case1;
/// Case 2: a key-value store is read.
#[derive(Debug)]
pub struct Case2;
/// Case 3: files are served.
#[derive(Debug)]
pub struct Case3;

const BATCHED: [Channel; 4] = [RB2, FARM, SOCKSDIRECT, L5];
const PROMPT: [Channel; 5] = [RB2_UNBATCHED, RB2_LATENCY, FARM, SOCKSDIRECT, L5];

/// Records of case 1, as in the paper.
const RECORDS: u64 = 30_000_000;
/// Requests of case 2, as in the paper, and those on their way at once.
const READS: u64 = 3_000_000;
const WINDOW: usize = 96;
/// Requests of case 3, as in the paper, and those before them.
const GETS: u64 = 1_000_000;
const WARM_GETS: u64 = 10_000;
/// A side takes so long at most to make its table and to connect.
const SET_UP: Duration = Duration::from_secs(5);
/// No design sends fewer records a second, nor answers fewer reads and requests.
const SLOWEST_RECORDS: u64 = 200_000;
const SLOWEST_READS: u64 = 100_000;
const SLOWEST_GETS: u64 = 20_000;
/// A quick run makes a sixtieth of the messages, and less where time is short.
const QUICK_PART: u64 = 60;
/// A run in virtual time makes this part.
const SIMULATED_PART: u64 = 30;

static CASE1: About = About {
    name: "rb2-case1",
    line: "A network function that counts flows, over RB², FaRM-, SocksDirect- and L5-style rings.",
    measures: "The time that 30 million records of packets, 40 bytes each, take to be sent and counted \
               by flow. The counts are checked.",
    paper: Some(paper("Figure 8 (Case#1)")),
    keys: &[
        "rb2_over_l5",
        "rb2_over_farm",
        "rb2_over_socksdirect",
        "rb2_seconds",
        "farm_seconds",
        "socksdirect_seconds",
        "l5_seconds",
    ],
    paper_values: &[
        ("rb2_over_l5", 2.0),
        ("rb2_over_farm", 5.0),
        ("rb2_over_socksdirect", 2.0),
        ("rb2_seconds", 4.1),
    ],
    replays: true,
};

static CASE2: About = About {
    name: "rb2-case2",
    line: "A key-value store under YCSB-C, over RB², FaRM-, SocksDirect- and L5-style rings.",
    measures: "The time that 3 million reads of keys by Zipf's law take, 16 bytes there and 128 back, \
               96 on their way at once. Every value is checked.",
    paper: Some(paper("Figure 9 (Case#2)")),
    keys: &[
        "rb2_over_l5",
        "rb2_over_farm",
        "rb2_over_socksdirect",
        "rb2_seconds",
        "farm_seconds",
        "socksdirect_seconds",
        "l5_seconds",
    ],
    paper_values: &[
        ("rb2_over_l5", 2.0),
        ("rb2_over_farm", 4.0),
        ("rb2_over_socksdirect", 2.0),
        ("rb2_seconds", 1.0),
    ],
    replays: false,
};

static CASE3: About = About {
    name: "rb2-case3",
    line: "An HTTP server of small files, over RB², FaRM-, SocksDirect- and L5-style rings.",
    measures: "Requests per second, and the 99.9th percentile of a request's time, of 1 million GETs of \
               1 KiB, one after the other, without batches. Every file is checked.",
    paper: Some(paper("Figure 10 (Case#3)")),
    keys: &[
        "rb2_over_l5",
        "rb2_over_farm",
        "rb2_over_socksdirect",
        "rb2_latency_over_rb2",
        "rb2_requests_per_s",
        "rb2_latency_requests_per_s",
        "farm_requests_per_s",
        "socksdirect_requests_per_s",
        "l5_requests_per_s",
        "rb2_p999_ns",
        "rb2_latency_p999_ns",
        "farm_p999_ns",
        "socksdirect_p999_ns",
        "l5_p999_ns",
    ],
    paper_values: &[
        ("rb2_requests_per_s", 138_000.0),
        ("socksdirect_requests_per_s", 137_000.0),
        ("rb2_over_socksdirect", 1.007),
        ("rb2_p999_ns", 7_000.0),
        ("socksdirect_p999_ns", 8_300.0),
    ],
    replays: false,
};

/// What one run of an application came to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    messages: u64,
    per_second: f64,
    latency: Quantiles,
}

/// All arms with their samples, one per round, and why arms could not be measured.
#[derive(Debug, Default)]
struct Measured {
    arms: Vec<Channel>,
    samples: Vec<Vec<Option<Sample>>>,
    failures: BTreeMap<Channel, String>,
}

impl Measured {
    fn numbers(&self, channel: Channel, of: impl Fn(&Sample) -> f64) -> Vec<f64> {
        let at = self.arms.iter().position(|&arm| arm == channel);
        let samples = at.and_then(|at| self.samples.get(at));
        let samples = samples.map(Vec::as_slice).unwrap_or_default().iter();
        samples
            .map(|sample| sample.as_ref().map_or(f64::NAN, &of))
            .collect()
    }

    fn spread(&self, channel: Channel, of: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(&self.numbers(channel, of))
    }

    /// How much faster `ours` is, round by round.
    fn ratio(&self, ours: Channel, theirs: Channel) -> Option<Spread> {
        let rates = |channel| self.numbers(channel, |sample| sample.per_second);
        paired_ratio(&rates(ours), &rates(theirs))
    }

    fn why(&self, channel: Channel) -> String {
        let none = || format!("no round of {} gave a figure", channel.name());
        self.failures.get(&channel).cloned().unwrap_or_else(none)
    }
}

/// Runs `study` over every arm in turns, as far as a quick run has time; none handles fewer messages a
/// second than `slowest`.
fn measure(
    bench: &mut Bench<'_>,
    arms: &[Channel],
    study: impl Fn(u64) -> Study,
    messages: u64,
    slowest: u64,
) -> Result<Measured, RunError> {
    let rounds = bench.alternate_arms(
        arms,
        |channel| *channel,
        |channel| channel.name(),
        |bench, channel| {
            let messages = match (bench.options.quick, bench.is_late()) {
                _ if bench.place.is_simulated() => messages / simulated_part(bench),
                (false, _) => messages,
                (true, false) => messages / QUICK_PART,
                (true, true) => messages / QUICK_PART / 10,
            };
            let task = Task {
                study: study(messages),
                channel: *channel,
                yields: bench.place.is_crowded(1),
            };
            let planned = SET_UP + Duration::from_secs(messages / slowest);
            let reports = bench.place.run_study(&task, planned)?;
            Ok(reports.iter().find_map(sample))
        },
    )?;
    Ok(Measured {
        arms: arms.to_vec(),
        samples: rounds.samples,
        failures: rounds.failures,
    })
}

fn sample(report: &Report) -> Option<Sample> {
    let per_second = report.per_second()?;
    let (messages, latency) = match *report {
        Report::Rate { messages, .. } => (messages, Quantiles::default()),
        Report::Served {
            messages, latency, ..
        } => (messages, latency),
        _ => return None,
    };
    Some(Sample {
        messages,
        per_second,
        latency,
    })
}

fn per_second(sample: &Sample) -> f64 {
    sample.per_second
}

/// What all cases have: the ratios of RB²'s speed to every rival's, the points, a table and a figure.
fn record(outcome: &mut Outcome, measured: &Measured, ours: Channel, what: &str) {
    outcome.repeats = measured.samples.iter().map(Vec::len).max().unwrap_or(0);
    for rival in [L5, FARM, SOCKSDIRECT] {
        let name = format!("rb2_over_{}", key(rival));
        outcome.measured_or(&name, measured.ratio(ours, rival), measured.why(rival));
    }
    let mut table = Table::new(&[
        "arm",
        "messages",
        "rate [1/s]",
        "rate low [1/s]",
        "rate high [1/s]",
        "p50 [ns]",
        "p99.9 [ns]",
        "repeats",
    ]);
    let mut grid = Grid {
        title: format!("{what} per second: median (lowest – highest repeat)"),
        header: ["arm", "rate", "p99.9 [ns]"].map(String::from).to_vec(),
        rows: Vec::new(),
    };
    let mut bars = Series {
        name: format!("{what} per second"),
        points: Vec::new(),
    };
    let mut order = Vec::new();
    for (at, &channel) in measured.arms.iter().enumerate() {
        let Some(rate) = measured.spread(channel, per_second) else {
            continue;
        };
        let shown = |s: Option<Spread>| s.map(|s| s.median).filter(|&x| x > 0.0);
        let median = shown(measured.spread(channel, |s| s.latency.p50_ns));
        let tail = shown(measured.spread(channel, |s| s.latency.p999_ns));
        let messages = measured.spread(channel, |s| s.messages as f64);
        table.push(vec![
            channel.name().as_str().into(),
            shown(messages).into(),
            rate.median.into(),
            rate.low.into(),
            rate.high.into(),
            median.into(),
            Cell::from(tail),
            (rate.repeats as f64).into(),
        ]);
        grid.rows.push(vec![
            channel.name(),
            format!(
                "{} ({} – {})",
                human(rate.median),
                human(rate.low),
                human(rate.high)
            ),
            tail.map_or_else(|| "–".into(), human),
        ]);
        bars.points.push((at as f64 + 1.0, rate.median));
        order.push(format!("{} {}", at + 1, channel.name()));
    }
    outcome.points = table;
    outcome.grids.push(grid);
    outcome.figures = vec![Figure {
        file: "rate.svg".into(),
        title: format!("{what} per second"),
        x: Axis::linear(&order.join(", ")),
        y: Axis::linear("1/s"),
        series: vec![bars],
    }];
    for (channel, why) in &measured.failures {
        outcome.notes.push(format!(
            "{} was not measured, or not in every round: {why}",
            channel.name()
        ));
    }
}

/// The figures of cases 1 and 2.
fn batched(outcome: &mut Outcome, measured: &Measured, what: &str, messages: u64) {
    record(outcome, measured, RB2, what);
    seconds(outcome, measured, messages);
}

/// The figures of case 3.
fn prompt(outcome: &mut Outcome, measured: &Measured) {
    record(outcome, measured, RB2_UNBATCHED, "Requests");
    for channel in PROMPT {
        let name = key(channel);
        let rate = measured.spread(channel, per_second);
        let why = measured.why(channel);
        outcome.measured_or(&format!("{name}_requests_per_s"), rate, &*why);
        let tail = measured.spread(channel, |sample| sample.latency.p999_ns);
        outcome.measured_or(&format!("{name}_p999_ns"), tail, why);
    }
    let ratio = measured.ratio(RB2_LATENCY, RB2_UNBATCHED);
    let why = measured.why(RB2_LATENCY);
    outcome.measured_or("rb2_latency_over_rb2", ratio, why);
}

/// The time that `messages` would take at the rate that was measured.
fn seconds(outcome: &mut Outcome, measured: &Measured, messages: u64) {
    for channel in BATCHED {
        let time = measured.spread(channel, |sample| messages as f64 / sample.per_second);
        let name = format!("{}_seconds", key(channel));
        outcome.measured_or(&name, time, measured.why(channel));
    }
}

/// Which part of the messages is handled where time is virtual: every one takes as long there.
fn simulated_part(bench: &Bench<'_>) -> u64 {
    match bench.options.quick {
        true => 10 * SIMULATED_PART,
        false => SIMULATED_PART,
    }
}

fn quick_note(bench: &Bench<'_>, outcome: &mut Outcome, messages: u64) {
    if bench.place.is_simulated() {
        outcome.notes.push(format!(
            "In virtual time {} messages were handled; seconds are those of {messages} at the rate that was \
             seen.",
            messages / simulated_part(bench)
        ));
        simulated::note(bench, outcome, simulated::CASES);
    } else if bench.options.quick {
        outcome.notes.push(format!(
            "A quick run handles {} messages a repeat, or a tenth of that on a machine that is late; \
             its seconds are those of {messages} at the rate that it saw.",
            messages / QUICK_PART
        ));
    }
}

/// What there is to say of how the capture at `path` was read.
fn capture_note(path: &Path) -> Option<String> {
    let note = match Capture::read(path, PACKETS_MAX) {
        Ok(capture) => capture.note()?,
        Err(why) => why.to_string(),
    };
    Some(format!("Of the capture: {note}."))
}

impl Experiment for Case1 {
    fn about(&self) -> &'static About {
        &CASE1
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = begin(bench, &BATCHED);
        let capture = bench.options.trace.clone();
        let study = |records| Study::Flows {
            records,
            capture: capture.clone(),
        };
        if let Some(note) = capture.as_deref().and_then(capture_note) {
            outcome.notes.push(note);
        }
        let measured = measure(bench, &BATCHED, study, RECORDS, SLOWEST_RECORDS)?;
        batched(&mut outcome, &measured, "Records", RECORDS);
        quick_note(bench, &mut outcome, RECORDS);
        outcome.notes.push(match &bench.options.trace {
            Some(_) => {
                "The records are of the first 4,194,304 packets whose flow is known of the \
                 capture that --trace names, repeated as often as it takes."
                    .into()
            }
            None => "The records are made up beforehand, a million of them, and replayed: 65,536 flows \
                     whose sizes follow a bounded Pareto distribution of shape 1.2. --trace FILE takes \
                     them from a capture instead."
                .into(),
        });
        Ok(outcome)
    }
}

impl Experiment for Case2 {
    fn about(&self) -> &'static About {
        &CASE2
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = begin(bench, &BATCHED);
        let study = |requests| Study::Kv {
            requests,
            window: WINDOW,
            records: kv::RECORDS,
        };
        let measured = measure(bench, &BATCHED, study, READS, SLOWEST_READS)?;
        batched(&mut outcome, &measured, "Reads", READS);
        quick_note(bench, &mut outcome, READS);
        Ok(outcome)
    }
}

impl Experiment for Case3 {
    fn about(&self) -> &'static About {
        &CASE3
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = begin(bench, &PROMPT);
        let study = |requests| Study::Http {
            requests,
            warm: WARM_GETS.min(requests / 10),
        };
        let measured = measure(bench, &PROMPT, study, GETS, SLOWEST_GETS)?;
        prompt(&mut outcome, &measured);
        quick_note(bench, &mut outcome, GETS);
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::rb2::tests::assert_skipped;

    #[test]
    fn what_was_not_measured_is_skipped_key_by_key() {
        let nothing = Measured {
            arms: PROMPT.to_vec(),
            ..Measured::default()
        };
        for measured in [&nothing, &Measured::default()] {
            for about in [&CASE1, &CASE2] {
                let mut outcome = Outcome::default();
                batched(&mut outcome, measured, "Records", 7);
                assert_skipped(about, &outcome);
            }
            let mut outcome = Outcome::default();
            prompt(&mut outcome, measured);
            assert_skipped(&CASE3, &outcome);
        }
    }

    #[test]
    fn what_of_a_capture_was_not_replayed_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("odd.pcap");
        // A header of the classic format for Ethernet; one packet of ARP, one of IP that is cut off.
        let mut bytes = Vec::new();
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1] {
            bytes.extend(word.to_le_bytes());
        }
        std::fs::write(&path, &bytes).unwrap();
        let note = capture_note(&path).unwrap();
        assert!(note.contains("odd.pcap"), "{note}");
        let mut packet = |frame: &[u8]| {
            for word in [0, 0, frame.len() as u32, frame.len() as u32] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(frame);
        };
        let arp = [&[0; 12][..], &[0x08, 0x06], &[0; 28]].concat();
        let mut ip = [&[0; 12][..], &[0x08, 0x00], &[0; 28]].concat();
        ip[14] = 0x45;
        ip[17] = 28;
        ip[23] = 17;
        ip[39] = 8;
        packet(&arp);
        packet(&ip);
        std::fs::write(&path, &bytes).unwrap();
        let note = capture_note(&path).unwrap();
        assert!(note.contains("1 packets skipped: not of IP"), "{note}");
    }
}

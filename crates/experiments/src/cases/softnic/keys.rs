//! The keys of the summary and what each is computed from.

use super::arms::{MANY, name};
use super::points::Points;
use crate::nic::{Over, Waker, Way, What};
use crate::outcome::{Grid, Outcome};
use crate::report::csv::{Cell, Table};
use crate::report::human;
use crate::stats::{Spread, paired_ratio};
use crate::transports::job::Report;

const fn flow(way: Way, chain: usize) -> What {
    What::Flow { way, chain }
}

const POLLED: What = flow(Way::PolledMemory, 1);
const POLLED_16: What = flow(Way::PolledMemory, 16);
const SRQ: What = flow(Way::SharedReceives, 1);
const SRQ_16: What = flow(Way::SharedReceives, 16);

const fn spread(queue_pairs: usize, chain: usize) -> What {
    What::Spread { queue_pairs, chain }
}

const fn foreign(size: usize) -> What {
    let over = Over::Verbs;
    What::Foreign { size, over }
}

const fn bare(size: usize) -> What {
    let over = Over::SystemCall;
    What::Foreign { size, over }
}

const FOOTPRINT: What = What::Footprint { queue_pairs: MANY };
const CHANNEL: What = What::Wake(Waker::Channel);
const EVENTFD: What = What::Wake(Waker::EventFd);

/// Ratios of one arm's rate to another's, or of the time that one takes to the other's.
const RATIOS: [(&str, What, What); 7] = [
    ("qps1000_over_one", spread(MANY, 1), spread(1, 1)),
    ("qps1000_over_one_chain16", spread(MANY, 16), spread(1, 16)),
    ("foreign64k_over_writev", foreign(65536), bare(65536)),
    // Of times: the other way round.
    ("foreign64_cost_over_syscall", bare(64), foreign(64)),
    ("wakeup_over_eventfd", EVENTFD, CHANNEL),
    ("srq64_over_write_and_poll", SRQ, POLLED),
    ("srq64_over_write_and_poll_chain16", SRQ_16, POLLED_16),
];

/// Plain figures of one arm's rate: millions per second, GB/s, or nanoseconds for each.
const RATES: [(&str, What); 14] = [
    ("one_qp_mwrite_per_s", spread(1, 1)),
    ("qps1000_mwrite_per_s", spread(MANY, 1)),
    ("one_qp_chain16_mwrite_per_s", spread(1, 16)),
    ("qps1000_chain16_mwrite_per_s", spread(MANY, 16)),
    ("foreign64k_gb_per_s", foreign(65536)),
    ("writev64k_gb_per_s", bare(65536)),
    ("foreign64_ns", foreign(64)),
    ("writev64_ns", bare(64)),
    ("channel_round_trip_ns", CHANNEL),
    ("eventfd_round_trip_ns", EVENTFD),
    ("srq64_mmsg_per_s", SRQ),
    ("write_and_poll64_mmsg_per_s", POLLED),
    ("srq64_chain16_mmsg_per_s", SRQ_16),
    ("write_and_poll64_chain16_mmsg_per_s", POLLED_16),
];

/// Bytes per queue pair.
const BYTES: [&str; 4] = [
    "bytes_per_qp",
    "heap_bytes_per_qp",
    "shared_bytes_per_qp",
    "resident_bytes_per_qp",
];

const ALL: [&str; RATIOS.len() + RATES.len() + BYTES.len()] = {
    let mut all = [""; RATIOS.len() + RATES.len() + BYTES.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i < RATIOS.len() {
            RATIOS[i].0
        } else if i < RATIOS.len() + RATES.len() {
            RATES[i - RATIOS.len()].0
        } else {
            BYTES[i - RATIOS.len() - RATES.len()]
        };
        i += 1;
    }
    all
};

/// Every key of this experiment.
pub(super) const KEYS: &[&str] = &ALL;

/// Computes every key, and the tables.
pub(super) fn record(outcome: &mut Outcome, points: &Points) {
    for (key, ours, theirs) in RATIOS {
        let (a, b) = (points.rates(ours), points.rates(theirs));
        let missing = match Spread::of(&a) {
            None => points.why(ours),
            Some(_) => points.why(theirs),
        };
        outcome.measured_or(key, paired_ratio(&a, &b), missing);
    }
    for (key, what) in RATES {
        let rates = points.rates(what);
        let spread = if key.ends_with("_ns") {
            let times: Vec<f64> = rates.iter().map(|rate| 1e9 / rate).collect();
            Spread::of(&times)
        } else if key.ends_with("_gb_per_s") {
            Spread::of(&rates).map(|s| s.scaled(65536e-9))
        } else {
            Spread::of(&rates).map(|s| s.scaled(1e-6))
        };
        outcome.measured_or(key, spread, points.why(what));
    }
    footprint(outcome, points);
    table(outcome, points);
    for (what, why) in &points.failures {
        outcome.notes.push(format!(
            "{} was not measured, or not in every round: {why}",
            name(*what)
        ));
    }
    outcome.notes.push(
        "Ratios are medians of the ratios within each round, in which all arms take their turn."
            .into(),
    );
}

/// What a queue pair takes: heap of its process, and what it has in shared memory beyond its queues.
fn footprint(outcome: &mut Outcome, points: &Points) {
    let shared = headworks::devices::SOFT_SHARED_BYTES_PER_QP as f64;
    let of = |pick: fn(i64, i64) -> i64| {
        let samples = points.samples.get(&FOOTPRINT).map(Vec::as_slice);
        let each: Vec<f64> = samples
            .unwrap_or_default()
            .iter()
            .flatten()
            .map(|reports| {
                let grown = reports.iter().map(|report| match report {
                    Report::Grown { heap, resident } => pick(*heap, *resident) as f64,
                    _ => f64::NAN,
                });
                grown.sum::<f64>() / (2 * MANY) as f64
            })
            .collect();
        each
    };
    let heap = of(|heap, _| heap);
    let all: Vec<f64> = heap.iter().map(|heap| heap + shared).collect();
    let why = points.why(FOOTPRINT);
    outcome.measured_or("bytes_per_qp", Spread::of(&all), &*why);
    outcome.measured_or("heap_bytes_per_qp", Spread::of(&heap), &*why);
    outcome.measured("shared_bytes_per_qp", Spread::single(shared));
    let resident = of(|_, resident| resident);
    outcome.measured_or("resident_bytes_per_qp", Spread::of(&resident), &*why);
    outcome.notes.push(format!(
        "bytes_per_qp is what the heap of a process grows by (mallinfo2, with the allocator's own \
         words, mean of both processes) for each of {MANY} queue pairs, from before they are made \
         to when each has been connected and used, and {shared} bytes of shared memory: its row in \
         the table and the header of its receive queue. The slots of that queue are not in it. \
         resident_bytes_per_qp, a check, is what VmRSS grows by, slots (2 a queue pair) included; \
         rows are allocated with the table, and counted there when they are touched first."
    ));
}

fn table(outcome: &mut Outcome, points: &Points) {
    let mut table = Table::new(&[
        "arm",
        "rate [1/s]",
        "rate low [1/s]",
        "rate high [1/s]",
        "repeats",
    ]);
    let mut grid = Grid {
        title: "Per second: median (lowest – highest repeat)".into(),
        header: ["arm", "rate"].map(String::from).to_vec(),
        rows: Vec::new(),
    };
    for &what in points.samples.keys() {
        let Some(rate) = Spread::of(&points.rates(what)) else {
            continue;
        };
        let figures = [rate.median, rate.low, rate.high, rate.repeats as f64];
        let mut row: Vec<Cell> = vec![name(what).as_str().into()];
        row.extend(figures.map(Cell::from));
        table.push(row);
        grid.rows.push(vec![
            name(what),
            format!(
                "{} ({} – {})",
                human(rate.median),
                human(rate.low),
                human(rate.high)
            ),
        ]);
    }
    outcome.points = table;
    outcome.grids = vec![grid];
}

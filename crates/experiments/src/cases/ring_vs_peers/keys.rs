//! The keys of the summary and what each is computed from.

use super::arms::SLOTS;
use super::points::{Point, Points, Sample, Ucx, What};
use crate::outcome::Outcome;
use crate::stats::{Spread, paired_ratio};
use crate::transports::job::{Buffering, Channel, RingMode, Transport, Waiting};

pub(super) const RING: Channel = Channel::Ring(RingMode::Default);
const UNBATCHED: Channel = Channel::Ring(RingMode::Unbatched);
const LATENCY: Channel = Channel::Ring(RingMode::Latency);
const TCP: Channel = Channel::Stream(Transport::Tcp, Waiting::Blocking, Buffering::None);
const UNIX: Channel = Channel::Stream(Transport::Unix, Waiting::Blocking, Buffering::None);
const MIB: usize = 1 << 20;

pub(super) const fn rate(channel: Channel, size: usize) -> Point {
    Point {
        what: What::Rate(channel, false),
        size,
        slots: SLOTS[0],
    }
}

const fn at(what: What, size: usize) -> Point {
    Point {
        what,
        size,
        slots: SLOTS[0],
    }
}

const fn few(point: Point) -> Point {
    Point {
        slots: SLOTS[1],
        ..point
    }
}

const UCX_AM_64: Point = at(What::UcxRate(Ucx::Am), 64);
const LATENCY_64: Point = at(What::Latency(LATENCY), 64);
const MEMCPY: Point = at(What::Memcpy, MIB);

/// Ratios of one point to another: a rate to a rate, a median latency to a median latency.
const RATIOS: [(&str, Point, Point); 8] = [
    ("ring64_over_bare", rate(RING, 64), rate(Channel::Bare, 64)),
    (
        "ring4k_over_bare",
        rate(RING, 4096),
        rate(Channel::Bare, 4096),
    ),
    ("ring64_over_ucx_am", rate(RING, 64), UCX_AM_64),
    (
        "ring64_unbatched_over_ucx_am",
        rate(UNBATCHED, 64),
        UCX_AM_64,
    ),
    (
        "latency64_over_half_c2c",
        LATENCY_64,
        at(What::HalfCacheLine, 64),
    ),
    (
        "latency64_over_ucx_am",
        LATENCY_64,
        at(What::UcxLatency(Ucx::Am), 64),
    ),
    ("ring1m_over_memcpy", rate(RING, MIB), MEMCPY),
    ("ring1m_n4_over_memcpy", few(rate(RING, MIB)), few(MEMCPY)),
];

/// Plain figures of one point.
const FIGURES: [(&str, Point); 25] = [
    ("ring64_mmsg_per_s", rate(RING, 64)),
    ("ring64_unbatched_mmsg_per_s", rate(UNBATCHED, 64)),
    ("ring64_latency_mode_mmsg_per_s", rate(LATENCY, 64)),
    ("bare64_mmsg_per_s", rate(Channel::Bare, 64)),
    ("ucx_am64_mmsg_per_s", UCX_AM_64),
    ("ucx_put64_mmsg_per_s", at(What::UcxRate(Ucx::Put), 64)),
    ("tcp_blocking64_mmsg_per_s", rate(TCP, 64)),
    ("unix_socket_blocking64_mmsg_per_s", rate(UNIX, 64)),
    ("ring4k_gb_per_s", rate(RING, 4096)),
    ("bare4k_gb_per_s", rate(Channel::Bare, 4096)),
    ("ucx_am4k_gb_per_s", at(What::UcxRate(Ucx::Am), 4096)),
    ("ring1m_gb_per_s", rate(RING, MIB)),
    ("ring1m_n4_gb_per_s", few(rate(RING, MIB))),
    ("bare1m_gb_per_s", rate(Channel::Bare, MIB)),
    ("bare1m_n4_gb_per_s", few(rate(Channel::Bare, MIB))),
    ("ucx_am1m_gb_per_s", at(What::UcxRate(Ucx::Am), MIB)),
    ("memcpy1m_gb_per_s", MEMCPY),
    ("memcpy1m_n4_gb_per_s", few(MEMCPY)),
    ("latency64_p50_ns", LATENCY_64),
    ("ring64_default_latency_p50_ns", at(What::Latency(RING), 64)),
    ("ucx_am_latency64_p50_ns", at(What::UcxLatency(Ucx::Am), 64)),
    (
        "ucx_put_latency64_p50_ns",
        at(What::UcxLatency(Ucx::Put), 64),
    ),
    ("tcp_blocking_latency64_p50_ns", at(What::Latency(TCP), 64)),
    (
        "unix_socket_blocking_latency64_p50_ns",
        at(What::Latency(UNIX), 64),
    ),
    ("half_c2c_ns", at(What::HalfCacheLine, 64)),
];

/// Figures that are not of one point.
const OTHERS: [&str; 6] = [
    "latency64_p99_ns",
    "latency64_p999_ns",
    "pipe_over_tcp",
    "pipe_gb_per_s",
    "tcp_file_gb_per_s",
    "post_write_instructions",
];

const ALL: [&str; RATIOS.len() + FIGURES.len() + OTHERS.len()] = {
    let mut all = [""; RATIOS.len() + FIGURES.len() + OTHERS.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i < RATIOS.len() {
            RATIOS[i].0
        } else if i < RATIOS.len() + FIGURES.len() {
            FIGURES[i - RATIOS.len()].0
        } else {
            OTHERS[i - RATIOS.len() - FIGURES.len()]
        };
        i += 1;
    }
    all
};

/// Every key of this experiment.
pub(super) const KEYS: &[&str] = &ALL;

/// Computes every key that is of points.
pub(super) fn record(outcome: &mut Outcome, points: &Points) {
    let value = |sample: Sample| match sample {
        Sample::PerSecond(x) => x,
        Sample::Latency(q) => q.p50_ns,
    };
    let why = |point: &Point| {
        points
            .failures
            .get(&point.arm())
            .cloned()
            .unwrap_or_else(|| {
                format!(
                    "no round of {} at {} B gave a figure",
                    point.arm(),
                    point.size
                )
            })
    };
    for (key, ours, theirs) in RATIOS {
        let (a, b) = (points.numbers(ours, value), points.numbers(theirs, value));
        let missing = if Spread::of(&a).is_none() {
            why(&ours)
        } else {
            why(&theirs)
        };
        outcome.measured_or(key, paired_ratio(&a, &b), missing);
    }
    for (key, point) in FIGURES {
        let scale = if key.ends_with("_mmsg_per_s") {
            1e-6
        } else if key.ends_with("_gb_per_s") {
            point.size as f64 * 1e-9
        } else {
            1.0
        };
        let spread = Spread::of(&points.numbers(point, value)).map(|s| s.scaled(scale));
        outcome.measured_or(key, spread, why(&point));
    }
    let quantile = |of: fn(crate::latency::Quantiles) -> f64| {
        Spread::of(&points.numbers(LATENCY_64, |s| s.latency(of)))
    };
    outcome.measured_or("latency64_p99_ns", quantile(|q| q.p99_ns), why(&LATENCY_64));
    outcome.measured_or(
        "latency64_p999_ns",
        quantile(|q| q.p999_ns),
        why(&LATENCY_64),
    );
}

//! The figures.

use super::arms::{SLOTS, channels, name};
use super::load::Loaded;
use super::points::{Points, Sample, Ucx, What};
use crate::outcome::Outcome;
use crate::report::svg::{Axis, Figure, Series};
use crate::stats::Spread;
use crate::transports::job::Channel;

/// Rate, bandwidth, touched bandwidth, latency under load.
pub(super) fn figures(outcome: &mut Outcome, points: &Points, loads: &[Loaded]) {
    let wanted = |what: fn(Channel) -> What| {
        let ours = channels().into_iter().map(move |c| (name(c), what(c)));
        ours.collect::<Vec<_>>()
    };
    let lines = |arms: Vec<(String, What)>, of: &dyn Fn(Sample, usize) -> f64| {
        arms.into_iter()
            .map(|(name, what)| Series {
                name,
                points: line(points, what, of),
            })
            .filter(|series| !series.points.is_empty())
            .collect::<Vec<_>>()
    };
    let ucx = |what: fn(Ucx) -> What| {
        [
            ("ucx-am".to_owned(), what(Ucx::Am)),
            ("ucx-put".to_owned(), what(Ucx::Put)),
        ]
    };
    let mut plain = wanted(|c| What::Rate(c, false));
    plain.extend(ucx(What::UcxRate));
    let touched = wanted(|c| What::Rate(c, true));
    let bandwidth = |s: Sample, size: usize| s.per_second() * size as f64 / 1e9;
    let figure = |file: &str, title: &str, y: Axis, series| Figure {
        file: file.into(),
        title: title.into(),
        x: Axis::log("message size [B]"),
        y,
        series,
    };
    outcome.figures = vec![
        figure(
            "rate.svg",
            "Message rate over size",
            Axis::log("rate [msg/s]"),
            lines(plain.clone(), &|s, _| s.per_second()),
        ),
        figure(
            "bandwidth.svg",
            "Bandwidth over size",
            Axis::log("bandwidth [GB/s]"),
            lines(plain, &bandwidth),
        ),
        figure(
            "bandwidth-touched.svg",
            "Bandwidth over size, every byte written and summed",
            Axis::log("bandwidth [GB/s]"),
            lines(touched, &bandwidth),
        ),
        Figure {
            file: "latency-under-load.svg".into(),
            title: "99th percentile of the one-way latency of 64 B under load".into(),
            x: Axis::linear("load [% of the arm's own peak]"),
            y: Axis::log("p99 [ns]"),
            series: load_lines(loads),
        },
    ];
}

fn line(points: &Points, what: What, of: &dyn Fn(Sample, usize) -> f64) -> Vec<(f64, f64)> {
    let sizes = points
        .samples
        .keys()
        .filter(|p| p.what == what && p.slots == SLOTS[0]);
    sizes
        .filter_map(|&point| {
            let median = Spread::of(&points.numbers(point, |s| of(s, point.size)))?.median;
            Some((point.size as f64, median))
        })
        .collect()
}

fn load_lines(loads: &[Loaded]) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for load in loads {
        let Some(p99) = load.at(|q| q.p99_ns) else {
            continue;
        };
        let point = (f64::from(load.percent), p99.median);
        match series.iter_mut().find(|s| s.name == load.arm) {
            Some(line) => line.points.push(point),
            None => series.push(Series {
                name: load.arm.clone(),
                points: vec![point],
            }),
        }
    }
    series
}

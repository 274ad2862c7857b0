//! A paced load against time: what the pacing says, and what is delivered meanwhile.

use std::collections::BTreeMap;

use headworks::verbs::Duration;

use super::arm::{self, Arm, Probed};
use super::point::{COUNTED, PAIRS};
use crate::nic::loaded::{Load, Verb};
use crate::nic::watched::{Look, Pacing, Watched};
use crate::report::csv::Cell;
use crate::report::svg::Series;
use crate::stats::{Spread, median};
use crate::transports::ArmError;
use crate::world::Place;

/// Bytes of a message.
pub(super) const SIZE: usize = 512;
/// Between two looks.
pub(super) const EVERY: Duration = Duration::from_micros(50);
/// Queue pairs of all processes together: so many that the lower threshold is that of few.
const QUEUE_PAIRS: usize = 1024;
const QUICK_QUEUE_PAIRS: usize = 256;

/// What is the same of every arm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) queue_pairs: usize,
    pub(super) work_ns: u64,
    /// What is looked at begins with the first request; it ends so long after all are warm.
    pub(super) times: (Duration, Duration),
}

impl Shape {
    pub(super) fn new(is_quick: bool, work_ns: u64) -> Self {
        let (queue_pairs, run) = match is_quick {
            true => (QUICK_QUEUE_PAIRS, Duration::from_millis(5)),
            false => (QUEUE_PAIRS, Duration::from_millis(20)),
        };
        Self {
            queue_pairs,
            work_ns,
            times: (Duration::from_millis(5), run),
        }
    }
}

/// One time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moment {
    /// Since the first request.
    pub(super) at_ms: f64,
    /// What the pacing says.
    pub(super) pacing: Pacing,
    /// Delivered since the look before, as the port counts.
    pub(super) gbit_per_s: f64,
}

impl Moment {
    /// The rate of doorbells.
    pub(super) fn rate(&self) -> f64 {
        self.pacing.rate * 8e-9
    }

    /// The delay, in microseconds.
    pub(super) fn delay_us(&self) -> f64 {
        self.pacing.delay_ns * 1e-3
    }
}

/// Columns of a table of moments, behind the arm's.
pub(super) const COLUMNS: [&str; 8] = [
    "time [ms]",
    "rate [Gbit/s]",
    "delivered as the port counts [Gbit/s]",
    "delay [µs]",
    "delay beyond the base [base delays]",
    "raised up to [base delays]",
    "lowered from [base delays]",
    "active queue pairs",
];

impl Moment {
    /// Its row.
    pub(super) fn cells(&self) -> [Cell; 8] {
        let Pacing {
            ratio,
            thresholds: (raise, lower),
            active,
            ..
        } = self.pacing;
        let (rate, delay) = (self.rate(), self.delay_us());
        let active = f64::from(active);
        [
            self.at_ms,
            rate,
            self.gbit_per_s,
            delay,
            ratio,
            raise,
            lower,
            active,
        ]
        .map(Cell::from)
    }
}

/// Has all processes send as much as goes, paced against so many times the base delay.
pub(super) fn measure(
    place: &Place<'_>,
    shape: Shape,
    base_delay: Probed,
    options: &str,
) -> Result<Vec<Moment>, ArmError> {
    let place = arm::paced(place, &[0], base_delay, options)?;
    let load = Load {
        queue_pairs: (shape.queue_pairs / PAIRS).max(1),
        work_ns: shape.work_ns,
        ..Load::of(Verb::Send, SIZE)
    };
    let watched = Watched {
        load: Arm::Paced.load(load),
        every_ns: EVERY.nanos(),
    };
    Ok(moments(&watched.looks(&place, PAIRS, shape.times)?))
}

/// From what each process saw: what all delivered, and what the first was told.
fn moments(looks: &[Vec<Look>]) -> Vec<Moment> {
    let begun = looks.iter().filter_map(|looks| looks.first());
    let Some(begun) = begun.map(|look| look.at_ns).min() else {
        return Vec::new();
    };
    // By the number of the interval: how many saw it, what they delivered a second.
    let mut delivered: BTreeMap<u64, (usize, f64)> = BTreeMap::new();
    for looks in looks {
        for pair in looks.windows(2) {
            let [before, now] = pair else { continue };
            let seconds = (now.at_ns - before.at_ns) as f64 * 1e-9;
            let (seen, sum) = delivered.entry(now.at_ns / EVERY.nanos()).or_default();
            *seen += 1;
            *sum += (now.done - before.done) as f64 / seconds;
        }
    }
    let first = looks.first().map(Vec::as_slice).unwrap_or_default();
    let moments = first.iter().filter_map(|look| {
        let (seen, per_second) = delivered.get(&(look.at_ns / EVERY.nanos()))?;
        (*seen == looks.len()).then_some(())?;
        Some(Moment {
            at_ms: (look.at_ns - begun) as f64 * 1e-6,
            pacing: look.pacing?,
            gbit_per_s: per_second * (SIZE as f64 + COUNTED) * 8e-9,
        })
    });
    moments.collect()
}

/// The half of the time in which it is taken for settled.
pub(super) fn settled(moments: &[Moment]) -> &[Moment] {
    let until = moments.last().map_or(0.0, |last| last.at_ms);
    let from = moments.partition_point(|moment| moment.at_ms < until / 2.0);
    &moments[from..]
}

/// The median of what `of` has of settled moments, and between what it moved.
pub(super) fn settled_at(moments: &[Moment], of: impl Fn(&Moment) -> f64) -> Option<Spread> {
    let all: Vec<f64> = settled(moments).iter().map(of).collect();
    Spread::of(&all)
}

/// When the rate comes within `part` of the median that it settles at, and from when on it stays there, in milliseconds;
/// `None` where it never does.
pub(super) fn near_median(moments: &[Moment], part: f64) -> [Option<f64>; 2] {
    let rates: Vec<f64> = settled(moments).iter().map(Moment::rate).collect();
    let Some(goal) = median(&rates) else {
        return [None; 2];
    };
    let is_off = |moment: &Moment| (moment.rate() / goal - 1.0).abs() > part;
    let came = moments.iter().find(|moment| !is_off(moment));
    let last = moments.iter().rposition(is_off);
    let stays = moments.get(last.map_or(0, |last| last + 1));
    [came, stays].map(|moment| moment.map(|moment| moment.at_ms))
}

/// A line of a drawing.
pub(super) fn series(name: &str, moments: &[Moment], of: impl Fn(&Moment) -> f64) -> Series {
    Series {
        name: name.to_owned(),
        points: moments
            .iter()
            .map(|moment| (moment.at_ms, of(moment)))
            .collect(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Moments at which the rate, in Gbit/s, and the delay, in microseconds, were these, a millisecond apart.
    pub(in crate::cases::weir) fn told(all: &[(f64, f64)]) -> Vec<Moment> {
        let moment = |(at, (rate, delay)): (u32, &(f64, f64))| Moment {
            at_ms: f64::from(at),
            pacing: Pacing {
                rate: rate / 8e-9,
                delay_ns: delay * 1e3,
                ratio: 3.0,
                thresholds: (2.0, 4.0),
                active: 7,
            },
            gbit_per_s: *rate,
        };
        (0..).zip(all).map(moment).collect()
    }

    #[test]
    fn what_all_processes_delivered_comes_together_by_time() {
        let pacing = Pacing {
            rate: 1e9,
            delay_ns: 5_000.0,
            ratio: 1.5,
            thresholds: (2.0, 4.0),
            active: 16,
        };
        let look = |micros: u64, done| Look {
            at_ns: micros * 1000,
            done,
            pacing: Some(pacing),
        };
        let one = vec![look(10, 0), look(50, 40), look(101, 91), look(150, 140)];
        let other = vec![look(20, 0), look(52, 64), look(100, 160), look(150, 260)];
        // The second was not there for the whole of the time.
        let found = moments(&[one.clone(), other[..3].to_vec()]);
        let times: Vec<f64> = found.iter().map(|moment| moment.at_ms).collect();
        assert_eq!(times, [0.04, 0.091]);
        // A request each microsecond, and two.
        let rate = 3e6 * 574.0 * 8e-9;
        let all = found.iter().map(|moment| moment.gbit_per_s / rate);
        assert!(
            all.into_iter().all(|part| (part - 1.0).abs() < 1e-9),
            "{found:?}"
        );
        assert_eq!((found[0].rate(), found[0].delay_us()), (8.0, 5.0));
        assert_eq!(moments(&[one, other]).len(), 3);
        assert_eq!(moments(&[]), []);
    }

    #[test]
    fn it_settles_when_the_rate_leaves_its_median_no_more() {
        let told = told(&[
            (100.0, 2.0),
            (60.0, 9.0),
            (41.0, 9.0),
            (50.0, 9.0),
            (43.0, 9.0),
            (39.0, 8.0),
            (40.0, 8.0),
            (42.0, 8.0),
            (40.0, 8.0),
        ]);
        assert_eq!(settled(&told).len(), 5);
        let rate = settled_at(&told, Moment::rate).unwrap();
        assert!((rate.median - 40.0).abs() < 1e-9 && rate.high > 42.9);
        assert_eq!(near_median(&told, 0.1), [Some(2.0), Some(4.0)]);
        assert_eq!(near_median(&told, 2.0), [Some(0.0); 2]);
        assert_eq!(near_median(&told, 0.01), [Some(6.0), Some(8.0)]);
        let restless = [told.clone(), told[..2].to_vec()].concat();
        assert_eq!(near_median(&restless, 0.1)[1], None);
        assert_eq!(near_median(&[], 0.1), [None; 2]);
    }
}

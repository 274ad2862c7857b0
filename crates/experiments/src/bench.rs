//! Measuring tools of an experiment: options, stop flag, time budget and rounds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headworks::sim::Usage;
use headworks_runtime::World;

use crate::about::Options;
use crate::cpu_affinity::two_cpus;
use crate::error::RunError;
use crate::outcome::{Grid, Outcome};
use crate::progress_bar::ProgressReporter;
use crate::simulated_machine::{self, SimulatedMachine};
use crate::table::{Measured, Point, Sample};
use crate::testbed::Testbed;
use crate::transports::WorkloadError;
use crate::utilisation;

/// Total time of all experiments of a quick run. The rest of the minute is for the report.
const QUICK_TOTAL: Duration = Duration::from_secs(54);
/// Shortest time for which a point is measured.
const SHORTEST: Duration = Duration::from_millis(8);
/// Number of rounds of a full run.
const FULL_ROUNDS: usize = 7;
/// Number of rounds of a quick run, if the budget allows.
const QUICK_ROUNDS: usize = 3;
/// A quick run that has taken this multiple of its budget starts no further point. Only slow devices reach
/// it.
const OVERDUE: f64 = 3.0;
/// Number of failures after which an arm is not measured again.
const GIVE_UP_AFTER: usize = 3;

/// The samples of each point, one a round, `None` in a round without one; and, by arm, the reason of its last
/// failure.
type Rounds<S> = (Vec<Vec<Option<S>>>, BTreeMap<String, String>);

/// The time that the points of a sweep get, and the units of their parameters.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// Unit of the swept parameter, as in `64 B`. If empty, labels omit the parameter.
    pub x: &'static str,
    /// Unit of the second parameter. If empty, labels omit the parameter; they also omit it where it is 1.
    pub n: &'static str,
    /// Share of what is left of a quick run's budget that this sweep gets.
    pub share: f64,
    /// Time to start, connect and end the processes of a point.
    pub overhead: Duration,
    /// Time for which a full run measures a point.
    pub full: Duration,
}

impl Sweep {
    /// Makes a sweep over a parameter with unit `x`, with most of a quick run's budget.
    pub const fn over(x: &'static str, overhead: Duration, full: Duration) -> Self {
        Self {
            x,
            n: "",
            share: 0.85,
            overhead,
            full,
        }
    }

    /// Makes a sweep over two parameters, without times: on a simulated device, virtual time decides how long a point
    /// takes.
    pub const fn in_virtual_time(x: &'static str, n: &'static str) -> Self {
        Self {
            n,
            ..Self::over(x, Duration::ZERO, Duration::ZERO)
        }
    }

    /// Sets the share of a quick run's budget.
    pub const fn share(self, share: f64) -> Self {
        Self { share, ..self }
    }

    fn label<A: std::fmt::Display>(&self, point: &Point<A>) -> String {
        let mut label = point.arm.to_string();
        if !self.x.is_empty() {
            label += &format!(" {} {}", point.x, self.x);
        }
        if point.n != 1 && !self.n.is_empty() {
            label += &format!(", {} {}", point.n, self.n);
        }
        if !point.load.is_empty() {
            label += &format!(", {}", point.load);
        }
        label
    }
}

/// The means with which a running experiment measures: options, testbed, budget, rounds and interrupt.
pub struct Bench<'a> {
    /// Options of the run.
    pub options: &'a Options,
    /// World, devices and processors of the pairs of actors.
    pub testbed: Testbed<'a>,
    stop: &'a AtomicBool,
    progress: ProgressReporter,
    started: Instant,
    budget: Option<Duration>,
    /// Whether the wall clock limits the run even where time is virtual.
    by_the_wall_clock: bool,
    /// Label of each point and usage of the simulated machines at its last measurement, by the point's
    /// number.
    usage: BTreeMap<usize, (String, Usage)>,
    /// Number of points so far; each point is numbered.
    points: usize,
}

impl<'a> Bench<'a> {
    /// Makes the bench of the experiment `name`, one of `experiments` experiments of a run.
    pub fn new(
        name: &'static str,
        options: &'a Options,
        world: Arc<dyn World>,
        stop: &'a AtomicBool,
        experiments: usize,
    ) -> Self {
        let devices = [options.device.clone(), options.peer()];
        let testbed = Testbed {
            world,
            devices,
            cpus: two_cpus(),
            stop,
            usage_monitor: options.usage_monitor.clone(),
            measured_usage: Arc::default(),
        };
        // Simulated experiments do not share the budget: their results must not depend on what else runs.
        let share = match testbed.is_simulated() {
            true => QUICK_TOTAL,
            false => QUICK_TOTAL / experiments.max(1) as u32,
        };
        Self {
            options,
            testbed,
            stop,
            progress: ProgressReporter::new(name),
            started: Instant::now(),
            budget: options.quick.then_some(share),
            by_the_wall_clock: false,
            usage: BTreeMap::new(),
            points: 0,
        }
    }

    /// Makes an outcome that says where both ends run. A note is added if they share a processor.
    pub fn outcome(&self) -> Outcome {
        self.pinned(|[here, there]| {
            format!("sender or client on cpu {here}, receiver or server on cpu {there}")
        })
    }

    /// Makes an outcome as [`Self::outcome`] does, with the assignment of actors to processors in the words
    /// of `pinning`, which receives the processors of the sender and of the receiver. On simulated machines
    /// the outcome says that each actor has a core of its own.
    pub fn pinned(&self, pinning: impl FnOnce([usize; 2]) -> String) -> Outcome {
        let (mut outcome, cpus) = (Outcome::default(), self.testbed.cpus);
        if self.testbed.is_simulated() {
            outcome.pinning = "each process or thread on a simulated core of its own".to_owned();
            return outcome;
        }
        outcome.pinning = pinning(cpus);
        if cpus[0] == cpus[1] {
            let why =
                "There is one processor only: both ends share it, and no figure here means much.";
            outcome.notes.push(why.into());
        }
        outcome
    }

    /// Measures `points` alternately, each for as long as `sweep` allows. `sample` measures one point for the
    /// time that it receives.
    pub fn measure<A: Copy + PartialEq + std::fmt::Display>(
        &mut self,
        points: Vec<Point<A>>,
        sweep: Sweep,
        mut sample: impl FnMut(&Self, &Point<A>, Duration) -> Result<Option<Sample>, WorkloadError>,
    ) -> Result<Measured<A>, RunError> {
        let run = self.time_per_point(points.len(), sweep.share, sweep.overhead, sweep.full);
        let (samples, failures) = self.alternate(&points, sweep, |bench, point| {
            sample(
                bench,
                point,
                if bench.is_late() {
                    run.min(SHORTEST)
                } else {
                    run
                },
            )
        })?;
        Ok(Measured::new(points.into_iter().zip(samples), failures))
    }

    /// Measures a list of samples for each of `points`, alternately. The samples at index `i` of a point's
    /// lists become those of the point whose parameter x is `i`.
    pub fn measure_lists<A: Copy + PartialEq + std::fmt::Display>(
        &mut self,
        points: &[Point<A>],
        sweep: Sweep,
        mut list: impl FnMut(&Self, &Point<A>) -> Result<Vec<Sample>, WorkloadError>,
    ) -> Result<Measured<A>, RunError> {
        let (samples, failures) =
            self.alternate(points, sweep, |bench, point| list(bench, point).map(Some))?;
        let mut measured = Measured::new([], failures);
        for (point, lists) in points.iter().zip(samples) {
            let longest = lists.iter().flatten().map(Vec::len).max();
            for x in 0..longest.unwrap_or(0) {
                let at = |list: &Option<Vec<Sample>>| list.as_ref()?.get(x).cloned();
                let x = x as u64;
                measured.insert(Point { x, ..*point }, lists.iter().map(at).collect());
            }
        }
        Ok(measured)
    }

    /// Returns [`RunError::Interrupted`] once an interrupt was requested.
    pub fn check(&self) -> Result<(), RunError> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(RunError::Interrupted),
            false => Ok(()),
        }
    }

    /// Returns the flag that an interrupt sets, for loops that wait.
    pub fn stop(&self) -> &AtomicBool {
        self.stop
    }

    /// Makes the wall clock limit the run even where time is virtual. An experiment that measures the speed
    /// of the simulator calls this: its results are wall time, so points are repeated and a quick run ends in
    /// time, as on any other device.
    pub fn by_the_wall_clock(&mut self) {
        self.by_the_wall_clock = true;
    }

    /// Returns whether results are in virtual time, so that a second measurement gives the same.
    fn is_virtual(&self) -> bool {
        self.testbed.is_simulated() && !self.by_the_wall_clock
    }

    /// Returns whether points take about the same wall time. On simulated devices they do not: the time
    /// depends on how much there is to simulate.
    fn takes_alike(&self) -> bool {
        !self.testbed.is_simulated()
    }

    /// Returns the wall time since the start, or zero in virtual time. There, how much is measured must not
    /// depend on the simulator's speed, or no two runs would give the same results.
    fn elapsed(&self) -> Duration {
        match self.is_virtual() {
            true => Duration::ZERO,
            false => self.started.elapsed(),
        }
    }

    /// Returns whether a quick run has taken the fraction `part` of its budget, or would have after `more`.
    /// False in a full run.
    fn has_taken(&self, part: f64, more: Duration) -> bool {
        self.budget
            .is_some_and(|budget| self.elapsed() + more > budget.mul_f64(part))
    }

    /// Returns a testbed of this bench's simulated machines with further `settings`, as `KEY=VALUE`.
    ///
    /// # Errors
    ///
    /// The device is not simulated, or a setting is not legal, or settings contradict each other.
    pub fn testbed_with(&self, settings: &[String]) -> Result<Testbed<'a>, WorkloadError> {
        let mut set = self.options.set.clone();
        for setting in settings {
            let parsed = setting.parse();
            set.push(parsed.map_err(|e| WorkloadError::at("setting", e))?);
        }
        let machines = SimulatedMachine::on(&self.options.device, &set, None);
        let machines =
            machines.ok_or_else(|| WorkloadError("the device is not simulated".into()))?;
        let machines = machines.map_err(|e| WorkloadError::at("device", e))?;
        let checked = machines.preset().check();
        checked.map_err(|why| WorkloadError::at("settings", why))?;
        Ok(Testbed {
            measured_usage: self.testbed.measured_usage.clone(),
            ..machines.testbed(self.testbed.stop)
        })
    }

    /// Returns the processor time that perftest takes for a request beside the verbs, in nanoseconds; zero
    /// where time is real.
    pub fn perftest_ns(&self) -> u64 {
        simulated_machine::perftest_ns(&self.options.device, &self.options.set)
    }

    /// Returns the time for one of `points` points that are measured in every round: `full` in a full run. In
    /// a quick run it is the point's share of `part` of the remaining budget, less `overhead`, between
    /// `SHORTEST` and `full`.
    pub fn time_per_point(
        &self,
        points: usize,
        part: f64,
        overhead: Duration,
        full: Duration,
    ) -> Duration {
        let Some(budget) = self.budget else {
            return full;
        };
        let left = budget.saturating_sub(self.elapsed()).mul_f64(part);
        let each = left / (points * QUICK_ROUNDS).max(1) as u32;
        each.saturating_sub(overhead).max(SHORTEST).min(full)
    }

    /// Returns whether a quick run has used most of its budget. The machine is then so busy that the run
    /// would not end in time.
    pub fn is_late(&self) -> bool {
        self.has_taken(0.6, Duration::ZERO)
    }

    /// Announces one point outside the rounds and measures it.
    pub fn once<R>(
        &mut self,
        label: &str,
        measure: impl FnOnce(&Self) -> R,
    ) -> Result<R, RunError> {
        self.check()?;
        self.progress.expect(1, self.takes_alike());
        self.progress.at(label);
        self.testbed.take_usage();
        let result = measure(self);
        self.note_usage(self.points, label.to_owned());
        self.points += 1;
        self.check()?;
        self.progress.done();
        Ok(result)
    }

    /// Returns how many times every point is measured, if the budget allows.
    pub fn rounds(&self) -> usize {
        match self.options.quick {
            // In virtual time a second round gives the same results.
            _ if self.is_virtual() => 1,
            true => QUICK_ROUNDS,
            false => FULL_ROUNDS,
        }
    }

    /// Measures `points` alternately: all of them in order, then all again. A quick run whose budget is spent
    /// stops after the current round. An arm that has failed [`GIVE_UP_AFTER`] times, in a row or not, is not
    /// measured again.
    fn alternate<A: Copy + PartialEq + std::fmt::Display, S>(
        &mut self,
        points: &[Point<A>],
        sweep: Sweep,
        mut measure: impl FnMut(&Self, &Point<A>) -> Result<Option<S>, WorkloadError>,
    ) -> Result<Rounds<S>, RunError> {
        let rounds = self.rounds();
        let expected = (points.len() * rounds) as u64;
        self.progress.expect(expected, self.takes_alike());
        let mut samples: Vec<Vec<Option<S>>> = points.iter().map(|_| Vec::new()).collect();
        let mut failures = BTreeMap::<String, (usize, String)>::new();
        let (began, first) = (Instant::now(), self.points);
        self.points += points.len();
        for round in 0..rounds {
            if round > 0 && self.has_taken(1.0, began.elapsed() / round as u32) {
                break;
            }
            for (number, (point, samples)) in (first..).zip(points.iter().zip(&mut samples)) {
                self.check()?;
                let (arm, label) = (point.arm.to_string(), sweep.label(point));
                let failed = failures.get(&arm).map_or(0, |(times, _)| *times);
                self.progress.at(&label);
                self.testbed.take_usage();
                let sample = if failed >= GIVE_UP_AFTER {
                    None
                } else if self.has_taken(OVERDUE, Duration::ZERO) {
                    let why = "the device is too slow for a quick run: its time was up";
                    failures
                        .entry(arm)
                        .or_insert_with(|| (failed, why.to_owned()));
                    None
                } else {
                    measure(self, point).unwrap_or_else(|why| {
                        // An error that an interrupt causes is not the arm's failure.
                        if self.check().is_ok() {
                            self.progress.note(&format!("{label} failed: {why}"));
                            failures.insert(arm, (failed + 1, why.to_string()));
                        }
                        None
                    })
                };
                self.note_usage(number, label);
                self.check()?;
                samples.push(sample);
                self.progress.done();
            }
        }
        let failures = failures.into_iter().map(|(arm, (_, why))| (arm, why));
        Ok((samples, failures.collect()))
    }

    /// Records the simulated machines' usage at the point `number`.
    fn note_usage(&mut self, number: usize, label: String) {
        if let Some(usage) = self.testbed.take_usage() {
            self.usage.insert(number, (label, usage));
        }
    }

    /// Returns a table of the simulated machines' usage at each point.
    pub(crate) fn utilisation(&self) -> Option<Grid> {
        utilisation::grid(self.usage.values())
    }

    pub(crate) fn finish(&mut self) {
        self.progress.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a bench for one of `experiments` experiments of a run.
    fn bench(device: &str, quick: bool, experiments: usize) -> Bench<'static> {
        let options = Options {
            quick,
            ..Options::on(device.parse().unwrap())
        };
        let stop = Box::leak(Box::new(AtomicBool::new(false)));
        let nowhere = simulated_machine::SimulatedMachine::named("cx5-100g").expect("a preset");
        let nowhere = nowhere.world().clone();
        Bench::new(
            "t",
            Box::leak(Box::new(options)),
            nowhere,
            stop,
            experiments,
        )
    }

    /// A sweep whose points are labelled with their arms' names alone.
    const UNNAMED: Sweep = Sweep::over("", Duration::ZERO, Duration::ZERO);

    /// Measures one point of each arm.
    fn alternate<A: Copy + PartialEq + std::fmt::Display, S>(
        bench: &mut Bench<'_>,
        arms: &[A],
        mut measure: impl FnMut(&Bench<'_>, A) -> Result<S, &'static str>,
    ) -> Result<Rounds<S>, RunError> {
        let points: Vec<_> = arms.iter().map(|arm| Point::at(*arm, 0)).collect();
        bench.alternate(&points, UNNAMED, |bench, point| {
            let sample = measure(bench, point.arm);
            sample.map(Some).map_err(|why| WorkloadError(why.into()))
        })
    }

    #[test]
    fn arms_take_turns() {
        let mut order = Vec::new();
        let rounds = alternate(&mut bench("soft", true, 1), &["a", "b"], |_, point| {
            order.push(point);
            Ok(order.len())
        });
        let (samples, _) = rounds.unwrap();
        assert_eq!(order, ["a", "b", "a", "b", "a", "b"]);
        assert_eq!(samples[1], [Some(2), Some(4), Some(6)]);
    }

    #[test]
    fn points_that_are_called_alike_have_rows_of_their_own() {
        let mut bench = bench("sim:cx5-100g", false, 1);
        let count = |bench: &Bench<'_>, over| {
            let usage = Usage {
                over,
                ..Usage::default()
            };
            *bench.testbed.measured_usage.lock().unwrap() = Some(usage);
        };
        bench.once("x", |bench| count(bench, 1)).unwrap();
        for overs in [[2, 3], [4, 5]] {
            let points = overs.map(|over| Point::at("x", over));
            let measured = bench.alternate(&points, UNNAMED, |bench, point| {
                count(bench, point.x);
                Ok(Some(()))
            });
            measured.unwrap();
        }
        let overs: Vec<_> = bench.usage.values().map(|(_, usage)| usage.over).collect();
        assert_eq!(overs, [1, 2, 3, 4, 5]);
        assert_eq!(bench.utilisation().unwrap().rows.len(), 5);
    }

    #[test]
    fn a_quick_run_that_is_overdue_begins_no_other_point_and_says_why() {
        let mut bench = bench("soft", true, 1);
        bench.budget = Some(Duration::ZERO);
        let (samples, failures) =
            alternate(&mut bench, &["a", "b"], |_, _| Err::<(), _>("begun")).unwrap();
        assert!(samples.iter().flatten().all(Option::is_none));
        assert_eq!(failures.len(), 2);
        let said = |why: &String| why.contains("too slow for a quick run");
        assert!(failures.values().all(said));
    }

    #[test]
    fn simulated_points_are_not_shortened_when_late() {
        let full = Duration::from_secs(1);
        let [early, mut late] = [1, 5].map(|experiments| bench("sim:cx5-100g", true, experiments));
        let long_ago = late.started.checked_sub(QUICK_TOTAL.mul_f64(OVERDUE * 2.0));
        late.started = long_ago.unwrap_or(late.started);
        let time = |bench: &Bench<'_>| bench.time_per_point(100, 1.0, Duration::ZERO, full);
        assert_eq!(time(&early), time(&late));
        assert!(!late.is_late() && !late.has_taken(1.0, full));
        assert_eq!(late.rounds(), 1);
        // The wall clock limits an experiment that measures the simulator itself.
        late.by_the_wall_clock();
        assert!(
            late.has_taken(OVERDUE, full) && late.rounds() == QUICK_ROUNDS && !late.takes_alike()
        );
        // An experiment may replace the testbed after the bench is made.
        let mut bench = bench("soft", true, 1);
        assert!(bench.rounds() == QUICK_ROUNDS && bench.takes_alike());
        bench.testbed = early.testbed.clone();
        assert!(bench.rounds() == 1 && !bench.takes_alike());
    }

    #[test]
    fn an_arm_is_given_up_after_three_failures_and_others_are_not() {
        let mut tried = BTreeMap::new();
        let mut bench = bench("soft", false, 1);
        let rounds = alternate(&mut bench, &["broken", "lame", "well"], |_, arm| {
            let times = tried.entry(arm).or_insert(0);
            *times += 1;
            match (arm, *times) {
                ("broken", 3) => Err("the third time"),
                ("broken", _) | ("lame", 2) => Err("before"),
                (_, times) => Ok(times),
            }
        });
        let (samples, failures) = rounds.unwrap();
        let times = [tried["broken"], tried["lame"]];
        assert_eq!(times, [GIVE_UP_AFTER, FULL_ROUNDS]);
        assert_eq!(samples[0], [None; FULL_ROUNDS]);
        assert_eq!(samples[1][..3], [Some(1), None, Some(3)]);
        assert_eq!(samples[2].len(), FULL_ROUNDS);
        let why = [("broken", "the third time"), ("lame", "before")];
        let why = why.map(|(arm, why)| (arm.to_owned(), why.to_owned()));
        assert_eq!(failures, BTreeMap::from(why));
    }

    #[test]
    fn an_interrupt_ends_a_round() {
        let result = alternate(&mut bench("soft", false, 1), &[1, 2], |bench, point| {
            bench.stop().store(point == 1, Ordering::Relaxed);
            Ok(())
        });
        assert!(matches!(result, Err(RunError::Interrupted)));
    }

    #[test]
    fn a_quick_run_shares_its_minute() {
        let time = |experiments, points| {
            let bench = bench("soft", true, experiments);
            bench.time_per_point(points, 1.0, Duration::ZERO, Duration::from_secs(1))
        };
        assert!(time(1, 1000) * 3000 <= QUICK_TOTAL);
        assert!(time(2, 100) < time(1, 100));
        assert_eq!(time(1, 1_000_000), SHORTEST);
    }
}

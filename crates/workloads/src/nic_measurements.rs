//! What loads on a NIC come to on a testbed.

use headworks::verbs::Duration;

use crate::error::Result;
use crate::latency::Quantiles;
use crate::nic::{Batches, Flows, NicTask, NicWorkload, SampledLoad, VerbLoad};
use crate::report::{PacingSample, Report};
use crate::testbed::{Testbed, private_dir};

/// The warm-up, and the measured time after it.
pub type Times = (Duration, Duration);

/// Has so many pairs do that, for a time after a warm-up. What `of` finds in the reports of the sending ends.
fn run<T>(
    testbed: &Testbed<'_>,
    what: NicWorkload,
    pairs: usize,
    (warm, run): Times,
    of: impl Fn(Report) -> Option<T>,
) -> Result<Vec<T>> {
    let dir = private_dir()?;
    let task = NicTask {
        what,
        run_ns: run.nanos(),
        warm_ns: warm.nanos(),
        together: pairs > 1,
        dir: dir.path().to_owned(),
    };
    let reports = testbed.run(task, pairs)?.into_iter();
    Ok(reports.filter_map(|[sent, _]| of(sent)).collect())
}

/// The latencies in a report, if there are any.
fn latency(report: Report) -> Option<Quantiles> {
    match report {
        Report::Latency(found) if found.count > 0 => Some(found),
        _ => None,
    }
}

impl VerbLoad {
    /// Requests per second of so many pairs together, over the second time after the first; `None` if none ended.
    /// Several pairs measure the same time, once all are warm: none has the link for itself because others came later
    /// or went earlier.
    pub fn rate(&self, testbed: &Testbed<'_>, pairs: usize, times: Times) -> Result<Option<f64>> {
        let rate = |report: Report| report.per_second();
        let sum: f64 = run(testbed, NicWorkload::Loaded(*self), pairs, times, rate)?
            .iter()
            .sum();
        Ok((sum > 0.0).then_some(sum))
    }
}

impl Batches {
    /// From the doorbell to the completion, of each request in a batch, over the second time after the first; none if
    /// no batch ended.
    pub fn batch_delays(&self, testbed: &Testbed<'_>, times: Times) -> Result<Vec<Quantiles>> {
        let delays = run(
            testbed,
            NicWorkload::Batches(*self),
            1,
            times,
            |report| match report {
                Report::Delays(delays) => Some(delays),
                _ => None,
            },
        )?;
        Ok(delays
            .into_iter()
            .flatten()
            .filter(|each| each.count > 0)
            .collect())
    }
}

impl Flows {
    /// How long flows took that began within the second time after the first, of each of so many pairs; one of each at
    /// least.
    pub fn times(
        &self,
        testbed: &Testbed<'_>,
        pairs: usize,
        times: Times,
    ) -> Result<Vec<Quantiles>> {
        run(testbed, NicWorkload::Flows(*self), pairs, times, latency)
    }
}

impl SampledLoad {
    /// What each of so many pairs saw from its first step on, until `run` was over after `warm`.
    pub fn pacing_samples(
        &self,
        testbed: &Testbed<'_>,
        pairs: usize,
        times: Times,
    ) -> Result<Vec<Vec<PacingSample>>> {
        run(
            testbed,
            NicWorkload::Sampled(*self),
            pairs,
            times,
            |report| match report {
                Report::PacingSamples(looks) => Some(looks),
                _ => None,
            },
        )
    }
}

/// Half the time from a message to its answer, by one verb that is not answered by itself, over the second time after the
/// first; `None` if there was none.
///
/// A WRITE is seen by its last word, which is polled (perftest polls the last byte). On a device that places bytes out
/// of order that says no more than that this word came. SENDs and WRITEs with immediate are seen by their completions.
pub fn half_round_trip(
    load: &VerbLoad,
    testbed: &Testbed<'_>,
    times: Times,
) -> Result<Option<Quantiles>> {
    Ok(run(testbed, NicWorkload::PingPong(*load), 1, times, latency)?.pop())
}

/// What a call that posts `chain` short WRITEs (1 or 16) takes with all that is polled of it, over the second
/// time after the first; `None` if there was none.
pub fn call_times(testbed: &Testbed<'_>, chain: usize, times: Times) -> Result<Option<Quantiles>> {
    Ok(run(testbed, NicWorkload::Posts { chain }, 1, times, latency)?.pop())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::nic::Verb;
    use crate::simulated_machine::SimulatedMachine;

    #[test]
    fn pairs_that_load_at_once_measure_at_once() {
        let machines = SimulatedMachine::named("cx5-100g").unwrap();
        let stop = AtomicBool::new(false);
        let load = VerbLoad {
            depth: 16,
            ..VerbLoad::of(Verb::Write, 4096)
        };
        let times = (Duration::from_micros(20), Duration::from_micros(100));
        let place = machines.testbed(&stop);
        let sent = run(&place, NicWorkload::Loaded(load), 8, times, Some).unwrap();
        // But for the time from a completion to the next.
        let measured = |report: &Report| match report {
            Report::Rate {
                nanos, began_ns, ..
            } => (*began_ns, began_ns + nanos),
            other => panic!("{other:?}"),
        };
        let (began, ended): (Vec<u64>, Vec<u64>) = sent.iter().map(measured).unzip();
        for times in [began, ended] {
            let (first, last) = (times.iter().min(), times.iter().max());
            assert!(last.unwrap() - first.unwrap() < 10_000, "{sent:?}");
        }
        // No more than the link carries, as it would be if some ended while others went on.
        let rate: f64 = sent.iter().filter_map(Report::per_second).sum();
        let gbit_per_s = rate * 4096.0 * 8e-9;
        assert!((85.0..=100.0).contains(&gbit_per_s), "{gbit_per_s}");
    }
}

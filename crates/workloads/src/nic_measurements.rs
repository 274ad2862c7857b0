//! Measurements with loads on a NIC, on a testbed.

use headworks::verbs::Duration;

use crate::error::{Result, WorkloadError};
use crate::latency::Quantiles;
use crate::nic::storage::StorageLoad;
use crate::nic::{Batches, Flows, NicTask, NicWorkload, SampledLoad, VerbLoad};
use crate::report::{PacingSample, Report, StorageSample};
use crate::task::Task;
use crate::testbed::{Testbed, private_dir};

/// Warm-up time, and measured time after it.
pub type Times = (Duration, Duration);

/// Runs `what` in `pairs` pairs at once. Returns what `of` finds in the reports of the sending ends.
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

/// Returns the latencies in a report, if there are any.
fn latency(report: Report) -> Option<Quantiles> {
    match report {
        Report::Latency(found) if found.count > 0 => Some(found),
        _ => None,
    }
}

impl VerbLoad {
    /// Measures the requests per second of `pairs` pairs together; `None` if no request completed. Several
    /// pairs measure the same interval, once all are warm. So none of them has the link to itself because
    /// others start later or end earlier.
    pub fn rate(&self, testbed: &Testbed<'_>, pairs: usize, times: Times) -> Result<Option<f64>> {
        let rate = |report: Report| report.per_second();
        let sum: f64 = run(testbed, NicWorkload::Loaded(*self), pairs, times, rate)?
            .iter()
            .sum();
        Ok((sum > 0.0).then_some(sum))
    }

    /// Measures the requests per second of `pairs` pairs together, as [`rate`](Self::rate) does, and those of `probe`
    /// in a pair of its own beside them.
    pub fn rate_beside(
        &self,
        probe: &Self,
        testbed: &Testbed<'_>,
        pairs: usize,
        times: Times,
    ) -> Result<(f64, f64)> {
        let mut loads = vec![NicWorkload::Loaded(*self); pairs];
        loads.push(NicWorkload::Loaded(*probe));
        let reports = run_together(testbed, loads, times)?;
        let mut rates = reports
            .iter()
            .map(|[sent, _]| sent.per_second().unwrap_or(0.0));
        let loaded = rates.by_ref().take(pairs).sum();
        Ok((loaded, rates.sum()))
    }
}

/// Runs a pair for each of `loads`, all at once. Returns their reports.
fn run_together(
    testbed: &Testbed<'_>,
    loads: Vec<NicWorkload>,
    (warm, run): Times,
) -> Result<Vec<[Report; 2]>> {
    let dir = private_dir()?;
    let task = |what| NicTask {
        what,
        run_ns: run.nanos(),
        warm_ns: warm.nanos(),
        together: true,
        dir: dir.path().to_owned(),
    };
    let tasks: Vec<Task> = loads.into_iter().map(|load| task(load).into()).collect();
    testbed.run_each(&tasks)
}

/// Messages that a storage server received in the measured time.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Bytes of messages that arrived whole, per second.
    pub bytes_per_s: f64,
    /// Messages per second.
    pub per_second: f64,
    /// Latencies from the announcement of a message, or from its SEND, to its arrival.
    pub latency: Quantiles,
    /// Samples of the receive memory.
    pub samples: Vec<StorageSample>,
}

impl Stored {
    /// Returns what a server's report says; `None` if it is another report.
    pub(crate) fn of(report: Report) -> Option<Self> {
        let Report::Stored {
            messages,
            bytes,
            nanos,
            latency,
            samples,
        } = report
        else {
            return None;
        };
        let seconds = nanos as f64 * 1e-9;
        Some(Self {
            bytes_per_s: bytes as f64 / seconds,
            per_second: messages as f64 / seconds,
            latency,
            samples,
        })
    }
}

impl StorageLoad {
    /// Measures the messages that arrive whole, and their latencies.
    pub fn serve(&self, testbed: &Testbed<'_>, times: Times) -> Result<Stored> {
        let mut reports = run_together(testbed, vec![NicWorkload::Storage(*self)], times)?;
        stored(reports.pop())
    }

    /// Measures what [`serve`](Self::serve) does, and the requests per second of `probe` in a pair of its own beside the
    /// server.
    pub fn serve_beside(
        &self,
        probe: &VerbLoad,
        testbed: &Testbed<'_>,
        times: Times,
    ) -> Result<(Stored, f64)> {
        let loads = vec![NicWorkload::Storage(*self), NicWorkload::Loaded(*probe)];
        let mut reports = run_together(testbed, loads, times)?;
        let probe = reports.pop().and_then(|[sent, _]| sent.per_second());
        Ok((stored(reports.pop())?, probe.unwrap_or(0.0)))
    }
}

/// Returns what the server of a pair reported.
fn stored(reports: Option<[Report; 2]>) -> Result<Stored> {
    let server = reports.map(|[server, _]| server);
    let stored = server.and_then(Stored::of);
    stored.ok_or_else(|| WorkloadError("a storage server did not report".to_owned()))
}

impl Batches {
    /// Measures the time from doorbell to completion, for each request in a batch; none if no batch
    /// completed.
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
    /// Measures how long flows take that begin in the measured time, for each of `pairs` pairs. Each measures
    /// at least one flow.
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
    /// Returns the samples of each of `pairs` pairs, from its first step to the end of the measured time.
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

/// Measures half the time from a message to its answer; `None` if there was no answer. The verb must be one
/// that the responder does not answer with data.
///
/// The receiver sees a WRITE by polling its last word (perftest polls the last byte). On a device that places
/// bytes out of order, that shows only that this word came. It sees SENDs and WRITEs with immediate by their
/// completions.
pub fn half_round_trip(
    load: &VerbLoad,
    testbed: &Testbed<'_>,
    times: Times,
) -> Result<Option<Quantiles>> {
    Ok(run(testbed, NicWorkload::PingPong(*load), 1, times, latency)?.pop())
}

/// Measures how long a call takes that posts `chain` short WRITEs (1 or 16), including the polls of their
/// completions; `None` if there was no call.
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
        // The intervals differ only by the time between two completions.
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
        // The rate is no higher than the link's. It would be higher if some pairs ended while others went on.
        let rate: f64 = sent.iter().filter_map(Report::per_second).sum();
        let gbit_per_s = rate * 4096.0 * 8e-9;
        assert!((85.0..=100.0).contains(&gbit_per_s), "{gbit_per_s}");
    }
}

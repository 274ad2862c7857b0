//! Measurements of the statements, with as few messages as suffice.

use headworks::sim::Setting;
use headworks::verbs::Duration;
use headworks_experiments::cases::jet::receiving_host::{
    MISSES as HOST_MISSES, THROUGHPUT, write_all,
};
use headworks_experiments::cases::weir::{BATCH, COUNTED, DEPTH, PAIRS as PROCESSES, PAUSE_NS};
use headworks_experiments::nic::{Batches, Verb, VerbLoad};
use headworks_experiments::nic_measurements::half_round_trip;
use headworks_experiments::service::virtual_time as shared;
use headworks_experiments::simulated_machine::SimulatedMachine;
use headworks_experiments::table::Quantity;
use headworks_experiments::transports::WorkloadError;

use crate::ClaimTestbed;

type Found = Result<Option<f64>, WorkloadError>;

/// A throughput below this fraction of the highest is a drop.
const DROP: f64 = 0.95;
/// Bytes of a message of Weir II-B.
const SIZE: usize = 512;
/// Bytes of a READ of threads that share a queue pair under a lock, and READs outstanding for each thread, as
/// in `raas-fig2`.
const SHARED_READ: usize = 64;
const SHARED_DEPTH: usize = 16;
/// More misses than this for a request are not chance.
const MISSES: f64 = 0.01;

impl ClaimTestbed<'_> {
    /// Returns the requests per second of `processes` processes that post as perftest does.
    fn rate(&self, load: VerbLoad, processes: usize, micros: u64) -> Found {
        let load = VerbLoad {
            work_ns: self.machines.preset().bench_ns as u64,
            ..load
        };
        let times = (Duration::from_micros(20), Duration::from_micros(micros));
        load.rate(&self.machines.testbed(self.stop), processes, times)
    }

    /// Returns Gbit/s of payload of one process.
    pub(crate) fn gbit(&self, load: VerbLoad, micros: u64) -> Found {
        let rate = self.rate(load, 1, micros)?;
        Ok(rate.map(|rate| rate * load.size as f64 * 8e-9))
    }

    /// Returns millions of requests per second of one process.
    pub(crate) fn millions(&self, load: VerbLoad, micros: u64) -> Found {
        Ok(self.rate(load, 1, micros)?.map(|rate| rate * 1e-6))
    }

    /// Returns the time of a message there and one back, each of its verb and size, in microseconds. Each way
    /// is measured separately.
    pub(crate) fn there_and_back(&self, there: (Verb, usize), back: (Verb, usize)) -> Found {
        let times = (Duration::from_micros(20), Duration::from_micros(100));
        let one_way = |(verb, size)| -> Found {
            let load = VerbLoad::of(verb, size);
            let found = half_round_trip(&load, &self.machines.testbed(self.stop), times)?;
            Ok(found.map(|found| 1e-3 * found.p50_ns))
        };
        let ways = one_way(there)?.zip(one_way(back)?);
        Ok(ways.map(|(there, back)| there + back))
    }

    /// Returns the READs of threads that share one queue pair under a lock, in percent of what one thread
    /// does alone.
    pub(crate) fn shared_by(&self, threads: usize) -> Found {
        let machine = shared::Machine {
            preset: self.machines.preset().clone(),
            seed: 1,
        };
        let times = (Duration::from_micros(400), Duration::from_millis(2));
        let rate = |threads| {
            let load = shared::OneSidedLoad {
                what: shared::OneSidedOp::Reads {
                    bytes: SHARED_READ,
                    region: 1 << 20,
                },
                callers: threads,
                connections: threads,
                hosts: 1,
                outstanding: SHARED_DEPTH,
            };
            let found = load.measure(
                shared::RequestPath::Locked(threads),
                &machine,
                times,
                self.stop,
            )?;
            Ok::<_, WorkloadError>(found.per_second)
        };
        let (alone, together) = (rate(1)?, rate(threads)?);
        Ok((alone > 0.0).then_some(100.0 * together / alone))
    }
}

/// Warm-up and measured time of WRITEs into a host whose memory is modelled.
const HOST_TIMES: (Duration, Duration) = (Duration::from_millis(16), Duration::from_millis(5));

/// Returns a quantity of WRITEs of `kib` KiB while an antagonist would use all of the receiver's memory, with
/// `ways` times the cache for DMA.
fn contended(bed: &ClaimTestbed<'_>, kib: u64, ways: u64, quantity: Quantity) -> Found {
    let preset = bed.machines.preset();
    let set = |key: &str, value: String| format!("{key}={value}").parse::<Setting>();
    let settings = [
        set("host.antagonist", preset.host_memory.to_string()),
        set("host.dma_cache", (ways * preset.host_dma_kib).to_string()),
    ];
    let settings: Result<Vec<_>, _> = settings.into_iter().collect();
    let settings = settings.map_err(|e| WorkloadError::at("setting", e))?;
    let Some(Ok(machines)) = SimulatedMachine::on(bed.machines.device(), &settings, None) else {
        return Ok(None);
    };
    let sample = write_all(&machines.testbed(bed.stop), kib, HOST_TIMES)?;
    Ok(sample.map(|sample| sample.get(quantity)))
}

/// Returns by how many percent WRITEs of 1 MiB are slower than those of 64 KiB then.
pub(crate) fn long_lose(bed: &ClaimTestbed<'_>) -> Found {
    let rate = |kib| contended(bed, kib, 1, THROUGHPUT);
    let both = rate(1024)?.zip(rate(64)?);
    Ok(both.map(|(long, short)| 100.0 * (1.0 - long / short)))
}

/// Returns the share of the lines of WRITEs of 1 MiB that are not cached then, in percent.
pub(crate) fn long_miss(bed: &ClaimTestbed<'_>) -> Found {
    contended(bed, 1024, 1, HOST_MISSES)
}

/// Returns the throughput of WRITEs of `kib` KiB with twice the cache for DMA over that without.
pub(crate) fn doubled(bed: &ClaimTestbed<'_>, kib: u64) -> Found {
    let rate = |ways| contended(bed, kib, ways, THROUGHPUT);
    let both = rate(2)?.zip(rate(1)?);
    Ok(both.map(|(doubled, single)| doubled / single))
}

/// Makes a load of `queue_pairs` queue pairs with `depth` requests outstanding on each.
pub(crate) const fn deep(verb: Verb, size: usize, queue_pairs: usize, depth: usize) -> VerbLoad {
    VerbLoad {
        queue_pairs,
        depth,
        ..VerbLoad::of(verb, size)
    }
}

/// Returns the first of `counts` at which `value` is less than [`DROP`] of the highest value before it.
fn drop_at(counts: &[usize], mut value: impl FnMut(usize) -> Found) -> Found {
    let mut highest = 0.0;
    for &count in counts {
        let found = value(count)?.unwrap_or(0.0);
        if found < DROP * highest {
            return Ok(Some(count as f64));
        }
        highest = found.max(highest);
    }
    Ok(None)
}

/// Returns the throughput of READs of a large message, as a fraction of that of WRITEs.
pub(crate) fn reads_over_writes(bed: &ClaimTestbed<'_>) -> Found {
    let size = 1 << 20;
    let of = |verb| bed.rate(deep(verb, size, 1, 16), 1, 5_000);
    let both = of(Verb::Read)?.zip(of(Verb::Write)?);
    Ok(both.map(|(reads, writes)| reads / writes))
}

/// Returns the rate of WRITEs of 64 B over an unreliable connection, as a fraction of that over a reliable one.
pub(crate) fn unreliable_over_reliable(bed: &ClaimTestbed<'_>) -> Found {
    let of = |unreliable| {
        let load = VerbLoad {
            unreliable,
            ..deep(Verb::Write, 64, 1, 16)
        };
        bed.rate(load, 1, 500)
    };
    let both = of(true)?.zip(of(false)?);
    Ok(both.map(|(unreliable, reliable)| unreliable / reliable))
}

/// Returns the last number of queue pairs before READs drop, up to a thousand, with one READ outstanding on
/// each. The measured time is twice what the link takes for the responses of all.
pub(crate) fn reads_drop(bed: &ClaimTestbed<'_>) -> Found {
    let size = 65536;
    let counts = [100, 400, 500, 1000];
    let dropped = drop_at(&counts, |queue_pairs| {
        bed.rate(deep(Verb::Read, size, queue_pairs, 1), 1, 30_000)?;
        // Responses share the link, so many are incomplete at the end; received bytes are counted instead.
        let usage = bed.machines.usage_monitor().last();
        Ok(usage.map(|usage| usage.hosts[0].counters.bytes_in as f64 / usage.over as f64))
    })?;
    // The drop starts beyond the last count before it.
    let before = |at: f64| {
        let below = counts.iter().rev().find(|count| (**count as f64) < at);
        below.map_or(at, |count| *count as f64)
    };
    Ok(dropped.map(before))
}

/// Returns the number of queue pairs of eight processes at which SENDs drop; the number is doubled at each
/// step.
pub(crate) fn sends_drop(bed: &ClaimTestbed<'_>) -> Found {
    drop_at(&[16, 32, 64, 128, 256, 512], |queue_pairs| {
        let load = deep(Verb::Send, SIZE, queue_pairs / PROCESSES, DEPTH);
        bed.rate(load, PROCESSES, 400)
    })
}

/// Returns the highest number of queue pairs, which is doubled at each step, with no more misses than the
/// first access to each context.
pub(crate) fn contexts_are_missed(bed: &ClaimTestbed<'_>) -> Found {
    let mut most = None;
    for queue_pairs in [512, 1024, 2048, 4096] {
        let load = deep(Verb::Send, 64, queue_pairs / PROCESSES, 4);
        bed.rate(load, PROCESSES, 200)?;
        let Some(usage) = bed.machines.usage_monitor().last() else {
            return Ok(None);
        };
        let counters = &usage.hosts[0].counters;
        let again = counters.icm_misses.saturating_sub(queue_pairs as u64);
        if again as f64 > MISSES * counters.requests as f64 {
            break;
        }
        most = Some(queue_pairs as f64);
    }
    Ok(most)
}

pub(crate) fn port_counts(bed: &ClaimTestbed<'_>) -> Found {
    let load = deep(Verb::Send, SIZE, 2, DEPTH);
    let found = bed.rate(load, PROCESSES, 400)?;
    let counted = SIZE as f64 + COUNTED;
    Ok(found.map(|rate| rate * counted * 8e-9))
}

pub(crate) fn last_of_a_batch(bed: &ClaimTestbed<'_>) -> Found {
    let batches = Batches {
        load: deep(Verb::Send, 8192, 1, BATCH),
        pause_ns: PAUSE_NS,
    };
    let times = (Duration::ZERO, Duration::from_millis(3));
    let delays = batches.batch_delays(&bed.machines.testbed(bed.stop), times)?;
    Ok(delays.last().map(|last| last.max_ns * 1e-3))
}

#[test]
fn a_drop_is_from_the_highest_before() {
    let rates = [1.0, 2.0, 1.95, 1.89, 5.0];
    let at = |index: usize| Ok(Some(rates[index]));
    assert_eq!(drop_at(&[0, 1, 2, 3, 4], at).unwrap(), Some(3.0));
    assert_eq!(drop_at(&[0, 1, 2, 4], at).unwrap(), None);
    // A point without a rate is a drop, too.
    let none = drop_at(&[0, 7], |at| Ok((at == 0).then_some(1.0)));
    assert_eq!(none.unwrap(), Some(7.0));
}

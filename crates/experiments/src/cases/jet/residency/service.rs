//! The arms of `jet-residency` whose messages go through two daemons.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::plan::{ServicePool, ServiceSetting};
use crate::cases::jet::hosts::{Receiver, StreamingHosts};
use crate::cases::prelude::*;
use crate::residency::{Cpus, MemoryLoad};
use crate::service::daemon_hosts::DaemonOptions;
use crate::service::rusage::pause;
use crate::service::streaming::UNLIMITED;

/// Number of streams, and bytes of a message.
const STREAMS: u32 = 8;
pub(super) const MESSAGE: u32 = 64 << 10;
/// Bytes of the longest egress ring: all of them together, which the sender copies into, are 1 MiB.
const RING: u32 = 128 << 10;
/// Bytes of the long pool.
const LONGEST: u64 = 1 << 30;
/// Time for which streams have sent before the measurement begins, and the least time of a measurement.
const WARM: Wall = Wall::from_millis(100);
const LEAST_TIME: Wall = Wall::from_millis(500);
/// How long a pool may take until all of it was used.
const LIMIT: Wall = Wall::from_secs(60);
const LOOK: Wall = Wall::from_millis(50);

/// Two daemons and two applications for each pool.
pub(super) struct ServiceHosts(Vec<(ServicePool, StreamingHosts)>);

/// Throughput of a measurement in bytes per second, and that of the antagonist, if there was one.
pub(super) struct ServiceRate {
    pub(super) bytes_per_second: f64,
    pub(super) antagonist: Option<f64>,
}

impl ServiceHosts {
    /// Starts all processes on the receiver's processor, and uses all memory of the pools once.
    pub(super) fn start(bench: &Bench<'_>, cpus: Cpus) -> Result<Self, WorkloadError> {
        let sending = DaemonOptions {
            config: format!("[limits]\nring_max = {RING}\n"),
            ..DaemonOptions::default()
        };
        let start = |pool| {
            let (config, bytes) = match pool {
                ServicePool::Usual => (String::new(), LONGEST / 8),
                ServicePool::Long | ServicePool::InTurn => {
                    let config =
                        format!("[limits]\npool_bytes = {LONGEST}\npool_budget = {LONGEST}\n");
                    (config, LONGEST + LONGEST / 8)
                }
            };
            let receiving = DaemonOptions {
                config,
                is_pool_in_turn: pool == ServicePool::InTurn,
                ..DaemonOptions::default()
            };
            let receiver = Receiver {
                name: "receiver",
                streams: STREAMS,
            };
            let (cpus, options) = ([cpus.receiver; 2], [sending.clone(), receiving]);
            let mut hosts = StreamingHosts::start(bench, cpus, &options, &[receiver], MESSAGE)?;
            hosts.connect(bench.stop())?;
            use_all(&mut hosts, bytes, bench)?;
            Ok((pool, hosts))
        };
        let all = ServicePool::ALL.map(start).into_iter();
        Ok(Self(all.collect::<Result<_, WorkloadError>>()?))
    }

    /// Measures for about `run`.
    pub(super) fn measure(
        &mut self,
        bench: &Bench<'_>,
        setting: ServiceSetting,
        (antagonist, cpu): (&mut MemoryLoad, usize),
        run: Wall,
    ) -> Result<ServiceRate, WorkloadError> {
        let mut hosts = self.0.iter_mut();
        let hosts = hosts.find(|(pool, _)| *pool == setting.pool);
        let (_, hosts) = hosts.ok_or_else(|| WorkloadError("there is no such pool".into()))?;
        let (runs, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let (runs, over) = (&runs, &over);
        std::thread::scope(|scope| {
            let antagonist = setting.is_loaded.then(|| {
                scope.spawn(move || {
                    crate::cpu_affinity::pin(cpu)?;
                    Ok::<_, WorkloadError>(antagonist.run(runs, over).mean)
                })
            });
            let measured = rate(hosts, bench, run.max(LEAST_TIME));
            over.store(true, Ordering::Relaxed);
            let panicked = |_| WorkloadError("the antagonist panicked".into());
            let antagonist = antagonist.map(|one| one.join().map_err(panicked)?);
            Ok(ServiceRate {
                bytes_per_second: measured?,
                antagonist: antagonist.transpose()?,
            })
        })
    }
}

/// Sends until this many bytes were received.
fn use_all(hosts: &mut StreamingHosts, bytes: u64, bench: &Bench<'_>) -> Result<(), WorkloadError> {
    let began = Instant::now();
    hosts.send(UNLIMITED, bench.stop())?;
    while hosts.count(0, bench.stop())?.bytes < bytes {
        if began.elapsed() > LIMIT {
            return Err(WorkloadError(format!(
                "{bytes} bytes were not received within {LIMIT:?}"
            )));
        }
        pause(LOOK, bench.stop())?;
    }
    hosts.send(0, bench.stop())
}

fn rate(hosts: &mut StreamingHosts, bench: &Bench<'_>, run: Wall) -> Result<f64, WorkloadError> {
    let stop = bench.stop();
    hosts.send(UNLIMITED, stop)?;
    pause(WARM, stop)?;
    let from = hosts.count(0, stop)?;
    pause(run, stop)?;
    let until = hosts.count(0, stop)?;
    hosts.send(0, stop)?;
    Ok(until.per_second_since(from))
}

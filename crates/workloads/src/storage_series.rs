//! A storage server over virtual time, while an antagonist on its host comes and goes: what the host's counters and the
//! receive memory say in each of many windows.

use std::sync::atomic::AtomicBool;

use headworks::runtime::{ActorRegistry, ActorSpec, Scenario, World};
use headworks::sim::faults::{Rules, rules};
use headworks::sim::{HostCounters, SimWorld, Usage};
use headworks::verbs::{DeviceName, Duration, Instant};

use crate::actor_pair::{BEGIN, Role};
use crate::cpu_prices::CpuPrices;
use crate::error::{Result, WorkloadError};
use crate::nic::storage::StorageLoad;
use crate::nic::{NicTask, NicWorkload};
use crate::nic_measurements::Stored;
use crate::report::{Report, StorageSample};
use crate::service::virtual_time::Machine;
use crate::task::{ACTOR, Task, register};
use crate::testbed::private_dir;
use crate::virtual_run::{Drive, DriveEvent};

/// Time between two looks at the clock.
const LOOKS_EVERY: Duration = Duration::from_micros(10);
/// How long a run may take beyond its planned time.
const PATIENCE: Duration = Duration::from_millis(100);

/// A time for which an antagonist runs on the server's host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Antagonist {
    /// First window, and number of windows.
    pub from: usize,
    /// See `from`.
    pub windows: usize,
    /// Bandwidth that it would use alone, in GB/s.
    pub gb_per_s: u32,
}

/// A storage server that is watched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StorageSeries {
    /// Its load. The samples are set by this.
    pub load: StorageLoad,
    /// Time before the first window: a multiple of a window.
    pub warm_up: Duration,
    /// Length of a window, and number of windows.
    pub window: Duration,
    /// See `window`.
    pub windows: usize,
    /// The antagonist, besides that of the machine.
    pub antagonist: Option<Antagonist>,
}

/// What happened in a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Length, in seconds.
    pub seconds: f64,
    /// Bytes that arrived at the server's host.
    pub arrived: u64,
    /// Counters of that host's memory.
    pub host: HostCounters,
    /// The receive memory at the window's end. Its counts are of the whole run.
    pub memory: StorageSample,
}

impl StorageSeries {
    /// Runs the server on such machines. Returns its windows, and what the server says of all of them.
    ///
    /// # Errors
    ///
    /// An actor failed, a request failed, the preset does not model the memory of hosts, or `stop` was set.
    pub fn measure(&self, machine: &Machine, stop: &AtomicBool) -> Result<(Vec<Window>, Stored)> {
        let mut actors = ActorRegistry::new();
        register(&mut actors, Some(CpuPrices::of(&machine.preset)));
        let mut world = SimWorld::new(actors, machine.preset.clone(), machine.seed);
        let server = Role::Sender.name();
        if let Some(Antagonist {
            from,
            windows,
            gb_per_s,
        }) = self.antagonist
        {
            let (from, span) = (self.begin_of(from), self.window.times(windows as u64));
            let rule = rules::antagonist(server, from, span, gb_per_s);
            world = world.with_rules(Rules::new(machine.seed).with(rule));
        }
        let dir = private_dir()?;
        let task = Task::from(NicTask {
            what: NicWorkload::Storage(StorageLoad {
                sample_ns: self.window.nanos(),
                ..self.load
            }),
            run_ns: self.window.times(self.windows as u64).nanos(),
            warm_ns: self.warm_up.nanos(),
            together: true,
            dir: dir.path().to_owned(),
        });
        let mut parts = Vec::new();
        for role in Role::BOTH {
            let name = role.name();
            let device = format!("sim:{},host={name}", machine.preset.name);
            let device: DeviceName = device.parse().map_err(|e| WorkloadError::at("device", e))?;
            let spec = ActorSpec::new(name, ACTOR).on(device);
            parts.push(spec.with_args(&*task.to_bytes()));
        }
        let monitor = world.usage_monitor();
        let running = world.start(&Scenario::of(parts));
        let mut running = running.map_err(|e| WorkloadError::at("scenario", e))?;
        let (mut looks, mut stored) = (Vec::new(), None);
        let drive = Drive {
            actors: Role::BOTH.len(),
            limit: self.begin_of(self.windows) + PATIENCE,
            every: LOOKS_EVERY,
            stop,
        };
        drive.to_end(&mut *running, |running, event| {
            match event {
                DriveEvent::Turn => {
                    let is_due = running.now() >= self.begin_of(looks.len());
                    if is_due && looks.len() <= self.windows {
                        looks.extend(monitor.now());
                    }
                }
                DriveEvent::Report(bytes) => match Report::from_bytes(&bytes)? {
                    Report::Ready => {
                        let told = running.send(server, BEGIN);
                        told.map_err(|e| WorkloadError::at("scenario", e))?;
                    }
                    report => stored = Stored::of(report).or_else(|| stored.take()),
                },
            }
            Ok(())
        })?;
        let stored =
            stored.ok_or_else(|| WorkloadError("a storage server did not report".to_owned()))?;
        let windows = self.windows_of(&looks, &stored.samples);
        match windows.len() == self.windows {
            true => Ok((windows, stored)),
            false => Err(WorkloadError("some windows were not measured".to_owned())),
        }
    }

    /// Returns when a window begins.
    fn begin_of(&self, window: usize) -> Instant {
        Instant::ZERO + self.warm_up + self.window.times(window as u64)
    }

    /// Returns the windows between looks, each with the first sample after it.
    fn windows_of(&self, looks: &[Usage], samples: &[StorageSample]) -> Vec<Window> {
        let windows = (1..).zip(looks.windows(2));
        let windows = windows.filter_map(|(number, pair)| {
            let since = pair[1].since(&pair[0]);
            let mut hosts = since.hosts.iter();
            let host = hosts.find(|host| host.host == Role::Sender.name())?;
            let ends = self.begin_of(number).nanos();
            let after = samples.iter().find(|sample| sample.at_ns >= ends);
            Some(Window {
                // `over` is in picoseconds.
                seconds: since.over as f64 * 1e-12,
                arrived: host.counters.bytes_in,
                host: host.receiving?,
                memory: *after.or_else(|| samples.last())?,
            })
        });
        windows.collect()
    }
}

#[cfg(test)]
mod tests {
    use headworks::sim::Preset;

    use super::*;
    use crate::nic::storage::StayTime;

    #[test]
    fn an_antagonist_is_seen_in_its_windows_and_slows_areas_down() {
        let series = StorageSeries {
            load: StorageLoad {
                size: 256 << 10,
                least: 256 << 10,
                connections: 8,
                outstanding: 4,
                memory: 32 << 20,
                is_pool: false,
                has_windows: false,
                by_slices: false,
                stay_ns: 200_000,
                stay: StayTime::Fixed,
                sample_ns: 0,
            },
            warm_up: Duration::from_millis(2),
            window: Duration::from_millis(1),
            windows: 9,
            antagonist: Some(Antagonist {
                from: 3,
                windows: 3,
                gb_per_s: 60,
            }),
        };
        let preset = Preset::named("cx4lx-2x25g").expect("a preset");
        let machine = Machine { preset, seed: 1 };
        let measure = || series.measure(&machine, &AtomicBool::new(false));
        let (windows, stored) = measure().unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(windows.len(), 9);
        let gb = |window: &Window| window.arrived as f64 / window.seconds * 1e-9;
        for (number, window) in windows.iter().enumerate() {
            let runs = (3..6).contains(&number);
            assert_eq!(window.host.memory_antagonist > 1 << 20, runs, "{number}");
            assert!((0.9e-3..1.1e-3).contains(&window.seconds), "{window:?}");
            let of = &window.host;
            let moved = of.memory_rnic + of.memory_processors + of.memory_antagonist;
            // Each of the three counts is rounded down to bytes.
            let most = machine.preset.host_memory * 1e9 * window.seconds + 3.0;
            assert!(moved as f64 <= most, "{moved} of {most} in {number}");
        }
        assert!(
            gb(&windows[2]) > 5.0 && gb(&windows[5]) < 4.5,
            "{windows:?}"
        );
        assert!(stored.bytes_per_s > 3e9, "{stored:?}");
        let again = measure().unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(again.0, windows, "a run repeats");
    }
}

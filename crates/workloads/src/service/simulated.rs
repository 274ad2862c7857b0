//! The service in virtual time, beside verbs: the daemon's own core and its applications on simulated hosts, and threads
//! that have queue pairs of their own, or share some under a lock (RaaS, section VI).
//!
//! | module | what |
//! |---|---|
//! | `scene` | what all parts of a play know of each other: when it is measured, and what came of it |
//! | `lock` | a lock in virtual time |
//! | `verbs` | callers on plain verbs |
//! | `host` | a host's daemon |
//! | `client` | an application's end of the service |
//! | `programs`, `messages` | applications: those that ask and are asked, those that send each other messages |

mod lock;

mod client;
mod host;
mod messages;
mod programs;
mod scene;
mod verbs;

use std::sync::atomic::{AtomicBool, Ordering};

use headworks::sim::{Figures, Preset, SimWorld};
use headworks::stage::world::{Event, Outcome};
use headworks::stage::{Cast, Play, World};
use headworks::verbs::{DeviceName, Duration, Instant};

pub use super::requests::{Load, What};
use super::{Result, failed};
use crate::latency::Quantiles;
use crate::transports::ArmError;
use scene::{Scene, Stage};

/// What carries the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Queue pairs of each caller's own: one for each connection.
    Native,
    /// So many callers share each queue pair under a lock.
    Locked(usize),
    /// The service: each caller is an application.
    Service,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Requests that ended in a second.
    pub per_second: f64,
    /// Bytes that came to the callers' RNIC in a second. Right even if many long answers are not whole at the end.
    pub bytes_per_second: f64,
    /// How long each took, from when its caller set about it until it had seen that it was over.
    pub latency: Quantiles,
    /// Queue pairs of the callers' host.
    pub queue_pairs: usize,
    /// Requests that ended, ever. All that were asked for did, and did what they should.
    pub ended: u64,
}

/// The machines.
#[derive(Clone, Debug)]
pub struct Machine {
    /// All of them are alike.
    pub preset: Preset,
    /// What chance draws from.
    pub seed: u64,
}

impl Machine {
    /// The device of a host: 0 is the callers'.
    fn device(&self, host: usize) -> Result<DeviceName> {
        let name = format!("sim:{},host=h{host}", self.preset.name);
        name.parse().map_err(failed("a device's name"))
    }
}

/// A constant of a machine, in nanoseconds.
fn nanos(nanos: f64) -> Duration {
    Duration::from_nanos(nanos as u64)
}

/// The host of the callers.
const CALLERS: &str = "h0";
/// Longest time before everything is set up and after what is measured.
const PATIENCE: Duration = Duration::from_secs(2);

impl Load {
    /// Runs on such machines, for so long after a warm-up, both in virtual time. An answer that is wrong or missing is an
    /// error.
    pub fn measure(
        &self,
        arm: Arm,
        machine: &Machine,
        times: (Duration, Duration),
        stop: &AtomicBool,
    ) -> Result<Found> {
        let mut stage = Stage {
            scene: Scene::new(*self, machine, times),
            cast: Cast::new(),
            parts: Vec::new(),
        };
        match arm {
            Arm::Native => verbs::add(&mut stage, 1)?,
            Arm::Locked(sharing) => verbs::add(&mut stage, sharing)?,
            Arm::Service => host::add(&mut stage)?,
        };
        let Stage { scene, cast, parts } = stage;
        let count = parts.len();
        let world = SimWorld::new(cast, machine.preset.clone(), machine.seed);
        let mut running = world.start(&Play::of(parts)).map_err(failed("stage"))?;
        let limit = Instant::ZERO + times.0 + times.1 + PATIENCE;
        let figures = world.figures();
        // What had come when it began to be measured, and when it ceased to be.
        let mut looks = Vec::new();
        let mut ended = 0;
        while ended < count {
            let now = running.now();
            if stop.load(Ordering::Relaxed) {
                return Err(ArmError("interrupted".to_owned()));
            }
            if now > limit {
                return Err(ArmError("it does not end".to_owned()));
            }
            let window = scene.look().window();
            let next = window.and_then(|window| window.get(looks.len()).copied());
            if next.is_some_and(|next| next <= now) {
                looks.push((now, came(&figures)));
            }
            match running.poll(Duration::from_micros(100)) {
                Some(Event::Ended {
                    outcome: Outcome::Done,
                    ..
                }) => ended += 1,
                Some(Event::Ended { role, outcome }) => {
                    return Err(ArmError(format!("{role}: {outcome}")));
                }
                _ => {}
            }
        }
        if looks.len() == 1 {
            // All were done before the second look.
            looks.push((running.now(), came(&figures)));
        }
        drop(running);
        let [(from, before), (until, after)] = looks[..] else {
            return Err(ArmError("it ended before it was measured".to_owned()));
        };
        let state = scene.look();
        let tally = &state.tally;
        if tally.asked != tally.ended {
            let why = format!("{} of {} requests ended", tally.ended, tally.asked);
            return Err(ArmError(why));
        }
        if let (What::Adds { .. }, Some(sum)) = (self.what, state.sum)
            && sum != tally.asked
        {
            let why = format!("{} were added, and the counters say {sum}", tally.asked);
            return Err(ArmError(why));
        }
        Ok(Found {
            per_second: tally.measured as f64 / times.1.as_secs_f64(),
            bytes_per_second: (after - before) as f64 / until.since(from).as_secs_f64(),
            latency: tally.latencies.quantiles(1.0),
            queue_pairs: state.queue_pairs,
            ended: tally.ended,
        })
    }
}

/// Bytes that have come to the host of the callers.
fn came(figures: &Figures) -> u64 {
    let usage = figures.now();
    let mut hosts = usage.iter().flat_map(|usage| &usage.hosts);
    let of = hosts.find(|host| host.host == CALLERS);
    of.map_or(0, |host| host.counters.bytes_in)
}

#[cfg(test)]
mod tests;

//! The service in virtual time, beside verbs: the daemon's own core and its applications on simulated hosts, and threads
//! that have queue pairs of their own, or share some under a lock (RaaS, section VI). All of it is simulated.
//!
//! | module | what |
//! |---|---|
//! | `work` | what callers do, whatever they do it by, and whether what came is right |
//! | [`lock`] | a lock in virtual time |
//! | `verbs` | callers on plain verbs |
//! | `host` | a host's daemon |
//! | `programs`, `messages` | its applications: those that ask and are asked, those that send each other messages |

pub mod lock;

mod host;
mod messages;
mod programs;
mod verbs;
mod work;

use std::sync::atomic::{AtomicBool, Ordering};

use headworks::sim::{Preset, SimWorld, Usage};
use headworks::stage::world::{Event, Outcome};
use headworks::stage::{Cast, Play, World};
use headworks::verbs::{DeviceName, Duration, Instant};

use crate::latency::Quantiles;
use crate::transports::ArmError;
use work::Scene;

/// What callers ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// READs at random places of memory of another host's.
    Reads {
        /// Bytes of each, a multiple of 8.
        bytes: usize,
        /// Bytes of the memory of each host, a multiple of that.
        region: usize,
    },
    /// 1 is added to one of so many words, which is drawn.
    Adds {
        /// Words of each host.
        words: usize,
    },
    /// Messages there and back, by one caller over one connection, one at a time. Over the service alone.
    Messages {
        /// Bytes of each.
        bytes: usize,
    },
}

/// What callers of one host do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// What they ask for.
    pub what: What,
    /// Callers: threads, each with a core of its own as long as there are any.
    pub callers: usize,
    /// Connections in all, or queue pairs where callers have their own: a multiple of the callers.
    pub connections: usize,
    /// Hosts that they are to, in turn.
    pub hosts: usize,
    /// Requests outstanding of each caller, over its connections in turn.
    pub outstanding: usize,
}

impl Load {
    /// Bytes of each host's memory.
    fn region(&self) -> usize {
        match self.what {
            What::Reads { region, .. } => region,
            What::Adds { .. } | What::Messages { .. } => 4096,
        }
    }
}

/// By what they do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Queue pairs of each caller's own: one for each connection.
    Native,
    /// Each queue pair is so many callers', who share it under a lock.
    Locked(usize),
    /// The service: each caller is an application.
    Service,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Requests that ended in a second.
    pub per_second: f64,
    /// Bytes that came to the callers' RNIC in a second: right however many of long answers are not whole yet.
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
    fn device(&self, host: usize) -> Result<DeviceName, ArmError> {
        let name = format!("sim:{},host=h{host}", self.preset.name);
        name.parse()
            .map_err(|why| ArmError::at("a device's name", why))
    }
}

/// What the host of the callers is called.
const CALLERS: &str = "h0";
/// What may pass, of the time that is measured, before everything is set up and after all is over.
const PATIENCE: Duration = Duration::from_secs(2);

impl Load {
    /// Does it on such machines, for so long after a warm-up, both in virtual time.
    ///
    /// # Errors
    ///
    /// What kept them from it: among others an answer that is wrong, or one that never came.
    pub fn measure(
        &self,
        arm: Arm,
        machine: &Machine,
        times: (Duration, Duration),
        stop: &AtomicBool,
    ) -> Result<Found, ArmError> {
        let scene = Scene::new(*self, machine.seed, times);
        let mut cast = Cast::new();
        let parts = match arm {
            Arm::Native => verbs::parts(&mut cast, &scene, machine, *self, 1)?,
            Arm::Locked(sharing) => verbs::parts(&mut cast, &scene, machine, *self, sharing)?,
            Arm::Service => host::parts(&mut cast, &scene, machine, *self)?,
        };
        let count = parts.len();
        let world = SimWorld::new(cast, machine.preset.clone(), machine.seed);
        let mut running = world
            .start(&Play::of(parts))
            .map_err(|why| ArmError::at("stage", why))?;
        let limit = Instant::ZERO + times.0 + times.1 + PATIENCE;
        let figures = world.figures();
        let mut looks = Vec::new();
        let mut ended = 0;
        while ended < count {
            if stop.load(Ordering::Relaxed) {
                return Err(ArmError("interrupted".to_owned()));
            }
            if running.now() > limit {
                return Err(ArmError("it does not end".to_owned()));
            }
            // When it begins to be measured, and when it ceases to be.
            let window = scene.look().window();
            let next = window.and_then(|window| window.get(looks.len()).copied());
            let now = running.now();
            if next.is_some_and(|next| next <= now) {
                looks.push((now, figures.now().map_or(0, |usage| came(&usage))));
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
            // All were done before it was looked again.
            let now = running.now();
            looks.push((now, figures.now().map_or(0, |usage| came(&usage))));
        }
        drop(running);
        let state = scene.look();
        if state.asked != state.ended {
            let why = format!("{} of {} requests ended", state.ended, state.asked);
            return Err(ArmError(why));
        }
        if let (What::Adds { .. }, Some(sum)) = (self.what, state.sum)
            && sum != state.asked
        {
            let why = format!("{} were added, and the counters say {sum}", state.asked);
            return Err(ArmError(why));
        }
        Ok(Found {
            per_second: state.measured as f64 / times.1.as_secs_f64(),
            bytes_per_second: match looks[..] {
                [(from, before), (until, after)] => {
                    (after - before) as f64 / until.since(from).as_secs_f64()
                }
                _ => return Err(ArmError("it ended before it was measured".to_owned())),
            },
            latency: state.latencies.quantiles(1.0),
            queue_pairs: state.queue_pairs,
            ended: state.ended,
        })
    }
}

/// Bytes that have come to the host of the callers.
fn came(usage: &Usage) -> u64 {
    let of = usage.hosts.iter().find(|host| host.host == CALLERS);
    of.map_or(0, |host| host.counters.bytes_in)
}

#[cfg(test)]
mod tests;

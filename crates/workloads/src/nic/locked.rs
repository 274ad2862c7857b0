//! Threads of one host that post to a queue pair in common under a lock, as systems do that share queue pairs
//! synchronously (RaaS III-B, Figure 2); beside threads that have one each. Simulated: the lock is one of virtual time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks::sim::{Preset, SimWorld};
use headworks::stage::world::{Event, Outcome};
use headworks::stage::{Actor, ActorError, Cast, Cx, Part, PartSpec, Play, Step, World};
use headworks::verbs::{DeviceName, Duration, Instant};
use headworks_baselines::{Window, Writes};

use crate::transports::ArmError;

/// What each thread posts to, of its own or in common: so many requests outstanding for each thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Threads of the host that sends.
    pub threads: usize,
    /// Whether they have one queue pair together, and not one each.
    pub in_common: bool,
    /// Requests outstanding for each.
    pub depth: usize,
    /// Bytes of a WRITE: 8 or a multiple.
    pub bytes: usize,
}

/// A lock in virtual time. Pure.
#[derive(Debug, Default)]
struct Lock {
    free_at: Instant,
    owner: Option<usize>,
}

impl Lock {
    /// What thread `who` waits that wants it `now`: until it is free, and until its line has come from the core that
    /// had it last.
    fn take(&mut self, who: usize, now: Instant, hand_over: Duration) -> Duration {
        let free_at = self.free_at.max(now);
        let is_own = self.owner.replace(who).is_none_or(|owner| owner == who);
        let has_it = match is_own {
            true => free_at,
            false => free_at + hand_over,
        };
        has_it.since(now)
    }

    fn release(&mut self, now: Instant) {
        self.free_at = now;
    }
}

/// A queue pair and its lock.
struct Common {
    lock: Lock,
    writes: Writes,
}

/// Which queue pairs there are so far, and how many requests ended in the measured time.
#[derive(Default)]
struct Board {
    queue_pairs: Vec<Option<Arc<Mutex<Common>>>>,
    done: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One thread.
struct Thread {
    who: usize,
    common: Arc<Mutex<Common>>,
    board: Arc<Mutex<Board>>,
    hand_over: Duration,
    work: Duration,
    measured: (Instant, Instant),
}

impl Actor for Thread {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let (begin, end) = self.measured;
        let mut common = locked(&self.common);
        let Common { lock, writes } = &mut *common;
        writes.fill()?;
        let Some(request) = writes.take_one()? else {
            return Ok(Step::Again);
        };
        cx.charge(self.work);
        let now = cx.now();
        cx.charge(lock.take(self.who, now, self.hand_over));
        writes.post_again(request)?;
        let now = cx.now();
        lock.release(now);
        if now >= end {
            return Ok(Step::Done);
        }
        locked(&self.board).done += u64::from(now >= begin);
        Ok(Step::Again)
    }
}

impl Sharing {
    /// Requests per second of all threads on machines of that preset, after `warm` for so long.
    ///
    /// # Errors
    ///
    /// What kept them from it.
    pub fn rate(
        self,
        preset: &Preset,
        (warm, run): (Duration, Duration),
        stop: &AtomicBool,
    ) -> Result<f64, ArmError> {
        let board = Arc::new(Mutex::new(Board::default()));
        let begin = Instant::ZERO + warm;
        let end = begin + run;
        let mut cast = Cast::new();
        let (of_cast, machine) = (board.clone(), preset.clone());
        cast.register("thread", move |part: &Part| {
            let who: usize = part.spec.role.parse()?;
            Ok(Box::new(Thread {
                who,
                common: self.of(who, part, &machine, &of_cast)?,
                board: of_cast.clone(),
                hand_over: Duration::from_nanos(machine.lock_ns as u64),
                work: Duration::from_nanos(machine.bench_ns as u64),
                measured: (begin, end),
            }))
        });
        let world = SimWorld::new(cast, preset.clone(), 1);
        let device = name(preset, "a")?;
        let parts = (0..self.threads)
            .map(|who| PartSpec::new(who.to_string(), "thread").on(device.clone()));
        let mut running = world
            .start(&Play::of(parts))
            .map_err(|why| ArmError::at("threads", why))?;
        let mut ended = 0;
        while ended < self.threads {
            if stop.load(Ordering::Relaxed) {
                return Err(ArmError("interrupted".to_owned()));
            }
            match running.poll(Duration::from_micros(100)) {
                Some(Event::Ended {
                    outcome: Outcome::Failed(why),
                    ..
                }) => return Err(ArmError(why)),
                Some(Event::Ended { .. }) => ended += 1,
                _ => {}
            }
        }
        drop(running);
        let done = locked(&board).done;
        Ok(done as f64 / run.as_secs_f64())
    }

    /// The queue pair of a thread, made if it is the first to ask.
    fn of(
        self,
        who: usize,
        part: &Part,
        machine: &Preset,
        board: &Mutex<Board>,
    ) -> Result<Arc<Mutex<Common>>, ActorError> {
        let (at, threads) = match self.in_common {
            true => (0, self.threads),
            false => (who, 1),
        };
        let mut board = locked(board);
        board.queue_pairs.resize(self.threads, None);
        if let Some(common) = &board.queue_pairs[at] {
            return Ok(common.clone());
        }
        let devices = [
            (part.opener)(&name(machine, "a")?)?,
            (part.opener)(&name(machine, "b")?)?,
        ];
        let window = Window {
            queue_pairs: 1,
            depth: self.depth * threads,
            bytes: self.bytes,
        };
        let common = Arc::new(Mutex::new(Common {
            lock: Lock::default(),
            writes: Writes::connect(devices, window)?,
        }));
        board.queue_pairs[at] = Some(common.clone());
        Ok(common)
    }
}

fn name(preset: &Preset, host: &str) -> Result<DeviceName, ArmError> {
    let name = format!("sim:{},host={host}", preset.name);
    name.parse()
        .map_err(|why| ArmError::at("a device's name", why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for_and_handed_over_only_to_others() {
        let (at, nanos) = (Instant::from_nanos, Duration::from_nanos);
        let mut lock = Lock::default();
        assert_eq!(lock.take(1, at(100), nanos(150)), nanos(0));
        lock.release(at(180));
        assert_eq!(lock.take(1, at(150), nanos(150)), nanos(30));
        lock.release(at(200));
        assert_eq!(lock.take(2, at(160), nanos(150)), nanos(190));
        lock.release(at(400));
        assert_eq!(lock.take(1, at(500), nanos(150)), nanos(150));
    }

    #[test]
    fn threads_that_share_do_less_and_one_alone_the_same() {
        let preset = Preset::named("cx3-40g").expect("a preset");
        let times = (Duration::from_micros(50), Duration::from_micros(300));
        let rate = |threads, in_common| {
            let (depth, bytes) = (16, 64);
            let sharing = Sharing {
                threads,
                in_common,
                depth,
                bytes,
            };
            let found = sharing.rate(&preset, times, &AtomicBool::new(false));
            found.expect("threads")
        };
        assert_eq!(rate(1, true), rate(1, false));
        let (own, shared) = (rate(3, false), rate(3, true));
        assert!(shared < own && shared > 0.0, "{shared} {own}");
        // Whoever has the lock was handed it: more threads do no more.
        let hand_over = preset.lock_ns * 1e-9;
        assert!(shared < 1.0 / hand_over, "{shared}");
        assert!(rate(9, true) <= 1.02 * shared);
    }
}

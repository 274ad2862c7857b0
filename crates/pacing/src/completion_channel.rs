//! Completion channels of a paced device: the device's own channel, and a timer for requests that become due
//! while the program sleeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_verbs::{CompletionChannel, CqId, Duration, ResourceError};
use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_gettime, timerfd_settime,
};

/// A completion channel of a paced device.
pub(crate) struct PacedChannel {
    pub(crate) inner: Arc<dyn CompletionChannel>,
    /// Present where real time passes.
    alarm: Option<DeadlineTimer>,
    queues: Mutex<ChannelQueues>,
}

struct DeadlineTimer {
    both: OwnedFd,
    timer: OwnedFd,
}

#[derive(Default)]
struct ChannelQueues {
    /// For each of the device's completion queues for requests: its own id, and the id that the program
    /// knows.
    names: Vec<(CqId, CqId)>,
    /// Completion queues to report when the timer expires: their requests are due then.
    asleep: Vec<CqId>,
}

impl PacedChannel {
    /// Wraps one of the device's channels, with a timer if `has_timer`.
    pub(crate) fn new(
        inner: Arc<dyn CompletionChannel>,
        has_timer: bool,
    ) -> Result<Self, ResourceError> {
        let alarm = has_timer
            .then(|| DeadlineTimer::over(inner.fd()))
            .transpose();
        let alarm = alarm.map_err(|errno| ResourceError::System {
            what: "a timer for a completion channel",
            source: errno.into(),
        })?;
        Ok(Self {
            inner,
            alarm,
            queues: Mutex::default(),
        })
    }

    fn queues(&self) -> MutexGuard<'_, ChannelQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports events of the device's completion queue `inner` to the program as events of `outer`.
    pub(crate) fn name(&self, inner: CqId, outer: CqId) {
        self.queues().names.push((inner, outer));
    }

    /// Forgets a completion queue that was destroyed.
    pub(crate) fn forget(&self, outer: CqId) {
        let mut queues = self.queues();
        queues.names.retain(|(_, other)| *other != outer);
        queues.asleep.retain(|other| *other != outer);
    }

    /// Whether the channel can wake a waiter at a given time.
    pub(crate) fn has_timer(&self) -> bool {
        self.alarm.is_some()
    }

    /// Wakes the thread that waits for `outer` after `wait`.
    pub(crate) fn wake_after(&self, outer: CqId, wait: Duration) {
        let Some(alarm) = &self.alarm else {
            return;
        };
        let mut queues = self.queues();
        if !queues.asleep.contains(&outer) {
            queues.asleep.push(outer);
        }
        // An early wake-up is harmless: the woken thread polls and arms again.
        if alarm.left().is_none_or(|left| wait < left) {
            alarm.set(wait);
        }
    }
}

impl DeadlineTimer {
    fn over(inner: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in [inner, timer.as_fd()] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&both, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(Self { both, timer })
    }

    fn set(&self, wait: Duration) {
        let nanos = wait.nanos().max(1);
        let spec = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: (nanos / 1_000_000_000) as i64,
                tv_nsec: (nanos % 1_000_000_000) as _,
            },
        };
        // The call can only fail for a time out of range, and this one is within it.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
    }

    /// Time until the timer expires, if it is set.
    fn left(&self) -> Option<Duration> {
        let left = timerfd_gettime(&self.timer).ok()?.it_value;
        let nanos = left.tv_sec as u64 * 1_000_000_000 + left.tv_nsec as u64;
        (nanos > 0).then_some(Duration::from_nanos(nanos))
    }

    fn has_rung(&self) -> bool {
        let mut count = [0; 8];
        matches!(rustix::io::read(&self.timer, &mut count), Ok(8))
    }
}

impl CompletionChannel for PacedChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        match &self.alarm {
            Some(alarm) => alarm.both.as_fd(),
            None => self.inner.fd(),
        }
    }

    fn next_event(&self) -> Result<Option<CqId>, ResourceError> {
        if let Some(id) = self.inner.next_event()? {
            let queues = self.queues();
            let named = queues.names.iter().find(|(inner, _)| *inner == id);
            return Ok(Some(named.map_or(id, |(_, outer)| *outer)));
        }
        let Some(alarm) = &self.alarm else {
            return Ok(None);
        };
        let mut queues = self.queues();
        if alarm.has_rung() {
            let next = queues.asleep.pop();
            if !queues.asleep.is_empty() {
                // The timer fires again at once for the others.
                alarm.set(Duration::ZERO);
            }
            return Ok(next);
        }
        Ok(None)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

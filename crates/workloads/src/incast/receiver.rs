//! The program on the contended host. It reads the counters at the end of each window, and signals the senders while
//! too many bytes wait before the host's memory.

use headworks::runtime::{Actor, ActorContext, ActorError, Step};
use headworks::sim::Preset;
use headworks::verbs::{Duration, Instant};

use super::{CONTENDED, Run, SIGNALS_EVERY, WINDOW, sender_name};

/// How often it looks at what waits.
const LOOKS_EVERY: Duration = Duration::from_micros(10);
/// The mail that is a signal.
pub(super) const SIGNAL: &[u8] = b"slow down";

/// Bytes that may wait without a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Watermarks {
    /// In the RNIC's buffer.
    pub(super) rnic: u64,
    /// In a queue of the switch.
    pub(super) switch: u64,
}

impl Watermarks {
    /// Half of the length at which the RNIC or the switch pauses a link. Without pauses, the length at which the RNIC
    /// notifies senders, and half of that at which the switch marks all packets.
    pub(super) fn of(preset: &Preset) -> Self {
        let bytes = |kib: f64| (kib * 1024.0) as u64;
        let rnic = match preset.rx_pause_kib > 0.0 {
            true => preset.rx_pause_kib / 2.0,
            false => preset.rx_notify_kib,
        };
        let switch = match preset.switch_pause_kib > 0.0 {
            true => preset.switch_pause_kib / 2.0,
            false => preset.switch_mark_all_kib / 2.0,
        };
        Self {
            rnic: bytes(rnic),
            switch: bytes(switch),
        }
    }
}

pub(super) struct Receiver {
    run: Run,
    watermarks: Watermarks,
    /// End of the current window.
    window_ends: Instant,
    /// Time from which it may signal again.
    signals_from: Instant,
}

impl Receiver {
    pub(super) fn new(run: Run) -> Self {
        Self {
            watermarks: Watermarks::of(run.preset()),
            window_ends: run.measured.0,
            signals_from: Instant::ZERO,
            run,
        }
    }

    /// Signals all senders if too many bytes wait.
    fn signal(&mut self, cx: &mut ActorContext<'_>, now: Instant) -> Result<(), ActorError> {
        let monitor = self.run.monitor.get();
        let backlog = monitor.and_then(|monitor| monitor.backlog(CONTENDED));
        let Some(backlog) = backlog else {
            return Ok(());
        };
        let Watermarks { rnic, switch } = self.watermarks;
        if backlog.rnic_bytes <= rnic && backlog.switch_bytes <= switch {
            return Ok(());
        }
        for number in 0..self.run.incast.senders {
            cx.send(&sender_name(number), SIGNAL)?;
        }
        self.signals_from = now + SIGNALS_EVERY;
        let measures = self.run.measures(now);
        self.run.state().signals += u64::from(measures);
        Ok(())
    }
}

impl Actor for Receiver {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        if now >= self.window_ends {
            let monitor = self.run.monitor.get();
            let usage = monitor.and_then(|monitor| monitor.now());
            self.run.state().looks.extend(usage);
            self.window_ends += WINDOW;
            if self.window_ends > self.run.measured.1 {
                return Ok(Step::Done);
            }
        }
        let mut next = self.window_ends;
        if self.run.incast.control.signals() {
            if now >= self.signals_from {
                self.signal(cx, now)?;
            }
            next = next.min(self.signals_from.max(now + LOOKS_EVERY));
        }
        Ok(Step::At(next))
    }
}

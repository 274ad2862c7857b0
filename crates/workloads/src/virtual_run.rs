//! Runs in virtual time: connecting queue pairs within a program, and driving a scenario to its end.

use std::sync::atomic::{AtomicBool, Ordering};

use headworks::runtime::{ActorError, ActorOutcome, RunningScenario, ScenarioEvent};
use headworks::verbs::bringup::ConnectionParams;
use headworks::verbs::{BringUp, Device, Duration, Instant, QueuePair};

use crate::error::{Result, WorkloadError};

/// Connects two queue pairs, each given with its device.
pub(crate) fn connect(
    (our_device, ours): (&dyn Device, &mut dyn QueuePair),
    (their_device, theirs): (&dyn Device, &mut dyn QueuePair),
) -> Result<(), ActorError> {
    let params = ConnectionParams::default;
    let mut here = BringUp::start(our_device.info(), &mut *ours, params(), 1, vec![])?;
    let mut there = BringUp::start(their_device.info(), &mut *theirs, params(), 1, vec![])?;
    here.connect_both(ours, &mut there, theirs)?;
    Ok(())
}

/// How to drive a scenario to its end.
pub(crate) struct Drive<'a> {
    /// Number of its actors.
    pub(crate) actors: usize,
    /// Virtual time after which the run counts as endless.
    pub(crate) limit: Instant,
    /// Virtual time between two turns.
    pub(crate) every: Duration,
    /// Set to end the run.
    pub(crate) stop: &'a AtomicBool,
}

/// What happens while a scenario is driven.
pub(crate) enum DriveEvent {
    /// A turn begins.
    Turn,
    /// An actor has reported these bytes.
    Report(Vec<u8>),
}

impl Drive<'_> {
    /// Drives a scenario until all actors are done. Calls `on` at each event.
    ///
    /// # Errors
    ///
    /// An actor failed, the limit has passed, the run is to stop, or `on` failed.
    pub(crate) fn to_end(
        &self,
        running: &mut dyn RunningScenario,
        mut on: impl FnMut(&mut dyn RunningScenario, DriveEvent) -> Result<()>,
    ) -> Result<()> {
        let mut ended = 0;
        while ended < self.actors {
            if self.stop.load(Ordering::Relaxed) {
                return Err(WorkloadError("interrupted".to_owned()));
            }
            if running.now() > self.limit {
                return Err(WorkloadError("the run does not end".to_owned()));
            }
            on(running, DriveEvent::Turn)?;
            match running.poll(self.every) {
                Some(ScenarioEvent::Report { bytes, .. }) => {
                    on(running, DriveEvent::Report(bytes))?;
                }
                Some(ScenarioEvent::Ended {
                    outcome: ActorOutcome::Done,
                    ..
                }) => ended += 1,
                Some(ScenarioEvent::Ended { role, outcome }) => {
                    return Err(WorkloadError(format!("{role}: {outcome}")));
                }
                None => {}
            }
        }
        Ok(())
    }
}

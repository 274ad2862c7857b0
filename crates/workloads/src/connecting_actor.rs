//! An actor that first connects, and then drives its workload over the connected ends.

use headworks_baselines::counting::Counts;
use headworks_runtime::{Actor, ActorContext, ActorError, Step};

use crate::actor_pair::{BEGIN, PairMail, wait};
use crate::error::Result;
use crate::report::Report;

/// Connects the ends of an actor.
pub trait Connect: Send {
    /// The connected ends.
    type Connected: Send;

    /// Makes progress. Returns the connected ends once both actors have connected. Never blocks.
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Option<Self::Connected>>;

    /// Returns requests and completions since both actors connected, if the task counts them.
    fn counts(&self) -> Option<Counts> {
        None
    }
}

/// One actor's workload, which runs over connected ends.
pub trait WorkloadDriver<A>: Send {
    /// Does a bounded amount of work.
    fn step(&mut self, arm: &mut A, cx: &mut ActorContext<'_>) -> Result<Step, ActorError>;

    /// Returns the report, once the workload is done.
    fn report(&mut self) -> Result<Report> {
        Ok(Report::None)
    }

    /// Returns how many messages were sent or taken so far, where requests and completions are counted.
    fn messages_moved(&self) -> u64 {
        0
    }
}

/// Makes the actor that runs `drive` over the ends that `connect` makes. A gated actor waits for [`BEGIN`] in
/// between.
pub fn connecting_actor<C: Connect + 'static>(
    connect: C,
    is_gated: bool,
    drive: impl WorkloadDriver<C::Connected> + 'static,
) -> Box<dyn Actor> {
    let gate = if is_gated {
        StartGate::Closed
    } else {
        StartGate::Open
    };
    Box::new(ConnectingActor {
        arm: None,
        connect,
        drive,
        gate,
    })
}

/// Whether a connected actor may begin its workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartGate {
    /// The actor has not reported that it is ready.
    Closed,
    /// The actor has reported that it is ready, and waits for [`BEGIN`].
    Ready,
    /// The workload runs.
    Open,
}

impl StartGate {
    /// Takes the step that a connected actor takes before its workload; `None` once the workload may run.
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Option<Step>, ActorError> {
        match self {
            Self::Open => return Ok(None),
            Self::Closed => {
                *self = Self::Ready;
                return cx.report_and_go_on(&Report::Ready).map(Some);
            }
            Self::Ready => {}
        }
        let Some(mail) = cx.receive_mail() else {
            return Ok(Some(wait()));
        };
        if mail == BEGIN {
            *self = Self::Open;
        }
        Ok(Some(Step::Again))
    }
}

struct ConnectingActor<C: Connect, D> {
    /// Declared first, so that it is dropped before `connect`, which may keep the device.
    arm: Option<C::Connected>,
    connect: C,
    drive: D,
    gate: StartGate,
}

impl<C: Connect, D: WorkloadDriver<C::Connected>> Actor for ConnectingActor<C, D> {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let Some(arm) = &mut self.arm else {
            self.arm = self.connect.step(cx)?;
            return Ok(match self.arm {
                Some(_) => Step::Again,
                None => wait(),
            });
        };
        if self.gate != StartGate::Open
            && let Some(step) = self.gate.step(cx)?
        {
            return Ok(step);
        }
        let step = self.drive.step(arm, cx)?;
        if !matches!(step, Step::Done) {
            return Ok(step);
        }
        let report = self.drive.report()?;
        let messages = self.drive.messages_moved();
        let counted = self.connect.counts();
        cx.done(&counted.map_or(report, |counts| Report::Counted { messages, counts }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actor_pair::testing::MockContext;

    #[test]
    fn a_gated_actor_begins_on_command() {
        let mut gate = StartGate::Closed;
        let mut alone = MockContext::default();
        let mut step = |mail: &[&'static [u8]]| {
            alone.mail.extend(mail);
            let step = gate.step(&mut ActorContext::new(&mut alone)).unwrap();
            let is_again = step.map(|step| matches!(step, Step::Again));
            (is_again, gate, std::mem::take(&mut alone.reports))
        };
        assert_eq!(
            step(&[]),
            (Some(true), StartGate::Ready, vec![Report::Ready])
        );
        assert_eq!(step(&[]), (Some(false), StartGate::Ready, vec![]));
        assert_eq!(
            step(&[b"late", BEGIN]),
            (Some(true), StartGate::Ready, vec![])
        );
        assert_eq!(step(&[]), (Some(true), StartGate::Open, vec![]));
        assert_eq!(step(&[]), (None, StartGate::Open, vec![]));
    }
}

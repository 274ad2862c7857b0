//! The task of the two actors of a pair, and the actor that performs it.

use headworks_runtime::{Actor, ActorRegistry};
use serde::{Deserialize, Serialize};

use crate::actor_pair::PairContext;
use crate::cpu_prices::CpuPrices;
use crate::error::{Result, WorkloadError};
use crate::transports::job::Job;
use crate::transports::transport_actor as transports;
use crate::{case_studies, fanin, nic};

/// Name of the actor that performs any [`Task`].
pub const ACTOR: &str = "workload";

/// One point to measure; both actors of a pair receive it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Task {
    /// Messages over a transport.
    Messages(Job),
    /// A load on a NIC.
    Nic(nic::NicTask),
    /// One thread that receives from many rings.
    FanIn(fanin::FaninTask),
    /// An application over a transport.
    Study(case_studies::StudyTask),
}

macro_rules! into_task {
    ($($variant:ident($task:ty)),*) => {$(
        impl From<$task> for Task {
            fn from(task: $task) -> Self {
                Self::$variant(task)
            }
        }
    )*};
}

into_task!(
    Messages(Job),
    Nic(nic::NicTask),
    FanIn(fanin::FaninTask),
    Study(case_studies::StudyTask)
);

impl Task {
    /// Encodes the task as an actor's arguments.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data has a JSON form")
    }

    /// Decodes the task from an actor's arguments.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let task = serde_json::from_slice(bytes).map_err(|e| WorkloadError::at("task", e))?;
        match &task {
            Self::Messages(job) if job.size < 8 || job.slots == 0 => {
                let (size, slots) = (job.size, job.slots);
                Err(WorkloadError(format!("task: size {size} or slots {slots}")))
            }
            Self::FanIn(task) if task.rings == 0 => {
                Err(WorkloadError("task: rings = 0; use at least 1".into()))
            }
            _ => Ok(task),
        }
    }

    /// Returns the planned duration in nanoseconds.
    pub fn planned_ns(&self) -> u64 {
        match self {
            Self::Messages(job) => job.run_ns.saturating_add(job.warm_ns),
            Self::Nic(task) => task.run_ns.saturating_add(task.warm_ns),
            Self::FanIn(task) => {
                let phase = task.run_ns.saturating_add(task.warm_ns);
                phase.saturating_mul(fanin::FaninLoad::ALL.len() as u64)
            }
            Self::Study(task) => task.planned_ns,
        }
    }

    /// Makes the actor that performs the task.
    fn actor(self, pair: &PairContext) -> Result<Box<dyn Actor>> {
        match self {
            Self::Messages(job) => transports::actor(job, pair),
            Self::Nic(task) => nic::actor(&task, pair),
            Self::FanIn(task) => fanin::actor(&task, pair),
            Self::Study(task) => case_studies::actor(task, pair),
        }
    }
}

/// Adds the actor of every task to `actors`. In virtual time, work is charged at `prices`.
pub fn register(actors: &mut ActorRegistry, prices: Option<CpuPrices>) {
    actors.register(ACTOR, move |part| {
        let task = Task::from_bytes(&part.args)?;
        Ok(task.actor(&PairContext::new(part, prices))?)
    });
    crate::patterns::register(actors, None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transports::job::{Buffering, Channel, StreamKind, Waiting, Workload};

    #[test]
    fn tasks_travel_and_impossible_ones_are_refused() {
        let job = Job {
            touch: true,
            buffer: Some(4096),
            ..Job::new(
                Channel::Stream(StreamKind::Tcp, Waiting::Blocking, Buffering::Buffered),
                Workload::Load { per_second: 1.5e6 },
                64,
                std::time::Duration::from_nanos(15),
                "/tmp/x".as_ref(),
            )
        };
        let fan_in = fanin::FaninTask {
            rings: 3,
            ends: fanin::RingLayout::Group,
            run_ns: 10,
            warm_ns: 2,
        };
        let travelled = |task: &Task| Task::from_bytes(&task.to_bytes());
        for (task, planned) in [(job.clone().into(), 15), (fan_in.clone().into(), 48)] {
            let task: Task = task;
            assert_eq!(travelled(&task).unwrap(), task);
            assert_eq!(task.planned_ns(), planned);
        }
        assert!(Task::from_bytes(b"{}").is_err());
        assert!(travelled(&Job { size: 1, ..job }.into()).is_err());
        assert!(travelled(&fanin::FaninTask { rings: 0, ..fan_in }.into()).is_err());
    }
}

//! A world whose hosts are executors in this process.

use std::sync::{Arc, Barrier};

use headworks_runtime::DeviceOpener;

use headworks_verbs::Instant;

use super::WorldLayout;
use crate::call::{Call, Refusal, Reply};
use crate::deviation::KnownDeviations;
use crate::executor::CallExecutor;
use crate::time_source::{RealTimeSource, TimeSource};
use crate::world::{DeviceBehaviour, HostId, HostRole, World};

/// World whose hosts run in this process.
pub struct InProcessWorld {
    opener: DeviceOpener,
    layout: WorldLayout,
    time: Arc<dyn TimeSource>,
    executors: Vec<CallExecutor>,
}

impl InProcessWorld {
    /// Returns a world of hosts whose devices `opener` opens, in real time.
    pub fn new(opener: DeviceOpener, layout: WorldLayout) -> Self {
        Self {
            opener,
            layout,
            time: Arc::new(RealTimeSource),
            executors: Vec::new(),
        }
    }

    /// Returns the world with another time source.
    #[must_use]
    pub fn with_time_source(self, time: Arc<dyn TimeSource>) -> Self {
        Self { time, ..self }
    }

    fn executor(&self, host: HostId) -> Option<&CallExecutor> {
        self.executors.get(host.0 as usize)
    }
}

/// Executes calls concurrently, each on its own thread. A missing executor replies [`Reply::Gone`].
pub(super) fn call_on_threads(calls: Vec<(Option<&CallExecutor>, Call)>) -> Vec<Reply> {
    let together = &Barrier::new(calls.len());
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(calls.len());
        for (executor, call) in calls {
            threads.push(scope.spawn(move || {
                together.wait();
                executor.map_or(Reply::Gone, |executor| executor.call(&call))
            }));
        }
        let panicked = |_| Reply::No(Refusal::mistake("an executor panicked"));
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|reply| reply.unwrap_or_else(panicked)).collect()
    })
}

impl World for InProcessWorld {
    fn host(&mut self, _: HostRole) -> Result<HostId, String> {
        if !self.layout.one_device || self.executors.is_empty() {
            let names = self.layout.names.clone();
            let executor = CallExecutor::new(
                Arc::clone(&self.opener),
                names,
                self.layout.behaviour,
                self.time.clone(),
            );
            self.executors.push(executor);
        }
        Ok(HostId(self.executors.len() as u32 - 1))
    }

    fn call(&mut self, host: HostId, call: Call) -> Reply {
        let executor = self.executor(host);
        executor.map_or(Reply::Gone, |executor| executor.call(&call))
    }

    fn call_concurrently(&mut self, calls: Vec<(HostId, Call)>) -> Vec<Reply> {
        let whose = |(host, call)| (self.executor(host), call);
        call_on_threads(calls.into_iter().map(whose).collect())
    }

    fn begin_unanswered(&mut self, _: HostId, _: Call) -> Result<(), String> {
        Err("a host of this process cannot be killed".to_owned())
    }

    fn advance(&mut self) {
        self.time.advance();
    }

    fn now(&self) -> Instant {
        self.time.now()
    }

    fn behaviour(&self) -> DeviceBehaviour {
        self.layout.behaviour
    }

    fn known_deviations(&self) -> KnownDeviations {
        self.layout.known_deviations
    }

    fn can_kill(&self) -> bool {
        false
    }

    fn kill(&mut self, _: HostId) -> Result<(), String> {
        Err("a host of this process cannot be killed".to_owned())
    }
}

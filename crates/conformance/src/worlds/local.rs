//! Every host is a puppet of this process.

use std::sync::{Arc, Barrier};

use headworks_runtime::DeviceOpener;

use headworks_verbs::Instant;

use super::Layout;
use crate::call::{Call, Refusal, Reply};
use crate::deviation::Knowledge;
use crate::puppet::Puppet;
use crate::time::{RealTime, Time};
use crate::world::{End, HostId, Manners, World};

/// A world of this process.
pub struct Local {
    opener: DeviceOpener,
    layout: Layout,
    time: Arc<dyn Time>,
    puppets: Vec<Puppet>,
}

impl Local {
    /// Hosts whose devices are opened by `opener`.
    pub fn new(opener: DeviceOpener, layout: Layout) -> Self {
        Self {
            opener,
            layout,
            time: Arc::new(RealTime),
            puppets: Vec::new(),
        }
    }

    /// The same world, where time passes so.
    #[must_use]
    pub fn in_time(self, time: Arc<dyn Time>) -> Self {
        Self { time, ..self }
    }

    fn puppet(&self, host: HostId) -> Option<&Puppet> {
        self.puppets.get(host.0 as usize)
    }
}

/// Has puppets do things at the same time, each call on a thread of its own.
pub(super) fn on_threads(calls: Vec<(Option<&Puppet>, Call)>) -> Vec<Reply> {
    let together = &Barrier::new(calls.len());
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(calls.len());
        for (puppet, call) in calls {
            threads.push(scope.spawn(move || {
                together.wait();
                puppet.map_or(Reply::Gone, |puppet| puppet.call(&call))
            }));
        }
        let panicked = |_| Reply::No(Refusal::mistake("a puppet panicked"));
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|reply| reply.unwrap_or_else(panicked)).collect()
    })
}

impl World for Local {
    fn host(&mut self, _: End) -> Result<HostId, String> {
        if !self.layout.one_device || self.puppets.is_empty() {
            let names = self.layout.names.clone();
            let puppet = Puppet::new(
                Arc::clone(&self.opener),
                names,
                self.layout.manners,
                self.time.clone(),
            );
            self.puppets.push(puppet);
        }
        Ok(HostId(self.puppets.len() as u32 - 1))
    }

    fn call(&mut self, host: HostId, call: Call) -> Reply {
        let puppet = self.puppet(host);
        puppet.map_or(Reply::Gone, |puppet| puppet.call(&call))
    }

    fn at_once(&mut self, calls: Vec<(HostId, Call)>) -> Vec<Reply> {
        let whose = |(host, call)| (self.puppet(host), call);
        on_threads(calls.into_iter().map(whose).collect())
    }

    fn begin(&mut self, _: HostId, _: Call) -> Result<(), String> {
        Err("a host of this process cannot be killed".to_owned())
    }

    fn advance(&mut self) {
        self.time.advance();
    }

    fn now(&self) -> Instant {
        self.time.now()
    }

    fn manners(&self) -> Manners {
        self.layout.manners
    }

    fn knowledge(&self) -> Knowledge {
        self.layout.knowledge
    }

    fn can_kill(&self) -> bool {
        false
    }

    fn kill(&mut self, _: HostId) -> Result<(), String> {
        Err("a host of this process cannot be killed".to_owned())
    }
}

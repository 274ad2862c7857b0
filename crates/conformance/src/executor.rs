//! Executes calls on devices that this process has opened. This is the only code of the suite that calls
//! verbs.
//!
//! Several threads may call an executor at once. A queue pair has its own lock, because its verbs need
//! exclusive access; the other objects need none.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_runtime::DeviceOpener;
use headworks_verbs::{
    Abilities, AddressHandle, BringUp, Buffer, CompletionChannel, CompletionQueue, Device,
    DeviceName, ProtectionDomain, QueuePair, Region, SharedReceiveQueue,
};

use crate::call::{ByteCondition, Call, Id, Refusal, Reply};
use crate::time_source::TimeSource;
use crate::world::{DeviceBehaviour, HostRole};

mod buffers;
mod completions;
mod create;
mod queue_pairs;

/// Device name of each role.
pub type DeviceNames = BTreeMap<HostRole, DeviceName>;

/// Executes the calls of one host.
pub struct CallExecutor {
    opener: DeviceOpener,
    names: DeviceNames,
    /// How often a post is retried that the device refuses with "queue full".
    spurious_refusals: u32,
    time: Arc<dyn TimeSource>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Id, Object>,
    /// Addresses and local keys of regions, including destroyed ones.
    keys: BTreeMap<Id, (u64, u32)>,
    /// Keys of address handles, including destroyed ones.
    handles: BTreeMap<Id, u32>,
    /// Queue pairs by the number that the device gave them, including destroyed ones. The next two maps are
    /// those of completion queues and shared receive queues.
    qpns: BTreeMap<u32, Id>,
    cqs: BTreeMap<u32, Id>,
    srqs: BTreeMap<u32, Id>,
    /// What the device has, and whether it takes inline payloads; known once it is open.
    facts: Option<(Abilities, bool)>,
    /// Domains of the queue pairs.
    domains: BTreeMap<Id, Id>,
    /// Memory for payloads that a case posts inline to a device that takes none.
    outline: Vec<Region>,
}

#[derive(Clone)]
enum Object {
    Device(Arc<dyn Device>),
    Pd(Arc<dyn ProtectionDomain>),
    Buffer(Arc<dyn Buffer>),
    Region(#[expect(dead_code, reason = "held until it is destroyed")] Arc<Region>),
    Channel(Arc<dyn CompletionChannel>),
    Cq(Arc<dyn CompletionQueue>),
    Srq(Arc<dyn SharedReceiveQueue>),
    Qp(Arc<Mutex<Qp>>),
    Ah(#[expect(dead_code, reason = "held until it is destroyed")] Arc<dyn AddressHandle>),
}

/// A queue pair, and its [`BringUp`] while the two hosts exchange the bytes that connect it.
struct Qp {
    queue: Box<dyn QueuePair>,
    up: Option<BringUp>,
}

type Answer = Result<Reply, Refusal>;

macro_rules! getter {
    ($name:ident, $variant:ident, $type:ty) => {
        fn $name(&self, id: Id) -> Result<$type, Refusal> {
            match self.state().objects.get(&id) {
                Some(Object::$variant(found)) => Ok(found.clone()),
                _ => Err(Refusal::mistake(format!(
                    concat!("no ", stringify!($name), " {}"),
                    id
                ))),
            }
        }
    };
}

impl CallExecutor {
    /// Returns an executor that opens the devices in `names` with `opener`. `behaviour` describes the
    /// devices, `time` is the clock.
    pub fn new(
        opener: DeviceOpener,
        names: DeviceNames,
        behaviour: DeviceBehaviour,
        time: Arc<dyn TimeSource>,
    ) -> Self {
        Self {
            opener,
            names,
            spurious_refusals: behaviour.spurious_refusals,
            time,
            state: Mutex::default(),
        }
    }

    /// Executes `call` and returns its reply.
    pub fn call(&self, call: &Call) -> Reply {
        self.answer(call).unwrap_or_else(Reply::No)
    }

    fn answer(&self, call: &Call) -> Answer {
        match call {
            Call::Each(calls) => {
                let mut replies = Vec::with_capacity(calls.len());
                for call in calls {
                    replies.push(self.call(call));
                    if matches!(replies.last(), Some(Reply::No(_))) {
                        break;
                    }
                }
                Ok(Reply::Each(replies))
            }
            Call::Repeat {
                times,
                until,
                calls,
            } => self.repeat(*times, until.as_ref(), calls),
            Call::Destroy { object } => self.destroy(*object),
            Call::Open { .. }
            | Call::AllocPd { .. }
            | Call::Alloc { .. }
            | Call::Heap { .. }
            | Call::Register { .. }
            | Call::CreateChannel { .. }
            | Call::CreateCq { .. }
            | Call::CreateSrq { .. }
            | Call::CreateQp(_)
            | Call::CreateAh { .. } => self.create(call),
            Call::Modify { .. }
            | Call::State { .. }
            | Call::PostSend { .. }
            | Call::PostRecv { .. }
            | Call::SetLimit { .. }
            | Call::GreetFirst { .. }
            | Call::Greet { .. } => self.use_queue_pair(call),
            Call::TakeEvents { .. }
            | Call::DeviceTime { .. }
            | Call::Poll { .. }
            | Call::Arm { .. }
            | Call::ChannelEvent { .. }
            | Call::Sleep { .. } => self.poll_or_arm(call),
            Call::Put { .. } | Call::Get { .. } | Call::Fill { .. } | Call::Check { .. } => {
                self.access_buffer(call)
            }
        }
    }

    /// A [`Call::Repeat`] that has gathered this many completions drops them before it adds more.
    const KEPT_COMPLETIONS_MAX: usize = 4096;

    fn repeat(&self, times: u64, until: Option<&ByteCondition>, calls: &[Call]) -> Answer {
        let mut seen = Vec::new();
        for _ in 0..times {
            if until.map_or(Ok(false), |sign| self.is_there(sign))? {
                break;
            }
            for call in calls {
                match self.call(call) {
                    Reply::Completions(done) => {
                        let good = |done: &crate::call::Done| done.status == Default::default();
                        let all_good = done.iter().all(good);
                        if seen.len() >= Self::KEPT_COMPLETIONS_MAX {
                            seen.clear();
                        }
                        seen.extend(done);
                        if !all_good {
                            return Ok(Reply::Completions(seen));
                        }
                    }
                    Reply::No(refusal) if refusal.kind != "QueueFull" => return Err(refusal),
                    _ => {}
                }
            }
        }
        Ok(Reply::Completions(seen))
    }

    fn destroy(&self, id: Id) -> Answer {
        // The object is dropped without the lock, because destroying it may wait for calls of other threads.
        let found = self.state().objects.remove(&id);
        match found {
            Some(object) => {
                drop(object);
                Ok(Reply::Done)
            }
            None => Err(Refusal::mistake(format!("no object {id} to destroy"))),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, id: Id, object: Object) -> Result<(), Refusal> {
        match self.state().objects.insert(id, object) {
            None => Ok(()),
            Some(_) => Err(Refusal::mistake(format!("object {id} was there already"))),
        }
    }

    getter!(device, Device, Arc<dyn Device>);
    getter!(pd, Pd, Arc<dyn ProtectionDomain>);
    getter!(buffer, Buffer, Arc<dyn Buffer>);
    getter!(channel, Channel, Arc<dyn CompletionChannel>);
    getter!(cq, Cq, Arc<dyn CompletionQueue>);
    getter!(srq, Srq, Arc<dyn SharedReceiveQueue>);
    getter!(qp, Qp, Arc<Mutex<Qp>>);
}

impl Drop for CallExecutor {
    /// Drops the newest objects first, so that each is dropped before the objects that it was made from.
    fn drop(&mut self) {
        let mut state = self.state();
        while let Some((_, object)) = state.objects.pop_last() {
            drop(object);
        }
    }
}

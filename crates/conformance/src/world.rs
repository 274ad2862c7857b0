//! Worlds: where hosts run, how a case calls them, and how time passes.

use headworks_verbs::Instant;
use serde::{Deserialize, Serialize};

use crate::call::{Call, Reply};
use crate::deviation::KnownDeviations;

/// Role of a host in a case. The world decides which device a role gets; two roles may share one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HostRole {
    /// Host on which the case runs.
    First,
    /// Peer of the first host.
    Second,
    /// Third party.
    Third,
}

impl HostRole {
    /// All roles, in order.
    pub const ALL: [Self; 3] = [Self::First, Self::Second, Self::Third];
}

/// Behaviour of a world's devices that the specification leaves open and that no device declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceBehaviour {
    /// A short request completes before the call that posts it returns.
    pub completes_in_call: bool,
    /// Number of times in a row that a post may be refused as queue full although there is room. The host
    /// retries a post this often before the refusal counts.
    pub spurious_refusals: u32,
    /// Number of polls in a row that may return nothing although a completion is there.
    pub empty_polls_max: u32,
    /// The device validates all memory that a request names before it touches any of it. If false, the
    /// part before the fault may have been executed: the first pieces of a READ, or an atomic whose result
    /// cannot be stored.
    pub checks_before_copying: bool,
    /// When a completion reports the failure of a queue pair, an event always reports it too. If false, the
    /// event comes only if the device notices the failure before the completion is polled.
    pub reports_failure_twice: bool,
    /// The device detects the death of a peer even if nothing is posted.
    pub detects_peer_death: bool,
    /// A request occupies its queue slot until a completion that covers it is polled. If false, the slot
    /// may become free as soon as the request is done.
    pub frees_slots_when_polled: bool,
    /// The post is refused if a datagram cannot be sent as requested: its address handle is not usable, or
    /// it is longer than the MTU. If false, the completion reports the error.
    pub refuses_bad_datagrams: bool,
    /// Largest device limit on objects of one kind that cases exhaust. With a higher limit they are skipped.
    pub objects_max: u32,
    /// Queues and shared receive queues hold exactly the requested number of requests, pieces and bytes. If
    /// false, they may hold more.
    pub sizes_queues_exactly: bool,
    /// A request that outlasts the call that posted it progresses even if its host makes no further call.
    pub progresses_without_calls: bool,
    /// Requests may be queued and split before the device gets them. Their completions then never overrun a
    /// CQ, and a request that has begun may stop in SQD.
    pub defers_requests: bool,
    /// Completions that a CQ held when it overran can still be polled; later polls report the overrun.
    pub polls_after_overrun: bool,
}

impl DeviceBehaviour {
    /// Behaviour of the software RNIC without `hostile`.
    pub const SOFT: Self = Self {
        completes_in_call: true,
        spurious_refusals: 0,
        empty_polls_max: 0,
        checks_before_copying: true,
        reports_failure_twice: true,
        detects_peer_death: true,
        frees_slots_when_polled: true,
        refuses_bad_datagrams: false,
        objects_max: 70_000,
        sizes_queues_exactly: true,
        progresses_without_calls: true,
        defers_requests: false,
        polls_after_overrun: true,
    };
}

/// A host of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostId(pub u32);

/// Where cases run. Hosts execute the calls. Neither a case nor the code around it blocks, sleeps, reads a
/// clock or starts a thread, so a world may run in virtual time.
pub trait World {
    /// Returns a new host for the role `end`, or the only host if all roles share one device.
    fn host(&mut self, end: HostRole) -> Result<HostId, String>;

    /// Executes `call` on `host` and returns its reply.
    fn call(&mut self, host: HostId, call: Call) -> Reply;

    /// Executes calls on hosts concurrently, as far as this world can: on threads, or interleaved.
    /// The replies are in the order of the calls.
    fn call_concurrently(&mut self, calls: Vec<(HostId, Call)>) -> Vec<Reply>;

    /// Starts a call that ends only when its host is killed.
    ///
    /// Available only where hosts can be killed.
    fn begin_unanswered(&mut self, host: HostId, call: Call) -> Result<(), String>;

    /// Lets a little time pass, so that hosts and devices can progress.
    fn advance(&mut self);

    /// Returns the current time of this world.
    fn now(&self) -> Instant;

    /// Returns the behaviour of the devices.
    fn behaviour(&self) -> DeviceBehaviour;

    /// Returns the known deviations of the devices from the specification.
    fn known_deviations(&self) -> KnownDeviations {
        KnownDeviations::default()
    }

    /// Returns whether hosts can be killed.
    fn can_kill(&self) -> bool;

    /// Kills a host, whatever it is executing.
    fn kill(&mut self, host: HostId) -> Result<(), String>;
}

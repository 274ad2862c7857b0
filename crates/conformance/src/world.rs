//! Worlds: where hosts are, how they are asked, and how time passes there.

use headworks_verbs::Instant;
use serde::{Deserialize, Serialize};

use crate::call::{Call, Reply};
use crate::deviation::KnownDeviations;

/// Where a host stands. Which device that is, is the world's affair; two ends may be the same
/// device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HostRole {
    /// Where a case happens.
    First,
    /// Its peer.
    Second,
    /// Somebody else.
    Third,
}

impl HostRole {
    /// All roles, in order.
    pub const ALL: [Self; 3] = [Self::First, Self::Second, Self::Third];
}

/// What the devices of a world do that the specification leaves to them and no declaration names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceBehaviour {
    /// A short request is done when the call that posts it returns.
    pub completes_in_call: bool,
    /// How often the same request may be told that there is no room though there is: so often it is
    /// posted again before it counts as refused.
    pub spurious_refusals: u32,
    /// How many polls in a row may find nothing though there is something.
    pub empty_polls_max: u32,
    /// All memory that a request names is checked before any of it is touched. Elsewhere what came
    /// before the mistake was found may have been moved: the first pieces of a READ, say, or an
    /// atomic whose result has no place to go.
    pub checks_before_copying: bool,
    /// A queue pair whose failure a completion of its own tells is told of by an event, too. Elsewhere it
    /// may be, where that is noticed before the completion is polled.
    pub reports_failure_twice: bool,
    /// The death of a peer is noticed though nothing is posted.
    pub detects_peer_death: bool,
    /// A request takes up its room in the queue until a completion is polled that covers it. Elsewhere
    /// there may be room again as soon as it is done.
    pub frees_slots_when_polled: bool,
    /// Datagrams that cannot be sent as they are asked for (by an address handle that may not be named,
    /// longer than the MTU) are refused when they are posted. Elsewhere their completions tell.
    pub refuses_bad_datagrams: bool,
    /// So many objects of a kind may be made: a device that has more is not brought to the end of them.
    pub objects_max: u32,
    /// Queues and shared receive queues have room for just as many requests, pieces and bytes as were asked
    /// for. Elsewhere there may be more.
    pub sizes_queues_exactly: bool,
    /// What takes longer than the call that posts it goes on though its host makes no other.
    pub progresses_without_calls: bool,
    /// Requests may be held back and cut before they are the device's: completions of theirs overrun no CQ, and one that
    /// has begun may stop in SQD.
    pub defers_requests: bool,
    /// What a CQ held when it overran can still be polled, and then polls say that it overran.
    pub polls_after_overrun: bool,
}

impl DeviceBehaviour {
    /// Those of the software RNIC where it is not hostile: what is short is done in the call, and what has
    /// room is taken.
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

/// Where cases run. Calls are executed by the hosts; nothing here or in a case blocks, sleeps,
/// reads a clock or starts a thread by itself, so a world may be one of virtual time.
pub trait World {
    /// A new host at `end`; where all ends are one device, the one host there is.
    fn host(&mut self, end: HostRole) -> Result<HostId, String>;

    /// Has a host do something, and returns when it is done.
    fn call(&mut self, host: HostId, call: Call) -> Reply;

    /// Has hosts do things at the same time, as far as this world can: on threads, or interleaved.
    /// In the order of the calls.
    fn call_concurrently(&mut self, calls: Vec<(HostId, Call)>) -> Vec<Reply>;

    /// Has a host begin something that ends only when the host is killed.
    ///
    /// Only where hosts can be killed.
    fn begin_unanswered(&mut self, host: HostId, call: Call) -> Result<(), String>;

    /// Lets a little time pass: what others do meanwhile may be seen then.
    fn advance(&mut self);

    /// This world's time.
    fn now(&self) -> Instant;

    /// How its devices behave.
    fn behaviour(&self) -> DeviceBehaviour;

    /// What its devices are known to do otherwise than the specification has it.
    fn known_deviations(&self) -> KnownDeviations {
        KnownDeviations::default()
    }

    /// Whether hosts can be killed.
    fn can_kill(&self) -> bool;

    /// Kills a host at whatever it is doing.
    fn kill(&mut self, host: HostId) -> Result<(), String>;
}

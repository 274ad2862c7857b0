//! Helpers for cases: hosts of a world, fixtures (a queue pair with everything around it), and waiting.

use std::collections::BTreeMap;

use headworks_verbs::{Access, Duration, Instant, QpCaps, QpType, RnrTimer, Status};

use crate::Verdict;
use crate::call::{
    AddressFault, Call, DeviceFacts, Done, Event, Id, Piece, Refusal, Remote, Reply,
};
use crate::deviation::{Deviation, DeviationTracker};
use crate::handles::HandleTable;
use crate::world::{DeviceBehaviour, HostId, HostRole, World};

mod buffers;
mod connect;
mod expect;
mod post_and_poll;

/// Time limit of a wait.
pub const DEADLINE: Duration = Duration::from_millis(10_000);

/// World of a case, its hosts, and what the case has seen so far.
pub struct CaseContext<'w> {
    world: &'w mut dyn World,
    handles: HandleTable,
    next: Id,
    devices: BTreeMap<HostId, Id>,
    ends: BTreeMap<HostRole, Host>,
    events: BTreeMap<HostId, Vec<Event>>,
    /// Number of [`Event::QpFatal`] events of each queue pair.
    told: BTreeMap<(HostId, Id), u32>,
    /// Initial packet sequence number of connections; `connect` advances it.
    psn: u32,
    deviations: DeviationTracker,
    /// Name of the wait in progress, if it has one.
    wait: Option<&'static str>,
    /// Required events that are known not to come.
    kept: Vec<(Host, Event)>,
    skipped: Option<String>,
    /// What the devices lack of that which not every device has, as refusals end.
    lacks: Vec<&'static str>,
    /// What the device lacks of that which the case, or the section that runs, needs.
    lacking: Option<String>,
    /// The sections that were left out, with what the device lacks.
    left_out: Vec<String>,
}

/// Host and the device that it opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// The host.
    pub id: HostId,
    /// The device that it has opened.
    pub device: Id,
}

/// Options of a fixture.
#[derive(Clone, Debug)]
pub struct QpOptions {
    /// Transport of the queue pair.
    pub qp_type: QpType,
    /// Requested sizes of the queue pair.
    pub caps: QpCaps,
    /// Depth of each CQ.
    pub depth: u32,
    /// Length of the buffer in bytes.
    pub len: usize,
    /// The buffer is ordinary process memory, not allocated from the device.
    pub heap: bool,
    /// Access that the region allows.
    pub region: Access,
    /// Access that the queue pair allows the peer.
    pub access: Access,
    /// ACK timeout, 4.096 µs × 2^timeout.
    pub timeout: u8,
    /// Number of transport retries.
    pub retry_count: u8,
    /// Number of RNR retries; 7 retries forever.
    pub rnr_retry: u8,
    /// Time the peer waits before it retries when no receive is posted.
    pub min_rnr_timer: RnrTimer,
    /// Maximum outstanding READs and atomics as initiator; `None` for the device's limit.
    pub max_rd_atomic: Option<u8>,
    /// Maximum outstanding READs and atomics as responder; `None` for the device's limit.
    pub max_dest_rd_atomic: Option<u8>,
    /// Every send request generates a completion.
    pub signal_all: bool,
    /// Completions carry timestamps.
    pub timestamps: bool,
}

impl Default for QpOptions {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            caps: QpCaps {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline: 64,
            },
            depth: 256,
            len: 64 << 10,
            heap: false,
            region: Access::ALL,
            access: Access::ALL,
            timeout: 12,
            retry_count: 2,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::default(),
            max_rd_atomic: None,
            max_dest_rd_atomic: None,
            signal_all: false,
            timestamps: false,
        }
    }
}

/// Queue pair with everything around it, as object numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpFixture {
    /// Host of the queue pair.
    pub host: Host,
    /// Protection domain.
    pub pd: Id,
    /// Completion channel of both CQs.
    pub channel: Id,
    /// CQ of its sends.
    pub send_cq: Id,
    /// CQ of its receives.
    pub recv_cq: Id,
    /// Buffer in which its messages lie.
    pub buffer: Id,
    /// Length of the buffer in bytes.
    pub len: usize,
    /// Region of the buffer.
    pub region: Id,
    /// Shared receive queue, if it has one.
    pub srq: Option<Id>,
    /// The queue pair.
    pub qp: Id,
    /// Sizes that the queue pair got.
    pub caps: QpCaps,
    /// Depth of each CQ.
    pub depth: u32,
}

impl QpFixture {
    /// Returns `len` bytes of its region from `offset`, for its own requests.
    pub const fn sge(&self, offset: i64, len: u32) -> Piece {
        piece(self.region, offset, len)
    }

    /// Returns its region from `offset`, for requests of a peer.
    pub const fn at(&self, offset: i64) -> Remote {
        self.region_at(self.region, offset)
    }

    /// Returns another region of its host from `offset`, for requests of a peer.
    pub const fn region_at(&self, region: Id, offset: i64) -> Remote {
        Remote::Of {
            host: self.host.id,
            region,
            offset,
            address_fault: AddressFault {
                key_xor: 0,
                absolute: None,
            },
        }
    }
}

/// Returns `len` bytes of a region from `offset`.
pub const fn piece(region: Id, offset: i64, len: u32) -> Piece {
    Piece {
        region,
        offset,
        len,
        address_fault: AddressFault {
            key_xor: 0,
            absolute: None,
        },
    }
}

/// Converts an error to the error line of a verdict.
pub fn error_line(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl<'w> CaseContext<'w> {
    /// Returns a context without hosts.
    pub fn new(world: &'w mut dyn World) -> Self {
        Self {
            world,
            handles: HandleTable::default(),
            next: 1,
            devices: BTreeMap::new(),
            ends: BTreeMap::new(),
            events: BTreeMap::new(),
            told: BTreeMap::new(),
            psn: 0,
            deviations: DeviationTracker::default(),
            wait: None,
            kept: Vec::new(),
            skipped: None,
            lacks: Vec::new(),
            lacking: None,
            left_out: Vec::new(),
        }
    }

    /// Returns a context without hosts for the case `name`.
    pub fn for_case(world: &'w mut dyn World, name: &str) -> Self {
        let deviations = DeviationTracker::for_case(name, world.known_deviations());
        Self {
            deviations,
            ..Self::new(world)
        }
    }

    /// Runs a section of the case, about the operation `name`. Known deviations may be limited to operations. A section that needs
    /// what the device lacks is left out.
    pub fn section(
        &mut self,
        name: &'static str,
        run: impl FnOnce(&mut Self) -> Verdict,
    ) -> Verdict {
        self.deviations.begin_section(name);
        let verdict = match (run(self), self.lacking.take()) {
            (_, Some(why)) => {
                self.left_out.push(format!("{name}: {why}"));
                Ok(())
            }
            (verdict, None) => verdict,
        };
        let judged = self.deviations.end_section(verdict);
        judged.map_err(|seen| format!("{name}: {seen}"))
    }

    /// Ends the case and returns its verdict, adjusted for known deviations.
    pub fn finish(&mut self, verdict: Verdict) -> Verdict {
        if let Some(why) = self.lacking.take() {
            self.skipped = Some(why);
            return Ok(());
        }
        if self.skipped.is_some() {
            return verdict;
        }
        self.deviations.end(verdict)?;
        for (host, event) in std::mem::take(&mut self.kept) {
            // A killed host cannot be asked: its events count as not received.
            let came = self
                .events(host)
                .is_ok_and(|events| events.contains(&event));
            if came && !self.deviations.is_certain() {
                self.deviations.note(format!("{event:?} came"));
                continue;
            }
            crate::ensure!(!came, "event came, but is known not to: {event:?}");
        }
        Ok(())
    }

    /// Returns the known deviations that did not show, where they need not.
    pub fn unseen_deviations(&self) -> &[String] {
        self.deviations.unseen()
    }

    /// Returns the status that a completion must have where the specification demands `demanded` and the
    /// device reported `found`.
    pub fn expected_status(&mut self, demanded: Status, found: Status) -> Status {
        self.deviations.status(demanded, found)
    }

    /// Returns whether a request that must end with an error was refused when posted, as the device is known
    /// to do.
    pub fn is_known_refusal(&mut self, posted: &Result<(), Refusal>) -> bool {
        let refused = posted.as_ref().err();
        refused.is_some_and(|refusal| self.deviations.refuses(&refusal.kind))
    }

    /// Runs `run` as the wait called `name`. Its errors begin with the name. A known deviation may say that
    /// this wait never ends.
    pub fn named_wait<T>(
        &mut self,
        name: &'static str,
        run: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<T, String> {
        let outer = self.wait.replace(name);
        let found = run(self);
        self.wait = outer;
        found.map_err(|seen| format!("{name}: {seen}"))
    }

    /// Returns a new object number.
    pub fn new_id(&mut self) -> Id {
        self.next += 1;
        self.next
    }

    /// Executes a call on a host and returns its reply.
    pub fn call(&mut self, host: HostId, mut call: Call) -> Reply {
        if let Err(text) = self.handles.resolve_call(&mut call) {
            return Reply::No(Refusal::mistake(text));
        }
        let reply = self.world.call(host, call.clone());
        self.handles.record_reply(host, &call, &reply);
        self.note_what_lacks(&reply);
        reply
    }

    /// Notes that the case, or the section that runs, does not apply if the device refused something because it has no such thing. What devices may lack is in
    /// [`DeviceFacts`](crate::call::DeviceFacts); nothing else is excused.
    fn note_what_lacks(&mut self, reply: &Reply) {
        match reply {
            Reply::Device(facts) => self.lacks = facts.lacks(),
            Reply::Each(replies) => replies.iter().for_each(|reply| self.note_what_lacks(reply)),
            Reply::No(refusal) if refusal.kind == "Unsupported" => {
                let is_excused = |lack: &&str| refusal.text.ends_with(*lack);
                if self.lacks.iter().any(is_excused) {
                    self.lacking.get_or_insert_with(|| refusal.text.clone());
                }
            }
            _ => {}
        }
    }

    /// Executes a call on a host. A refusal is an error of the case.
    pub fn call_ok(&mut self, host: HostId, call: Call) -> Result<Reply, String> {
        match self.call(host, call) {
            Reply::No(refusal) => Err(refusal.to_string()),
            Reply::Gone => Err("the host is gone".to_owned()),
            Reply::Each(replies) => match replies.last() {
                Some(Reply::No(refusal)) => Err(refusal.to_string()),
                _ => Ok(Reply::Each(replies)),
            },
            reply => Ok(reply),
        }
    }

    /// Executes a call on a host that may be refused.
    pub fn try_call(&mut self, host: HostId, call: Call) -> Result<Reply, Refusal> {
        match self.call(host, call) {
            Reply::No(refusal) => Err(refusal),
            Reply::Gone => Err(Refusal::mistake("the host is gone")),
            reply => Ok(reply),
        }
    }

    /// Executes calls on hosts concurrently.
    pub fn call_concurrently(&mut self, calls: Vec<(HostId, Call)>) -> Result<Vec<Reply>, String> {
        let mut filled = calls;
        for (_, call) in &mut filled {
            self.handles.resolve_call(call)?;
        }
        let replies = self.world.call_concurrently(filled.clone());
        for ((host, call), reply) in filled.iter().zip(&replies) {
            self.handles.record_reply(*host, call, reply);
            self.note_what_lacks(reply);
        }
        Ok(replies)
    }

    /// Starts a call that ends only when its host is killed.
    pub fn begin_unanswered(&mut self, host: HostId, mut call: Call) -> Verdict {
        self.handles.resolve_call(&mut call)?;
        self.world.begin_unanswered(host, call)
    }

    /// Kills a host.
    pub fn kill(&mut self, host: Host) -> Verdict {
        self.ends.retain(|_, found| found.id != host.id);
        self.world.kill(host.id)
    }

    /// Returns the behaviour of the world's devices.
    pub fn behaviour(&self) -> DeviceBehaviour {
        self.world.behaviour()
    }

    /// Returns the known deviations of the world's devices from the specification.
    pub fn deviations(&self) -> &[Deviation] {
        self.world.known_deviations().all
    }

    /// Returns the world's time.
    pub fn now(&self) -> Instant {
        self.world.now()
    }

    /// Lets this much time pass.
    pub fn sleep_for(&mut self, time: Duration) {
        let until = self.world.now() + time;
        while self.world.now() < until {
            self.world.advance();
        }
    }

    /// Lets a little time pass.
    pub fn advance(&mut self) {
        self.world.advance();
    }

    /// Calls `look` until it finds something. Returns an error after [`DEADLINE`], or earlier if the wait is
    /// known to hang.
    pub fn wait<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        let deadline = self.deviations.deadline(self.wait, DEADLINE);
        let until = self.world.now() + deadline;
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if self.world.now() > until {
                let seconds = deadline.nanos() / 1_000_000_000;
                return Err(format!("no {what} within {seconds} s"));
            }
            self.world.advance();
        }
    }

    /// Marks the case as skipped, because it does not apply here for this reason.
    pub fn skip(&mut self, why: impl Into<String>) -> Verdict {
        self.skipped = Some(why.into());
        Ok(())
    }

    /// Returns the sections that were left out, with what the device lacks.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Returns why the case was skipped.
    pub fn skipped(&self) -> Option<&str> {
        self.skipped.as_deref()
    }

    /// Returns a new host for the role `end`, with its device open.
    pub fn new_host(&mut self, end: HostRole) -> Result<Host, String> {
        let id = self.world.host(end)?;
        if let Some(device) = self.devices.get(&id) {
            return Ok(Host {
                id,
                device: *device,
            });
        }
        let device = self.new_id();
        self.call_ok(id, Call::Open { device, end })?;
        self.devices.insert(id, device);
        Ok(Host { id, device })
    }

    /// Returns the host with the role `end`; creates it on first use.
    pub fn host(&mut self, end: HostRole) -> Result<Host, String> {
        if let Some(host) = self.ends.get(&end) {
            return Ok(*host);
        }
        let host = self.new_host(end)?;
        self.ends.insert(end, host);
        Ok(host)
    }

    /// Returns the host with [`HostRole::First`].
    pub fn first_host(&mut self) -> Result<Host, String> {
        self.host(HostRole::First)
    }

    /// Returns the host with [`HostRole::Second`].
    pub fn second_host(&mut self) -> Result<Host, String> {
        self.host(HostRole::Second)
    }

    /// Returns the properties that the device of a host reports.
    pub fn facts(&self, host: Host) -> Result<&DeviceFacts, String> {
        let facts = self.handles.facts(host.id);
        facts.ok_or_else(|| "a host without a device".to_owned())
    }

    /// Returns the addresses, keys and numbers of objects.
    pub fn handles(&self) -> &HandleTable {
        &self.handles
    }

    /// Destroys an object.
    pub fn destroy(&mut self, host: Host, object: Id) -> Verdict {
        self.call_ok(host.id, Call::Destroy { object }).map(drop)
    }
}

/// Checks the identifier and the status of a completion.
pub fn expect_completion(found: Done, wr_id: u64, status: Status) -> Result<Done, String> {
    if (found.wr_id, found.status) == (wr_id, status) {
        Ok(found)
    } else {
        Err(format!(
            "completed wr_id {} with {:?} instead of {wr_id} with {status:?}",
            found.wr_id, found.status
        ))
    }
}

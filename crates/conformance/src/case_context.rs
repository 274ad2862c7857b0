//! What cases work with: hosts of a world, sides with everything around a queue pair, and waiting.

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

/// How long anything may take before it counts as never.
pub const DEADLINE: Duration = Duration::from_millis(10_000);

/// A world, and who is in it.
pub struct CaseContext<'w> {
    world: &'w mut dyn World,
    handles: HandleTable,
    next: Id,
    devices: BTreeMap<HostId, Id>,
    ends: BTreeMap<HostRole, Host>,
    events: BTreeMap<HostId, Vec<Event>>,
    /// How often each queue pair was told of as failed.
    told: BTreeMap<(HostId, Id), u32>,
    /// Where the packets of the next connection begin to count.
    psn: u32,
    deviations: DeviationTracker,
    /// The name of what is waited for.
    wait: Option<&'static str>,
    /// Events that must come and are known not to.
    kept: Vec<(Host, Event)>,
    skipped: Option<String>,
}

/// A host and the device that it opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// The host.
    pub id: HostId,
    /// Its device.
    pub device: Id,
}

/// How a side is made.
#[derive(Clone, Debug)]
pub struct QpOptions {
    /// Transport.
    pub qp_type: QpType,
    /// Sizes of the queue pair.
    pub caps: QpCaps,
    /// Completions each CQ holds.
    pub depth: u32,
    /// Bytes of the buffer.
    pub len: usize,
    /// The buffer is ordinary memory, which the device did not give.
    pub heap: bool,
    /// What its region allows.
    pub region: Access,
    /// What the queue pair lets the peer do.
    pub access: Access,
    /// ACK timeout, 4.096 µs × 2^timeout.
    pub timeout: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries, 7 for ever.
    pub rnr_retry: u8,
    /// What the peer waits when no receive is posted.
    pub min_rnr_timer: RnrTimer,
    /// READs and atomics outstanding as initiator; `None` for as many as the device can.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics that it holds as target; `None` for as many as the device can.
    pub max_dest_rd_atomic: Option<u8>,
    /// Every send completes.
    pub signal_all: bool,
    /// Completions carry the time.
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

/// A queue pair with everything around it: numbers all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpFixture {
    /// Host of the queue pair.
    pub host: Host,
    /// Its protection domain.
    pub pd: Id,
    /// Where both CQs put their events.
    pub channel: Id,
    /// Where its sends complete.
    pub send_cq: Id,
    /// Where its receives complete.
    pub recv_cq: Id,
    /// Its memory.
    pub buffer: Id,
    /// Bytes of it.
    pub len: usize,
    /// Its memory, registered.
    pub region: Id,
    /// Its receives' SRQ, if it has one.
    pub srq: Option<Id>,
    /// The queue pair.
    pub qp: Id,
    /// The sizes it got.
    pub caps: QpCaps,
    /// How many completions its CQs hold.
    pub depth: u32,
}

impl QpFixture {
    /// `len` bytes of its memory from `offset`, for its own requests.
    pub const fn sge(&self, offset: i64, len: u32) -> Piece {
        piece(self.region, offset, len)
    }

    /// Its memory from `offset`, for a peer.
    pub const fn at(&self, offset: i64) -> Remote {
        self.region_at(self.region, offset)
    }

    /// Another region of its host from `offset`, for a peer.
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

/// `len` bytes of a region from `offset`.
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

/// Any refusal as the line of a verdict.
pub fn error_line(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl<'w> CaseContext<'w> {
    /// Nobody yet.
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
        }
    }

    /// Nobody yet, for the case called `name`.
    pub fn for_case(world: &'w mut dyn World, name: &str) -> Self {
        let deviations = DeviationTracker::for_case(name, world.known_deviations());
        Self {
            deviations,
            ..Self::new(world)
        }
    }

    /// A part of the case, about the operation called `name`: what is known of devices may be known of
    /// that one only.
    pub fn section(
        &mut self,
        name: &'static str,
        run: impl FnOnce(&mut Self) -> Verdict,
    ) -> Verdict {
        self.deviations.begin_section(name);
        let verdict = run(self);
        self.deviations.end_section(verdict)
    }

    /// What is to be made of what the case ended with.
    pub fn finish(&mut self, verdict: Verdict) -> Verdict {
        if self.skipped.is_some() {
            return verdict;
        }
        self.deviations.end(verdict)?;
        for (host, event) in std::mem::take(&mut self.kept) {
            // Of one that was killed nobody knows.
            let came = self
                .events(host)
                .is_ok_and(|events| events.contains(&event));
            if came && !self.deviations.is_certain() {
                self.deviations.note(format!("{event:?} came"));
                continue;
            }
            crate::ensure!(!came, "came, and was known not to: {event:?}");
        }
        Ok(())
    }

    /// What is known of these devices and did not show, where it need not.
    pub fn unseen_deviations(&self) -> &[String] {
        self.deviations.unseen()
    }

    /// The status that counts here where the specification demands the first and the second came.
    pub fn expected_status(&mut self, demanded: Status, found: Status) -> Status {
        self.deviations.status(demanded, found)
    }

    /// Whether a request that must end with an error is known to be refused so when it is posted.
    pub fn is_known_refusal(&mut self, posted: &Result<(), Refusal>) -> bool {
        let refused = posted.as_ref().err();
        refused.is_some_and(|refusal| self.deviations.refuses(&refusal.kind))
    }

    /// Does what has a name, which every error of it begins with; it may be known that what is waited for
    /// in it never comes.
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

    /// A number for an object.
    pub fn new_id(&mut self) -> Id {
        self.next += 1;
        self.next
    }

    /// Has a host do something.
    pub fn call(&mut self, host: HostId, mut call: Call) -> Reply {
        if let Err(text) = self.handles.resolve_call(&mut call) {
            return Reply::No(Refusal::mistake(text));
        }
        let reply = self.world.call(host, call.clone());
        self.handles.record_reply(host, &call, &reply);
        reply
    }

    /// Has a host do something that must not be refused.
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

    /// Has a host do something that may be refused.
    pub fn try_call(&mut self, host: HostId, call: Call) -> Result<Reply, Refusal> {
        match self.call(host, call) {
            Reply::No(refusal) => Err(refusal),
            Reply::Gone => Err(Refusal::mistake("the host is gone")),
            reply => Ok(reply),
        }
    }

    /// Has hosts do things at the same time.
    pub fn call_concurrently(&mut self, calls: Vec<(HostId, Call)>) -> Result<Vec<Reply>, String> {
        let mut filled = calls;
        for (_, call) in &mut filled {
            self.handles.resolve_call(call)?;
        }
        let replies = self.world.call_concurrently(filled.clone());
        for ((host, call), reply) in filled.iter().zip(&replies) {
            self.handles.record_reply(*host, call, reply);
        }
        Ok(replies)
    }

    /// Has a host begin what only its death ends.
    pub fn begin_unanswered(&mut self, host: HostId, mut call: Call) -> Verdict {
        self.handles.resolve_call(&mut call)?;
        self.world.begin_unanswered(host, call)
    }

    /// Kills a host.
    pub fn kill(&mut self, host: Host) -> Verdict {
        self.ends.retain(|_, found| found.id != host.id);
        self.world.kill(host.id)
    }

    /// How the world's devices behave.
    pub fn behaviour(&self) -> DeviceBehaviour {
        self.world.behaviour()
    }

    /// What the world's devices are known to do otherwise than the specification has it.
    pub fn deviations(&self) -> &[Deviation] {
        self.world.known_deviations().all
    }

    /// The world's time.
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

    /// Calls `look` until it finds something; an error when it does not within [`DEADLINE`].
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

    /// Ends the case: it does not apply here, for this reason.
    pub fn skip(&mut self, why: impl Into<String>) -> Verdict {
        self.skipped = Some(why.into());
        Ok(())
    }

    /// Why the case did not apply.
    pub fn skipped(&self) -> Option<&str> {
        self.skipped.as_deref()
    }

    /// A new host at `end`, with its device open.
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

    /// The host at `end`; made when first asked for.
    pub fn host(&mut self, end: HostRole) -> Result<Host, String> {
        if let Some(host) = self.ends.get(&end) {
            return Ok(*host);
        }
        let host = self.new_host(end)?;
        self.ends.insert(end, host);
        Ok(host)
    }

    /// The host at [`HostRole::First`].
    pub fn first_host(&mut self) -> Result<Host, String> {
        self.host(HostRole::First)
    }

    /// The host at [`HostRole::Second`].
    pub fn second_host(&mut self) -> Result<Host, String> {
        self.host(HostRole::Second)
    }

    /// The device of a host as it presents itself.
    pub fn facts(&self, host: Host) -> Result<&DeviceFacts, String> {
        let facts = self.handles.facts(host.id);
        facts.ok_or_else(|| "a host without a device".to_owned())
    }

    /// What numbers objects turned out to have.
    pub fn handles(&self) -> &HandleTable {
        &self.handles
    }

    /// Drops an object.
    pub fn destroy(&mut self, host: Host, object: Id) -> Verdict {
        self.call_ok(host.id, Call::Destroy { object }).map(drop)
    }
}

/// Whether a completion has this number and status.
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

//! The step of a domain: sends what applications wrote, and hands over what arrived for them.

use std::collections::BTreeSet;

use headworks_client::{Reset, Vqpn};
use headworks_runtime::ActorContext;
use headworks_shm::ordered_copy::prefetch_object;
use headworks_verbs::Status;

use super::{Domain, DomainError, FailedGroup, Output};
use crate::egress::SendStep;
use crate::qp_group::QpRole;
use crate::receives::ReceiveId;
use crate::send_queue::OnCompletion;

#[cfg(test)]
mod tests;

/// Turns that a group gets in one step.
const TURNS: usize = 32;
/// Steps between two looks at what peers have to react to, in a domain that never sleeps.
const WATCH_EVERY: u32 = 1 << 14;

impl Domain {
    /// Does a bounded amount of work and returns whether there was any.
    ///
    /// # Errors
    ///
    /// [`DomainError`]: the device has failed, and everything in the domain with it.
    pub fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<bool, DomainError> {
        // The clock is read only while something depends on the time.
        if self.pool.is_active() || !self.slowed.is_empty() {
            self.now = cx.now();
        }
        self.copies.begin(cx);
        let mut was_busy = self.poll()?;
        // Receives must be posted before they are announced to a peer.
        self.receives
            .flush()
            .map_err(crate::receives::GrowError::from)?;
        was_busy |= self.refill();
        was_busy |= self.check_doorbells();
        if self.pool.is_active() || !self.moving_out.is_empty() {
            self.now = cx.now();
            was_busy |= self.land();
        }
        if !self.slowed.is_empty() {
            self.now = cx.now();
            self.pace();
        }
        was_busy |= self.serve_groups();
        if !was_busy && self.pool.is_active() {
            self.pool.touch(self.now, cx);
        }
        self.copies.charge(cx);
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(WATCH_EVERY) {
            self.watch_peers();
        }
        Ok(was_busy)
    }

    /// Tells control of peers whose daemon has to react to something. Control looks after a while whether it has.
    pub(super) fn watch_peers(&mut self) {
        for (_, entry) in &mut self.groups {
            let group = &mut entry.group;
            if group.awaits_peer && !std::mem::replace(&mut group.is_watched, true) {
                let peer = entry.key.peer;
                self.outputs.push_back(Output::AwaitsPeer { peer });
            }
        }
    }

    /// Returns whether any peer's daemon has to react to something that was sent.
    pub fn awaits_peers(&self) -> bool {
        self.groups.iter().any(|(_, one)| one.group.awaits_peer)
    }

    /// Returns whether a peer's daemon still has to react to something, and how many frames came from it.
    pub fn awaited(&self, peer: u64) -> (bool, u64) {
        let of_peer = self.groups.iter().filter(|(_, one)| one.key.peer == peer);
        of_peer.fold((false, 0), |(awaits, came), (_, one)| {
            let group = &one.group;
            (awaits | group.awaits_peer, came + group.credit.got())
        })
    }

    /// Notes that a peer's daemon is alive. If it has to react to something that is sent later, control is told anew.
    pub fn note_alive(&mut self, peer: u64) {
        let of_peer = self.groups.iter_mut();
        for (_, entry) in of_peer.filter(|(_, one)| one.key.peer == peer) {
            entry.group.awaits_peer = false;
            entry.group.is_watched = false;
        }
    }

    /// Returns whether there is no work until an application or a device makes some.
    pub fn is_idle(&self) -> bool {
        self.active.is_empty()
            && self.refill.is_empty()
            && self
                .sessions
                .iter()
                .all(|(_, session)| session.is_gone || session.doorbell.is_quiet())
            && self.moving_out.is_empty()
    }

    fn poll(&mut self) -> Result<bool, DomainError> {
        let mut completions = std::mem::take(&mut self.completions);
        let polled = self.cq.poll(&mut completions);
        if let Ok(count) = polled {
            for completion in &completions[..count] {
                let group = self.by_qpn.get(&completion.qpn).copied();
                let receive = self.receives.of(completion.wr_id);
                if let Some(receive) = receive
                    && !self.completes(group, receive)
                {
                    continue;
                }
                let receive = receive.map(|one| one.number);
                match group {
                    // The completion belongs to a group that has failed.
                    None => {}
                    Some(at) if completion.status != Status::Success => {
                        let status = completion.status;
                        tracing::warn!("a queue-pair group has failed: {status}");
                        self.fail(at, Reset::Unreachable);
                    }
                    Some(at) => match receive {
                        Some(receive) => self.receive(at, receive, completion),
                        None => self.retire(at, completion.qpn, completion.wr_id),
                    },
                }
                // Its bytes are copied to their place, so it can be posted again.
                receive.into_iter().for_each(|one| self.receives.again(one));
            }
            let drained: Vec<FailedGroup> = self.dying.polled(count).collect();
            drained.into_iter().for_each(|one| self.drop_failed(one));
        }
        self.completions = completions;
        Ok(polled? > 0)
    }

    /// Returns whether a receive has come back with this completion. Any completion returns a receive of the shared queue.
    /// A queue pair's own receive must be one that the group holds. If the group has failed, all its receives come back
    /// once it is drained.
    fn completes(&mut self, group: Option<usize>, receive: ReceiveId) -> bool {
        if self.receives.srq().is_some() {
            return true;
        }
        let entry = group.and_then(|at| self.groups.get_mut(at));
        entry.is_some_and(|entry| {
            let own = &mut entry.group.own_receives;
            own.complete(receive.queue, receive.number)
        })
    }

    /// Handles the completion of requests on a group's queue pair.
    fn retire(&mut self, at: usize, qpn: headworks_verbs::Qpn, number: u64) {
        let Some(entry) = self.groups.get_mut(at) else {
            return;
        };
        let qp_role = entry.group.qp_role(qpn);
        let mut thens = Vec::new();
        entry.group.channel(qp_role).retire(number, |then| {
            if then != OnCompletion::Nothing {
                thens.push(then);
            }
        });
        let waiting = match qp_role {
            QpRole::Frames => BTreeSet::new(),
            QpRole::Bulk => std::mem::take(&mut entry.group.waiting),
        };
        self.prove(at);
        self.activate(at);
        waiting.into_iter().for_each(|number| self.call(at, number));
        for then in thens {
            match then {
                OnCompletion::Nothing => {}
                OnCompletion::Sent(number, end) => {
                    if let Some(connection) = self.connections.get_mut(number) {
                        connection.egress.transferred(end);
                        self.call(at, number);
                        self.attend(number);
                    }
                }
                OnCompletion::Fetched(number) => self.fetched(at, number),
                OnCompletion::Got(number, end) => {
                    if let Some(entry) = self.groups.get_mut(at) {
                        entry.group.reads = entry.group.reads.saturating_sub(1);
                    }
                    if let Some(connection) = self.connections.get_mut(number) {
                        connection.egress.transferred(end);
                        self.call(at, number);
                        self.attend(number);
                    }
                }
                OnCompletion::Exported(number) => {
                    if let Some(connection) = self.connections.get_mut(number) {
                        connection.egress.exporting(true);
                        self.call(at, number);
                    }
                }
            }
        }
    }

    /// Handles the connections that applications marked in their doorbells. Returns whether there were any.
    fn check_doorbells(&mut self) -> bool {
        let mut touched = Vec::new();
        for (at, session) in &self.sessions {
            if !session.is_gone {
                session
                    .doorbell
                    .touched(|handle| touched.push((at, handle)));
            }
        }
        let numbers = touched
            .iter()
            .filter_map(|(session, handle)| self.number_of(*session, *handle));
        let numbers: Vec<Vqpn> = numbers.collect();
        let connections = || numbers.iter().filter_map(|one| self.connections.get(*one));
        connections().for_each(|one| prefetch_object(&**one));
        connections().for_each(|one| one.expect());
        numbers.into_iter().for_each(|one| self.touched(one));
        !touched.is_empty()
    }

    fn touched(&mut self, number: Vqpn) {
        let ring_max = self.config.ingress_max;
        let Some(mut context) = self.context(number) else {
            return;
        };
        let connection = &mut *context.connection;
        if connection.is_left() {
            return;
        }
        if connection.ingress.look().is_err() {
            self.misused(number);
            return;
        }
        context.collect();
        context.want_memory();
        let connection = &mut *context.connection;
        connection.serve_direct();
        connection
            .ingress
            .grow(&mut context.session.memory, ring_max);
        connection.offer_room();
        context.schedule();
        self.attend(number);
    }

    /// Resets a connection whose application broke the contract of its shared memory.
    pub(super) fn misused(&mut self, number: Vqpn) {
        let Some(context) = self.context(number) else {
            return;
        };
        let (connection, name) = (context.connection, &context.session.name);
        let handle = connection.place.handle;
        tracing::warn!(
            "application {name:?} wrote what it must not into the memory of connection {handle}, which is reset: \
             look for stray writes in it, or for a library of another version"
        );
        connection.reset(Reset::Misuse, false);
        self.attend(number);
    }

    fn serve_groups(&mut self) -> bool {
        let active = std::mem::take(&mut self.active);
        let mut was_busy = false;
        for at in active {
            if let Some(entry) = self.groups.get_mut(at) {
                entry.is_active = false;
            }
            let has_more = self.serve(at);
            was_busy |= has_more;
            if has_more {
                self.activate(at);
            }
        }
        was_busy
    }

    /// Sends on a group. Returns whether there is more to do that need not wait.
    fn serve(&mut self, at: usize) -> bool {
        let Some(entry) = self.groups.get_mut(at).filter(|one| one.group.is_up()) else {
            return false;
        };
        let (is_short, now) = (self.pool.is_in_danger(), self.now);
        let mut changed = Vec::new();
        while entry.group.may_send() {
            let Some(number) = entry.group.control.pop_front() else {
                break;
            };
            let Some(connection) = self.connections.get_mut(number) else {
                continue;
            };
            if let Some(session) = self.sessions.get(connection.place.session) {
                connection.control(&session.memory, &mut entry.group, is_short);
                changed.push(number);
            }
        }
        if entry.group.is_slow_due && entry.group.may_send() {
            entry.group.slow(is_short);
        }
        let mut is_blocked = false;
        let mut turns = 0;
        while turns < TURNS && !is_blocked {
            let Some(entry) = self.groups.get_mut(at) else {
                break;
            };
            let drr = &mut entry.group.drr;
            let Some(place) = drr.current() else {
                if !drr.begin() {
                    break;
                }
                continue;
            };
            if !entry.group.rate.may_send(now) {
                // The group is woken when it may send again.
                is_blocked = true;
                break;
            }
            turns += 1;
            let number = self.connections.at(place);
            let connection = number.and_then(|number| self.connections.get_mut(number));
            // A connection of another group may have taken the place meanwhile.
            let own = connection.filter(|one| one.place.group == Some(at));
            let Some(connection) = own else {
                drr.exhausted();
                continue;
            };
            let number = connection.number;
            let Some(session) = self.sessions.get_mut(connection.place.session) else {
                drr.exhausted();
                continue;
            };
            let group = &mut entry.group;
            let copies = &mut self.copies;
            let config = &self.config;
            let turn = connection.turn(&mut session.memory, group, is_short, config, copies);
            match turn {
                Ok(SendStep::Framed(bytes)) => {
                    session.traffic.sent += u64::from(bytes);
                    group.rate.sent(bytes);
                    group.drr.spent(bytes);
                    changed.push(number);
                }
                Ok(SendStep::Announced(bytes)) => {
                    session.traffic.sent += u64::from(bytes);
                    // The receiver decides when these bytes are carried. The turn is over.
                    group.drr.spent(bytes.min(self.config.quantum));
                }
                Ok(SendStep::Asked(bytes)) => {
                    group.rate.sent(bytes);
                    group.drr.spent(bytes);
                    changed.push(number);
                }
                Ok(SendStep::Nothing) => {
                    group.drr.exhausted();
                    changed.push(number);
                }
                Ok(SendStep::Full) => {
                    group.drr.exhausted();
                    // A set, so that a connection waits once, however often it is called meanwhile.
                    group.waiting.insert(number);
                }
                Ok(SendStep::Blocked) => is_blocked = true,
                Err(_) => {
                    group.drr.exhausted();
                    self.misused(number);
                }
            }
        }
        changed.into_iter().for_each(|number| self.attend(number));
        let Some(entry) = self.groups.get_mut(at) else {
            return false;
        };
        entry.group.tell(is_short);
        if let Err(error) = entry.group.flush() {
            tracing::warn!("a queue-pair group has failed: {error}");
            self.fail(at, Reset::Unreachable);
            return true;
        }
        let group = &self.groups[at].group;
        // The next step posts requests that a full queue pair did not take.
        group.has_staged()
            || !is_blocked
                && (group.drr.is_waited_for() || (group.may_send() && !group.control.is_empty()))
    }
}

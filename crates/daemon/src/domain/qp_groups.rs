//! Queue-pair groups of a domain: opening, bring-up, failure.

use headworks_client::socket_message::Refusal;
use headworks_client::{Reset, Vqpn};
use headworks_verbs::{QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, ResourceError};

use super::{Domain, FailedGroup, Output, QpGroupEntry, QpGroupKey};
use crate::own_receives::OwnReceives;
use crate::qp_group::{QpGroup, QpRole};
use crate::send_queue::SendQueue;

impl Domain {
    /// Returns the queue-pair group to a peer's domain, and starts to bring it up if there is none. `opens`
    /// tells whether this side is the one that opens it.
    ///
    /// # Errors
    ///
    /// [`Refusal::Limit`]: too many groups, or no receives for another one. [`Refusal::Memory`].
    /// [`Refusal::Unreachable`].
    pub fn qp_group(&mut self, key: QpGroupKey, opens: bool) -> Result<usize, Refusal> {
        if let Some(group) = self.by_key.get(&key) {
            return Ok(*group);
        }
        let known = self.instances.get(&key).copied().unwrap_or(0);
        if opens {
            let at = self.add_qp_group(key, known.wrapping_add(1).max(1))?;
            self.announce_qp_group(at);
            return Ok(at);
        }
        let at = self.add_qp_group(key, 0)?;
        let group = key;
        self.outputs
            .push_back(Output::QpGroupWanted { group, known });
        Ok(at)
    }

    fn add_qp_group(&mut self, key: QpGroupKey, instance: u32) -> Result<usize, Refusal> {
        let most = self.config.qp_groups_max;
        if self.groups.len() >= most as usize {
            tracing::warn!(
                "cannot open a queue-pair group to another host: {} has {most}, which is all of qp_groups_max that one of \
                 {} workers has; raise it",
                self.tenant,
                self.config.workers
            );
            return Err(Refusal::Limit);
        }
        let promised = self.admit()?;
        let made = self.make_group(promised);
        let mut group = made.map_err(|error| {
            self.receive_shares.leave(promised.into());
            tracing::warn!("cannot open a queue-pair group to another host: {error}");
            Refusal::Memory
        })?;
        let seed = instance.wrapping_mul(0x9e37_79b9) ^ group.frames.qpn().raw();
        let bytes = self.config.frame_bytes;
        let started = group.start(self.device.info(), promised, bytes, seed);
        if let Err(error) = started {
            self.abandon(group, promised);
            tracing::warn!("cannot open a queue-pair group to another host: {error}");
            return Err(Refusal::Unreachable);
        }
        // The receives are announced to the peer, so they must be posted first. Only a started queue pair takes them.
        let filled = self
            .receives
            .fill(group.frames.qp(), &mut group.own_receives);
        if let Err(error) = filled {
            self.abandon(group, promised);
            tracing::warn!("cannot post the receives of a queue-pair group: {error}");
            return Err(Refusal::Memory);
        }
        let qpns = [group.frames.qpn(), group.bulk.qpn()];
        let last = self.instances.entry(key).or_default();
        *last = instance.max(*last);
        let at = self.groups.insert(QpGroupEntry {
            key,
            instance,
            is_active: false,
            group,
        });
        self.by_key.insert(key, at);
        self.by_qpn.extend(qpns.map(|qpn| (qpn, at)));
        Ok(at)
    }

    /// Destroys a new group that cannot be opened, and takes its receives back.
    fn abandon(&mut self, group: QpGroup, promised: u32) {
        let own = self.destroy(group);
        self.receives.reclaim(own);
        self.receive_shares.leave(promised.into());
    }

    /// Destroys the queue pairs of a group. Returns the receives that they held, which the device does not use any more.
    fn destroy(&self, mut group: QpGroup) -> OwnReceives {
        let qpns = [group.frames.qpn(), group.bulk.qpn()];
        let own = std::mem::take(&mut group.own_receives);
        drop(group);
        self.cq
            .discard(&|completion| qpns.contains(&completion.qpn));
        own
    }

    /// Drops a failed group, and frees what it held.
    pub(super) fn drop_failed(&mut self, failed: FailedGroup) {
        let FailedGroup { group, held, lost } = failed;
        if self.receives.srq().is_none() {
            let own = self.destroy(group);
            self.receives.reclaim(own);
            self.receive_shares.leave(held);
        }
        self.pool.drained(lost);
    }

    fn admit(&mut self) -> Result<u32, Refusal> {
        loop {
            if let Some(promised) = self.receive_shares.admit() {
                return Ok(promised);
            }
            let more = self.config.receives;
            match self.receives.grow(&*self.device, &*self.pd, more) {
                Ok(more) => self.receive_shares.grow(more),
                // Failed groups still hold receives of their own.
                Err(_) if self.receives.srq().is_none() && !self.dying.is_empty() => {
                    let all: Vec<FailedGroup> = self.dying.take_all().collect();
                    all.into_iter().for_each(|one| self.drop_failed(one));
                }
                Err(error) => {
                    tracing::warn!(
                        "cannot add receives for a queue-pair group: {error}; raise receives_max"
                    );
                    return Err(Refusal::Limit);
                }
            }
        }
    }

    fn make_group(&mut self, promised: u32) -> Result<QpGroup, ResourceError> {
        let limits = &self.device.info().limits;
        let (_, share) = self.config.receives_of_group(true, limits);
        // Without a shared receive queue, each queue pair has a receive queue of so many receives.
        let own = |most: u32| match self.receives.srq() {
            Some(_) => 0,
            None => most,
        };
        let channel = |depth: u32, bytes: u32, receives: u32| {
            let qp = self.pd.create_qp(&QpInit {
                qp_type: QpType::Rc,
                send_cq: self.cq.clone(),
                recv_cq: self.cq.clone(),
                srq: self.receives.srq().cloned(),
                caps: QpCaps {
                    max_send_wr: depth,
                    max_recv_wr: receives,
                    max_inline: 0,
                    ..QpCaps::default()
                },
                signal_all: false,
            })?;
            SendQueue::new(&*self.device, &*self.pd, qp, depth, bytes)
        };
        let (depth, bytes) = (self.config.frame_depth, self.config.frame_bytes);
        let frames = channel(depth, bytes, own(share))?;
        // This queue pair carries no frames and receives nothing. A device may refuse a receive queue of length 0.
        let bulk = channel(self.config.bulk_depth, 64, own(1))?;
        let own = self.receives.own(promised);
        let quantum = self.config.quantum;
        Ok(QpGroup::new(frames, bulk, promised, own, quantum))
    }

    /// Opens a group at the request of the other side, which has none or has lost the one numbered `known`.
    pub fn qp_group_wanted(&mut self, key: QpGroupKey, known: u32) {
        let here = self.by_key.get(&key).copied();
        if let Some(at) = here.filter(|at| self.groups[*at].instance == known) {
            self.fail(at, Reset::Unreachable);
        }
        if let Err(why) = self.qp_group(key, true) {
            tracing::warn!(
                "another host asked for a queue-pair group, which cannot be opened: {why}"
            );
            let (group, instance) = (key, 0);
            self.outputs
                .push_back(Output::QpGroupDown { group, instance });
        }
    }

    /// Handles bring-up bytes of the other side of a group.
    pub fn bring_up(&mut self, key: QpGroupKey, instance: u32, qp_role: QpRole, bytes: &[u8]) {
        let here = self.by_key.get(&key).copied();
        let known = here.map_or(0, |at| self.groups[at].instance);
        let is_news = instance > self.instances.get(&key).copied().unwrap_or(0);
        let at = match here {
            Some(at) if known == instance => at,
            Some(at) if known == 0 && is_news => {
                self.groups[at].instance = instance;
                self.instances.insert(key, instance);
                at
            }
            // The bytes are late: they belong to a group that is gone.
            _ if !is_news => return,
            _ => {
                // The other side has opened a new group, so it has lost this one.
                here.into_iter()
                    .for_each(|at| self.fail(at, Reset::Unreachable));
                match self.add_qp_group(key, instance) {
                    Ok(at) => at,
                    Err(why) => {
                        tracing::warn!(
                            "another host opened a queue-pair group, which cannot be set up: {why}"
                        );
                        let group = key;
                        self.outputs
                            .push_back(Output::QpGroupDown { group, instance });
                        return;
                    }
                }
            }
        };
        let brought = self.groups[at].group.input(qp_role, bytes);
        self.announce_qp_group(at);
        match brought {
            // Checked after `announce_qp_group`: the group is up only once its own bytes are handed out.
            Ok(_) if self.groups[at].group.is_up() => self.resume(at),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!("cannot open a queue-pair group to another host: {error}");
                self.fail(at, Reset::Unreachable);
            }
        }
    }

    pub(super) fn announce_qp_group(&mut self, at: usize) {
        let entry = &mut self.groups[at];
        let (group, instance) = (entry.key, entry.instance);
        if instance == 0 {
            // The side that opens the group has not announced the instance yet.
            return;
        }
        for (qp_role, bytes) in entry.group.output() {
            self.outputs.push_back(Output::BringUp {
                group,
                instance,
                qp_role,
                bytes,
            });
        }
    }

    /// Fails the group of this instance, which the other side has lost.
    pub fn qp_group_down(&mut self, key: QpGroupKey, instance: u32) {
        let here = self.by_key.get(&key).copied();
        if let Some(at) = here.filter(|at| self.groups[*at].instance == instance) {
            self.fail(at, Reset::Unreachable);
        }
    }

    /// Returns what tells the peers that all groups are down, because this part of the domain is lost. A peer that waits
    /// for something learns it in no other way.
    pub(crate) fn groups_down(&self) -> Vec<Output> {
        let all = self.groups.iter();
        let downs = all.map(|(_, entry)| Output::QpGroupDown {
            group: entry.key,
            instance: entry.instance,
        });
        downs.collect()
    }

    /// Fails all groups with a host whose stream has ended.
    pub fn fail_peer(&mut self, peer: u64, why: Reset) {
        let keys = self.by_key.iter().filter(|(key, _)| key.peer == peer);
        let all: Vec<usize> = keys.map(|(_, at)| *at).collect();
        all.into_iter().for_each(|at| self.fail(at, why));
        // If the host comes back it gets another peer number, so these entries are not needed any more.
        self.instances.retain(|key, _| key.peer != peer);
    }

    /// Fails the group of a queue pair for which the device reported a fatal error.
    pub(crate) fn lost(&mut self, qpn: Qpn) {
        if let Some(at) = self.by_qpn.get(&qpn).copied() {
            tracing::warn!(
                "a queue-pair group has failed: the device reports its queue pair in the error state"
            );
            self.fail(at, Reset::Unreachable);
        }
    }

    /// Takes a group out of service and resets its connections. Its queue pairs go to the error state, so
    /// that no memory can be reached through them. Nothing else is affected.
    pub(super) fn fail(&mut self, at: usize, why: Reset) {
        let Some(failed) = self.groups.try_remove(at) else {
            return;
        };
        self.by_key.remove(&failed.key);
        self.by_qpn.retain(|_, group| *group != at);
        self.active.retain(|group| *group != at);
        let held = failed.group.receives_held();
        if self.receives.srq().is_some() {
            // Receives that its queue pairs have taken come back when they complete, whichever group is there.
            self.receive_shares.leave(held);
        }
        let (group, instance) = (failed.key, failed.instance);
        self.outputs
            .push_back(Output::QpGroupDown { group, instance });
        let mut failed = failed.group;
        for qp_role in [QpRole::Frames, QpRole::Bulk] {
            let error = QpAttr::to_state(QpState::Error);
            if let Err(error) = failed.channel(qp_role).qp().modify(&error) {
                tracing::warn!(
                    "a queue pair of a failed queue-pair group cannot be disabled: {error}"
                );
            }
        }
        let numbers = self.connections_of(at);
        for number in numbers {
            if let Some(connection) = self.connections.get_mut(number) {
                connection.cut(why);
            }
            self.attend(number);
        }
        // Completions of receives that its queue pairs have taken are still to be polled.
        self.dying.push(FailedGroup {
            group: failed,
            held,
            lost: self.pool.take_lost(),
        });
    }

    /// Posts the receives that groups are owed, and promises them. Returns whether some could not be posted yet.
    pub(super) fn refill(&mut self) -> bool {
        let mut short = Vec::new();
        for at in std::mem::take(&mut self.refill) {
            let Some(entry) = self.groups.get_mut(at) else {
                continue;
            };
            let group = &mut entry.group;
            let own = &mut group.own_receives;
            let (posted, outcome) = self.receives.post(group.frames.qp(), own);
            group.credit.promise(posted);
            if own.owed() > 0 {
                short.push(at);
            }
            if let Err(error) = outcome {
                tracing::warn!("a queue-pair group has failed: {error}");
                self.fail(at, Reset::Unreachable);
            } else if posted > 0 {
                // The peer may wait to be told.
                self.activate(at);
            }
        }
        self.refill = short;
        !self.refill.is_empty()
    }

    /// Notes that the group of a queue pair has carried a frame, in either direction.
    pub(super) fn prove(&mut self, at: usize) {
        let Some(entry) = self.groups.get_mut(at) else {
            return;
        };
        let was_proven = entry.group.is_proven();
        entry.group.has_carried = true;
        if !was_proven && entry.group.is_proven() {
            let group = entry.key;
            self.outputs.push_back(Output::QpGroupProven { group });
        }
    }

    /// Fails the group of a connection if it has not carried a frame yet. All its connections are unproven.
    pub fn fail_unproven(&mut self, number: Vqpn) {
        let group = self.connections.get(number).and_then(|one| one.place.group);
        let unproven = group.filter(|at| {
            let entry = self.groups.get(*at);
            entry.is_some_and(|entry| !entry.group.is_proven())
        });
        if let Some(at) = unproven {
            self.fail(at, Reset::Unreachable);
        }
    }

    /// Returns whether the group of a connection is up and has carried a frame.
    pub fn is_link_proven(&self, number: Vqpn) -> bool {
        let group = self.connections.get(number).and_then(|one| one.place.group);
        let entry = group.and_then(|at| self.groups.get(at));
        entry.is_some_and(|entry| entry.group.is_proven())
    }

    /// Returns the group that carries a connection, if there is one.
    pub fn qp_group_of(&self, number: Vqpn) -> Option<QpGroupKey> {
        let at = self.connections.get(number)?.place.group?;
        self.groups.get(at).map(|entry| entry.key)
    }

    /// Notes that a group has something to do.
    pub(super) fn activate(&mut self, group: usize) {
        if let Some(mut group) = self.group_context(group) {
            group.activate();
        }
    }

    /// Schedules a connection that may have data to send.
    pub(super) fn call(&mut self, group: usize, number: Vqpn) {
        if let Some(mut group) = self.group_context(group) {
            group.schedule(number);
        }
    }

    pub(super) fn connections_of(&self, at: usize) -> Vec<Vqpn> {
        let all = self.connections.iter();
        let of_group = all.filter(|(_, one)| one.place.group == Some(at));
        of_group.map(|(number, _)| number).collect()
    }

    /// Schedules everything that waited for a group to come up, and a first frame, which shows that it works.
    pub(super) fn resume(&mut self, at: usize) {
        if let Some(entry) = self.groups.get_mut(at) {
            let group = entry.key;
            match entry.group.is_proven() {
                // The first frame of the other side came early.
                true => self.outputs.push_back(Output::QpGroupProven { group }),
                false => entry.group.greet(),
            }
            self.activate(at);
        }
        let numbers = self.connections_of(at);
        for number in numbers {
            self.call(at, number);
            self.attend(number);
        }
    }
}

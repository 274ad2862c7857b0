//! Parts of domains at workers: control makes them, calls them under their worker's lock, and passes on what the workers
//! request.

use std::sync::MutexGuard;

use headworks_client::Reset;
use headworks_client::socket_message::{Refusal, Reply};

use super::{Daemon, Output, PeerId, TenantDomain};
use crate::control::{DomainPair, Message};
use crate::domain::{self, Domain, DomainError};
use crate::ids::{DomainPart, QpGroupKey, SessionId, WorkerId};
use crate::limits::PoolPages;
use crate::worker::Worker;

impl Daemon {
    /// Calls `serve` for a part of a domain, and passes on what its worker then requests. `None` if there is no such
    /// part.
    pub(super) fn in_part<R>(
        &mut self,
        at: DomainPart,
        serve: impl FnOnce(&mut Domain) -> R,
    ) -> Option<R> {
        let shared = self.workers.get(at.worker.index())?.clone();
        let mut worker = shared.lock_for_control();
        let part = worker.domain(at.domain);
        let (done, has_work) = match part {
            Some(part) => (Some(serve(part)), !part.is_idle()),
            None => (None, false),
        };
        if has_work {
            self.wake_if_armed(at.worker, &worker);
        }
        self.pass_on(at.worker, worker);
        done
    }

    /// Wakes a worker that others step and that sleeps, or is about to.
    fn wake_if_armed(&mut self, id: WorkerId, worker: &Worker) {
        if self.are_workers_elsewhere && worker.is_armed() {
            self.outputs.push_back(Output::WakeWorker(id));
        }
    }

    /// Passes on the outputs of a worker, after giving back its lock.
    pub(super) fn pass_on(&mut self, of: WorkerId, mut worker: MutexGuard<'_, Worker>) {
        if !worker.has_outputs() {
            return;
        }
        let mut passing = std::mem::take(&mut self.passing);
        worker.take_outputs(&mut passing);
        let lost: Vec<_> = std::iter::from_fn(|| worker.lost()).collect();
        drop(worker);
        let mut slabs = Vec::new();
        let mut is_level_new = false;
        let mut settled = Vec::new();
        for (domain, output) in passing.drain(..) {
            let at = DomainPart { worker: of, domain };
            let between = |group: QpGroupKey| DomainPair {
                from: domain,
                to: group.domain,
            };
            let (group, message) = match output {
                domain::Output::Slabs { session } => {
                    slabs.extend(self.by_session.get(&(at, session)));
                    continue;
                }
                domain::Output::Reply { session, reply } => {
                    if let Some(session) = self.by_session.get(&(at, session)) {
                        self.tell(*session, reply);
                    }
                    continue;
                }
                domain::Output::HandleFreed { session, handle } => {
                    if let Some(&id) = self.by_session.get(&(at, session))
                        && let Some(client) = self.clients.get_mut(&id)
                        && let Some(session) = &mut client.session
                    {
                        session.handles.try_remove(handle as usize);
                        self.direct_over(id, handle);
                    }
                    continue;
                }
                domain::Output::Signal { watch, signal } => {
                    self.outputs.push_back(Output::Signal { watch, signal });
                    continue;
                }
                domain::Output::PoolLevel => {
                    is_level_new = true;
                    continue;
                }
                domain::Output::WakeThread(event_count) => {
                    self.outputs.push_back(Output::WakeThread(event_count));
                    continue;
                }
                domain::Output::Wake { session, handle } => {
                    if let Some(session) = self.by_session.get(&(at, session)) {
                        self.outputs.push_back(Output::ToSession {
                            session: *session,
                            packet: Reply::Rang { handle }.encode(),
                            slab: None,
                        });
                    }
                    continue;
                }
                domain::Output::QpGroupWanted { group, known } => {
                    let between = between(group);
                    (group, Message::QpGroupWanted { between, known })
                }
                domain::Output::BringUp {
                    group,
                    instance,
                    qp_role,
                    bytes,
                } => {
                    let between = between(group);
                    let message = Message::BringUp {
                        between,
                        instance,
                        qp_role,
                        bytes,
                    };
                    (group, message)
                }
                domain::Output::AwaitsPeer { peer } => {
                    self.watch_peer(PeerId(peer));
                    continue;
                }
                domain::Output::QpGroupProven { group } => {
                    settled.push((at, group));
                    continue;
                }
                domain::Output::QpGroupDown { group, instance } => {
                    settled.push((at, group));
                    let between = between(group);
                    (group, Message::QpGroupDown { between, instance })
                }
            };
            let peer = PeerId(group.peer);
            if self.peers.contains_key(&peer) {
                self.outputs.push_back(Output::ToPeer {
                    peer,
                    message: message.encode(),
                });
            }
        }
        self.passing = passing;
        slabs.into_iter().for_each(|session| self.flush(session));
        if !self.unproven.is_empty() {
            settled
                .into_iter()
                .for_each(|(at, group)| self.settle_unproven(at, group));
        }
        is_level_new |= !lost.is_empty();
        for (domain, error) in lost {
            self.lose_part(DomainPart { worker: of, domain }, &error);
        }
        if is_level_new {
            self.look_at_pools();
        }
    }

    /// Makes a worker's part of a domain, if it has none yet.
    pub(super) fn make_part(&mut self, at: DomainPart) -> Result<(), Refusal> {
        let tenant = self.tenant_of(at.domain);
        let refuse = |error: DomainError| {
            tracing::warn!("cannot create the domain of {tenant}: {error}");
            Refusal::Memory
        };
        let pd = match self.domains.get(&at.domain) {
            Some(domain) => domain.pd.clone(),
            None => {
                let pd = self
                    .device
                    .alloc_pd()
                    .map_err(|error| refuse(error.into()))?;
                let taken = self.domains.values().map(|one| one.pool_bytes).sum();
                let pool_bytes = self.config.pool_grant(taken);
                if pool_bytes < self.config.pool_bytes {
                    tracing::warn!(
                        "{tenant} gets a receive pool of {pool_bytes} bytes: others have taken {taken} of pool_budget"
                    );
                }
                let domain = TenantDomain {
                    pd: pd.clone(),
                    memories: Vec::new(),
                    pool_bytes,
                    lacks_huge_pages: false,
                };
                self.domains.insert(at.domain, domain);
                pd
            }
        };
        let shared = self.workers[at.worker.index()].clone();
        // A part that was lost is dealt with before a new one takes its place: their sessions have the same numbers.
        self.pass_on(at.worker, shared.lock_for_control());
        let mut worker = shared.lock_for_control();
        if worker.domain(at.domain).is_none() {
            let mut limits = self.config.of_each_worker();
            if let Some(domain) = self.domains.get(&at.domain) {
                limits.pool_bytes = domain.pool_bytes;
                if domain.lacks_huge_pages {
                    limits.pool_pages = PoolPages::Ordinary;
                }
            }
            let part = Domain::new(at.domain, tenant, at.worker, (&self.device, &pd), &limits);
            let part = part.map_err(refuse)?;
            if let Some(why) = part.lack_of_huge_pages(&limits)
                && let Some(domain) = self.domains.get_mut(&at.domain)
            {
                domain.lacks_huge_pages = true;
                tracing::warn!(
                    "pool_pages: the receive pool of {tenant}, of {} bytes, has ordinary pages and no huge ones: {why}",
                    domain.pool_bytes
                );
            }
            worker.add(at.domain, part);
            self.wake_if_armed(at.worker, &worker);
        }
        Ok(())
    }

    /// Returns the number of a session's part at a worker, and makes the part if there is none yet.
    pub(super) fn session_part(
        &mut self,
        client: SessionId,
        worker: WorkerId,
    ) -> Result<usize, Refusal> {
        let of = self.clients.get(&client).ok_or(Refusal::Refused)?;
        let domain = of.domain;
        let session = of.session.as_ref().ok_or(Refusal::Refused)?;
        if let Some(number) = session.parts[worker.index()] {
            return Ok(number);
        }
        let (memory, name) = (session.memory.share(), session.name.clone());
        let at = DomainPart { worker, domain };
        self.make_part(at)?;
        let is_first = worker == WorkerId::FIRST;
        let made = self.in_part(at, |part| part.attach(memory, name, is_first));
        let number = made.ok_or(Refusal::Memory)??;
        let of = self.clients.get_mut(&client);
        let Some(session) = of.and_then(|of| of.session.as_mut()) else {
            // The session ended meanwhile, because another part of it failed.
            self.in_part(at, |part| part.detach(number, Reset::Unreachable));
            return Err(Refusal::Refused);
        };
        session.parts[worker.index()] = Some(number);
        self.by_session.insert((at, number), client);
        if self.are_workers_elsewhere {
            // A worker that sleeps has not armed the new doorbell.
            self.outputs.push_back(Output::WakeWorker(worker));
        }
        self.flush(client);
        Ok(number)
    }

    /// Returns the worker that carries an application's connection.
    pub fn worker_of(&self, session: SessionId, handle: u32) -> Option<WorkerId> {
        let session = self.clients.get(&session)?.session.as_ref()?;
        session.handles.get(handle as usize).copied()
    }

    /// Returns where the connection of a handle is: the worker's part of the domain, and the session's number there.
    /// `None` if the session has no such connection.
    pub(super) fn place_of(&self, client: SessionId, handle: u32) -> Option<(DomainPart, usize)> {
        let client = self.clients.get(&client)?;
        let session = client.session.as_ref()?;
        let worker = *session.handles.get(handle as usize)?;
        let number = session.parts[worker.index()]?;
        let domain = client.domain;
        Some((DomainPart { worker, domain }, number))
    }
}

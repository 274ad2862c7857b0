//! Counts of the objects in a worker's part of a domain, and its state for operators.

use std::collections::BTreeMap;
use std::net::IpAddr;

use headworks_verbs::Instant;

use super::Domain;
use crate::ecn::PoolLevel;
use crate::limits::DaemonLimits;
use crate::session::Session;
use crate::snapshot::{ObjectCounts, PoolSnapshot, QpGroupSnapshot, Traffic};

impl Domain {
    /// Counts the connections, queue pairs and receives of this part. Sessions and their memory belong to all parts
    /// together, and are counted by the [daemon](crate::Daemon).
    pub fn object_counts(&self) -> ObjectCounts {
        ObjectCounts {
            connections: self.connections.len(),
            groups: self.groups.len(),
            queue_pairs: 2 * self.groups.len(),
            receives: self.receive_shares.posted(),
            promised: self.receive_shares.promised(),
            ..ObjectCounts::default()
        }
    }

    /// Returns the state of the queue-pair groups. `worker` is the number of the worker that carries them. `host_of`
    /// maps a peer to its address.
    pub fn groups(
        &self,
        worker: u16,
        host_of: impl Fn(u64) -> Option<IpAddr>,
    ) -> Vec<QpGroupSnapshot> {
        let mut on_group: BTreeMap<usize, usize> = BTreeMap::new();
        for (_, connection) in self.connections.iter() {
            if let Some(group) = connection.place.group {
                *on_group.entry(group).or_default() += 1;
            }
        }
        let groups = self.groups.iter().map(|(at, entry)| QpGroupSnapshot {
            host: host_of(entry.key.peer),
            domain: entry.key.domain.0,
            worker,
            is_up: entry.group.is_up(),
            connections: on_group.get(&at).copied().unwrap_or(0),
            credit: entry.group.credit.left(),
            promised: entry.group.credit.outstanding(),
            sent: entry.group.credit.sent(),
            came: entry.group.credit.got(),
            reads: entry.group.fetched,
            announced: entry.group.announced,
            signals: (entry.group.signals_sent, entry.group.signals_came),
        });
        groups.collect()
    }

    /// Returns the level of the receive pool.
    pub fn pool_level(&self) -> PoolLevel {
        self.pool.level()
    }

    /// Returns the reason for which the receive pool lacks the huge pages of `limits`; `None` if it has them or needs none.
    pub(crate) fn lack_of_huge_pages(&self, limits: &DaemonLimits) -> Option<&'static str> {
        self.pool.lack_of_huge_pages(limits)
    }

    /// Returns the state of the receive pool.
    pub fn pool(&self) -> PoolSnapshot {
        self.pool.snapshot()
    }

    /// Returns the number of ends of connections that a session has in this part, the totals of its traffic, and what it
    /// holds of the receive pool: bytes, and those that it has held for long.
    pub fn traffic(&mut self, session: usize, now: Instant) -> (usize, Traffic, (u64, u64)) {
        let (session, pool) = (self.sessions.get(session), &mut self.pool);
        let of = |one: &Session| {
            let held = pool.used(one.app, now);
            (one.handles.len(), one.traffic, held)
        };
        session.map_or_else(Default::default, of)
    }
}

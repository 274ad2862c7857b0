//! Counts of the objects in a worker's part of a domain, and its state for operators.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Domain;
use crate::snapshot::{ObjectCounts, QpGroupSnapshot, Traffic};

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
            writes: entry.group.writes,
            offers: entry.group.offers,
        });
        groups.collect()
    }

    /// Returns the number of ends of connections that a session has in this part, and the totals of its traffic.
    pub fn traffic(&self, session: usize) -> (usize, Traffic) {
        let session = self.sessions.get(session);
        session.map_or_else(Default::default, |one| (one.handles.len(), one.traffic))
    }
}

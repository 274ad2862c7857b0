//! Counts of the objects in a domain, and its state for operators.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Domain;
use crate::ids::SessionId;
use crate::snapshot::{ApplicationSnapshot, DomainSnapshot, ObjectCounts, QpGroupSnapshot};

impl Domain {
    /// Counts the objects of the domain: sessions, connections, queue pairs, memory.
    pub fn object_counts(&self) -> ObjectCounts {
        let memory = self.sessions.iter().map(|(_, one)| one.memory.bytes());
        let (in_use, allocated) = memory.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        ObjectCounts {
            sessions: self.sessions.len(),
            connections: self.connections.len(),
            groups: self.groups.len(),
            queue_pairs: 2 * self.groups.len(),
            receives: self.receive_shares.posted(),
            promised: self.receive_shares.promised(),
            in_use,
            allocated,
            overwritten: self
                .sessions
                .iter()
                .map(|(_, one)| one.memory.overwritten())
                .sum(),
        }
    }

    /// Returns the state of the domain. `host_of` maps a peer to its address. `application_of` maps a session
    /// to its external identifier and the number of ports that it listens at.
    pub fn look(
        &self,
        host_of: impl Fn(u64) -> Option<IpAddr>,
        application_of: impl Fn(usize) -> Option<(SessionId, usize)>,
    ) -> DomainSnapshot {
        let mut on_group: BTreeMap<usize, usize> = BTreeMap::new();
        for (_, connection) in self.connections.iter() {
            if let Some(group) = connection.place.group {
                *on_group.entry(group).or_default() += 1;
            }
        }
        let groups = self.groups.iter().map(|(at, entry)| QpGroupSnapshot {
            host: host_of(entry.key.peer),
            domain: entry.key.domain.0,
            is_up: entry.group.is_up(),
            connections: on_group.get(&at).copied().unwrap_or(0),
            credit: entry.group.credit.left(),
            promised: entry.group.credit.outstanding(),
            sent: entry.group.credit.sent(),
            came: entry.group.credit.got(),
            writes: entry.group.writes,
            offers: entry.group.offers,
        });
        let applications = self.sessions.iter().filter_map(|(at, session)| {
            let (known, listeners) = application_of(at)?;
            let (in_use, allocated) = session.memory.bytes();
            Some(ApplicationSnapshot {
                session: known,
                name: session.name.clone(),
                pid: None,
                connections: session.handles.len(),
                listeners,
                traffic: session.traffic,
                in_use,
                allocated,
            })
        });
        DomainSnapshot {
            user: self.tenant.user,
            socket: self.tenant.socket,
            object_counts: self.object_counts(),
            groups: groups.collect(),
            applications: applications.collect(),
        }
    }
}

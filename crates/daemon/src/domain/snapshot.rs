//! Counts of the objects in a domain, and its state for operators.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Domain;
use crate::daemon::SessionId;
use crate::snapshot::{ApplicationSnapshot, DomainSnapshot, QpGroupSnapshot};

/// Numbers of the objects in a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Sessions of applications.
    pub sessions: usize,
    /// Ends of connections.
    pub connections: usize,
    /// Queue-pair groups.
    pub links: usize,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Receives posted.
    pub receives: u32,
    /// Receives promised to peers: at most `receives`.
    pub promised: u32,
    /// Bytes of shared memory in use.
    pub in_use: u64,
    /// Bytes of shared memory allocated.
    pub allocated: u64,
    /// Times that free memory was found overwritten. Counted only with
    /// [`DaemonLimits::poison`](crate::DaemonLimits::poison).
    pub overwritten: u64,
}

impl Domain {
    /// Counts the objects of the domain: sessions, connections, queue pairs, memory.
    pub fn object_counts(&self) -> ObjectCounts {
        let memory = self.sessions.iter().map(|(_, one)| one.memory.bytes());
        let (in_use, allocated) = memory.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        ObjectCounts {
            sessions: self.sessions.len(),
            connections: self.connections.len(),
            links: self.links.len(),
            queue_pairs: 2 * self.links.len(),
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
        let mut on_link: BTreeMap<usize, usize> = BTreeMap::new();
        for (_, connection) in self.connections.iter() {
            if let Some(link) = connection.place.link {
                *on_link.entry(link).or_default() += 1;
            }
        }
        let links = self.links.iter().map(|(at, linked)| QpGroupSnapshot {
            host: host_of(linked.key.peer),
            user: linked.key.domain.0,
            is_up: linked.link.is_up(),
            connections: on_link.get(&at).copied().unwrap_or(0),
            credit: linked.link.credit.left(),
            promised: linked.link.credit.outstanding(),
            sent: linked.link.credit.sent(),
            came: linked.link.credit.got(),
            writes: linked.link.writes,
            offers: linked.link.offers,
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
            user: self.id.0,
            object_counts: self.object_counts(),
            links: links.collect(),
            applications: applications.collect(),
        }
    }
}

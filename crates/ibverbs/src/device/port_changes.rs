//! Changes of a device's port while the device is open: the tables change, or the port goes down.

use std::sync::atomic::Ordering;

use headworks_verbs::{AsyncEvent, DeviceInfo, Gid, Lid, PKey, PortChange, PortFailure};

use super::{Context, locked};
use crate::attributes::Port;
use crate::gid::GidType;
use crate::port_selection::Refusal;
use crate::port_tables::PortTables;

/// The failures of a port: pure.
#[derive(Debug)]
pub(super) struct PortFailures {
    port: u8,
    /// Number of failures so far.
    count: u64,
    /// The latest loss of something that connections use.
    lost: Option<PortFailure>,
    /// That the port is down.
    down: Option<PortFailure>,
}

impl PortFailures {
    /// The failures of a port that is up, or is not.
    pub(super) fn of(port: u8, is_active: bool) -> Self {
        let mut failures = Self {
            port,
            count: 0,
            lost: None,
            down: None,
        };
        if !is_active {
            failures.down = Some(failures.next(PortChange::Down { was_active: false }));
        }
        failures
    }

    fn next(&mut self, change: PortChange) -> PortFailure {
        self.count += 1;
        PortFailure {
            port: self.port,
            change,
            number: self.count,
        }
    }

    /// Records that the port came up or went down.
    pub(super) fn is_active(&mut self, is_active: bool) {
        self.down = match is_active {
            true => None,
            false => Some(self.next(PortChange::Down { was_active: true })),
        };
    }

    /// Records that the port lost something.
    fn loses(&mut self, change: PortChange) -> PortFailure {
        let failure = self.next(change);
        self.lost = Some(failure);
        failure
    }

    /// The latest loss, or that the port is down.
    pub(super) fn latest(&self) -> Option<PortFailure> {
        let both = self.lost.into_iter().chain(self.down);
        both.max_by_key(|failure| failure.number)
    }
}

/// Returns the change from `old` to this GID, LID and partition key; `None` if connections lose nothing.
fn change(
    old: &Port,
    gid: (Gid, GidType),
    lid: Option<Lid>,
    pkey: Option<PKey>,
) -> Option<PortChange> {
    if (old.gid, old.gid_type) != gid {
        let (before, after) = (old.gid, Some(gid.0));
        return Some(PortChange::Gid { before, after });
    }
    if old.lid != lid {
        let (before, after) = (old.lid, lid);
        return Some(PortChange::Lid { before, after });
    }
    let (before, after) = (old.pkey, pkey);
    (before != after).then_some(PortChange::PKey { before, after })
}

impl Context {
    /// Reads the port's tables again if the device reported that they changed. Not for the threads that post and poll: it asks the
    /// device for each entry.
    pub(crate) fn settle_port(&self) {
        if self.is_port_stale.load(Ordering::Relaxed)
            && self.is_port_stale.swap(false, Ordering::AcqRel)
        {
            self.read_port_again();
        }
    }

    /// Reads the port's tables again, after the device reported that they changed. Later connections use the index at which the
    /// address and the key are now. If the address is gone, they use another one, chosen as at opening.
    fn read_port_again(&self) {
        let mut failures = locked(&self.port_failures);
        let (raw, old) = (&self.raw, self.port());
        let attr = match raw.port_attr(old.number) {
            Ok(attr) => attr,
            Err(error) => {
                tracing::warn!(%error, "the tables of the port changed and cannot be read");
                return;
            }
        };
        let tables = PortTables::read(raw, old.number, attr);
        let key_at = |index| raw.pkey(old.number, index);
        let selected = tables.select(&old.options, Some(old), key_at);
        let change = match &selected {
            Ok(now) => change(
                old,
                (now.entry.gid, now.entry.gid_type),
                now.network.lid(),
                now.pkey,
            ),
            Err(Refusal::NoLid { .. }) => Some(PortChange::Lid {
                before: old.lid,
                after: None,
            }),
            Err(_) => Some(PortChange::Gid {
                before: old.gid,
                after: None,
            }),
        };
        let version = old.version + u64::from(change.is_some());
        let roce = match &selected {
            Ok(now) => now.network.roce(),
            Err(_) => self.info().roce,
        };
        let now = match selected {
            Ok(now) => Port {
                gid_index: now.entry.index,
                gid: now.entry.gid,
                gid_type: now.entry.gid_type,
                lid: now.network.lid(),
                pkey_index: now.pkey_index,
                pkey: now.pkey,
                version,
                ..old.clone()
            },
            Err(refusal) => {
                tracing::warn!(
                    "the tables of the port changed, and no connection can be made: {refusal}"
                );
                Port {
                    version,
                    ..old.clone()
                }
            }
        };
        let is_moved = (old.gid_index, old.pkey_index) != (now.gid_index, now.pkey_index);
        if change.is_none() && !is_moved {
            return;
        }
        if (old.gid, old.lid, old.pkey) != (now.gid, now.lid, now.pkey)
            || old.gid_type != now.gid_type
        {
            self.info.replace(DeviceInfo {
                gid: now.gid,
                lid: now.lid,
                roce,
                pkey: now.pkey,
                ..self.info().clone()
            });
        }
        self.port.replace(now);
        if let Some(change) = change {
            let failure = failures.loses(change);
            tracing::info!("{failure}");
            drop(failures);
            self.end_connections(version);
        }
    }

    /// Ends the connections that were begun before this version of the port. The program is told of each.
    fn end_connections(&self, version: u64) {
        let all: Vec<_> = locked(&self.lives)
            .iter()
            .filter_map(|(qpn, live)| Some((*qpn, live.life.upgrade()?, live.qp.upgrade()?)))
            .collect();
        for (qpn, life, qp) in all {
            if !life.is_of_port_before(version) {
                continue;
            }
            // Its requests are flushed, which wakes whoever waits for them.
            if let Err(error) = qp.fail() {
                tracing::debug!(%qpn, %error, "a queue pair cannot be moved to the error state");
            }
            if life.end() {
                self.tell(AsyncEvent::QpFatal(qpn));
            }
        }
    }
}

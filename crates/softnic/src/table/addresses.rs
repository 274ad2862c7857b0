//! Addresses of queue pairs: soft hosts and their GIDs, contexts within a host, slots within a context.

use headworks_shm::{HostKey, fnv1a};
use headworks_verbs::Gid;

use crate::table::rows::MAX_QP;

/// The soft host of a device named `soft` without a host.
pub const DEFAULT_HOST: &str = "h1";

/// Bits of a QPN that number a queue pair within its context: its slot and two bits of its generation.
const QPN_BITS: u32 = 14;

/// Identifies a context in the registry: key of its soft host, and index within that host.
pub(crate) type PeerKey = (u64, u16);

/// Returns the key of a soft host: the hash of its name.
pub(crate) fn host_key(name: &str) -> HostKey {
    HostKey(fnv1a(name.as_bytes()))
}

/// Returns the key of the soft host that a GID names.
pub(crate) fn host_of(gid: Gid) -> u64 {
    let mut key = [0; 8];
    key.copy_from_slice(&gid.0[8..]);
    u64::from_le_bytes(key)
}

/// Returns the GID of a soft host: a unique-local prefix and the host's key.
pub(crate) fn gid_of(host: HostKey) -> Gid {
    let mut gid = [0xfd, b'h', b'w', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    gid[8..].copy_from_slice(&host.0.to_le_bytes());
    Gid(gid)
}

/// Returns the QPN of the queue pair in `slot` of the context `index`.
pub(crate) fn qpn(index: u16, slot: usize, generation: u64) -> u32 {
    // QPNs 0 and 1 are reserved, so slots 0 and 1 never use the generation bits 0.
    let turn = match slot {
        0 | 1 => 1 + generation as u32 % 3,
        _ => generation as u32 & 3,
    };
    let number = slot as u32 | turn << 12;
    u32::from(index) << QPN_BITS | number
}

/// Returns the registry key of the context that owns queue pair `qpn` of `host`.
pub(crate) const fn key_of(host: u64, qpn: u32) -> PeerKey {
    (host, (qpn >> QPN_BITS) as u16)
}

/// Returns the slot of a queue pair in its context's table.
pub(crate) const fn slot_of(qpn: u32) -> usize {
    qpn as usize % MAX_QP
}

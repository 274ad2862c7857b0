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

/// The first bytes of a GID that holds the IPv4 address of a soft host: 10.104.119.N stands for the soft host `hN`.
const IPV4: [u8; 15] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 104, 119];

/// Returns the GID with the IPv4 address of a soft host. Only `h1` to `h255` have one.
pub(crate) fn ipv4_gid(host: &str) -> Option<Gid> {
    let number: u8 = host.strip_prefix('h')?.parse().ok()?;
    // Not `h0`, `h01` or `h+1`.
    if number == 0 || numbered_host(number) != host_key(host) {
        return None;
    }
    let mut gid = [0; 16];
    gid[..15].copy_from_slice(&IPV4);
    gid[15] = number;
    Some(Gid(gid))
}

/// Returns the key of the soft host `hN`.
fn numbered_host(number: u8) -> HostKey {
    let digits = [number / 100, number / 10 % 10, number % 10].map(|digit| b'0' + digit);
    let leading = digits.iter().take(2).take_while(|digit| **digit == b'0');
    let from = leading.count();
    let mut name = [b'h'; 4];
    name[1..4 - from].copy_from_slice(&digits[from..]);
    HostKey(fnv1a(&name[..4 - from]))
}

/// Returns whether a GID holds an IPv4 address of a soft host.
pub(crate) fn is_ipv4(gid: Gid) -> bool {
    gid.0.starts_with(&IPV4)
}

/// Returns the key of the soft host that a GID names.
pub(crate) fn host_of(gid: Gid) -> u64 {
    if is_ipv4(gid) {
        return numbered_host(gid.0[15]).0;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_gids_of_a_numbered_host_lead_to_it() {
        for number in 1..=u8::MAX {
            let name = format!("h{number}");
            let key = host_key(&name).0;
            assert_eq!(ipv4_gid(&name).map(host_of), Some(key));
            assert_eq!(host_of(gid_of(host_key(&name))), key);
        }
        for other in ["h0", "h01", "h256", "h+1", "h", "x1"] {
            assert_eq!(ipv4_gid(other), None);
        }
    }
}

//! Parses the bytes of a packet, which may be anything, into its flow.

use super::FlowKey;

/// Type of the header that a packet begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// An Ethernet header.
    Ethernet,
    /// The IP header itself.
    Ip,
    /// Linux's header for packets captured on the interface "any" (cooked, SLL).
    Cooked,
    /// The second version of that header (SLL2), which includes the interface.
    Cooked2,
}

impl LinkType {
    /// Returns the link type with this number in tcpdump.org's registry.
    pub fn numbered(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Ethernet),
            // 101 is used in files. BSD uses 12. 228 and 229 are IPv4 only and IPv6 only.
            12 | 101 | 228 | 229 => Some(Self::Ip),
            113 => Some(Self::Cooked),
            276 => Some(Self::Cooked2),
            _ => None,
        }
    }
}

/// The packet is not IP, so its flow is unknown.
const NOT_IP: &str = "not of IP";
/// The capture holds too few bytes of the packet.
const CUT_OFF: &str = "recorded too short";
/// The packet's headers contradict each other.
const MALFORMED: &str = "malformed";
/// The link type of the packet's interface is not supported.
pub const OTHER_LINK: &str = "of another link type";

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherTypes of VLAN tags: 802.1Q, 802.1ad, and the one used before 802.1ad.
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// Maximum number of VLAN tags or IPv6 extension headers that are skipped before a packet counts as malformed.
const NESTED_MAX: usize = 8;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// Returns the flow of the packet that begins with `bytes`, or the reason why it is unknown.
pub fn flow(link: LinkType, bytes: &[u8]) -> Result<FlowKey, &'static str> {
    match link {
        LinkType::Ip => ip(bytes),
        LinkType::Ethernet => tagged(bytes, 12, 14),
        LinkType::Cooked => tagged(bytes, 14, 16),
        LinkType::Cooked2 => tagged(bytes, 0, 20),
    }
}

/// Parses a packet whose EtherType is at `ethertype`. At `at` follows what it announces: IP, or a VLAN tag
/// with the next EtherType.
fn tagged(bytes: &[u8], mut ethertype: usize, mut at: usize) -> Result<FlowKey, &'static str> {
    for _ in 0..=NESTED_MAX {
        match word16(bytes, ethertype)? {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => return ip(bytes.get(at..).ok_or(CUT_OFF)?),
            tag if ETHERTYPES_VLAN.contains(&tag) => (ethertype, at) = (at + 2, at + 4),
            _ => return Err(NOT_IP),
        }
    }
    Err(MALFORMED)
}

fn ip(bytes: &[u8]) -> Result<FlowKey, &'static str> {
    match bytes.first().ok_or(CUT_OFF)? >> 4 {
        4 => ipv4(bytes),
        6 => ipv6(bytes),
        _ => Err(NOT_IP),
    }
}

fn ipv4(bytes: &[u8]) -> Result<FlowKey, &'static str> {
    let header: &[u8; 20] = bytes.first_chunk().ok_or(CUT_OFF)?;
    let length = usize::from(header[0] & 0xf) * 4;
    if length < header.len() {
        return Err(MALFORMED);
    }
    let addresses = [12, 16].map(|at| [0, 1, 2, 3].map(|byte| header[at + byte]));
    let protocol = header[9];
    // A fragment that is not the first has no ports.
    let is_first = u16::from_be_bytes([header[6], header[7]]) & 0x1fff == 0;
    let ports = match is_first {
        true => ports(bytes, length, protocol)?,
        false => [0; 2],
    };
    Ok(FlowKey::v4(addresses, ports, protocol))
}

fn ipv6(bytes: &[u8]) -> Result<FlowKey, &'static str> {
    let header: &[u8; 40] = bytes.first_chunk().ok_or(CUT_OFF)?;
    let addresses = [8, 24].map(|at| {
        let mut address = [0; 16];
        address.copy_from_slice(&header[at..at + 16]);
        address
    });
    let (mut next, mut at) = (header[6], header.len());
    for _ in 0..NESTED_MAX {
        let extension = || word16(bytes, at).map(u16::to_be_bytes);
        match next {
            // Hop-by-hop options, routing, destination options.
            0 | 43 | 60 => {
                let [following, length] = extension()?;
                (next, at) = (following, at + (usize::from(length) + 1) * 8);
            }
            // Authentication.
            51 => {
                let [following, length] = extension()?;
                (next, at) = (following, at + (usize::from(length) + 2) * 4);
            }
            // A fragment that is not the first has no ports.
            44 if word16(bytes, at + 2)? & 0xfff8 != 0 => {
                return Ok(FlowKey::v6(addresses, [0; 2], bytes[at]));
            }
            44 => (next, at) = (bytes[at], at + 8),
            protocol => {
                let ports = ports(bytes, at, protocol)?;
                return Ok(FlowKey::v6(addresses, ports, protocol));
            }
        }
    }
    Err(MALFORMED)
}

/// Returns the ports at the start of the header of `protocol` at `at`; 0 if the protocol has none.
fn ports(bytes: &[u8], at: usize, protocol: u8) -> Result<[u16; 2], &'static str> {
    match protocol {
        TCP | UDP | SCTP => Ok([word16(bytes, at)?, word16(bytes, at + 2)?]),
        _ => Ok([0; 2]),
    }
}

fn word16(bytes: &[u8], at: usize) -> Result<u16, &'static str> {
    let word = bytes.get(at..at + 2).ok_or(CUT_OFF)?;
    Ok(u16::from_be_bytes([word[0], word[1]]))
}

#[cfg(test)]
pub(crate) mod tests;

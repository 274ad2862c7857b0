//! Tests with packets as they are on the wire, and with malformed ones.

use proptest::prelude::*;

use super::*;

/// Makes an IPv4 packet from 10.0.0.1 to 10.0.0.2, with `rest` behind its header.
pub(crate) fn v4(protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0];
    packet.extend_from_slice(&fragment.to_be_bytes());
    packet.extend_from_slice(&[64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend_from_slice(rest);
    packet
}

/// Makes an IPv6 packet from ::1 to ::2, with `rest` behind its header.
fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
    packet.extend_from_slice(&v6_address(1));
    packet.extend_from_slice(&v6_address(2));
    packet.extend_from_slice(rest);
    packet
}

fn v6_address(last: u8) -> [u8; 16] {
    let mut address = [0; 16];
    address[15] = last;
    address
}

/// Makes an Ethernet frame with these VLAN tags.
pub(crate) fn ethernet(tags: &[u16], ethertype: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xee; 12];
    for tag in tags {
        frame.extend_from_slice(&tag.to_be_bytes());
        frame.extend_from_slice(&[0, 7]);
    }
    frame.extend_from_slice(&ethertype.to_be_bytes());
    frame.extend_from_slice(rest);
    frame
}

const IPV4: u16 = ETHERTYPE_IPV4;
const IPV6: u16 = ETHERTYPE_IPV6;
/// Ports 1000 and 2000.
pub(crate) const PORTS: [u8; 4] = [3, 232, 7, 208];

fn key4(ports: [u16; 2], protocol: u8) -> FlowKey {
    FlowKey::v4([[10, 0, 0, 1], [10, 0, 0, 2]], ports, protocol)
}

fn key6(ports: [u16; 2], protocol: u8) -> FlowKey {
    FlowKey::v6([v6_address(1), v6_address(2)], ports, protocol)
}

#[test]
fn the_flow_is_found_whatever_is_around_it() {
    let found = |link, packet: &[u8], key| assert_eq!(flow(link, packet), Ok(key), "{packet:02x?}");
    let (tcp, ports) = (v4(TCP, 0, &PORTS), [1000, 2000]);
    let key = key4(ports, TCP);
    found(LinkType::Ip, &tcp, key);
    found(LinkType::Ethernet, &ethernet(&[], IPV4, &tcp), key);
    let tagged = ethernet(&[0x88a8, 0x8100], IPV4, &tcp);
    found(LinkType::Ethernet, &tagged, key);
    let cooked = [&[0; 14], &[8, 0][..], &tcp].concat();
    found(LinkType::Cooked, &cooked, key);
    let cooked = [&[8, 0][..], &[0; 18], &tcp].concat();
    found(LinkType::Cooked2, &cooked, key);
    let tagged = [&[0x81, 0][..], &[0; 18], &[0, 5, 8, 0], &tcp].concat();
    found(LinkType::Cooked2, &tagged, key);
    // IP options move the ports back.
    let mut optioned = v4(TCP, 0, &[&[1; 4], &PORTS[..]].concat());
    optioned[0] = 0x46;
    found(LinkType::Ip, &optioned, key);
    found(LinkType::Ip, &v4(UDP, 0, &PORTS), key4(ports, UDP));
    // ICMP and later fragments have no ports.
    found(LinkType::Ip, &v4(1, 0, &[8, 0, 1, 2]), key4([0; 2], 1));
    found(LinkType::Ip, &v4(UDP, 0x2000, &PORTS), key4(ports, UDP));
    found(LinkType::Ip, &v4(UDP, 0x2001, &[9; 8]), key4([0; 2], UDP));
    let later = v6(44, &[UDP, 0, 0, 9, 0, 0, 0, 0, 9, 9]);
    found(LinkType::Ip, &later, key6([0; 2], UDP));

    let (tcp, key) = (v6(TCP, &PORTS), key6(ports, TCP));
    found(LinkType::Ip, &tcp, key);
    found(LinkType::Ethernet, &ethernet(&[0x8100], IPV6, &tcp), key);
    let hop = [60, 0, 0, 0, 0, 0, 0, 0];
    let destination = [51, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let authentication = [44, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let fragment = [TCP, 0, 0, 1, 0, 0, 0, 0];
    let extended = [&hop[..], &destination, &authentication, &fragment, &PORTS].concat();
    found(LinkType::Ip, &v6(0, &extended), key);
}

#[test]
fn odd_packets_are_rejected_with_the_reason() {
    let odd = |link, packet: &[u8], odd| assert_eq!(flow(link, packet), Err(odd), "{packet:02x?}");
    odd(LinkType::Ethernet, &ethernet(&[], 0x0806, &[0; 28]), NOT_IP);
    let arp = [&[8, 6][..], &[0; 40]].concat();
    odd(LinkType::Cooked2, &arp, NOT_IP);
    odd(LinkType::Cooked2, &arp[..1], CUT_OFF);
    odd(
        LinkType::Cooked2,
        &[&[8, 0][..], &[0; 17]].concat(),
        CUT_OFF,
    );
    odd(LinkType::Ip, &[0x55; 40], NOT_IP);
    // A header length shorter than the header; extension headers and tags without an end.
    let tcp = v4(TCP, 0, &PORTS);
    odd(LinkType::Ip, &[&[0x44], &tcp[1..]].concat(), MALFORMED);
    odd(LinkType::Ip, &v6(0, &[0; 200]), MALFORMED);
    let tagged = ethernet(&[0x8100; 20], IPV4, &tcp);
    odd(LinkType::Ethernet, &tagged, MALFORMED);
    // Every proper prefix of a packet with ports is too short.
    let tagged = ethernet(&[0x8100], IPV4, &tcp);
    let extended = v6(0, &[TCP, 0, 0, 0, 0, 0, 0, 0, 3, 232, 7, 208]);
    for (link, whole) in [(LinkType::Ethernet, tagged), (LinkType::Ip, extended)] {
        for len in 0..whole.len() {
            odd(link, &whole[..len], CUT_OFF);
        }
    }
}

#[test]
fn link_types_have_their_registered_numbers() {
    for (number, link) in [
        (1, LinkType::Ethernet),
        (12, LinkType::Ip),
        (101, LinkType::Ip),
        (113, LinkType::Cooked),
        (228, LinkType::Ip),
        (229, LinkType::Ip),
        (276, LinkType::Cooked2),
    ] {
        assert_eq!(LinkType::numbered(number), Some(link));
    }
    assert_eq!([0, 147].map(LinkType::numbered), [None; 2]);
}

proptest! {
    #[test]
    fn any_bytes_have_a_flow_or_are_odd(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
        start in 0u8..4,
        (ethertype, version) in prop_oneof![Just(([8, 0], 0x45)), Just(([0x86, 0xdd], 0x60))],
    ) {
        // Most inputs get past the first check.
        if start > 0 && bytes.len() > 14 {
            bytes[12..14].copy_from_slice(&ethertype);
            bytes[14] = version + start;
        }
        for link in [LinkType::Ethernet, LinkType::Ip, LinkType::Cooked, LinkType::Cooked2] {
            let _ = flow(link, &bytes);
        }
    }
}

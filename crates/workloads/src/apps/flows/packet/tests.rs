//! Packets as they are on the wire, and as they are not.

use proptest::prelude::*;

use super::*;

/// An IPv4 packet from 10.0.0.1 to 10.0.0.2 with this behind its header.
pub(crate) fn v4(protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0];
    packet.extend_from_slice(&fragment.to_be_bytes());
    packet.extend_from_slice(&[64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend_from_slice(rest);
    packet
}

/// An IPv6 packet from ::1 to ::2.
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

/// An Ethernet frame with these tags.
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

/// Ports 1000 and 2000.
pub(crate) const PORTS: [u8; 4] = [3, 232, 7, 208];

fn key4(ports: [u16; 2], protocol: u8) -> FlowKey {
    FlowKey::v4([[10, 0, 0, 1], [10, 0, 0, 2]], ports, protocol)
}

fn key6(ports: [u16; 2], protocol: u8) -> FlowKey {
    FlowKey::v6([v6_address(1), v6_address(2)], ports, protocol)
}

#[test]
fn flows_of_ipv4_whatever_is_around_them() {
    let tcp = v4(TCP, 0, &PORTS);
    let expected = Ok(key4([1000, 2000], TCP));
    assert_eq!(flow(Link::Ip, &tcp), expected);
    assert_eq!(flow(Link::Ethernet, &ethernet(&[], 0x0800, &tcp)), expected);
    let twice = ethernet(&[0x88a8, 0x8100], 0x0800, &tcp);
    assert_eq!(flow(Link::Ethernet, &twice), expected);
    let cooked = [&[0; 14], &[8, 0][..], &tcp].concat();
    assert_eq!(flow(Link::Cooked, &cooked), expected);
    let cooked = [&[8, 0][..], &[0; 18], &tcp].concat();
    assert_eq!(flow(Link::Cooked2, &cooked), expected);
    let tagged = [&[0x81, 0][..], &[0; 18], &[0, 5, 8, 0], &tcp].concat();
    assert_eq!(flow(Link::Cooked2, &tagged), expected);
    assert_eq!(flow(Link::Cooked2, &cooked[..19]), Err(Odd::CutOff));
    let arp = [&[8, 6][..], &[0; 40]].concat();
    assert_eq!(flow(Link::Cooked2, &arp), Err(Odd::NotIp));
    let udp = v4(UDP, 0, &PORTS);
    assert_eq!(flow(Link::Ip, &udp), Ok(key4([1000, 2000], UDP)));
    // Options of IP push the ports on.
    let mut optioned = v4(TCP, 0, &[&[1; 4], &PORTS[..]].concat());
    optioned[0] = 0x46;
    assert_eq!(flow(Link::Ip, &optioned), expected);
}

#[test]
fn what_has_no_ports_has_none() {
    assert_eq!(
        flow(Link::Ip, &v4(1, 0, &[8, 0, 1, 2])),
        Ok(key4([0; 2], 1))
    );
    let first = v4(UDP, 0x2000, &PORTS);
    assert_eq!(flow(Link::Ip, &first), Ok(key4([1000, 2000], UDP)));
    let later = v4(UDP, 0x2001, &[9; 8]);
    assert_eq!(flow(Link::Ip, &later), Ok(key4([0; 2], UDP)));
    let later = v6(44, &[UDP, 0, 0, 9, 0, 0, 0, 0, 9, 9]);
    assert_eq!(flow(Link::Ip, &later), Ok(key6([0; 2], UDP)));
}

#[test]
fn extension_headers_of_ipv6_are_passed_over() {
    let expected = Ok(key6([1000, 2000], TCP));
    assert_eq!(flow(Link::Ip, &v6(TCP, &PORTS)), expected);
    let frame = ethernet(&[0x8100], 0x86dd, &v6(TCP, &PORTS));
    assert_eq!(flow(Link::Ethernet, &frame), expected);
    let hop = [60, 0, 0, 0, 0, 0, 0, 0];
    let destination = [51, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let authentication = [44, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let fragment = [TCP, 0, 0, 1, 0, 0, 0, 0];
    let rest = [&hop[..], &destination, &authentication, &fragment, &PORTS].concat();
    assert_eq!(flow(Link::Ip, &v6(0, &rest)), expected);
    // Without an end.
    assert_eq!(flow(Link::Ip, &v6(0, &[0; 200])), Err(Odd::Malformed));
}

#[test]
fn odd_packets_say_what_is_odd() {
    let arp = ethernet(&[], 0x0806, &[0; 28]);
    assert_eq!(flow(Link::Ethernet, &arp), Err(Odd::NotIp));
    assert_eq!(flow(Link::Ip, &[0x55; 40]), Err(Odd::NotIp));
    let mut short = v4(TCP, 0, &PORTS);
    short[0] = 0x44;
    assert_eq!(flow(Link::Ip, &short), Err(Odd::Malformed));
    let endless = ethernet(&[0x8100; 20], 0x0800, &v4(TCP, 0, &PORTS));
    assert_eq!(flow(Link::Ethernet, &endless), Err(Odd::Malformed));
    // Every beginning of a packet with ports is too short.
    let whole = ethernet(&[0x8100], 0x0800, &v4(TCP, 0, &PORTS));
    for len in 0..whole.len() {
        assert_eq!(
            flow(Link::Ethernet, &whole[..len]),
            Err(Odd::CutOff),
            "{len}"
        );
    }
    let whole = v6(0, &[TCP, 0, 0, 0, 0, 0, 0, 0, 3, 232, 7, 208]);
    for len in 0..whole.len() {
        assert_eq!(flow(Link::Ip, &whole[..len]), Err(Odd::CutOff), "{len}");
    }
}

#[test]
fn numbers_of_link_types() {
    let numbers = [0, 1, 12, 101, 113, 228, 229, 147, 276].map(Link::numbered);
    let ip = Some(Link::Ip);
    let expected = [
        None,
        Some(Link::Ethernet),
        ip,
        ip,
        Some(Link::Cooked),
        ip,
        ip,
        None,
        Some(Link::Cooked2),
    ];
    assert_eq!(numbers, expected);
}

proptest! {
    #[test]
    fn any_bytes_have_a_flow_or_are_odd(
        bytes in proptest::collection::vec(any::<u8>(), 0..120),
        start in 0usize..4,
        ipv6 in any::<bool>(),
    ) {
        let mut bytes = bytes;
        // Mostly something that goes on past the first check.
        if start > 0 && bytes.len() > 14 {
            let ethertype = if ipv6 { [0x86, 0xdd] } else { [8, 0] };
            bytes[12..14].copy_from_slice(&ethertype);
            bytes[14] = if ipv6 { 0x60 } else { 0x45 + start as u8 };
        }
        for link in [Link::Ethernet, Link::Ip, Link::Cooked, Link::Cooked2] {
            let _ = flow(link, &bytes);
        }
    }
}

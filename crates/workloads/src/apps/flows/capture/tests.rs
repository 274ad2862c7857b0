//! Files of both formats, whole, cut off and wrong.

use proptest::prelude::*;

use super::*;
use crate::apps::flows::packet::tests::{PORTS, ethernet, v4};
use crate::apps::flows::{Mix, Synthetic};

/// Bytes of a word in the file's order.
fn word(big: bool, word: u32) -> [u8; 4] {
    if big {
        word.to_be_bytes()
    } else {
        word.to_le_bytes()
    }
}

fn words(big: bool, all: &[u32]) -> Vec<u8> {
    all.iter().flat_map(|each| word(big, *each)).collect()
}

/// A pcap file of these packets: second, fraction, bytes, bytes on the wire.
fn pcap(big: bool, magic: u32, link: u32, packets: &[(u32, u32, &[u8], u32)]) -> Vec<u8> {
    let mut file = words(big, &[magic, 0x0002_0004, 0, 0, 65535, link]);
    for (seconds, fraction, bytes, size) in packets {
        file.extend(words(
            big,
            &[*seconds, *fraction, bytes.len() as u32, *size],
        ));
        file.extend_from_slice(bytes);
    }
    file
}

fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let length = word(big, padded as u32 + 12);
    let mut block = [&word(big, kind)[..], &length, body].concat();
    block.resize(8 + padded, 0);
    block.extend_from_slice(&length);
    block
}

fn section(big: bool) -> Vec<u8> {
    block(
        big,
        0x0a0d_0d0a,
        &words(big, &[0x1a2b_3c4d, 0x0001_0000, u32::MAX, u32::MAX]),
    )
}

fn interface(big: bool, link: u16, options: &[u8]) -> Vec<u8> {
    let half = |half: u16| {
        if big {
            half.to_be_bytes()
        } else {
            half.to_le_bytes()
        }
    };
    let body = [&half(link)[..], &[0; 6], options].concat();
    block(big, 1, &body)
}

fn enhanced(big: bool, interface: u32, time: u64, bytes: &[u8], size: u32) -> Vec<u8> {
    let head = [
        interface,
        (time >> 32) as u32,
        time as u32,
        bytes.len() as u32,
        size,
    ];
    block(big, 6, &[&words(big, &head)[..], bytes].concat())
}

/// The block of an old program; its interface, and how many packets were lost.
fn old(big: bool, [interface, lost]: [u16; 2], time: u64, bytes: &[u8], size: u32) -> Vec<u8> {
    let first = match big {
        true => u32::from(interface) << 16 | u32::from(lost),
        false => u32::from(lost) << 16 | u32::from(interface),
    };
    let mut block = enhanced(big, first, time, bytes, size);
    block[..4].copy_from_slice(&word(big, 2));
    block
}

fn tcp() -> Vec<u8> {
    ethernet(&[], 0x0800, &v4(6, 0, &PORTS))
}

fn key() -> FlowKey {
    FlowKey::v4([[10, 0, 0, 1], [10, 0, 0, 2]], [1000, 2000], 6)
}

fn read(file: &[u8]) -> Result<Capture, Fault> {
    Capture::read_from(file, usize::MAX)
}

fn said(file: &[u8]) -> String {
    read(file)
        .map(|capture| capture.packets.len())
        .expect_err("a fault")
        .to_string()
}

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;

#[test]
fn pcap_in_both_byte_orders_and_units() {
    for (big, magic, fraction_ns) in [
        (true, MICROSECONDS, 1000),
        (false, MICROSECONDS, 1000),
        (true, NANOSECONDS, 1),
        (false, NANOSECONDS, 1),
    ] {
        let file = pcap(big, magic, 1, &[(2, 7, &tcp(), 1514), (3, 0, &tcp(), 60)]);
        let capture = read(&file).expect("a capture");
        let packet = |time_ns, size_bytes| Packet {
            key: key(),
            time_ns,
            size_bytes,
        };
        let expected = [
            packet(2_000_000_000 + 7 * fraction_ns, 1514),
            packet(3_000_000_000, 60),
        ];
        assert_eq!(capture.packets, expected);
        assert_eq!(capture.note(), None);
    }
}

#[test]
fn pcapng_with_interfaces_units_and_what_is_passed_over() {
    for big in [true, false] {
        let half = |half: u16| {
            if big {
                half.to_be_bytes()
            } else {
                half.to_le_bytes()
            }
        };
        let nanoseconds = [
            &half(2)[..],
            &half(3),
            b"eth\0",
            &half(9),
            &half(1),
            &[9, 0, 0, 0],
        ]
        .concat();
        let ip = &tcp()[14..];
        let file = [
            section(big),
            interface(big, 1, &nanoseconds),
            interface(big, 101, &[]),
            interface(big, 9999, &[]),
            interface(
                big,
                101,
                &[&half(9)[..], &half(1), &[0x8a, 0, 0, 0]].concat(),
            ),
            block(big, 5, &[1; 20]),
            enhanced(big, 0, 5, &tcp(), 100),
            enhanced(big, 1, 6, ip, 200),
            enhanced(big, 2, 6, &tcp(), 300),
            enhanced(big, 3, 512, ip, 350),
            // Packets lost before it are no part of its interface.
            old(big, [1, 77], 8, ip, 370),
            block(big, 3, &[&word(big, 400)[..], &tcp()].concat()),
            // Another section, in the other order: its interfaces are others.
            section(!big),
            interface(!big, 101, &[]),
            enhanced(!big, 0, 7, ip, 500),
        ]
        .concat();
        let capture = read(&file).expect("a capture");
        let found: Vec<_> = capture
            .packets
            .iter()
            .map(|p| (p.time_ns, p.size_bytes))
            .collect();
        let half_a_second = (500_000_000, 350);
        let expected = [
            (5, 100),
            (6000, 200),
            half_a_second,
            (8000, 370),
            (0, 400),
            (7000, 500),
        ];
        assert_eq!(found, expected);
        assert!(capture.packets.iter().all(|packet| packet.key == key()));
        assert_eq!(
            capture.note().as_deref(),
            Some("1 packets skipped: of another link type")
        );
    }
}

#[test]
fn odd_packets_are_counted_and_noted() {
    let arp = ethernet(&[], 0x0806, &[0; 28]);
    let mut odd = tcp();
    odd[14] = 0x41;
    let packets: [(u32, u32, &[u8], u32); 5] = [
        (1, 0, &arp, 42),
        (1, 0, &tcp()[..36], 60),
        (1, 0, &odd, 60),
        (1, 0, &[], 60),
        (1, 0, &tcp(), 60),
    ];
    let mut file = pcap(false, MICROSECONDS, 1, &packets);
    file.truncate(file.len() - 4);
    let complaint = said(&file);
    assert_eq!(complaint, "no packet of IP in it (4 others)");
    let whole = pcap(false, MICROSECONDS, 1, &packets);
    let capture = read(&[&whole[..], &[0; 5]].concat()).expect("a capture");
    assert_eq!(capture.packets.len(), 1);
    let note = "1 packets skipped: not of IP; 2 packets skipped: recorded too short; \
                1 packets skipped: malformed; the file ends within a packet";
    assert_eq!(capture.note().as_deref(), Some(note));
}

#[test]
fn what_is_no_capture_says_what_is_wrong() {
    assert_eq!(
        said(b"#!/bin/sh"),
        "begins with 0x23212f62: neither pcap nor pcapng"
    );
    assert_eq!(said(b""), "malformed: too short to be a capture");
    assert_eq!(said(b"\xa1\xb2\xc3\xd4\0\0"), "ends too early");
    assert_eq!(
        said(&pcap(true, MICROSECONDS, 1, &[])),
        "no packet of IP in it (0 others)"
    );
    let link = said(&pcap(true, MICROSECONDS, 127, &[]));
    assert!(link.starts_with("link type 127: 1 (Ethernet), "), "{link}");
    let huge = words(false, &[MICROSECONDS, 0, 0, 0, 0, 1, 0, 0, u32::MAX, 60]);
    assert_eq!(said(&huge), "malformed: a packet of more than 256 KiB");
    let big = true;
    let with = |blocks: &[u8]| said(&[&section(big)[..], blocks].concat());
    let packet = enhanced(big, 0, 0, &tcp(), 60);
    assert_eq!(
        with(&packet),
        format!(
            "malformed: {}",
            "a packet of an interface that was not described"
        )
    );
    let mut longer = [interface(big, 1, &[]), packet].concat();
    longer[20 + 8 + 12..][..4].copy_from_slice(&word(big, 1000));
    assert_eq!(with(&longer), "malformed: a packet longer than its block");
    let mut differs = block(big, 5, &[]);
    differs[8] = 1;
    assert_eq!(
        with(&differs),
        "malformed: a block with two lengths that differ"
    );
    assert_eq!(
        with(&words(big, &[5, 8])),
        "malformed: a block shorter than its own header"
    );
    assert_eq!(
        with(&words(big, &[5, 14])),
        "malformed: a block of no whole words"
    );
    assert_eq!(
        with(&words(big, &[5, 2 << 20])),
        "malformed: a block of more than 1 MiB"
    );
    let blind = block(big, 0x0a0d_0d0a, &[0; 16]);
    assert_eq!(said(&blind), "malformed: a section without a byte order");
}

#[test]
fn an_error_names_the_file() {
    let error = Capture::read("no/such/file".as_ref(), 1).expect_err("no file");
    assert!(error.to_string().starts_with("no/such/file: "), "{error}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace");
    std::fs::write(
        &path,
        pcap(false, NANOSECONDS, 101, &[(0, 0, &tcp()[14..], 9)]),
    )
    .expect("writes");
    assert_eq!(Capture::read(&path, 1).expect("reads").packets.len(), 1);
}

#[test]
fn no_more_is_read_than_was_asked_for() {
    let mut file = pcap(
        false,
        NANOSECONDS,
        1,
        &[(0, 0, &tcp(), 1), (0, 1, &tcp(), 2)],
    );
    file.extend_from_slice(b"whatever comes behind");
    let capture = Capture::read_from(&file[..], 2).expect("a capture");
    assert_eq!((capture.packets.len(), capture.ends_early), (2, false));
}

#[test]
fn a_replay_goes_round_and_time_goes_on() {
    let packets: [(u32, u32, &[u8], u32); 3] =
        [(9, 5, &tcp(), 60), (9, 8, &tcp(), 61), (9, 7, &tcp(), 62)];
    let capture = read(&pcap(false, NANOSECONDS, 1, &packets)).expect("a capture");
    let mut replay = Replay::new(Arc::new(capture)).expect("a packet");
    let mut again = replay.clone();
    let records: Vec<_> = (0..7).map(|_| replay.record()).collect();
    let told: Vec<_> = records
        .iter()
        .map(|r| (r.sequence, r.time_ns, r.size_bytes))
        .collect();
    let expected = [
        (0, 0, 60),
        (1, 3, 61),
        (2, 2, 62),
        (3, 4, 60),
        (4, 7, 61),
        (5, 6, 62),
        (6, 8, 60),
    ];
    assert_eq!(told, expected);
    let twice: Vec<_> = (0..7).map(|_| again.record()).collect();
    assert_eq!(twice, records);
}

#[test]
fn what_was_drawn_is_replayed() {
    let traffic = Synthetic::new(&Mix::default());
    let capture = Capture::drawn(&mut traffic.clone(), 1000);
    let mut replay = Replay::new(Arc::new(capture)).expect("packets");
    let mut source = traffic.clone();
    let mut last = source.record();
    assert_eq!(replay.record(), last);
    for _ in 1..1000 {
        last = source.record();
        assert_eq!(replay.record(), last);
    }
    let again = replay.record();
    assert_eq!(
        (again.key, again.sequence),
        (traffic.clone().record().key, 1000)
    );
    assert_eq!(again.time_ns, last.time_ns + 1);
}

proptest! {
    #[test]
    fn any_file_is_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        start in 0usize..4,
        big in any::<bool>(),
    ) {
        let beginning = match start {
            0 => Vec::new(),
            1 => pcap(big, MICROSECONDS, 1, &[(0, 0, &tcp(), 60)]),
            2 => section(big),
            _ => [section(big), interface(big, 1, &[])].concat(),
        };
        let _ = read(&[beginning, bytes].concat());
    }

    #[test]
    fn a_file_cut_off_or_changed_anywhere_is_read_or_refused(
        at in any::<proptest::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(), big in any::<bool>(),
    ) {
        let file = [section(big), interface(big, 1, &[0, 9, 0, 1, 6, 0, 0, 0]), enhanced(big, 0, 9, &tcp(), 60)];
        let mut file = file.concat();
        let at = at.index(file.len());
        match cut {
            true => file.truncate(at),
            false => file[at] = byte,
        }
        let _ = read(&file);
    }
}

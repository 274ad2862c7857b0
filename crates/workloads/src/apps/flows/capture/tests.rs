//! Files of both formats, whole, cut off and wrong.

use proptest::prelude::*;

use super::*;
use crate::apps::flows::packet::tests::{PORTS, ethernet, v4};
use crate::apps::flows::{Mix, Synthetic};

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;

/// A byte order.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Big,
    Little,
}

use Order::{Big, Little};

impl Order {
    fn half(self, half: u16) -> [u8; 2] {
        match self {
            Big => half.to_be_bytes(),
            Little => half.to_le_bytes(),
        }
    }

    fn word(self, word: u32) -> [u8; 4] {
        match self {
            Big => word.to_be_bytes(),
            Little => word.to_le_bytes(),
        }
    }

    fn words(self, all: &[u32]) -> Vec<u8> {
        all.iter().flat_map(|each| self.word(*each)).collect()
    }

    /// A pcap file of these packets: second, fraction, bytes, bytes on the wire.
    fn pcap(self, magic: u32, link: u32, packets: &[(u32, u32, &[u8], u32)]) -> Vec<u8> {
        let mut file = self.words(&[magic, 0x0002_0004, 0, 0, 65535, link]);
        for (seconds, fraction, bytes, size) in packets {
            file.extend(self.words(&[*seconds, *fraction, bytes.len() as u32, *size]));
            file.extend_from_slice(bytes);
        }
        file
    }

    fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let padded = body.len().next_multiple_of(4);
        let length = self.word(padded as u32 + 12);
        let mut block = [&self.word(kind)[..], &length, body].concat();
        block.resize(8 + padded, 0);
        block.extend_from_slice(&length);
        block
    }

    fn section(self) -> Vec<u8> {
        let body = self.words(&[0x1a2b_3c4d, 0x0001_0000, u32::MAX, u32::MAX]);
        self.block(0x0a0d_0d0a, &body)
    }

    fn interface(self, link: u16, options: &[u8]) -> Vec<u8> {
        self.block(1, &[&self.half(link)[..], &[0; 6], options].concat())
    }

    /// The option that says an interface's unit of time.
    fn resolution(self, unit: u8) -> Vec<u8> {
        [&self.half(9)[..], &self.half(1), &[unit, 0, 0, 0]].concat()
    }

    fn enhanced(self, interface: u32, time: u64, bytes: &[u8], size: u32) -> Vec<u8> {
        let [high, low] = [(time >> 32) as u32, time as u32];
        let head = self.words(&[interface, high, low, bytes.len() as u32, size]);
        self.block(6, &[&head[..], bytes].concat())
    }

    /// The block of an old program: its interface, and how many packets were lost.
    fn old(self, [interface, lost]: [u16; 2], time: u64, bytes: &[u8], size: u32) -> Vec<u8> {
        let mut block = self.enhanced(0, time, bytes, size);
        block[..4].copy_from_slice(&self.word(2));
        block[8..10].copy_from_slice(&self.half(interface));
        block[10..12].copy_from_slice(&self.half(lost));
        block
    }
}

fn tcp() -> Vec<u8> {
    ethernet(&[], 0x0800, &v4(6, 0, &PORTS))
}

fn read(file: &[u8]) -> Result<Capture, Fault> {
    Capture::read_from(file, usize::MAX)
}

#[test]
fn pcap_in_both_byte_orders_and_units() {
    let key = FlowKey::v4([[10, 0, 0, 1], [10, 0, 0, 2]], [1000, 2000], 6);
    for order in [Big, Little] {
        for (magic, fraction_ns) in [(MICROSECONDS, 1000), (NANOSECONDS, 1)] {
            let packets: [(_, _, &[u8], _); 2] = [(2, 7, &tcp(), 1514), (3, 0, &tcp(), 60)];
            let capture = read(&order.pcap(magic, 1, &packets)).expect("a capture");
            let packet = |time_ns, size_bytes| Packet {
                key,
                time_ns,
                size_bytes,
            };
            let first = packet(2_000_000_000 + 7 * fraction_ns, 1514);
            assert_eq!(capture.packets, [first, packet(3_000_000_000, 60)]);
            assert_eq!(capture.note(), None);
        }
    }
}

#[test]
fn pcapng_with_interfaces_units_and_blocks_that_are_skipped() {
    for (order, other) in [(Big, Little), (Little, Big)] {
        let name = [&order.half(2)[..], &order.half(3), b"eth\0"].concat();
        let named = [name, order.resolution(9)].concat();
        let ip = &tcp()[14..];
        let file = [
            order.section(),
            order.interface(1, &named),
            order.interface(101, &[]),
            order.interface(9999, &[]),
            order.interface(101, &order.resolution(0x8a)),
            order.block(5, &[1; 20]),
            // A block of names without any.
            order.block(4, &[]),
            order.enhanced(0, 5, &tcp(), 100),
            order.enhanced(1, 6, ip, 200),
            order.enhanced(2, 6, &tcp(), 300),
            order.enhanced(3, 512, ip, 350),
            // Packets lost before it are no part of its interface.
            order.old([1, 77], 8, ip, 370),
            order.block(3, &[&order.word(400)[..], &tcp()].concat()),
            // Another section, in the other order: its interfaces are others.
            other.section(),
            other.interface(101, &[]),
            other.enhanced(0, 7, ip, 500),
        ];
        let capture = read(&file.concat()).expect("a capture");
        let found = capture.packets.iter();
        let found: Vec<_> = found.map(|p| (p.time_ns, p.size_bytes)).collect();
        let half_a_second = 500_000_000;
        let expected = [
            (5, 100),
            (6000, 200),
            (half_a_second, 350),
            (8000, 370),
            (0, 400),
            (7000, 500),
        ];
        assert_eq!(found, expected);
        let key = capture.packets[0].key;
        assert!(capture.packets.iter().all(|packet| packet.key == key));
        let note = "1 packets skipped: of another link type";
        assert_eq!(capture.note().as_deref(), Some(note));
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
    let whole = Little.pcap(MICROSECONDS, 1, &packets);
    let capture = read(&[&whole[..], &[0; 5]].concat()).expect("a capture");
    assert_eq!((capture.packets.len(), capture.skipped()), (1, 4));
    let note = "1 packets skipped: not of IP; 2 packets skipped: recorded too short; \
                1 packets skipped: malformed; the file ends within a packet";
    assert_eq!(capture.note().as_deref(), Some(note));
    let error = read(&whole[..whole.len() - 4]).expect_err("no packet");
    assert_eq!(error.to_string(), "no packet of IP in it (4 others)");
}

#[test]
fn a_file_that_is_no_capture_says_what_is_wrong() {
    let says = |file: &[u8], expected: &str| {
        let error = read(file).map(|capture| capture.packets.len());
        assert_eq!(error.expect_err(expected).to_string(), expected);
    };
    let script = "begins with 0x23212f62: neither pcap nor pcapng";
    says(b"#!/bin/sh", script);
    says(b"\xa1\xb2\xc3\xd4\0\0", "ends too early");
    says(&Big.section()[..9], "ends too early");
    let nothing = "no packet of IP in it (0 others)";
    says(&Big.pcap(MICROSECONDS, 1, &[]), nothing);
    let link = "link type 127: 1 (Ethernet), 12, 101, 228 or 229 (IP), 113 and 276 (Linux cooked) are known";
    says(&Big.pcap(MICROSECONDS, 127, &[]), link);

    let malformed = |file: &[u8], what: &str| says(file, &format!("malformed: {what}"));
    malformed(b"", "too short to be a capture");
    let huge = [MICROSECONDS, 0, 0, 0, 0, 1, 0, 0, u32::MAX, 60];
    malformed(&Big.words(&huge), "a packet of more than 256 KiB");
    let blind = Big.block(0x0a0d_0d0a, &[0; 16]);
    malformed(&blind, "a section without a byte order");
    let ng = |blocks: &[u8], what| malformed(&[&Big.section(), blocks].concat(), what);
    let (interface, packet) = (Big.interface(1, &[]), Big.enhanced(0, 0, &tcp(), 60));
    ng(&packet, "a packet of an interface that was not described");
    let mut longer = [&interface[..], &packet].concat();
    longer[20 + 8 + 12..][..4].copy_from_slice(&Big.word(1000));
    ng(&longer, "a packet longer than its block");
    let mut differs = Big.block(5, &[]);
    differs[8] = 1;
    ng(&differs, "a block with two lengths that differ");
    ng(&Big.block(1, &[]), "a block shorter than its own header");
    ng(&interface.repeat(4097), "more than 4096 interfaces");
    for (length, what) in [
        (8, "a block shorter than its own header"),
        (14, "a block of no whole words"),
        (2 << 20, "a block of more than 1 MiB"),
    ] {
        // Also a block whose kind pcap-parser gives a shorter header.
        for kind in [5, 9] {
            ng(&Big.words(&[kind, length, 0, 0]), what);
        }
    }
}

#[test]
fn an_error_names_the_file() {
    let error = Capture::read("no/such/file".as_ref(), 1).expect_err("no file");
    assert!(error.to_string().starts_with("no/such/file: "), "{error}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace");
    let file = Little.pcap(NANOSECONDS, 101, &[(0, 0, &tcp()[14..], 9)]);
    std::fs::write(&path, file).expect("writes");
    assert_eq!(Capture::read(&path, 1).expect("reads").packets.len(), 1);
}

#[test]
fn no_more_is_read_than_was_asked_for() {
    let packets: [(_, _, &[u8], _); 2] = [(0, 0, &tcp(), 1), (0, 1, &tcp(), 2)];
    let file = Little.pcap(NANOSECONDS, 1, &packets);
    let file = [&file[..], b"whatever comes behind"].concat();
    let capture = Capture::read_from(&file[..], 2).expect("a capture");
    assert_eq!((capture.packets.len(), capture.ends_early), (2, false));
}

#[test]
fn a_replay_goes_round_and_time_goes_on() {
    let packets: [(u32, u32, &[u8], u32); 3] =
        [(9, 5, &tcp(), 60), (9, 8, &tcp(), 61), (9, 7, &tcp(), 62)];
    let capture = read(&Little.pcap(NANOSECONDS, 1, &packets)).expect("a capture");
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
        order in prop_oneof![Just(Big), Just(Little)],
    ) {
        let beginning = match start {
            0 => Vec::new(),
            1 => order.pcap(MICROSECONDS, 1, &[(0, 0, &tcp(), 60)]),
            2 => order.section(),
            _ => [order.section(), order.interface(1, &[])].concat(),
        };
        let _ = read(&[beginning, bytes].concat());
    }

    #[test]
    fn a_file_cut_off_or_changed_anywhere_is_read_or_refused(
        at in any::<proptest::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
        order in prop_oneof![Just(Big), Just(Little)],
    ) {
        let interface = order.interface(1, &order.resolution(6));
        let mut file = [order.section(), interface, order.enhanced(0, 9, &tcp(), 60)].concat();
        let at = at.index(file.len());
        match cut {
            true => file.truncate(at),
            false => file[at] = byte,
        }
        let _ = read(&file);
    }
}

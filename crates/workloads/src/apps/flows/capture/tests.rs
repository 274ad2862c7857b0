//! Tests with files of both formats: valid, truncated and malformed.

use proptest::prelude::*;

use super::*;
use crate::apps::flows::packet::tests::{PORTS, ethernet, v4};

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;

/// A byte order.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Big,
    Little,
}

use Order::{Big, Little};

/// A packet of pcap: second, fraction, bytes, size on the wire.
type Frame<'a> = (u32, u32, &'a [u8], u32);

impl Order {
    /// Returns the low `N` bytes of a number.
    fn bytes<const N: usize>(self, number: u32) -> [u8; N] {
        let bytes = std::array::from_fn(|at| (number >> (8 * at)) as u8);
        let reversed = std::array::from_fn(|at| bytes[N - 1 - at]);
        if self == Little { bytes } else { reversed }
    }

    fn half(self, half: u16) -> [u8; 2] {
        self.bytes(half.into())
    }

    fn words(self, all: &[u32]) -> Vec<u8> {
        all.iter().flat_map(|each| self.bytes::<4>(*each)).collect()
    }

    /// Makes a pcap file of these packets.
    fn pcap(self, magic: u32, link: u32, packets: &[Frame<'_>]) -> Vec<u8> {
        let mut file = self.words(&[magic, 0x0002_0004, 0, 0, 65535, link]);
        for (seconds, fraction, bytes, size) in packets {
            file.extend(self.words(&[*seconds, *fraction, bytes.len() as u32, *size]));
            file.extend_from_slice(bytes);
        }
        file
    }

    fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let padded = body.len().next_multiple_of(4);
        let head = self.words(&[kind, padded as u32 + 12]);
        let mut block = [&head[..], body].concat();
        block.resize(8 + padded, 0);
        block.extend_from_slice(&head[4..]);
        block
    }

    fn section(self) -> Vec<u8> {
        let body = self.words(&[0x1a2b_3c4d, 0x0001_0000, u32::MAX, u32::MAX]);
        self.block(0x0a0d_0d0a, &body)
    }

    fn interface(self, link: u16, options: &[u8]) -> Vec<u8> {
        self.block(1, &[&self.half(link)[..], &[0; 6], options].concat())
    }

    /// Makes the option that holds an interface's unit of time.
    fn resolution(self, unit: u8) -> Vec<u8> {
        [&self.half(9)[..], &self.half(1), &[unit, 0, 0, 0]].concat()
    }

    fn enhanced(self, interface: u32, time: u64, bytes: &[u8], size: u32) -> Vec<u8> {
        let [high, low] = [(time >> 32) as u32, time as u32];
        let head = self.words(&[interface, high, low, bytes.len() as u32, size]);
        self.block(6, &[&head[..], bytes].concat())
    }

    /// Makes the obsolete packet block, with its interface and the number of lost packets.
    fn old(self, [interface, lost]: [u16; 2], time: u64, bytes: &[u8], size: u32) -> Vec<u8> {
        let mut block = self.enhanced(0, time, bytes, size);
        block[..4].copy_from_slice(&self.bytes::<4>(2));
        block[8..10].copy_from_slice(&self.half(interface));
        block[10..12].copy_from_slice(&self.half(lost));
        block
    }
}

fn tcp() -> Vec<u8> {
    ethernet(&[], 0x0800, &v4(6, 0, &PORTS))
}

fn read(file: &[u8]) -> io::Result<Capture> {
    Capture::read_from(file, usize::MAX)
}

/// Returns times and sizes of the packets, and asserts that each is of the flow of [`tcp`].
fn found(capture: &Capture) -> Vec<(u64, u32)> {
    let key = FlowKey::v4([[10, 0, 0, 1], [10, 0, 0, 2]], [1000, 2000], 6);
    let packets = capture.packets.iter();
    packets
        .inspect(|packet| assert_eq!(packet.key, key))
        .map(|packet| (packet.time_ns, packet.size_bytes))
        .collect()
}

#[test]
fn pcap_in_both_byte_orders_and_units() {
    let frames: [Frame<'_>; 2] = [(2, 7, &tcp(), 1514), (3, 0, &tcp(), 60)];
    for order in [Big, Little] {
        for (magic, fraction_ns) in [(MICROSECONDS, 1000), (NANOSECONDS, 1)] {
            let capture = read(&order.pcap(magic, 1, &frames)).expect("a capture");
            let times = [2_000_000_000 + 7 * fraction_ns, 3_000_000_000];
            assert_eq!(found(&capture), [(times[0], 1514), (times[1], 60)]);
            assert_eq!(capture.note, None);
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
            // A name block without names.
            order.block(4, &[]),
            order.enhanced(0, 5, &tcp(), 100),
            order.enhanced(1, 6, ip, 200),
            order.enhanced(2, 6, &tcp(), 300),
            order.enhanced(3, 512, ip, 350),
            // The count of lost packets is not part of the interface number.
            order.old([1, 77], 8, ip, 370),
            order.block(3, &[&order.bytes::<4>(400)[..], &tcp()].concat()),
            // Another section in the other byte order, with its own interfaces.
            other.section(),
            other.interface(101, &[]),
            other.enhanced(0, 7, ip, 500),
        ];
        let capture = read(&file.concat()).expect("a capture");
        let half_a_second = 500_000_000;
        let expected = [
            (5, 100),
            (6000, 200),
            (half_a_second, 350),
            (8000, 370),
            (0, 400),
            (7000, 500),
        ];
        assert_eq!(found(&capture), expected);
        let note = "1 packets skipped: of another link type";
        assert_eq!(capture.note.as_deref(), Some(note));
    }
}

#[test]
fn odd_packets_are_counted_and_noted() {
    let arp = ethernet(&[], 0x0806, &[0; 28]);
    let mut odd = tcp();
    odd[14] = 0x41;
    let packets: [Frame<'_>; 5] = [
        (1, 0, &arp, 42),
        (1, 0, &tcp()[..36], 60),
        (1, 0, &odd, 60),
        (1, 0, &[], 60),
        (1, 0, &tcp(), 60),
    ];
    let whole = Little.pcap(MICROSECONDS, 1, &packets);
    let capture = read(&[&whole[..], &[0; 5]].concat()).expect("a capture");
    assert_eq!(capture.packets.len(), 1);
    let note = "1 packets skipped: malformed; 1 packets skipped: not of IP; \
                2 packets skipped: recorded too short; the file ends within a packet";
    assert_eq!(capture.note.as_deref(), Some(note));
    let error = read(&whole[..whole.len() - 4]).expect_err("no packet");
    assert_eq!(
        error.to_string(),
        "it contains no IP packet (4 other packets)"
    );
}

#[test]
fn an_invalid_capture_is_reported_with_its_defect() {
    let ng = |blocks: &[u8]| [&Big.section(), blocks].concat();
    let (interface, packet) = (Big.interface(1, &[]), Big.enhanced(0, 0, &tcp(), 60));
    let mut longer = ng(&[&interface[..], &packet].concat());
    let len = ng(&interface).len() + 8 + 12;
    longer[len..][..4].copy_from_slice(&Big.bytes::<4>(1000));
    let mut differs = ng(&Big.block(5, &[]));
    let last = differs.len() - 1;
    differs[last] = 1;
    // The length is checked for known blocks and for skipped ones.
    let block = |kind, len| ng(&Big.words(&[kind, len, 0, 0]));
    let huge = [MICROSECONDS, 0, 0, 0, 0, 1, 0, 0, u32::MAX, 60];
    let (short, unequal) = (
        "a block shorter than its own header",
        "a block whose length is not a multiple of 4",
    );
    let long = "a block of more than 1 MiB";
    let unknown = "link type 127: 1 (Ethernet), 12, 101, 228 or 229 (IP), 113 and 276 (Linux cooked) \
                   are known";
    let others = [
        (
            b"#!/bin/sh".to_vec(),
            "begins with 0x23212f62: neither pcap nor pcapng",
        ),
        (b"\xa1\xb2\xc3\xd4\0\0".to_vec(), "ends too early"),
        (Big.section()[..9].to_vec(), "ends too early"),
        (
            Big.pcap(MICROSECONDS, 1, &[]),
            "it contains no IP packet (0 other packets)",
        ),
        (Big.pcap(MICROSECONDS, 127, &[]), unknown),
    ];
    let malformed = [
        (vec![], "too short to be a capture"),
        (Big.words(&huge), "a packet of more than 256 KiB"),
        (
            Big.block(0x0a0d_0d0a, &[0; 16]),
            "a section without a byte order",
        ),
        (
            ng(&packet),
            "a packet of an interface that was not described",
        ),
        (longer, "a packet longer than its block"),
        (differs, "a block with two lengths that differ"),
        (ng(&interface.repeat(4097)), "more than 4096 interfaces"),
        (ng(&Big.block(1, &[])), short),
        (block(1, 8), short),
        (block(5, 8), short),
        (block(1, 14), unequal),
        (block(5, 14), unequal),
        (block(1, 2 << 20), long),
        (block(5, 2 << 20), long),
    ];
    let malformed = malformed.map(|(file, what)| (file, format!("malformed: {what}")));
    let others = others.map(|(file, what)| (file, what.to_owned()));
    for (file, expected) in others.into_iter().chain(malformed) {
        let error = read(&file).map(|capture| capture.packets.len());
        assert_eq!(error.expect_err(&expected).to_string(), expected);
    }
}

#[test]
fn an_error_names_the_file_and_no_more_is_read_than_was_asked_for() {
    let error = Capture::read("no/such/file".as_ref(), 1).expect_err("no file");
    assert!(error.to_string().starts_with("no/such/file: "), "{error}");
    let error = Capture::read("/dev/null".as_ref(), 1).expect_err("a device");
    assert_eq!(error.to_string(), "/dev/null: not a regular file");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace");
    let file = Little.pcap(NANOSECONDS, 1, &[(0, 0, &tcp(), 1), (0, 1, &tcp(), 2)]);
    let file = [&file[..], b"whatever comes behind"].concat();
    std::fs::write(&path, file).expect("writes");
    let capture = Capture::read(&path, 2).expect("a capture");
    assert_eq!((capture.packets.len(), capture.note), (2, None));
}

/// Returns sequence number, time and size of the next records of a replay.
fn told(replay: &mut Replay, count: usize) -> Vec<(u64, u64, u64)> {
    let records = (0..count).map(|_| replay.record());
    let each = records.map(|record| (record.sequence, record.time_ns, record.size_bytes));
    each.collect()
}

#[test]
fn a_replay_goes_round_and_time_goes_on() {
    let packets: [Frame<'_>; 3] = [(9, 5, &tcp(), 60), (9, 8, &tcp(), 61), (9, 7, &tcp(), 62)];
    let capture = read(&Little.pcap(NANOSECONDS, 1, &packets)).expect("a capture");
    let mut replay = Replay::new(capture);
    let mut again = replay.clone();
    let (sizes, times) = ([60, 61, 62], [0, 3, 2, 4, 7, 6, 8]);
    let expected = (0..7).map(|at| (at as u64, times[at], sizes[at % 3]));
    let expected: Vec<_> = expected.collect();
    assert_eq!(told(&mut replay, 7), expected);
    assert_eq!(told(&mut again, 7), expected);
}

proptest! {
    #[test]
    fn any_file_is_read_or_refused(
        start in 0usize..4, at in any::<proptest::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        order in prop_oneof![Just(Big), Just(Little)],
    ) {
        let interface = order.interface(1, &order.resolution(6));
        let mut file = match start {
            0 => Vec::new(),
            1 => order.pcap(MICROSECONDS, 1, &[(0, 0, &tcp(), 60)]),
            2 => order.section(),
            _ => [order.section(), interface, order.enhanced(0, 9, &tcp(), 60)].concat(),
        };
        let _ = read(&[&file[..], &bytes].concat());
        // A valid file is truncated, or one of its bytes is changed.
        if !file.is_empty() {
            let at = at.index(file.len());
            match cut {
                true => file.truncate(at),
                false => file[at] = byte,
            }
            let _ = read(&file);
        }
    }
}

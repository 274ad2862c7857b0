use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::control_block::{BLOCK_BYTES, Direction};
use crate::descriptors::{DESCRIPTORS, KeptDescriptor};
use crate::slabs::{ByteRing, Extent, Slabs};
use crate::testing::slabs;

/// Length of the slab of blocks and rings, and of the slab that stands for the pool.
const SLAB: usize = 1 << 20;
const POOL: usize = 8 << 20;

fn extent(offset: u64, len: u32) -> Extent {
    Extent {
        slab: 0,
        len,
        offset,
    }
}

fn ends(slabs: &Slabs, ring: u32) -> (IngressWriter, IngressReader) {
    let block = ControlBlock::at(slabs, extent(0, BLOCK_BYTES)).unwrap();
    let writer = IngressWriter::new(slabs, &block, extent(4096, ring)).unwrap();
    (writer, IngressReader::new(slabs, &block).unwrap())
}

fn byte(at: u64) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

fn bytes(at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(byte).collect()
}

#[derive(Clone, Debug)]
enum Action {
    /// Bytes come in line.
    InLine(usize),
    /// Bytes come by a descriptor, and are published at once or later.
    Describe(u32, bool),
    /// A piece comes through the ring's reserve.
    Reserve,
    Publish,
    Read(usize),
    Peek(u64),
    Keep,
    Release(usize),
    /// The daemon moves the bytes of a descriptor, and the application reads meanwhile.
    Move(usize),
    Extend(u32),
}

fn act() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (0usize..900).prop_map(Action::InLine),
        3 => (1u32..9000, any::<bool>()).prop_map(|(len, now)| Action::Describe(len, now)),
        1 => Just(Action::Reserve),
        1 => Just(Action::Publish),
        3 => (0usize..9000).prop_map(Action::Read),
        1 => (0u64..900).prop_map(Action::Peek),
        1 => Just(Action::Keep),
        1 => (0usize..4).prop_map(Action::Release),
        1 => (0usize..4).prop_map(Action::Move),
        1 => (9u32..14).prop_map(|log| Action::Extend(1 << log)),
    ]
}

/// Both ends, and what the daemon would know besides.
struct Daemon {
    slabs: Slabs,
    writer: IngressWriter,
    reader: IngressReader,
    /// Position up to which bytes were placed.
    end: u64,
    /// Memory of descriptors: its extent, and bytes of it that are free.
    given: BTreeMap<u64, (Extent, u32)>,
    free_from: u64,
    kept: Vec<(Extent, u64, KeptDescriptor)>,
    /// Number of the descriptor in the reserve.
    in_reserve: Option<u64>,
}

impl Daemon {
    fn new() -> Self {
        let slabs = slabs(&[SLAB, POOL]);
        let (writer, reader) = ends(&slabs, ByteRing::LEN_MIN);
        Self {
            slabs,
            writer,
            reader,
            end: 0,
            given: BTreeMap::new(),
            free_from: 0,
            kept: Vec::new(),
            in_reserve: None,
        }
    }

    /// Memory of the second slab that was not used before.
    fn pool(&mut self, len: u32) -> Extent {
        let extent = Extent {
            slab: 1,
            len,
            offset: self.free_from,
        };
        self.free_from += u64::from(len);
        extent
    }

    fn describe(&mut self, extent: Extent) -> u64 {
        let to = self.slabs.view(extent).unwrap();
        to.write(0, &bytes(self.end, extent.len.into())).unwrap();
        let number = self.writer.describe(self.end, extent, extent.slab == 1);
        self.given.insert(number, (extent, 0));
        self.end += u64::from(extent.len);
        number
    }

    /// Observes what the application has consumed, and overwrites what is free.
    fn look(&mut self) {
        self.writer.look().unwrap();
        let (given, slabs) = (&mut self.given, &self.slabs);
        let mut freed = Vec::new();
        self.writer.collect(|free| {
            let (extent, before) = given.get_mut(&free.number).expect("was given");
            assert!(free.bytes > *before, "reported once");
            let part = extent.part(*before, free.bytes - *before);
            let fill = vec![0xEE; part.len as usize];
            slabs.view(part).unwrap().write(0, &fill).unwrap();
            *before = free.bytes;
            assert_eq!(free.is_all, free.bytes == extent.len);
            if free.is_all {
                freed.push(free.number);
            }
        });
        for number in freed {
            self.given.remove(&number);
            self.in_reserve = self.in_reserve.filter(|one| *one != number);
        }
        let in_use: Vec<u64> = self.writer.in_use().collect();
        assert!(in_use.iter().eq(self.given.keys()));
    }

    fn check_kept(&self) {
        for (extent, from, _) in &self.kept {
            let mut into = vec![0; extent.len as usize];
            self.slabs.read(*extent, &mut into).unwrap();
            assert_eq!(
                into,
                bytes(*from, extent.len.into()),
                "kept memory was used"
            );
        }
    }
}

proptest! {
    /// Bytes are read in order, through any sequence of rings and descriptors. The window never shrinks, and never
    /// promises more than there is room for. Memory is free only when nobody uses it.
    #[test]
    fn a_stream_is_read_as_it_was_placed(acts in proptest::collection::vec(act(), 0..300)) {
        let mut of = Daemon::new();
        let mut ring_from = 8192;
        let mut limit = of.writer.limit();
        for act in acts {
            match act {
                Action::InLine(len) => {
                    let room = (of.writer.limit() - of.writer.placed()).min(len as u64);
                    let new = bytes(of.end, room);
                    if len.is_multiple_of(2) {
                        of.writer.write(&new);
                    } else {
                        let mut done = 0;
                        while done < new.len() {
                            let piece = of.writer.place(new.len() - done);
                            prop_assert!(piece.len > 0);
                            let to = of.slabs.view(piece).unwrap();
                            to.write(0, &new[done..done + piece.len as usize]).unwrap();
                            of.writer.advance(piece.len);
                            done += piece.len as usize;
                        }
                    }
                    of.end += room;
                    of.writer.publish(of.end);
                }
                Action::Describe(len, is_now) => {
                    if of.writer.has_descriptor() {
                        let extent = of.pool(len);
                        of.describe(extent);
                        if is_now {
                            of.writer.publish(of.end);
                        }
                    }
                }
                Action::Reserve => {
                    of.look();
                    let is_all_read = of.writer.consumed() == of.end;
                    if is_all_read && of.in_reserve.is_none() && of.writer.has_descriptor() {
                        let extent = of.writer.reserve();
                        prop_assert!(extent.len > 0);
                        let number = of.describe(extent);
                        of.in_reserve = Some(number);
                        of.writer.publish(of.end);
                    }
                }
                Action::Publish => of.writer.publish(of.end),
                Action::Read(len) => {
                    let mut into = vec![0; len];
                    let from = of.reader.consumed();
                    let read = of.reader.read(&of.slabs, &mut into).unwrap();
                    prop_assert_eq!(read as u64, (len as u64).min(of.writer.come() - from));
                    prop_assert_eq!(&into[..read], &bytes(from, read as u64)[..]);
                }
                Action::Peek(len) => {
                    let from = of.reader.consumed();
                    let piece = of.reader.peek(&of.slabs).unwrap();
                    prop_assert_eq!(piece.len == 0, of.writer.come() == from);
                    let mut into = vec![0; piece.len as usize];
                    of.slabs.read(piece, &mut into).unwrap();
                    prop_assert_eq!(&into, &bytes(from, piece.len.into()));
                    of.reader.consume(len.min(into.len() as u64));
                }
                Action::Keep => {
                    let from = of.reader.consumed();
                    if let Some((extent, kept)) = of.reader.keep(&of.slabs).unwrap() {
                        prop_assert_eq!(of.reader.consumed(), from + u64::from(extent.len));
                        of.kept.push((extent, from, kept));
                    }
                }
                Action::Release(at) => {
                    if at < of.kept.len() {
                        of.kept.remove(at).2.release();
                    }
                }
                Action::Move(at) => {
                    let number = of.writer.in_use().nth(at);
                    if let Some(number) = number.filter(|one| of.writer.take_back(*one)) {
                        let (old, _) = of.given[&number];
                        let new = of.pool(old.len);
                        let mut moved = vec![0; old.len as usize];
                        of.slabs.read(old, &mut moved).unwrap();
                        of.slabs.view(new).unwrap().write(0, &moved).unwrap();
                        of.slabs.view(old).unwrap().write(0, &vec![0xDD; moved.len()]).unwrap();
                        // Whatever the application reads meanwhile lies before the descriptor.
                        let from = of.reader.consumed();
                        let mut into = vec![0; 4000];
                        let read = of.reader.read(&of.slabs, &mut into).unwrap();
                        prop_assert_eq!(&into[..read], &bytes(from, read as u64)[..]);
                        of.writer.give_again(number, new);
                        of.given.insert(number, (new, 0));
                        of.in_reserve = of.in_reserve.filter(|one| *one != number);
                    }
                }
                Action::Extend(len) => {
                    let is_free = ring_from + u64::from(len) <= SLAB as u64;
                    if is_free && of.writer.extend(&of.slabs, extent(ring_from, len)).unwrap() {
                        ring_from += u64::from(len);
                    }
                }
            }
            of.look();
            of.check_kept();
            prop_assert_eq!(of.writer.consumed(), of.reader.consumed());
            prop_assert!(of.writer.limit() >= limit);
            limit = of.writer.limit();
            let _ = of.writer.left();
        }
    }

    #[test]
    fn a_hostile_head_is_refused_or_in_range(come in 0u64..512, head in prop_oneof![any::<u64>(), 0u64..600]) {
        let slabs = slabs(&[SLAB]);
        let (mut writer, reader) = ends(&slabs, 512);
        writer.publish(come);
        reader.block.head(Direction::Ingress).publish(head);
        // `look` does not read the head while nothing has arrived.
        prop_assert_eq!(writer.look().is_ok(), come == 0 || head <= come);
        prop_assert!(writer.consumed() <= come);
    }

    /// Whatever an application writes into its descriptors, the daemon frees no memory before the head has passed it, and
    /// each only once.
    #[test]
    fn hostile_states_free_nothing_early(
        states in proptest::collection::vec((0usize..DESCRIPTORS, any::<u64>(), 0u64..60_000), 0..60),
    ) {
        let slabs = slabs(&[SLAB, SLAB]);
        let (mut writer, reader) = ends(&slabs, 512);
        let mut freed = BTreeMap::new();
        let mut position = 0;
        for (at, word, head) in states {
            while writer.has_descriptor() {
                writer.describe(position, Extent { slab: 1, len: 4096, offset: 0 }, true);
                position += 4096;
            }
            writer.publish(position);
            let to = slabs.view(extent((512 + at * 32) as u64, 8)).unwrap();
            to.write(0, &word.to_le_bytes()).unwrap();
            reader.block.head(Direction::Ingress).publish(head.max(writer.consumed()));
            if writer.look().is_err() {
                continue;
            }
            let consumed = writer.consumed();
            writer.collect(|free| {
                let from = (free.number - 1) * 4096;
                assert!(from + u64::from(free.bytes) <= consumed);
                let before = freed.insert(free.number, free.bytes).unwrap_or(0);
                assert!(free.bytes > before);
            });
        }
    }
}

#[test]
fn the_daemon_is_notified_of_every_consumed_quarter() {
    let slabs = slabs(&[SLAB]);
    let (mut writer, mut reader) = ends(&slabs, 512);
    let mut told = 0;
    for _ in 0..100 {
        writer.write(&[7; 50]);
        writer.publish(writer.placed());
        assert_eq!(reader.read(&slabs, &mut [0; 50]), Ok(50));
        told += u32::from(reader.notice() == ConsumeNotice::Window);
        writer.look().unwrap();
    }
    // 128 bytes are consumed after three times 50.
    assert_eq!(told, 33);
}

#[test]
fn a_reader_that_keeps_the_oldest_descriptor_is_blocked_in_the_end() {
    let slabs = slabs(&[SLAB, SLAB]);
    let (mut writer, mut reader) = ends(&slabs, 512);
    let mut kept = None;
    for number in 0..DESCRIPTORS as u64 {
        assert!(writer.has_descriptor() && !reader.is_blocked());
        let at = number * 100;
        let pool = Extent {
            slab: 1,
            len: 100,
            offset: at,
        };
        writer.describe(at, pool, true);
        writer.publish(at + 100);
        match kept {
            None => kept = reader.keep(&slabs).unwrap(),
            Some(_) => assert_eq!(reader.read(&slabs, &mut [0; 200]), Ok(100)),
        }
        assert_eq!(reader.notice(), ConsumeNotice::Memory);
        writer.look().unwrap();
        writer.collect(|_| {});
    }
    assert!(!writer.has_descriptor() && reader.is_blocked());
    kept.unwrap().1.release();
    assert!(!reader.is_blocked());
    writer.collect(|_| {});
    assert!(writer.has_descriptor());
}

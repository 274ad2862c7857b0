use proptest::prelude::*;

use super::*;
use crate::control_block::BLOCK_BYTES;
use crate::testing::slabs;

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

#[derive(Clone, Debug)]
enum Action {
    /// Places bytes at a gap after the bytes that have arrived, and publishes them if the gap is 0.
    Place(u64, usize),
    Read(usize),
    Peek(u64),
    Extend(u32),
}

fn act() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (prop_oneof![Just(0u64), 0u64..600], 0usize..900).prop_map(|(gap, len)| Action::Place(gap, len)),
        3 => (0usize..900).prop_map(Action::Read),
        1 => (0u64..900).prop_map(Action::Peek),
        1 => (9u32..14).prop_map(|log| Action::Extend(1 << log)),
    ]
}

proptest! {
    /// Bytes are read in order, through any sequence of rings. The window never shrinks, and never promises
    /// more than there is room for.
    #[test]
    fn a_stream_is_read_as_it_was_placed(acts in proptest::collection::vec(act(), 0..300)) {
        let slabs = slabs(&[1 << 20]);
        let (mut writer, mut reader) = ends(&slabs, 512);
        let mut free_from = 8192;
        let mut limit = 512;
        for act in acts {
            match act {
                Action::Place(gap, len) => {
                    let at = writer.come() + gap;
                    let room = writer.limit().saturating_sub(at);
                    let len = room.min(len as u64) as usize;
                    let bytes: Vec<u8> = (at..at + len as u64).map(byte).collect();
                    if len.is_multiple_of(2) {
                        writer.write(at, &bytes);
                    } else {
                        // Writes to the memory directly, as an RNIC does.
                        let mut done = 0;
                        while done < len {
                            let piece = writer.place(at + done as u64, len - done);
                            prop_assert!(piece.len > 0);
                            let to = slabs.view(piece).unwrap();
                            to.write(0, &bytes[done..done + piece.len as usize]).unwrap();
                            done += piece.len as usize;
                        }
                    }
                    if gap == 0 {
                        writer.publish(at + len as u64);
                    }
                }
                Action::Read(len) => {
                    let mut into = vec![0; len];
                    let from = reader.consumed();
                    let read = reader.read(&slabs, &mut into).unwrap();
                    prop_assert_eq!(read as u64, (len as u64).min(writer.come() - from));
                    for (at, found) in (from..).zip(&into[..read]) {
                        prop_assert_eq!(byte(at), *found, "at {}", at);
                    }
                }
                Action::Peek(len) => {
                    let from = reader.consumed();
                    let piece = reader.peek(&slabs).unwrap();
                    prop_assert_eq!(piece.len == 0, writer.come() == from);
                    let mut into = vec![0; piece.len as usize];
                    slabs.read(piece, &mut into).unwrap();
                    for (at, found) in (from..).zip(&into) {
                        prop_assert_eq!(byte(at), *found, "at {}", at);
                    }
                    reader.consume(len.min(into.len() as u64));
                }
                Action::Extend(len) => {
                    if free_from + u64::from(len) <= 1 << 20
                        && writer.extend(&slabs, extent(free_from, len)).unwrap()
                    {
                        free_from += u64::from(len);
                    }
                }
            }
            writer.look().unwrap();
            prop_assert_eq!(writer.consumed(), reader.consumed());
            prop_assert!(writer.limit() >= limit);
            limit = writer.limit();
            let _ = writer.left();
        }
    }

    #[test]
    fn a_hostile_head_is_refused_or_in_range(come in 0u64..512, head in prop_oneof![any::<u64>(), 0u64..600]) {
        let slabs = slabs(&[1 << 20]);
        let (mut writer, reader) = ends(&slabs, 512);
        writer.publish(come);
        reader.head.publish(head);
        // `look` does not read the head while nothing has arrived.
        prop_assert_eq!(writer.look().is_ok(), come == 0 || head <= come);
        prop_assert!(writer.consumed() <= come);
    }
}

#[test]
fn the_daemon_is_notified_of_every_consumed_quarter() {
    let slabs = slabs(&[1 << 20]);
    let (mut writer, mut reader) = ends(&slabs, 512);
    let mut told = 0;
    for _ in 0..100 {
        writer.publish(writer.come() + 50);
        assert_eq!(reader.read(&slabs, &mut [0; 50]), Ok(50));
        told += u32::from(reader.is_update_due());
        writer.look().unwrap();
    }
    // 128 bytes are consumed after three times 50.
    assert_eq!(told, 33);
}

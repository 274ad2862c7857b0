use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::control_block::BLOCK_BYTES;
use crate::one_sided::{Op, RESULT_BYTES};
use crate::testing::slabs;

fn extent(offset: u64, len: u32) -> Extent {
    Extent {
        slab: 0,
        len,
        offset,
    }
}

fn ends(slabs: &Slabs, ring: u32) -> (EgressWriter, EgressReader) {
    let block = ControlBlock::at(slabs, extent(0, BLOCK_BYTES)).unwrap();
    let reader = EgressReader::new(slabs, &block, extent(4096, ring)).unwrap();
    (EgressWriter::new(slabs, &block).unwrap(), reader)
}

#[derive(Clone, Debug)]
enum Action {
    Write(usize),
    Lend(u32),
    Read,
    Release,
    Offer(u32),
}

fn act() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (0usize..700).prop_map(Action::Write),
        1 => (1u32..5000).prop_map(Action::Lend),
        4 => Just(Action::Read),
        3 => Just(Action::Release),
        1 => (9u32..14).prop_map(|log| Action::Offer(1 << log)),
    ]
}

proptest! {
    /// Records are read in the order in which they were written, through any sequence of rings. Nothing is
    /// overwritten before it is released.
    #[test]
    fn a_stream_of_records_is_read_as_it_was_written(
        acts in proptest::collection::vec(act(), 0..200),
    ) {
        let slabs = slabs(&[1 << 20]);
        let (mut writer, mut reader) = ends(&slabs, ByteRing::LEN_MIN);
        // Each ring gets memory of its own, so that a late write to an old ring would be noticed.
        let mut free_from = 8192;
        let mut number = 0u8;
        let mut oracle = VecDeque::new();
        let mut held: VecDeque<(EgressRecord, Vec<u8>)> = VecDeque::new();
        let mut lent = VecDeque::new();
        for act in acts.into_iter().chain(std::iter::repeat_n([Action::Read, Action::Release], 300).flatten()) {
            match act {
                Action::Write(len) => {
                    let bytes: Vec<u8> = (0..len).map(|_| { number = number.wrapping_add(1); number }).collect();
                    let written = writer.write(&slabs, &bytes).unwrap();
                    number = number.wrapping_sub((len - written) as u8);
                    oracle.extend(bytes[..written].iter().map(|byte| Ok(*byte)));
                }
                Action::Lend(len) => {
                    let memory = extent(0, len);
                    if let Some(one) = writer.lend(&slabs, memory).unwrap() {
                        prop_assert!(!writer.is_returned(one).unwrap());
                        oracle.push_back(Err(memory));
                        lent.push_back(one);
                    }
                }
                Action::Read => {
                    let Some(record) = reader.next(&slabs).unwrap() else { continue };
                    let RecordKind::Bytes(at) = record.what else { panic!("nothing ended") };
                    let mut bytes = vec![0; at.len as usize];
                    slabs.read(at, &mut bytes).unwrap();
                    if let Some(Err(memory)) = oracle.front() {
                        prop_assert_eq!(at, *memory);
                        oracle.pop_front();
                        bytes.clear();
                    }
                    for byte in &bytes {
                        prop_assert_eq!(oracle.pop_front(), Some(Ok(*byte)));
                    }
                    held.push_back((record, bytes));
                }
                Action::Release => {
                    let Some((record, bytes)) = held.pop_front() else { continue };
                    if let RecordKind::Bytes(at) = record.what && !bytes.is_empty() {
                        let mut still = vec![0; at.len as usize];
                        slabs.read(at, &mut still).unwrap();
                        prop_assert_eq!(still, bytes, "overwritten");
                    }
                    let returned = matches!(record.what, RecordKind::Bytes(at) if at.offset == 0);
                    reader.release(record.end);
                    let _ = reader.left();
                    if returned {
                        let one = lent.pop_front().expect("it was lent");
                        prop_assert!(writer.is_returned(one).unwrap());
                    }
                }
                Action::Offer(len) => {
                    if free_from + u64::from(len) <= 1 << 20
                        && reader.offer(&slabs, extent(free_from, len)).unwrap()
                    {
                        free_from += u64::from(len);
                    }
                }
            }
        }
        prop_assert!(oracle.is_empty());
        prop_assert!(writer.is_drained().unwrap());
        prop_assert!(writer.end(&slabs).unwrap());
        prop_assert_eq!(writer.write(&slabs, &[1]), Ok(0));
        let record = reader.next(&slabs).unwrap().expect("the end");
        prop_assert_eq!(record.what, RecordKind::End);
        prop_assert_eq!(reader.next(&slabs), Ok(None));
    }

    /// Whatever an application writes to its ring and tail, reading ends, and yields only memory of the
    /// session.
    #[test]
    fn any_records_are_read_or_refused(
        words in proptest::collection::vec(
            prop_oneof![any::<u64>(), (0u64..7, 0u64..80).prop_map(|(kind, len)| len << 32 | kind)],
            64,
        ),
        tails in proptest::collection::vec(prop_oneof![any::<u64>(), 0u64..1100], 1..6),
    ) {
        let slabs = slabs(&[1 << 20]);
        let (writer, mut reader) = ends(&slabs, 512);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        writer.ring.write(0, &bytes);
        reader.offer(&slabs, extent(8192, 1024)).unwrap();
        'tails: for tail in tails {
            writer.block.tail(Direction::Egress).publish(tail);
            for _ in 0..200 {
                match reader.next(&slabs) {
                    Ok(None) => continue 'tails,
                    Ok(Some(record)) => {
                        if let RecordKind::Bytes(at) = record.what {
                            prop_assert!(at.len > 0);
                            prop_assert!(slabs.view(at).is_ok());
                        }
                        reader.release(record.end);
                    }
                    Err(_) => break 'tails,
                }
            }
            panic!("it goes on for ever");
        }
    }
}

#[test]
fn many_pads_are_refused() {
    let slabs = slabs(&[1 << 20]);
    let (writer, mut reader) = ends(&slabs, 512);
    for at in [0, 8] {
        writer.ring.write(at, &header(PAD, 0));
    }
    writer.block.tail(Direction::Egress).publish(16);
    assert_eq!(reader.next(&slabs), Err(ContractError::RecordKind(PAD)));
}

#[test]
fn a_long_message_goes_through_a_short_ring_in_quarters() {
    let slabs = slabs(&[1 << 20]);
    let (mut writer, mut reader) = ends(&slabs, 4096);
    let bytes: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
    let (mut sent, mut got, mut records) = (0, Vec::new(), 0);
    while got.len() < bytes.len() {
        sent += writer.write(&slabs, &bytes[sent..]).unwrap();
        while let Some(record) = reader.next(&slabs).unwrap() {
            let RecordKind::Bytes(at) = record.what else {
                panic!("nothing ended")
            };
            let mut piece = vec![0; at.len as usize];
            slabs.read(at, &mut piece).unwrap();
            got.extend(piece);
            records += 1;
            reader.release(record.end);
        }
    }
    assert_eq!(got, bytes);
    assert!(records <= 2 * 100_000 / 1024, "{records} records");
}

#[test]
fn a_record_is_cut_at_the_ring_s_end_only_if_the_beginning_has_no_room_for_it() {
    let slabs = slabs(&[1 << 20]);
    for (is_released, message, written) in [(true, 500, 500), (false, 500, 0), (false, 700, 408)] {
        slabs.slab(0).unwrap().write(0, &[0; 8192]).unwrap();
        let (mut writer, mut reader) = ends(&slabs, 1024);
        assert_eq!(writer.write(&slabs, &[1; 592]), Ok(592));
        let first = reader.next(&slabs).unwrap().expect("a record");
        assert_eq!(first.what, RecordKind::Bytes(extent(4096 + 8, 592)));
        if is_released {
            reader.release(first.end);
        }
        // The end has room for a record of 416 bytes. A message that the ring holds whole waits for more.
        assert_eq!(writer.write(&slabs, &vec![2; message]), Ok(written));
        if written == 0 {
            reader.release(first.end);
            assert_eq!(writer.write(&slabs, &vec![2; message]), Ok(message));
            continue;
        }
        let offset = if is_released { 0 } else { 600 };
        let second = reader.next(&slabs).unwrap().expect("a record");
        let bytes = extent(4096 + offset + 8, written as u32);
        assert_eq!(second.what, RecordKind::Bytes(bytes));
        // The pad is no backlog.
        let backlog = if is_released { 8 + 504 } else { 600 + 416 };
        assert_eq!(reader.backlog(), backlog);
    }
}

/// A head that is no record's end would let the writer take more room than there is.
#[test]
fn a_head_between_records_is_refused() {
    let slabs = slabs(&[1 << 20]);
    let (mut writer, _reader) = ends(&slabs, 512);
    assert_eq!(writer.write(&slabs, &[7; 480]), Ok(480));
    writer.block.head(Direction::Egress).publish(3);
    let refused = writer.write(&slabs, &[7; 480]);
    assert_eq!(refused, Err(ContractError::ControlBlock));
}

/// The longest record fits into the shortest ring wherever the ring stands.
#[test]
fn an_operation_fits_into_the_shortest_ring() {
    for before in 1..200 {
        let slabs = slabs(&[1 << 20]);
        let (mut writer, mut reader) = ends(&slabs, ByteRing::LEN_MIN);
        assert_eq!(writer.write(&slabs, &vec![1; before]), Ok(before));
        while let Some(record) = reader.next(&slabs).unwrap() {
            reader.release(record.end);
        }
        let operation = Operation {
            op: Op::Read,
            export_id: 1,
            at: 2,
            local: extent(8192, 64),
            operand: 3,
            compare: 4,
            result: extent(8192 + 64, RESULT_BYTES),
        };
        let asked = writer.operate(&slabs, &operation).unwrap();
        assert!(asked.is_some(), "behind {before} bytes");
        let record = reader.next(&slabs).unwrap().expect("a record");
        assert_eq!(record.what, RecordKind::Operation(operation));
    }
}

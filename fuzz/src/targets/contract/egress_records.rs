//! The daemon reads records, cursors and the way of transfer, which an application writes.

use headworks_client::one_sided::RESULT_BYTES;
use headworks_client::{EgressReader, EgressWriter, Extent, Op, Operation, RecordKind};

use super::{BYTES_MAX, EGRESS_HEAD, EGRESS_TAIL, Memory, TRANSFER, extent, longer_ring};
use crate::input::Input;

/// Bytes of the longest ring here.
const RING_MAX: u64 = 2048;

pub(in crate::targets) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let memory = Memory::new();
    let first = extent(0, 2048, 512);
    let mut reader = EgressReader::new(&memory.slabs, &memory.block, first).expect("a ring");
    // The application writes valid records with the library, and anything by itself.
    let mut writer = EgressWriter::new(&memory.slabs, &memory.block).expect("a ring");
    let mut ends = Vec::new();
    let mut head = 0;
    while !input.is_over() {
        let kind = input.byte() % 12;
        match kind {
            0 | 1 => {
                let len = usize::from(input.byte()) * 4;
                let _ = writer.write(&memory.slabs, &vec![7; len.min(BYTES_MAX)]);
            }
            2 => {
                let _ = writer.lend(&memory.slabs, some(&mut input));
            }
            3 => {
                let operation = Operation {
                    op: input.pick(&[Op::Read, Op::Write, Op::FetchAdd, Op::CompareSwap]),
                    export_id: 1,
                    at: input.u16().into(),
                    local: some(&mut input),
                    operand: 1,
                    compare: 0,
                    result: some(&mut input),
                };
                let _ = writer.operate(&memory.slabs, &operation);
            }
            4 => {
                let _ = writer.end(&memory.slabs);
            }
            5 => memory.scribble(&mut input, EGRESS_TAIL),
            6 => memory.scribble(&mut input, TRANSFER),
            7 => {
                // A word of a ring, mostly of the first one.
                let at = match input.byte() % 4 {
                    0 => 4096 + input.below(512) * 8,
                    _ => 2048 + input.below(64) * 8,
                };
                memory.scribble(&mut input, at);
            }
            8 => {
                let offered = longer_ring(&mut input);
                let _ = reader.offer(&memory.slabs, offered);
                if let Some(left) = reader.left() {
                    assert!(memory.has(left), "{left:?}");
                }
            }
            9 => {
                if !ends.is_empty() {
                    let count = 1 + input.below(ends.len());
                    let end = ends.drain(..count).next_back();
                    reader.release(end.expect("at least one"));
                }
            }
            _ => {
                if !read(&memory, &mut reader, &mut ends) {
                    reader.release_all();
                    break;
                }
            }
        }
        // An application that waits for room reads the head, so it never goes back.
        let word = memory.view.atomic_u64(EGRESS_HEAD).expect("in the block");
        let now = word.load(std::sync::atomic::Ordering::Relaxed);
        assert!(now >= head, "the head went from {head} to {now}");
        assert_eq!(now, reader.released());
        head = now;
    }
    let _ = (reader.transfer(), reader.backlog_now(), reader.is_drained());
}

/// Reads all records, and checks them. Returns whether the application keeps to the contract.
fn read(memory: &Memory, reader: &mut EgressReader, ends: &mut Vec<u64>) -> bool {
    let rings = |reader: &EgressReader| {
        let rings = reader.memory().map(|ring| u64::from(ring.len));
        rings.sum::<u64>()
    };
    // A record takes at least its first word.
    let most = rings(reader) / 8 + 1;
    for _ in 0..=most {
        let record = match reader.next(&memory.slabs) {
            Ok(Some(record)) => record,
            Ok(None) => return true,
            Err(_) => return false,
        };
        assert!(record.end > ends.last().copied().unwrap_or_else(|| reader.released()));
        // A pad and a switch may lie in a ring that was given back, and are released with the next record.
        assert!(reader.backlog() <= rings(reader) + RING_MAX);
        match record.what {
            RecordKind::Bytes(extent) => {
                assert!(extent.len > 0 && memory.has(extent), "{extent:?}");
            }
            RecordKind::Operation(operation) => {
                let is_atomic = matches!(operation.op, Op::FetchAdd | Op::CompareSwap);
                assert!(is_atomic || memory.has(operation.local), "{operation:?}");
                assert!(memory.has(operation.result), "{operation:?}");
                assert_eq!(operation.result.len, RESULT_BYTES);
            }
            RecordKind::End => assert!(reader.is_ended()),
        }
        ends.push(record.end);
    }
    panic!("more records than fit");
}

/// A range that mostly exists.
fn some(input: &mut Input<'_>) -> Extent {
    let len = match input.byte() % 4 {
        0 => u32::from(input.u16()) << (input.byte() % 17),
        _ => RESULT_BYTES,
    };
    extent(
        u32::from(input.byte() % 3),
        u64::from(input.u16()) << (input.byte() % 40),
        len,
    )
}

//! A capture file, from anywhere: its blocks, the bytes of its packets, and its replay.

use headworks_workloads::apps::flows::{Capture, RECORD, Record, Replay};

/// Packets that are replayed of one input.
const REPLAYED: usize = 64;

pub(super) fn run(bytes: &[u8]) {
    let capture = match Capture::read_from(bytes, REPLAYED) {
        Ok(capture) => capture,
        Err(fault) => {
            assert!(!fault.to_string().contains('\n'), "more than a line");
            return;
        }
    };
    assert!(capture.packets.len() <= REPLAYED && !capture.packets.is_empty());
    // A packet takes more bytes of a file than its header alone.
    let packets = capture.packets.len() as u64 + capture.skipped;
    assert!(packets * 12 <= bytes.len() as u64, "{packets} packets");
    assert!(capture.skipped == 0 || capture.note.is_some());
    let mut replay = Replay::new(capture);
    for sequence in 0..2 * REPLAYED as u64 {
        let record = replay.record();
        assert_eq!(record.sequence, sequence);
        let mut emitted = [0; RECORD];
        record.emit(&mut emitted);
        assert_eq!(Record::parse(&emitted), Some(record));
    }
}

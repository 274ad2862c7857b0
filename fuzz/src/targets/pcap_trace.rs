//! A capture file from any program: its blocks, the bytes of its packets, and their replay.

use headworks_workloads::apps::flows::{Capture, RECORD, Record, Replay};

/// Maximum number of packets of one input that are replayed.
const REPLAYED: usize = 64;

pub(super) fn run(bytes: &[u8]) {
    let capture = match Capture::read_from(bytes, REPLAYED) {
        Ok(capture) => capture,
        Err(fault) => {
            assert!(!fault.to_string().contains('\n'), "several lines");
            return;
        }
    };
    assert!(capture.packets.len() <= REPLAYED && !capture.packets.is_empty());
    // Every packet takes at least the 12 bytes of its header in the file.
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

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use headworks_shm::{DescriptorRequest, DescriptorSource, HostKey, Registry};
use headworks_verbs::{CqInit, Device};

use super::*;
use crate::control::device::SoftDevice;
use crate::control::provider::info;
use crate::datapath::context::Context;
use crate::table::rows::{MAX_CQ, MAX_QP, QpLife};

fn registry() -> (tempfile::TempDir, Arc<Registry>) {
    let folder = tempfile::tempdir().unwrap();
    let dir = Registry::open_at(folder.path().join("fabric")).unwrap();
    (folder, dir)
}

fn open(dir: &Arc<Registry>, name: &str) -> SoftDevice {
    SoftDevice::over(Context::open(dir.clone(), info(&name.parse().unwrap())).unwrap())
}

#[test]
fn hosts_processes_and_objects_are_seen() {
    let (_folder, dir) = registry();
    assert!(look(&dir, None).unwrap().contexts.is_empty());
    let (one, two) = (open(&dir, "soft:h2"), open(&dir, "soft:h1"));
    let again = open(&dir, "soft:h1");
    let init = CqInit {
        depth: 5,
        ..CqInit::default()
    };
    let cq = one.create_cq(&init).unwrap();
    let snapshot = look(&dir, None).unwrap();
    let hosts: Vec<_> = snapshot
        .contexts
        .iter()
        .map(|c| (&*c.host, c.index))
        .collect();
    assert_eq!(hosts, [("h1", 0), ("h1", 1), ("h2", 0)]);
    let us = dir.join().unwrap().id();
    let record = dir.process_record(us).unwrap().unwrap();
    for context in &snapshot.contexts {
        assert_eq!((context.pid, context.process), (std::process::id(), us));
        assert_eq!(context.command, record.command());
        assert!(!context.command.is_empty());
        assert!(context.queue_pairs.is_empty());
    }
    let queues = &look(&dir, Some("h2")).unwrap().contexts[0].completion_queues;
    assert_eq!((queues.len(), queues[0].depth), (1, 8));
    cq.arm(false);
    assert!(look(&dir, Some("h2")).unwrap().contexts[0].completion_queues[0].armed);
    assert!(look(&dir, Some("h3")).unwrap().contexts.is_empty());
    drop((cq, one, two, again));
    assert!(look(&dir, None).unwrap().contexts.is_empty());
}

#[test]
fn those_that_leave_are_left_out_and_others_versions_named() {
    let (_folder, dir) = registry();
    let member = dir.join().unwrap();
    let odd: Arc<OddSource> = Arc::new(OddSource);
    let weak: Weak<OddSource> = Arc::downgrade(&odd);
    member.serve(3, weak).unwrap();
    let record = |layout_version, incarnation| ContextRecord {
        process: member.id(),
        layout_version,
        incarnation,
        host_name: "h1".to_owned(),
    };
    // The first hands out nothing, the second has another layout version, the third hands out no table.
    let claims = [
        record(LAYOUT_VERSION, 1),
        record(LAYOUT_VERSION + 1, 2),
        record(LAYOUT_VERSION, 3),
    ]
    .map(|record| dir.claim_context(HostKey(1), &member, &record).unwrap());
    let snapshot = look(&dir, None).unwrap();
    assert!(snapshot.contexts.is_empty());
    let why: Vec<_> = snapshot.unreadable.iter().map(|u| &*u.why).collect();
    assert_eq!(why.len(), 2, "{why:?}");
    assert!(why[0].contains("this program reads version"), "{why:?}");
    assert!(why[1].starts_with("attaching its table"), "{why:?}");
    drop(claims);
}

#[test]
fn entries_of_another_version_are_unreadable_not_absent() {
    let (_folder, dir) = registry();
    let (_one, _two) = (open(&dir, "soft:h1"), open(&dir, "soft:h2"));
    let make_newer = |name: &str| {
        let file = dir.path().join(name);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[4] = 9;
        std::fs::write(&file, bytes).unwrap();
    };
    let found = |host| {
        let snapshot = look(&dir, host).unwrap();
        let unreadable = snapshot.unreadable.iter();
        let unreadable: Vec<_> = unreadable.map(|one| (one.host.clone(), one.pid)).collect();
        for one in &snapshot.unreadable {
            assert!(one.why.contains("has version 9"), "{one:?}");
        }
        (snapshot.contexts.len(), unreadable)
    };
    make_newer(&format!("c.{:016x}.0000", host_key("h1").0));
    // The entry cannot be read, so nothing but the key of its host is known.
    assert_eq!(found(None), (1, vec![(None, None)]));
    assert_eq!(found(Some("h1")), (0, vec![(None, None)]));
    assert_eq!(found(Some("h2")), (1, vec![]));
    let slot = dir.join().unwrap().id().slot;
    make_newer(&format!("p.{slot:05}"));
    let of_process = (Some("h2".to_owned()), None);
    assert_eq!(found(Some("h2")), (0, vec![of_process]));
}

/// Hands out a file that is no table.
struct OddSource;

impl DescriptorSource for OddSource {
    fn descriptors(&self, _: DescriptorRequest) -> std::io::Result<Option<Vec<OwnedFd>>> {
        let file = std::fs::File::open("/dev/null")?;
        Ok(Some(vec![file.into()]))
    }
}

#[test]
fn a_table_of_garbage_is_only_strange() {
    let (_folder, dir) = registry();
    let device = open(&dir, "soft");
    let table = &device.context.table;
    for pattern in [u64::MAX, 0x5555_5555_5555_5555, 1, 1 << 63] {
        scribble(table, pattern);
        let snapshot = look(&dir, None).unwrap();
        let context = &snapshot.contexts[0];
        // The values in the rows may be anything, but their number is bounded.
        assert!(context.queue_pairs.len() <= MAX_QP);
        assert!(context.completion_queues.len() <= MAX_CQ);
        for queue in &context.completion_queues {
            assert!(queue.counters.unpolled <= queue.depth, "{queue:?}");
        }
    }
    scribble(table, 0);
}

/// Fills every word of a table with `word`, as a broken process might.
pub(crate) fn scribble(table: &Table, word: u64) {
    use std::sync::atomic::Ordering::Relaxed;
    for slot in 0..MAX_QP {
        let row = table.qp(slot);
        row.life.store(word, Relaxed);
        row.dest_gid.store(word, Relaxed);
        for half in [
            &row.qpn,
            &row.dest_qpn,
            &row.srq,
            &row.send_cq,
            &row.recv_cq,
        ] {
            half.store(word as u32, Relaxed);
        }
        row.executing.posting.store(word, Relaxed);
        row.executing.lane.store(word, Relaxed);
        row.sq_retired.store(word, Relaxed);
        row.rq_retired.store(word, Relaxed);
        row.rq_posted.store(word, Relaxed);
    }
    for row in (0..MAX_CQ as u32).map(|row| table.cq(row)) {
        row.life.store(word as u32, Relaxed);
        row.queue.segment.store(word as u32, Relaxed);
        row.queue.segment_generation.store(word as u32, Relaxed);
        row.queue.offset.store(word, Relaxed);
        row.queue.capacity.store(word, Relaxed);
        row.counts.polled.store(word, Relaxed);
        row.counts.lane_polled.store(!word, Relaxed);
    }
    for row in 0..crate::table::rows::MAX_SRQ as u32 {
        table.srq(row).life.store(word as u32, Relaxed);
        table.srq(row).limit.store(word as u32, Relaxed);
    }
    for row in 0..crate::table::rows::MAX_REGION as u32 {
        table.region(row).key.store(word, Relaxed);
        table.region(row).len.store(word, Relaxed);
    }
    for row in 0..crate::table::rows::MAX_SEGMENT as u32 {
        table.segment(row).len.store(word, Relaxed);
    }
    let _ = QpLife(word).state();
}

//! A fabric is inspected from outside while its processes die, or write anything to their rows.

use std::sync::atomic::{AtomicBool, Ordering};

use headworks_shm::{DescriptorClient, SharedSegment};

use super::child::PeerTestProcess;
use super::*;
use crate::inspect::{RegistrySnapshot, look};
use crate::table::descriptors::DescriptorKind;
use crate::table::rows::{MAX_CQ, MAX_QP, Table};

/// Inspects the fabric repeatedly while `happens` runs, and passes each snapshot to `check`.
fn looked_at(fabric: &Fabric, check: impl Fn(&RegistrySnapshot) + Sync, happens: impl FnOnce()) {
    let (looked, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let onlooker = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                check(&look(&fabric.dir, None).unwrap());
                looked.store(true, Ordering::Relaxed);
            }
        });
        while !looked.load(Ordering::Relaxed) && !onlooker.is_finished() {
            std::thread::yield_now();
        }
        happens();
        over.store(true, Ordering::Relaxed);
        onlooker.join().unwrap();
    });
}

#[test]
fn a_process_that_is_killed_while_it_is_looked_at_is_seen_whole_or_not_at_all() {
    for _ in 0..8 {
        let fabric = Fabric::new();
        let mut others = ["h1", "h2"].map(|host| PeerTestProcess::start(&fabric, host));
        let [a, b] = &mut others;
        PeerTestProcess::join_each_other(a, b);
        let whole = |snapshot: &RegistrySnapshot| {
            assert_eq!(snapshot.unreadable, []);
            for context in &snapshot.contexts {
                assert_eq!(context.queue_pairs.len(), 1, "{context:?}");
                assert_eq!(context.queue_pairs[0].state, QpState::Rts, "{context:?}");
            }
        };
        // A queue pair whose peer dies goes to the error state, so this check ignores states.
        let quiet = |snapshot: &RegistrySnapshot| assert_eq!(snapshot.unreadable, []);
        looked_at(&fabric, whole, || a.tell("write-far"));
        looked_at(&fabric, quiet, || {
            a.kill();
            b.kill();
        });
        assert!(look(&fabric.dir, None).unwrap().contexts.is_empty());
    }
}

#[test]
fn a_process_that_writes_anything_to_its_rows_is_only_strange() {
    let fabric = Fabric::new();
    let mut other = PeerTestProcess::start(&fabric, "h2");
    let ((host, _), _) = fabric.dir.list_contexts().unwrap().entries[0];
    let record = fabric.dir.lookup_context(host, 0).unwrap().unwrap();
    let client = DescriptorClient::connect(&fabric.dir, record.process);
    let mut client = client.unwrap().unwrap();
    let found = client.descriptors(record.incarnation, DescriptorKind::Table.into());
    let table = found.unwrap().unwrap().swap_remove(0);
    let segment = SharedSegment::attach(table).unwrap();
    let table = Table::new(Arc::new(segment)).unwrap();
    let bounded = |snapshot: &RegistrySnapshot| {
        for context in &snapshot.contexts {
            assert!(context.queue_pairs.len() <= MAX_QP);
            assert!(context.completion_queues.len() <= MAX_CQ);
            for queue in &context.completion_queues {
                assert!(queue.counters.unpolled <= queue.depth, "{queue:?}");
            }
        }
    };
    looked_at(&fabric, bounded, || {
        for round in 0..40_u64 {
            for word in [u64::MAX, 0x5555_5555_5555_5555, round, round << 60, 0] {
                crate::inspect::tests::scribble(&table, word);
            }
        }
    });
    other.kill();
}

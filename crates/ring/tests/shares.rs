//! Descriptors, registrations and memory that the rings of a large group use and return. This is a separate
//! test program, because it counts the descriptors of the whole process.
#![cfg(not(loom))]

use std::sync::Arc;

use headworks_ring::message_channel::meet;
use headworks_ring::{Group, GroupConfig, Mode, RingConfig, RingId, Sender, SenderSetup};
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_softnic::inspect::{self, ContextSnapshot};
use headworks_verbs::{Device, Provider};

const RINGS: usize = 1000;
const SLOTS: u64 = 128;
const SLOT: u64 = 64;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

struct Hosts {
    fabric: Arc<Registry>,
    left: Arc<dyn Device>,
    right: Arc<dyn Device>,
    _dir: tempfile::TempDir,
}

impl Hosts {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let fabric = Registry::open_at(dir.path().join("fabric")).expect("a fabric");
        let provider = SoftProvider::on(fabric.clone());
        let open = |name: &str| provider.open(&name.parse().expect("a name"));
        Self {
            left: open("soft:left").expect("opens"),
            right: open("soft:right").expect("opens"),
            fabric,
            _dir: dir,
        }
    }

    /// Returns the objects and memory that the group's device holds.
    fn held(&self) -> ContextSnapshot {
        let mut seen = inspect::look(&self.fabric, Some("right")).expect("looks");
        seen.contexts.pop().expect("the group's device")
    }

    fn join(&self, config: &RingConfig, group: &mut Group) -> (Sender, RingId) {
        let mut tx = SenderSetup::new(&self.left, config).expect("a sender");
        let mut seat = group.seat().expect("a seat");
        let (from_tx, from_group) = (tx.greeting(), seat.greeting());
        let ends = ((self.left.info(), &mut tx), (self.right.info(), &mut seat));
        meet(ends.0, ends.1, [1, 2]).expect("connects");
        let ring = group.admit(seat, &from_tx).expect("admits");
        (tx.finish(&from_group).expect("a sender"), ring)
    }
}

/// A thousand rings of the default size sleep on one descriptor. Their senders do not sleep.
#[test]
fn a_thousand_sleeping_rings_share_and_return_resources() {
    let hosts = Hosts::new();
    let sending = RingConfig::fixed(SLOTS as u32, SLOT as usize);
    let config = RingConfig {
        mode: Mode::Notify,
        ..sending.clone()
    };
    let idle = (descriptors(), hosts.held().segments.bytes);
    let mut group =
        Group::receiving(&hosts.right, &GroupConfig::new(config, RINGS)).expect("a group");
    let shared = hosts.held();
    assert_eq!(shared.regions.count, 1, "the tail array");
    println!(
        "empty: {} descriptors, {} KiB",
        descriptors() - idle.0,
        (shared.segments.bytes - idle.1) >> 10
    );
    let mut most = (0, 0);
    for lap in 0..2u8 {
        let mut rings: Vec<_> = (0..RINGS)
            .map(|_| hosts.join(&sending, &mut group))
            .collect();
        let full = hosts.held();
        assert_eq!(full.regions.count, 1 + RINGS as u64, "an array each");
        assert_eq!(full.queue_pairs.len(), RINGS);
        assert_eq!(full.completion_queues.len(), 1);
        let taken = (descriptors(), full.segments.bytes);
        println!(
            "lap {lap}: {} descriptors, {} KiB",
            taken.0 - idle.0,
            (taken.1 - idle.1) >> 10
        );
        // Counts segments and the peer's mappings of them. No ring has a descriptor of its own.
        assert!(taken.0 - idle.0 < RINGS / 2, "{taken:?}");
        // The bytes of a ring: its array, the cursor's cache line, and 2 × 128 receives of 128 bytes. The limit
        // below allows 25 % more, for the headers of queues and for unused parts of segments.
        let each = SLOTS * SLOT + 64 + 128 * 2 * SLOTS;
        let rings_take = taken.1 - shared.segments.bytes;
        assert!(
            rings_take < RINGS as u64 * each * 5 / 4,
            "{rings_take} bytes for rings of {each}"
        );
        if lap > 0 {
            assert!(taken.0 <= most.0, "{taken:?} after {most:?}: not closed");
            assert!(
                taken.1 <= most.1,
                "{taken:?} after {most:?}: not given back"
            );
        }
        most = taken;
        for (tx, _) in &mut rings {
            tx.try_send(&[lap; SLOT as usize]).expect("room");
            tx.flush().expect("whole");
        }
        let mut read = 0;
        while let Some((_, message)) = group.try_recv().expect("whole") {
            assert_eq!(message[0], lap);
            read += 1;
        }
        assert_eq!(read, RINGS);
        for (tx, ring) in rings {
            drop(tx);
            assert!(group.remove(ring));
        }
        let left = hosts.held();
        assert_eq!((left.regions.count, left.queue_pairs.len()), (1, 0));
    }
    drop(group);
    let left = hosts.held();
    assert_eq!((left.regions.count, left.completion_queues.len()), (0, 0));
    println!(
        "gone: {} descriptors, {} KiB",
        descriptors() - idle.0,
        (left.segments.bytes - idle.1) >> 10
    );
}

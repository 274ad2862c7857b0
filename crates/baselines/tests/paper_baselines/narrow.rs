//! A device with short send queues and late completions. Senders return `Full` as long as the send queue has
//! no room; no message is lost or reordered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks_baselines::paper_baselines::{BaselineSetup, Design, Plan};
use headworks_ring::oracle::{self, Checked, Op, Plain, op};
use headworks_ring::{Framing, MessageReceiver, MessageSender, SendError};
use headworks_verbs::Device;
use headworks_verbs::interpose::{InterposedDevice, Interposer};
use proptest::prelude::*;

use crate::{DesignTest, Hosts, Pair, every_design, fill, holds};

/// Holds completions back while set.
#[derive(Default)]
struct CompletionGate(AtomicBool);

impl Interposer for CompletionGate {
    fn admits_poll(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

/// Wraps `inner` so that its send queues hold `depth` requests.
fn over(inner: &Arc<dyn Device>, depth: u32, late: &Arc<CompletionGate>) -> Arc<dyn Device> {
    let mut info = inner.info().clone();
    info.limits.max_qp_wr = info.limits.max_qp_wr.min(depth);
    Arc::new(InterposedDevice::with_info(
        inner.clone(),
        info,
        late.clone(),
    ))
}

/// Connects a channel whose sender's queue holds `depth` requests. Returns its completion gate too.
fn narrow<D: Design>(hosts: &Hosts, design: &D, depth: u32) -> (Pair<D>, Arc<CompletionGate>) {
    let late = Arc::new(CompletionGate::default());
    let left = over(&hosts.left, depth, &late);
    let tx = BaselineSetup::sender(&left, design.clone()).unwrap();
    let rx = BaselineSetup::receiver(&hosts.right, design.clone()).unwrap();
    let (tx, rx) = oracle::connect(&*left, tx, &*hosts.right, rx);
    ((tx.unwrap(), rx.unwrap()), late)
}

/// Sends until there is no room, reads, lets completions through, and repeats. Holds the queue's depth.
struct Fills<'a>(&'a Hosts, u32);

const LEN: usize = 64;

impl DesignTest for Fills<'_> {
    fn act<D: Design>(&mut self, design: &D) {
        let ((mut tx, mut rx), late) = narrow(self.0, design, self.1);
        let (tag, depth) = (design.tag(), self.1);
        let (mut sent, mut read) = (0, 0);
        for round in 0..40 {
            late.0.store(true, Ordering::Relaxed);
            let before = sent;
            loop {
                match tx.try_send_with(LEN, |place| fill(sent, place)) {
                    Ok(()) => sent += 1,
                    Err(SendError::Full) => break,
                    Err(error) => panic!("design {tag}: {error}"),
                }
            }
            assert!(sent > before, "design {tag}: stuck in round {round}");
            // Stepping and flushing again does no harm.
            assert!(tx.step().is_ok() && tx.flush().is_ok());
            while let Some(good) = rx.try_recv_with(|bytes| holds(read, bytes)).unwrap() {
                assert!(good, "design {tag}, {depth} requests: message {read}");
                read += 1;
            }
            late.0.store(false, Ordering::Relaxed);
            for _ in 0..4 {
                tx.step().unwrap();
                rx.step().unwrap();
                rx.push_head().unwrap();
            }
        }
        while let Some(good) = rx.try_recv_with(|bytes| holds(read, bytes)).unwrap() {
            assert!(good, "design {tag}: message {read}");
            read += 1;
            tx.step().unwrap();
        }
        assert_eq!(read, sent, "design {tag}, {depth} requests: some are lost");
    }
}

#[test]
fn no_room_in_the_send_queue_is_full_until_completions_come() {
    let hosts = Hosts::soft("");
    let plan = Plan {
        messages: 128,
        longest: LEN,
    };
    for depth in DEPTHS {
        every_design(plan, Framing::Fixed(LEN), (4, 4), &mut Fills(&hosts, depth));
        every_design(
            plan,
            Framing::Variable(200),
            (0, 2),
            &mut Fills(&hosts, depth),
        );
    }
}

/// Depths of a sender's queue: fewer requests than any design asks for.
const DEPTHS: [u32; 3] = [4, 5, 11];

/// Runs operations while completions are held back and released.
struct ReplayOps<'a> {
    hosts: &'a Hosts,
    depth: u32,
    ops: &'a [(Op, bool)],
}

impl DesignTest for ReplayOps<'_> {
    fn act<D: Design>(&mut self, design: &D) {
        let ((tx, rx), late) = narrow(self.hosts, design, self.depth);
        let framing = design.settle().unwrap().framing;
        let mut checked: Checked<Plain<_, _>> = Checked::new(tx, rx, framing);
        for &(op, wait) in self.ops {
            late.0.store(wait, Ordering::Relaxed);
            checked.run(op);
        }
        late.0.store(false, Ordering::Relaxed);
        checked.finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_message_arrives_though_completions_are_late(
        depth in 4_u32..12,
        slots in 2_u32..24,
        (alpha, gamma, len, fixed) in any::<(u32, u32, u32, bool)>(),
        ops in proptest::collection::vec((op(), any::<bool>()), 0..200),
    ) {
        let hosts = Hosts::soft("");
        let plan = Plan { messages: slots, longest: len as usize % 700 };
        let mut scenario = ReplayOps { hosts: &hosts, depth, ops: &ops };
        every_design(plan, crate::framing(slots, fixed, len), (alpha, gamma), &mut scenario);
    }
}

//! - Taking memory away: an owner that has waited for the sender has the memory to itself.
//! - A start time is only attributed to the process that holds the row, also while it changes hands.
//! - Reclaiming: wherever a sender dies, each receive is completed once or posted again once.
//! - A row that changes hands while its first holder dies is not reclaimed.

use std::cell::RefCell;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::primitive::AtomicBool;
use crate::slot_queue::SingleProducer;
use crate::slot_queue::tests::HeapQueue;

/// The row's mark on what its sender has in hand.
const WHO: u16 = 0x4000;
const OTHER: u16 = 0x4001;

fn bounded(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

fn row() -> SenderRow {
    SenderRow {
        life: AtomicU64::new(0),
        process_generation: AtomicU64::new(0),
        executing: AtomicU64::new(0),
        completing: AtomicU64::new(0),
    }
}

/// Makes the process in `slot` a sender whose generation is ten times its slot.
fn become_sender(row: &SenderRow, slot: u32) -> Option<SenderLife> {
    let claimed = row.claim(slot)?;
    row.publish_owner(u64::from(slot) * 10);
    row.activate(claimed)
}

#[test]
fn loom_memory_is_taken_away_when_its_senders_have_gone_on() {
    struct Target {
        row: SenderRow,
        key: AtomicU64,
        memory: UnsafeCell<u64>,
    }

    bounded(|| {
        let target = Arc::new(Target {
            row: row(),
            key: AtomicU64::new(1),
            memory: UnsafeCell::new(0),
        });
        become_sender(&target.row, 1).unwrap();
        let sender = {
            let target = target.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let _delivering = target.row.begin_delivery(false);
                    if target.key.load(Ordering::Relaxed) == 1 {
                        // SAFETY: loom fails the test if another thread accesses it at the same time.
                        target.memory.with_mut(|memory| unsafe { *memory += 1 });
                    }
                }
            })
        };
        target.key.store(0, Ordering::Relaxed);
        asymmetric_fence::heavy();
        if let Some((life, count)) = target.row.delivery_in_progress() {
            while !target.row.is_delivery_over(life, count) {
                thread::yield_now();
            }
        }
        // SAFETY: as above.
        target.memory.with_mut(|memory| unsafe { *memory = 7 });
        sender.join().unwrap();
        // SAFETY: as above.
        assert_eq!(target.memory.with(|memory| unsafe { *memory }), 7);
    });
}

#[test]
fn loom_a_row_is_asked_for_the_process_that_has_it() {
    bounded(|| {
        let row = Arc::new(row());
        let first = become_sender(&row, 1).unwrap();
        let senders = {
            let row = row.clone();
            thread::spawn(move || {
                row.release(first);
                become_sender(&row, 2).unwrap();
            })
        };
        let life = row.life();
        if life.state() == SenderState::Live
            && let Some(process) = row.process_of(life)
        {
            assert_eq!(process.generation, u64::from(life.slot()) * 10);
        }
        senders.join().unwrap();
        let life = row.life();
        let process = ProcessId {
            slot: 2,
            generation: 20,
        };
        assert_eq!(row.process_of(life), Some(process));
    });
}

/// Memory that the senders to one queue pair share.
struct Port {
    row: SenderRow,
    receives: HeapQueue<u64>,
    completions: HeapQueue<u64>,
}

impl Port {
    /// Makes a port with receives 1 to `receives`.
    fn new(receives: u64) -> (Arc<Self>, SingleProducer<u64>) {
        let port = Self {
            row: row(),
            receives: HeapQueue::new(2),
            completions: HeapQueue::new(2),
        };
        // SAFETY: no other producer appends to it.
        let mut posting = unsafe { port.receives.queue.single_producer() };
        for receive in 1..=receives {
            posting.push(&receive).unwrap();
        }
        (Arc::new(port), posting)
    }

    /// Delivers a message in the name of `who`, which holds `row`, and dies after step `last`.
    fn deliver(&self, row: Option<&SenderRow>, who: u16, last: usize) {
        let delivering = row.map(|row| row.begin_delivery(false));
        let (receives, completions) = (&self.receives.queue, &self.completions.queue);
        let mut steps = 0..last;
        let mut dies = || steps.next().is_none();
        let Some(receive) = receives.claim_pop(who).unwrap() else {
            return;
        };
        if dies() {
            return std::mem::forget(delivering);
        }
        let place = completions.claim_push(who).unwrap();
        if dies() {
            return std::mem::forget(delivering);
        }
        if let Some(row) = row {
            row.mark_completing();
        }
        if dies() {
            return std::mem::forget(delivering);
        }
        completions.commit(place, &receives.value(&receive));
        if dies() {
            return std::mem::forget(delivering);
        }
        receives.finish(receive);
        if dies() {
            std::mem::forget(delivering);
        }
    }

    /// Checks that every receive is completed or still posted, exactly once. Returns the completed ones.
    fn check(&self, receives: u64) -> Vec<u64> {
        // SAFETY: no other thread consumes any more.
        let mut queue = unsafe { self.completions.queue.single_consumer() };
        let mut completed = Vec::new();
        while let Some((_, receive)) = queue.pop().unwrap() {
            completed.push(receive);
        }
        let mut all = completed.clone();
        while let Some((_, receive)) = self.receives.queue.try_pop(9).unwrap() {
            all.push(receive);
        }
        all.sort_unstable();
        assert_eq!(all, (1..=receives).collect::<Vec<_>>());
        completed
    }
}

struct PortDelivery<'a> {
    port: &'a Port,
    posting: RefCell<SingleProducer<u64>>,
}

impl UnfinishedDelivery for PortDelivery<'_> {
    fn has_reserved_completion(&self) -> bool {
        self.port.completions.queue.is_reserved_by(WHO)
    }

    fn roll_back(&self, completed: bool) {
        let mut receives = Vec::new();
        let port = self.port;
        // SAFETY: the sender is dead, and the row gets no new holder before this is over.
        unsafe {
            let queue = &port.receives.queue;
            queue.recover(|who| who == WHO, |_, receive| receives.push(receive));
            port.completions.queue.recover(|who| who == WHO, |_, _| {});
        }
        for receive in receives.into_iter().filter(|_| !completed) {
            self.posting.borrow_mut().push(&receive).unwrap();
        }
    }
}

#[test]
fn loom_a_sender_that_dies_anywhere_takes_no_receive_with_it() {
    for last in 0..6 {
        bounded(move || {
            let (port, posting) = Port::new(2);
            let life = become_sender(&port.row, 1).unwrap();
            port.deliver(Some(&port.row), WHO, last);
            // Another sender delivers during the reclaiming.
            let other = {
                let port = port.clone();
                thread::spawn(move || port.deliver(None, OTHER, usize::MAX))
            };
            let posting = RefCell::new(posting);
            let left = PortDelivery {
                port: &port,
                posting,
            };
            assert!(port.row.reclaim_dead(life, &left));
            other.join().unwrap();
            let completed = port.check(2);
            assert_eq!(completed.contains(&1), last >= 3, "{completed:?}");
            assert_eq!(port.row.life().state(), SenderState::Free);
        });
    }
}

#[test]
fn loom_a_row_that_has_changed_hands_is_not_reclaimed() {
    bounded(|| {
        let (port, posting) = Port::new(1);
        let first = become_sender(&port.row, 1).unwrap();
        let dead = Arc::new(AtomicBool::new(false));
        let senders = {
            let (port, dead) = (port.clone(), dead.clone());
            thread::spawn(move || {
                port.row.release(first);
                dead.store(true, Ordering::Release);
                // Another process takes the row.
                become_sender(&port.row, 2).unwrap();
                port.deliver(Some(&port.row), WHO, usize::MAX);
            })
        };
        let life = port.row.life();
        if life.slot() == 1 && life.state() == SenderState::Live && dead.load(Ordering::Acquire) {
            let posting = RefCell::new(posting);
            let port = &*port;
            assert!(!port.row.reclaim_dead(life, &PortDelivery { port, posting }));
        }
        senders.join().unwrap();
        assert_eq!(port.check(1), [1]);
    });
}

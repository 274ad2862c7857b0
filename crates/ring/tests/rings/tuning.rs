//! Rings on devices whose names ask for relaxed ordering or for inline slots.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use headworks_ring::oracle::Op;
use headworks_ring::{Framing, Mode, RingConfig};
use headworks_verbs::interpose::{InterposedDevice, Interposer};
use headworks_verbs::{Access, Device, Payload, SendOp, SendWr, Tuning};

use crate::group;
use crate::hostile_devices::{LIMIT, receive, send};
use crate::pair::{Hosts, checked, config, connect, fill, holds};

/// A WRITE, as it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PostedWrite {
    /// Key of the region that it is to.
    rkey: u32,
    len: usize,
    is_inline: bool,
}

/// Records the WRITEs and the registrations of a device.
#[derive(Default)]
struct Recorder {
    writes: Mutex<Vec<PostedWrite>>,
    registered: Mutex<HashMap<u32, Access>>,
}

impl Recorder {
    fn take(&self) -> Vec<PostedWrite> {
        std::mem::take(&mut *self.writes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_relaxed(&self, rkey: u32) -> bool {
        let registered = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        registered[&rkey].contains(Access::RELAXED_ORDERING)
    }
}

impl Interposer for Recorder {
    fn on_registered(&self, rkey: u32, access: Access) {
        let mut registered = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        registered.insert(rkey, access);
    }

    fn on_send_posted(&self, posted: &[SendWr<'_>]) {
        let mut all = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(posted.iter().filter_map(|wr| {
            let SendOp::Write(to) = wr.op else {
                return None;
            };
            let (len, is_inline) = match wr.payload {
                Payload::Inline(bytes) => (bytes.len(), true),
                Payload::Gather(sges) => (sges.iter().map(|sge| sge.len as usize).sum(), false),
            };
            Some(PostedWrite {
                rkey: to.rkey,
                len,
                is_inline,
            })
        }));
    }
}

fn tuned(device: &Arc<dyn Device>, tuning: Tuning) -> (Arc<dyn Device>, Arc<Recorder>) {
    let mut info = device.info().clone();
    info.tuning = tuning;
    let recorder = Arc::new(Recorder::default());
    let device = InterposedDevice::with_info(device.clone(), info, recorder.clone());
    (Arc::new(device), recorder)
}

/// Each message is published at once.
fn single(mode: Mode) -> RingConfig {
    RingConfig {
        publish_every: Some(1),
        ..config(8, Framing::Fixed(24), mode)
    }
}

#[test]
fn slots_up_to_the_length_that_the_device_was_given_are_posted_inline() {
    let hosts = Hosts::new();
    for mode in [Mode::Poll, Mode::Latency, Mode::Notify] {
        let config = single(mode);
        let mut slot = None;
        for inline_up_to in [0, 32, 1 << 20] {
            let tuning = Tuning {
                inline_up_to,
                ..Tuning::default()
            };
            let (left, recorder) = tuned(&hosts.left, tuning);
            let (tx, rx) = connect(&left, &config, &hosts.right, &config).unwrap();
            let (tx, rx) = (tx.unwrap(), rx.unwrap());
            let granted = inline_up_to.min(left.info().limits.max_inline) as usize;
            let mut ring = checked(tx, rx, config.framing);
            for _ in 0..3 {
                ring.run(Op::Send(255));
            }
            ring.finish();
            // Other WRITEs than those of slots are words of 8 bytes.
            let slots: Vec<_> = recorder.take();
            let slots: Vec<_> = slots.iter().filter(|write| write.len > 8).collect();
            assert!(slots.len() >= 3, "{slots:?}");
            for write in slots {
                assert_eq!(write.is_inline, write.len <= granted, "{mode:?} {write:?}");
                slot = Some(write.len);
            }
        }
        assert!(slot.is_some_and(|slot| slot >= 24));
    }
}

/// In latency mode the last word of a slot announces it, so its bytes keep their order.
#[test]
fn slots_with_relaxed_ordering_lie_in_another_region_than_the_word_that_announces_them() {
    let hosts = Hosts::soft();
    for (mode, are_apart) in [(Mode::Poll, true), (Mode::Latency, false)] {
        for relaxed_ordering in [false, true] {
            let tuning = Tuning {
                relaxed_ordering,
                ..Tuning::default()
            };
            let (left, recorder) = tuned(&hosts.left, tuning);
            let (right, registered) = tuned(&hosts.right, tuning);
            let config = single(mode);
            let (tx, rx) = connect(&left, &config, &right, &config).unwrap();
            let (mut tx, mut rx) = (tx.unwrap(), rx.unwrap());
            let count = 1000;
            std::thread::scope(|scope| {
                let sending = scope.spawn(|| send(&mut tx, count));
                assert_eq!(receive(&mut rx, count), (count, None));
                assert_eq!(sending.join().unwrap(), Ok(count));
            });
            let writes = recorder.take();
            assert!(writes.len() as u64 >= count);
            for write in writes {
                // The words that announce slots have 8 bytes.
                let expected = relaxed_ordering && are_apart && write.len > 8;
                let is_relaxed = registered.is_relaxed(write.rkey);
                assert_eq!(is_relaxed, expected, "{mode:?} {write:?}");
            }
        }
    }
}

/// The word of a ring in a group lies in the group's tail array, which keeps the order.
#[test]
fn rings_of_a_group_with_relaxed_slots_deliver_everything_in_order_on_hostile_devices() {
    const RINGS: usize = 4;
    const MESSAGES: u64 = 300;
    for seed in 1..6 {
        let [left, right] = ["h1", "h2"]
            .map(|host| format!("soft:{host},hostile,seed={seed},relaxed_ordering=yes"));
        let hosts = Hosts::named(&left, &right);
        let config = single(Mode::Poll);
        let mut group = group::group(&hosts, &config, RINGS);
        let mut ends: Vec<_> = (0..RINGS)
            .map(|_| group::join(&hosts, &config, &mut group))
            .collect();
        let (mut sent, mut received) = ([0; RINGS], [0; RINGS]);
        let began = Instant::now();
        while received != [MESSAGES; RINGS] {
            assert!(
                began.elapsed() < LIMIT,
                "stuck after {received:?} of {sent:?}"
            );
            std::thread::yield_now();
            for (at, (tx, _)) in ends.iter_mut().enumerate() {
                let number = (at as u64) << 32 | sent[at];
                let mut message = [0; 24];
                fill(number, &mut message);
                if sent[at] < MESSAGES && tx.try_send(&message).is_ok() {
                    sent[at] += 1;
                }
                tx.step().unwrap();
            }
            while let Some((ring, message)) = group.try_recv().unwrap() {
                let at = ring.index();
                assert!(
                    holds((at as u64) << 32 | received[at], &message),
                    "seed {seed}"
                );
                received[at] += 1;
            }
        }
    }
}

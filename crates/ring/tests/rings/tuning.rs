//! Rings on devices whose names ask for relaxed ordering or for inline slots.

use std::sync::{Arc, Mutex, PoisonError};

use headworks_ring::oracle::Op;
use headworks_ring::{Framing, Mode, RingConfig};
use headworks_verbs::interpose::{InterposedDevice, Interposer};
use headworks_verbs::{Device, Payload, SendOp, SendWr, Tuning};

use crate::hostile_devices::{receive, send};
use crate::pair::{Hosts, checked, config, connect};

/// A WRITE, as it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PostedWrite {
    /// Key of the region that it is to.
    rkey: u32,
    len: usize,
    is_inline: bool,
}

/// Records the WRITEs of a device.
#[derive(Default)]
struct Recorder(Mutex<Vec<PostedWrite>>);

impl Recorder {
    fn take(&self) -> Vec<PostedWrite> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Interposer for Recorder {
    fn on_send_posted(&self, posted: &[SendWr<'_>]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
            let (right, _) = tuned(&hosts.right, tuning);
            let config = single(mode);
            let (tx, rx) = connect(&left, &config, &right, &config).unwrap();
            let (mut tx, mut rx) = (tx.unwrap(), rx.unwrap());
            let count = 1000;
            std::thread::scope(|scope| {
                let sending = scope.spawn(|| send(&mut tx, count));
                assert_eq!(receive(&mut rx, count), (count, None));
                assert_eq!(sending.join().unwrap(), Ok(count));
            });
            let mut keys: Vec<u32> = recorder.take().iter().map(|write| write.rkey).collect();
            keys.sort_unstable();
            keys.dedup();
            let expected = if relaxed_ordering && are_apart { 2 } else { 1 };
            assert_eq!(keys.len(), expected, "{mode:?} {relaxed_ordering}");
        }
    }
}

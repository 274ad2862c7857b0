//! A device whose longest message holds few slots. Adjacent slots are sent in several WRITEs, and a slot
//! longer than a message is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use headworks_ring::oracle::{Checked, Ring, op};
use headworks_ring::{Framing, Mode, ReceiverSetup, RingConfig, SenderSetup};
use headworks_verbs::interpose::{InterposedDevice, Interposer};
use headworks_verbs::{Device, Payload, SendWr};
use proptest::prelude::*;

use crate::oracle::rings;
use crate::pair::{Hosts, config, connect, fill, flush, holds, poll_until};

/// Controls and observes a device.
#[derive(Default)]
struct DeviceProbe {
    /// Length of the longest request, in bytes.
    longest: AtomicU64,
    /// Holds completions back while set.
    late: AtomicBool,
}

impl Interposer for DeviceProbe {
    fn on_send_posted(&self, posted: &[SendWr<'_>]) {
        for wr in posted {
            let bytes = match wr.payload {
                Payload::Inline(bytes) => bytes.len() as u64,
                Payload::Gather(sges) => sges.iter().map(|sge| u64::from(sge.len)).sum(),
            };
            self.longest.fetch_max(bytes, Ordering::Relaxed);
        }
    }
    fn admits_poll(&self) -> bool {
        !self.late.load(Ordering::Relaxed)
    }
}

/// Wraps `inner` so that messages have at most `bytes` bytes and send queues hold `depth` requests.
fn short(inner: &Arc<dyn Device>, bytes: u32, depth: u32) -> (Arc<dyn Device>, Arc<DeviceProbe>) {
    let mut info = inner.info().clone();
    info.limits.max_message = bytes;
    info.limits.max_qp_wr = info.limits.max_qp_wr.min(depth);
    let watching = Arc::new(DeviceProbe::default());
    let device = InterposedDevice::with_info(inner.clone(), info, watching.clone());
    (Arc::new(device), watching)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_message_arrives_in_parts(
        rings in proptest::collection::vec(
            (rings(), 1..6_u64, 0..8_u32, proptest::collection::vec((op(), any::<bool>()), 0..300)),
            1..4,
        ),
    ) {
        let hosts = Hosts::soft();
        for (config, together, bytes_more, ops) in rings {
            let ring = config.settle().unwrap();
            let together = match ring.mode {
                Mode::Latency => together.max(ring.max_slots),
                _ => together,
            };
            let most = together as u32 * ring.slot_size as u32 + bytes_more;
            // The smallest send queue that such a ring can be created with.
            let groups = ring.slots.div_ceil(ring.transmit_every.min(together));
            let (left, watching) = short(&hosts.left, most, groups as u32 + 8);
            let (tx, rx) = connect(&left, &config, &hosts.right, &config).unwrap();
            let mut checked = Checked::<Ring>::new(tx.unwrap(), rx.unwrap(), config.framing);
            for (op, wait) in ops {
                watching.late.store(wait, Ordering::Relaxed);
                checked.run(op);
            }
            watching.late.store(false, Ordering::Relaxed);
            checked.finish();
            prop_assert!(watching.longest.load(Ordering::Relaxed) <= most.into());
        }
    }
}

/// A batch of sixteen slots is sent in five WRITEs of three slots and one of the rest.
#[test]
fn a_batch_is_cut_where_a_message_must_end() {
    let hosts = Hosts::soft();
    let config = RingConfig {
        transmit_every: Some(16),
        publish_every: Some(16),
        ..config(64, Framing::Fixed(64), Mode::Poll)
    };
    let slot = config.settle().unwrap().slot_size as u32;
    let (left, watching) = short(&hosts.left, 3 * slot + 7, u32::MAX);
    let (tx, rx) = connect(&left, &config, &hosts.right, &config).unwrap();
    let (mut tx, mut rx) = (tx.unwrap(), rx.unwrap());
    let mut message = [0; 64];
    for number in 0..16 {
        fill(number, &mut message);
        tx.try_send(&message).unwrap();
    }
    flush(&mut tx);
    assert_eq!(
        watching.longest.load(Ordering::Relaxed),
        3 * u64::from(slot)
    );
    assert_eq!((tx.stats().data_writes, tx.stats().tail_writes), (6, 1));
    for number in 0..16 {
        poll_until(|| {
            let got = rx.try_recv().unwrap()?;
            assert!(holds(number, &got));
            Some(())
        });
    }
}

#[test]
fn a_slot_longer_than_a_message_is_refused_with_both_lengths() {
    let hosts = Hosts::soft();
    let (device, _) = short(&hosts.left, 4096, u32::MAX);
    let refused = |config: &RingConfig| {
        SenderSetup::new(&device, config)
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    let whole = config(8, Framing::Fixed(4096), Mode::Poll);
    assert!(SenderSetup::new(&device, &whole).is_ok());
    let long = config(8, Framing::Fixed(4160), Mode::Poll);
    let said = refused(&long);
    assert!(
        said.contains("a slot is 4160") && said.contains("to 4096"),
        "{said}"
    );
    // A receiver posts no request that long.
    assert!(ReceiverSetup::new(&device, &long).is_ok());
    let latency = RingConfig {
        slot_size: Some(1024),
        ..config(64, Framing::Variable(6000), Mode::Latency)
    };
    let said = refused(&latency);
    assert!(
        said.contains("latency mode") && said.contains("to 4096"),
        "{said}"
    );
    let batched = RingConfig {
        mode: Mode::Poll,
        ..latency
    };
    assert!(SenderSetup::new(&device, &batched).is_ok());
    // The send queue holds fewer WRITEs than the ring may need before one completes.
    let (device, _) = short(&hosts.left, 64, 16);
    let many = RingConfig {
        transmit_every: Some(16),
        publish_every: Some(16),
        ..config(64, Framing::Fixed(64), Mode::Poll)
    };
    let said = SenderSetup::new(&device, &many)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("slots") && said.contains("at most 8"),
        "{said}"
    );
}

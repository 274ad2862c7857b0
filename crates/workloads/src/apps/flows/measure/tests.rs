//! The network function over rings of one process.

use headworks::ring::{RingConfig, SendError};

use super::*;
use crate::apps::flows::meter::truth;
use crate::apps::flows::{Digest, Mix, Synthetic};
use crate::apps::testing::{Hosts, STEPS_MAX, Way, rings};

fn traffic() -> Synthetic {
    Synthetic::new(&Mix {
        flows: 500,
        ..Mix::default()
    })
}

/// Steps both sides until they are done; the receiver only in every `slow`th round.
fn play(config: &RingConfig, records: u64, slow: u64) -> Meter {
    let (mut out, mut from) = Hosts::new().ring(config, Way::There);
    let mut tap = Tap::new(traffic(), records);
    let mut monitor = Monitor::new(Meter::default(), records);
    for round in 0..STEPS_MAX {
        let sent = tap.step(&mut out).expect("sends");
        if round % slow == 0 && monitor.step(&mut from).expect("counts") == Progress::Done {
            assert_eq!(
                (sent, tap.left(), monitor.taken()),
                (Progress::Done, 0, records)
            );
            return monitor.meter().clone();
        }
    }
    panic!("{} of {records} records came", monitor.taken());
}

#[test]
fn every_packet_is_counted_once_on_any_ring() {
    let truth = truth(&mut traffic(), 3000);
    let digest = Digest::of(&mut traffic(), 3000);
    for config in rings(RECORD) {
        for slow in [1, 7] {
            let meter = play(&config, 3000, slow);
            assert_eq!(meter.compare(&truth), Ok(()), "{config:?}");
            assert_eq!(meter.digest(), digest);
        }
    }
}

#[test]
fn no_records_are_no_work() {
    let meter = play(&RingConfig::fixed(8, RECORD), 0, 1);
    assert_eq!(meter.flows(), 0);
}

#[test]
fn what_is_no_record_or_not_the_next_one_is_refused() {
    let mut record = traffic().record();
    let mut refused = |sequence, version| {
        let (mut out, mut from) = Hosts::new().ring(&RingConfig::fixed(8, RECORD), Way::There);
        record.sequence = sequence;
        let mut message = [0; RECORD];
        record.emit(&mut message);
        message[13] = version;
        out.try_send(&message).expect("sends");
        out.flush().expect("flushes");
        let mut monitor = Monitor::new(Meter::default(), 9);
        for _ in 0..STEPS_MAX {
            match monitor.step(&mut from) {
                Ok(_) => assert_eq!(monitor.taken(), 0),
                Err(error) => return error.to_string(),
            }
        }
        panic!("nothing came");
    };
    assert_eq!(refused(3, 4), "record 3 came where 0 was due");
    assert_eq!(
        refused(0, 5),
        "a message of 40 bytes is no record of a packet"
    );
}

#[test]
fn a_ring_for_other_messages_is_an_error_and_so_is_a_peer_that_left() {
    let hosts = Hosts::new();
    let (mut out, _from) = hosts.ring(&RingConfig::fixed(8, 41), Way::There);
    let mut tap = Tap::new(traffic(), 1);
    let error = tap.step(&mut out).expect_err("another length");
    assert_eq!(
        error.to_string(),
        "a message of 40 bytes: this ring takes 41 to 41"
    );
    let (mut out, from) = hosts.ring(&RingConfig::fixed(8, RECORD), Way::There);
    drop(from);
    let mut tap = Tap::new(traffic(), 1 << 20);
    let gone = (0..STEPS_MAX).find_map(|_| tap.step(&mut out).err());
    assert!(
        matches!(gone, Some(AppError::Ring(error)) if error.is_peer_gone()),
        "{gone:?}"
    );
    assert_ne!(out.try_send(&[0; RECORD]), Err(SendError::Full));
}

//! Ends with different configurations are refused with one clear line.

use headworks_ring::{Framing, Mode, RingConfig, SenderSetup, SetupError};
use proptest::prelude::*;

use crate::pair::{Hosts, case_count, config, flush, poll_expr};

/// Returns the error that each end reports about the other.
fn refusals(sending: &RingConfig, receiving: &RingConfig) -> [String; 2] {
    let hosts = Hosts::new();
    let (tx, rx) = crate::pair::connect(&hosts.left, sending, &hosts.right, receiving).unwrap();
    [
        tx.map(drop).unwrap_err().to_string(),
        rx.map(drop).unwrap_err().to_string(),
    ]
}

fn check(other: &RingConfig, key: &str, ours: u64, theirs: u64) {
    let base = config(8, Framing::Fixed(32), Mode::Poll);
    let line = |theirs, ours| {
        format!("the other end's {key} is {theirs}, ours is {ours}: they must be the same")
    };
    assert_eq!(
        refusals(&base, other),
        [line(theirs, ours), line(ours, theirs)]
    );
}

#[test]
fn the_key_and_both_values_are_named() {
    let base = config(8, Framing::Fixed(32), Mode::Poll);
    check(&config(9, base.framing, base.mode), "slots", 8, 9);
    let wide = RingConfig {
        slot_size: Some(128),
        ..base.clone()
    };
    check(&wide, "slot_size", 64, 128);
    let variable = config(8, Framing::Variable(32), Mode::Poll);
    check(&variable, "framing (0 fixed, 1 variable)", 0, 1);
    let longer = config(8, Framing::Fixed(33), Mode::Poll);
    check(&longer, "message length", 32, 33);
    let latency = config(8, Framing::Fixed(32), Mode::Latency);
    // On devices where cursors cannot be polled, neither end uses latency mode.
    if Hosts::new().can_poll() {
        check(&latency, "latency mode", 0, 1);
    }
}

#[test]
fn one_end_that_sleeps_makes_both_notify() {
    for [a, b] in [[Mode::Poll, Mode::Notify], [Mode::Notify, Mode::Poll]] {
        let hosts = Hosts::new();
        let ends = [a, b].map(|mode| config(8, Framing::Fixed(32), mode));
        let (mut tx, mut rx) = hosts.connect(&ends[0], &ends[1]).unwrap();
        assert_eq!(
            (tx.ring().mode, rx.ring().mode),
            (Mode::Notify, Mode::Notify)
        );
        for n in 0..100u8 {
            while tx.try_send(&[n; 32]).is_err() {}
            flush(&mut tx);
            assert_eq!(&*poll_expr!(rx.try_recv().unwrap()), &[n; 32]);
        }
    }
}

#[test]
fn two_ends_of_the_same_kind_and_other_versions_are_refused() {
    let hosts = Hosts::new();
    let make = || SenderSetup::new(&hosts.left, &config(8, Framing::Fixed(32), Mode::Poll));
    let greeting = make().unwrap().greeting();
    let error = make().unwrap().finish(&greeting).map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "both ends send: one must send and one must receive"
    );
    let mut newer = greeting.clone();
    newer[0] = 3;
    newer.extend([0; 9]);
    let error = make().unwrap().finish(&newer).map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the other end's ring has layout version 3, this is version 2"
    );
    for len in 0..greeting.len() {
        let error = make().unwrap().finish(&greeting[..len]).map(drop);
        assert!(matches!(error, Err(SetupError::Greeting(_))), "{len}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(case_count(64)))]

    #[test]
    fn a_hostile_greeting_is_refused_or_harmless(
        at in 0usize..63,
        value in any::<u8>(),
        noise in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80)),
    ) {
        let hosts = Hosts::new();
        let config = config(8, Framing::Fixed(32), Mode::Poll);
        let mut greeting = SenderSetup::new(&hosts.left, &config).unwrap().greeting();
        greeting[2] = 2;
        greeting[at] = value;
        let greeting = noise.unwrap_or(greeting);
        let setup = SenderSetup::new(&hosts.left, &config).unwrap();
        if let Ok(mut tx) = setup.finish(&greeting) {
            // Never connected: calls return an error or `Full`, but do not panic.
            for _ in 0..20 {
                let _ = tx.try_send(&[0; 32]);
                let _ = tx.step();
            }
        }
    }
}

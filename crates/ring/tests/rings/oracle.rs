//! Random rings, messages and schedules, checked against a queue.

use headworks_ring::oracle::op;
use headworks_ring::{Framing, Mode, RingConfig};
use proptest::prelude::*;

use crate::pair::{Hosts, case_count, checked, config, longest};

/// Generates any legal ring with slots of 64 bytes.
pub(crate) fn rings() -> impl Strategy<Value = RingConfig> {
    let modes = prop_oneof![Just(Mode::Poll), Just(Mode::Latency), Just(Mode::Notify)];
    (2u32..40, modes, any::<[u32; 4]>(), any::<[bool; 3]>()).prop_map(
        |(slots, mode, [alpha, beta, gamma, len], [fixed, elastic, set])| {
            let highest = longest(slots, mode);
            let framing = if fixed {
                Framing::Fixed(1 + len as usize % 150)
            } else {
                Framing::Variable(len as usize % (highest + 1))
            };
            let alpha = 1 + alpha % (slots - 1);
            RingConfig {
                publish_every: set.then_some(alpha),
                transmit_every: (set && mode != Mode::Latency).then_some(1 + beta % alpha),
                push_every: set.then_some(1 + gamma % (slots - 1)),
                elastic: Some(elastic),
                ..config(slots, framing, mode)
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(case_count(120)))]

    #[test]
    fn every_message_arrives_once_in_order(
        rings in proptest::collection::vec((rings(), proptest::collection::vec(op(), 0..400)), 1..5),
    ) {
        let hosts = Hosts::new();
        for (config, ops) in rings {
            let (tx, rx) = hosts.ring(&config);
            let mut checked = checked(tx, rx, config.framing);
            for op in ops {
                checked.run(op);
            }
            checked.finish();
        }
    }
}

//! Every design, on the software RNIC, on hostile ones and on a simulated one: each response is checked byte for byte.

mod network;

use headworks_patterns::topology::{RandomResponder, Topology};
use headworks_patterns::verb::{
    DenseWrite, InMessage, OwnReceives, SecondWrite, Send, SharedReceives, Verb, Write,
};
use headworks_patterns::{PatternConfig, PatternError, Requester, Responder, connect};
use proptest::prelude::*;

use network::{Checker, Network};

/// Steps after which a run counts as hung.
const STEPS: u64 = 20_000_000;

/// Runs `count` requests from each of `sides.0` requesters to `sides.1` responders.
fn run<Request: Verb, Response: Verb, const INLINE: bool>(
    network: &Network,
    config: PatternConfig,
    (requesters, responders): (usize, usize),
    count: u64,
) -> Result<(), PatternError> {
    if network.refuses::<Request, Response>(&config) {
        return Ok(());
    }
    let mut responding = Vec::new();
    for at in 0..responders {
        let device = (network.open)(at);
        responding.push(Responder::<Request, Response, false>::open(
            device, config, requesters,
        )?);
    }
    let mut requesting = Vec::new();
    for at in 0..requesters {
        let topology = RandomResponder::new(responders, at as u64);
        let device = (network.open)(responders + at);
        let mut requester =
            Requester::<Request, Response, _, INLINE>::open(device, config, responders, topology)?;
        for (peer, responder) in responding.iter_mut().enumerate() {
            let requests = responder.request_area(at);
            let responses = requester.response_area();
            connect(
                (requester.ports(), peer, responses),
                (responder.ports(), at, requests),
            )?;
        }
        requesting.push((requester, Checker::new(&config, count)));
    }
    for step in 0..STEPS {
        (network.advance)();
        let mut open = false;
        for (requester, checker) in &mut requesting {
            requester.step(checker)?;
            open |= requester.answered() < count;
            if network.checks && step % 64 == 63 {
                requester.check()?;
            }
        }
        for responder in &mut responding {
            responder.step(16)?;
            if network.checks && step % 64 == 63 {
                responder.check()?;
            }
        }
        if !open {
            let answered: u64 = responding.iter().map(Responder::answered).sum();
            assert_eq!(answered, count * requesters as u64);
            return Ok(());
        }
    }
    panic!(
        "{} over {}: no end after {STEPS} steps",
        Request::NAME,
        Response::NAME
    );
}

/// Runs all four pairs of verbs, with mailboxes whose flag `$flag` places.
macro_rules! every_pair {
    ($flag:ty, $($args:expr),*) => {{
        run::<Write<$flag>, Write<$flag>, true>($($args),*).unwrap();
        run::<Send<SharedReceives>, Send<OwnReceives>, true>($($args),*).unwrap();
        run::<Write<$flag>, Send<OwnReceives>, false>($($args),*).unwrap();
        run::<Send<SharedReceives>, Write<$flag>, false>($($args),*).unwrap();
        run::<DenseWrite, Write<$flag>, true>($($args),*).unwrap();
        run::<DenseWrite, Send<OwnReceives>, false>($($args),*).unwrap();
    }};
}

const TOPOLOGIES: [(usize, usize); 3] = [(1, 1), (4, 1), (4, 3)];

#[test]
fn every_design_answers_on_the_software_rnic() {
    let network = Network::soft("");
    for sides in TOPOLOGIES {
        for response in [64, 4096, 16384] {
            let config = PatternConfig {
                items: 8,
                ..PatternConfig::paper(response)
            };
            every_pair!(InMessage, &network, config, sides, 100);
            every_pair!(SecondWrite, &network, config, sides, 100);
        }
    }
}

#[test]
fn every_design_answers_on_the_simulated_rnic() {
    let network = Network::simulated();
    for sides in TOPOLOGIES {
        for response in [64, 4096] {
            let config = PatternConfig {
                items: 8,
                ..PatternConfig::paper(response)
            };
            every_pair!(SecondWrite, &network, config, sides, 50);
        }
    }
}

#[test]
fn every_promised_design_answers_on_rdma_devices() {
    let Some(network) = Network::rdma() else {
        return;
    };
    for (sides, response) in [((1, 1), 64), ((2, 2), 4096)] {
        let config = PatternConfig {
            items: 8,
            outstanding: 2,
            ..PatternConfig::paper(response)
        };
        every_pair!(InMessage, &network, config, sides, 40);
        every_pair!(SecondWrite, &network, config, sides, 40);
    }
}

#[test]
fn responses_of_1_mib_arrive_whole() {
    let network = Network::soft("");
    let config = PatternConfig {
        items: 4,
        ..PatternConfig::paper(1 << 20)
    };
    // The software RNIC promises an order of bytes for shorter messages only.
    every_pair!(SecondWrite, &network, config, (1, 1), 20);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_design_answers_on_hostile_devices(
        seed in any::<u64>(),
        outstanding in 1u32..9,
        words in 8usize..200,
        signal_every in 1u32..9,
        sides in (1usize..4, 1usize..3),
    ) {
        let network = Network::soft(&format!(",hostile,seed={seed}"));
        let config = PatternConfig {
            outstanding,
            signal_every,
            send_depth: 16,
            ..PatternConfig::paper(words * 8)
        };
        every_pair!(SecondWrite, &network, config, sides, 60);
    }
}

#[test]
fn a_flag_in_the_message_is_refused_where_bytes_have_no_order() {
    let network = Network::soft(",hostile,seed=1");
    let config = PatternConfig::paper(64);
    let refused = run::<Write<InMessage>, Write<InMessage>, true>(&network, config, (1, 1), 1);
    let error = refused.unwrap_err().to_string();
    assert!(
        error.contains("in_order_within_write") && error.contains("second WRITE"),
        "{error}"
    );
}

#[test]
fn illegal_sizes_are_named() {
    let network = Network::soft("");
    let paper = PatternConfig::paper(64);
    let cases = [
        (
            PatternConfig {
                response: 60,
                ..paper
            },
            "response is 60",
        ),
        (
            PatternConfig {
                outstanding: 65,
                ..paper
            },
            "outstanding is 65",
        ),
        (PatternConfig { items: 0, ..paper }, "items is 0"),
        (
            PatternConfig {
                signal_every: 0,
                ..paper
            },
            "signal_every is 0",
        ),
        (
            PatternConfig {
                send_depth: 3,
                ..paper
            },
            "send_depth is 3",
        ),
    ];
    for (config, says) in cases {
        let refused = run::<Write<InMessage>, Write<InMessage>, true>(&network, config, (1, 1), 1);
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_flag_that_found_no_room_follows_without_a_check() {
    let mut network = Network::soft("");
    network.checks = false;
    // Seventeen messages with their flags, of which every third request is signalled: the queue is full behind a message.
    let config = PatternConfig {
        signal_every: 3,
        send_depth: 16,
        ..PatternConfig::paper(64)
    };
    every_pair!(SecondWrite, &network, config, (1, 1), 100);
}

#[test]
fn the_share_of_empty_mailboxes_is_counted() {
    let network = Network::soft("");
    let config = PatternConfig::paper(64);
    let device = (network.open)(0);
    let mut responder =
        Responder::<Write<InMessage>, Write<InMessage>>::open(device, config, 10).unwrap();
    assert_eq!(responder.step(1).unwrap(), 0);
    assert_eq!(responder.polled().places, 10);
    assert_eq!(responder.polled().found, 0);
}

#[test]
fn dense_flags_take_one_load_for_eight_mailboxes() {
    let network = Network::soft("");
    let config = PatternConfig {
        idle_mailboxes: 1_000,
        ..PatternConfig::paper(64)
    };
    let device = (network.open)(0);
    let mut responder =
        Responder::<DenseWrite, Write<InMessage>>::open(device, config, 10).unwrap();
    assert_eq!(responder.step(1).unwrap(), 0);
    assert_eq!(responder.polled().loads, 1_010_u64.div_ceil(8));
    assert_eq!(responder.polled().found, 0);
}

#[test]
fn idle_mailboxes_change_nothing_but_the_number_of_places() {
    let network = Network::soft("");
    let config = PatternConfig {
        idle_mailboxes: 77,
        ..PatternConfig::paper(256)
    };
    every_pair!(SecondWrite, &network, config, (3, 1), 50);
}

#[test]
fn random_responders_are_uniform() {
    let mut topology = RandomResponder::new(3, 1);
    let mut counts = [0u32; 3];
    for _ in 0..30_000 {
        counts[topology.next()] += 1;
    }
    assert!(
        counts.iter().all(|count| (9_700..10_300).contains(count)),
        "{counts:?}"
    );
}

//! Dispatchers: workers, a dispatcher and responders, each in a thread of its own; every response is checked.

mod network;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use headworks_patterns::topology::RandomResponder;
use headworks_patterns::verb::{
    DenseWrite, InMessage, OwnReceives, SecondWrite, Send, SharedReceives, Verb, Write,
};
use headworks_patterns::{Dispatcher, PatternConfig, Responder, connect};

use network::{Checker, Network};

/// Runs `count` requests of each of the `config.outstanding` workers of one dispatcher to `responders` responders.
fn run<Request: Verb, Response: Verb>(
    network: &Network,
    config: PatternConfig,
    responders: usize,
    count: u64,
) {
    if network.refuses::<Request, Response>(&config) {
        return;
    }
    let mut responding: Vec<_> = (0..responders)
        .map(|at| {
            let device = (network.open)(at);
            Responder::<Request, Response, false>::open(device, config, 1).unwrap()
        })
        .collect();
    let device = (network.open)(responders);
    let mut dispatcher = Dispatcher::<Request, Response>::open(device, config, responders).unwrap();
    for (peer, responder) in responding.iter_mut().enumerate() {
        let requests = responder.request_area(0);
        let responses = dispatcher.response_area();
        connect(
            (dispatcher.ports(), peer, responses),
            (responder.ports(), 0, requests),
        )
        .unwrap();
    }
    let workers = config.outstanding;
    let all = count * u64::from(workers);
    let done = AtomicU64::new(0);
    let is_over = || done.load(Ordering::Acquire) == all;
    let begin = Barrier::new(workers as usize + 1 + responders);
    thread::scope(|scope| {
        for slot in 0..workers {
            let topology = RandomResponder::new(responders, slot.into());
            let mut worker = dispatcher.worker(slot, topology);
            let (begin, done) = (&begin, &done);
            scope.spawn(move || {
                let mut checker = Checker::new(&config, count);
                begin.wait();
                while worker.answered() < count {
                    match worker.step(&mut checker).unwrap() {
                        true => drop(done.fetch_add(1, Ordering::Release)),
                        false => thread::yield_now(),
                    }
                }
            });
        }
        for mut responder in responding {
            let (begin, is_over) = (&begin, &is_over);
            scope.spawn(move || {
                begin.wait();
                while !is_over() {
                    if responder.step(16).unwrap() == 0 {
                        responder.check().unwrap();
                        thread::yield_now();
                    }
                }
            });
        }
        begin.wait();
        while !is_over() {
            if dispatcher.step().unwrap() == 0 {
                dispatcher.check().unwrap();
                thread::yield_now();
            }
        }
    });
}

macro_rules! every_pair {
    ($flag:ty, $($args:expr),*) => {{
        run::<Write<$flag>, Write<$flag>>($($args),*);
        run::<Send<SharedReceives>, Send<OwnReceives>>($($args),*);
        run::<Write<$flag>, Send<OwnReceives>>($($args),*);
        run::<Send<SharedReceives>, Write<$flag>>($($args),*);
        run::<DenseWrite, Write<$flag>>($($args),*);
    }};
}

#[test]
fn workers_of_a_dispatcher_get_the_responses_to_their_requests() {
    let network = Network::soft("");
    for (workers, responders) in [(1, 1), (4, 1), (3, 2)] {
        for response in [64, 4096] {
            let config = PatternConfig {
                outstanding: workers,
                ..PatternConfig::paper(response)
            };
            every_pair!(InMessage, &network, config, responders, 100);
        }
    }
}

#[test]
fn dispatchers_work_over_rdma_devices() {
    let Some(network) = Network::rdma() else {
        return;
    };
    let config = PatternConfig {
        outstanding: 3,
        ..PatternConfig::paper(512)
    };
    every_pair!(SecondWrite, &network, config, 1, 20);
}

#[test]
fn dispatchers_work_over_hostile_devices() {
    for seed in 1..6 {
        let network = Network::soft(&format!(",hostile,seed={seed}"));
        let config = PatternConfig {
            outstanding: 3,
            signal_every: 2,
            send_depth: 8,
            ..PatternConfig::paper(512)
        };
        every_pair!(SecondWrite, &network, config, 2, 30);
    }
}

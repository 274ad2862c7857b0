//! Tests of every application over rings between two soft hosts of one process, and over the baseline
//! designs.

use std::fmt::Debug;
use std::sync::Arc;

use headworks::connect;
use headworks::ring::message_channel::meet;
use headworks::ring::{
    EndSetup, Framing, MessageReceiver, MessageSender, Mode, Receiver, RingConfig, RingError,
    SendError, Sender, Unconnected,
};
use headworks::testing::Fabric;
use headworks::verbs::{Device, QpState, Status};
use headworks_baselines::paper_baselines::farm::Farm;
use headworks_baselines::paper_baselines::l5::L5;
use headworks_baselines::paper_baselines::socksdirect::SocksDirect;
use headworks_baselines::paper_baselines::{BaselineSetup, Design, Plan};

use super::flows::flow_counts::tests::{counts, truth};
use super::flows::{Capture, Digest, FlowCounts, Monitor, RECORD, Replay, Tap};
use super::http::{self, FILES, MESSAGE_MAX, Reply, Site, request};
use super::kv::{self, REQUEST, RESPONSE, Store, key_of, value_of};
use super::request_response::{Client, Requests, Server, Service};
use super::{StepProgress, put, words};
use crate::error::Result;

/// Maximum number of iterations of loops that a bug would make endless.
const STEPS_MAX: u64 = 50_000_000;

/// Makes a ring between two hosts on a registry of their own.
fn ring(config: &RingConfig) -> (Sender, Receiver) {
    let [from, to] = hosts();
    connect::pair(&from, &to, config).expect("connects")
}

/// Makes a channel of a baseline design between two hosts.
fn baseline<D: Design>(design: D) -> (D::Sender, D::Receiver) {
    let [from, to] = hosts();
    let mut tx = BaselineSetup::sender(&from, design.clone()).expect("a sender");
    let mut rx = BaselineSetup::receiver(&to, design).expect("a receiver");
    let (greeting, peers) = (tx.greeting(), rx.greeting());
    meet((from.info(), &mut tx), (to.info(), &mut rx), [1, 2]).expect("meets");
    let sender = tx.finish(&peers).expect("a sender");
    (sender, rx.finish(&greeting).expect("a receiver"))
}

fn hosts() -> [Arc<dyn Device>; 2] {
    let fabric = Fabric::new(std::env::temp_dir()).expect("a registry");
    ["soft:h1", "soft:h2"].map(|name| fabric.open(name).expect("opens"))
}

/// The ends of two channels in opposite directions: one for requests, one for responses.
struct Ends<S, R> {
    ask: S,
    asked: R,
    answer: S,
    answered: R,
}

impl<S: MessageSender, R: MessageReceiver> Ends<S, R> {
    fn of([(ask, asked), (answer, answered)]: [(S, R); 2]) -> Self {
        Self {
            ask,
            asked,
            answer,
            answered,
        }
    }

    fn step<Q: Requests>(&mut self, client: &mut Client<Q>) -> Result<StepProgress> {
        client.step(&mut self.ask, &mut self.answered)
    }

    fn serve<V: Service>(&mut self, server: &mut Server<V>) -> Result<StepProgress> {
        server.step(&mut self.answer, &mut self.asked)
    }

    /// Sends a message to the server.
    fn send(&mut self, message: &[u8]) {
        self.ask.try_send(message).expect("sends");
        self.ask.flush().expect("flushes");
    }

    /// Returns what `seen` makes of the next response of `server`.
    fn response<V: Service, T>(&mut self, server: &mut Server<V>, seen: fn(&[u8]) -> T) -> T {
        let response = (0..STEPS_MAX).find_map(|_| {
            self.serve(server).expect("answers");
            self.answered.try_recv_with(seen).expect("receives")
        });
        response.expect("a response")
    }
}

/// Makes rings of these configurations.
fn rings_of(configs: [&RingConfig; 2]) -> Ends<Sender, Receiver> {
    Ends::of(configs.map(ring))
}

/// Makes rings for requests to a [`Store`] and its responses, with these numbers of slots.
fn kv_rings([there, back]: [u32; 2]) -> Ends<Sender, Receiver> {
    let there = RingConfig::fixed(there, REQUEST);
    rings_of([&there, &RingConfig::fixed(back, RESPONSE)])
}

/// Returns ring configurations of every kind for messages of `len` bytes: batched, unbatched and low-latency.
fn rings(len: usize) -> Vec<RingConfig> {
    let fixed = [2, 3, 8, 128].map(|slots| RingConfig::fixed(slots, len));
    // Many slots for each message; so few slots that most messages wrap; one slot for each message.
    let slots = [1024, len as u32 / 64 + 3].map(|slots| RingConfig::variable(slots, 64));
    let single = RingConfig::variable(2, len.next_multiple_of(64) + 64);
    let variable = slots.into_iter().chain([single]).map(|config| RingConfig {
        framing: Framing::Variable(len),
        ..config
    });
    let modes = |config: RingConfig| {
        let unbatched = RingConfig {
            publish_every: Some(1),
            transmit_every: Some(1),
            ..config.clone()
        };
        let latency = RingConfig {
            mode: Mode::Latency,
            ..config.clone()
        };
        [config, unbatched, latency]
    };
    fixed.into_iter().chain(variable).flat_map(modes).collect()
}

/// Steps both sides until the client is done. `slow` says in every how many rounds the client and the server
/// step.
fn run<V: Service, S: MessageSender, R: MessageReceiver>(
    mut client: Client<impl Requests>,
    service: V,
    mut ends: Ends<S, R>,
    slow: [u64; 2],
    mut look: impl FnMut(&Ends<S, R>),
) {
    let mut server = Server::new(service);
    for round in 0..STEPS_MAX {
        if round % slow[0] == 0 && ends.step(&mut client).expect("asks") == StepProgress::Done {
            assert!(!client.is_waiting());
            return assert_eq!(client.answered(), server.answered());
        }
        if round % slow[1] == 0 {
            let progress = ends.serve(&mut server).expect("answers");
            assert_ne!(progress, StepProgress::Done);
        }
        look(&ends);
    }
    panic!("{} requests were answered", client.answered());
}

/// Reads keys, with `window` requests outstanding.
fn read_keys<S: MessageSender, R: MessageReceiver>(
    window: usize,
    ends: Ends<S, R>,
    slow: [u64; 2],
    look: impl FnMut(&Ends<S, R>),
) {
    let client = kv::Client::new(500, 1000, window);
    run(client, Store::of(500), ends, slow, look);
}

fn traffic() -> Replay {
    Replay::new(Capture::synthetic(1, 500, 1000))
}

/// Sends and counts records; the receiver steps only in every `slow`th round.
fn measure(
    (mut out, mut from): (impl MessageSender, impl MessageReceiver),
    records: u64,
    slow: u64,
) -> FlowCounts {
    let mut tap = Tap::new(traffic(), records);
    let mut monitor = Monitor::new(FlowCounts::default(), records);
    for round in 0..STEPS_MAX {
        let sent = tap.step(&mut out).expect("sends");
        if round % slow == 0 && monitor.step(&mut from).expect("counts") == StepProgress::Done {
            assert_eq!((sent, tap.left()), (StepProgress::Done, 0));
            assert_eq!(monitor.taken(), records);
            return monitor.meter().clone();
        }
    }
    panic!("{} of {records} records came", monitor.taken());
}

/// Steps a side until it fails, and returns the error.
fn error_of<T: Debug>(mut step: impl FnMut() -> Result<T>) -> String {
    let error = (0..STEPS_MAX).find_map(|_| step().err());
    error.expect("an error").to_string()
}

/// Asserts that an error says that the peer left.
fn assert_gone(error: &str) {
    let gone = [
        RingError::Completion(Status::RetryExceeded),
        RingError::Completion(Status::Flushed),
        RingError::QueuePair(QpState::Error),
    ];
    assert!(gone.iter().all(RingError::is_peer_gone));
    let says = |gone: &RingError| error.ends_with(&gone.to_string());
    assert!(gone.iter().any(says), "{error}");
}

/// Runs every application over channels for messages of a given length. `slow` says in every how many rounds
/// each side steps.
fn all_over<S: MessageSender, R: MessageReceiver>(
    channel: impl Fn(usize) -> (S, R),
    window: usize,
    slow: [u64; 2],
) {
    let meter = measure(channel(RECORD), 1000, slow[1]);
    assert_eq!(counts(&meter), truth(&mut traffic(), 1000));
    assert_eq!(meter.digest(), Digest::of(&mut traffic(), 1000));
    read_keys(
        window,
        Ends::of([REQUEST, RESPONSE].map(&channel)),
        slow,
        |_| {},
    );
    let site = Site::new(FILES);
    let response = site.response(Reply::File(0)).concat().len();
    let ends = Ends::of([request(&http::path(0)).len(), response].map(&channel));
    run(http::Client::new(FILES, 100), site, ends, slow, |_| {});
}

#[test]
fn all_run_over_any_rings() {
    for form in 0..rings(RECORD).len() {
        for (window, slow) in [(1, [1, 1]), (64, [9, 1]), (64, [1, 9]), (1000, [1, 1])] {
            all_over(|len| ring(&rings(len)[form]), window, slow);
        }
    }
    let nothing = measure(ring(&RingConfig::fixed(8, RECORD)), 0, 1);
    assert!(counts(&nothing).is_empty());
}

/// Runs over channels with room for the fewest messages possible, for a few, and for many.
fn all_over_baselines<D: Design>(design: impl Fn(Plan) -> D) {
    for messages in [2, 5, 64] {
        all_over(
            |longest| baseline(design(Plan { messages, longest })),
            50,
            [1, 1],
        );
    }
}

#[test]
fn all_run_over_the_paper_baselines() {
    all_over_baselines(Farm);
    all_over_baselines(L5);
    all_over_baselines(SocksDirect);
}

#[test]
fn a_step_handles_at_most_its_batch_of_messages() {
    let (mut out, mut from) = ring(&RingConfig::fixed(64, RECORD));
    let mut tap = Tap::new(traffic(), 100);
    let mut monitor = Monitor::new(FlowCounts::default(), 100);
    (tap.batch, monitor.batch) = (1, 1);
    loop {
        let before = (tap.left(), monitor.taken());
        tap.step(&mut out).expect("sends");
        let progress = monitor.step(&mut from).expect("counts");
        assert!(tap.left() + 1 >= before.0 && monitor.taken() <= before.1 + 1);
        if progress == StepProgress::Done {
            break;
        }
    }

    let mut ends = kv_rings([64, 64]);
    let mut client = kv::Client::new(100, 1000, 50);
    let mut server = Server::new(Store::of(100));
    (client.batch, server.batch) = (1, 1);
    loop {
        let before = [client.answered(), server.answered()];
        let progress = ends.step(&mut client).expect("asks");
        ends.serve(&mut server).expect("answers");
        assert!(client.answered() <= before[0] + 1 && server.answered() <= before[1] + 1);
        if progress == StepProgress::Done {
            break;
        }
    }
}

#[test]
fn a_record_that_is_malformed_or_not_the_next_one_is_refused() {
    for (sequence, version, expected) in [
        (3, 4, "expected record 0, received record 3"),
        (0, 5, "a message of 40 bytes is not a record of a packet"),
    ] {
        let (mut out, mut from) = ring(&RingConfig::fixed(8, RECORD));
        let mut record = traffic().record();
        record.sequence = sequence;
        let mut message = [0; RECORD];
        record.emit(&mut message);
        message[13] = version;
        out.try_send(&message).expect("sends");
        out.flush().expect("flushes");
        let mut monitor = Monitor::new(FlowCounts::default(), 9);
        let error = error_of(|| monitor.step(&mut from));
        assert_eq!((&*error, monitor.taken()), (expected, 0));
    }
}

#[test]
fn a_ring_for_other_messages_is_an_error_and_so_is_a_peer_that_left() {
    let (mut out, _from) = ring(&RingConfig::fixed(8, 41));
    let error = error_of(|| Tap::new(traffic(), 1).step(&mut out));
    assert_eq!(error, "a message of 40 bytes: this ring takes 41 to 41");

    let (mut out, from) = ring(&RingConfig::fixed(8, RECORD));
    drop(from);
    let mut tap = Tap::new(traffic(), 1 << 20);
    assert_gone(&error_of(|| tap.step(&mut out)));
    assert_ne!(out.try_send(&[0; RECORD]), Err(SendError::Full));

    let mut ends = kv_rings([8, 8]);
    let mut server = Server::new(Store::of(3));
    ends.serve(&mut server).expect("waits");
    ends.send(&[0; REQUEST]);
    let (mut answer, mut asked) = (ends.answer, ends.asked);
    drop((ends.ask, ends.answered));
    assert_gone(&error_of(|| server.step(&mut answer, &mut asked)));
}

#[test]
fn requests_wait_where_responses_have_no_room() {
    read_keys(100, kv_rings([128, 2]), [5, 1], |_| {});
    read_keys(1000, kv_rings([128, 2]), [1, 1], |_| {});
    read_keys(100, kv_rings([2, 128]), [1, 5], |_| {});
}

#[test]
fn no_more_than_the_window_is_on_its_way() {
    for window in [1, 10] {
        let mut deepest = 0;
        read_keys(window, kv_rings([128, 128]), [1, 3], |ends| {
            // Counted in slots. These rings never skip a slot, so each is one request or response.
            let on_their_way = ends.ask.sent().saturating_sub(ends.answered.consumed());
            deepest = deepest.max(on_their_way);
        });
        assert_eq!(deepest, window as u64);
    }
}

#[test]
fn a_side_that_waits_holds_nothing_back() {
    let mut ends = kv_rings([128, 128]);
    let mut client = kv::Client::new(10, 3, 3);
    let mut server = Server::new(Store::of(10));
    ends.step(&mut client).expect("asks");
    assert_eq!((ends.ask.sent(), ends.ask.published()), (3, 3));
    ends.serve(&mut server).expect("answers");
    assert_eq!((ends.answer.sent(), ends.answer.published()), (3, 3));
    let done = ends.step(&mut client).expect("takes");
    assert_eq!((done, client.answered()), (StepProgress::Done, 3));
}

/// Returns the error of a client whose first request gets `answer`. Afterwards its server leaves.
fn refused(mut client: Client<impl Requests>, answer: &[u8]) -> String {
    let mut ends = rings_of([&RingConfig::variable(128, 64); 2]);
    ends.step(&mut client).expect("asks");
    ends.answer.try_send(answer).expect("sends");
    ends.answer.flush().expect("flushes");
    let wrong = error_of(|| ends.step(&mut client));
    let (mut ask, mut answered) = (ends.ask, ends.answered);
    drop((ends.asked, ends.answer));
    assert_gone(&error_of(|| client.step(&mut ask, &mut answered)));
    wrong
}

#[test]
fn a_client_reports_wrong_responses_and_a_gone_server() {
    let key = kv::drawn(10).map(key_of).next().expect("a key");
    let response = |number, key: Option<u64>| {
        let mut bytes = vec![0; RESPONSE];
        kv::respond(number, key.map(value_of).as_ref(), &mut bytes);
        bytes
    };
    let wrong = "the response to request 0 is wrong:";
    for (answer, expected) in [
        (
            response(7, Some(key)),
            "expected response 0, received response 7",
        ),
        (
            response(0, Some(key + 1)),
            &format!("{wrong} another key's value"),
        ),
        (response(0, None), &format!("{wrong} no such key")),
        (
            vec![0; 9],
            "a message of 9 bytes is not a response with a value",
        ),
    ] {
        let client = kv::Client::new(10, 1, 1);
        assert_eq!(refused(client, &answer), expected);
    }
    let other = Site::new(2).response(Reply::File(1)).concat();
    let expected = format!("{wrong} its body is another file");
    assert_eq!(refused(http::Client::new(2, 2), &other), expected);
}

#[test]
fn a_store_reports_missing_keys_and_refuses_bad_requests() {
    let (there, back) = (RingConfig::variable(8, 64), RingConfig::fixed(8, RESPONSE));
    let mut ends = rings_of([&there, &back]);
    let mut server = Server::new(Store::of(3));
    let mut request = [0; REQUEST];
    put(&[4, key_of(3)], &mut request);
    ends.send(&request);
    let found = ends.response(&mut server, |message| words(&message[..16]));
    assert_eq!(found, Some([4, 1]));
    ends.send(b"what?");
    let error = error_of(|| ends.serve(&mut server));
    assert_eq!(error, "a message of 5 bytes is not a request for a key");
}

#[test]
fn a_file_server_goes_on_after_garbage_and_loses_no_request_where_there_is_no_room() {
    let single = RingConfig {
        framing: Framing::Variable(MESSAGE_MAX),
        ..RingConfig::variable(2, MESSAGE_MAX + 64)
    };
    let mut ends = rings_of([&RingConfig::variable(128, 64), &single]);
    let mut server = Server::new(Site::new(2));
    ends.send(b"\xff\0\r\n");
    ends.send(b"");
    ends.send(&request("/no"));
    ends.send(b"PUT / HTTP/1.1\r\nHost: a\r\n\r\n");
    ends.send(&request("/file/1"));
    // The server finds its ring full many times before anybody reads a response.
    for _ in 0..1000 {
        ends.serve(&mut server).expect("waits");
    }
    for expected in ["400", "400", "404", "405", "200"] {
        let status = ends.response(&mut server, |message| message[9..12].to_vec());
        assert_eq!(status, expected.as_bytes());
    }
    assert_eq!(server.answered(), 5);
}

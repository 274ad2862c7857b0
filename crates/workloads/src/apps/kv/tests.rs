//! Client and server over rings of one process.

use headworks::ring::RingConfig;

use super::message::Response;
use super::store::{key_of, value_of};
use super::*;
use crate::apps::testing::{Hosts, STEPS_MAX, Way, rings};
use crate::apps::{AppError, Progress};

/// Steps both sides until the client is done, each of them only in every so-many-th round.
fn play(there: &RingConfig, back: &RingConfig, window: usize, slow: [u64; 2]) -> u64 {
    let (requests, records) = (2000, 500);
    let hosts = Hosts::new();
    let (mut ask, mut asked) = hosts.ring(there, Way::There);
    let (mut answer, mut answered) = hosts.ring(back, Way::Back);
    let mut client = Client::new(Zipf::new(5, records), requests, window);
    let mut server = Server::new(Store::of(records));
    let mut deepest = 0;
    for round in 0..STEPS_MAX {
        if round % slow[0] == 0 {
            let progress = client.step(&mut ask, &mut answered).expect("asks");
            if progress == Progress::Done {
                assert_eq!((client.answered(), server.answered()), (requests, requests));
                return deepest;
            }
        }
        if round % slow[1] == 0 {
            server.step(&mut answer, &mut asked).expect("answers");
        }
        // In slots, which are requests and responses where a ring never skips any.
        deepest = deepest.max(ask.sent().saturating_sub(answered.consumed()));
    }
    panic!("{} of {requests} requests were answered", client.answered());
}

#[test]
fn every_request_is_answered_on_any_rings_with_any_window() {
    for (there, back) in rings(REQUEST).iter().zip(rings(RESPONSE)) {
        for window in [1, 64, 1000] {
            for slow in [[1, 1], [9, 1], [1, 9]] {
                play(there, &back, window, slow);
            }
        }
    }
}

#[test]
fn requests_wait_where_responses_have_no_room() {
    // A wide ring there, and one back that holds a single response.
    let (there, back) = (
        RingConfig::fixed(128, REQUEST),
        RingConfig::fixed(2, RESPONSE),
    );
    play(&there, &back, 100, [5, 1]);
    play(&there, &back, 1000, [1, 1]);
    let (there, back) = (
        RingConfig::fixed(2, REQUEST),
        RingConfig::fixed(128, RESPONSE),
    );
    play(&there, &back, 100, [1, 5]);
}

#[test]
fn no_more_than_the_window_is_on_its_way() {
    let (there, back) = (
        RingConfig::fixed(128, REQUEST),
        RingConfig::fixed(128, RESPONSE),
    );
    for window in [1, 10] {
        let deepest = play(&there, &back, window, [1, 3]);
        assert_eq!(deepest, window as u64);
    }
}

#[test]
fn who_waits_holds_nothing_back() {
    let hosts = Hosts::new();
    let (mut ask, mut asked) = hosts.ring(&RingConfig::fixed(128, REQUEST), Way::There);
    let (mut answer, mut answered) = hosts.ring(&RingConfig::fixed(128, RESPONSE), Way::Back);
    let mut client = Client::new(Zipf::new(5, 10), 3, 3);
    let mut server = Server::new(Store::of(10));
    client.step(&mut ask, &mut answered).expect("asks");
    assert_eq!((ask.sent(), ask.published()), (3, 3));
    server.step(&mut answer, &mut asked).expect("answers");
    assert_eq!((answer.sent(), answer.published()), (3, 3));
    let done = client.step(&mut ask, &mut answered).expect("takes");
    assert_eq!((done, client.answered()), (Progress::Done, 3));
}

/// What the client says of this answer to its first request.
fn said(respond: impl Fn(u64) -> Vec<u8>) -> String {
    let hosts = Hosts::new();
    let back = RingConfig::variable(128, 64);
    let (mut ask, mut asked) = hosts.ring(&RingConfig::fixed(8, REQUEST), Way::There);
    let (mut answer, mut answered) = hosts.ring(&back, Way::Back);
    let mut client = Client::new(Zipf::new(5, 10), 1, 1);
    let mut request = None;
    for _ in 0..STEPS_MAX {
        match client.step(&mut ask, &mut answered) {
            Ok(progress) => assert_ne!(progress, Progress::Done),
            Err(error) => return error.to_string(),
        }
        if request.is_none() {
            let message = asked.try_recv().expect("receives");
            request = message.and_then(|message| Request::parse(&message));
            if let Some(request) = request {
                answer.try_send(&respond(request.key)).expect("sends");
                answer.flush().expect("flushes");
            }
        }
    }
    panic!("the client says nothing");
}

#[test]
fn a_wrong_response_is_refused_whatever_is_wrong_with_it() {
    let response = |number, value: Option<u64>| {
        let mut bytes = [0; RESPONSE];
        let value = value.map(value_of);
        let value = value.as_ref();
        Response { number, value }.emit(&mut bytes);
        bytes.to_vec()
    };
    let stale = said(|key| response(7, Some(key)));
    assert_eq!(stale, "response 7 came where 0 was due");
    let other = said(|key| response(0, Some(key + 1)));
    assert_eq!(
        other,
        "the response to request 0 is wrong: another key's value"
    );
    let none = said(|_| response(0, None));
    assert_eq!(none, "the response to request 0 is wrong: no such key");
    let short = said(|_| vec![0; 9]);
    assert_eq!(short, "a message of 9 bytes is no response with a value");
}

#[test]
fn a_server_says_that_there_is_no_such_key_and_refuses_what_is_no_request() {
    let hosts = Hosts::new();
    let there = RingConfig::variable(8, 64);
    let (mut ask, mut asked) = hosts.ring(&there, Way::There);
    let (mut answer, mut answered) = hosts.ring(&RingConfig::fixed(8, RESPONSE), Way::Back);
    let mut server = Server::new(Store::of(3));
    let mut request = [0; REQUEST];
    let (number, key) = (4, key_of(3));
    Request { number, key }.emit(&mut request);
    ask.try_send(&request).expect("sends");
    ask.flush().expect("flushes");
    let response = (0..STEPS_MAX).find_map(|_| {
        server.step(&mut answer, &mut asked).expect("answers");
        let message = answered.try_recv().expect("receives")?;
        Response::parse(&message).map(|response| (response.number, response.value.is_some()))
    });
    assert_eq!(response, Some((4, false)));
    ask.try_send(b"what?").expect("sends");
    ask.flush().expect("flushes");
    let refused = (0..STEPS_MAX).find_map(|_| server.step(&mut answer, &mut asked).err());
    assert!(
        matches!(refused, Some(AppError::Malformed { len: 5, .. })),
        "{refused:?}"
    );
}

#[test]
fn a_server_whose_client_left_says_so() {
    let hosts = Hosts::new();
    let (mut ask, mut asked) = hosts.ring(&RingConfig::fixed(8, REQUEST), Way::There);
    let (mut answer, answered) = hosts.ring(&RingConfig::fixed(8, RESPONSE), Way::Back);
    let mut server = Server::new(Store::of(3));
    server.step(&mut answer, &mut asked).expect("waits");
    ask.try_send(&[0; REQUEST]).expect("sends");
    ask.flush().expect("flushes");
    drop((ask, answered));
    let gone = (0..STEPS_MAX).find_map(|_| server.step(&mut answer, &mut asked).err());
    assert!(
        matches!(gone, Some(AppError::Ring(error)) if error.is_peer_gone()),
        "{gone:?}"
    );
}

//! What is answered to whom, and both sides over rings of one process.

use headworks::ring::{Framing, Mode, RingConfig};
use proptest::prelude::*;

use super::client::{check, request};
use super::site::{contents, path};
use super::*;
use crate::apps::testing::{Hosts, STEPS_MAX, Way, rings};
use crate::apps::{AppError, Progress};

fn reply(text: &str) -> Reply {
    Site::new(3).reply(text.as_bytes())
}

#[test]
fn files_are_found_by_their_paths_and_nothing_else_is() {
    let get = |target: &str| reply(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(get("/file/0"), Reply::File(0));
    assert_eq!(get("/file/2?fresh=yes"), Reply::File(2));
    for target in [
        "/file/3",
        "/file/",
        "/file/00",
        "/file/+1",
        "/file/-1",
        "/file/1/",
        "/",
        "/file/99999999999999999999",
    ] {
        assert_eq!(get(target), Reply::NotFound, "{target}");
    }
    assert_eq!(get("file/0"), Reply::BadRequest);
    assert_eq!(Site::new(3).reply(&request(&path(1))), Reply::File(1));
    assert_eq!(Site::new(0).reply(&request(&path(0))), Reply::NotFound);
}

#[test]
fn other_methods_are_not_allowed() {
    for method in ["HEAD", "DELETE", "OPTIONS", "get", "BREW"] {
        let text = format!("{method} /file/0 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(reply(&text), Reply::NotAllowed, "{method}");
    }
}

#[test]
fn what_is_no_request_is_a_bad_one() {
    let bad = [
        "",
        "GET",
        "GET /file/0 HTTP/1.1\r\nHost: a\r\n",
        "GET /file/0 HTTP/1.1\r\nHost: a\r\n\r\nmore",
        "GET /file/0 HTTP/1.0\r\nHost: a\r\n\r\n",
        "GET /file/0 HTTP/2.0\r\nHost: a\r\n\r\n",
        "GET /file/0 HTTP/1.1\r\n\r\n",
        "GET /file/0 HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n",
        "GET /file/0 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        "GET /file/0 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET /file/0 HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET  /file/0  HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    for text in bad {
        assert_eq!(reply(text), Reply::BadRequest, "{text:?}");
    }
    let many = format!(
        "GET /file/0 HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "A: b\r\n".repeat(64)
    );
    assert_eq!(reply(&many), Reply::BadRequest);
}

#[test]
fn responses_are_what_a_client_expects() {
    let site = Site::new(2);
    let whole = |reply| site.response(reply).concat();
    let (file, other) = (whole(Reply::File(1)), contents(0));
    assert!(file.len() <= MESSAGE_MAX && request(&path(999)).len() <= MESSAGE_MAX);
    assert_eq!(check(&file, &contents(1)), Ok(()));
    assert_eq!(check(&file, &other), Err("it brings another file"));
    assert_eq!(check(&file[..80], &other), Err("it is cut off"));
    assert_eq!(check(b"HTTP 200", &other), Err("it is no HTTP"));
    let length = Err("its length is not the one that it says");
    assert_eq!(check(&file[..file.len() - 1], &contents(1)), length);
    for (reply, code) in [
        (Reply::BadRequest, 400),
        (Reply::NotFound, 404),
        (Reply::NotAllowed, 405),
        (Reply::File(2), 404),
    ] {
        let bytes = whole(reply);
        let mut fields = [httparse::EMPTY_HEADER; 8];
        let mut response = httparse::Response::new(&mut fields);
        let head = response.parse(&bytes).expect("HTTP").unwrap();
        assert_eq!(response.code, Some(code));
        let length = response
            .headers
            .iter()
            .find(|field| field.name == "Content-Length");
        let length = String::from_utf8_lossy(length.expect("a length").value);
        assert_eq!(length, (bytes.len() - head).to_string());
        assert!(code != 405 || response.headers.iter().any(|field| field.name == "Allow"));
        assert_eq!(
            check(&bytes, &other),
            Err("its status is not 200, of HTTP/1.1")
        );
    }
    let say = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\nabc");
    assert_eq!(
        check(say("content-length: 3\r\n").as_bytes(), b"abc"),
        Ok(())
    );
    for fields in [
        "",
        "Content-Length: 4\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: 3\r\nContent-Length: 3\r\n",
    ] {
        assert_eq!(check(say(fields).as_bytes(), b"abc"), length, "{fields}");
    }
}

/// Steps both sides until the client is done.
fn play(there: &RingConfig, back: &RingConfig, slow: [u64; 2]) {
    let requests = 300;
    let hosts = Hosts::new();
    let (mut ask, mut asked) = hosts.ring(there, Way::There);
    let (mut answer, mut answered) = hosts.ring(back, Way::Back);
    let (mut client, mut server) = (Client::new(FILES, requests), Server::new(Site::new(FILES)));
    for round in 0..STEPS_MAX {
        if round % slow[0] == 0 {
            let before = client.answered();
            let progress = client.step(&mut ask, &mut answered).expect("asks");
            assert!(client.answered() <= before + 1);
            if progress == Progress::Done {
                assert_eq!((client.answered(), server.answered()), (requests, requests));
                assert_eq!((client.is_waiting(), server.refused()), (false, 0));
                return;
            }
        }
        if round % slow[1] == 0 {
            server.step(&mut answer, &mut asked).expect("answers");
        }
    }
    panic!("{} of {requests} requests were answered", client.answered());
}

/// Rings for messages of up to this many bytes: the default, without batching, and the narrowest that
/// there are, where each message wraps or fills the ring.
fn variable() -> [RingConfig; 5] {
    let framing = Framing::Variable(MESSAGE_MAX);
    let wide = RingConfig {
        framing,
        ..RingConfig::default()
    };
    let unbatched = RingConfig {
        publish_every: Some(1),
        transmit_every: Some(1),
        ..wide.clone()
    };
    let latency = RingConfig {
        mode: Mode::Latency,
        ..wide.clone()
    };
    let narrow = RingConfig {
        slots: MESSAGE_MAX as u32 / 64 + 3,
        ..wide.clone()
    };
    let single = RingConfig {
        framing,
        ..RingConfig::variable(2, MESSAGE_MAX + 64)
    };
    [wide, unbatched, latency, narrow, single]
}

#[test]
fn every_file_comes_on_any_rings() {
    for config in &variable() {
        for slow in [[1, 1], [5, 1], [1, 5]] {
            play(config, config, slow);
        }
    }
    // Where all messages have one length too.
    let request = Client::new(FILES, 1).request_len();
    let response = Site::new(FILES).response_len();
    assert!(request <= MESSAGE_MAX && response <= MESSAGE_MAX);
    for (there, back) in rings(request).iter().zip(rings(response)) {
        play(there, &back, [1, 1]);
    }
}

#[test]
fn a_server_goes_on_after_garbage_and_loses_no_request_where_there_is_no_room() {
    let hosts = Hosts::new();
    let (mut ask, mut asked) = hosts.ring(&RingConfig::variable(128, 64), Way::There);
    let back = RingConfig {
        framing: Framing::Variable(MESSAGE_MAX),
        ..RingConfig::variable(2, MESSAGE_MAX + 64)
    };
    let (mut answer, mut answered) = hosts.ring(&back, Way::Back);
    let mut server = Server::new(Site::new(2));
    let good = request("/file/1");
    for message in [
        &b"\xff\0\r\n"[..],
        b"",
        &request("/no"),
        b"PUT / HTTP/1.1\r\nHost: a\r\n\r\n",
        &good,
    ] {
        ask.try_send(message).expect("sends");
    }
    ask.flush().expect("flushes");
    // The server runs into its full ring many times before anybody reads a response.
    for _ in 0..1000 {
        server.step(&mut answer, &mut asked).expect("waits");
    }
    let mut codes = Vec::new();
    for _ in 0..STEPS_MAX {
        server.step(&mut answer, &mut asked).expect("answers");
        if let Some(message) = answered.try_recv().expect("receives") {
            codes.push(String::from_utf8_lossy(&message[9..12]).into_owned());
        }
        if codes.len() == 5 {
            break;
        }
    }
    assert_eq!(codes, ["400", "400", "404", "405", "200"]);
    assert_eq!((server.answered(), server.refused()), (5, 4));
}

#[test]
fn a_client_says_what_is_wrong_with_a_response_and_that_its_server_left() {
    let hosts = Hosts::new();
    let config = RingConfig::variable(128, 64);
    let (mut ask, asked) = hosts.ring(&config, Way::There);
    let (mut answer, mut answered) = hosts.ring(&config, Way::Back);
    let mut client = Client::new(2, 2);
    client.step(&mut ask, &mut answered).expect("asks");
    answer
        .try_send(&Site::new(2).response(Reply::File(1)).concat())
        .expect("sends");
    answer.flush().expect("flushes");
    let error = (0..STEPS_MAX).find_map(|_| client.step(&mut ask, &mut answered).err());
    let expected = "the response to request 0 is wrong: it brings another file";
    assert_eq!(error.expect("an error").to_string(), expected);
    drop((asked, answer));
    let gone = (0..STEPS_MAX).find_map(|_| client.step(&mut ask, &mut answered).err());
    assert!(
        matches!(gone, Some(AppError::Ring(error)) if error.is_peer_gone()),
        "{gone:?}"
    );
}

proptest! {
    #[test]
    fn any_bytes_are_answered_and_checked(
        bytes in proptest::collection::vec(any::<u8>(), 0..200), at in any::<proptest::sample::Index>(), byte in any::<u8>(),
    ) {
        let site = Site::new(2);
        let file = contents(0);
        let _ = (site.response(site.reply(&bytes)), check(&bytes, &file));
        // One byte of what is right is changed, or it is cut off there.
        let mut asked = request("/file/0");
        let at_request = at.index(asked.len());
        let _ = site.reply(&asked[..at_request]);
        asked[at_request] = byte;
        let _ = site.reply(&asked);
        let mut answered = site.response(Reply::File(0)).concat();
        let at_response = at.index(answered.len());
        let changed = answered[at_response] != byte;
        prop_assert!(check(&answered[..at_response], &file).is_err());
        answered[at_response] = byte;
        let in_body = at_response >= answered.len() - FILE;
        prop_assert!(check(&answered, &file).is_err() || !changed || !in_body);
    }
}

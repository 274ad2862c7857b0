//! Tests of the server's replies, and of the client's check of responses.

use proptest::prelude::*;

use super::*;

#[test]
fn each_request_gets_the_reply_that_it_deserves() {
    const HEAD: &str = "HTTP/1.1\r\nHost: a\r\n";
    let reply = |request: &str| Site::new(3).reply(request.as_bytes());
    let replies = |expected: Reply, lines: &[&str]| {
        for line in lines {
            assert_eq!(reply(&format!("{line} {HEAD}\r\n")), expected, "{line:?}");
        }
    };
    replies(Reply::File(0), &["GET /file/0"]);
    replies(Reply::File(2), &["GET /file/2?fresh=yes"]);
    for number in "3  00 +1 -1 1/ 99999999999999999999".split(' ') {
        replies(Reply::NotFound, &[&format!("GET /file/{number}")]);
    }
    replies(Reply::NotFound, &["GET /"]);
    for method in ["HEAD", "DELETE", "OPTIONS", "get", "BREW"] {
        replies(Reply::NotAllowed, &[&format!("{method} /file/0")]);
    }
    replies(Reply::BadRequest, &["GET file/0", "GET /file/0 "]);
    let many = format!("{HEAD}{}\r\n", "A: b\r\n".repeat(64));
    for rest in [
        HEAD,
        "HTTP/1.1\r\nHost: a\r\n\r\nmore",
        "HTTP/1.0\r\nHost: a\r\n\r\n",
        "HTTP/2.0\r\nHost: a\r\n\r\n",
        "HTTP/1.1\r\n\r\n",
        "HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n",
        "HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1\r\nHost : a\r\n\r\n",
        &many,
    ] {
        let request = format!("GET /file/0 {rest}");
        assert_eq!(reply(&request), Reply::BadRequest, "{request:?}");
    }
    assert_eq!([reply(""), reply("GET")], [Reply::BadRequest; 2]);
    assert_eq!(Site::new(3).reply(&request(&path(1))), Reply::File(1));
    assert_eq!(Site::new(0).reply(&request(&path(0))), Reply::NotFound);
}

#[test]
fn only_the_requested_file_passes_the_client_check() {
    let site = Site::new(2);
    let whole = |reply| site.response(reply).concat();
    let (file, other) = (whole(Reply::File(1)), contents(0));
    assert!(file.len() <= MESSAGE_MAX && request(&path(999)).len() <= MESSAGE_MAX);
    assert_eq!(check(&file, &contents(1)), Ok(()));
    assert_eq!(check(&file, &other), Err("its body is another file"));
    assert_eq!(check(&file[..80], &other), Err("it is truncated"));
    assert_eq!(check(b"HTTP 200", &other), Err("it is not HTTP"));
    let length = Err("its Content-Length is not the length of its body");
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
        let field = |name| response.headers.iter().find(|field| field.name == name);
        let length = String::from_utf8_lossy(field("Content-Length").expect("a length").value);
        assert_eq!(length, (bytes.len() - head).to_string());
        assert_eq!(field("Allow").is_some(), code == 405);
        let status = Err("its status line is not HTTP/1.1 200");
        assert_eq!(check(&bytes, &other), status);
    }
    for (fields, expected) in [
        ("content-length: 3\r\n", Ok(())),
        ("", length),
        ("Content-Length: 4\r\n", length),
        ("Content-Length: +3\r\n", length),
        ("Content-Length: 3\r\nContent-Length: 3\r\n", length),
    ] {
        let response = format!("HTTP/1.1 200 OK\r\n{fields}\r\nabc");
        assert_eq!(check(response.as_bytes(), b"abc"), expected, "{fields}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_answered_and_checked(
        bytes in proptest::collection::vec(any::<u8>(), 0..200), at in any::<proptest::sample::Index>(), byte in any::<u8>(),
    ) {
        let site = Site::new(2);
        let file = contents(0);
        let _ = (site.response(site.reply(&bytes)), check(&bytes, &file));
        // A valid request and a valid response are truncated, and one of their bytes is changed.
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

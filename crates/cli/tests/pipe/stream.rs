//! Bytes arrive as they were sent.

use std::io::Write;
use std::process::Stdio;

use rustix::process::Signal;

use crate::common::{Fabric, bytes, create, linger, open, until};

fn round_trip(fabric: &Fabric, len: usize, reverse: bool) {
    let (from, to, sent) = (fabric.file("from"), fabric.file("to"), bytes(len));
    std::fs::write(&from, &sent).expect("writes");
    let (mut listener, mut connector) = if reverse {
        (
            fabric.listen(&[], "a", open(&from), Stdio::null()),
            fabric.connect(&["--reverse"], "a", Stdio::null(), create(&to)),
        )
    } else {
        (
            fabric.listen(&[], "a", Stdio::null(), create(&to)),
            fabric.connect(&[], "a", open(&from), Stdio::null()),
        )
    };
    assert_eq!(
        connector.wait().code(),
        Some(0),
        "{}",
        connector.complaint()
    );
    assert_eq!(listener.wait().code(), Some(0), "{}", listener.complaint());
    let received = std::fs::read(&to).expect("reads");
    assert!(received == sent, "{len} bytes, reverse {reverse}");
    fabric.is_clean();
}

#[test]
fn any_number_of_bytes_arrives() {
    let fabric = Fabric::new();
    for len in [
        0, 1, 7, 4087, 4088, 4089, 65_536, 262_136, 262_137, 5_000_011,
    ] {
        round_trip(&fabric, len, false);
    }
}

#[test]
fn many_bytes_arrive() {
    round_trip(&Fabric::new(), 64 << 20, false);
}

#[test]
fn reversed_pipes_go_the_other_way() {
    let fabric = Fabric::new();
    for len in [0, 1, 300_001, 8 << 20] {
        round_trip(&fabric, len, true);
    }
}

#[test]
fn what_is_written_arrives_before_the_end() {
    let fabric = Fabric::new();
    let to = fabric.file("to");
    let mut listener = fabric.listen(&[], "a", Stdio::null(), create(&to));
    let mut connector = fabric.connect(&[], "a", Stdio::piped(), Stdio::null());
    let mut stdin = connector.0.stdin.take().expect("piped");
    let mut all = Vec::new();
    for word in ["one", "two", "three"] {
        stdin.write_all(word.as_bytes()).expect("writes");
        all.extend_from_slice(word.as_bytes());
        until("the word", || {
            std::fs::read(&to).is_ok_and(|found| found == all)
        });
    }
    drop(stdin);
    assert_eq!(connector.wait().code(), Some(0));
    assert_eq!(listener.wait().code(), Some(0));
}

#[test]
fn a_sender_whose_receiver_stands_still_sleeps() {
    let fabric = Fabric::new();
    let from = fabric.file("from");
    std::fs::File::create(&from)
        .expect("creates")
        .set_len(1 << 30)
        .expect("grows");
    let mut listener = fabric.listen(&[], "a", Stdio::null(), Stdio::piped());
    let mut connector = fabric.connect(&[], "a", open(&from), Stdio::null());
    // Nobody reads the listener's output: everything fills up, then both sleep.
    until("sleep", || {
        connector.ticks() > 0 && connector.sleeps() && listener.sleeps()
    });
    listener.signal(Signal::STOP);
    let (mut before, mut looks) = (connector.ticks(), 0);
    until("a second of sleep", || {
        linger(std::time::Duration::from_millis(100));
        let now = connector.ticks();
        looks = if now > before + 1 { 0 } else { looks + 1 };
        before = now;
        looks >= 10
    });
    listener.signal(Signal::CONT);
    drop(listener.0.stdout.take());
    assert_eq!(listener.wait().code(), Some(1));
    assert_eq!(connector.wait().code(), Some(1));
    assert!(
        connector
            .complaint()
            .contains("the other side stopped: writing its output")
    );
    fabric.is_clean();
}

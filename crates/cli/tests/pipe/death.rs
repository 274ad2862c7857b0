//! Either side dies or is interrupted.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{Fabric, LIMIT, Side, linger, open, until};

/// Rounds of each kind.
fn rounds() -> u64 {
    if std::env::var_os("HEADWORKS_LONG").is_some() {
        50
    } else {
        10
    }
}

/// A pair that streams without an end, or whose sender has nothing to send.
fn pair(fabric: &Fabric, idle: bool) -> (Side, Side) {
    let listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    let source = if idle {
        Stdio::piped()
    } else {
        open("/dev/zero".as_ref())
    };
    let connector = fabric.connect(&[], "a", source, Stdio::null());
    let socket = fabric.registry().join("n.a");
    until("the connection", || !socket.exists());
    (listener, connector)
}

fn killed(idle: bool) {
    let fabric = Fabric::new();
    let mut worst = Duration::ZERO;
    for round in 0..rounds() {
        let (listener, connector) = pair(&fabric, idle);
        if idle {
            until("sleep", || connector.sleeps() && listener.sleeps());
        }
        let (mut victim, mut survivor) = match round % 2 {
            0 => (listener, connector),
            _ => (connector, listener),
        };
        // A moment that differs from round to round; nothing depends on it.
        linger(Duration::from_micros(round * 7919 % 20_000));
        victim.signal(Signal::KILL);
        let began = Instant::now();
        assert_eq!(survivor.wait().code(), Some(1), "{}", survivor.complaint());
        worst = worst.max(began.elapsed());
        assert_eq!(survivor.complaint().lines().count(), 1);
        victim.wait();
        fabric.is_clean_after_next_user();
    }
    println!("the survivor knew after at most {worst:?} (limit {LIMIT:?}), idle {idle}");
}

#[test]
fn the_survivor_of_a_kill_while_streaming_fails() {
    killed(false);
}

#[test]
fn the_survivor_of_a_kill_while_asleep_fails() {
    killed(true);
}

#[test]
fn ctrl_c_leaves_nothing() {
    for idle in [true, false] {
        let fabric = Fabric::new();
        let (mut listener, mut connector) = pair(&fabric, idle);
        connector.signal(Signal::INT);
        assert_eq!(
            connector.wait().code(),
            Some(130),
            "{}",
            connector.complaint()
        );
        assert_eq!(listener.wait().code(), Some(1));
        fabric.is_clean();
    }
}

#[test]
fn ctrl_c_ends_a_listener_that_waits() {
    let fabric = Fabric::new();
    let mut listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    listener.signal(Signal::INT);
    assert_eq!(listener.wait().code(), Some(130));
    fabric.is_clean();
}

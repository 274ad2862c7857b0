//! Bytes arrive at the other end of a pipe as they were sent.

use std::io::{Read, Write};
use std::process::Stdio;

use rustix::io::ioctl_fionread;
use rustix::process::Signal;

use crate::test_env::{CommandProcess, TestEnv, bytes, create, open, sleep_for, until};

fn round_trip(fabric: &TestEnv, len: usize, reverse: bool) {
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
    connector.expect_exit(0);
    listener.expect_exit(0);
    let received = std::fs::read(&to).expect("reads");
    assert!(received == sent, "{len} bytes, reverse {reverse}");
    fabric.is_clean();
}

#[test]
fn any_number_of_bytes_arrives() {
    let fabric = TestEnv::new();
    for len in [
        0, 1, 7, 4087, 4088, 4089, 65_536, 262_136, 262_137, 5_000_011,
    ] {
        round_trip(&fabric, len, false);
    }
}

#[test]
fn many_bytes_arrive() {
    round_trip(&TestEnv::new(), 64 << 20, false);
}

#[test]
fn reversed_pipes_go_the_other_way() {
    let fabric = TestEnv::new();
    for len in [0, 1, 300_001, 8 << 20] {
        round_trip(&fabric, len, true);
    }
}

#[test]
fn written_bytes_arrive_before_the_stream_ends() {
    let fabric = TestEnv::new();
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
    connector.expect_exit(0);
    listener.expect_exit(0);
}

/// Sends bytes with OS pipes as standard input and output, as in a shell. Returns what arrived.
fn piped(reverse: bool, sent: &[u8]) -> Vec<u8> {
    let fabric = TestEnv::new();
    let (here, there) = (Stdio::piped, Stdio::piped);
    let (mut sender, mut receiver);
    if reverse {
        sender = fabric.listen(&[], "a", here(), Stdio::null());
        receiver = fabric.connect(&["--reverse"], "a", Stdio::null(), there());
    } else {
        receiver = fabric.listen(&[], "a", Stdio::null(), there());
        sender = fabric.connect(&[], "a", here(), Stdio::null());
    }
    let mut stdin = sender.0.stdin.take().expect("piped");
    let mut stdout = receiver.0.stdout.take().expect("piped");
    let mut received = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(sent).expect("writes"));
        stdout.read_to_end(&mut received).expect("reads");
    });
    sender.expect_exit(0);
    receiver.expect_exit(0);
    fabric.is_clean();
    received
}

#[test]
fn pipes_at_both_ends_carry_anything() {
    let every_byte: Vec<u8> = (0..=255).collect();
    for reverse in [false, true] {
        for sent in [&[][..], b"\0", b"\xff", &every_byte, &bytes(3_000_001)] {
            let received = piped(reverse, sent);
            assert!(received == sent, "{} bytes, reverse {reverse}", sent.len());
        }
    }
}

/// Returns a pair whose receiver writes to a pipe that nobody reads, once all buffers are full and both
/// processes sleep. The sender still has much more to send.
fn standing_still(fabric: &TestEnv) -> (CommandProcess, CommandProcess) {
    let from = fabric.file("from");
    let all = 1 << 30;
    let file = std::fs::File::create(&from).expect("creates");
    file.set_len(all).expect("grows");
    let listener = fabric.listen(&[], "a", Stdio::null(), Stdio::piped());
    let connector = fabric.connect(&[], "a", open(&from), Stdio::null());
    let mut read = 0;
    until("a standstill", || {
        let before = std::mem::replace(&mut read, connector.bytes_read());
        let output = listener.0.stdout.as_ref().expect("piped");
        let waiting = ioctl_fionread(output).expect("how much waits to be read");
        let still = read > 0 && read == before && waiting > 0;
        still && connector.is_asleep() && listener.is_asleep()
    });
    assert!(read < all, "it has sent everything");
    (listener, connector)
}

#[test]
fn a_sender_sleeps_while_its_receiver_is_stopped() {
    let fabric = TestEnv::new();
    let (mut listener, mut connector) = standing_still(&fabric);
    listener.signal(Signal::STOP);
    // Waits for a second in which it reads nothing and takes at most a tick per sample.
    let mut before = (connector.bytes_read(), connector.cpu_ticks());
    let mut quiet = 0;
    until("a second of sleep", || {
        sleep_for(std::time::Duration::from_millis(100));
        let now = (connector.bytes_read(), connector.cpu_ticks());
        let moved = now.0 != before.0 || now.1 > before.1 + 1;
        quiet = if moved { 0 } else { quiet + 1 };
        before = now;
        quiet >= 10
    });
    listener.signal(Signal::CONT);
    drop(listener.0.stdout.take());
    listener.expect_exit(1);
    let complaint = connector.expect_exit(1);
    let cause = "the other side stopped: writing its output";
    assert!(complaint.contains(cause), "{complaint}");
    fabric.is_clean();
}

#[test]
fn a_listener_with_stalled_output_ends_with_its_sender() {
    for (signal, says) in [
        (Signal::KILL, "the other side is gone"),
        (Signal::INT, "the other side stopped: interrupted"),
    ] {
        let fabric = TestEnv::new();
        let (mut listener, mut connector) = standing_still(&fabric);
        connector.signal(signal);
        connector.wait();
        let complaint = listener.expect_exit(1);
        assert!(complaint.contains(says), "{complaint}");
        fabric.is_clean_after_next_user();
    }
}

#[test]
fn ctrl_c_ends_either_side_of_a_standstill() {
    for receiver in [false, true] {
        let fabric = TestEnv::new();
        let (listener, connector) = standing_still(&fabric);
        let (mut victim, mut other) = if receiver {
            (listener, connector)
        } else {
            (connector, listener)
        };
        victim.signal(Signal::INT);
        victim.expect_exit(130);
        other.expect_exit(1);
        fabric.is_clean();
    }
}

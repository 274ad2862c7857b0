//! A control stream whose other end writes any bytes.

use std::io::Write;
use std::os::unix::net::UnixStream;

use headworks_net::CONTROL_MESSAGE_MAX;
use headworks_net::framing::FrameDecoder;
use headworks_net::{BringUpOverStream, ControlStream};
use headworks_verbs::bringup::ConnectionParams;

use super::bring_up::device;
use super::fixtures::StubQueuePair;
use crate::input::Input;

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (max, cut) = (usize::from(input.u16()), usize::from(input.byte()) + 1);
    let first = input.byte();
    let rest = input.rest();
    let mut frames = FrameDecoder::new(max);
    for piece in rest.chunks(cut) {
        frames.feed(piece);
        while let Ok(Some(message)) = frames.next_message() {
            assert!(message.len() <= max);
        }
    }
    line(rest, cut, first.is_multiple_of(2));
}

/// Sends the bytes through a socket to a control stream. The stream reads a bring-up first if `brings_up`, and
/// then messages.
fn line(bytes: &[u8], cut: usize, brings_up: bool) {
    let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
    let mut line = ControlStream::from_unix(ours).expect("our own user");
    let mut qp = StubQueuePair::new();
    let mut bring_up = brings_up.then(|| {
        BringUpOverStream::start(
            device().info(),
            &mut qp,
            ConnectionParams::default(),
            Vec::new(),
        )
        .expect("a queue pair in RESET")
    });
    let mut messages = 0;
    let mut pieces = bytes.chunks(cut.max(16));
    loop {
        let piece = pieces.next();
        match piece {
            // Each piece is read before the next is written, so it always fits into the socket's buffer.
            Some(piece) => theirs.write_all(piece).expect("room in the socket"),
            None => theirs
                .shutdown(std::net::Shutdown::Both)
                .expect("it is connected"),
        }
        if let Some(coming) = &mut bring_up {
            match coming.step(&mut line, &mut qp) {
                Ok(Some(_)) => bring_up = None,
                Ok(None) if piece.is_some() => continue,
                _ => return,
            }
        }
        loop {
            match line.recv_control() {
                Ok(Some(message)) => {
                    assert!(message.len() <= CONTROL_MESSAGE_MAX);
                    messages += 1;
                    assert!(messages <= bytes.len(), "more messages than bytes");
                }
                Ok(None) if piece.is_some() => break,
                // The socket is closed, so the stream must report its end.
                Ok(None) => panic!("the end of the stream was not reported"),
                Err(_) => return,
            }
        }
    }
}

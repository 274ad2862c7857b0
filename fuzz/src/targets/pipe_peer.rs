//! The other side of a pipe. It sends a hello, brings up a ring, and then behaves arbitrarily.

use std::sync::Arc;

use headworks::pipe::{Direction, Pipe, WaitOptions};
use headworks_net::{ControlStream, Listener, clock, dial};
use headworks_ring::setup::VERSION;
use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{Device, Duration};

use super::fixtures::{open, registry};
use super::ring_peer::{GREETING, Peer, RECEIVES, SENDS};
use crate::input::Input;

const NAME: &str = "pipe";
/// Size in bytes of a slot of a pipe's ring.
const SLOT: usize = 4096;
/// First part of the greeting of an end of a pipe's ring: version, role, mode, two promises, variable framing,
/// slots, slot size, longest message.
const ALIKE: [u8; 31] = {
    let mut greeting = [0; 31];
    [greeting[0], greeting[1]] = VERSION.to_le_bytes();
    (greeting[3], greeting[4], greeting[5], greeting[6]) = (2, 1, 1, 1);
    greeting[7] = 128;
    greeting[16] = (SLOT >> 8) as u8;
    greeting[24] = ((15 * SLOT) >> 8) as u8;
    greeting
};

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (listens, sends) = (
        input.byte().is_multiple_of(2),
        input.byte().is_multiple_of(2),
    );
    let device = open("soft:peer");
    std::thread::scope(|scope| {
        let (ours, line);
        if listens {
            ours = scope.spawn(listen);
            let mut dialled = None;
            super::fixtures::until("a listener", || {
                dialled = dial(&registry(), NAME).ok();
                dialled.is_some()
            });
            line = dialled;
        } else {
            let listener = Listener::bind(&registry(), NAME).expect("a free name");
            ours = scope.spawn(move || call(sends));
            line = listener.accept(soon()).ok();
        }
        if let Some(mut line) = line {
            run_peer(&mut input, &mut line, &device, listens, sends);
        }
        // The scope's end has closed the control stream, so the other side ends.
        ours.join().expect("no panic");
    });
}

fn soon() -> headworks_verbs::Instant {
    clock::now() + Duration::from_secs(30)
}

fn patience() -> WaitOptions<'static> {
    WaitOptions {
        deadline: Some(soon()),
        ..WaitOptions::default()
    }
}

fn listen() {
    let name = "soft:pipe".parse().expect("a device's name");
    exercise(Pipe::listen(&name, NAME, patience()).ok());
}

fn call(sends: bool) {
    let name = "soft:pipe".parse().expect("a device's name");
    let direction = match sends {
        true => Direction::ToListener,
        false => Direction::ToConnector,
    };
    exercise(Pipe::connect(&name, NAME, direction, patience()).ok());
}

fn exercise(pipe: Option<Pipe>) {
    match pipe {
        Some(Pipe::Sender(sender)) => {
            let _ = sender.send_from(&mut &vec![7; 3 * SLOT][..], |_| {});
        }
        Some(Pipe::Receiver(receiver)) => {
            let _ = receiver.receive_into(&mut std::io::sink(), |_| {});
        }
        None => {}
    }
}

/// Runs the hostile side. It is the connecting side if `calls`. `sends` is whether the side under test sends.
fn run_peer(
    input: &mut Input<'_>,
    line: &mut ControlStream,
    device: &Arc<dyn Device>,
    calls: bool,
    sends: bool,
) {
    // The connecting side sends `H`, the version and a direction; the listening side `W` and the version.
    let mut hello = match calls {
        true => vec![b'H', 1, 0, u8::from(sends)],
        false => vec![b'W', 1, 0],
    };
    for _ in 0..input.byte() / 100 {
        let at = input.below(hello.len());
        hello[at] = input.byte();
    }
    if !calls && line.recv_control_wait(soon()).is_err() {
        return;
    }
    if line.send_control(&hello).is_err() || (calls && line.recv_control_wait(soon()).is_err()) {
        return;
    }
    let mut peer = Peer::new(device);
    let mut greeting = peer.greeting(&ALIKE, if sends { RECEIVES } else { SENDS });
    for _ in 0..input.byte() / 100 {
        greeting[input.below(GREETING)] = input.byte();
    }
    let tuning = ConnectionParams::default();
    let Ok(theirs) = line.bring_up(device.info(), peer.queue_pair(), tuning, greeting, soon())
    else {
        return;
    };
    if !peer.parse_greeting(&theirs.payload) {
        return;
    }
    while !input.is_over() {
        match input.byte() % 8 {
            0 => {
                let kind = input.pick(b"DXW");
                let mut message = vec![kind];
                message.extend_from_slice(input.bytes(8));
                let _ = line.send_control(&message);
            }
            1 => drop(line.recv_control()),
            _ => peer.act(input, SLOT),
        }
    }
}

//! Hostile applications. They send the daemon any packets and write anything into the memory that they share
//! with it.

use std::sync::{Arc, OnceLock};

use headworks_client::socket_message::Request;
use headworks_client::{Extent, Op, Operation, Rights};
use headworks_verbs::Device;

use super::{Application, DaemonHarness, PORT, SessionId, config, here};
use crate::input::Input;
use crate::targets::fixtures::open;

fn device() -> Arc<dyn Device> {
    static DEVICE: OnceLock<Arc<dyn Device>> = OnceLock::new();
    DEVICE.get_or_init(|| open("soft:service")).clone()
}

pub(in crate::targets) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut harness = DaemonHarness::new(device(), config(&mut input));
    let sessions = [1, 1, 2].map(|user| harness.attach(user));
    harness.settle();
    // The first application listens and the others connect, as honest applications do.
    let listens = |application: &mut Application| application.session.listen(PORT, 16);
    harness.applications.get_mut(&sessions[0]).map(listens);
    harness.settle();
    for session in &sessions[1..] {
        let connects = |application: &mut Application| application.session.connect(here(PORT));
        harness.applications.get_mut(session).map(connects);
    }
    harness.settle();
    while !input.is_over() {
        let session = input.pick(&sessions);
        act(&mut input, &mut harness, session);
    }
    harness.end();
}

fn act(input: &mut Input<'_>, harness: &mut DaemonHarness, session: SessionId) {
    let kind = input.byte();
    let Some(application) = harness.applications.get_mut(&session) else {
        return;
    };
    if application.is_over {
        return;
    }
    match kind % 8 {
        0 => {
            let len = usize::from(input.byte());
            let packet = input.bytes(len).to_vec();
            harness.daemon.session_packet(session, &packet, None);
        }
        1 => {
            let request = request(input);
            // In two of three inputs the request has a descriptor, even if it needs none.
            let watch = (!input.byte().is_multiple_of(3)).then(|| harness.descriptor());
            let packet = request.encode();
            harness.daemon.session_packet(session, &packet, watch);
        }
        2..4 => scribble(input, application),
        4 | 5 => {
            let index = usize::from(input.byte());
            let Application {
                session,
                connections,
                ..
            } = application;
            let count = connections.len().max(1);
            if let Some(connection) = connections.values_mut().nth(index % count) {
                let len = usize::from(input.byte()) * 8;
                connection.refresh(session.slabs());
                let _ = connection.sending.send(&vec![kind; len]);
                if kind & 0x40 != 0 {
                    let _ = connection.sending.operate(&operation(input));
                }
                let _ = connection.receiving.recv(&mut [0; 700]);
            }
        }
        6 => {
            for _ in 0..=input.byte() % 16 {
                harness.step();
            }
        }
        _ => harness.settle(),
    }
}

/// Returns an operation on an export that may exist, with local memory that may exist.
fn operation(input: &mut Input<'_>) -> Operation {
    let extent = |input: &mut Input<'_>, len: u32| Extent {
        slab: (input.byte() % 3).into(),
        len,
        offset: u64::from(input.byte()) << 7,
    };
    let len = u32::from(input.u16());
    Operation {
        op: input.pick(&[Op::Read, Op::Write, Op::FetchAdd, Op::CompareSwap]),
        export_id: (input.byte() % 4).into(),
        at: input.u16().into(),
        local: extent(input, len),
        operand: 1,
        compare: 0,
        result: extent(input, 16),
    }
}

/// Writes a word somewhere into a slab. The places of the doorbell board, the connections' words and their
/// rings are more frequent than others.
fn scribble(input: &mut Input<'_>, application: &Application) {
    let slab = usize::from(input.byte()) % application.slabs.len().max(1);
    let Some(slab) = application.slabs.get(slab) else {
        return;
    };
    let word = match input.byte() % 4 {
        0 => input.u64(),
        1 => u64::from(input.byte()),
        2 => u64::from(input.u16()),
        // The header of a record.
        _ => u64::from(input.u16()) << 32 | u64::from(input.byte() % 8),
    };
    let at = match input.byte() % 4 {
        0 => usize::from(input.u16()) * 8,
        1 => 4096 + usize::from(input.byte() % 64) * 8,
        2 => 4096 + usize::from(input.byte()) * 64,
        _ => usize::from(input.u16() % 2048) * 8,
    };
    let _ = slab.write(at % (slab.len() - 8), &word.to_le_bytes());
}

fn request(input: &mut Input<'_>) -> Request {
    let number = u32::from(input.byte() % 8);
    match input.byte() % 16 {
        0 => Request::Attach {
            version: input.byte().into(),
            oldest: input.byte().into(),
            name: "again".to_owned(),
        },
        1 | 2 => Request::Connect {
            request: number,
            to: here(PORT + u16::from(input.byte() % 3)),
            is_watched: number.is_multiple_of(2),
        },
        10 => Request::Watch {
            request: number,
            handle: u32::from(input.byte() % 8),
        },
        11 => Request::WatchListener {
            request: number,
            listener: u32::from(input.byte() % 4),
        },
        14 => Request::Export {
            request: number,
            handle: u32::from(input.byte() % 8),
            extent: Extent {
                slab: (input.byte() % 3).into(),
                len: 1 << (input.byte() % 14),
                offset: u64::from(input.byte()) << 9,
            },
            rights: Rights::from_bits_truncate(input.byte()),
        },
        15 => Request::Revoke {
            request: number,
            handle: u32::from(input.byte() % 8),
            export_id: u32::from(input.byte() % 4),
        },
        12 => Request::Arm { listener: number },
        13 => Request::Took { listener: number },
        3 => Request::Listen {
            request: number,
            port: u16::from(input.byte() % 16),
            backlog: input.byte().into(),
        },
        4 => Request::Unlisten { listener: number },
        5 => Request::Close { handle: number },
        6 => Request::Abort { handle: number },
        7 => Request::Wake,
        8 => Request::Alloc {
            request: number,
            len: u32::from(input.byte()) << (input.byte() % 32),
        },
        _ => Request::Free {
            extent: Extent {
                slab: input.byte().into(),
                len: 1 << (input.byte() % 32),
                offset: u64::from(input.byte()) << 9,
            },
        },
    }
}

//! A control stream over a queue pair, whose other end sends any messages.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use headworks_net::{ControlTransport, QpConnection, QpStreamSetup};
use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{
    BringUp, CqInit, Payload, QpCaps, QpInit, QpType, QueuePair, SendFlags, SendOp, SendWr,
};

use super::bring_up::device;
use crate::input::Input;

/// Maximum size in bytes of the messages, which are inlined into requests.
const INLINE: usize = 64;

/// A connection that never reports a disconnect, so that every failure comes from the messages.
struct SocketConnection(UnixStream);

impl QpConnection for SocketConnection {
    fn is_disconnected(&mut self) -> bool {
        false
    }

    fn disconnect(&mut self) {}
}

impl AsFd for SocketConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let device = device();
    let mut setup = QpStreamSetup::new(device).expect("a setup");
    let mut theirs = raw_queue_pair();
    let tuning = ConnectionParams {
        rnr_retry: 0,
        ..ConnectionParams::default()
    };
    let start = |qp: &mut dyn QueuePair| {
        BringUp::start(device.info(), qp, tuning, 1, Vec::new()).expect("INIT")
    };
    let (mut near, mut far) = (start(setup.queue_pair()), start(&mut *theirs));
    setup.post_receives().expect("receives");
    near.connect_both(setup.queue_pair(), &mut far, &mut *theirs)
        .expect("RTS");
    let (end, _other) = UnixStream::pair().expect("a pair");
    let stream = setup
        .finish(Box::new(SocketConnection(end)))
        .expect("a stream");
    let mut room = [0; 100];
    while !input.is_over() {
        let choice = input.byte();
        // Three times of four, a number that may be valid.
        let number = match choice % 4 {
            0 => input.bytes(8).to_vec(),
            _ => u64::from(choice >> 6).to_le_bytes().to_vec(),
        };
        let len = usize::from(input.byte()) % (INLINE - 7);
        let message = [&number, input.bytes(len)].concat();
        let sent = theirs.post_send(&[SendWr {
            wr_id: 0,
            op: SendOp::Send,
            payload: Payload::Inline(&message),
            flags: SendFlags::NONE,
        }]);
        if choice & 16 != 0 {
            let _ = stream.send(&message);
        }
        if choice & 32 == 0 {
            continue;
        }
        match stream.recv(&mut room) {
            Ok(0) => {
                assert!(stream.is_gone());
                return;
            }
            Ok(got) => assert!(got <= room.len()),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        if sent.is_err() {
            return;
        }
    }
}

/// Creates a queue pair without receives, whose completions nobody polls.
fn raw_queue_pair() -> Box<dyn QueuePair> {
    let device = device();
    let pd = device.alloc_pd().expect("a domain");
    let cq = device.create_cq(&CqInit {
        depth: 4096,
        ..CqInit::default()
    });
    let cq = cq.expect("a queue");
    let qp = pd.create_qp(&QpInit {
        qp_type: QpType::Rc,
        send_cq: cq.clone(),
        recv_cq: cq,
        srq: None,
        caps: QpCaps {
            max_inline: INLINE as u32,
            ..QpCaps::default()
        },
        signal_all: false,
    });
    qp.expect("a queue pair")
}

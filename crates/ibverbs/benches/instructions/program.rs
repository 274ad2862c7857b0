//! The counted program: the cases of `tests/stand_in/reference.c`, on this crate.

use std::hint::black_box;
use std::slice;
use std::sync::Arc;

use headworks_ibverbs::IbvProvider;
use headworks_verbs::{
    Access, AhInit, AhKey, Completion, CompletionQueue, CqInit, Destination, Gid, Mtu, Payload,
    ProtectionDomain, Provider, Psn, QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, QueuePair,
    RecvWr, RemoteAddr, RnrTimer, SendFlags, SendOp, SendWr, Sge, Status, bringup,
};

use crate::SLICES;

/// The longest slice.
const MOST: usize = SLICES[SLICES.len() - 1];

/// Values from which the requests are made.
#[derive(Clone, Copy)]
struct From {
    remote: u64,
    rkey: u32,
    imm: u32,
    ah: AhKey,
    qpn: Qpn,
    qkey: u32,
}

impl From {
    fn remote(&self, at: usize) -> RemoteAddr {
        RemoteAddr {
            addr: self.remote + at as u64 * 64,
            rkey: self.rkey,
        }
    }

    fn to(&self) -> Destination {
        Destination {
            ah: self.ah,
            qpn: self.qpn,
            qkey: self.qkey,
        }
    }

    fn imm(&self, at: usize) -> u32 {
        self.imm + at as u32
    }
}

/// Runs all cases, each `rounds` times.
pub(crate) fn run(rounds: usize) {
    let name = "ibv:stand_in0".parse().expect("a name");
    let device = IbvProvider::new().open(&name).expect("the stand-in");
    let pd = device.alloc_pd().expect("a protection domain");
    let init = CqInit {
        depth: 100,
        ..CqInit::default()
    };
    let cq = device.create_cq(&init).expect("a completion queue");
    let ah = pd.create_ah(&AhInit::to(Gid::default()));
    let ah = ah.expect("an address handle");
    let memory = [[0; 64]; MOST];
    let sges = memory.each_ref().map(|piece| Sge {
        addr: piece.as_ptr() as u64,
        len: 8,
        lkey: 7,
    });
    let pieces: [Piece<'_>; MOST] = std::array::from_fn(|at| Piece {
        sge: &sges[at],
        bytes: &memory[at][..8],
    });
    let from = black_box(From {
        remote: 0x10000,
        rkey: 8,
        imm: 9,
        ah: ah.key(),
        qpn: Qpn::new(0x102).expect("a number"),
        qkey: 11,
    });
    let mut rc = made(&*pd, &cq, QpType::Rc);
    connect(&mut *rc);
    let mut ud = made(&*pd, &cq, QpType::Ud);
    bringup::bring_up_ud(&mut *ud, 11, 0).expect("a queue pair of datagrams");
    let cases = Cases {
        rounds,
        from,
        pieces: black_box(&pieces),
    };
    cases.connected(&mut *rc);
    cases.datagrams(&mut *ud);
    for slice in SLICES {
        apart(|| cases.receive(&mut *rc, slice));
    }
    // The stand-in's completions are of the kind that was posted last.
    let nothing = RecvWr {
        wr_id: 0,
        sges: &[],
    };
    let send = SendWr {
        wr_id: 0,
        op: SendOp::Send,
        payload: Payload::Inline(&[]),
        flags: SendFlags::NONE,
    };
    rc.post_send(&[send]).expect("a request");
    for slice in SLICES {
        apart(|| cases.poll(&*cq, slice, |completion| completion.wr_id));
    }
    rc.post_recv(&[nothing]).expect("a receive");
    let look = |completion: &Completion| completion.wr_id + u64::from(completion.byte_len);
    for slice in SLICES {
        apart(|| cases.poll(&*cq, slice, look));
    }
}

/// Separates the counts of `case` from those around it. The counts are split where this function calls
/// `getppid`, which neither program calls otherwise.
fn apart(case: impl FnOnce()) {
    let _ = std::os::unix::process::parent_id();
    case();
    let _ = std::os::unix::process::parent_id();
}

/// The memory of a request.
#[derive(Clone, Copy)]
struct Piece<'a> {
    sge: &'a Sge,
    bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    fn gathered(self) -> Payload<'a> {
        Payload::Gather(slice::from_ref(self.sge))
    }

    fn inline(self) -> Payload<'a> {
        Payload::Inline(self.bytes)
    }
}

struct Cases<'a> {
    rounds: usize,
    from: From,
    pieces: &'a [Piece<'a>],
}

impl Cases<'_> {
    fn connected(&self, qp: &mut dyn QueuePair) {
        self.sends(qp, |from, at, piece| {
            (SendOp::Write(from.remote(at)), piece.gathered())
        });
        self.sends(qp, |from, at, piece| {
            (SendOp::Write(from.remote(at)), piece.inline())
        });
        self.sends(qp, |from, at, piece| {
            let op = SendOp::WriteImm(from.remote(at), from.imm(at));
            (op, piece.gathered())
        });
        self.sends(qp, |_, _, piece| (SendOp::Send, piece.gathered()));
        self.sends(qp, |_, _, piece| (SendOp::Send, piece.inline()));
        self.sends(qp, |from, at, piece| {
            (SendOp::SendImm(from.imm(at)), piece.gathered())
        });
        self.sends(qp, |from, at, piece| {
            (SendOp::Read(from.remote(at)), piece.gathered())
        });
        self.sends(qp, |from, at, piece| {
            let op = SendOp::CompareSwap {
                remote: from.remote(at),
                expect: at as u64,
                swap: from.imm.into(),
            };
            (op, piece.gathered())
        });
        self.sends(qp, |from, at, piece| {
            let op = SendOp::FetchAdd {
                remote: from.remote(at),
                add: at as u64,
            };
            (op, piece.gathered())
        });
    }

    fn datagrams(&self, qp: &mut dyn QueuePair) {
        self.sends(qp, |from, _, piece| {
            (SendOp::SendTo(from.to()), piece.gathered())
        });
        self.sends(qp, |from, at, piece| {
            (SendOp::SendToImm(from.to(), from.imm(at)), piece.gathered())
        });
    }

    /// Posts requests in all slices. `make` gets the values, the request's index and its memory.
    fn sends<F>(&self, qp: &mut dyn QueuePair, make: F)
    where
        F: for<'a> Fn(From, usize, Piece<'a>) -> (SendOp, Payload<'a>),
    {
        for slice in SLICES {
            apart(|| self.send(qp, slice, &make));
        }
    }

    #[inline(never)]
    fn send<F>(&self, qp: &mut dyn QueuePair, slice: usize, make: &F)
    where
        F: for<'a> Fn(From, usize, Piece<'a>) -> (SendOp, Payload<'a>),
    {
        let mut wrs = [SendWr {
            wr_id: 0,
            op: SendOp::Send,
            payload: Payload::Inline(&[]),
            flags: SendFlags::NONE,
        }; MOST];
        let (wrs, pieces) = (&mut wrs[..slice], &self.pieces[..slice]);
        let from = self.from;
        for _ in 0..self.rounds {
            for (at, (wr, piece)) in wrs.iter_mut().zip(pieces).enumerate() {
                let (op, payload) = make(from, at, *piece);
                *wr = SendWr {
                    wr_id: at as u64,
                    op,
                    payload,
                    flags: SendFlags::SIGNALED,
                };
            }
            qp.post_send(wrs).expect("requests");
        }
    }

    #[inline(never)]
    fn receive(&self, qp: &mut dyn QueuePair, slice: usize) {
        let mut wrs = [RecvWr {
            wr_id: 0,
            sges: &[],
        }; MOST];
        let (wrs, pieces) = (&mut wrs[..slice], &self.pieces[..slice]);
        for _ in 0..self.rounds {
            for (at, (wr, piece)) in wrs.iter_mut().zip(pieces).enumerate() {
                *wr = RecvWr {
                    wr_id: at as u64,
                    sges: slice::from_ref(piece.sge),
                };
            }
            qp.post_recv(wrs).expect("receives");
        }
    }

    #[inline(never)]
    fn poll(&self, cq: &dyn CompletionQueue, slice: usize, look: impl Fn(&Completion) -> u64) {
        let mut out = [Completion::default(); MOST];
        let out = &mut out[..slice];
        for _ in 0..self.rounds {
            let got = cq.poll(out).expect("a queue that works");
            let mut all = 0;
            for completion in &out[..got] {
                assert_eq!(completion.status, Status::Success);
                all += look(completion);
            }
            black_box(all);
        }
    }
}

fn made(
    pd: &dyn ProtectionDomain,
    cq: &Arc<dyn CompletionQueue>,
    qp_type: QpType,
) -> Box<dyn QueuePair> {
    let init = QpInit {
        qp_type,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        caps: QpCaps {
            max_inline: 64,
            ..QpCaps::default()
        },
        signal_all: false,
    };
    pd.create_qp(&init).expect("a queue pair")
}

/// Moves a queue pair to RTS. The stand-in has no peer.
fn connect(qp: &mut dyn QueuePair) {
    let init = QpAttr {
        access: Some(Access::ALL),
        ..QpAttr::to_state(QpState::Init)
    };
    let rtr = QpAttr {
        dest_gid: Some(Gid::default()),
        dest_qpn: Qpn::new(9),
        rq_psn: Some(Psn::truncated(1)),
        path_mtu: Some(Mtu::B1024),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(RnrTimer::default()),
        ..QpAttr::to_state(QpState::Rtr)
    };
    let rts = QpAttr {
        sq_psn: Some(Psn::truncated(1)),
        timeout: Some(14),
        retry_count: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(1),
        ..QpAttr::to_state(QpState::Rts)
    };
    for step in [init, rtr, rts] {
        qp.modify(&step).expect("the next state");
    }
}

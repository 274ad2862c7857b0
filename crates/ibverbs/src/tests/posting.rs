//! Requests as the device sees them: chains, conversion, the index of a refused request.

use headworks_verbs::{
    AhInit, AhKey, Destination, Gid, Payload, PostErrorKind, QpCaps, QpInit, QpState, QpType, Qpn,
    RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, SrqInit,
};
use proptest::prelude::*;

use super::Bench;
use super::stub::Seen;
use crate::abi::opcode;
use crate::address_handle::PLACES;
use crate::post_chain::CHAIN_MAX;

/// A request that owns the data that it refers to.
#[derive(Clone, Debug)]
struct Request {
    wr_id: u64,
    op: SendOp,
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
    flags: SendFlags,
}

impl Request {
    fn wr(&self) -> SendWr<'_> {
        SendWr {
            wr_id: self.wr_id,
            op: self.op,
            payload: match &self.inline {
                Some(bytes) => Payload::Inline(bytes),
                None => Payload::Gather(&self.sges),
            },
            flags: self.flags,
        }
    }

    /// Restores a request from what the device saw.
    fn back(seen: &Seen) -> Self {
        let imm = u32::from_be(seen.imm);
        let remote = RemoteAddr {
            addr: seen.remote.0,
            rkey: seen.remote.1,
        };
        let op = match seen.opcode {
            opcode::WRITE => SendOp::Write(remote),
            opcode::WRITE_IMM => SendOp::WriteImm(remote, imm),
            opcode::SEND => SendOp::Send,
            opcode::SEND_IMM => SendOp::SendImm(imm),
            opcode::READ => SendOp::Read(remote),
            opcode::COMPARE_SWAP => SendOp::CompareSwap {
                remote,
                expect: seen.operands.0,
                swap: seen.operands.1,
            },
            _ => SendOp::FetchAdd {
                remote,
                add: seen.operands.0,
            },
        };
        let flag = |bit: u32, flag| match seen.flags & bit {
            0 => SendFlags::NONE,
            _ => flag,
        };
        Self {
            wr_id: seen.wr_id,
            op,
            sges: seen.sges.clone(),
            inline: (seen.flags & 8 != 0).then(|| seen.inline.clone()),
            flags: flag(1, SendFlags::FENCE)
                | flag(2, SendFlags::SIGNALED)
                | flag(4, SendFlags::SOLICITED),
        }
    }
}

fn sge() -> impl Strategy<Value = Sge> {
    (any::<u64>(), 0u32..1 << 20, any::<u32>()).prop_map(|(addr, len, lkey)| Sge {
        addr,
        len,
        lkey,
    })
}

fn request() -> impl Strategy<Value = Request> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>());
    let payload = (
        proptest::collection::vec(sge(), 0..=3),
        proptest::option::of(proptest::collection::vec(any::<u8>(), 0..=64)),
    );
    (0u8..7, numbers, any::<[u32; 2]>(), payload, 0u8..8).prop_map(
        |(kind, (wr_id, addr, operand), [rkey, imm], (sges, inline), bits)| {
            let remote = RemoteAddr { addr, rkey };
            let (op, is_atomic) = match kind {
                0 => (SendOp::Write(remote), false),
                1 => (SendOp::WriteImm(remote, imm), false),
                2 => (SendOp::Send, false),
                3 => (SendOp::SendImm(imm), false),
                4 => (SendOp::Read(remote), false),
                5 => {
                    let (expect, swap) = (operand, !operand);
                    let op = SendOp::CompareSwap {
                        remote,
                        expect,
                        swap,
                    };
                    (op, true)
                }
                _ => (
                    SendOp::FetchAdd {
                        remote,
                        add: operand,
                    },
                    true,
                ),
            };
            let flag = |bit, flag| {
                if bits & bit == 0 {
                    SendFlags::NONE
                } else {
                    flag
                }
            };
            let word = Sge {
                addr: 8,
                len: 8,
                lkey: 1,
            };
            Request {
                wr_id,
                op,
                sges: if is_atomic { vec![word] } else { sges },
                inline: inline.filter(|_| kind < 4),
                flags: flag(1, SendFlags::FENCE)
                    | flag(2, SendFlags::SIGNALED)
                    | flag(4, SendFlags::SOLICITED),
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_slice_is_one_chain_and_comes_out_as_it_went_in(
        slices in proptest::collection::vec(proptest::collection::vec(request(), 1..20), 1..4),
    ) {
        let bench = Bench::new();
        let mut qp = bench.ready(QpType::Rc);
        for slice in &slices {
            let wrs: Vec<_> = slice.iter().map(Request::wr).collect();
            prop_assert_eq!(qp.post_send(&wrs), Ok(()));
        }
        let chains = std::mem::take(&mut bench.stub.lock().unwrap().chains);
        prop_assert_eq!(chains.len(), slices.len());
        for (chain, slice) in chains.iter().zip(&slices) {
            let back: Vec<_> = chain.iter().map(Request::back).map(|r| format!("{:?}", r.wr())).collect();
            let went: Vec<_> = slice.iter().map(|r| format!("{:?}", r.wr())).collect();
            prop_assert_eq!(back, went);
        }
    }

    #[test]
    fn refusals_name_the_index_and_earlier_requests_are_posted(
        count in 1usize..20, device in proptest::option::of(0usize..20), ours in proptest::option::of(0usize..20),
    ) {
        let bench = Bench::new();
        let mut qp = bench.ready(QpType::Rc);
        let sge = Sge { addr: 1, len: 1, lkey: 1 };
        let (few, many) = ([sge], [sge; 4]);
        let wrs: Vec<_> = (0..count)
            .map(|at| SendWr {
                wr_id: at as u64,
                op: SendOp::Send,
                payload: Payload::Gather(if ours == Some(at) { &many } else { &few }),
                flags: SendFlags::NONE,
            })
            .collect();
        bench.stub.lock().unwrap().refuses = device.map(|at| (at, libc::ENOMEM));
        let ours = ours.filter(|at| *at < count);
        let device = device.filter(|at| *at < ours.unwrap_or(count));
        let expected = match (device, ours) {
            (Some(at), _) => Err(PostErrorKind::QueueFull.at(at)),
            (None, Some(at)) => Err(PostErrorKind::TooManySges(3).at(at)),
            (None, None) => Ok(()),
        };
        prop_assert_eq!(qp.post_send(&wrs), expected);
        let posted: usize = bench.stub.lock().unwrap().chains.iter().map(Vec::len).sum();
        prop_assert_eq!(posted, device.or(ours).unwrap_or(count));
        // The chain is whole again for the next call.
        {
            let mut stub = bench.stub.lock().unwrap();
            stub.refuses = None;
            stub.chains.clear();
        }
        let all: Vec<_> = (0..30).map(|wr_id| SendWr { wr_id, payload: Payload::Gather(&few), ..wrs[0] }).collect();
        prop_assert_eq!(qp.post_send(&all), Ok(()));
        let chains = &bench.stub.lock().unwrap().chains;
        prop_assert_eq!(chains.len(), 1);
        prop_assert!(chains[0].iter().map(|seen| seen.wr_id).eq(0..30));
    }
}

fn send(wr_id: u64) -> SendWr<'static> {
    SendWr {
        wr_id,
        op: SendOp::Send,
        payload: Payload::Inline(b"x"),
        flags: SendFlags::NONE,
    }
}

#[test]
fn a_device_that_does_not_say_which_refused_all() {
    let bench = Bench::new();
    let mut qp = bench.ready(QpType::Rc);
    {
        let mut stub = bench.stub.lock().unwrap();
        (stub.refuses, stub.is_vague) = (Some((2, -libc::EIO)), true);
    }
    let refused = qp.post_send(&[send(1), send(2), send(3)]);
    assert_eq!(refused, Err(PostErrorKind::Device.at(0)));
}

#[test]
fn a_slice_longer_than_a_chain_takes_several() {
    let bench = Bench::new();
    let mut qp = bench.pd.create_qp(&QpInit {
        caps: QpCaps {
            max_send_wr: 4096,
            ..QpCaps::default()
        },
        ..bench.init(QpType::Rc)
    });
    let qp = qp.as_mut().unwrap();
    super::ready(&mut **qp, QpType::Rc);
    let wrs: Vec<_> = (0..CHAIN_MAX as u64 + 5).map(send).collect();
    assert_eq!(qp.post_send(&wrs), Ok(()));
    let lengths: Vec<_> = bench
        .stub
        .lock()
        .unwrap()
        .chains
        .iter()
        .map(Vec::len)
        .collect();
    assert_eq!(lengths, [CHAIN_MAX, 5]);
    // The index counts from the start of the slice.
    let mut wrs = wrs;
    wrs[CHAIN_MAX + 2].payload = Payload::Inline(&[0; 65]);
    let refused = PostErrorKind::InlineTooLong(64).at(CHAIN_MAX + 2);
    assert_eq!(qp.post_send(&wrs), Err(refused));
    assert_eq!(qp.post_send(&[]), Ok(()));
    assert_eq!(bench.stub.lock().unwrap().posts, 4);
}

#[test]
fn invalid_requests_are_refused_by_kind_before_the_device() {
    let bench = Bench::new();
    let mut qp = bench.ready(QpType::Rc);
    let remote = RemoteAddr { addr: 8, rkey: 1 };
    let sge = |len| Sge {
        addr: 1,
        len,
        lkey: 1,
    };
    let (seven, long) = ([sge(7)], [sge(1 << 30), sge(1)]);
    let (one, three) = ([sge((1 << 30) + 1)], [sge(1 << 29), sge(1 << 29), sge(1)]);
    let to = Destination {
        ah: AhKey(1),
        qpn: Qpn::default(),
        qkey: 0,
    };
    let add = SendOp::FetchAdd { remote, add: 1 };
    let gathered = |op| (op, Payload::Gather(&seven));
    for ((op, payload), kind) in [
        (
            (SendOp::Send, Payload::Gather(&long)),
            PostErrorKind::MessageTooLong(1 << 30),
        ),
        (
            (SendOp::Send, Payload::Gather(&one)),
            PostErrorKind::MessageTooLong(1 << 30),
        ),
        (
            (SendOp::Send, Payload::Gather(&three)),
            PostErrorKind::MessageTooLong(1 << 30),
        ),
        (gathered(add), PostErrorKind::Operation),
        (gathered(SendOp::SendTo(to)), PostErrorKind::Operation),
        (
            (SendOp::Read(remote), Payload::Inline(b"")),
            PostErrorKind::Operation,
        ),
    ] {
        let wr = SendWr {
            op,
            payload,
            ..send(1)
        };
        assert_eq!(qp.post_send(&[send(0), wr]), Err(kind.at(1)), "{op:?}");
    }
    let mut fresh = bench.pd.create_qp(&bench.init(QpType::Rc)).unwrap();
    let early = PostErrorKind::State(QpState::Reset).at(0);
    assert_eq!(fresh.post_send(&[send(0)]), Err(early));
    let receive = RecvWr {
        wr_id: 0,
        sges: &[],
    };
    assert_eq!(fresh.post_recv(&[receive]), Err(early));
}

#[test]
fn the_list_of_a_send_without_entries_is_null() {
    let bench = Bench::new();
    let mut qp = bench.ready(QpType::Rc);
    let remote = RemoteAddr { addr: 8, rkey: 1 };
    let ops = [
        SendOp::Send,
        SendOp::SendImm(1),
        SendOp::Write(remote),
        SendOp::WriteImm(remote, 1),
    ];
    let inline = ops.map(|op| (op, Payload::Inline(b"")));
    let gathered = ops.map(|op| (op, Payload::Gather(&[])));
    let read = (SendOp::Read(remote), Payload::Gather(&[]));
    for (op, payload) in gathered.into_iter().chain(inline).chain([read]) {
        // The slot held the list of another request before.
        assert_eq!(qp.post_send(&[send(1)]), Ok(()));
        let wr = SendWr {
            op,
            payload,
            ..send(2)
        };
        assert_eq!(qp.post_send(&[wr]), Ok(()));
        let dangling = bench.stub.lock().unwrap().dangling;
        assert_eq!(dangling, 0, "{op:?}, {payload:?}");
    }
    let mut qp = bench.ready(QpType::Ud);
    let ah = bench.pd.create_ah(&AhInit::to(Gid([3; 16]))).unwrap();
    let to = Destination {
        ah: ah.key(),
        qpn: Qpn::default(),
        qkey: 0,
    };
    let datagram = |op, payload| SendWr {
        op,
        payload,
        ..send(3)
    };
    let wrs = [
        datagram(SendOp::SendTo(to), Payload::Gather(&[])),
        datagram(SendOp::SendToImm(to, 1), Payload::Gather(&[])),
        datagram(SendOp::SendTo(to), Payload::Inline(b"")),
    ];
    assert_eq!(qp.post_send(&wrs), Ok(()));
    assert_eq!(bench.stub.lock().unwrap().dangling, 0);
}

#[test]
fn the_list_of_a_receive_without_entries_is_null() {
    let bench = Bench::new();
    let sges = [Sge::default()];
    let receive = |sges| RecvWr { wr_id: 0, sges };
    let wrs = [receive(&sges[..]), receive(&[]), receive(&sges[..0])];
    let mut qp = bench.ready(QpType::Rc);
    assert_eq!(qp.post_recv(&wrs), Ok(()));
    assert_eq!(bench.stub.lock().unwrap().dangling, 0);
    let srq = bench.pd.create_srq(&SrqInit {
        max_wr: 10,
        max_sge: 2,
        limit: 0,
    });
    assert_eq!(srq.unwrap().post_recv(&wrs), Ok(()));
    let stub = bench.stub.lock().unwrap();
    assert_eq!((stub.receives.len(), stub.dangling), (2, 0));
}

#[test]
fn datagrams_name_live_handles_of_their_own_domain() {
    let bench = Bench::with(",traffic_class=5", |_| {});
    let mut qp = bench.ready(QpType::Ud);
    let ah = bench.pd.create_ah(&AhInit::to(Gid([3; 16]))).unwrap();
    let to = |ah| Destination {
        ah,
        qpn: Qpn::new(0x77).unwrap(),
        qkey: 0x8000_0000,
    };
    let datagram = |op| SendWr { op, ..send(4) };
    let key = ah.key();
    let two = [
        datagram(SendOp::SendTo(to(key))),
        datagram(SendOp::SendToImm(to(key), 0x0102_0304)),
    ];
    assert_eq!(qp.post_send(&two), Ok(()));
    {
        let stub = bench.stub.lock().unwrap();
        let [first, second] = &stub.chains[0][..] else {
            panic!("one chain of two")
        };
        assert_eq!((first.to.1, first.to.2), (0x77, 0x8000_0000));
        assert_ne!(first.to.0, 0);
        assert_eq!(
            (first.opcode, second.opcode),
            (opcode::SEND, opcode::SEND_IMM)
        );
        assert_eq!(second.imm, u32::from_ne_bytes([1, 2, 3, 4]));
        assert_eq!(stub.ways[0].grh.traffic_class, 5);
    }
    let refused = Err(PostErrorKind::Operation.at(0));
    let other = bench.device.alloc_pd().unwrap();
    let foreign = other.create_ah(&AhInit::to(Gid([3; 16]))).unwrap();
    assert_eq!(
        qp.post_send(&[datagram(SendOp::SendTo(to(foreign.key())))]),
        refused
    );
    drop(ah);
    assert_eq!(qp.post_send(&two), refused);
    // A new handle to the same address has another key.
    let again = bench.pd.create_ah(&AhInit::to(Gid([3; 16]))).unwrap();
    assert_ne!(again.key(), key);
    assert_eq!(qp.post_send(&two), refused);
    assert_eq!(
        qp.post_send(&[datagram(SendOp::SendTo(to(again.key())))]),
        Ok(())
    );
    // Only datagrams are posted, and none longer than a packet.
    assert_eq!(qp.post_send(&[send(1)]), refused);
    let sges = [Sge {
        addr: 1,
        len: 2049,
        lkey: 1,
    }];
    let long = SendWr {
        payload: Payload::Gather(&sges),
        ..datagram(SendOp::SendTo(to(again.key())))
    };
    let refused = Err(PostErrorKind::MessageTooLong(2048).at(0));
    assert_eq!(qp.post_send(&[long]), refused);
}

#[test]
fn each_datagram_of_a_chain_goes_to_its_own_handle() {
    let bench = Bench::new();
    let mut qp = bench.ready(QpType::Ud);
    let [one, two] = [3, 4].map(|byte| bench.pd.create_ah(&AhInit::to(Gid([byte; 16]))).unwrap());
    let datagram = |ah| SendWr {
        op: SendOp::SendTo(Destination {
            ah,
            qpn: Qpn::default(),
            qkey: 0,
        }),
        ..send(0)
    };
    let (a, b) = (datagram(one.key()), datagram(two.key()));
    assert_eq!(qp.post_send(&[a, a, b, b, a]), Ok(()));
    let handles: Vec<_> = bench.stub.lock().unwrap().chains[0]
        .iter()
        .map(|seen| seen.to.0)
        .collect();
    let (at_one, at_two) = (handles[0], handles[2]);
    assert_ne!(at_one, at_two);
    assert_eq!(handles, [at_one, at_one, at_two, at_two, at_one]);
    // A handle that was found for one chain is looked up again for the next.
    drop(one);
    assert_eq!(qp.post_send(&[b, a]), Err(PostErrorKind::Operation.at(1)));
}

#[test]
fn no_name_leads_to_a_handle_that_is_gone() {
    let bench = Bench::new();
    let mut qp = bench.ready(QpType::Ud);
    let ah = bench.pd.create_ah(&AhInit::to(Gid([3; 16]))).unwrap();
    let datagram = |ah| SendWr {
        op: SendOp::SendTo(Destination {
            ah,
            qpn: Qpn::default(),
            qkey: 0,
        }),
        ..send(0)
    };
    let key = ah.key();
    assert_eq!(qp.post_send(&[datagram(key)]), Ok(()));
    drop(ah);
    let refused = Err(PostErrorKind::Operation.at(0));
    let (none, other) = (AhKey(0), AhKey(!key.0));
    for name in [key, other, key, none, other, AhKey(!0), none] {
        assert_eq!(qp.post_send(&[datagram(name)]), refused, "{name:?}");
        assert_eq!(qp.post_send(&[send(0)]), refused);
        assert_eq!(qp.post_send(&[]), Ok(()));
    }
}

#[test]
fn a_key_comes_back_as_late_as_can_be() {
    let bench = Bench::new();
    // The device allows three handles.
    let keys: Vec<_> = (0..7)
        .map(|_| {
            let ah = bench.pd.create_ah(&AhInit::to(Gid::default())).unwrap();
            ah.key()
        })
        .collect();
    let places: Vec<_> = keys.iter().map(|key| key.0 % PLACES).collect();
    assert_eq!(places, [0, 1, 2, 0, 1, 2, 0]);
    for (at, key) in keys.iter().enumerate() {
        assert!(!keys[..at].contains(key), "{keys:?}");
    }
}

#[test]
fn a_refused_receive_is_named_by_its_index() {
    let bench = Bench::new();
    let mut qp = bench.ready(QpType::Rc);
    let sge = |addr| Sge {
        addr,
        len: 4,
        lkey: 9,
    };
    let (one, two, three) = ([sge(1)], [sge(2), sge(3)], [sge(4); 3]);
    let receive = |wr_id, sges| RecvWr { wr_id, sges };
    let wrs = [receive(1, &one[..]), receive(2, &two), receive(3, &[])];
    assert_eq!(qp.post_recv(&wrs), Ok(()));
    let expected = vec![(1, one.to_vec()), (2, two.to_vec()), (3, vec![])];
    assert_eq!(
        bench.stub.lock().unwrap().receives,
        std::slice::from_ref(&expected)
    );
    let refused = PostErrorKind::TooManySges(2).at(1);
    let wrs = [receive(1, &one[..]), receive(2, &three), receive(3, &[])];
    assert_eq!(qp.post_recv(&wrs), Err(refused));
    assert_eq!(bench.stub.lock().unwrap().receives[1].len(), 1);
    let srq = bench.pd.create_srq(&SrqInit {
        max_wr: 10,
        max_sge: 2,
        limit: 0,
    });
    let srq = srq.unwrap();
    bench.stub.lock().unwrap().refuses = Some((1, libc::ENOMEM));
    let wrs = [receive(1, &one[..]), receive(2, &two), receive(3, &[])];
    assert_eq!(srq.post_recv(&wrs), Err(PostErrorKind::QueueFull.at(1)));
    bench.stub.lock().unwrap().refuses = None;
    assert_eq!(srq.post_recv(&wrs), Ok(()));
    assert_eq!(bench.stub.lock().unwrap().receives.last(), Some(&expected));
    let mut shared = bench.pd.create_qp(&QpInit {
        srq: Some(srq),
        ..bench.init(QpType::Rc)
    });
    let refused = shared.as_mut().unwrap().post_recv(&wrs);
    assert_eq!(refused, Err(PostErrorKind::HasSrq.at(0)));
}

//! Tests on the machine's own RDMA devices, with two connected queue pairs of each. Without a device they are
//! skipped with the reason; with `HEADWORKS_REQUIRE=ibv` they fail.

use std::sync::Arc;

use headworks_ibverbs::IbvProvider;
use headworks_runtime::testing;
use headworks_verbs::bringup::{ConnectionParams, bring_up_ud};
use headworks_verbs::{
    Access, AhInit, AllocRequest, Atomics, BringUp, Completion, CompletionQueue, CqInit,
    Destination, Device, GRH_BYTES, Opcode, Payload, Provider, QpCaps, QpInit, QpState, QpType,
    QueuePair, RecvWr, Region, SendFlags, SendOp, SendWr, Status,
};

/// The devices that are named, or all of the machine. If there are none, prints why.
fn devices() -> Vec<Arc<dyn Device>> {
    let provider = IbvProvider::new();
    let names = testing::each_device_or(|| {
        let listed = provider.devices().map_err(|error| error.to_string())?;
        if listed.is_empty() {
            let why = IbvProvider::missing().map(|error| error.to_string());
            return Err(why.unwrap_or_else(|| "libibverbs finds no device here".to_owned()));
        }
        Ok(listed.iter().map(|info| info.name.to_string()).collect())
    });
    let open = |name: &String| {
        let name = name.parse().expect("the name of a device");
        provider.open(&name).expect("a device that was named")
    };
    names.iter().map(open).collect()
}

/// Waits for something that a device does asynchronously; the limit makes a hang fail.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed().as_secs() < 30, "{what} does not come");
        std::thread::yield_now();
    }
}

/// A queue pair with its CQ and memory.
struct Side {
    qp: Box<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    region: Region,
}

fn side(device: &Arc<dyn Device>, qp_type: QpType) -> Side {
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(&CqInit {
        depth: 64,
        ..CqInit::default()
    });
    let cq = cq.unwrap();
    let buffer = device.alloc(&AllocRequest::of(4096)).unwrap();
    let region = pd.register(&buffer, Access::ALL).unwrap();
    let max_inline = device.info().limits.max_inline.min(32);
    let qp = pd.create_qp(&QpInit {
        qp_type,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        caps: QpCaps {
            max_inline,
            ..QpCaps::default()
        },
        signal_all: false,
    });
    let qp = qp.unwrap();
    Side { qp, cq, region }
}

impl Side {
    fn word(&self, at: usize) -> *mut u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.region.len());
        self.region.addr(at) as *mut u64
    }

    fn get(&self, at: usize) -> u64 {
        // SAFETY: the word is in the region, which lives as long as `self`, and no request is in progress.
        unsafe { self.word(at).read_volatile() }
    }

    fn set(&self, at: usize, value: u64) {
        // SAFETY: as above.
        unsafe { self.word(at).write_volatile(value) };
    }

    /// Polls until the next completion, because devices complete asynchronously.
    fn completion(&self) -> Completion {
        let mut one = [Completion::default()];
        until("a completion", || self.cq.poll(&mut one).unwrap() == 1);
        one[0]
    }

    fn send(&mut self, wrs: &[SendWr<'_>]) {
        self.qp.post_send(wrs).unwrap();
    }

    fn receive(&mut self, wr_id: u64, at: usize, len: u32) {
        let sges = [self.region.sge(at, len)];
        let wr = RecvWr { wr_id, sges: &sges };
        self.qp.post_recv(&[wr]).unwrap();
    }
}

fn connected(device: &Arc<dyn Device>) -> (Side, Side) {
    let (mut one, mut two) = (side(device, QpType::Rc), side(device, QpType::Rc));
    let start = |side: &mut Side, seed| {
        let info = device.info();
        BringUp::start(
            info,
            &mut *side.qp,
            ConnectionParams::default(),
            seed,
            Vec::new(),
        )
        .unwrap()
    };
    let (mut up, mut other) = (start(&mut one, 11), start(&mut two, 12));
    up.connect_both(&mut *one.qp, &mut other, &mut *two.qp)
        .unwrap();
    (one, two)
}

#[test]
fn connections_carry_every_operation() {
    for device in devices() {
        let (mut one, mut two) = connected(&device);
        let (here, there) = (one.region.sge(0, 8), two.region.remote(64));
        let wr = |wr_id, op, sges| SendWr {
            wr_id,
            op,
            payload: Payload::Gather(sges),
            flags: SendFlags::SIGNALED,
        };
        two.receive(1, 0, 100);
        two.receive(2, 0, 100);
        one.set(0, 0x1234_5678);
        let list = [here];
        // The three requests are one chain, and all of them arrive.
        one.send(&[
            wr(10, SendOp::Write(there), &list),
            wr(11, SendOp::SendImm(0x0a0b_0c0d), &list),
            wr(12, SendOp::WriteImm(there.plus(8), 77), &list),
        ]);
        for wr_id in 10..13 {
            let done = one.completion();
            assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
        }
        let received = two.completion();
        assert_eq!((received.wr_id, received.byte_len), (1, 8));
        assert_eq!(
            (received.opcode, received.imm),
            (Opcode::Recv, Some(0x0a0b_0c0d))
        );
        let received = two.completion();
        assert_eq!(
            (received.opcode, received.imm),
            (Opcode::RecvWriteImm, Some(77))
        );
        assert_eq!([two.get(0), two.get(64), two.get(72)], [0x1234_5678; 3]);

        two.set(64, 40);
        let add = SendOp::FetchAdd {
            remote: there,
            add: 2,
        };
        let swap = SendOp::CompareSwap {
            remote: there,
            expect: 42,
            swap: 99,
        };
        let results = [8, 16, 24].map(|at| [one.region.sge(at, 8)]);
        let all = [
            (wr(20, add, &results[0]), Opcode::FetchAdd),
            (wr(21, swap, &results[1]), Opcode::CompareSwap),
            (wr(22, SendOp::Read(there), &results[2]), Opcode::Read),
        ];
        let has_atomics = device.info().abilities.atomics != Atomics::None;
        if !has_atomics {
            println!("{}: no atomics", device.info().name);
        }
        let first = if has_atomics { 0 } else { 2 };
        for (wr, opcode) in &all[first..] {
            one.send(&[*wr]);
            let done = one.completion();
            assert_eq!((done.wr_id, done.opcode), (wr.wr_id, *opcode));
            assert_eq!((done.status, done.byte_len), (Status::Success, 8));
        }
        match has_atomics {
            true => assert_eq!([one.get(8), one.get(16), one.get(24)], [40, 42, 99]),
            false => assert_eq!(one.get(24), 40),
        }

        if one.qp.caps().max_inline >= 8 {
            let bytes = 0xfeed_u64.to_ne_bytes();
            one.send(&[SendWr {
                payload: Payload::Inline(&bytes),
                ..wr(30, SendOp::Write(there), &[])
            }]);
            assert_eq!(one.completion().status, Status::Success);
            assert_eq!(two.get(64), 0xfeed);
        }

        // With an invalid key, both ends go to ERROR and learn of it.
        let nowhere = headworks_verbs::RemoteAddr {
            rkey: there.rkey ^ 0x5500,
            ..there
        };
        one.send(&[wr(40, SendOp::Write(nowhere), &list)]);
        assert_eq!(one.completion().status, Status::RemoteAccess);
        assert_eq!(one.qp.state(), QpState::Error);
        until("the other end's failure", || {
            two.qp.state() == QpState::Error
        });
        one.send(&[wr(41, SendOp::Write(there), &list)]);
        assert_eq!(one.completion().status, Status::Flushed);
    }
}

#[test]
fn datagrams_arrive_behind_their_header() {
    for device in devices() {
        if !device.info().abilities.ud {
            println!("{}: no datagrams", device.info().name);
            continue;
        }
        let (mut one, mut two) = (side(&device, QpType::Ud), side(&device, QpType::Ud));
        for side in [&mut one, &mut two] {
            bring_up_ud(&mut *side.qp, 0x1111, 5).unwrap();
        }
        // The handle must be of the sender's protection domain, so it is created there.
        let pd = device.alloc_pd().unwrap();
        let buffer = device.alloc(&AllocRequest::of(64)).unwrap();
        let region = pd.register(&buffer, Access::NONE).unwrap();
        let init = QpInit {
            qp_type: QpType::Ud,
            send_cq: one.cq.clone(),
            recv_cq: one.cq.clone(),
            srq: None,
            caps: QpCaps {
                max_inline: 0,
                ..QpCaps::default()
            },
            signal_all: true,
        };
        let mut sender = pd.create_qp(&init).unwrap();
        bring_up_ud(&mut *sender, 0x1111, 6).unwrap();
        let info = device.info();
        let ah = pd.create_ah(&AhInit {
            dlid: info.lid,
            ..AhInit::to(info.gid)
        });
        let ah = ah.unwrap();
        two.receive(7, 0, 256);
        let to = Destination {
            ah: ah.key(),
            qpn: two.qp.qpn(),
            qkey: 0x1111,
        };
        let sges = [region.sge(0, 16)];
        let wr = SendWr {
            wr_id: 8,
            op: SendOp::SendToImm(to, 5),
            payload: Payload::Gather(&sges),
            flags: SendFlags::NONE,
        };
        sender.post_send(&[wr]).unwrap();
        assert_eq!(one.completion().status, Status::Success);
        let got = two.completion();
        assert_eq!(
            (got.wr_id, got.status, got.imm),
            (7, Status::Success, Some(5))
        );
        assert_eq!(got.byte_len as usize, GRH_BYTES + 16);
        assert_eq!((got.src_qpn, got.flags.grh), (sender.qpn(), true));
    }
}

#[test]
fn an_armed_queue_wakes_a_sleeper_on_its_channel() {
    for device in devices() {
        let channel = device.create_channel().unwrap();
        assert_eq!(channel.next_event().unwrap(), None);
        let cq = device.create_cq(&CqInit {
            depth: 8,
            channel: Some(channel.clone()),
            timestamps: true,
        });
        let cq = cq.unwrap();
        let mut sleeper = side(&device, QpType::Rc);
        let pd = device.alloc_pd().unwrap();
        let qp = pd.create_qp(&QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps: QpCaps {
                max_inline: 0,
                ..QpCaps::default()
            },
            signal_all: false,
        });
        sleeper.qp = qp.unwrap();
        cq.arm(false);
        // The receive is flushed at once, because the queue pair is in ERROR. A flush is a completion too.
        use headworks_verbs::QpAttr;
        let to_init = QpAttr {
            access: Some(Access::NONE),
            ..QpAttr::to_state(QpState::Init)
        };
        sleeper.qp.modify(&to_init).unwrap();
        let receive = RecvWr {
            wr_id: 3,
            sges: &[],
        };
        sleeper.qp.post_recv(&[receive]).unwrap();
        sleeper
            .qp
            .modify(&QpAttr::to_state(QpState::Error))
            .unwrap();
        let mut event = None;
        until("an event", || {
            event = channel.next_event().unwrap();
            event.is_some()
        });
        assert_eq!(event, Some(cq.id()));
        let mut out = [Completion::default(); 2];
        assert_eq!(cq.poll(&mut out), Ok(1));
        assert_eq!((out[0].wr_id, out[0].status), (3, Status::Flushed));
    }
}

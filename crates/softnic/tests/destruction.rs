//! The objects made from a device are dropped in any order while a peer is using them, and nothing leaks.
//! Alone in its file, because it counts the process's descriptors and mappings.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::{
    Access, AllocRequest, Buffer, Completion, CompletionChannel, CompletionQueue, CqInit, Device,
    Gid, Mtu, Payload, ProtectionDomain, Provider, Psn, QpAttr, QpCaps, QpInit, QpState, QpType,
    Qpn, QueuePair, RecvWr, Region, RemoteAddr, RnrTimer, SendFlags, SendOp, SendWr,
    SharedReceiveQueue, SrqInit,
};
use proptest::prelude::*;

/// Far longer than anything in a correct run takes.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(120);
const LEN: u32 = 4096;

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "waited for {what} in vain");
        std::thread::yield_now();
    }
}

/// All objects that a program holds of a device, each to be dropped on its own.
#[derive(Default)]
struct DeviceObjects {
    device: Option<Arc<dyn Device>>,
    domain: Option<Arc<dyn ProtectionDomain>>,
    channel: Option<Arc<dyn CompletionChannel>>,
    send_cq: Option<Arc<dyn CompletionQueue>>,
    recv_cq: Option<Arc<dyn CompletionQueue>>,
    srq: Option<Arc<dyn SharedReceiveQueue>>,
    buffer: Option<Arc<dyn Buffer>>,
    region: Option<Region>,
    /// Two queue pairs: the first is connected, the second has an SRQ and is not connected.
    qps: [Option<Box<dyn QueuePair>>; 2],
}

/// Number of objects in [`DeviceObjects`].
const THINGS: usize = 10;

impl DeviceObjects {
    fn open(fabric: &Path, name: &str) -> Self {
        let provider = SoftProvider::on(Registry::open_at(fabric).expect("fabric"));
        let device = provider.open(&name.parse().expect("name")).expect("opens");
        let domain = device.alloc_pd().expect("domain");
        let channel = device.create_channel().expect("channel");
        let cq = || {
            let init = CqInit {
                depth: 4096,
                channel: Some(channel.clone()),
                timestamps: false,
            };
            device.create_cq(&init).expect("CQ")
        };
        let (send_cq, recv_cq) = (cq(), cq());
        let init = SrqInit {
            max_wr: 16,
            max_sge: 1,
            limit: 0,
        };
        let srq = domain.create_srq(&init).expect("SRQ");
        let qp = |srq| {
            let init = QpInit {
                qp_type: QpType::Rc,
                send_cq: send_cq.clone(),
                recv_cq: recv_cq.clone(),
                srq,
                caps: QpCaps::default(),
                signal_all: true,
            };
            Some(domain.create_qp(&init).expect("queue pair"))
        };
        let qps = [qp(None), qp(Some(srq.clone()))];
        let buffer = device
            .alloc(&AllocRequest::of(LEN as usize))
            .expect("memory");
        let region = domain.register(&buffer, Access::ALL).expect("region");
        Self {
            device: Some(device),
            domain: Some(domain),
            channel: Some(channel),
            send_cq: Some(send_cq),
            recv_cq: Some(recv_cq),
            srq: Some(srq),
            buffer: Some(buffer),
            region: Some(region),
            qps,
        }
    }

    /// Returns the device's GID, and the connected queue pair's QPN and memory.
    fn address(&self) -> (Gid, Qpn, RemoteAddr) {
        let (Some(device), Some(qp), Some(region)) = (&self.device, &self.qps[0], &self.region)
        else {
            panic!("nothing is dropped yet");
        };
        let remote = RemoteAddr {
            addr: region.addr(0),
            rkey: region.rkey(),
        };
        (device.info().gid, qp.qpn(), remote)
    }

    fn connect(&mut self, (gid, qpn, _): (Gid, Qpn, RemoteAddr)) {
        let steps = [
            QpAttr {
                access: Some(Access::ALL),
                ..QpAttr::to_state(QpState::Init)
            },
            QpAttr {
                dest_gid: Some(gid),
                dest_qpn: Some(qpn),
                rq_psn: Some(Psn::truncated(1)),
                path_mtu: Some(Mtu::B4096),
                max_dest_rd_atomic: Some(1),
                min_rnr_timer: Some(RnrTimer::default()),
                ..QpAttr::to_state(QpState::Rtr)
            },
            QpAttr {
                sq_psn: Some(Psn::truncated(1)),
                timeout: Some(0),
                retry_count: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(1),
                ..QpAttr::to_state(QpState::Rts)
            },
        ];
        let qp = self.qps[0].as_mut().expect("a queue pair");
        for step in &steps {
            qp.modify(step).expect("connects");
        }
    }

    /// Uses the objects that are still there. Returns how many completions there were.
    fn work(&mut self, turn: u64, remote: RemoteAddr) -> usize {
        if let (Some(qp), Some(region)) = (&mut self.qps[0], &self.region) {
            let sges = [region.sge(0, LEN)];
            let receive = RecvWr {
                wr_id: turn,
                sges: &sges,
            };
            let op = match turn % 3 {
                0 => SendOp::Send,
                1 => SendOp::Read(remote),
                _ => SendOp::Write(remote),
            };
            let wr = SendWr {
                wr_id: turn,
                op,
                payload: Payload::Gather(&sges),
                flags: SendFlags::default(),
            };
            // A full queue, or a peer that is gone, is expected here.
            let _ = qp.post_recv(&[receive]);
            let _ = qp.post_send(&[wr]);
        }
        if let Some(srq) = &self.srq {
            let receive = RecvWr {
                wr_id: turn,
                sges: &[],
            };
            let _ = srq.post_recv(&[receive]);
        }
        if let Some(channel) = &self.channel {
            let _ = channel.next_event();
        }
        if let Some(device) = &self.device {
            let _ = device.next_async_event();
        }
        let mut out = [Completion::default(); 16];
        let mut got = 0;
        for cq in [&self.send_cq, &self.recv_cq].into_iter().flatten() {
            cq.arm(false);
            got += cq.poll(&mut out).unwrap_or_default();
        }
        got
    }

    fn let_go(&mut self, thing: usize) {
        match thing {
            0 => drop(self.device.take()),
            1 => drop(self.domain.take()),
            2 => drop(self.channel.take()),
            3 => drop(self.send_cq.take()),
            4 => drop(self.recv_cq.take()),
            5 => drop(self.srq.take()),
            6 => drop(self.buffer.take()),
            7 => drop(self.region.take()),
            _ => drop(self.qps[thing - 8].take()),
        }
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .count()
}

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    maps.lines()
        .filter(|line| line.contains("memfd:headworks"))
        .count()
}

fn any_order() -> impl Strategy<Value = Vec<usize>> {
    Just((0..THINGS).collect::<Vec<_>>()).prop_shuffle()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if std::env::var_os("HEADWORKS_LONG").is_some() { 2000 } else { 40 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn everything_goes_in_any_order_with_a_busy_peer_and_nothing_is_left(
        ours in any_order(),
        theirs in any_order(),
        same_host in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().expect("folder");
        let fabric = folder.path().join("fabric");
        // The first device of a process opens what the process keeps.
        drop(DeviceObjects::open(&fabric, "soft:h1"));
        until("the registry to go", || !fabric.exists());
        let before = descriptors();
        let mut here = DeviceObjects::open(&fabric, "soft:h1");
        let mut there = DeviceObjects::open(&fabric, if same_host { "soft:h1" } else { "soft:h2" });
        let (to_here, to_there) = (here.address(), there.address());
        here.connect(to_there);
        there.connect(to_here);
        let (stop, turns) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let (stop, turns) = (&stop, &turns);
            scope.spawn(move || {
                let mut turn = 0;
                while !stop.load(Ordering::Relaxed) {
                    there.work(turn, to_here.2);
                    turn += 1;
                    turns.store(turn, Ordering::Relaxed);
                }
                for thing in theirs {
                    there.let_go(thing);
                    there.work(turn, to_here.2);
                }
            });
            let mut got = 0;
            let mut turn = 0;
            until("traffic", || {
                turn += 1;
                got += here.work(turn, to_there.2);
                got > 20
            });
            for thing in ours {
                here.let_go(thing);
                // The peer continues meanwhile.
                let seen = turns.load(Ordering::Relaxed);
                until("the peer", || turns.load(Ordering::Relaxed) > seen + 2);
                here.work(turn, to_there.2);
            }
            stop.store(true, Ordering::Relaxed);
        });
        // If the device's handle was not dropped last, its thread may still be exiting.
        until("the registry to go", || !fabric.exists());
        until("the memory to be unmapped", || mappings() == 0);
        until("the descriptors to be closed", || descriptors() <= before);
    }
}

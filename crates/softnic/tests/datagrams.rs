//! Datagrams between processes, one of which is killed. The other's queue pair must stay usable, and each
//! receive that it posted must end once. The file is its own test harness, because it starts itself again.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::bringup::bring_up_ud;
use headworks_verbs::{
    Access, AddressHandle, AhInit, AllocRequest, Buffer, Completion, CompletionQueue, CqInit,
    Destination, Device, GRH_BYTES, Gid, Payload, PostErrorKind, ProtectionDomain, Provider,
    QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, QueuePair, RecvWr, Region, SendFlags, SendOp,
    SendWr, Status,
};

const QKEY: u32 = 7;
const RECEIVES: u64 = 32;
const SLOT: usize = 1024;
/// Far longer than anything in a correct run takes.
const LIMIT: Duration = Duration::from_secs(120);

/// A UD queue pair and what it needs.
struct DatagramQp {
    // Dropped in this order.
    qp: Box<dyn QueuePair>,
    region: Option<Region>,
    buffer: Arc<dyn Buffer>,
    cq: Arc<dyn CompletionQueue>,
    pd: Arc<dyn ProtectionDomain>,
    provider: SoftProvider,
    _device: Arc<dyn Device>,
}

impl DatagramQp {
    fn open(fabric: &Path, name: &str) -> Self {
        let provider = SoftProvider::on(Registry::open_at(fabric).expect("fabric"));
        let device = provider.open(&name.parse().expect("name")).expect("opens");
        let pd = device.alloc_pd().expect("domain");
        let init = CqInit {
            depth: 256,
            channel: None,
            timestamps: false,
        };
        let cq = device.create_cq(&init).expect("CQ");
        let init = QpInit {
            qp_type: QpType::Ud,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            caps: QpCaps::default(),
            signal_all: false,
        };
        let qp = pd.create_qp(&init).expect("queue pair");
        let buffer = device
            .alloc(&AllocRequest::of(SLOT * RECEIVES as usize))
            .expect("memory");
        let region = pd.register(&buffer, Access::ALL).expect("region");
        let mut port = Self {
            qp,
            region: Some(region),
            buffer,
            cq,
            pd,
            provider,
            _device: device,
        };
        port.bring_up();
        port
    }

    fn bring_up(&mut self) {
        bring_up_ud(&mut *self.qp, QKEY, 1).expect("comes up");
    }

    fn receive(&mut self, wr_id: u64) {
        let at = (wr_id % RECEIVES) as usize * SLOT;
        let region = self.region.as_ref().expect("registered");
        let sges = [region.sge(at, SLOT as u32)];
        let wr = RecvWr { wr_id, sges: &sges };
        let qp = &mut self.qp;
        // A sender that was stopped or killed with a receive in hand keeps that slot occupied. After a lap
        // there is no room, until the sender has gone on or its death is known.
        until("room", || match qp.post_recv(&[wr]) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind, PostErrorKind::QueueFull);
                false
            }
        });
    }

    fn poll(&self) -> Option<Completion> {
        let mut out = [Completion::default()];
        (self.cq.poll(&mut out).expect("polls") == 1).then(|| out[0])
    }

    fn gid_of(&self, host: &str) -> Gid {
        let devices = self.provider.devices().expect("devices");
        let found = devices.iter().find(|info| info.name.name() == Some(host));
        found.expect("a host").gid
    }

    fn aim(&self, host: &str, qpn: Qpn) -> (Arc<dyn AddressHandle>, Destination) {
        let init = AhInit::to(self.gid_of(host));
        let ah = self.pd.create_ah(&init).expect("handle");
        let to = Destination {
            ah: ah.key(),
            qpn,
            qkey: QKEY,
        };
        (ah, to)
    }

    /// Sends one datagram, and waits until it is done.
    fn send(&mut self, to: Destination, len: usize) -> Status {
        let region = self.region.as_ref().expect("registered");
        let sges = [region.sge(0, len as u32)];
        let wr = SendWr {
            wr_id: u64::MAX,
            op: SendOp::SendTo(to),
            payload: Payload::Gather(&sges),
            flags: SendFlags::SIGNALED,
        };
        self.qp.post_send(&[wr]).expect("posted");
        let mut done = None;
        until("a send", || {
            done = self.poll();
            done.is_some()
        });
        done.expect("done").status
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "waited for {what} in vain");
        std::thread::yield_now();
    }
}

/// Another process with a role. Killed when dropped.
struct PeerTestProcess(Child);

impl PeerTestProcess {
    fn start(role: &str, fabric: &Path, qpn: Option<Qpn>) -> Self {
        let child = Command::new(std::env::current_exe().expect("itself"))
            .arg(role)
            .arg(fabric)
            .arg(qpn.map_or(0, Qpn::raw).to_string())
            .stdout(Stdio::piped())
            .spawn();
        Self(child.expect("starts"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let out = self.0.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for PeerTestProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends datagrams for as long as the process lives.
fn be_sender(fabric: &Path, qpn: Qpn) {
    let mut port = DatagramQp::open(fabric, "soft:h2");
    let (_ah, to) = port.aim("h1", qpn);
    loop {
        port.send(to, 900);
    }
}

/// Receives datagrams for as long as the process lives.
fn be_receiver(fabric: &Path) {
    let mut port = DatagramQp::open(fabric, "soft:h2");
    (0..RECEIVES).for_each(|id| port.receive(id));
    println!("{}", port.qp.qpn().raw());
    loop {
        if let Some(done) = port.poll() {
            port.receive(done.wr_id);
        }
        std::thread::yield_now();
    }
}

/// Pseudo-random numbers from a seed (xorshift).
struct XorShift(u64);

impl XorShift {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Records which receives have not ended, and checks that none ends twice.
#[derive(Default)]
struct ReceiveTracker {
    open: BTreeMap<u64, ()>,
    posted: u64,
}

impl ReceiveTracker {
    fn post(&mut self, port: &mut DatagramQp) {
        port.receive(self.posted);
        self.open.insert(self.posted, ());
        self.posted += 1;
    }

    fn end(&mut self, done: Completion) {
        let known = self.open.remove(&done.wr_id);
        assert!(known.is_some(), "receive {} ended twice", done.wr_id);
        if done.status == Status::Success {
            assert_eq!(done.byte_len as usize, GRH_BYTES + 900);
        } else {
            assert_eq!(done.status, Status::Flushed);
        }
    }

    /// Fails the queue pair, and waits until every receive has ended.
    fn close(&mut self, port: &mut DatagramQp) {
        let error = QpAttr::to_state(QpState::Error);
        port.qp.modify(&error).expect("fails");
        until("the receives to end", || {
            while let Some(done) = port.poll() {
                self.end(done);
            }
            self.open.is_empty()
        });
    }
}

fn rounds(few: u64) -> u64 {
    match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => few * 50,
        None => few,
    }
}

fn a_sender_is_killed_and_every_receive_ends_once(fabric: &Path, seed: &mut XorShift) {
    let mut port = DatagramQp::open(fabric, "soft:h1");
    for _ in 0..rounds(12) {
        let mut book = ReceiveTracker::default();
        (0..RECEIVES).for_each(|_| book.post(&mut port));
        let qpn = port.qp.qpn();
        let mut others: Vec<_> = (0..2)
            .map(|_| PeerTestProcess::start("sender", fabric, Some(qpn)))
            .collect();
        let enough = 1 + seed.below(3000);
        let mut seen = 0;
        until("datagrams", || {
            while let Some(done) = port.poll() {
                assert_eq!(done.status, Status::Success);
                book.end(done);
                book.post(&mut port);
                seen += 1;
            }
            seen >= enough
        });
        // One sender dies, the other goes on.
        others[0].kill();
        let enough = seen + 2 * RECEIVES;
        until("datagrams from the other", || {
            while let Some(done) = port.poll() {
                book.end(done);
                book.post(&mut port);
                seen += 1;
            }
            seen >= enough
        });
        assert_eq!(port.qp.state(), QpState::Rts);
        others[1].kill();
        book.close(&mut port);
        let reset = QpAttr::to_state(QpState::Reset);
        until("the reset", || port.qp.modify(&reset).is_ok());
        port.bring_up();
    }
}

fn a_receiver_is_killed_and_the_sender_does_not_mind(fabric: &Path, seed: &mut XorShift) {
    let mut port = DatagramQp::open(fabric, "soft:h1");
    for _ in 0..rounds(6) {
        let mut other = PeerTestProcess::start("receiver", fabric, None);
        let qpn = other
            .line()
            .parse()
            .ok()
            .and_then(Qpn::new)
            .expect("a number");
        let (_ah, to) = port.aim("h2", qpn);
        for _ in 0..seed.below(2000) {
            assert_eq!(port.send(to, 900), Status::Success);
        }
        let victim = std::thread::spawn(move || other.kill());
        while !victim.is_finished() {
            assert_eq!(port.send(to, 900), Status::Success);
        }
        victim.join().expect("killed");
        for _ in 0..100 {
            assert_eq!(port.send(to, 900), Status::Success);
        }
        assert_eq!(port.qp.state(), QpState::Rts);
    }
}

fn memory_is_deregistered_under_a_stream_and_written_to_no_more(
    fabric: &Path,
    seed: &mut XorShift,
) {
    let mut port = DatagramQp::open(fabric, "soft:h1");
    let _other = PeerTestProcess::start("sender", fabric, Some(port.qp.qpn()));
    let _another = PeerTestProcess::start("sender", fabric, Some(port.qp.qpn()));
    for _ in 0..rounds(200) {
        let mut book = ReceiveTracker::default();
        (0..RECEIVES).for_each(|_| book.post(&mut port));
        let enough = 1 + seed.below(RECEIVES);
        let mut seen = 0;
        until("datagrams", || {
            while let Some(done) = port.poll() {
                book.end(done);
                seen += 1;
            }
            seen >= enough
        });
        // Deregister while senders are writing, and receives name the region.
        drop(port.region.take());
        let start = port.buffer.as_ptr();
        for at in 0..port.buffer.len() {
            // SAFETY: in range of a buffer that is not registered any more, so nothing else uses it.
            unsafe { start.add(at).write_volatile(0x5a) };
        }
        // The next datagram takes a receive without memory: that ends in error, and the rest is flushed.
        let mut failed = 0;
        until("the receives to end", || {
            while let Some(done) = port.poll() {
                failed += u32::from(done.status == Status::LocalProtection);
                let known = book.open.remove(&done.wr_id);
                assert!(known.is_some(), "receive {} ended twice", done.wr_id);
            }
            book.open.is_empty()
        });
        let is_failed = port.qp.state() == QpState::Error;
        assert_eq!(failed, u32::from(is_failed));
        for at in 0..port.buffer.len() {
            // SAFETY: as above.
            let byte = unsafe { start.add(at).read_volatile() };
            assert_eq!(byte, 0x5a, "written to after it was deregistered");
        }
        let reset = QpAttr::to_state(QpState::Reset);
        port.qp.modify(&reset).expect("resets");
        port.bring_up();
        port.region = Some(port.pd.register(&port.buffer, Access::ALL).expect("region"));
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let role = args.next().unwrap_or_default();
    if matches!(&*role, "sender" | "receiver") {
        let fabric = args.next().expect("a fabric");
        let qpn = args.next().and_then(|text| text.parse().ok());
        return match &*role {
            "sender" => be_sender(
                Path::new(&fabric),
                qpn.and_then(Qpn::new).expect("a number"),
            ),
            _ => be_receiver(Path::new(&fabric)),
        };
    }
    if role == "--list" {
        return;
    }
    let seed = std::env::var("HEADWORKS_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
    println!("seed: HEADWORKS_SEED={seed}");
    let mut seed = XorShift(seed);
    type TestFn = fn(&Path, &mut XorShift);
    let tests: [(&str, TestFn); 3] = [
        (
            "a_sender_is_killed_and_every_receive_ends_once",
            a_sender_is_killed_and_every_receive_ends_once,
        ),
        (
            "a_receiver_is_killed_and_the_sender_does_not_mind",
            a_receiver_is_killed_and_the_sender_does_not_mind,
        ),
        (
            "memory_is_deregistered_under_a_stream_and_written_to_no_more",
            memory_is_deregistered_under_a_stream_and_written_to_no_more,
        ),
    ];
    for (name, test) in tests {
        if !role.is_empty() && !role.starts_with('-') && !name.contains(&role) {
            continue;
        }
        let folder = tempfile::tempdir().expect("folder");
        test(&folder.path().join("fabric"), &mut seed);
        println!("test {name} ... ok");
    }
}

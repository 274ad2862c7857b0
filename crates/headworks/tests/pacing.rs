//! Several processes pace one RNIC. They keep to one rate, and a killed process leaves neither its debt nor
//! its place to the others. The tests observe the shared memory from outside.

#![allow(unsafe_code, reason = "forks")]

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use headworks::net::clock;
use headworks::pace;
use headworks::pacing::shared_state::{BYTES, LAYOUT_VERSION};
use headworks::pacing::{SharedPacing, Status};
use headworks::runtime::testing;
use headworks::verbs::bringup::ConnectionParams;
use headworks::verbs::{
    Access, AllocRequest, BringUp, Completion, CompletionChannel, CompletionQueue, CqInit, Device,
    Instant, Payload, QpAttr, QpCaps, QpInit, QpState, QpType, QueuePair, RecvWr, Region,
    SendFlags, SendOp, SendWr, Status as Ended,
};
use headworks_shm::{Registry, View};
use rustix::event::{PollFd, PollFlags, Timespec};

/// Length of the longest request; a SEND of this length is never cut.
const LONGEST: usize = 64 << 20;
/// Environment variable of a child process: the device that it opens.
const DEVICE: &str = "HEADWORKS_TEST_PACES";

/// A child process that executes orders and answers each with a line.
struct PacingProcess {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<std::process::ChildStderr>,
}

impl PacingProcess {
    fn begins(fabric: &Registry, device: &str) -> Self {
        let mut process = Command::new("/proc/self/exe")
            .args(["--exact", "--ignored", "--nocapture", "another"])
            .env(DEVICE, device)
            .env("HEADWORKS_FABRIC", fabric.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        Self {
            orders: process.stdin.take(),
            answers: BufReader::new(process.stderr.take().expect("piped")),
            process,
        }
    }

    /// Starts one and waits until it has opened its device.
    fn paces(fabric: &Registry, device: &str) -> Self {
        let mut other = Self::begins(fabric, device);
        assert_eq!(other.answer(), "open");
        other
    }

    fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("not left");
        writeln!(orders, "{order}").expect("it reads");
    }

    fn answer(&mut self) -> String {
        let mut control = String::new();
        self.answers.read_line(&mut control).expect("it answers");
        control.trim_end().to_owned()
    }

    fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Kills it with SIGKILL.
    fn dies(mut self) {
        self.process.kill().expect("kill");
        self.process.wait().expect("wait");
    }

    /// Ends it by closing its input.
    fn leaves(mut self) {
        self.orders = None;
        assert!(self.process.wait().expect("ends").success());
    }
}

impl Drop for PacingProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A queue pair connected to another of the same device.
struct Pair {
    channel: Arc<dyn CompletionChannel>,
    cq: Arc<dyn CompletionQueue>,
    from: Box<dyn QueuePair>,
    to: Box<dyn QueuePair>,
    region: Region,
}

impl Pair {
    fn of(device: &Arc<dyn Device>) -> Self {
        let domain = device.alloc_pd().expect("a domain");
        let init = CqInit {
            depth: 64,
            ..CqInit::default()
        };
        let channel = device.create_channel().expect("a channel");
        let cq = device.create_cq(&CqInit {
            channel: Some(channel.clone()),
            ..init.clone()
        });
        let cq = cq.expect("room");
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: device.create_cq(&init).expect("room"),
            srq: None,
            caps: QpCaps::default(),
            signal_all: true,
        };
        let made = || domain.create_qp(&init).expect("room");
        let (mut from, mut to) = (made(), made());
        let memory = device.alloc(&AllocRequest::of(LONGEST)).expect("memory");
        let region = domain.register(&memory, Access::ALL).expect("registers");
        let start = |qp: &mut dyn QueuePair, psn| {
            let begun = BringUp::start(
                device.info(),
                qp,
                ConnectionParams::default(),
                psn,
                Vec::new(),
            );
            begun.expect("begins")
        };
        let (mut one, mut other) = (start(&mut *from, 1), start(&mut *to, 2));
        one.connect_both(&mut *from, &mut other, &mut *to)
            .expect("connects");
        Self {
            channel,
            cq,
            from,
            to,
            region,
        }
    }

    fn post(&mut self, op: SendOp, len: u32) {
        let sges = [self.region.sge(0, len)];
        let wr = SendWr {
            wr_id: 1,
            op,
            payload: Payload::Gather(&sges),
            flags: SendFlags::NONE,
        };
        self.from.post_send(&[wr]).expect("room");
    }

    fn sends(&mut self, len: u32) {
        let sges = [self.region.sge(0, len)];
        let wr = RecvWr {
            wr_id: 2,
            sges: &sges,
        };
        self.to.post_recv(&[wr]).expect("room");
        self.post(SendOp::Send, len);
    }

    /// Sleeps on a request that is delayed beyond the test's limit, until the queue pair fails and flushes
    /// it.
    fn is_woken(&mut self, len: u32) {
        self.writes(1, len);
        self.cq.arm(false);
        let mut done = [Completion::default()];
        assert_eq!(self.cq.poll(&mut done).expect("polls"), 0);
        self.post(SendOp::Write(self.region.remote(0)), 8);
        let failed = self.from.modify(&QpAttr::to_state(QpState::Error));
        failed.expect("to ERROR");
        let channel = self.channel.fd();
        let mut fds = [PollFd::new(&channel, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: (testing::limit().nanos() / 1_000_000_000) as i64,
            tv_nsec: 0,
        };
        let ready = rustix::event::poll(&mut fds, Some(&limit)).expect("waits");
        assert_eq!(ready, 1, "nobody wakes it");
        let event = self.channel.next_event().expect("reads");
        assert_eq!(event, Some(self.cq.id()));
        assert_eq!(self.cq.poll(&mut done).expect("polls"), 1);
        assert_eq!(done[0].status, Ended::Flushed);
    }

    fn writes(&mut self, count: u32, len: u32) {
        let limit = clock::now() + testing::limit();
        for _ in 0..count {
            self.post(SendOp::Write(self.region.remote(0)), len);
            let mut done = [Completion::default()];
            while self.cq.poll(&mut done).expect("polls") == 0 {
                assert!(clock::now() < limit, "it never completes");
                std::thread::yield_now();
            }
            assert_eq!(done[0].status, Ended::Success);
        }
    }
}

#[test]
#[ignore = "paces as other tests tell it to, in a process of its own"]
fn another() {
    let name = env::var(DEVICE).expect("a device");
    let device = match headworks::open(&name) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("{error}");
            return;
        }
    };
    let mut pair = None;
    eprintln!("open");
    for order in std::io::stdin().lines() {
        let order = order.expect("a line");
        let words: Vec<_> = order.split(' ').collect();
        let number = |at: usize| words[at].parse().expect("a number");
        match (words[0], &mut pair) {
            ("joins", pair) => *pair = Some(Pair::of(&device)),
            ("sends", Some(pair)) => pair.sends(number(1)),
            ("writes", Some(pair)) => pair.writes(number(1), number(2)),
            ("is_woken", Some(pair)) => pair.is_woken(number(1)),
            ("cuts", _) => assert_eq!(pace::cut_rate(device.info()), Some(true)),
            ("forks", _) => assert!(run_in_forked_child(|| takes_part(&name)), "of its own"),
            (other, _) => panic!("what is {other}?"),
        }
        eprintln!("done");
    }
}

/// Whether `f` is true in a forked child.
fn run_in_forked_child(f: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only runs `f`, while no other thread of this process holds a lock, and exits at once.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        // SAFETY: `_exit` ends the child without running any code of the parent.
        0 => unsafe { libc::_exit(i32::from(!f())) },
        pid => {
            let mut status = 0;
            // SAFETY: `pid` is our own child, and `status` is a valid place for its status.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

/// Opens a paced device in this process, and checks that others see that it does.
fn takes_part(name: &str) -> bool {
    let device = headworks::open(name).expect("opens");
    let fabric = Registry::open_default().expect("the registry");
    let commons = fabric.common_segments().expect("it can be read").entries;
    let is_ours = commons
        .iter()
        .any(|(_, held)| pid_of(&fabric, held) == std::process::id());
    is_ours && pace::status(device.info()).is_some()
}

/// Returns the process id of a holder.
fn pid_of(fabric: &Registry, held: &headworks_shm::CommonSegmentRecord) -> u32 {
    let process = fabric.process_record(held.process).expect("the registry");
    process.expect("it lives").pid
}

fn new_registry() -> (tempfile::TempDir, Arc<Registry>) {
    let parent = tempfile::tempdir().expect("a directory");
    let fabric = Registry::open_at(parent.path().join("fabric")).expect("a fabric");
    (parent, fabric)
}

/// The paced RNIC: its key, the processes that pace it, and their shared memory.
struct SharedRateView {
    key: String,
    pids: Vec<u32>,
    view: View,
    share: SharedPacing,
}

fn read_shared_rate(fabric: &Arc<Registry>) -> SharedRateView {
    let commons = fabric.common_segments().expect("the registry").entries;
    let (key, record) = commons.first().expect("somebody paces");
    let one = |(other, held): &(String, _)| {
        let held: &headworks_shm::CommonSegmentRecord = held;
        other == key && held.inode == record.inode
    };
    assert!(commons.iter().all(one), "one RNIC, one memory");
    let mut pids: Vec<_> = commons
        .iter()
        .map(|(_, held)| pid_of(fabric, held))
        .collect();
    pids.sort_unstable();
    let segment = fabric
        .attach_common_segment_read_only(record)
        .expect("memory");
    let segment = segment.expect("a living process's");
    let view = View::from(Arc::new(segment));
    SharedRateView {
        key: key.clone(),
        pids,
        share: SharedPacing::over(view.clone())
            .expect("long enough")
            .observed_in(fabric.clone()),
        view,
    }
}

impl SharedRateView {
    /// Returns the shared clock: when the next request is due.
    fn next(&self) -> Instant {
        let word = self.view.atomic_u64(0).expect("within");
        Instant::from_nanos(word.load(Ordering::Relaxed))
    }

    fn status(&self) -> Status {
        self.share.status(&Default::default(), clock::now())
    }
}

fn is_gone(fabric: &Registry) -> bool {
    !fabric.path().exists()
}

/// A device that, after a rate cut, is so slow that a debt of 64 MiB lasts about nine minutes, beyond any
/// test.
const SLOW: &str = "soft:h1,pace,pace_line_rate_gbps=0.1,pace_min_rate_gbps=0.001,pace_cut_part=0,\
                    pace_inc_mbps=0,pace_idle_ms=1000000";

#[test]
fn a_killed_processes_debt_is_nobodys_and_its_place_is_taken_over() {
    let (_parent, fabric) = new_registry();
    let mut debtor = PacingProcess::paces(&fabric, SLOW);
    let mut other = PacingProcess::paces(&fabric, SLOW);
    other.ask("joins");
    for order in ["joins", "writes 1 64", "cuts"] {
        assert_eq!(debtor.ask(order), "done");
    }
    debtor.ask(&format!("sends {LONGEST}"));
    let seen = read_shared_rate(&fabric);
    let owed = seen.next();
    assert!(
        owed.since(clock::now()).as_secs_f64() > 300.0,
        "a large debt"
    );
    assert_eq!((seen.status().members, seen.share.bits()), (2, 1));
    debtor.dies();
    other.order("writes 4 1000");
    assert_eq!(other.answer(), "done");
    assert!(seen.next() < owed, "what was owed is forgiven");
    // The dead process's row stays until another process needs one.
    let bits = seen.share.bits();
    let mut next = PacingProcess::paces(&fabric, SLOW);
    next.ask("joins");
    assert_eq!(seen.status().members, 2);
    assert_eq!(
        seen.share.bits(),
        bits - 1,
        "its queue pair is not active any more"
    );
    let living = read_shared_rate(&fabric);
    let mut pids = [other.pid(), next.pid()];
    pids.sort_unstable();
    assert_eq!(living.pids, pids);
    other.leaves();
    next.leaves();
    assert!(is_gone(&fabric));
}

#[test]
fn two_processes_keep_to_one_rate() {
    const COUNT: u64 = 1_000;
    const LEN: u64 = 16_000;
    let device = "soft:h1,pace,pace_line_rate_gbps=1,pace_min_rate_gbps=1,pace_overhead_bytes=0";
    let (_parent, fabric) = new_registry();
    let mut both = [(); 2].map(|()| PacingProcess::paces(&fabric, device));
    for other in &mut both {
        other.ask("joins");
    }
    let began = clock::now();
    for other in &mut both {
        other.order(&format!("writes {COUNT} {LEN}"));
    }
    for other in &mut both {
        assert_eq!(other.answer(), "done");
    }
    // All bytes that both have posted are on one clock, except the initial burst.
    let bytes = 2 * COUNT * LEN - 65_536;
    let passed = read_shared_rate(&fabric).next().since(began).nanos();
    assert!(
        passed >= bytes * 8,
        "{passed} ns for {bytes} bytes at 8 ns each"
    );
    for other in both {
        other.leaves();
    }
}

#[test]
fn shared_state_outlives_its_creator_until_the_last_process() {
    let device = "soft:h1,pace";
    let (_parent, fabric) = new_registry();
    let mut first = PacingProcess::paces(&fabric, device);
    first.ask("cuts");
    let cut = read_shared_rate(&fabric).status().rate_bytes_per_s;
    let second = PacingProcess::paces(&fabric, device);
    first.dies();
    let third = PacingProcess::paces(&fabric, device);
    let seen = read_shared_rate(&fabric);
    assert_eq!(seen.pids.len(), 2);
    assert_eq!(
        seen.status().rate_bytes_per_s,
        cut,
        "they share what the first left"
    );
    second.dies();
    third.dies();
    // The next process starts anew.
    let fourth = PacingProcess::paces(&fabric, device);
    let seen = read_shared_rate(&fabric);
    assert_eq!(seen.pids, [fourth.pid()]);
    assert_eq!(seen.status().rate_bytes_per_s, 2 * cut);
    assert_eq!((seen.next(), seen.status().members), (Instant::ZERO, 0));
    fourth.leaves();
    assert!(is_gone(&fabric));
}

#[test]
fn a_sleeper_wakes_for_requests_flushed_while_it_waits() {
    // 84 ms pass until the next request is due.
    let device = "soft:h1,pace_line_rate_gbps=0.1,pace_slice_bytes=1048576";
    let (_parent, fabric) = new_registry();
    let mut other = PacingProcess::paces(&fabric, device);
    other.ask("joins");
    assert_eq!(other.ask("is_woken 1048576"), "done");
    other.leaves();
}

#[test]
fn a_forked_pacing_child_holds_the_shared_state_itself() {
    let (_parent, fabric) = new_registry();
    let mut parent = PacingProcess::paces(&fabric, "soft:h1,pace");
    assert_eq!(parent.ask("forks"), "done");
    parent.leaves();
}

#[test]
fn eight_processes_that_begin_together_share_one_memory() {
    let (_parent, fabric) = new_registry();
    let mut all: Vec<_> = (0..8)
        .map(|_| PacingProcess::begins(&fabric, "soft:h1,pace"))
        .collect();
    for other in &mut all {
        assert_eq!(other.answer(), "open");
    }
    for other in &mut all {
        other.order("joins");
    }
    for other in &mut all {
        assert_eq!(other.answer(), "done");
    }
    let seen = read_shared_rate(&fabric);
    let mut pids: Vec<_> = all.iter().map(PacingProcess::pid).collect();
    pids.sort_unstable();
    assert_eq!(seen.pids, pids);
    assert_eq!(seen.status().members, 8);
    // Half of them are killed.
    for (at, other) in all.into_iter().enumerate() {
        match at % 2 {
            0 => other.dies(),
            _ => other.leaves(),
        }
    }
    // The last to leave removed the rest of the killed ones, or the next process does.
    PacingProcess::paces(&fabric, "soft:h1,pace").leaves();
    assert!(is_gone(&fabric));
}

#[test]
fn another_version_or_length_is_refused_in_one_line() {
    let (_parent, fabric) = new_registry();
    // Keys belong to a directory: if it is made anew, its keys differ. This process keeps it.
    let keeper = PacingProcess::paces(&fabric, "soft:h2");
    let first = PacingProcess::paces(&fabric, "soft:h1,pace");
    let key = read_shared_rate(&fabric).key;
    first.leaves();
    for (len, version) in [(BYTES, LAYOUT_VERSION + 1), (BYTES + 64, LAYOUT_VERSION)] {
        let held = fabric
            .claim_common_segment(&key, len, version)
            .expect("nobody's");
        let mut refused = PacingProcess::begins(&fabric, "soft:h1,pace");
        let control = refused.answer();
        assert!(
            control.contains("soft:h1,pace") && control.contains(&key),
            "{control}"
        );
        refused.leaves();
        // Without pacing, the device opens.
        PacingProcess::paces(&fabric, "soft:h1").leaves();
        drop(held);
    }
    keeper.leaves();
    PacingProcess::paces(&fabric, "soft:h1,pace").leaves();
    assert!(is_gone(&fabric));
}

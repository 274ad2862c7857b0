//! Another process: this test program, started again. It executes commands line by line, and can be
//! killed or stopped at a named point of a request.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::sync::Mutex;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, set_parent_process_death_signal,
    waitid,
};

use super::*;

/// Actions at the crash points that requests pass.
enum CrashPlan {
    /// Kill the process after this many more points.
    Kill(usize),
    /// Stop the process once, at the point of this name.
    Stop(String),
}

static PLAN: Mutex<Option<CrashPlan>> = Mutex::new(None);

/// The name of a point, and what to do there.
type CrashPointHook = (&'static str, Box<dyn FnOnce()>);

thread_local! {
    static MEANWHILE: RefCell<Option<CrashPointHook>> = const { RefCell::new(None) };
}

/// Has this thread call `what` once, when it next passes the point of this name.
pub(super) fn meanwhile(name: &'static str, what: impl FnOnce() + 'static) {
    MEANWHILE.set(Some((name, Box::new(what))));
}

/// Called at every named point of a request.
pub(crate) fn at(done: &'static str) {
    let here = |next: &mut Option<_>| next.take_if(|(name, _)| *name == done);
    if let Some((_, what)) = MEANWHILE.with_borrow_mut(here) {
        what();
    }
    let mut plan = PLAN.lock().unwrap();
    match &mut *plan {
        Some(CrashPlan::Kill(0)) => {
            kill_process(getpid(), Signal::KILL).unwrap();
            unreachable!("killed");
        }
        Some(CrashPlan::Kill(more)) => *more -= 1,
        Some(CrashPlan::Stop(name)) if name == done => {
            *plan = None;
            drop(plan);
            kill_process(getpid(), Signal::STOP).unwrap();
            // Another thread may have taken the signal, which then stops this thread a moment later.
            let mut go = String::new();
            std::io::stdin().read_line(&mut go).unwrap();
        }
        _ => {}
    }
}

/// Begins a line that is meant for the parent; the test harness writes other lines.
const MARK: &str = "HW ";
const FOLDER: &str = "HEADWORKS_TEST_FOLDER";
const HOST: &str = "HEADWORKS_TEST_HOST";

/// The other process, as the parent sees it. Killed when dropped.
pub(super) struct PeerTestProcess {
    child: std::process::Child,
    said: BufReader<ChildStdout>,
    told: ChildStdin,
}

impl PeerTestProcess {
    /// Starts a process that opens `soft:HOST`.
    pub(super) fn start(fabric: &Fabric, host: &str) -> Self {
        let program = Command::new("/proc/self/exe");
        Self::start_by(program, fabric.folder.path(), host)
    }

    /// Starts a process with `program`, on the fabric in `folder`.
    pub(super) fn start_by(mut program: Command, folder: &Path, host: &str) -> Self {
        let mut child = program
            .args(["tests::child::entry", "--exact", "--nocapture"])
            .arg("--test-threads=1")
            .env(FOLDER, folder)
            .env(HOST, host)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let told = child.stdin.take().unwrap();
        let mut other = Self { child, said, told };
        other.hears("open");
        other
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(super) fn tell(&mut self, line: &str) {
        writeln!(self.told, "{line}").unwrap();
    }

    /// Returns the next line that is meant for the parent, or `None` if the process died.
    fn next(&mut self) -> Option<Vec<String>> {
        loop {
            let mut line = String::new();
            if self.said.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some((_, meant)) = line.split_once(MARK) {
                return Some(meant.split_whitespace().map(str::to_owned).collect());
            }
        }
    }

    /// Reads the next line, which must begin with `word`, and returns the rest of it.
    pub(super) fn hears(&mut self, word: &str) -> Vec<String> {
        let mut said = self.next().unwrap_or_else(|| panic!("died, not {word}"));
        assert_eq!(said.remove(0), word, "{said:?}");
        said
    }

    /// Like `hears`, but returns `None` if the process died instead.
    pub(super) fn hears_or_died(&mut self, word: &str) -> Option<Vec<String>> {
        let mut said = self.next()?;
        assert_eq!(said.remove(0), word, "{said:?}");
        Some(said)
    }

    /// Connects the process's queue pair with ours.
    pub(super) fn join(&mut self, ours: &mut SoftQp, device: &SoftDevice) {
        self.join_as("end", ours, device);
    }

    /// Connects a new queue pair of the given kind in the process with ours.
    pub(super) fn join_as(&mut self, kind: &str, ours: &mut SoftQp, device: &SoftDevice) {
        self.tell(kind);
        let there = self.hears("end");
        let (gid, qpn) = (gid_of(&there[0]), qpn_of(&there[1]));
        join(ours, gid, qpn);
        let gid = u128::from_be_bytes(device.info().gid.0);
        self.tell(&format!("join {gid} {}", ours.qpn().raw()));
        self.hears("up");
    }

    /// Connects the queue pairs of two other processes with each other.
    pub(super) fn join_each_other(a: &mut Self, b: &mut Self) {
        a.tell("end");
        b.tell("end");
        let (to_a, to_b) = (a.hears("end"), b.hears("end"));
        a.tell(&format!("join {}", to_b.join(" ")));
        b.tell(&format!("join {}", to_a.join(" ")));
        a.hears("up");
        b.hears("up");
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the process has been stopped.
    pub(super) fn await_stop(&self) {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        let state = waitid(WaitId::Pid(self.pid()), options).unwrap().unwrap();
        assert!(state.stopped(), "it ended");
    }

    pub(super) fn go_on(&mut self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
        self.tell("go");
    }
}

impl Drop for PeerTestProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn gid_of(word: &str) -> Gid {
    Gid(u128::from_str(word).unwrap().to_be_bytes())
}

fn qpn_of(word: &str) -> Qpn {
    Qpn::new(word.parse().unwrap()).unwrap()
}

fn say(line: &str) {
    println!("{MARK}{line}");
}

/// The state of the other process, in that process.
struct ChildState {
    device: SoftDevice,
    end: Option<TestQp>,
    regions: Vec<Region>,
    /// Address and rkey of the peer's memory.
    far: Option<(u64, u32)>,
    many: Vec<SoftQp>,
    many_cq: Option<Arc<dyn CompletionQueue>>,
}

/// The entry point of the other process. Does nothing in the parent.
#[test]
fn entry() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let dir = Registry::open_at(Path::new(&folder).join("fabric")).unwrap();
    let name = format!("soft:{}", std::env::var(HOST).unwrap());
    let device = SoftDevice::over(Context::open(dir, info(&name.parse().unwrap())).unwrap());
    let mut played = ChildState {
        device,
        end: None,
        regions: Vec::new(),
        far: None,
        many: Vec::new(),
        many_cq: None,
    };
    say("open");
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).unwrap() > 0 {
        let words: Vec<_> = line.split_whitespace().collect();
        played.play(words[0], &words[1..]);
        line.clear();
    }
}

impl ChildState {
    fn play(&mut self, verb: &str, words: &[&str]) {
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match verb {
            "end" | "wide" | "unreliable" => {
                self.end = None;
                let end = match verb {
                    "wide" => super::local_mrs::wide_end(self.device.again()),
                    "unreliable" => TestQp::of_type(QpType::Uc, self.device.again(), None, 64),
                    _ => TestQp::new(self.device.again(), None, 64),
                };
                let gid = u128::from_be_bytes(self.device.info().gid.0);
                let (addr, rkey) = (end.region.addr(0), end.region.rkey());
                say(&format!("end {gid} {} {addr} {rkey}", end.qp.qpn().raw()));
                self.end = Some(end);
            }
            "join" => {
                join(&mut self.end().qp, gid_of(words[0]), qpn_of(words[1]));
                if words.len() == 4 {
                    self.far = Some((number(2), number(3) as u32));
                }
                say("up");
            }
            "kill" => *PLAN.lock().unwrap() = Some(CrashPlan::Kill(number(0) as usize)),
            "stop" => *PLAN.lock().unwrap() = Some(CrashPlan::Stop(words[0].to_owned())),
            "send" => {
                for _ in 0..number(0) {
                    self.end().post(SendOp::Send);
                    self.end().completed();
                }
                say("sent");
            }
            // Alternates SENDs and WRITEs with immediate until it is killed.
            "stream" => loop {
                let remote = RemoteAddr {
                    addr: number(0),
                    rkey: number(1) as u32,
                };
                for op in [SendOp::Send, SendOp::WriteImm(remote, 3)] {
                    self.end().post(op);
                    self.end().completed();
                }
            },
            "write" => {
                let remote = RemoteAddr {
                    addr: number(0),
                    rkey: number(1) as u32,
                };
                self.end().post(SendOp::Write(remote));
                let status = self.end().completed().status;
                say(&format!("wrote {status:?}"));
            }
            "write-far" => {
                let (addr, rkey) = self.far.expect("the other's memory");
                let remote = RemoteAddr { addr, rkey };
                self.end().post(SendOp::Write(remote));
                say(&format!("wrote {:?}", self.end().completed().status));
            }
            "intrude" => {
                let fabric = Path::new(words[0]).join("fabric");
                let opened = Registry::open_at(fabric).map_err(|error| error.to_string());
                let opened = opened.and_then(|dir| {
                    let info = info(&"soft:h2".parse().unwrap());
                    Context::open(dir, info).map_err(|error| format!("{error:?} {error}"))
                });
                let table = std::fs::File::open(format!("/proc/{}/fd/{}", number(1), number(2)));
                match (opened, table) {
                    (Err(one), Err(other)) => say(&format!("kept-out {one} {other}")),
                    (one, other) => say(&format!("in {} {}", one.is_ok(), other.is_ok())),
                }
            }
            "seek" => {
                let host = host_of(gid_of(words[0]));
                let found = self.device.context.peers.attach(host, number(1) as u32);
                match found {
                    Ok(None) => say("sought nobody"),
                    found => say(&format!("sought {}", found.is_ok())),
                }
            }
            "hammer" => {
                let status = self.hammer(number(0), number(1) as u32, number(2) as u32);
                say(&format!("hammered {status:?}"));
            }
            "forbid" => {
                super::refusals::forbid_crossing();
                say("forbidden");
            }
            "operate" => {
                let (addr, rkey) = (number(1), number(2) as u32);
                let (at, len) = (RemoteAddr { addr, rkey }, number(3) as usize);
                let did = super::refusals::operate(self.end(), words[0], at, len);
                say(&format!("did {did}"));
            }
            "heap" => {
                let region = super::local_mrs::heap(self.end(), number(0) as usize);
                say(&format!("heap {} {}", region.addr(0), region.rkey()));
                self.regions.push(region);
            }
            "many" => self.make_many(number(0) as usize),
            "join-many" => {
                let gid = gid_of(words[0]);
                for (qp, qpn) in self.many.iter_mut().zip(&words[1..]) {
                    join(qp, gid, qpn_of(qpn));
                }
                say("up");
            }
            "poll-many" => {
                let cq = self.many_cq.as_ref().unwrap();
                let got = poll_many(&**cq, number(0) as usize);
                assert!(got.iter().all(|c| c.status == Status::Success));
                say("polled");
            }
            "drop-many" => {
                self.many.clear();
                say("dropped");
            }
            _ => panic!("{verb}?"),
        }
    }

    fn end(&mut self) -> &mut TestQp {
        self.end.as_mut().expect("an end")
    }

    /// WRITEs, READs and SENDs all of the memory until that is refused. Returns the status.
    fn hammer(&mut self, addr: u64, rkey: u32, len: u32) -> Status {
        let request = AllocRequest::of(len as usize);
        let buffer: Arc<dyn Buffer> = self.device.alloc(&request).unwrap();
        fill(&buffer, 0x5a);
        let region = self.device.register(PD, &buffer, Access::ALL).unwrap();
        let remote = RemoteAddr { addr, rkey };
        let write = SendOp::Write(remote);
        for turn in 0u64.. {
            let op = match turn % 8 {
                3 => SendOp::Read(remote),
                5 if turn < 128 => SendOp::Send,
                _ => write,
            };
            let wr = SendWr {
                wr_id: turn,
                op,
                payload: Payload::Gather(&[region.sge(0, len)]),
                flags: SendFlags::default(),
            };
            let end = self.end();
            if end.qp.post_send(&[wr]).is_err() {
                return Status::LocalQpOperation;
            }
            let status = end.completed().status;
            if status != Status::Success {
                return status;
            }
        }
        unreachable!()
    }

    fn make_many(&mut self, count: usize) {
        let (cq, many) = many_of(&self.device, count);
        let mut line = format!("many {}", u128::from_be_bytes(self.device.info().gid.0));
        for qp in &many {
            line += &format!(" {}", qp.qpn().raw());
        }
        (self.many_cq, self.many) = (Some(cq), many);
        say(&line);
    }
}

/// Makes `count` queue pairs over one CQ.
pub(super) fn many_of(
    device: &SoftDevice,
    count: usize,
) -> (Arc<dyn CompletionQueue>, Vec<SoftQp>) {
    let cq = device.create_cq(&cq_init(4 * count as u32)).unwrap();
    let mut init = qp_init(&cq, None);
    init.caps.max_send_wr = 2;
    init.caps.max_recv_wr = 2;
    let make = |_| device.create_qp(PD, &init).unwrap();
    (cq, (0..count).map(make).collect())
}

/// Returns the next `count` completions.
pub(super) fn poll_many(cq: &dyn CompletionQueue, count: usize) -> Vec<Completion> {
    let mut got = Vec::new();
    let mut out = [Completion::default(); 64];
    until("many completions", || {
        let room = out.len().min(count - got.len());
        let polled = cq.poll(&mut out[..room]).unwrap();
        got.extend_from_slice(&out[..polled]);
        got.len() == count
    });
    got
}

pub(super) fn numbers(said: &[String]) -> (Gid, Vec<Qpn>) {
    let qpns = said[1..].iter().map(|word| qpn_of(word));
    (gid_of(&said[0]), qpns.collect())
}

//! Processes that die, fork, or are of another version, beside a device that lives on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headworks_conformance::bench::{DEADLINE, line};
use headworks_conformance::{Options, Side};
use headworks_shm::FabricDir;
use headworks_softnic::SoftProvider;
use headworks_stage::{
    Actor, ActorError, Cast, Change, Cx, Event, Opener, Part, PartSpec, Play, Processes, Running,
    Step, World, child_entry_in_test, clock,
};
use headworks_verbs::{
    AsyncEvent, BringUp, Completion, Device, Duration, Provider, QpState, RemoteAddr, SendFlags,
    SendOp, Status,
};

/// Runs only in the processes that the tests below start.
#[test]
fn plays_a_part() {
    let mut cast = Cast::new();
    cast.register("peer", |part| Ok(Box::new(Peer::new(part)?)));
    let none: Opener = headworks_stage::no_devices();
    child_entry_in_test(&cast, none);
}

fn open(fabric: &Path, name: &str) -> Arc<dyn Device> {
    let provider = SoftProvider::on(FabricDir::at(fabric).expect("fabric"));
    provider.open(&name.parse().expect("name")).expect("opens")
}

/// Connects by mail to the director, then WRITEs and SENDs for ever, or idles.
struct Peer {
    side: Side,
    up: Option<BringUp>,
    greeted: bool,
    idle: bool,
    there: Option<RemoteAddr>,
    count: u64,
}

impl Peer {
    fn new(part: &Part) -> Result<Self, ActorError> {
        let idle = part.args[0] != 0;
        let path = PathBuf::from(String::from_utf8_lossy(&part.args[1..]).into_owned());
        let device = open(&path, "soft:h2");
        let options = Options {
            len: 1 << 20,
            ..Options::default()
        };
        let mut side = Side::new(&device, &options)?;
        let up = Some(side.start(Vec::new())?);
        Ok(Self {
            side,
            up,
            greeted: false,
            idle,
            there: None,
            count: 0,
        })
    }

    fn work(&mut self, there: RemoteAddr) -> Result<(), ActorError> {
        let mut out = [Completion::default(); 16];
        for _ in 0..20 {
            self.count += 1;
            let len = [8, 600, 70_000, 1 << 20][(self.count % 4) as usize];
            let from = self.side.region.sge(0, len);
            let op = match self.count % 3 {
                0 => SendOp::Write(there),
                1 => SendOp::Send,
                _ => SendOp::WriteImm(there, self.count as u32),
            };
            // A full queue is no matter.
            let posted = self
                .side
                .post_flagged(self.count, op, &[from], SendFlags::SIGNALED);
            let count = self.side.send_cq.poll(&mut out)?;
            for done in &out[..count] {
                if done.status != Status::Success {
                    return Err(ActorError::new(format!("{:?}", done.status)));
                }
            }
            if posted.is_err() {
                break;
            }
        }
        Ok(())
    }
}

impl Actor for Peer {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if let Some(up) = &mut self.up {
            if !std::mem::replace(&mut self.greeted, true) {
                cx.report(&up.output())?;
            }
            while let Some(mail) = cx.receive() {
                up.input(self.side.qp.as_mut(), &mail.bytes)?;
            }
            let answer = up.output();
            if !answer.is_empty() {
                cx.report(&answer)?;
            }
            if !up.is_connected() {
                return Ok(Step::OnChange(Change::mail()));
            }
            let hello = up.peer().ok_or("no peer")?;
            let (addr, rkey) = hello.payload.split_at(8);
            self.there = Some(RemoteAddr {
                addr: u64::from_le_bytes(addr.try_into()?),
                rkey: u32::from_le_bytes(rkey.try_into()?),
            });
            self.up = None;
            cx.report(b"connected")?;
        }
        if self.idle {
            return Ok(Step::OnChange(Change::mail()));
        }
        let there = self.there.ok_or("no peer")?;
        self.work(there)?;
        Ok(Step::Again)
    }
}

/// Connects with the peer.
fn meet(running: &mut dyn Running, side: &mut Side, up: &mut BringUp) -> Result<(), String> {
    running.send("peer", &up.output()).map_err(line)?;
    let until = clock::now() + DEADLINE;
    loop {
        match running.poll(until.since(clock::now())) {
            Some(Event::Report { bytes, .. }) if bytes == b"connected" => return Ok(()),
            Some(Event::Report { bytes, .. }) => {
                up.input(side.qp.as_mut(), &bytes).map_err(line)?;
                let answer = up.output();
                if !answer.is_empty() {
                    running.send("peer", &answer).map_err(line)?;
                }
            }
            other => return Err(format!("while connecting: {other:?}")),
        }
    }
}

/// Starts a peer, connects, lets it work `for_us`, kills it, and checks what is left.
fn round(device: &Arc<dyn Device>, path: &Path, idle: bool, for_us: u64) -> Result<u64, String> {
    let options = Options {
        len: 1 << 20,
        ..Options::default()
    };
    let mut side = Side::new(device, &options)?;
    let mut payload = side.region.addr(0).to_le_bytes().to_vec();
    payload.extend(side.region.rkey().to_le_bytes());
    let mut up = side.start(payload)?;
    let mut args = vec![idle.into()];
    args.extend(path.to_string_lossy().as_bytes());
    let play = Play::of([PartSpec::new("peer", "peer").with_args(args)]);
    let world = Processes::of_this_test("plays_a_part");
    let mut running = world.start(&play).map_err(line)?;
    meet(running.as_mut(), &mut side, &mut up)?;
    let mut posted = 0;
    let mut done: BTreeMap<u64, Completion> = BTreeMap::new();
    let collect = |side: &mut Side, done: &mut BTreeMap<u64, Completion>| -> Result<(), String> {
        let mut out = [Completion::default(); 16];
        let count = side.recv_cq.poll(&mut out).map_err(line)?;
        for got in &out[..count] {
            if done.insert(got.wr_id, *got).is_some() {
                return Err(format!("receive {} completed twice", got.wr_id));
            }
        }
        Ok(())
    };
    let kill_at = clock::now() + Duration::from_micros(for_us);
    while clock::now() < kill_at {
        let into = side.region.sge(0, 1 << 20);
        if side.receive(posted, &[into]).is_ok() {
            posted += 1;
        }
        collect(&mut side, &mut done)?;
        if side.qp.state() != QpState::Rts {
            return Err("in error before the kill".to_owned());
        }
    }
    let killed = clock::now();
    running.kill("peer").map_err(line)?;
    // The event, asleep or not, and every receive once.
    side.expect_event(AsyncEvent::QpFatal(side.qp.qpn()))?;
    let took = clock::now().since(killed).nanos() / 1000;
    let late = headworks_conformance::bench::wait("end of all receives", || {
        collect(&mut side, &mut done)?;
        Ok((done.len() as u64 == posted).then_some(()))
    });
    late.map_err(|seen| format!("{seen}: {} of {posted}", done.len()))?;
    collect(&mut side, &mut done)?;
    if side.qp.state() != QpState::Error {
        return Err(format!("state {:?} at the end", side.qp.state()));
    }
    let flushed = |done: &&Completion| done.status == Status::Flushed;
    let count = done.values().filter(flushed).count();
    let bad = |done: &Completion| !matches!(done.status, Status::Flushed | Status::Success);
    if let Some(other) = done.values().find(|done| bad(done)) {
        return Err(format!(
            "receive {} ended with {:?}",
            other.wr_id, other.status
        ));
    }
    println!(
        "idle {idle}, killed after {for_us} us: told in {took} us, {posted} receives, {count} flushed"
    );
    Ok(took)
}

#[test]
fn a_killed_peer_is_noticed_and_nothing_is_lost_or_doubled() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let device = open(&path, "soft:h1");
    let rounds = match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => 100,
        None => 30,
    };
    let mut worst = 0;
    for number in 0..rounds {
        let for_us = number * 7919 % 20_011;
        let took = round(&device, &path, number % 5 == 4, for_us)
            .unwrap_or_else(|seen| panic!("round {number}: {seen}"));
        worst = worst.max(took);
    }
    println!("{rounds} rounds, the slowest notice {worst} us");
    assert!(worst < 1_000_000, "noticed after {worst} us");
    // What the dead left goes when the next one opens; the last to leave takes the directory.
    drop(open(&path, "soft:h3"));
    let left: Vec<_> = std::fs::read_dir(&path).expect("dir").flatten().collect();
    assert!(left.len() <= 2, "{left:?}");
    drop(device);
    assert!(!path.exists(), "something is left");
}

/// Whether a send that is under way and those behind it end when the peer dies, each once.
#[test]
fn what_was_sent_to_a_killed_peer_ends_in_order() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let device = open(&path, "soft:h1");
    let mut args = vec![1];
    args.extend(path.to_string_lossy().as_bytes());
    let play = Play::of([PartSpec::new("peer", "peer").with_args(args)]);
    for _ in 0..5 {
        let mut side = Side::new(&device, &Options::default()).expect("side");
        let world = Processes::of_this_test("plays_a_part");
        let mut running = world.start(&play).expect("starts");
        let mut up = side.start(vec![0; 12]).expect("starts");
        meet(running.as_mut(), &mut side, &mut up).expect("connects");
        // The peer posts no receives: these wait.
        for id in 0..8 {
            let flags = [SendFlags::NONE, SendFlags::SIGNALED][(id % 2) as usize];
            side.post_flagged(id, SendOp::Send, &[], flags)
                .expect("posted");
        }
        running.kill("peer").expect("killed");
        side.expect_sent(0, Status::RetryExceeded).expect("first");
        for id in 1..8 {
            side.expect_sent(id, Status::Flushed).expect("flushed");
        }
        let mut out = [Completion::default()];
        assert_eq!(side.send_cq.poll(&mut out), Ok(0), "completed twice");
    }
}

#[test]
fn when_both_die_the_next_one_cleans_up() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let mut args = vec![1];
    args.extend(path.to_string_lossy().as_bytes());
    let part = |role: &str| PartSpec::new(role, "peer").with_args(args.clone());
    let world = Processes::of_this_test("plays_a_part");
    let mut running = world
        .start(&Play::of([part("a"), part("b")]))
        .expect("starts");
    let mut up = 0;
    while up < 2 {
        match running.poll(DEADLINE) {
            Some(Event::Report { .. }) => up += 1,
            other => panic!("{other:?}"),
        }
    }
    running.kill("a").expect("killed");
    running.kill("b").expect("killed");
    drop(running);
    let entries = || std::fs::read_dir(&path).map_or(0, Iterator::count);
    assert!(entries() >= 2, "the dead leave their entries");
    let device = open(&path, "soft:h1");
    assert!(entries() <= 2, "the lock and one entry");
    drop(device);
    assert!(!path.exists(), "something is left");
}

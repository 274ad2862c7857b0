use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use std::{env, thread};

use super::*;
use crate::{View, WordRef};

const LEN: usize = 64;
const VERSION: u32 = 3;

/// Where a holder finds the registry.
const PLACE: &str = "HEADWORKS_TEST_COMMON";

fn fresh() -> (tempfile::TempDir, Arc<FabricDir>) {
    let parent = tempfile::tempdir().expect("tempdir");
    let fabric = FabricDir::at(parent.path().join("fabric")).expect("made");
    (parent, fabric)
}

fn hold(fabric: &Arc<FabricDir>, key: &str) -> CommonClaim {
    fabric.common_segment(key, LEN, VERSION).expect("held")
}

fn word(segment: &Arc<SharedSegment>) -> WordRef {
    let view = View::from(segment.clone());
    view.word_ref(0).expect("in range")
}

fn inode(claim: &CommonClaim) -> u64 {
    fstat(claim.segment().fd()).expect("open").st_ino
}

/// The names of the entries, the lock's aside.
fn entries(fabric: &FabricDir) -> Vec<String> {
    let names = fs::read_dir(fabric.path()).expect("list");
    let names = names.map(|name| {
        name.expect("name")
            .file_name()
            .into_string()
            .expect("ASCII")
    });
    names.filter(|name| name != "lock").collect()
}

/// Another process, that does what it is told and answers each order with a line.
struct Holder {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<std::process::ChildStderr>,
}

impl Holder {
    fn start(fabric: &FabricDir) -> Self {
        let test = "fabric::common::tests::a_holder";
        let mut process = Command::new(env::current_exe().expect("exe"))
            .args(["--exact", "--ignored", "--nocapture", test])
            .env(PLACE, fabric.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("runs");
        Self {
            orders: process.stdin.take().expect("piped"),
            answers: BufReader::new(process.stderr.take().expect("piped")),
            process,
        }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it reads");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        if line.trim_end().is_empty() {
            let _ = self.answers.read_to_string(&mut line);
            panic!("it ended: {line}");
        }
        line.trim_end().to_owned()
    }

    fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    fn kill(&mut self) {
        self.process.kill().expect("kill");
        self.process.wait().expect("wait");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "holds what other tests tell it to, in a process of its own"]
fn a_holder() {
    let fabric = FabricDir::at(env::var_os(PLACE).expect("a place")).expect("the registry");
    let mut held = None;
    for order in std::io::stdin().lines() {
        let order = order.expect("a line");
        let claim = || held.as_ref().expect("held");
        match order.as_str() {
            "hold" => {
                let claim = held.insert(hold(&fabric, "nic.0"));
                eprintln!("{}", if claim.is_first() { "first" } else { "later" });
            }
            "add" => eprintln!("{}", word(claim().segment()).fetch_add(1, Relaxed) + 1),
            "drop" => {
                held = None;
                eprintln!("dropped");
            }
            "exec" => panic!("{}", Command::new("sleep").arg("1000").exec()),
            // Says when it has begun and when it is through.
            rounds => {
                eprintln!("begun");
                for _ in 0..rounds.parse().expect("a number") {
                    come_and_go(&fabric);
                }
                eprintln!("through");
            }
        }
    }
}

/// While we hold it nobody else holds another one under its key.
fn come_and_go(fabric: &Arc<FabricDir>) {
    let claim = hold(fabric, "nic.0");
    let ours = inode(&claim);
    word(claim.segment()).fetch_add(1, Relaxed);
    for (key, record) in fabric.commons().expect("list") {
        assert_eq!((&key[..], record.inode), ("nic.0", ours));
    }
}

#[test]
fn it_is_one_memory_under_one_key_until_the_last_claim_is_dropped() {
    let (_parent, fabric) = fresh();
    let one = hold(&fabric, "a");
    let two = hold(&fabric, "a");
    let other = hold(&fabric, "a.b");
    assert_eq!(
        [one.is_first(), two.is_first(), other.is_first()],
        [true, false, true]
    );
    word(one.segment()).store(7, Relaxed);
    assert_eq!(word(two.segment()).load(Relaxed), 7);
    assert_eq!(word(other.segment()).load(Relaxed), 0);
    drop(one);
    assert_eq!(word(hold(&fabric, "a").segment()).load(Relaxed), 7);
    let kept = two.segment().clone();
    drop(two);
    let again = hold(&fabric, "a");
    assert!(again.is_first() && word(again.segment()).load(Relaxed) == 0);
    assert_eq!(word(&kept).load(Relaxed), 7);
    drop((again, other));
    assert!(!fabric.path().exists());
    assert!(fabric.commons().expect("list").is_empty());
}

#[test]
fn onlookers_see_who_holds_what_and_what_is_in_it() {
    let (_parent, fabric) = fresh();
    let claim = hold(&fabric, "a.1");
    word(claim.segment()).store(7, Relaxed);
    let _other = hold(&fabric, "b");
    let (before, commons) = (entries(&fabric), fabric.commons().expect("list"));
    let keys: Vec<_> = commons.iter().map(|(key, _)| &key[..]).collect();
    assert_eq!(keys, ["a.1", "b"]);
    let record = &commons[0].1;
    let us = ProcessId::current().expect("stat");
    assert_eq!(
        (record.process, record.layout_version, record.len),
        (us, VERSION, LEN as u64)
    );
    let seen = record.attach_read_only().expect("attached").expect("held");
    assert_eq!(word(&Arc::new(seen)).load(Relaxed), 7);
    assert_eq!(entries(&fabric), before);
    drop(claim);
    assert!(record.attach_read_only().expect("nothing failed").is_none());
}

#[test]
fn the_memory_outlives_who_made_it_and_ends_with_the_last() {
    let (_parent, fabric) = fresh();
    let (mut first, mut second) = (Holder::start(&fabric), Holder::start(&fabric));
    assert_eq!(first.ask("hold"), "first");
    assert_eq!(first.ask("add"), "1");
    assert_eq!(second.ask("hold"), "later");
    assert_eq!(second.ask("add"), "2");
    first.kill();
    let mut third = Holder::start(&fabric);
    assert_eq!(third.ask("hold"), "later");
    assert_eq!(
        entries(&fabric).len(),
        2,
        "the entry of the dead is removed"
    );
    assert_eq!(third.ask("add"), "3");
    assert_eq!(second.ask("add"), "4");
    second.kill();
    third.kill();
    assert!(fabric.commons().expect("list").is_empty());
    let mut fourth = Holder::start(&fabric);
    assert_eq!(fourth.ask("hold"), "first");
    assert_eq!(fourth.ask("add"), "1");
    assert_eq!(entries(&fabric).len(), 1);
    assert_eq!(fourth.ask("drop"), "dropped");
    assert!(!fabric.path().exists());
}

#[test]
fn what_the_dead_held_is_removed_by_any_claim_and_by_who_killed_them() {
    let (_parent, fabric) = fresh();
    for context in [true, false] {
        let mut holder = Holder::start(&fabric);
        assert_eq!(holder.ask("hold"), "first");
        holder.kill();
        if context {
            drop(hold(&fabric, "another"));
        } else {
            fabric.remove_dead().expect("removed");
        }
        assert!(!fabric.path().exists());
    }
}

#[test]
fn another_length_or_version_is_refused_in_one_line() {
    let (_parent, fabric) = fresh();
    let mut holder = Holder::start(&fabric);
    assert_eq!(holder.ask("hold"), "first");
    let pid = holder.process.id();
    for (len, version, what) in [
        (LEN + 64, VERSION, "length 64, this program wants 128"),
        (LEN, VERSION + 1, "layout version 3, this program wants 4"),
    ] {
        let error = fabric
            .common_segment("nic.0", len, version)
            .expect_err("unlike");
        assert!(matches!(error, FabricError::Unlike { .. }), "{error}");
        let line = format!("the common segment nic.0 of process {pid} has {what}");
        assert_eq!(error.to_string(), line);
    }
    assert_eq!(entries(&fabric).len(), 1);
    assert!(!hold(&fabric, "nic.0").is_first());
    for bad in ["", "a/b", "a b", &"x".repeat(65)] {
        let error = fabric.common_segment(bad, LEN, VERSION).expect_err("bad");
        assert!(matches!(error, FabricError::BadName { .. }), "{error}");
    }
    let longest = "x".repeat(64);
    assert!(hold(&fabric, &longest).is_first());
    let error = fabric
        .common_segment("big", 1 << 46, VERSION)
        .expect_err("big");
    assert!(matches!(error, FabricError::Segment { .. }), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
}

#[test]
fn who_begins_together_gets_the_same_memory() {
    let (_parent, fabric) = fresh();
    let mut holders: Vec<_> = (0..8).map(|_| Holder::start(&fabric)).collect();
    for _ in 0..10 {
        for holder in &mut holders {
            holder.order("hold");
        }
        let answers = holders.iter_mut().map(Holder::answer);
        assert_eq!(answers.filter(|answer| answer == "first").count(), 1);
        for (before, holder) in holders.iter_mut().enumerate() {
            assert_eq!(holder.ask("add"), (before + 1).to_string());
        }
        for holder in &mut holders {
            holder.order("drop");
        }
        assert!(
            holders
                .iter_mut()
                .all(|holder| holder.answer() == "dropped")
        );
        assert!(!fabric.path().exists());
    }
}

#[test]
fn who_is_killed_anywhere_leaves_the_others_together() {
    let (_parent, fabric) = fresh();
    let mut holders: Vec<_> = (0..8).map(|_| Holder::start(&fabric)).collect();
    for (at, holder) in holders.iter_mut().enumerate() {
        holder.order(if at < 4 { "1000000000" } else { "50" });
        assert_eq!(holder.answer(), "begun");
    }
    for holder in &mut holders[..4] {
        for _ in 0..5 {
            come_and_go(&fabric);
        }
        holder.kill();
    }
    for holder in &mut holders[4..] {
        assert_eq!(holder.answer(), "through");
    }
    // Nobody holds it any more, whatever the killed were doing.
    let claim = hold(&fabric, "nic.0");
    assert!(claim.is_first() && word(claim.segment()).load(Relaxed) == 0);
    assert_eq!(entries(&fabric).len(), 1);
    drop(claim);
    assert!(!fabric.path().exists());
}

#[test]
fn a_process_that_runs_another_program_now_holds_nothing() {
    let (_parent, fabric) = fresh();
    let mut holder = Holder::start(&fabric);
    assert_eq!(holder.ask("hold"), "first");
    let (_, record) = fabric.commons().expect("list").remove(0);
    holder.order("exec");
    let limit = Instant::now() + Duration::from_secs(60);
    while record.attach_read_only().expect("nothing failed").is_some() {
        assert!(Instant::now() < limit, "it still has the descriptor");
        thread::yield_now();
    }
    assert!(record.process.is_alive());
    assert!(hold(&fabric, "nic.0").is_first());
    assert!(!fabric.path().exists());
}

#[test]
fn a_descriptor_that_was_taken_over_by_another_file_is_nobodys() {
    let (_parent, fabric) = fresh();
    let (a, b) = (hold(&fabric, "a"), hold(&fabric, "b"));
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().expect("sockets");
    for fd in [b.segment().fd().as_raw_fd(), socket.as_raw_fd()] {
        let (_, mut record) = fabric.commons().expect("list").remove(0);
        assert_eq!(record.inode, inode(&a));
        record.segment_fd = fd;
        let left = fabric.path().join(&a.entry.name);
        let right = fs::read(&left).expect("entry");
        fs::write(&left, record.to_bytes()).expect("write");
        assert!(record.attach_read_only().expect("nothing failed").is_none());
        assert!(hold(&fabric, "a").is_first());
        assert!(!left.exists());
        fs::write(&left, right).expect("write");
    }
    assert!(!hold(&fabric, "a").is_first());
}

#[test]
fn what_cannot_be_read_of_the_living_is_refused_and_of_nobody_removed() {
    let (_parent, fabric) = fresh();
    let claim = hold(&fabric, "a");
    let file = fabric.path().join(&claim.entry.name);
    let good = fs::read(&file).expect("entry");
    fs::write(&file, &good[..good.len() - 1]).expect("write");
    let refused = |expected: fn(&FabricError) -> bool| {
        let error = fabric.common_segment("a", LEN, VERSION).expect_err("odd");
        assert!(expected(&error), "{error}");
        assert!(fabric.commons().expect("list").is_empty());
    };
    refused(|error| matches!(error, FabricError::Malformed { .. }));
    let mut newer = good.clone();
    newer[4] = 2;
    fs::write(&file, &newer).expect("write");
    refused(|error| matches!(error, FabricError::Layout { found: 2, .. }));
    // One that can be read leads to the memory all the same, in whatever order they are come upon.
    let beside = |number| fabric.path().join(file_name("a", 1, number));
    for number in 0..20 {
        fs::write(beside(number), &newer).expect("write");
    }
    for number in [0, 10, 19] {
        fs::write(beside(number), &good).expect("write");
        assert!(!hold(&fabric, "a").is_first());
        fs::write(beside(number), &newer).expect("write");
    }
    fs::write(&file, &good[..3]).expect("write");
    for number in 0..20 {
        fs::write(beside(number), "").expect("write");
    }
    assert!(hold(&fabric, "a").is_first());
    assert!(!fabric.path().exists());
}

#[test]
fn a_claim_is_inert_in_a_forked_child() {
    let (_parent, fabric) = fresh();
    let claim = hold(&fabric, "a");
    word(claim.segment()).store(7, Relaxed);
    // SAFETY: the child drops an inert object, which only frees memory, and exits.
    match unsafe { libc::fork() } {
        0 => {
            drop(claim);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: our own child, a valid place for its status.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0);
        }
    }
    assert_eq!(entries(&fabric), std::slice::from_ref(&claim.entry.name));
    let newcomer = hold(&fabric, "a");
    assert!(!newcomer.is_first() && word(newcomer.segment()).load(Relaxed) == 7);
}

#[test]
fn an_entry_has_one_name() {
    for (key, pid, number) in [("a", 1, 0), ("a.1.2", 7, 9), ("...", u32::MAX, u64::MAX)] {
        let name = file_name(key, pid, number);
        assert_eq!(parse_file_name(&name), Some(key), "{name}");
    }
    for bad in [
        "s.a.1",
        "s..1.1",
        "s.a.01.1",
        "s.a.1.+1",
        "s.a b.1.1",
        "c.a.1.1",
        "s.",
    ] {
        assert_eq!(parse_file_name(bad), None, "{bad}");
    }
}

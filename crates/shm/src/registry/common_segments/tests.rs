use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use std::{env, thread};

use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::*;
use crate::{View, WordRef};

const LEN: usize = 64;
const VERSION: u32 = 3;

/// Environment variable that tells a holder process the registry's path.
const REGISTRY_PATH_VARIABLE: &str = "HEADWORKS_TEST_COMMON";

fn new_registry() -> (tempfile::TempDir, Arc<Registry>) {
    let parent = tempfile::tempdir().expect("tempdir");
    let registry = Registry::open_at(parent.path().join("registry")).expect("made");
    (parent, registry)
}

fn hold(registry: &Arc<Registry>, key: &str) -> CommonSegmentClaim {
    registry
        .claim_common_segment(key, LEN, VERSION)
        .expect("held")
}

fn word(segment: &Arc<SharedSegment>) -> WordRef {
    let view = View::from(segment.clone());
    view.word_ref(0).expect("in range")
}

fn inode(claim: &CommonSegmentClaim) -> u64 {
    fstat(claim.segment().fd()).expect("open").st_ino
}

/// Returns the names of the holders' entries.
fn entries(registry: &Registry) -> Vec<String> {
    let names = fs::read_dir(registry.path()).expect("list");
    let names = names.map(|name| {
        name.expect("name")
            .file_name()
            .into_string()
            .expect("ASCII")
    });
    names.filter(|name| name.starts_with("s.")).collect()
}

/// Another process that executes orders and answers each with a line.
struct Holder {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<std::process::ChildStderr>,
}

impl Holder {
    fn start(registry: &Registry) -> Self {
        let test = "registry::common_segments::tests::holder_process";
        let mut process = Command::new(env::current_exe().expect("exe"))
            .args(["--exact", "--ignored", "--nocapture", test])
            .env(REGISTRY_PATH_VARIABLE, registry.path())
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
fn holder_process() {
    let registry = Registry::open_at(env::var_os(REGISTRY_PATH_VARIABLE).expect("a place"))
        .expect("the registry");
    let mut held = None;
    for order in std::io::stdin().lines() {
        let order = order.expect("a line");
        let claim = || held.as_ref().expect("held");
        match order.as_str() {
            "hold" => {
                let claim = held.insert(hold(&registry, "nic.0"));
                eprintln!("{}", if claim.is_first() { "first" } else { "later" });
            }
            "add" => eprintln!("{}", word(claim().segment()).fetch_add(1, Relaxed) + 1),
            "drop" => {
                held = None;
                eprintln!("dropped");
            }
            "exec" => panic!("{}", Command::new("sleep").arg("1000").exec()),
            // Answers twice: when it has begun, and when it is through.
            rounds => {
                eprintln!("begun");
                for _ in 0..rounds.parse().expect("a number") {
                    claim_and_drop(&registry);
                }
                eprintln!("through");
            }
        }
    }
}

/// Claims the segment and checks that nobody holds another one under its key meanwhile.
fn claim_and_drop(registry: &Arc<Registry>) {
    let claim = hold(registry, "nic.0");
    let ours = inode(&claim);
    word(claim.segment()).fetch_add(1, Relaxed);
    for (key, record) in registry.common_segments().expect("list").entries {
        assert_eq!((&key[..], record.inode), ("nic.0", ours));
    }
}

#[test]
fn it_is_one_memory_under_one_key_until_the_last_claim_is_dropped() {
    let (_parent, registry) = new_registry();
    let one = hold(&registry, "a");
    let two = hold(&registry, "a");
    let other = hold(&registry, "a.b");
    assert_eq!(
        [one.is_first(), two.is_first(), other.is_first()],
        [true, false, true]
    );
    word(one.segment()).store(7, Relaxed);
    assert_eq!(word(two.segment()).load(Relaxed), 7);
    assert_eq!(word(other.segment()).load(Relaxed), 0);
    drop(one);
    assert_eq!(word(hold(&registry, "a").segment()).load(Relaxed), 7);
    let kept = two.segment().clone();
    drop(two);
    let again = hold(&registry, "a");
    assert!(again.is_first() && word(again.segment()).load(Relaxed) == 0);
    assert_eq!(word(&kept).load(Relaxed), 7);
    drop((again, other));
    assert!(!registry.path().exists());
    assert!(registry.common_segments().expect("list").entries.is_empty());
}

#[test]
fn observers_see_holders_and_segment_contents() {
    let (_parent, registry) = new_registry();
    let claim = hold(&registry, "a.1");
    word(claim.segment()).store(7, Relaxed);
    let _other = hold(&registry, "b");
    let (before, commons) = (
        entries(&registry),
        registry.common_segments().expect("list").entries,
    );
    let keys: Vec<_> = commons.iter().map(|(key, _)| &key[..]).collect();
    assert_eq!(keys, ["a.1", "b"]);
    let record = &commons[0].1;
    let us = claim.member().id();
    assert_eq!(
        (record.process, record.layout_version, record.len),
        (us, VERSION, LEN as u64)
    );
    let attach = || registry.attach_common_segment_read_only(record);
    let seen = attach().expect("attached").expect("held");
    assert_eq!(word(&Arc::new(seen)).load(Relaxed), 7);
    assert_eq!(entries(&registry), before);
    drop(claim);
    assert!(attach().expect("nothing failed").is_none());
}

#[test]
fn a_segment_outlives_its_creator_until_the_last_holder() {
    let (_parent, registry) = new_registry();
    let (mut first, mut second) = (Holder::start(&registry), Holder::start(&registry));
    assert_eq!(first.ask("hold"), "first");
    assert_eq!(first.ask("add"), "1");
    assert_eq!(second.ask("hold"), "later");
    assert_eq!(second.ask("add"), "2");
    first.kill();
    let mut third = Holder::start(&registry);
    assert_eq!(third.ask("hold"), "later");
    assert_eq!(
        entries(&registry).len(),
        2,
        "the entry of the dead is removed"
    );
    assert_eq!(third.ask("add"), "3");
    assert_eq!(second.ask("add"), "4");
    second.kill();
    third.kill();
    assert!(registry.common_segments().expect("list").entries.is_empty());
    let mut fourth = Holder::start(&registry);
    assert_eq!(fourth.ask("hold"), "first");
    assert_eq!(fourth.ask("add"), "1");
    assert_eq!(entries(&registry).len(), 1);
    assert_eq!(fourth.ask("drop"), "dropped");
    assert!(!registry.path().exists());
}

#[test]
fn entries_of_dead_holders_are_removed_by_any_claim() {
    let (_parent, registry) = new_registry();
    for context in [true, false] {
        let mut holder = Holder::start(&registry);
        assert_eq!(holder.ask("hold"), "first");
        holder.kill();
        if context {
            drop(hold(&registry, "another"));
        } else {
            registry.remove_dead().expect("removed");
        }
        assert!(!registry.path().exists());
    }
}

#[test]
fn another_length_or_version_is_refused_in_one_line() {
    let (_parent, registry) = new_registry();
    let mut holder = Holder::start(&registry);
    assert_eq!(holder.ask("hold"), "first");
    let pid = holder.process.id();
    for (len, version, what) in [
        (LEN + 64, VERSION, "length 64, this program wants 128"),
        (LEN, VERSION + 1, "layout version 3, this program wants 4"),
    ] {
        let error = registry
            .claim_common_segment("nic.0", len, version)
            .expect_err("unlike");
        assert!(matches!(error, RegistryError::Unlike { .. }), "{error}");
        let line = error.to_string();
        let begins = format!("the common segment nic.0 of process {pid} (");
        assert!(line.starts_with(&begins), "{line}");
        assert!(line.ends_with(&format!(") has {what}")), "{line}");
    }
    assert_eq!(entries(&registry).len(), 1);
    assert!(!hold(&registry, "nic.0").is_first());
    for bad in ["", "a/b", "a b", &"x".repeat(65)] {
        let error = registry
            .claim_common_segment(bad, LEN, VERSION)
            .expect_err("bad");
        assert!(matches!(error, RegistryError::BadName { .. }), "{error}");
    }
    let longest = "x".repeat(64);
    assert!(hold(&registry, &longest).is_first());
    let error = registry
        .claim_common_segment("big", 1 << 46, VERSION)
        .expect_err("big");
    assert!(matches!(error, RegistryError::Segment { .. }), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
}

#[test]
fn concurrent_claimants_get_the_same_memory() {
    let (_parent, registry) = new_registry();
    let mut holders: Vec<_> = (0..8).map(|_| Holder::start(&registry)).collect();
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
        assert!(!registry.path().exists());
    }
}

#[test]
fn a_kill_at_any_point_leaves_the_others_together() {
    let (_parent, registry) = new_registry();
    let mut holders: Vec<_> = (0..8).map(|_| Holder::start(&registry)).collect();
    for (at, holder) in holders.iter_mut().enumerate() {
        holder.order(if at < 4 { "1000000000" } else { "50" });
        assert_eq!(holder.answer(), "begun");
    }
    for holder in &mut holders[..4] {
        for _ in 0..5 {
            claim_and_drop(&registry);
        }
        holder.kill();
    }
    for holder in &mut holders[4..] {
        assert_eq!(holder.answer(), "through");
    }
    // Nobody holds it any more, wherever the killed processes were interrupted.
    let claim = hold(&registry, "nic.0");
    assert!(claim.is_first() && word(claim.segment()).load(Relaxed) == 0);
    assert_eq!(entries(&registry).len(), 1);
    drop(claim);
    assert!(!registry.path().exists());
}

#[test]
fn a_process_that_runs_another_program_now_holds_nothing() {
    let (_parent, registry) = new_registry();
    let mut holder = Holder::start(&registry);
    assert_eq!(holder.ask("hold"), "first");
    let (_, record) = registry.common_segments().expect("list").entries.remove(0);
    holder.order("exec");
    let limit = Instant::now() + Duration::from_secs(60);
    let attach = || registry.attach_common_segment_read_only(&record);
    // The new program has closed everything, in any order, once it runs.
    while attach().expect("nothing failed").is_some() || registry.is_alive(record.process) {
        assert!(Instant::now() < limit, "it still hands it out");
        thread::yield_now();
    }
    assert!(hold(&registry, "nic.0").is_first());
    assert!(!registry.path().exists());
}

#[test]
fn an_entry_that_leads_to_another_segment_or_to_none_is_nobodys() {
    let (_parent, registry) = new_registry();
    let (a, _b) = (hold(&registry, "a"), hold(&registry, "b"));
    let of_b = registry
        .common_segments()
        .expect("list")
        .entries
        .remove(1)
        .1
        .object;
    for object in [of_b, of_b + 1] {
        let (_, mut record) = registry.common_segments().expect("list").entries.remove(0);
        assert_eq!(record.inode, inode(&a));
        record.object = object;
        let left = registry.path().join(&a.entry.name);
        let right = fs::read(&left).expect("entry");
        fs::write(&left, record.to_bytes()).expect("write");
        let attached = registry.attach_common_segment_read_only(&record);
        assert!(attached.expect("nothing failed").is_none());
        assert!(hold(&registry, "a").is_first());
        assert!(!left.exists());
        fs::write(&left, right).expect("write");
    }
    assert!(!hold(&registry, "a").is_first());
}

#[test]
fn a_stopped_holder_is_waited_for_as_long_as_the_limit_and_keeps_its_entry() {
    let (_parent, registry) = new_registry();
    let mut holder = Holder::start(&registry);
    assert_eq!(holder.ask("hold"), "first");
    let pid = rustix::process::Pid::from_child(&holder.process);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("signals");
    // All its threads are stopped, also the one that hands out the segment.
    let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), stopped).expect("waits");
    let error = registry
        .claim_common_segment("nic.0", LEN, VERSION)
        .expect_err("stopped");
    assert!(matches!(error, RegistryError::Unanswered { .. }), "{error}");
    let line = error.to_string();
    assert!(line.contains("is it stopped?") && line.contains(&holder.process.id().to_string()));
    assert_eq!(entries(&registry).len(), 1);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("signals");
    assert!(!hold(&registry, "nic.0").is_first());
    holder.kill();
}

#[test]
fn an_unreadable_entry_is_refused_or_removed_if_ownerless() {
    let (_parent, registry) = new_registry();
    let claim = hold(&registry, "a");
    let file = registry.path().join(&claim.entry.name);
    let good = fs::read(&file).expect("entry");
    fs::write(&file, &good[..good.len() - 1]).expect("write");
    let refused = |expected: fn(&RegistryError) -> bool| {
        let error = registry
            .claim_common_segment("a", LEN, VERSION)
            .expect_err("odd");
        assert!(expected(&error), "{error}");
        let listing = registry.common_segments().expect("list");
        assert!(listing.entries.is_empty());
        let [(key, error)] = &listing.unreadable[..] else {
            panic!("{listing:?}");
        };
        assert!(key == "a" && expected(error), "{key}: {error}");
    };
    refused(|error| matches!(error, RegistryError::Malformed { .. }));
    let mut newer = good.clone();
    newer[4] = 3;
    fs::write(&file, &newer).expect("write");
    refused(|error| matches!(error, RegistryError::Layout { found: 3, .. }));
    // One readable entry gives access to the memory, in whatever order the entries are read.
    let beside = |number| registry.path().join(file_name("a", 1, number));
    for number in 0..20 {
        fs::write(beside(number), &newer).expect("write");
    }
    for number in [0, 10, 19] {
        fs::write(beside(number), &good).expect("write");
        assert!(!hold(&registry, "a").is_first());
        fs::write(beside(number), &newer).expect("write");
    }
    fs::write(&file, &good[..3]).expect("write");
    for number in 0..20 {
        fs::write(beside(number), "").expect("write");
    }
    assert!(hold(&registry, "a").is_first());
    assert!(entries(&registry).is_empty());
}

#[test]
fn a_claim_is_inert_in_a_forked_child() {
    let (_parent, registry) = new_registry();
    let claim = hold(&registry, "a");
    word(claim.segment()).store(7, Relaxed);
    // SAFETY: the child drops an inert object, which only frees memory, and exits.
    match unsafe { libc::fork() } {
        0 => {
            drop(claim);
            // SAFETY: the call ends the child at once.
            unsafe { libc::_exit(0) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: the process is our own child, and `status` is a valid place for its status.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0);
        }
    }
    assert_eq!(entries(&registry), std::slice::from_ref(&claim.entry.name));
    let newcomer = hold(&registry, "a");
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

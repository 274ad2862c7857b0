//! Configuration of the daemons' receive pool: commands for the RNIC's threshold, the cache, and pages.
#![cfg(all(feature = "daemon", feature = "soft"))]

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use headworks::daemon::config::DaemonConfig;
use headworks::daemon::metrics::{self, Sample};
use headworks::net::clock;
use headworks::service::{Loan, Service, Stream};
use headworks::testing::Daemons;
use headworks::verbs::Duration;
use tempfile::TempDir;

/// Time limit of a wait: only a hang exceeds it.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of each stream. Each is one transfer.
const LEN: usize = 64 << 10;
/// Streams that fill the pool.
const STREAMS: u16 = 4;
/// A pool that is full of unread streams. Nothing in it counts as late within a test.
const POOL: &str = "[limits]\npool_bytes = 262144\npool_quota = 100\npool_straggler_time = 10000\n\
    ring_bytes = 131072\n";

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(
            began.elapsed().as_nanos() < LIMIT.nanos().into(),
            "{what}: it takes too long"
        );
        std::thread::yield_now();
    }
}

/// Two hosts. The second has a configuration, and commands that note their arguments.
struct Hosts {
    daemons: Daemons,
    directory: TempDir,
}

impl Hosts {
    /// `script` runs after the script of the commands has noted its arguments. `sections` follow the limits.
    fn new(script: &str, sections: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name).display().to_string();
        let text = format!("#!/bin/sh\necho \"$@\" >> {}\n{script}\n", path("noted"));
        let program = path("command");
        std::fs::write(&program, text).expect("is written");
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&program, mode).expect("is allowed");
        let config = sections
            .replace("COMMAND", &program)
            .replace("DIRECTORY", &path("."));
        let config = format!("metrics = \"{}\"\n{POOL}{config}", path("metrics"));
        let config = DaemonConfig::parse(&config).expect("a configuration");
        let sender = DaemonConfig::parse(POOL).expect("a configuration");
        let daemons = Daemons::builder(2)
            .configure(0, sender)
            .configure(1, config)
            .start()
            .expect("starts");
        Self { daemons, directory }
    }

    fn with_commands(script: &str, time_limit: u32) -> Self {
        let hosts = Self::new(
            script,
            &format!(
                "[ecn]\nlower = [\"COMMAND\", \"lower\", \"{{device}}\", \"{{{{x}}}}\"]\nrestore = [\"COMMAND\", \
                 \"restore\", \"{{device}}\"]\ninterval = 100\ntime_limit = {time_limit}\n"
            ),
        );
        until("the threshold is restored at the start", || {
            hosts.noted() == ["restore h2"]
        });
        hosts
    }

    /// The arguments of the commands that were run.
    fn noted(&self) -> Vec<String> {
        noted(self.directory.path())
    }

    fn metrics(&self) -> Vec<Sample> {
        let path = self.directory.path().join("metrics");
        let mut stream = UnixStream::connect(path).expect("connects");
        write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").expect("asks");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let (_, body) = text.split_once("\r\n\r\n").expect("a body");
        metrics::parse(body).expect("metrics")
    }

    /// The sum of a metric's values.
    fn metric(&self, name: &str) -> f64 {
        let name = format!("headworks_{name}");
        let of = |one: &Sample| (one.name == name).then_some(one.value);
        self.metrics().iter().filter_map(of).sum()
    }

    /// Connects an application of the first host to one of the second, and sends [`LEN`] bytes.
    fn send(&self, name: &str, port: u16) -> Sent {
        let near = self.daemons.attach(0, name).expect("a daemon");
        let far = self.daemons.attach(1, name).expect("a daemon");
        let listener = far.listen(port, 8).expect("a port");
        let mut sender = near
            .connect(self.daemons.address(1, port))
            .expect("connects");
        let mut receiver = listener.accept().expect("a caller");
        receiver.set_deadline(Some(clock::now() + LIMIT));
        // Lent memory is sent whole, so that no part of it takes the way through the ring.
        let mut memory = near.alloc(LEN as u32).expect("memory");
        memory[..].fill(7);
        let loan = sender.lend(memory, LEN).expect("is lent");
        Sent {
            receiver,
            _sender: (sender, loan),
            _services: [near, far],
        }
    }

    /// Fills the pool with streams that nobody reads.
    fn fill(&self) -> Vec<Sent> {
        let all = (0..STREAMS).map(|at| self.send("slow", 7001 + at));
        let all = all.collect();
        until("the pool is in danger", || {
            self.metric("pool_free_bytes") < 16384.0
        });
        all
    }
}

fn noted(directory: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(directory.join("noted")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// A stream that is sent.
struct Sent {
    receiver: Stream,
    _sender: (Stream, Loan),
    _services: [Service; 2],
}

impl Sent {
    fn receive(mut self) {
        let mut bytes = vec![0; LEN];
        self.receiver.read_exact(&mut bytes).expect("arrives");
        assert!(bytes.iter().all(|byte| *byte == 7), "a wrong byte");
    }
}

#[test]
fn danger_lowers_the_threshold_and_draining_restores_it() {
    let hosts = Hosts::with_commands("", 60_000);
    let sent = hosts.fill();
    let lowered = ["restore h2", "lower h2 {x}"];
    until("the threshold is lowered", || hosts.noted() == lowered);
    until("the command is counted", || {
        hosts.metric("ecn_runs_total") == 2.0
    });
    assert_eq!(hosts.metric("ecn_lowered"), 1.0);
    sent.into_iter().for_each(Sent::receive);
    let restored = ["restore h2", "lower h2 {x}", "restore h2"];
    until("the threshold is restored", || hosts.noted() == restored);
    until("the state is normal", || hosts.metric("ecn_lowered") == 0.0);
    assert_eq!(hosts.metric("ecn_failures_total"), 0.0);
    hosts.daemons.stop(1).expect("stops");
    assert_eq!(hosts.noted(), restored, "nothing is left to restore");
}

#[test]
fn the_end_of_the_daemon_restores_the_threshold() {
    let hosts = Hosts::with_commands("", 60_000);
    let sent = hosts.fill();
    until("the threshold is lowered", || hosts.noted().len() == 2);
    hosts.daemons.stop(1).expect("stops");
    assert_eq!(hosts.noted(), ["restore h2", "lower h2 {x}", "restore h2"]);
    drop(sent);
}

#[test]
fn a_command_that_hangs_is_killed_and_stops_no_stream() {
    let hosts = Hosts::with_commands("if [ \"$1\" = lower ]; then sleep 1000; fi", 60_000);
    let slow = hosts.fill();
    until("the command hangs", || hosts.noted().len() == 2);
    assert_eq!(hosts.metric("ecn_runs_total"), 1.0, "it has not ended");
    // Streams go on while it hangs.
    slow.into_iter().for_each(Sent::receive);
    for port in 8001..8005 {
        hosts.send("others", port).receive();
    }
    assert_eq!(hosts.noted().len(), 2, "one command at a time");
    drop(hosts);

    let hosts = Hosts::with_commands(
        "if [ \"$1\" = lower ]; then echo hangs >&2; sleep 1000; fi",
        100,
    );
    let slow = hosts.fill();
    until("it is killed, and counts as failed", || {
        hosts.metric("ecn_failures_total") > 0.0
    });
    assert_eq!(
        hosts.metric("ecn_lowered"),
        1.0,
        "it may have done something"
    );
    slow.into_iter().for_each(Sent::receive);
    until("the state is normal", || hosts.metric("ecn_lowered") == 0.0);
    assert_eq!(hosts.noted().last().map(String::as_str), Some("restore h2"));
    assert_eq!(hosts.metric("ecn_failing"), 0.0);
}

#[test]
fn the_pool_is_touched_while_transfers_are_under_way() {
    let hosts = Hosts::new("", "pool_touch = 1\n");
    assert_eq!(hosts.metric("pool_touched_bytes_total"), 0.0);
    let sent = hosts.fill();
    until("some of the pool is read", || {
        hosts.metric("pool_touched_bytes_total") >= 8192.0
    });
    sent.into_iter().for_each(Sent::receive);
    until("the pool is free", || {
        hosts.metric("pool_free_bytes") == 262_144.0
    });
    // The daemon is idle. It wakes for a scrape, and reads nothing then.
    let touched = hosts.metric("pool_touched_bytes_total");
    for _ in 0..20 {
        assert_eq!(hosts.metric("pool_touched_bytes_total"), touched);
    }
}

#[test]
fn the_daemon_enters_its_part_of_the_cache() {
    let root = tempfile::tempdir().expect("a directory");
    let path = |name: &str| -> PathBuf { root.path().join(name) };
    std::fs::create_dir_all(path("info/L3")).expect("made");
    for (name, text) in [
        ("info/L3/cbm_mask", "fffff\n"),
        ("info/L3/min_cbm_bits", "1\n"),
        ("schemata", "L3:0=fffff\n"),
    ] {
        std::fs::write(path(name), text).expect("is written");
    }
    let section = format!(
        "[resctrl]\nroot = \"{}\"\nl3 = \"ff0\"\n",
        root.path().display()
    );
    let hosts = Hosts::new("", &section);
    let read = |name: &str| std::fs::read_to_string(path(name)).expect("is read");
    assert_eq!(read("headworks/schemata"), "L3:0=ff0\n");
    assert!(!read("headworks/tasks").is_empty());
    let part = hosts.metrics();
    let part = part.iter().find(|one| one.name == "headworks_cache_part");
    let part = part.expect("the part");
    assert_eq!((part.value, part.label("l3")), (1.0, "ff0"));

    // Without resctrl, the daemon goes on.
    let hosts = Hosts::new("", "[resctrl]\nroot = \"DIRECTORY/none\"\nl3 = \"ff0\"\n");
    assert_eq!(hosts.metric("cache_part"), 0.0);
    hosts.send("one", 7001).receive();
}

#[test]
fn huge_pages_are_used_if_there_are_some() {
    // With a short pool, there is no page to fill.
    let hosts = Hosts::new("", "pool_pages = \"huge\"\n");
    hosts.send("one", 7001).receive();
    assert_eq!(hosts.metric("pool_huge_bytes"), 0.0);

    let config = DaemonConfig::parse("[limits]\npool_pages = \"huge\"\npool_bytes = 4194304\n");
    let config = config.expect("a configuration");
    let daemons = Daemons::builder(2).configure(
        1,
        DaemonConfig {
            metrics: Some(
                format!("{}/metrics", hosts.directory.path().display())
                    .parse()
                    .expect("a path"),
            ),
            ..config
        },
    );
    let Hosts {
        daemons: old,
        directory,
    } = hosts;
    drop(old);
    let daemons = daemons.start().expect("starts");
    let free = free_huge_pages();
    let hosts = Hosts { daemons, directory };
    hosts.send("one", 7001).receive();
    let huge = hosts.metric("pool_huge_bytes");
    // Other programs may take or free some meanwhile, so few are no reason to expect either.
    match free {
        0 => eprintln!("there are no free huge pages: only the ordinary ones were tested"),
        1..=7 => {}
        _ => assert_eq!(huge, 5_242_880.0, "{free} huge pages are free"),
    }
}

fn free_huge_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

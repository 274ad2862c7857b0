//! Traces and utilisation tables of a world's scenarios.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headworks_runtime::ActorError;
use headworks_runtime::testing::world_scenarios;
use headworks_runtime::{
    Actor, ActorContext, ActorInit, ActorRegistry, ActorSpec, Scenario, Step, WakeCondition,
};
use headworks_runtime::{ActorOutcome, World};
use headworks_simnic::utilisation::Usage;
use headworks_simnic::{Preset, SimWorld, Tracer, UsageMonitor};
use headworks_verbs::{
    Access, AllocRequest, BringUp, Buffer, Completion, CompletionQueue, CqInit, Payload, QpCaps,
    QpInit, QpType, QueuePair, RecvWr, Region, SendFlags, SendOp, SendWr, Status,
};
use serde_json::Value;

/// Workload of an actor.
#[derive(Clone, Copy, Debug)]
struct Job {
    read: bool,
    qps: u32,
    /// Requests of all queue pairs, how many of them are posted at once, and how many may be under way.
    requests: u64,
    chain: u64,
    depth: u64,
    len: u32,
    /// Whether a SEND goes first, for which the peer posts its receive late.
    late: bool,
}

const SMALL: Job = Job {
    read: false,
    qps: 1,
    requests: 3000,
    chain: 1,
    depth: 1,
    len: 64,
    late: false,
};

struct End {
    qp: Box<dyn QueuePair>,
    region: Region,
}

/// Owns both ends of connections between the hosts `a` and `b`, and runs on a core of `a`.
struct WriterPair {
    job: Job,
    cq: Arc<dyn CompletionQueue>,
    pairs: Vec<(End, End)>,
    posted: u64,
    done: u64,
    /// State of a late SEND: whether its receive is posted. `None` if the job has no such SEND.
    late: Option<bool>,
}

fn made<T, E: std::fmt::Display>(made: Result<T, E>) -> Result<T, ActorError> {
    made.map_err(|error| ActorError::new(error.to_string()))
}

impl WriterPair {
    fn new(part: &ActorInit, job: Job) -> Result<Self, ActorError> {
        let open = |host: &str| (part.opener)(&format!("sim,host={host}").parse()?);
        let devices = [open("a")?, open("b")?];
        let mut sides = Vec::new();
        for device in &devices {
            let depth = 1 << 16;
            let init = CqInit {
                depth,
                ..CqInit::default()
            };
            sides.push((
                device,
                made(device.alloc_pd())?,
                made(device.create_cq(&init))?,
            ));
        }
        let end = |side: usize| {
            let (device, pd, cq) = &sides[side];
            let buffer: Arc<dyn Buffer> = made(device.alloc(&AllocRequest::of(job.len as usize)))?;
            let region = made(pd.register(&buffer, Access::ALL))?;
            let qp = made(pd.create_qp(&QpInit {
                qp_type: QpType::Rc,
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                srq: None,
                caps: QpCaps {
                    max_send_wr: 128,
                    max_recv_wr: 1,
                    ..QpCaps::default()
                },
                signal_all: true,
            }))?;
            Ok::<_, ActorError>(End { qp, region })
        };
        let mut pairs = Vec::new();
        for _ in 0..job.qps {
            let (mut a, mut b) = (end(0)?, end(1)?);
            let tuning = Default::default();
            let start = |side: usize, qp: &mut dyn QueuePair| {
                made(BringUp::start(
                    devices[side].info(),
                    qp,
                    tuning,
                    7,
                    Vec::new(),
                ))
            };
            let (mut one, mut two) = (start(0, &mut *a.qp)?, start(1, &mut *b.qp)?);
            made(one.connect_both(&mut *a.qp, &mut two, &mut *b.qp))?;
            pairs.push((a, b));
        }
        let cq = sides[0].2.clone();
        Ok(Self {
            job,
            cq,
            pairs,
            posted: 0,
            done: 0,
            late: job.late.then_some(false),
        })
    }

    fn post(&mut self) -> Result<(), ActorError> {
        let job = self.job;
        let which = self.posted / job.chain % u64::from(job.qps);
        let (a, b) = &mut self.pairs[which as usize];
        let sge = [a.region.sge(0, job.len)];
        let remote = b.region.remote(0);
        let op = match (self.late, job.read) {
            (Some(false), _) => SendOp::Send,
            (_, true) => SendOp::Read(remote),
            (_, false) => SendOp::Write(remote),
        };
        let wr = |wr_id| SendWr {
            wr_id,
            op,
            payload: Payload::Gather(&sge),
            flags: SendFlags::SIGNALED,
        };
        let wrs: Vec<_> = (0..job.chain).map(|i| wr(self.posted + i)).collect();
        made(a.qp.post_send(&wrs))?;
        self.posted += job.chain;
        Ok(())
    }
}

impl Actor for WriterPair {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if self.late == Some(false) {
            // By then the SEND has found no receive.
            let then = headworks_verbs::Instant::from_nanos(3_000_000);
            if self.posted == 0 {
                self.post()?;
            }
            if cx.now() < then {
                return Ok(Step::At(then));
            }
            let b = &mut self.pairs[0].1;
            let sge = [b.region.sge(0, self.job.len)];
            made(b.qp.post_recv(&[RecvWr {
                wr_id: 1,
                sges: &sge,
            }]))?;
            self.late = Some(true);
        }
        let mut out = vec![Completion::default(); 64];
        let count = made(self.cq.poll(&mut out))?;
        assert!(
            out[..count]
                .iter()
                .all(|done| done.status == Status::Success)
        );
        self.done += count as u64;
        while self.posted < self.job.requests
            && self.posted - self.done + self.job.chain <= self.job.depth
        {
            self.post()?;
        }
        if self.done == self.job.requests {
            made(cx.report(b"done"))?;
            return Ok(Step::Done);
        }
        Ok(Step::Wait(WakeCondition::memory()))
    }
}

/// Creates a world whose actor `both` does this job, on machines with these settings.
fn world(job: Job, settings: &[&str]) -> SimWorld {
    world_of("cx5-100g", job, settings)
}

/// Creates a world as [`world`] does, of machines of a preset.
fn world_of(preset: &str, job: Job, settings: &[&str]) -> SimWorld {
    let mut machine = Preset::named(preset).expect("a preset");
    for setting in settings {
        machine.apply(&setting.parse().expect("a setting"));
    }
    let mut actors = ActorRegistry::new();
    actors.register("both", move |part| {
        Ok(Box::new(WriterPair::new(part, job)?))
    });
    SimWorld::new(actors, machine, 5)
}

/// Runs a scenario to its end. Returns its virtual time.
fn play(world: &SimWorld) -> u64 {
    let part = ActorSpec::new("x", "both").on("sim:cx5-100g,host=a".parse().expect("a name"));
    let running = world.start(&Scenario::of([part])).expect("starts");
    let endings = world_scenarios::finish(running);
    assert_eq!(endings[0].outcome, ActorOutcome::Done, "{endings:?}");
    usage(&world.usage_monitor()).over
}

fn usage(usage_monitor: &UsageMonitor) -> Usage {
    assert!(usage_monitor.now().is_none());
    usage_monitor.last().expect("a play has ended")
}

fn text(tracer: &Tracer) -> String {
    let mut text = Vec::new();
    tracer.write(&mut text).expect("memory");
    String::from_utf8(text).expect("UTF-8")
}

/// Contents of a trace.
#[derive(Debug, Default)]
struct ParsedTrace {
    /// By names of process and thread: counts of entries by
    /// name, and the sum of the spans' times in picoseconds.
    tracks: BTreeMap<(String, String), (BTreeMap<String, u64>, u64)>,
}

impl ParsedTrace {
    /// Counts the entries of a name on a track, on one host or on all.
    fn count(&self, host: &str, track: &str, name: &str) -> u64 {
        let tracks = self.tracks.iter();
        let tracks = tracks.filter(|((on, of), _)| on.contains(host) && of.starts_with(track));
        tracks.filter_map(|(_, (names, _))| names.get(name)).sum()
    }

    fn picos(&self, host: &str, track: &str) -> u64 {
        let tracks = self.tracks.iter();
        let tracks = tracks.filter(|((on, of), _)| on.contains(host) && of.starts_with(track));
        tracks.map(|(_, (_, time))| *time).sum()
    }
}

/// Reads a trace as a viewer would, and checks what a viewer needs: names of processes and threads, times
/// that do not go backwards on a track, spans that nest.
fn read(text: &str) -> ParsedTrace {
    let trace: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(trace["otherData"]["simulated"], true);
    let events = trace["traceEvents"].as_array().expect("events");
    let number = |event: &Value, key: &str| event[key].as_u64().expect("a number");
    let (mut processes, mut threads) = (BTreeMap::new(), BTreeMap::new());
    let mut names = BTreeSet::new();
    for event in events.iter().filter(|event| event["ph"] == "M") {
        let name = event["args"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        match event["name"].as_str() {
            Some("process_name") => {
                assert!(name.contains("simulated"), "{name}");
                processes.insert(number(event, "pid"), name);
            }
            Some("thread_name") => {
                let of = number(event, "pid");
                assert!(names.insert((of, name.clone())), "{name} is there twice");
                threads.insert((of, number(event, "tid")), name);
            }
            _ => {}
        }
    }
    // The format's times are microseconds with six decimals, so they are whole picoseconds.
    let picos = |event: &Value, key: &str| {
        let micros = event[key].as_f64().expect("a time");
        assert!(micros >= 0.0);
        (micros * 1e6).round() as u64
    };
    let mut shown = ParsedTrace::default();
    let mut open: BTreeMap<(u64, u64), (u64, Vec<u64>)> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] != "M") {
        let track = (number(event, "pid"), number(event, "tid"));
        let host = processes.get(&track.0).expect("a named process").clone();
        let thread = threads.get(&track).expect("a named thread").clone();
        let at = picos(event, "ts");
        let (last, ends) = open.entry(track).or_default();
        assert!(at >= *last, "{thread} of {host} goes backwards at {at}");
        *last = at;
        ends.retain(|end| *end > at);
        let of = shown.tracks.entry((host, thread.clone())).or_default();
        let name = event["name"].as_str().expect("a name");
        assert!(!name.is_empty(), "{event}");
        *of.0.entry(name.to_owned()).or_default() += 1;
        match event["ph"].as_str() {
            Some("X") => {
                let end = at + picos(event, "dur");
                let inside = ends.last().is_none_or(|outer| end <= *outer);
                assert!(
                    inside,
                    "a span of {thread} begins in another at {at} and ends behind it"
                );
                ends.push(end);
                of.1 += end - at;
            }
            Some("i") => assert_eq!(event["s"], "t"),
            other => panic!("an event of kind {other:?}"),
        }
    }
    shown
}

#[test]
fn a_trace_has_named_tracks_and_properly_nested_spans() {
    for ports in ["link.ports=1", "link.ports=2"] {
        check_trace(&["nic.icm=16", ports]);
    }
}

fn check_trace(settings: &[&str]) {
    let job = Job {
        qps: 64,
        depth: 64,
        len: 8192,
        late: true,
        requests: 2000,
        ..SMALL
    };
    let tracer = Tracer::new(headworks_simnic::trace::TRACE_ENTRIES_MAX);
    let world = world(job, settings).traced(tracer.clone());
    let over = play(&world);
    assert_eq!(tracer.notice(), None);
    let shown = read(&text(&tracer));
    let (host_a, host_b) = ("simulated host a", "simulated host b");
    // The trace shows every unit and pipe busy for as long as the counters say.
    let usage = usage(&world.usage_monitor());
    assert_eq!(usage.over, over);
    for (host, counted) in [(host_a, &usage.hosts[0]), (host_b, &usage.hosts[1])] {
        assert!(host.ends_with(&counted.host));
        for group in &counted.units {
            let track = group.what.trim_end_matches('s');
            assert_eq!(shown.picos(host, track), group.total(), "{host}, {track}");
        }
        let events = "doorbells and misses";
        let counters = &counted.counters;
        let misses = shown.count(host, events, "ICM miss");
        assert!(
            misses > 0 && misses <= counters.icm_misses,
            "{misses} of {counters:?}"
        );
    }
    assert_eq!(shown.count(host_a, "doorbells", "doorbell"), 2000);
    assert_eq!(shown.count(host_a, "completions", "completion"), 2000);
    // This is the receive of the late SEND.
    assert_eq!(shown.count(host_b, "completions", "completion"), 1);
    let again = shown.count(host_a, "doorbells", "sent again");
    assert!(again > 0 && again == shown.count(host_a, "doorbells", "no receive"));
    assert!(shown.count(host_a, "tx unit", "send") >= 2000 + again);
    assert!(shown.count(host_b, "rx unit", "send") >= 2000);
    assert!(shown.count(host_a, "DMA read", "send") >= 2000);
    assert!(shown.count(host_b, "DMA write", "send") >= 2000);
    assert!(shown.count(host_a, "core 0", "x") > 10);
    assert_eq!(shown.picos(host_a, "core 0"), usage.actors[0].busy);
}

#[test]
fn responses_are_shown_on_both_sides() {
    let tracer = Tracer::new(headworks_simnic::trace::TRACE_ENTRIES_MAX);
    let job = Job {
        read: true,
        requests: 10,
        ..SMALL
    };
    play(&world(job, &[]).traced(tracer.clone()));
    let shown = read(&text(&tracer));
    assert_eq!(shown.count("host a", "tx unit", "request"), 10);
    assert_eq!(shown.count("host b", "rx unit", "request"), 10);
    assert_eq!(shown.count("host b", "link out", "response"), 10);
    assert_eq!(shown.count("host a", "rx unit", "response"), 10);
    assert_eq!(shown.count("host a", "DMA write", "response"), 10);
}

#[test]
fn a_trace_comes_out_the_same_and_changes_nothing() {
    let job = Job {
        qps: 8,
        depth: 16,
        ..SMALL
    };
    let traced = || {
        let tracer = Tracer::new(headworks_simnic::trace::TRACE_ENTRIES_MAX);
        let over = play(&world(job, &[]).traced(tracer.clone()));
        (over, text(&tracer))
    };
    let (first, second) = (traced(), traced());
    let differs = first.1.lines().zip(second.1.lines()).find(|(a, b)| a != b);
    assert!(first == second, "{differs:?}");
    let untraced = world(job, &[]);
    assert_eq!(play(&untraced), first.0);
}

#[test]
fn a_full_trace_ends_and_says_so() {
    let tracer = Tracer::new(500);
    let world = world(SMALL, &[]).traced(tracer.clone());
    play(&world);
    let notice = tracer.notice().expect("it is full");
    assert!(notice.contains("500 entries"), "{notice}");
    let shown = read(&text(&tracer));
    let all = shown.tracks.values().flat_map(|(names, _)| names.values());
    assert_eq!(all.sum::<u64>(), 500);
}

#[test]
fn plays_of_one_trace_have_hosts_of_their_own() {
    let tracer = Tracer::new(headworks_simnic::trace::TRACE_ENTRIES_MAX);
    let job = Job {
        requests: 3,
        ..SMALL
    };
    let world = world(job, &[]).traced(tracer.clone());
    play(&world);
    play(&world);
    let shown = read(&text(&tracer));
    for host in ["simulated host a", "simulated host a (play 2)"] {
        let completions = (host.to_owned(), "completions".to_owned());
        let (names, _) = shown.tracks.get(&completions).expect("a track");
        assert_eq!(names.get("completion"), Some(&3), "{host}");
    }
}

#[test]
fn the_bottleneck_is_named() {
    let named = |job, settings: &[&str]| {
        let world = world(job, settings);
        play(&world);
        let table = usage(&world.usage_monitor()).utilisation();
        println!("{table}");
        table.bottleneck_name()
    };
    // One request after the other: each waits for a round trip.
    assert_eq!(named(SMALL, &[]), "latency");
    let deep = Job {
        chain: 16,
        depth: 128,
        requests: 8000,
        ..SMALL
    };
    // One unit serves the queue pair, so that unit is the bottleneck.
    assert!(named(deep, &[]).starts_with("a tx unit "));
    let large = Job {
        depth: 16,
        len: 65536,
        ..SMALL
    };
    let found = named(large, &[]);
    assert!(found.contains("link"), "{found}");
    assert_eq!(named(large, &["pcie.write_rate=20"]), "b DMA write");
    let slow = ["cpu.post=2000"];
    assert_eq!(named(Job { depth: 64, ..SMALL }, &slow), "a core 0");
    let many = Job { qps: 32, ..deep };
    assert_eq!(named(many, &["nic.tx_units=1"]), "a tx units");
    assert_eq!(named(many, &["nic.rx_packet=3000"]), "b rx units (8)");
}

#[test]
fn a_running_scenario_reports_its_counts_so_far() {
    let world = world(SMALL, &[]);
    let usage_monitor = world.usage_monitor();
    assert!(usage_monitor.now().is_none() && usage_monitor.last().is_none());
    let part = ActorSpec::new("x", "both").on("sim:cx5-100g,host=a".parse().expect("a name"));
    let mut running = world.start(&Scenario::of([part])).expect("starts");
    let mut looks = Vec::new();
    for _ in 0..2 {
        running.poll(headworks_verbs::Duration::from_micros(500));
        looks.push(usage_monitor.now().expect("it runs"));
    }
    let between = looks[1].since(&looks[0]);
    assert!(between.over > 0 && between.over <= looks[1].over);
    let sent = |usage: &Usage| usage.hosts[0].counters.requests;
    assert!(sent(&looks[0]) > 0 && sent(&between) == sent(&looks[1]) - sent(&looks[0]));
    let sending = |usage: &Usage| usage.hosts[0].units[0].total();
    assert_eq!(sending(&between), sending(&looks[1]) - sending(&looks[0]));
    world_scenarios::finish(running);
    assert_eq!(sent(&usage(&usage_monitor)), 3000);
}

/// Returns the bytes that links called `what` carried on host `a` (0) or `b` (1), for each port.
fn carried(usage: &Usage, host: usize, what: &str) -> Vec<u64> {
    let links = usage.hosts[host].units.iter();
    let links = links.filter(|group| group.what.starts_with(what));
    links.map(|group| group.bytes).collect()
}

#[test]
fn two_queue_pairs_fill_two_ports_and_one_fills_only_one() {
    for (preset, link_gbps) in [("cx6dx-2x100g", 100.0), ("cx4lx-2x25g", 25.0)] {
        for (qps, read) in [(1, false), (2, false), (3, false), (1, true), (2, true)] {
            let job = Job {
                read,
                qps,
                depth: 16 * u64::from(qps),
                len: 65536,
                requests: 1200,
                ..SMALL
            };
            let world = world_of(preset, job, &[]);
            let over = play(&world);
            let gbps = job.requests as f64 * f64::from(job.len) * 8_000.0 / over as f64;
            let links = f64::from(qps.min(2));
            let share = gbps / (links * link_gbps);
            // Three queue pairs do the same work, so the port with one of them is idle for half of the time.
            let expected = if qps == 3 { 0.65..0.8 } else { 0.9..1.0 };
            assert!(
                expected.contains(&share),
                "{preset}, {qps} queue pairs, read: {read}: {gbps} Gbit/s"
            );
            let usage = usage(&world.usage_monitor());
            let (sender, receiver) = if read { (1, 0) } else { (0, 1) };
            let out = carried(&usage, sender, "link out ");
            let total: u64 = out.iter().sum();
            assert_eq!(out.len(), 2);
            let first = [1.0, 0.5, 2.0 / 3.0][qps as usize - 1];
            let found = out[0] as f64 / total as f64;
            assert!((found - first).abs() < 0.01, "{preset}, {qps}: {out:?}");
            // The switch of a port connects it with the other host's port of the same index.
            let arrived = carried(&usage, receiver, "link in ");
            for (sent, arrived) in out.iter().zip(&arrived) {
                assert!(
                    arrived <= sent && *sent - *arrived <= sent / 100,
                    "{out:?}, {arrived:?}"
                );
            }
        }
    }
}

#[test]
fn links_are_named_by_port_only_on_hosts_with_several() {
    let names = |settings: &[&str]| {
        let world = world(SMALL, settings);
        play(&world);
        let units = &usage(&world.usage_monitor()).hosts[0].units;
        let names = units.iter().map(|group| group.what);
        names
            .filter(|name| name.starts_with("link"))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["link out", "link in"]);
    assert_eq!(
        names(&["link.ports=2"]),
        ["link out 0", "link out 1", "link in 0", "link in 1"]
    );
    assert_eq!(names(&["link.ports=8"]).len(), 16);
}

//! Several daemons and their applications in virtual time, with faults injected into their devices. The tests
//! check that every byte is right, that everything makes progress, and that nothing is left at the end.

#[path = "soak/application.rs"]
mod application;
#[path = "soak/host.rs"]
mod host;
#[path = "soak/plan.rs"]
mod plan;
#[path = "soak/signals.rs"]
mod signals;
#[path = "soak/tamper.rs"]
mod tamper;
#[path = "meeting/without_srqs.rs"]
mod without_srqs;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use application::{Flow, Script};
use headworks_client::Doorbell;
use headworks_daemon::limits::DaemonLimits;
use headworks_runtime::{
    Actor, ActorOutcome, ActorRegistry, ActorSpec, DeviceOpener, InProcess, RunningScenario,
    Scenario, World, testing,
};
use headworks_shm::Registry;
use headworks_simnic::faults::{Rules, rules};
use headworks_simnic::{Preset, SimWorld};
use headworks_softnic::SoftProvider;
use headworks_verbs::{Duration, Instant, Provider};
use host::{Host, HostPlan, Ledger, address, role};
use plan::Plan;

/// Runs hosts on simulated devices until they end, which must be before `limit`. Returns their ledger, and
/// how many messages found no receive.
fn scenario(
    plans: Vec<HostPlan>,
    faults: Rules,
    seed: u64,
    limit: Duration,
) -> Result<(Ledger, u64), String> {
    let preset = Preset::named("cx5-100g").expect("a preset");
    scenario_on(preset, plans, faults, seed, limit)
}

/// As [`scenario`], on machines of this preset.
fn scenario_on(
    preset: Preset,
    plans: Vec<HostPlan>,
    faults: Rules,
    seed: u64,
    limit: Duration,
) -> Result<(Ledger, u64), String> {
    let (actors, scenario, ledger) = scenario_of(plans, |_| format!("sim:{}", preset.name));
    let world = SimWorld::new(actors, preset, seed).with_rules(faults);
    let ledger = ended(world.start(&scenario).expect("starts"), limit, &ledger)?;
    let left = world.object_counts();
    if !(headworks_simnic::ObjectCounts { packets: 0, ..left }).is_empty() {
        return Err(format!("left behind: {left:?}"));
    }
    let usage = world.usage_monitor().last().expect("a run");
    let not_ready = usage.hosts.iter().map(|host| host.counters.not_ready);
    Ok((ledger, not_ready.sum()))
}

/// Runs hosts on soft hosts, a thread each, until they end.
fn run_on_soft_hosts(
    plans: Vec<HostPlan>,
    device: impl Fn(usize) -> String,
) -> Result<Ledger, String> {
    let directory = tempfile::tempdir().expect("a directory");
    let fabric = Registry::open_at(directory.path().join("fabric")).expect("a fabric");
    let provider = Arc::new(SoftProvider::on(fabric));
    let (actors, scenario, ledger) = scenario_of(plans, device);
    let opener: DeviceOpener = Arc::new(move |name| provider.open(name));
    let world = InProcess::new(actors, opener);
    let running = world.start(&scenario).expect("starts");
    ended(running, testing::limit(), &ledger)
}

type SharedLedger = Arc<Mutex<Ledger>>;

fn scenario_of(
    plans: Vec<HostPlan>,
    device: impl Fn(usize) -> String,
) -> (ActorRegistry, Scenario, SharedLedger) {
    let hosts = plans.len();
    let ledger = Arc::new(Mutex::new(Ledger {
        hosts,
        ..Ledger::default()
    }));
    let mut actors = ActorRegistry::new();
    let mut parts = Vec::new();
    for (number, plan) in plans.into_iter().enumerate() {
        let ledger = ledger.clone();
        actors.register(&format!("host{number}"), move |part| {
            let host = Host::new(part, number, hosts, plan.clone(), ledger.clone())?;
            Ok(Box::new(host) as Box<dyn Actor>)
        });
        let device = device(number).parse().expect("a name");
        parts.push(ActorSpec::new(role(number), format!("host{number}")).on(device));
    }
    (actors, Scenario::of(parts), ledger)
}

fn ended(
    running: Box<dyn RunningScenario>,
    limit: Duration,
    ledger: &SharedLedger,
) -> Result<Ledger, String> {
    let deadline = running.now() + limit;
    let endings = running.finish(deadline);
    let ledger = std::mem::take(&mut *ledger.lock().unwrap_or_else(PoisonError::into_inner));
    for ending in &endings {
        if !matches!(ending.outcome, ActorOutcome::Done) {
            return Err(format!("{} {:?}: {ledger:#?}", ending.role, ending.outcome));
        }
    }
    Ok(ledger)
}

/// Shows the daemons' log if a single seed is being investigated.
fn show_logs() {
    let is_one = |seed: String| !seed.contains("..");
    if std::env::var("HEADWORKS_SEED").is_ok_and(is_one) {
        let shown = tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .try_init();
        drop(shown);
    }
}

/// Numbers of workers that the daemons of each plan have.
const WORKERS: [u16; 2] = [1, 4];

/// Runs the plan of a seed on simulated devices.
fn soak(seed: u64, workers: u16) -> Result<Ledger, String> {
    show_logs();
    let plan = Plan::of(seed, workers);
    let (hosts, faults) = (plan.hosts.clone(), plan.faults.clone());
    // Virtual time. An application that lends 100 bytes at a time over a lossy link needs more than 20 s.
    let limit = Duration::from_secs(120);
    let played = scenario_on(plan.preset.clone(), hosts, faults, seed, limit);
    let (ledger, not_ready) = played.map_err(|what| format!("{}: {what}", plan.words))?;
    if !plan.storms && not_ready > 0 {
        return Err(format!(
            "{not_ready} messages found no receive: {ledger:#?}"
        ));
    }
    judge(&plan, ledger)
}

/// Checks a ledger against what the daemons promise under its plan.
fn judge(plan: &Plan, ledger: Ledger) -> Result<Ledger, String> {
    let wrong = |what: String| Err(format!("{}: {what}: {ledger:#?}", plan.words));
    if !ledger.errors.is_empty() {
        return wrong("errors".to_owned());
    }
    let ends = 2 * plan.connections;
    let came = ledger.whole + ledger.broken;
    if !plan.breaks && (ledger.whole, came, ledger.refused) != (ends, ends, 0) {
        return wrong(format!("not all of {ends} ends were whole"));
    }
    let doorbells: usize = plan.hosts.iter().map(|host| host.scripts.len()).sum();
    let in_use: u64 = ledger.all_counts.iter().map(|one| one.in_use).sum();
    // An application has a doorbell at each worker that carries connections of it, and at the first.
    let doorbells_most = doorbells * usize::from(plan.workers);
    let doorbell = Doorbell::bytes(DaemonLimits::default().connections_each as usize);
    let doorbell = doorbell.next_power_of_two();
    let expected = (doorbell * doorbells) as u64..=(doorbell * doorbells_most) as u64;
    if !plan.breaks && !expected.contains(&in_use) {
        return wrong(format!(
            "{in_use} bytes in use with {doorbells} applications"
        ));
    }
    if ledger
        .all_counts
        .iter()
        .any(|one| one.promised > one.receives)
    {
        return wrong("more receives are promised than posted".to_owned());
    }
    Ok(ledger)
}

/// Returns the seeds to run: only those of `HEADWORKS_SEED`, if it is set, `N` or `N..M`.
fn seeds(range: std::ops::Range<u64>) -> Vec<u64> {
    let Ok(set) = std::env::var("HEADWORKS_SEED") else {
        return range.collect();
    };
    let number = |text: &str| {
        text.parse::<u64>()
            .unwrap_or_else(|_| panic!("HEADWORKS_SEED={set}: neither N nor N..M"))
    };
    match set.split_once("..") {
        Some((first, end)) => {
            let range = number(first)..number(end);
            assert!(!range.is_empty(), "HEADWORKS_SEED={set}: no seeds");
            range.collect()
        }
        None => vec![number(&set)],
    }
}

#[test]
fn daemons_keep_their_guarantees_under_faults() {
    // A long run has 2,000 seeds, or as many as the variable says.
    let long = std::env::var("HEADWORKS_LONG").ok();
    let most = long.map_or(16, |number| match number.parse() {
        Ok(number) if number > 16 => number,
        _ => 2000,
    });
    let mut whole = 0;
    for (seed, workers) in seeds(0..most)
        .into_iter()
        .flat_map(|seed| WORKERS.map(|one| (seed, one)))
    {
        let began = std::time::Instant::now();
        let soaked = soak(seed, workers);
        if std::env::var_os("HEADWORKS_LONG").is_some() {
            eprintln!("seed {seed}, {workers} workers: {:?}", began.elapsed());
        }
        match soaked {
            Ok(ledger) => whole += ledger.whole,
            Err(what) => panic!(
                "seed {seed}, {workers} workers: {}",
                what.chars().take(6000).collect::<String>()
            ),
        }
    }
    assert!(whole > 0);
}

fn to(host: usize, port: u16) -> SocketAddr {
    SocketAddr::new(address(host), port)
}

#[test]
fn two_hosts_exchange_streams() {
    let flow = |there, back, chunk| Flow {
        there,
        back,
        chunk,
        lends: false,
    };
    let listener = Script {
        user: 1,
        listens: Some(7),
        ..Script::default()
    };
    let caller = Script {
        user: 2,
        connects: vec![
            (to(0, 7), flow(0, 0, 1)),
            (to(0, 7), flow(64, 64, 64)),
            (to(0, 7), flow(100_000, 50, 1000)),
            (to(0, 7), flow(30, 300_000, 70_000)),
            (to(0, 7), flow(3_000_000, 3_000_000, 200_000)),
        ],
        ..Script::default()
    };
    let plans = [listener, caller].map(|script| HostPlan {
        config: DaemonLimits::default(),
        scripts: vec![script],
        lacks_srqs: false,
    });
    let (ledger, not_ready) =
        scenario(plans.into(), Rules::new(1), 1, Duration::from_secs(10)).unwrap();
    assert_eq!(not_ready, 0);
    assert_eq!(ledger.errors, Vec::<String>::new());
    assert_eq!((ledger.whole, ledger.broken, ledger.refused), (10, 0, 0));
    assert!(ledger.operations > 40, "{}", ledger.operations);
}

#[test]
fn a_link_that_fails_resets_no_connection_of_another_worker() {
    let flow = Flow {
        there: 200_000,
        back: 200_000,
        chunk: 3000,
        lends: false,
    };
    // One application has connections to two hosts, each at a worker of its own.
    let caller = Script {
        user: 1,
        listens: Some(1),
        connects: [1, 2].map(|host| vec![(to(host, 1), flow); 4]).concat(),
        ..Script::default()
    };
    let listener = Script {
        user: 1,
        listens: Some(1),
        ..Script::default()
    };
    let config = DaemonLimits {
        workers: 4,
        ..DaemonLimits::default()
    };
    let plans = [caller, listener.clone(), listener].map(|script| HostPlan {
        config: config.clone(),
        scripts: vec![script],
        lacks_srqs: false,
    });
    // Host 1 has links to host 0 alone, so the connections to host 2 are not concerned.
    let faults = Rules::new(1).with(rules::kill_queue_pair_at(&role(1), 100));
    let limit = Duration::from_secs(10);
    let (ledger, _) = scenario(plans.into(), faults, 1, limit).unwrap();
    assert_eq!(ledger.errors, Vec::<String>::new());
    assert!(ledger.broken > 0, "{ledger:#?}");
    assert!(ledger.whole >= 8, "{ledger:#?}");
}

#[test]
fn a_part_that_is_lost_ends_its_sessions_alone() {
    let flow = Flow {
        there: 200_000,
        back: 200_000,
        chunk: 3000,
        lends: false,
    };
    let listener = |user| Script {
        user,
        listens: Some(user as u16),
        ..Script::default()
    };
    // The daemon tells an application that its session ends, which is no error here.
    let caller = |user| Script {
        connects: vec![(to(1, user as u16), flow); 4],
        trusts: true,
        ..listener(user)
    };
    let config = DaemonLimits {
        workers: 4,
        ..DaemonLimits::default()
    };
    // Two users have domains of their own, and so completion queues. That of one overruns.
    let plans = [[caller(1), caller(2)], [listener(1), listener(2)]];
    let plans = plans.map(|scripts| HostPlan {
        config: config.clone(),
        scripts: scripts.into(),
        lacks_srqs: false,
    });
    for number in [20, 100, 300] {
        let faults = Rules::new(1).with(rules::overrun_completion_queue_at(&role(0), number));
        let limit = Duration::from_secs(10);
        let (ledger, _) = scenario(plans.clone().into(), faults, 1, limit).unwrap();
        assert_eq!(ledger.errors, Vec::<String>::new());
        // One user's four connections have broken at both ends, and the other's none.
        assert_eq!((ledger.whole, ledger.broken), (8, 8), "{ledger:#?}");
    }
}

#[test]
fn daemons_keep_their_guarantees_on_soft_hosts() {
    for seed in seeds(0..12) {
        show_logs();
        let mut plan = Plan::of(seed, WORKERS[seed as usize / 2 % 2]);
        if seed % 2 == 1 {
            // Hostile devices may break connections even where the plan's faults do not.
            plan.breaks = true;
        }
        let device = |number| match seed % 2 {
            0 => format!("soft:h{number}"),
            _ => format!("soft:h{number},hostile,seed={seed}"),
        };
        let played = run_on_soft_hosts(plan.hosts.clone(), device);
        if let Err(what) = played.and_then(|ledger| judge(&plan, ledger)) {
            panic!(
                "seed {seed}: {}",
                what.chars().take(6000).collect::<String>()
            );
        }
    }
}

#[test]
fn corrupting_shared_memory_harms_no_other_application() {
    for seed in seeds(0..12) {
        let at = |micros| Instant::ZERO + Duration::from_micros(micros);
        let flow = Flow {
            there: 100_000,
            back: 30_000,
            chunk: 2000,
            lends: seed % 3 == 0,
        };
        let scribbles = Some(at(seed * 7));
        // The first host has an application that scribbles, one of the same user, and one of another user.
        // The second has their peers.
        let bad = Script {
            user: 1,
            listens: Some(1),
            connects: vec![(to(1, 1), flow); 4],
            scribbles,
            dies: Some(at(50_000)),
            ..Script::default()
        };
        let good = |user, port| Script {
            user,
            listens: Some(port),
            connects: vec![(to(1, 2), flow); 4],
            ..Script::default()
        };
        let its_peer = Script {
            user: 1,
            listens: Some(1),
            connects: vec![(to(0, 1), flow); 4],
            trusts: true,
            dies: Some(at(60_000)),
            ..Script::default()
        };
        let other = Script {
            user: 3,
            listens: Some(2),
            connects: vec![(to(0, 2), flow), (to(0, 3), flow)],
            ..Script::default()
        };
        let config = DaemonLimits {
            workers: WORKERS[seed as usize / 2 % 2],
            ..DaemonLimits::default()
        };
        let plans = [vec![bad, good(1, 2), good(2, 3)], vec![its_peer, other]];
        let plans = plans.map(|scripts| HostPlan {
            config: config.clone(),
            scripts,
            lacks_srqs: false,
        });
        let limit = Duration::from_secs(10);
        let (ledger, _) = scenario(plans.into(), Rules::new(seed), seed, limit)
            .unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        assert_eq!(ledger.errors, Vec::<String>::new(), "seed {seed}");
        assert!(ledger.whole >= 20, "seed {seed}: {ledger:#?}");
    }
}

#[test]
fn a_thousand_senders_do_not_overrun_one_slow_reader() {
    for lacks_srqs in [false, true] {
        send_to_a_slow_reader(lacks_srqs);
    }
}

/// `lacks_srqs`: whether the hosts' devices have no shared receive queues.
fn send_to_a_slow_reader(lacks_srqs: bool) {
    let flow = Flow {
        there: 5000,
        back: 64,
        chunk: 5000,
        lends: false,
    };
    let reader = Script {
        user: 1,
        listens: Some(7),
        rests: Some(Duration::from_micros(100)),
        ..Script::default()
    };
    let senders = |user| Script {
        user,
        connects: vec![(to(0, 7), flow); 250],
        ..Script::default()
    };
    let config = DaemonLimits {
        receives: 16,
        qp_group_floor: 4,
        qp_group_share: 8,
        frame_depth: 8,
        ..DaemonLimits::default()
    };
    let scripts = [
        vec![reader],
        vec![senders(1), senders(2)],
        vec![senders(3), senders(4)],
    ];
    let plans = scripts.map(|scripts| HostPlan {
        config: config.clone(),
        scripts,
        lacks_srqs,
    });
    let limit = Duration::from_secs(60);
    let (ledger, not_ready) = scenario(plans.into(), Rules::new(1), 1, limit).unwrap();
    assert_eq!(ledger.errors, Vec::<String>::new());
    assert_eq!((ledger.whole, ledger.broken, ledger.refused), (2000, 0, 0));
    assert_eq!(not_ready, 0, "messages found no receive");
    // Four domains of the other hosts, with two queue pairs each.
    assert_eq!(ledger.most_queue_pairs, 8);
}

#[test]
fn memory_is_not_used_again_while_a_transfer_may_reach_it() {
    for seed in seeds(0..24) {
        let flow = Flow {
            there: 300_000,
            back: 300_000,
            chunk: 30_000,
            lends: seed % 4 == 0,
        };
        let script = |user, host: usize| Script {
            user,
            listens: Some(user as u16),
            connects: vec![(to(1 - host, user as u16), flow); 6],
            gives_up: (host as u64 == seed % 2 || seed % 3 == 0)
                .then_some(20_000 + 7_000 * (seed % 9)),
            ..Script::default()
        };
        let config = DaemonLimits {
            bulk_min: 1000,
            ring_bytes: 16 << 10,
            workers: WORKERS[seed as usize / 4 % 2],
            poison: true,
            ..DaemonLimits::default()
        };
        let plans = [0, 1].map(|host| HostPlan {
            config: config.clone(),
            scripts: vec![script(1, host), script(2, host)],
            lacks_srqs: false,
        });
        // With this jitter, queue pairs overtake each other by far.
        let late = Duration::from_micros(300);
        let faults = Rules::new(seed)
            .with(rules::jitter(3, late))
            .with(rules::loss(200));
        let limit = Duration::from_secs(20);
        let (ledger, _) = scenario(plans.into(), faults, seed, limit)
            .unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        assert_eq!(ledger.errors, Vec::<String>::new(), "seed {seed}");
    }
}

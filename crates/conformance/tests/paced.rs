//! Runs the cases on paced devices, around software and simulated RNICs: with the default pacing, and with a
//! pacing in which nearly every request has to wait and long ones are cut.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use headworks_conformance::worlds::{InProcessWorld, WorldLayout};
use headworks_conformance::{Case, DeviceBehaviour, cases, runner};
use headworks_net::clock;
use headworks_pacing::shared_state::BYTES;
use headworks_pacing::{Clock, PacedDevice, Pacing, PacingConfig, SharedPacing};
use headworks_runtime::DeviceOpener;
use headworks_shm::{HugePages, SegmentRequest, SharedSegment, View};
use headworks_verbs::{Device, Gid, Provider};

#[path = "shared/sim_network.rs"]
mod sim_network;
#[path = "shared/soft_registry.rs"]
mod soft_registry;

use sim_network::{SIM_BEHAVIOUR, SimNetwork};
use soft_registry::soft_opener;

/// Returns an opener that paces every device with this configuration. Devices of one host share their pacing.
fn paced(inner: DeviceOpener, config: &PacingConfig, is_real: bool) -> DeviceOpener {
    let shares: Mutex<BTreeMap<[u8; 16], SharedPacing>> = Mutex::default();
    let config = Arc::new(config.clone());
    Arc::new(move |name| {
        let device = inner(name)?;
        let info = device.info().clone();
        let Gid(gid) = info.gid;
        let mut shares = shares.lock().expect("not poisoned");
        let share = shares.entry(gid).or_insert_with(share).clone();
        let of_device = device.clone();
        let clock: Clock = match is_real {
            true => Arc::new(clock::now),
            false => Arc::new(move || of_device.now()),
        };
        let pacing = Pacing {
            share,
            config: config.clone(),
            clock,
            is_real,
            keeper: None,
        };
        Ok(Arc::new(PacedDevice::new(device, info, pacing)) as Arc<dyn Device>)
    })
}

fn share() -> SharedPacing {
    let request = SegmentRequest {
        name: "paced",
        len: BYTES,
        huge_pages: HugePages::No,
        numa_node: None,
        is_sealed: false,
    };
    let segment = SharedSegment::create(&request).expect("a segment");
    SharedPacing::over(View::from(Arc::new(segment))).expect("long enough")
}

/// Returns a configuration in which nearly every request has to wait.
fn narrow() -> PacingConfig {
    let mut config = PacingConfig::default();
    for (key, value) in [
        ("min_rate_gbps", "0.05"),
        ("line_rate_gbps", "0.5"),
        ("burst_bytes", "0"),
        ("quantum_bytes", "0"),
        ("slice_bytes", "1000"),
        ("max_in_flight", "16"),
    ] {
        config.set(key, value).expect("legal");
    }
    config
}

fn wide(timestamps: bool) -> PacingConfig {
    PacingConfig {
        timestamps,
        ..PacingConfig::default()
    }
}

fn judge(name: &str, tally: &runner::CaseTally) {
    let (ran, skipped, failed) = (tally.ran, &tally.skipped, &tally.failed);
    println!("{name}: {ran} cases, {} skipped", skipped.len());
    assert!(failed.is_empty(), "{name}: {failed:?}");
    let is_all = std::env::var_os("HEADWORKS_CASE").is_none();
    assert!(ran > skipped.len() || !is_all, "{name}: {skipped:?}");
}

const PACED_SOFT_BEHAVIOUR: DeviceBehaviour = DeviceBehaviour {
    completes_in_call: false,
    defers_requests: true,
    ..DeviceBehaviour::SOFT
};

fn on_soft(name: &str, config: &PacingConfig) {
    on(name, config, "", PACED_SOFT_BEHAVIOUR);
}

/// Runs the cases on paced software RNICs whose names have these options.
fn on(name: &str, config: &PacingConfig, options: &str, behaviour: DeviceBehaviour) {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let [h1, h2, h3] = ["h1", "h2", "h3"].map(|host| format!("soft:{host}{options}"));
    let layout = WorldLayout::of([&*h1, &*h2, &*h3]).with(behaviour);
    let opener = || paced(soft_opener(&path), config, true);
    let tally = runner::run_cases(name, cases().filter(runner::case_filter()), || {
        InProcessWorld::new(opener(), layout.clone())
    });
    judge(name, &tally);
    assert!(!path.exists(), "the last to leave removes the directory");
}

#[test]
fn soft_as_fast_as_it_goes() {
    on_soft("paced soft", &wide(false));
}

#[test]
fn soft_where_everything_waits() {
    on_soft("narrow soft", &narrow());
}

/// Behaviour of paced hostile devices: the refusals and empty polls are those of hostile ones without pacing.
const HOSTILE_BEHAVIOUR: DeviceBehaviour = DeviceBehaviour {
    spurious_refusals: 3,
    empty_polls_max: 6,
    ..PACED_SOFT_BEHAVIOUR
};

#[test]
fn hostile_as_fast_as_it_goes() {
    on(
        "paced hostile",
        &wide(false),
        ",hostile,kills=no,seed=1",
        HOSTILE_BEHAVIOUR,
    );
}

#[test]
fn hostile_where_everything_waits() {
    on(
        "narrow hostile",
        &narrow(),
        ",hostile,kills=no,seed=3",
        HOSTILE_BEHAVIOUR,
    );
}

/// Behaviour of simulated RNICs, except for what pacing changes.
const PACED_SIM_BEHAVIOUR: DeviceBehaviour = DeviceBehaviour {
    progresses_without_calls: false,
    defers_requests: true,
    ..SIM_BEHAVIOUR
};

/// Cases whose sender makes no call while its receiver waits. In virtual time nothing else posts the requests
/// that wait.
const CASES_WITHOUT_EVENTS: [&str; 3] = [
    "cq::several_pollers",
    "datagrams::sq_full",
    "matrix::recv_cq_full",
];

fn on_sim(name: &str, config: &PacingConfig, not: &[&str]) {
    let hosts = ["h1", "h2", "h3"].map(|host| format!("sim:cx5-100g,host={host}"));
    let layout = WorldLayout::of([&hosts[0], &hosts[1], &hosts[2]]).with(PACED_SIM_BEHAVIOUR);
    let world = || {
        let network = Arc::new(SimNetwork::default());
        let there = network.clone();
        let opener: DeviceOpener = Arc::new(move |name| there.0.open(name));
        InProcessWorld::new(paced(opener, config, false), layout.clone()).with_time_source(network)
    };
    let is_asked = |case: &Case| {
        let is_not = not.contains(&&*case.name);
        if is_not {
            println!("{name}: {} not run: its sender makes no call", case.name);
        }
        !is_not
    };
    let asked = cases().filter(runner::case_filter()).filter(is_asked);
    let tally = runner::run_cases(name, asked, world);
    judge(name, &tally);
}

#[test]
fn simulated_as_fast_as_it_goes() {
    on_sim("paced sim", &wide(true), &[]);
}

#[test]
fn simulated_where_everything_waits() {
    on_sim("narrow sim", &narrow(), &CASES_WITHOUT_EVENTS);
}

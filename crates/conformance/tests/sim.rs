//! Runs the cases on simulated RNICs in virtual time: between hosts, and on one device in loopback.

use std::sync::Arc;

use headworks_conformance::worlds::{InProcessWorld, WorldLayout};
use headworks_conformance::{cases, runner};
use headworks_runtime::DeviceOpener;
use headworks_verbs::Provider;

#[path = "shared/sim_network.rs"]
mod sim_network;

use sim_network::{SIM_BEHAVIOUR, SimNetwork};

fn world(layout: &WorldLayout) -> InProcessWorld {
    let network = Arc::new(SimNetwork::default());
    let there = network.clone();
    let opener: DeviceOpener = Arc::new(move |name| there.0.open(name));
    InProcessWorld::new(opener, layout.clone()).with_time_source(network)
}

fn run_in(name: &str, layout: &WorldLayout) {
    let tally = runner::run_cases(name, cases().filter(runner::case_filter()), || {
        world(layout)
    });
    let (ran, skipped, failed) = (tally.ran, &tally.skipped, &tally.failed);
    println!("{name}: {ran} cases, {} skipped", skipped.len());
    assert!(failed.is_empty(), "{name}: {failed:?}");
    // The cases that the environment names may all be skipped here.
    let is_all = std::env::var_os("HEADWORKS_CASE").is_none();
    assert!(ran > skipped.len() || !is_all, "{name}: {skipped:?}");
}

#[test]
fn between_hosts() {
    let hosts = ["h1", "h2", "h3"].map(|host| format!("sim:cx5-100g,host={host}"));
    let layout = WorldLayout::of([&hosts[0], &hosts[1], &hosts[2]]).with(SIM_BEHAVIOUR);
    run_in("hosts", &layout);
}

#[test]
fn on_one_device() {
    let layout = WorldLayout::loopback("sim:cx5-100g").with(SIM_BEHAVIOUR);
    run_in("loopback", &layout);
}

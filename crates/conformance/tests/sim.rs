//! The cases on simulated RNICs, in virtual time: between hosts, and on one that talks to itself.

use std::sync::Arc;

use headworks_conformance::worlds::{Layout, Local};
use headworks_conformance::{cases, run};
use headworks_runtime::DeviceOpener;
use headworks_verbs::Provider;

#[path = "shared/network.rs"]
mod network;

use network::{Network, SIM};

fn world(layout: &Layout) -> Local {
    let network = Arc::new(Network::default());
    let there = network.clone();
    let opener: DeviceOpener = Arc::new(move |name| there.0.open(name));
    Local::new(opener, layout.clone()).in_time(network)
}

fn run_in(name: &str, layout: &Layout) {
    let tally = run::run(name, cases().filter(run::wanted()), || world(layout));
    let (ran, skipped, failed) = (tally.ran, &tally.skipped, &tally.failed);
    println!("{name}: {ran} cases, {} skipped", skipped.len());
    assert!(failed.is_empty(), "{name}: {failed:?}");
    // Whoever names cases may name none that runs here.
    let is_all = std::env::var_os("HEADWORKS_CASE").is_none();
    assert!(ran > skipped.len() || !is_all, "{name}: {skipped:?}");
}

#[test]
fn between_hosts() {
    let hosts = ["h1", "h2", "h3"].map(|host| format!("sim:cx5-100g,host={host}"));
    let layout = Layout::of([&hosts[0], &hosts[1], &hosts[2]]).with(SIM);
    run_in("hosts", &layout);
}

#[test]
fn on_one_device() {
    let layout = Layout::loopback("sim:cx5-100g").with(SIM);
    run_in("loopback", &layout);
}

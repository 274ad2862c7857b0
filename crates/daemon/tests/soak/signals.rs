//! A host whose receive pool is in danger slows down what its peers send to it, and nothing that they send to others.

use headworks_client::control_block::Transfer;
use headworks_daemon::limits::DaemonLimits;
use headworks_simnic::faults::Rules;
use headworks_verbs::{Duration, Instant};

use super::application::{Flow, Script};
use super::host::{HostPlan, Ledger, address};
use super::{scenario, to};

/// Port of the application that does not read, and of those that do.
const STALLED: u16 = 1;
const READING: u16 = 2;
/// Bytes of a flow that is read. It lasts as long as many signals.
const BYTES: u64 = 4_000_000;

/// The first host sends long pieces to an application of the second host that does not read. It also sends short pieces, in
/// frames, to another application of that host and to one of a third host.
fn run(pool_bytes: u64) -> Ledger {
    let config = DaemonLimits {
        pool_bytes,
        pool_budget: 64 << 20,
        pool_quota: 100,
        pool_straggler_time: 10_000,
        ..DaemonLimits::default()
    };
    let sender = |host, port, flow, count, way| Script {
        user: 1,
        connects: vec![(to(host, port), flow); count],
        way: Some(way),
        ..Script::default()
    };
    let long = Flow {
        there: 1_000_000,
        back: 0,
        chunk: 60_000,
        lends: false,
    };
    let short = Flow {
        there: BYTES,
        chunk: 3000,
        ..long
    };
    let reader = |name| Script {
        user: 1,
        name: Some(name),
        listens: Some(READING),
        rests: Some(Duration::from_micros(500)),
        ..Script::default()
    };
    let stalled = Script {
        user: 1,
        listens: Some(STALLED),
        rests: Some(Duration::from_secs(10)),
        dies: Some(Instant::ZERO + Duration::from_millis(200)),
        ..Script::default()
    };
    let scripts = [
        vec![
            sender(1, STALLED, long, 4, Transfer::Any),
            sender(1, READING, short, 1, Transfer::Send),
            sender(2, READING, short, 1, Transfer::Send),
        ],
        vec![stalled, reader("beside the stalled one")],
        vec![reader("idle")],
    ];
    let plans = scripts.map(|scripts| HostPlan {
        config: config.clone(),
        scripts,
        lacks_srqs: false,
    });
    let limit = Duration::from_secs(10);
    let (ledger, not_ready) = scenario(plans.into(), Rules::new(1), 1, limit).unwrap();
    assert_eq!(ledger.errors, Vec::<String>::new());
    assert_eq!(not_ready, 0);
    ledger
}

/// Bytes a second that an application received.
fn rate(ledger: &Ledger, name: &str) -> u64 {
    let (bytes, until) = ledger.named[name];
    assert!(bytes > BYTES, "{name}: {bytes} bytes");
    bytes * 1_000_000_000 / until.since(Instant::ZERO).nanos()
}

#[test]
fn signals_of_one_host_leave_the_flow_to_another_host_its_throughput() {
    // Everything that the stalled application does not read fits the large pool.
    let (calm, danger) = (run(64 << 20), run(256 << 10));
    let signals = |ledger: &Ledger, host| ledger.signals[&(0, address(host))].1;
    assert_eq!(signals(&calm, 1), 0);
    assert!(signals(&danger, 1) > 5, "{:?}", danger.signals);
    assert_eq!(signals(&danger, 2), 0, "{:?}", danger.signals);
    let [slowed, free] = [&danger, &calm].map(|ledger| rate(ledger, "beside the stalled one"));
    assert!(slowed < free / 2, "{slowed} of {free}");
    let [kept, before] = [&danger, &calm].map(|ledger| rate(ledger, "idle"));
    assert!(kept >= before / 100 * 95, "{kept} of {before}");
}

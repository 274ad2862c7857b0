//! Experiments on simulated devices: a second run gives the same results, to the byte, and results say that
//! they are simulated.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use headworks::verbs::Duration;
use headworks_experiments::cases::jet::receiving_host::{THROUGHPUT, write_all};
use headworks_experiments::simulated_machine::SimulatedMachine;
use headworks_experiments::{Options, RunError, run};

/// Runs an experiment into `out` and returns the contents of its files.
fn files(name: &str, device: &str, out: &Path) -> Result<[String; 3], RunError> {
    let device = device.parse().expect("a device's name");
    let simulated = SimulatedMachine::on(&device, &[], None).expect("a simulated device");
    let simulated = simulated.expect("a preset");
    let options = Options {
        quick: true,
        usage_monitor: Some(simulated.usage_monitor().clone()),
        out: out.to_owned(),
        ..Options::on(device)
    };
    let stop = AtomicBool::new(false);
    run(
        &[name.to_owned()],
        &options,
        simulated.world(),
        &stop,
        &mut |_| {},
    )?;
    let read = |file| std::fs::read_to_string(out.join(name).join(file)).expect("a result");
    Ok(["points.csv", "report.md", "summary.json"].map(read))
}

#[test]
fn delays_within_a_batch_are_the_same_once_more_and_as_the_paper_has_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = files("weir-fig4", "sim:cx6-100g", &dir.path().join("a")).expect("measured");
    let again = files("weir-fig4", "sim:cx6-100g", &dir.path().join("b")).expect("measured");
    assert_eq!(first[0], again[0]);
    // One line for each request of each size, and the header.
    assert_eq!(first[0].lines().count(), 301);
    let [points, report, summary] = first;
    // One batch each millisecond, for 20 ms.
    let batches = points.lines().skip(1).map(|line| {
        let batches = line.split(',').nth(4).expect("a column for the batches");
        batches.parse::<u32>().expect("a count")
    });
    let [fewest, most] = [batches.clone().min(), batches.max()];
    assert!(fewest >= Some(18) && most <= Some(20), "{points}");
    assert!(
        report.contains("(simulated)") && summary.contains("\"simulated\": true"),
        "{report}"
    );
    assert!(!report.contains("| no |"), "{report}");
    assert!(summary.contains("\"skipped\": {}"), "{summary}");
}

#[test]
fn plain_verbs_carry_no_more_than_the_link_and_nothing_is_left_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let [points, report, summary] =
        files("raw-verbs", "sim:cx5-100g", dir.path()).expect("measured");
    let bandwidths = points.lines().skip(1).filter_map(|line| {
        let bandwidth = line.split(',').nth(8).expect("a column for the bandwidth");
        bandwidth.parse::<f64>().ok()
    });
    let bandwidths: Vec<f64> = bandwidths.collect();
    assert!(bandwidths.len() > 20, "{points}");
    let most = bandwidths.iter().copied().fold(0.0, f64::max);
    assert!((95.0..=100.0).contains(&most), "{most} Gbit/s:\n{points}");
    assert!(report.contains("## cx5-100g (simulated)"), "{report}");
    assert!(report.contains("ours (simulated)"), "{report}");
    let summary: serde_json::Value = serde_json::from_str(&summary).expect("a summary");
    let skipped = summary["skipped"].as_object().expect("what was skipped");
    let count = skipped.len();
    let mut skipped = skipped.keys();
    assert!(!skipped.any(|key| key.starts_with("cx5_100g_")), "{report}");
    assert!(!report.contains("skipped"), "{report}");
    assert!(report.contains(&format!("\n{count} keys")), "{report}");
    assert!(!report.contains("AllCores"), "{report}");
    for svg in ["rate", "bandwidth", "latency"] {
        let path = dir.path().join(format!("raw-verbs/cx5-100g-{svg}.svg"));
        let drawn = std::fs::read_to_string(path).expect("a drawing");
        assert!(drawn.contains("(simulated)"), "{svg}");
    }
}

#[test]
fn figures_of_the_service_are_the_same_once_more_and_nothing_is_left_out() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["raas-fig7", "raas-fig12"] {
        let first = files(name, "sim:cx3-40g", &dir.path().join("a")).expect("measured");
        let again = files(name, "sim:cx3-40g", &dir.path().join("b")).expect("measured");
        assert_eq!(first[0], again[0]);
        let [points, report, summary] = first;
        assert!(
            report.contains("(simulated)") && summary.contains("\"simulated\": true"),
            "{report}"
        );
        assert!(summary.contains("\"skipped\": {}"), "{points}{summary}");
    }
}

#[test]
fn an_incident_over_time_is_the_same_once_more_and_jet_does_not_lose() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = files("jet-fig1", "sim:cx4lx-2x25g", &dir.path().join("a")).expect("measured");
    let again = files("jet-fig1", "sim:cx4lx-2x25g", &dir.path().join("b")).expect("measured");
    assert_eq!(first[0], again[0]);
    let [points, report, summary] = first;
    // 30 windows of two arms, and the header.
    assert_eq!(points.lines().count(), 61, "{points}");
    assert!(
        report.contains("(simulated)") && summary.contains("\"simulated\": true"),
        "{report}"
    );
    assert!(summary.contains("\"skipped\": {}"), "{summary}");
    let throughput = |arm: &str, time: u32| {
        let begin = format!("{arm},{time},");
        let line = points.lines().find(|line| line.starts_with(&begin));
        let value = line.and_then(|line| line.split(',').nth(2));
        value
            .and_then(|value| value.parse::<f64>().ok())
            .expect("a throughput")
    };
    // The antagonist runs from 5 to 20 ms.
    assert!(throughput("O", 4) > 5.5 && throughput("O", 29) > 5.5);
    assert!(throughput("O", 18) < 0.7 * throughput("O", 4), "{points}");
    assert!(
        throughput("I+F+R", 18) > 0.95 * throughput("O", 4),
        "{points}"
    );
}

#[test]
fn experiments_on_receiving_hosts_refuse_presets_without_their_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in [
        "jet-fig1",
        "jet-fig9",
        "jet-fig10",
        "jet-fig11",
        "jet-fig13",
        "jet-load",
        "jet-mechanisms",
        "share-pace-pool",
        "mailbox-control-host",
    ] {
        let refused = files(name, "sim:cx5-100g", dir.path());
        let why = refused.err().map(|why| why.to_string());
        assert!(
            why.as_ref()
                .is_some_and(|why| why.contains("does not model the memory of hosts")),
            "{name}: {why:?}"
        );
    }
}

#[test]
fn the_loss_of_long_writes_needs_the_limit_of_posted_writes() {
    let device = "sim:cx4lx-2x25g".parse().expect("a device's name");
    let stop = AtomicBool::new(false);
    let rate = |settings: &[&str]| {
        let settings = settings.iter().map(|setting| setting.parse());
        let settings: Vec<_> = settings.collect::<Result<_, _>>().expect("constants");
        let simulated = SimulatedMachine::on(&device, &settings, None).expect("a simulated device");
        let testbed = simulated.expect("a preset");
        let times = (Duration::from_millis(20), Duration::from_millis(5));
        let sample = write_all(&testbed.testbed(&stop), 1024, times).expect("measured");
        sample.expect("bytes arrived").get(THROUGHPUT)
    };
    let contended = rate(&["host.antagonist=60"]);
    let unlimited = rate(&["host.antagonist=60", "host.posted_lines=0"]);
    assert!(
        unlimited > 1.5 * contended,
        "{unlimited} and {contended} GB/s"
    );
}

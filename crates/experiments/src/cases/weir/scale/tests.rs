use super::*;
use crate::cases::rb2::tests::assert_skipped;
use crate::cases::weir::point::{Misses, PAIRS};

const ALL: [Scale; 3] = [Scale::FIG7, Scale::FIG8, Scale::FIG9];

#[test]
fn what_was_not_measured_is_skipped_key_by_key() {
    for scale in ALL {
        let mut outcome = Outcome::default();
        scale.record(&mut outcome, &[]);
        assert_skipped(scale.about, &outcome);
    }
}

/// Of payload, and as many misses of each kind.
fn point(queue_pairs: usize, gbit_per_s: f64, misses: f64) -> Point {
    Point {
        queue_pairs,
        gbit_per_s,
        misses: Some(Misses {
            icm: misses,
            mtt: misses,
            mpt: misses,
            wqe: misses,
        }),
    }
}

/// As the paper has it, about.
fn as_said() -> Vec<(Arm, Point)> {
    let shallow = Arm::Plain(16);
    vec![
        (Arm::PLAIN, point(8, 86.0, 0.0)),
        (shallow, point(8, 50.0, 0.0)),
        (Arm::Paced, point(8, 86.0, 0.0)),
        (Arm::PLAIN, point(1024, 60.0, 0.5)),
        (shallow, point(1024, 86.0, 0.0)),
        (Arm::Paced, point(1024, 86.0, 0.0)),
        (Arm::PLAIN, point(MOST, 43.0, 0.75)),
        (shallow, point(MOST, 45.0, 0.5)),
        (Arm::Paced, point(MOST, 86.0, 0.125)),
    ]
}

fn recorded(scale: &Scale, points: &[(Arm, Point)]) -> Outcome {
    let mut outcome = Outcome::default();
    scale.record(&mut outcome, points);
    assert!(outcome.undeclared(KEYS).is_empty());
    outcome
}

#[test]
fn keys_are_of_the_most_queue_pairs_as_the_port_counts() {
    let outcome = recorded(&Scale::FIG7, &as_said());
    let found = |key: &str| outcome.ratios()[key].median;
    let counted = 86.0 * 574.0 / 512.0;
    assert!((found("paced_gbps_16k_qps") - counted).abs() < 1e-9);
    assert!((found("plain_gbps_16k_qps") - counted / 2.0).abs() < 1e-9);
    assert_eq!(found("paced_over_plain_16k_qps"), 2.0);
    assert_eq!(found("icm_miss_plain_over_paced_16k"), 6.0);
    let files = outcome.figures.iter().map(|figure| figure.file.as_str());
    let files: Vec<_> = files.collect();
    let drawn = ["throughput", "icm", "mtt", "mpt", "wqe"].map(|name| format!("{name}.svg"));
    assert_eq!(files, drawn);
    let text = outcome.points.to_csv();
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("paced,16384,86,96.4"), "{last}");
    assert_eq!(outcome.grids[0].rows.len(), 3);
}

#[test]
fn misses_that_are_none_with_pacing_have_no_ratio_but_a_word() {
    let mut points = as_said();
    points.pop();
    points.push((Arm::Paced, point(MOST, 86.0, 0.0)));
    let outcome = recorded(&Scale::FIG8, &points);
    let why = &outcome.skipped()["mtt_miss_plain_over_paced_16k"];
    assert!(why.contains("none is missed with pacing, 0.75"), "{why}");
    // Nor has what was measured nowhere.
    points.retain(|(arm, _)| *arm != Arm::Paced);
    let outcome = recorded(&Scale::FIG8, &points);
    let why = &outcome.skipped()["mtt_miss_plain_over_paced_16k"];
    assert_eq!(why, "nothing was measured");
    assert!(outcome.ratios().contains_key("plain_gbps_16k_qps"));
}

#[test]
fn every_statement_is_judged_by_itself() {
    let said = |scale: &Scale, points: &[(Arm, Point)]| {
        let outcome = recorded(scale, points);
        let rows = outcome.grids[1].rows.iter();
        rows.map(|row| row[2].clone()).collect::<Vec<_>>()
    };
    assert_eq!(said(&Scale::FIG7, &as_said()), ["yes"; 7]);
    assert_eq!(said(&Scale::FIG9, &as_said()), ["yes"; 6]);
    let with = |at: usize, arm, point| {
        let mut points = as_said();
        points[at] = (arm, point);
        points
    };
    let slow = with(2, Arm::Paced, point(8, 80.0, 0.0));
    assert_eq!(said(&Scale::FIG7, &slow)[0], "no");
    let falling = with(8, Arm::Paced, point(MOST, 70.0, 0.125));
    assert_eq!(said(&Scale::FIG7, &falling)[1], "no");
    let steady = with(6, Arm::PLAIN, point(MOST, 86.0, 0.75));
    assert_eq!(said(&Scale::FIG7, &steady)[2], "no");
    assert_eq!(said(&Scale::FIG8, &steady)[1], "no");
    let missing = with(8, Arm::Paced, point(MOST, 86.0, 0.5));
    assert_eq!(said(&Scale::FIG8, &missing)[3..], ["no"; 3]);
    let rising = with(7, Arm::Plain(16), point(MOST, 86.0, 0.5));
    assert_eq!(said(&Scale::FIG8, &rising)[2], "no");
}

/// With caches so small that few queue pairs are too many.
fn simulated(seed: u64, arm: Arm) -> Vec<Point> {
    use crate::simulated::Simulated;
    let device = format!("sim:cx6-100g,seed={seed}").parse().unwrap();
    let set = [
        "nic.icm=32",
        "nic.mtt=16",
        "nic.mpt=16",
        "nic.wqe_cache=128",
    ];
    let set = set.map(|setting| setting.parse().unwrap());
    let machines = Simulated::on(&device, &set, None).unwrap().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let place = machines.place(&stop);
    let probed = arm::probe(&place, 100.0).unwrap();
    let times = (Duration::from_micros(500), Duration::from_micros(300));
    let load = Load {
        work_ns: 100,
        ..Load::of(Verb::Send, 512)
    };
    let measured = [PAIRS, 16 * PAIRS].map(|queue_pairs| {
        let point = sample(&place, arm, load, probed, queue_pairs, times);
        point.unwrap().expect("a rate")
    });
    measured.to_vec()
}

#[test]
fn fewer_requests_outstanding_need_less_of_the_chip() {
    let (deep, shallow) = (simulated(1, Arm::PLAIN), simulated(1, Arm::Plain(16)));
    assert_eq!(shallow, simulated(1, Arm::Plain(16)));
    let wqe = |points: &[Point]| points[0].misses.unwrap().wqe;
    assert!(wqe(&shallow) < wqe(&deep), "{shallow:?} {deep:?}");
}

#[test]
fn what_is_paced_misses_fewer_requests_and_the_same_seed_has_the_same() {
    let paced = simulated(1, Arm::Paced);
    assert_eq!(paced, simulated(1, Arm::Paced));
    let plain = simulated(1, Arm::PLAIN);
    let wqe = |points: &[Point]| points[1].misses.unwrap().wqe;
    assert!(wqe(&paced) < wqe(&plain), "{paced:?} {plain:?}");
    assert!(
        paced[1].gbit_per_s > plain[1].gbit_per_s,
        "{paced:?} {plain:?}"
    );
}

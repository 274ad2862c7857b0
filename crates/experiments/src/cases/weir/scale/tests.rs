use super::*;
use crate::cases::weir::arms::{PAIRS, WQE};
use crate::simulated_machine::SimulatedMachine;

const SHALLOW: Arm = Arm::Plain(16);

/// Makes the points of an arm from queue pairs, Gbit/s and the misses of each kind.
fn measured<const N: usize>(points: [(Arm, u64, f64, f64); N]) -> Measured<Arm> {
    let points = points.map(|(arm, count, gbps, misses)| {
        let misses = MISSES.map(|(kind, _)| (kind, misses));
        let sample = Sample::of([(POLLED, gbps), (SENT, gbps)].into_iter().chain(misses));
        (Point::at(arm, count), vec![Some(sample)])
    });
    Measured::new(points, Default::default())
}

#[test]
fn a_drop_and_misses_begin_where_they_do() {
    let plain = |count, gbps, misses| (Arm::PLAIN, count, gbps, misses);
    let [first, second, third, fourth] = [
        plain(64, 90.0, 0.0),
        plain(128, 96.0, 0.004),
        plain(256, 95.0, 0.2),
        plain(512, 70.0, 0.0),
    ];
    let both = measured([first, second, third, fourth]);
    for (case, measured, drop, held) in [
        ("both", both, Some(512.0), Some(128.0)),
        (
            "no drop",
            measured([first, second, third]),
            None,
            Some(128.0),
        ),
        (
            "misses at once",
            measured([third, fourth]),
            Some(512.0),
            None,
        ),
        ("nothing", Measured::default(), None, None),
    ] {
        let mut outcome = Outcome::default();
        record_fig2(&measured, &mut outcome);
        let found = |key| outcome.ratios().get(key).map(|spread| spread.median);
        assert_eq!(found("drop_begins_at_queue_pairs"), drop, "{case}");
        assert_eq!(found("no_icm_misses_up_to_queue_pairs"), held, "{case}");
    }
}

#[test]
fn metrics_are_of_the_most_queue_pairs_and_misses_that_are_none_have_no_ratio_but_a_reason() {
    for (paced_misses, ratio, why) in [(0.075, Some(10.0), ""), (0.0, None, "with pacing, 0.750")] {
        let measured = measured([
            (Arm::PLAIN, 8, 86.0, 0.0),
            (Arm::PLAIN, MOST, 43.0, 0.75),
            (SHALLOW, MOST, 45.0, 0.5),
            (Arm::Paced, MOST, 86.0, paced_misses),
        ]);
        let mut outcome = Outcome::default();
        skip_without_misses(&measured, &mut outcome);
        by_size(512).render(&measured, &mut outcome);
        let found = |key| outcome.ratios().get(key).map(|spread| spread.median);
        let port = 43.0 * 574.0 / 512.0;
        assert_eq!(found("plain_gbps_16k_qps"), Some(port));
        assert_eq!(found("paced_over_plain_16k_qps"), Some(2.0));
        let key = "mtt_miss_plain_over_paced_16k";
        assert_eq!(found(key), ratio);
        let said = outcome.skipped().get(key).map_or("", String::as_str);
        assert!(said.contains(why), "{said}");
    }
}

/// Measures an arm with the fewest queue pairs and with sixteen times as many, which overflow the caches of
/// the machine.
fn simulated(arm: Arm, seed: u64) -> [Sample; 2] {
    let device = format!("sim:cx6-100g,seed={seed}").parse().unwrap();
    let set = [
        "nic.icm=32",
        "nic.mtt=16",
        "nic.mpt=16",
        "nic.wqe_cache=128",
    ];
    let set = set.map(|setting| setting.parse().unwrap());
    let machines = SimulatedMachine::on(&device, &set, None).unwrap().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let place = machines.testbed(&stop);
    let base_delay = arms::probe(&place, 100.0).unwrap();
    let times = (Duration::from_micros(500), Duration::from_micros(300));
    let load = VerbLoad {
        work_ns: 100,
        ..VerbLoad::of(Verb::Send, 512)
    };
    [PAIRS, 16 * PAIRS].map(|count| {
        let point = Point::at(arm, count as u64);
        let sample = sample(&place, &point, load, base_delay, times);
        sample.unwrap().expect("a rate")
    })
}

#[test]
fn misses_come_with_queue_pairs_fewer_with_less_outstanding_or_paced_and_the_same_seed_has_the_same()
 {
    let [plain, shallow, paced] = [Arm::PLAIN, SHALLOW, Arm::Paced].map(|arm| simulated(arm, 1));
    for (arm, samples) in [
        (Arm::PLAIN, &plain),
        (SHALLOW, &shallow),
        (Arm::Paced, &paced),
    ] {
        assert_eq!(*samples, simulated(arm, 1), "{arm}");
    }
    // The seed decides which context a miss replaces.
    assert_ne!(plain, simulated(Arm::PLAIN, 2));
    let ([few, many], [few_shallow, _], [_, many_paced]) = (&plain, &shallow, &paced);
    for kind in [ICM, MTT, WQE] {
        assert!(many.get(kind) > few.get(kind), "{kind}: {plain:?}");
    }
    assert!(many.get(SENT) < few.get(SENT), "{plain:?}");
    assert!(few_shallow.get(WQE) < few.get(WQE), "{shallow:?} {plain:?}");
    assert!(many_paced.get(WQE) < many.get(WQE), "{paced:?} {plain:?}");
    assert!(many_paced.get(SENT) > many.get(SENT), "{paced:?} {plain:?}");
}

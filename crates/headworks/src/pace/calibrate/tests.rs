use super::*;

fn named(text: &str) -> DeviceName {
    text.parse().unwrap()
}

#[test]
fn peers_are_other_hosts_of_the_same_network() {
    for (device, peer) in [
        ("soft", "soft:h2"),
        ("soft:h2,hostile,seed=3", "soft:h1,hostile,seed=3"),
        ("soft:a,pace", "soft:h2,pace"),
        ("sim", "sim,host=h2"),
        ("sim:cx6-100g,host=h2,seed=9", "sim:cx6-100g,host=h1,seed=9"),
        ("ibv:rxe0,port=1", "ibv:rxe0,port=1"),
    ] {
        assert_eq!(default_peer(&named(device)).to_string(), peer);
    }
}

#[test]
fn medians_and_spreads_are_of_the_samples() {
    let samples =
        |range: std::ops::RangeInclusive<u64>| range.rev().map(Duration::from_nanos).collect();
    let found = ClassDelay::of(Class::Read, samples(1..=100)).unwrap();
    let nanos = [found.p10, found.median, found.p90].map(Duration::nanos);
    assert_eq!((nanos, found.samples), ([11, 51, 91], 100));
    assert!(!found.is_idle());
    assert_eq!(found.constant(), ("base_delay_read_ns", 51));
    assert!(
        ClassDelay::of(Class::Read, samples(100..=200))
            .unwrap()
            .is_idle()
    );
    assert_eq!(ClassDelay::of(Class::Write, Vec::new()), None);
}

#[test]
fn a_simulated_devices_delays_are_options_that_pace() {
    let device = named("sim:cx5-100g,seed=77");
    let measure = |rounds| {
        let mut asked = Vec::new();
        let found = calibrate(&device, &default_peer(&device), rounds, &mut |done, all| {
            asked.push((done, all));
            true
        });
        let last = *asked.last().unwrap();
        assert!(last.0 < last.1 && asked.is_sorted(), "{last:?}");
        found.unwrap()
    };
    let found = measure(300);
    assert!(found.is_simulated && found.is_stamped && found.is_idle());
    let classes: Vec<_> = found.measured.iter().map(|each| each.class).collect();
    assert_eq!(classes, Class::ALL);
    // Requests run one after another on an idle network, so they differ only by the comparison of clocks.
    for each in &found.measured {
        assert_eq!(each.samples, 300, "{each:?}");
        assert!(each.median.nanos() > 100, "{each:?}");
    }
    // A datagram waits for no acknowledgement.
    assert!(
        found.measured[3].median < found.measured[0].median,
        "{found:?}"
    );
    let paced = format!("{device},{}", found.options());
    let (_, config) = split(&named(&paced)).unwrap();
    let config = config.unwrap();
    for each in &found.measured {
        assert_eq!(config.base_delay(each.class), Some(each.median));
    }
}

#[test]
fn calibration_can_be_interrupted_and_reports_open_errors() {
    let device = named("sim:cx6-100g,seed=78");
    let ended = calibrate(&device, &default_peer(&device), 10, &mut |done, _| done < 5);
    assert!(matches!(ended, Err(CalibrateError::Interrupted)));
    let wrong = calibrate(&named("sim:no-such"), &device, 10, &mut |_, _| true);
    assert!(matches!(wrong, Err(CalibrateError::Open(_))));
    // A device on another network cannot be reached.
    let elsewhere = calibrate(&device, &named("sim:cx5-100g"), 10, &mut |_, _| true);
    assert!(matches!(elsewhere, Err(CalibrateError::Device { .. })));
}

#[test]
fn how_many_are_measured_is_bounded() {
    let device = named("sim:cx6-100g,seed=79");
    for rounds in [0, ROUNDS_MAX + 1, u32::MAX] {
        let refused = calibrate(&device, &default_peer(&device), rounds, &mut |_, _| true);
        let said = refused.unwrap_err().to_string();
        let wanted = format!("{rounds} requests of each class: 1 to 1000000 are allowed");
        assert_eq!(said, wanted);
    }
    let ended = calibrate(&device, &default_peer(&device), ROUNDS_MAX, &mut |_, _| {
        false
    });
    assert!(matches!(ended, Err(CalibrateError::Interrupted)));
    let found = calibrate(&device, &default_peer(&device), 1, &mut |_, _| true).unwrap();
    assert_eq!(found.measured.len(), Class::ALL.len());
}

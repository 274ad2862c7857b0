use super::receiver::Watermarks;
use super::*;

fn machine(settings: &[(&str, &str)]) -> Machine {
    let mut preset = Preset::named("cx4lx-2x25g").expect("a preset");
    for (key, value) in settings {
        preset.set(key, value).expect("legal");
    }
    Machine { preset, seed: 1 }
}

const PFC_ALONE: [(&str, &str); 1] = [("dcqcn.on", "0")];
const TIMES: (Duration, Duration) = (Duration::from_millis(6), Duration::from_millis(4));

fn incast(senders: usize, control: Control) -> Incast {
    Incast {
        senders,
        is_contended: true,
        antagonist: 60.0,
        control,
    }
}

fn measured(incast: &Incast) -> IncastResult {
    measured_for(incast, TIMES)
}

fn measured_for(incast: &Incast, times: (Duration, Duration)) -> IncastResult {
    let found = incast.measure(&machine(&PFC_ALONE), times, &AtomicBool::new(false));
    found.unwrap_or_else(|why| panic!("{why}"))
}

/// Signals that the contended host gives in the first milliseconds.
fn first_signals(incast: &Incast) -> u64 {
    let times = (Duration::from_micros(100), Duration::from_millis(4));
    measured_for(incast, times).signals
}

#[test]
fn victims_get_their_demand_where_nothing_is_contended() {
    let alone = Incast {
        is_contended: false,
        ..incast(5, Control::default())
    };
    let found = measured(&alone);
    let demand = 5.0 * VICTIM_SHARE * 50e9 / 8.0;
    let got = found.victim_goodput() / demand;
    assert!((0.95..1.05).contains(&got), "{found:?}");
    assert_eq!((found.goodput(), found.messages.count), (0.0, 0));
    assert_eq!((found.dropped, found.held), (0, 0.0));
}

#[test]
fn an_antagonist_on_the_contended_host_stalls_that_host_and_pauses_links() {
    let plain = incast(8, Control::default());
    let quiet = measured(&Incast {
        antagonist: 0.0,
        ..plain.clone()
    });
    let found = measured(&plain);
    assert!(quiet.goodput() > 5.5e9, "{quiet:?}");
    assert!(found.goodput() < 0.7 * quiet.goodput(), "{found:?}");
    assert!(found.paused > 0.2 && found.held > 0.1, "{found:?}");
    assert_eq!((found.dropped, found.windows.len()), (0, 4));
    assert_eq!(found, measured(&plain), "a run repeats");
}

#[test]
fn signals_reach_the_senders_and_limit_the_link_alone() {
    let per_link = Control {
        cuts_link: true,
        ..Control::default()
    };
    let (plain, limited) = (incast(8, Control::default()), incast(8, per_link));
    assert_eq!(first_signals(&plain), 0);
    assert!(first_signals(&limited) > 0);
    let (plain, limited) = (measured(&plain), measured(&limited));
    assert!(limited.held < plain.held, "{limited:?}");
    assert!(limited.goodput() < plain.goodput(), "{limited:?}");
    assert!(limited.victim_goodput() >= plain.victim_goodput());
}

#[test]
fn signals_lower_the_rate_of_a_paced_rnic() {
    let per_rnic = Control {
        device_options: ",pace,pace_init_alpha=1000000,pace_init_beta=1000000".to_owned(),
        cuts_rnic: true,
        cuts_link: false,
    };
    let limited = incast(4, per_rnic);
    assert!(first_signals(&limited) > 0);
    let (plain, limited) = (measured(&incast(4, Control::default())), measured(&limited));
    assert!(limited.held < plain.held, "{limited:?}");
    assert!(
        limited.goodput() < 0.7 * plain.goodput(),
        "{limited:?} {plain:?}"
    );
    assert!(
        limited.victim_goodput() < 0.9 * plain.victim_goodput(),
        "the victims' rate is lowered too"
    );
}

#[test]
fn watermarks_are_below_the_lengths_at_which_links_are_paused_or_senders_notified() {
    let of = |name: &str| Watermarks::of(&Preset::named(name).expect("a preset"));
    let (rnic, switch) = (122 << 10, 512 << 10);
    assert_eq!(of("cx4lx-2x25g"), Watermarks { rnic, switch });
    let (rnic, switch) = (128 << 10, 800 << 10);
    assert_eq!(of("cx6dx-2x100g"), Watermarks { rnic, switch });
}

#[test]
fn variation_is_the_standard_deviation_over_the_mean() {
    assert_eq!(variation(&[2.0, 2.0, 2.0]), 0.0);
    assert_eq!(variation(&[1.0, 3.0]), 0.5);
    assert!(variation(&[]).is_nan() && variation(&[0.0]).is_nan());
}

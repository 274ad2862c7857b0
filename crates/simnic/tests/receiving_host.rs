//! The memory of a receiving host, and congestion: WRITEs into a host whose memory an antagonist uses, and
//! processors that read what arrived.

use std::sync::{Arc, Mutex};

use headworks_baselines::{WriteWindow, Writes};
use headworks_runtime::{
    Actor, ActorContext, ActorError, ActorRegistry, ActorSpec, Scenario, Step, World,
};
use headworks_simnic::faults::{Rules, rules};
use headworks_simnic::{HostCounters, Preset, SimProvider, SimWorld};
use headworks_verbs::{Access, AllocRequest, Buffer, Device, Duration, Instant, Provider, Region};

/// Rate in GB/s of WRITEs of `len` bytes over 32 queue pairs, and what the receiving host counted.
fn write(preset: &str, len: usize, settings: &[(&str, &str)]) -> (f64, HostCounters) {
    let mut machine = Preset::named(preset).expect("a preset");
    for (key, value) in settings {
        machine.set(key, value).expect("legal");
    }
    let network = SimProvider::of(machine);
    let open = |host: &str| {
        let name = format!("sim:{preset},host={host},seed=1");
        network.open(&name.parse().expect("a name")).expect("opens")
    };
    let window = WriteWindow {
        queue_pairs: 32,
        depth: 1,
        bytes: len,
    };
    let mut writes = Writes::connect([open("a"), open("b")], window).expect("connect");
    let rounds = ((8 << 20) / len as u64).clamp(3, 30) * 32;
    writes.run(rounds).expect("are done");
    let counters = || {
        let all = network.host_counters().into_iter();
        all.filter(|(host, _)| host == "b")
            .map(|(_, found)| found)
            .next()
    };
    let (before, start) = (counters(), network.now());
    writes.run(rounds).expect("are done");
    let nanos = network.now().since(start).nanos();
    let counted = counters()
        .unwrap_or_default()
        .since(&before.unwrap_or_default());
    ((rounds * len as u64) as f64 / nanos as f64, counted)
}

const SHORT: usize = 64 << 10;
const LONG: usize = 1 << 20;

#[test]
fn with_an_antagonist_long_messages_are_slower_and_pause_the_link_on_cx4lx() {
    let antagonist = [("host.antagonist", "60")];
    let (short, quiet) = write("cx4lx-2x25g", SHORT, &antagonist);
    let (long, counted) = write("cx4lx-2x25g", LONG, &antagonist);
    assert!(
        (0.5..0.65).contains(&(long / short)),
        "{long} of {short} GB/s"
    );
    assert!(quiet.paused * 20 < counted.paused, "{quiet:?} {counted:?}");
    assert!(counted.dma_misses > 50 * counted.dma_hits, "{counted:?}");
    assert!(counted.stalled_writes > quiet.stalled_writes);
    assert_eq!(counted.dropped, 0, "the link is paused before that");
    // RNIC and antagonist share the memory.
    assert!(counted.memory_antagonist > 10 * counted.memory_rnic);
}

#[test]
fn on_cx6dx_senders_are_notified_instead() {
    let (short, quiet) = write("cx6dx-2x100g", SHORT, &[("host.antagonist", "250")]);
    let (long, counted) = write("cx6dx-2x100g", LONG, &[("host.antagonist", "250")]);
    assert!(
        (0.4..0.65).contains(&(long / short)),
        "{long} of {short} GB/s"
    );
    assert_eq!((quiet.notifications_sent, quiet.paused), (0, 0));
    assert!(
        counted.notifications_sent > 0 && counted.paused == 0,
        "{counted:?}"
    );
}

#[test]
fn without_an_antagonist_memory_is_fast_enough() {
    for (preset, least) in [("cx4lx-2x25g", 5.5), ("cx6dx-2x100g", 23.0)] {
        for len in [SHORT, LONG] {
            let (rate, counted) = write(preset, len, &[]);
            assert!(rate > least, "{preset}, {len}: {rate} GB/s");
            let quiet = (counted.paused, counted.dropped, counted.notifications_sent);
            assert_eq!(quiet, (0, 0, 0), "{preset}, {len}");
        }
    }
}

#[test]
fn isolated_ways_keep_what_fits_into_them() {
    let isolated = [("host.antagonist", "60"), ("host.isolated", "1")];
    let (_, counted) = write("cx4lx-2x25g", SHORT, &isolated);
    assert_eq!(counted.dma_misses, 0, "{counted:?}");
    let (_, counted) = write("cx4lx-2x25g", SHORT, &isolated[..1]);
    assert!(counted.dma_misses > counted.dma_hits / 4, "{counted:?}");
}

#[test]
fn a_run_repeats_to_the_byte() {
    let antagonist = [("host.antagonist", "250")];
    let run = || write("cx6dx-2x100g", LONG, &antagonist);
    assert_eq!(run(), run());
}

#[test]
fn presets_without_a_cache_have_no_such_counters() {
    let (rate, counted) = write("cx6-100g", LONG, &[]);
    assert!(rate > 12.0, "{rate}");
    assert_eq!(counted, HostCounters::default());
}

/// Reads 1 MiB of registered memory twice, and notes how long that takes, in nanoseconds.
struct TwoReads {
    buffer: Arc<dyn Buffer>,
    _region: Region,
    _device: Arc<dyn Device>,
    took: Arc<Mutex<Vec<u64>>>,
}

impl Actor for TwoReads {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        for _ in 0..2 {
            let begin = cx.now();
            cx.reads(self.buffer.as_ptr(), self.buffer.len());
            let mut took = self.took.lock().expect("nobody panicked");
            took.push(cx.now().since(begin).nanos());
        }
        // Memory that is not registered is always cached.
        let (begin, other) = (cx.now(), [0u8; 4096]);
        cx.writes(other.as_ptr(), other.len());
        assert_eq!(cx.now(), begin);
        Ok(Step::Done)
    }
}

/// Time in nanoseconds of two reads of 1 MiB on the host `reads`, in the world that `change` makes of a plain one.
fn two_reads(preset: &str, change: impl FnOnce(SimWorld) -> SimWorld) -> Vec<u64> {
    let took = Arc::new(Mutex::default());
    let own = took.clone();
    let mut actors = ActorRegistry::new();
    actors.register("reads", move |part| {
        let device = part.open_device()?;
        let buffer = device.alloc(&AllocRequest::of(1 << 20))?;
        let region = device.alloc_pd()?.register(&buffer, Access::ALL)?;
        Ok(Box::new(TwoReads {
            buffer,
            _region: region,
            _device: device,
            took: own.clone(),
        }))
    });
    let world = SimWorld::new(actors, Preset::named(preset).expect("a preset"), 1);
    let world = change(world);
    let device = format!("sim:{preset}").parse().expect("a name");
    let play = Scenario::of(vec![ActorSpec::new("reads", "reads").on(device)]);
    let mut running = world.start(&play).expect("starts");
    while running.poll(Duration::from_millis(1)).is_none() {}
    let monitor = world.usage_monitor();
    let backlog = monitor.backlog("reads").map(|backlog| backlog.rnic_bytes);
    assert_eq!(backlog, (preset == "cx6dx-2x100g").then_some(0));
    assert!(monitor.backlog("elsewhere").is_none());
    took.lock().expect("nobody panicked").clone()
}

#[test]
fn a_processor_waits_for_memory_that_is_not_cached() {
    for (preset, cold) in [("cx6dx-2x100g", 122_880), ("cx6-100g", 0)] {
        // 16,384 lines of 90 ns, 12 at a time.
        assert_eq!(two_reads(preset, |world| world), [cold, 0], "{preset}");
    }
}

#[test]
fn an_antagonist_of_one_host_loads_the_memory_of_that_host_alone() {
    let with = |host: &str| {
        let took = two_reads("cx6dx-2x100g", |world| world.with_antagonist(host, 250.0));
        took[0]
    };
    assert_eq!(with("another"), 122_880);
    // Lines from saturated memory take three times as long.
    assert_eq!(with("reads"), 3 * 122_880);
}

#[test]
fn lost_notifications_and_pauses_slow_a_link_down_but_break_nothing() {
    let from = Instant::ZERO + Duration::from_micros(100);
    let all = Rules::new(1)
        .with(rules::lose_notifications(2))
        .with(rules::pause_link("b", from, Duration::from_micros(50)));
    let mut machine = Preset::named("cx6dx-2x100g").expect("a preset");
    machine.set("host.antagonist", "250").expect("legal");
    let network = SimProvider::of(machine).with_rules(all);
    let open = |host: &str| {
        let name = format!("sim:cx6dx-2x100g,host={host},seed=1");
        network.open(&name.parse().expect("a name")).expect("opens")
    };
    let window = WriteWindow {
        queue_pairs: 16,
        depth: 1,
        bytes: LONG,
    };
    let mut writes = Writes::connect([open("a"), open("b")], window).expect("connect");
    writes.run(100).expect("are done");
    let counters = network.host_counters();
    let sum = |of: fn(&HostCounters) -> u64| counters.iter().map(|(_, one)| of(one)).sum::<u64>();
    let (sent, received) = (
        sum(|one| one.notifications_sent),
        sum(|one| one.notifications_received),
    );
    assert!(
        received > 0 && received < sent * 3 / 4,
        "{received} of {sent}"
    );
}

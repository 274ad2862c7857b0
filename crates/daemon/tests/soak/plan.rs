//! The plan that a seed generates: hosts, applications, their traffic, and the faults.

use headworks_daemon::limits::DaemonLimits;
use headworks_simnic::Preset;
use headworks_simnic::faults::{Random, Rules, rules};
use headworks_verbs::{Duration, Instant};

use super::application::{Flow, Script};
use super::host::{HostPlan, address, role};

/// Hosts and faults of one run.
pub(crate) struct Plan {
    pub(crate) hosts: Vec<HostPlan>,
    pub(crate) faults: Rules,
    /// The machines.
    pub(crate) preset: Preset,
    /// Whether connections may break.
    pub(crate) breaks: bool,
    /// Number of connections that applications try to make.
    pub(crate) connections: usize,
    /// Whether a fault takes receives away, so that messages may find none.
    pub(crate) storms: bool,
    pub(crate) words: String,
    /// Number of workers of each daemon.
    pub(crate) workers: u16,
}

fn at(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}

fn config(random: &mut Random, workers: u16) -> DaemonLimits {
    let mut of = |values: &[u32]| random.one_of(values);
    let floor = of(&[4, 5, 8]);
    DaemonLimits {
        frame_bytes: of(&[256, 1024, 8192]),
        receives: of(&[32, 64, 256]),
        receives_max: 4096,
        qp_group_floor: floor,
        qp_group_share: of(&[floor, 16, 64]),
        frame_depth: of(&[8, 16, 64]),
        bulk_depth: of(&[8, 64]),
        bulk_min: of(&[64, 200, 4096, 16 << 10]),
        bulk_max: of(&[4096, 16 << 10, 64 << 10, 256 << 10]),
        bulk_each: of(&[1, 3, 8]),
        pool_bytes: of(&[256 << 10, 1 << 20, 8 << 20]).into(),
        pool_budget: 12 << 20,
        pool_quota: of(&[5, 50, 100]),
        pool_reads: of(&[1, 4, 32]),
        pool_straggler_time: of(&[1, 50]),
        quantum: of(&[512, 16 << 10]),
        ring_bytes: of(&[512, 4096]),
        ingress_bytes: of(&[512, 1024, 4096]),
        ingress_max: of(&[4096, 64 << 10]),
        ring_max: of(&[4096, 64 << 10, 1 << 20]),
        slab_bytes: of(&[64 << 10, 1 << 20]),
        workers,
        poison: true,
        ..DaemonLimits::default()
    }
}

fn flow(random: &mut Random) -> Flow {
    let mut bytes = |most: u64| match random.within(0, 3) {
        0 => random.within(0, 2) * 64,
        1 => random.within(0, 5000),
        _ => random.within(0, most),
    };
    let (there, back) = (bytes(400_000), bytes(400_000));
    let short = 1 + there.max(back) as usize / 500;
    Flow {
        there,
        back,
        chunk: random.one_of(&[short, 100, 3000, 50_000]),
        lends: random.once_in(3),
    }
}

/// Constants that make machines drop packets.
const DROPPING: [&str; 2] = ["nic.rx_buffer", "switch.buffer"];

/// Returns machines that model the memory of hosts and congestion, for one seed in three, and what was drawn for them.
/// Memory and queues are small, so that packets are dropped, links are paused, or senders are notified. Adds faults of
/// memory and congestion. The random numbers come from a stream of their own.
fn memory(seed: u64, hosts: usize, faults: &mut Rules) -> Option<(Preset, String)> {
    let random = &mut Random::of(seed, &[1]);
    if !random.once_in(3) {
        return None;
    }
    let name = random.one_of(&["cx4lx-2x25g", "cx6dx-2x100g"]);
    let (mut preset, mut words) = (Preset::named(name).expect("a preset"), name.to_owned());
    let mut set = |key: &str, value: &str| {
        preset.set(key, value).expect("legal");
        words += &format!(", {key}={value}");
    };
    if random.once_in(2) {
        set("host.cache", "256");
        set("host.dma_cache", "32");
    }
    if random.once_in(2) {
        set("host.memory", random.one_of(&["1", "10"]));
    }
    if random.once_in(4) {
        set("host.antagonist", random.one_of(&["1", "250"]));
    }
    // A receiver with so few posted lines takes bytes more slowly than the link carries them.
    if random.once_in(2) {
        set("host.posted_lines", random.one_of(&["1", "4"]));
        set("host.posted_time", random.one_of(&["300", "1000"]));
    }
    match random.below(4) {
        0 => {
            set("nic.rx_buffer", random.one_of(&["2", "16"]));
            set("nic.rx_pause", "0");
        }
        1 => {
            set("nic.rx_pause", random.one_of(&["1", "16"]));
            set("nic.rx_resume", "0");
        }
        2 => set("nic.rx_notify", "1"),
        _ => {}
    }
    match random.below(4) {
        0 => {
            set("switch.buffer", random.one_of(&["2", "16"]));
            set("switch.pause", "0");
        }
        1 => {
            set("switch.pause", random.one_of(&["1", "16"]));
            set("switch.resume", "0");
        }
        2 => {
            set("switch.mark_from", "1");
            set("switch.mark_all", "16");
        }
        _ => {}
    }
    for _ in 0..random.below(4) {
        let host = role(random.below(hosts as u64) as usize);
        let (from, span) = (random.within(10, 2000), random.within(10, 5000));
        let rate = random.one_of(&[1, 30, 250]);
        words += &format!(", {host} has an antagonist of {rate} GB/s at {from} µs for {span} µs");
        let span = Duration::from_micros(span);
        *faults = faults
            .clone()
            .with(rules::antagonist(&host, at(from), span, rate));
    }
    if random.once_in(2) {
        let times = random.one_of(&[1, 2, 10]);
        words += &format!(", lost notifications 1/{times}");
        *faults = faults.clone().with(rules::lose_notifications(times));
    }
    for _ in 0..random.below(3) {
        let host = role(random.below(hosts as u64) as usize);
        let (from, span) = (random.within(10, 2000), random.within(10, 5000));
        words += &format!(", {host} is paused at {from} µs for {span} µs");
        *faults = faults.clone().with(rules::pause_link(
            &host,
            at(from),
            Duration::from_micros(span),
        ));
    }
    Some((preset, words))
}

impl Plan {
    pub(crate) fn of(seed: u64, workers: u16) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        let count = random.within(2, 4) as usize;
        let mut breaks = false;
        let mut words = Vec::new();
        let mut hosts: Vec<HostPlan> = (0..count as u64)
            .map(|host| {
                let config = config(random, workers);
                let mut scripts = Vec::new();
                let mut port = 1;
                for user in 1..=random.within(1, 3) as u32 {
                    for _ in 0..random.within(1, 2) {
                        let rests = random.once_in(4);
                        let rests = rests.then(|| Duration::from_micros(random.within(1, 300)));
                        scripts.push(Script {
                            user,
                            listens: Some(port),
                            rests,
                            ..Script::default()
                        });
                        port += 1;
                    }
                }
                HostPlan {
                    config,
                    scripts,
                    // The random numbers come from a stream of their own.
                    lacks_srqs: Random::of(seed, &[2, host]).once_in(3),
                }
            })
            .collect();
        let mut connections = 0;
        for from in 0..count {
            for script in 0..hosts[from].scripts.len() {
                for _ in 0..random.within(0, 4) {
                    let to = random.within(0, count as u64 - 1) as usize;
                    let port = random.within(1, hosts[to].scripts.len() as u64) as u16;
                    let to = std::net::SocketAddr::new(address(to), port);
                    let connects = &mut hosts[from].scripts[script].connects;
                    connects.push((to, flow(random)));
                    connections += 1;
                }
            }
        }
        let mut faults = Rules::new(seed);
        if random.once_in(2) {
            faults = faults.with(rules::loss(random.within(50, 2000)));
            words.push("loss");
        }
        if random.once_in(2) {
            let by = Duration::from_micros(random.within(1, 50));
            faults = faults.with(rules::reorder(random.within(10, 500), by));
            words.push("reorder");
        }
        if random.once_in(3) {
            let by = Duration::from_micros(random.within(1, 100));
            faults = faults.with(rules::jitter(random.within(10, 500), by));
            words.push("jitter");
        }
        if random.once_in(4) {
            let host = role(random.within(0, count as u64 - 1) as usize);
            let span = Duration::from_micros(random.within(10, 2000));
            faults = faults.with(rules::no_receives(&host, at(random.within(10, 500)), span));
            words.push("storm");
        }
        if random.once_in(4) {
            let host = role(random.within(0, count as u64 - 1) as usize);
            let span = Duration::from_micros(random.within(10, 5000));
            faults = faults.with(rules::stall_actors(&host, at(random.within(10, 500)), span));
            words.push("stall");
        }
        if random.once_in(4) {
            faults = faults.with(rules::place_backwards(random.within(1, 10)));
            words.push("backwards");
        }
        if random.once_in(4) {
            let host = role(random.within(0, count as u64 - 1) as usize);
            faults = faults.with(rules::kill_queue_pair_at(&host, random.within(1, 400)));
            breaks = true;
            words.push("a queue pair fails");
        }
        if random.once_in(4) {
            let host = random.within(0, count as u64 - 1) as usize;
            let script = random.within(0, hosts[host].scripts.len() as u64 - 1) as usize;
            hosts[host].scripts[script].dies = Some(at(random.within(20, 3000)));
            breaks = true;
            words.push("an application dies");
        }
        if random.once_in(5) {
            let host = random.within(0, count as u64 - 1) as usize;
            let script = random.within(0, hosts[host].scripts.len() as u64 - 1) as usize;
            hosts[host].scripts[script].gives_up = Some(random.within(0, 100_000));
            breaks = true;
            words.push("an application gives up");
        }
        let storms = words.contains(&"storm");
        if hosts.iter().any(|host| host.lacks_srqs) {
            words.push("a host has no shared receive queues");
        }
        let mut words = words.join(", ");
        let preset = match memory(seed, count, &mut faults) {
            Some((preset, memory)) => {
                // A full buffer drops what several senders send together, whoever sends it. So one of them may lose
                // eight packets in a row and give up.
                breaks |= DROPPING.iter().any(|key| memory.contains(key));
                words = format!("{words}; {memory}");
                preset
            }
            None => Preset::named("cx5-100g").expect("a preset"),
        };
        Self {
            hosts,
            faults,
            preset,
            breaks,
            connections,
            storms,
            words,
            workers,
        }
    }
}

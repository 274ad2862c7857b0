//! The control of [`super::mailbox_control`] on a receiving host whose memory is contended: does the
//! ranking of mailboxes and shared receives hold if mailboxes leave the cache? The responder's polls go through the
//! simulated last-level cache.

use super::*;
use crate::cases::jet::receiving_host::{memory_of, refuse_antagonist};

/// Requesters.
const BUSY: u64 = 10;
/// Idle mailboxes.
const IDLE: [u64; 5] = [0, 10, 80, 320, MOST_IDLE];
const MOST_IDLE: u64 = 1000;
/// The demand of the antagonist, in percent of the memory's bandwidth.
const ANTAGONISTS: [u64; 2] = [0, 100];
/// Bytes of a response.
const SIZE: u64 = 64;
/// Share of its turns in which a requester waits 8 µs, so that all designs can serve the load, in percent.
const PARTLY_IDLE: u32 = 50;
/// Mailboxes with the flag behind the message, with dense flags, and receives of an SRQ. All responses are WRITEs, and
/// all flags of them second WRITEs, so that only the requests differ.
const PLAIN: Design = WW.with_flag(MailboxFlag::SecondWrite);
const DENSE: Design = WW.with_flag(MailboxFlag::Dense);
const SHARED: Design = SW.with_flag(MailboxFlag::SecondWrite);
const COMPARED: [(Design, &str); 3] = [(PLAIN, "plain"), (DENSE, "dense"), (SHARED, "srq")];
/// The host of the responder.
const RESPONDER: &str = "responders0";

/// Lines that the responder's processor and the RNIC used and that were cached, in percent.
const POLL_HITS: Quantity = "poll hits";
const DMA_HITS: Quantity = "DMA hits";

fn point(design: Design, idle_percent: u32, idle: u64, antagonist: u64) -> Point<Arm> {
    let arm = Arm {
        idle_mailboxes: idle,
        idle_percent,
        ..Arm::of(design).size(SIZE).between(BUSY, 1)
    };
    arm.at(idle).with(antagonist)
}

fn rate(design: Design, idle: u64, antagonist: u64) -> Expr<Arm> {
    Expr::At(point(design, 0, idle, antagonist), RATE)
}

/// The experiment `mailbox-control-host`.
pub static MAILBOX_CONTROL_HOST: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Simulated,
        ..About::new(
            "mailbox-control-host",
            "Idle mailboxes on a host with contended memory, beside a shared receive queue (--device sim:cx6dx-2x100g).",
            "Ten requesters send requests to one responder, by WRITE into mailboxes with flags behind the messages or dense, \
             and by SEND into receives of a shared receive queue. The responder also polls 0 to 1,000 mailboxes that no \
             requester uses. An antagonist uses none or all of the bandwidth of the responder's memory. Rate, latency, and \
             which polls and DMA writes find their line cached: in a closed loop, and with requesters that wait in half of \
             their turns.",
        )
    },
    table: || {
        let mut t: Table<Arm> = Table::new(Vec::new());
        t.arm();
        t.cell("requesters wait [%]", |point| {
            f64::from(point.arm.idle_percent).into()
        });
        t.x("idle mailboxes").n("antagonist [%]");
        t.value("responses [1/s]", RATE);
        t.median("median [ns]", |point| Expr::At(*point, P50));
        t.median("p99 [ns]", |point| Expr::At(*point, P99));
        t.value("polls and clears that hit the cache [%]", POLL_HITS);
        t.value("DDIO hits [%]", DMA_HITS);
        for (design, name) in COMPARED {
            for idle in [0, 80, MOST_IDLE] {
                let key = format!("{name}_million_per_s_{idle}_idle");
                t.metric(key, rate(design, idle, 100) / 1e6);
            }
            let hits = Expr::At(point(design, 0, MOST_IDLE, 100), POLL_HITS);
            t.metric(format!("{name}_poll_hits_percent_{MOST_IDLE}_idle"), hits);
            let slower = rate(design, MOST_IDLE, 100) / rate(design, MOST_IDLE, 0);
            t.metric(
                format!("{name}_contended_over_quiet_{MOST_IDLE}_idle"),
                slower,
            );
        }
        expect(&mut t);
        t.note(
            "Everything is simulated. The expectations were written down before the first run. Each flag that the responder \
             polls or clears passes through the simulated last-level cache, and so do all DMA writes. A request itself is \
             read right after the RNIC wrote it, which costs no further memory time here. Completion queues are always \
             cached. Hits are of the measured time.",
        );
        let axes = (Axis::linear("idle mailboxes"), Axis::linear("[1/s]"));
        let title = "Ten requesters in a closed loop, antagonist at 100 %";
        t.chart("rate.svg", title, axes, |point| {
            let is_drawn = point.n == 100 && point.arm.idle_percent == 0;
            is_drawn.then(|| {
                let name = point.arm.design.to_string();
                (name, point.x as f64, Expr::At(*point, RATE))
            })
        });
        t
    },
    measure: |bench, t, _| {
        let memory = memory_of(bench)?.host_memory;
        refuse_antagonist(bench, MAILBOX_CONTROL_HOST.about.name)?;
        let mut points = Vec::new();
        for idle_percent in [0, PARTLY_IDLE] {
            for antagonist in ANTAGONISTS {
                for idle in IDLE {
                    for (design, _) in COMPARED {
                        points.push(point(design, idle_percent, idle, antagonist));
                    }
                }
            }
        }
        t.arms
            .extend(COMPARED.map(|(design, _)| Arm::of(design).note()));
        let sweep = Sweep::in_virtual_time("idle mailboxes", "% antagonist");
        bench.measure(points, sweep, |bench, point, _| {
            let Some((preset, seed)) = machine(bench)? else {
                return Ok(None);
            };
            let mut actors = ActorRegistry::new();
            patterns::register(&mut actors, Some(PatternPrices::of(&preset)));
            let antagonist = memory * point.n as f64 / 100.0;
            let world = SimWorld::new(actors, preset, seed).with_antagonist(RESPONDER, antagonist);
            let bed = PatternBed {
                usage_monitor: Some(world.usage_monitor()),
                world: Arc::new(world),
                ..bed(bench, point.arm.design)?
            };
            let result = patterns::run(&point.arm.task(true), &bed, bench.stop())?;
            let mut sample = Sample::from(result.latency()).with(RATE, result.per_second);
            let usage = result.measured_usage;
            let mut hosts = usage.iter().flat_map(|usage| &usage.hosts);
            let host = hosts.find(|host| host.host == RESPONDER);
            if let Some(of) = host.and_then(|host| host.receiving) {
                for (quantity, hits, misses) in [
                    (POLL_HITS, of.processor_hits, of.processor_misses),
                    (DMA_HITS, of.dma_hits, of.dma_misses),
                ] {
                    if hits + misses > 0 {
                        let share = 100.0 * hits as f64 / (hits + misses) as f64;
                        sample = sample.with(quantity, share);
                    }
                }
            }
            Ok(Some(sample))
        })
    },
};

/// Adds what was expected before the first run: the paper's ranking, on a contended host.
fn expect(t: &mut Table<Arm>) {
    t.expectations();
    let over = |design, than, idle| rate(design, idle, 100) / rate(than, idle, 100);
    t.sentence(
        "without idle mailboxes, mailboxes are faster than the SRQ",
        [
            ("plain over SRQ", over(PLAIN, SHARED, 0), Claim::Above(1.0)),
            ("dense over SRQ", over(DENSE, SHARED, 0), Claim::Above(1.0)),
        ],
    );
    t.sentence(
        "with 1,000 idle mailboxes, the SRQ is faster than plain mailboxes",
        [(
            "plain over SRQ",
            over(PLAIN, SHARED, MOST_IDLE),
            Claim::Below(1.0),
        )],
    );
    t.sentence(
        "dense flags remove that: with 1,000 idle mailboxes, dense mailboxes are faster than the SRQ",
        [("dense over SRQ", over(DENSE, SHARED, MOST_IDLE), Claim::Above(1.0))],
    );
    let hits = Expr::At(point(PLAIN, 0, MOST_IDLE, 100), POLL_HITS);
    t.sentence(
        "1,000 plain mailboxes leave the cache of a contended host",
        [("polls that hit [%]", hits, Claim::Below(90.0))],
    );
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Returns the rate of plain mailboxes with a cache of `kib` KiB, with the antagonist.
    fn rate_with_cache(kib: &str) -> f64 {
        let mut preset = Preset::named("cx6dx-2x100g").expect("a preset");
        preset.set("host.cache", kib).expect("legal");
        preset.set("host.dma_cache", "64").expect("legal");
        let mut actors = ActorRegistry::new();
        patterns::register(&mut actors, Some(PatternPrices::of(&preset)));
        let memory = preset.host_memory;
        let world = SimWorld::new(actors, preset, 1).with_antagonist(RESPONDER, memory);
        let device: headworks::verbs::DeviceName = "sim:cx6dx-2x100g".parse().expect("a device");
        let bed = PatternBed {
            world: Arc::new(world),
            devices: [device.clone(), device],
            actors_per_host: PER_SERVER,
            responder_hosts: 1,
            usage_monitor: None,
        };
        let task = point(PLAIN, 0, 320, 100).arm.task(true);
        let result = patterns::run(&task, &bed, &AtomicBool::new(false));
        result.expect("it runs").per_second
    }

    #[test]
    fn polls_of_mailboxes_that_leave_the_cache_cost_time() {
        let (large, small) = (rate_with_cache("61440"), rate_with_cache("256"));
        assert!(small < 0.95 * large, "{small} {large}");
    }
}

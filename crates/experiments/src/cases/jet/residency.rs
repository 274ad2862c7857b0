//! The gain of receive memory that stays in the processor's cache.

mod plan;
mod service;

use plan::{
    AFTER, Arm, Available, BEFORE, LAG, M1M, M256K, POOL_OP, RINGS_MIB, ROOMY_RINGS_MIB, SCANS_MIB,
    ServicePool, Setting, at, ring,
};

use service::ServiceHosts;

use crate::cases::prelude::*;
use crate::cpu_affinity::{allowed_cpus, numa_nodes};
use crate::residency::receive_memory::MemoryKind;
use crate::residency::{Copier, Cpus, Hosts, MemoryLoad, machine, pool_time, transfer};

/// The experiment `jet-residency`.
pub static RESIDENCY: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Real("it measures the caches and the memory of this machine"),
        ..About::new(
            "jet-residency",
            "What it is worth that receive memory stays in the processor's cache: rings of 1 MiB to 1 GiB and Jet's pool.",
            "Messages are copied once into receive memory, and read once some time later, a word of each cache line. The \
             receive memory is a ring that is used round robin, or the receive pool, which hands out what was released \
             last. Only cache residency is measured: there is no daemon, and both hosts are threads of one process. The \
             arms whose names begin with \"service\" go through two daemons, whose pool is as usual, or has 1 GiB that \
             is used in turn.",
        )
    },
    table,
    measure,
};

/// Gigabytes per second.
const GB: Quantity = "GB/s";
/// Gigabytes that the antagonist reads and writes per second.
const ANTAGONIST: Quantity = "antagonist";
/// Bytes between a message's arrival and its being read.
const BETWEEN: Quantity = "between";
/// Page faults in the measured time.
const FAULTS: Quantity = "faults";
/// Times that a point is measured until there is no page fault in it.
const TRIES: usize = 3;

const POOL: Setting = Setting::of(MemoryKind::Pool);
const LONGEST: Setting = Setting::of(ring(1024));

fn rate(setting: Setting, message: u64) -> Expr<Arm> {
    Expr::At(at(setting, message, LAG), GB)
}

fn notes() -> Vec<ArmNote> {
    [
        (
            "pool",
            "the receive pool (headworks-rxpool) with its default budget of 8 MiB; READs are divided into extents of up \
             to 256 KiB",
            "1",
        ),
        (
            "rings-1m … rings-1024m",
            "an area of 1, 4, 12, 24, 64 or 1,024 MiB that is used round robin, by the same code; READs are divided as \
             in the pool",
            "1",
        ),
        (
            "…-write",
            "the sender copies, by WRITEs, on another core than the one that reads; without this suffix the receiver \
             copies, by READs, on the core that reads. Messages into rings are not divided",
            "1",
        ),
        (
            "…-cached",
            "the device is kept from bypassing the caches (soft: non_temporal=no). Without this suffix the software \
             RNIC does so for WRITEs of more than 256 KiB into regions that are longer than the largest cache",
            "1",
        ),
        ("…-huge", "the receive memory is on pages of 2 MiB", "1"),
        (
            "…-antagonist",
            "a thread on another core reads and writes 128 MB again and again meanwhile",
            "1",
        ),
        (
            "cache-scan",
            "one core reads 12 or 24 MiB again and again, at the beginning and at the end of each round",
            "-",
        ),
        (
            "memory-1core, memory-2cores",
            "each core reads and writes 128 MB of its own again and again; the median MiB of each core counts",
            "-",
        ),
        (
            "pool-op",
            "an extent of 256 KiB is taken from the pool, marked as arrived and released; 8 are held; median over \
             batches of 1,000",
            "-",
        ),
        (
            "service-pool, service-pool-1024m, service-in-turn-1024m",
            "eight streams between two daemons, messages of 64 KiB that are read in place as they arrive; the receiving \
             daemon's pool has its default length, or 1 GiB, or 1 GiB that is handed out in turn by the same code. All four \
             processes run on the core that reads in the other arms, and the sender's rings have 1 MiB together",
            "2",
        ),
    ]
    .map(|(name, what, copies)| arm(name, what, "poll", copies))
    .to_vec()
}

fn table() -> Table<Arm> {
    let mut t = Table::new(notes());
    t.arm().cell("round", |point| point.load.into());
    t.x("size [B]").cell("lag [µs]", |point| match point.arm {
        Arm::Messages(_) => (point.n as f64).into(),
        _ => None.into(),
    });
    t.value("between [B]", BETWEEN);
    t.spread("throughput [GB/s]", |point| Expr::At(*point, GB));
    t.value("antagonist [GB/s]", ANTAGONIST);
    t.value("page faults", FAULTS);
    t.value("operation [ns]", P50);
    t.repeats(|point| match point.arm {
        Arm::PoolOp => Expr::At(*point, P50),
        _ => Expr::At(*point, GB),
    });
    metrics(&mut t);
    let axes = (
        Axis::log("length of the ring [MiB]"),
        Axis::linear("throughput [GB/s]"),
    );
    let title = "READs of 256 KiB, 2.4 MiB between copy and use";
    t.marks("residency.svg", title, axes, marks);
    t.note(
        "The lag is the received data that lies between the copy of a message and its being read: what arrives in that \
         time at 100 Gbit/s. The column \"between\" says how much it was: a ring of 1 MiB, or the pool at 1 ms, holds \
         less than the lag asks for, and then takes the next message only when an older one was read. At lag 0 a \
         message that fits the core's own cache is read from there in every arm: then only the copies differ.",
    );
    t.note(
        "Throughput is that of the median batch of 16 MiB, so other programs that take a core for some batches do not \
         count. Every message comes from the same memory of the sender, at most 1 MiB. All pages are touched before. A \
         point with a page fault in its measured time is measured again, and fails the third time.",
    );
    t.note(
        "The service has no ring of 1 GiB. So its pool is made as long, and hands out its memory in turn, by an option \
         that no configuration file has. A longer pool also lets an application hold more, so that more is done at a time; \
         order_of_1g_service is the ratio of two pools of 1 GiB that differ in nothing but the order. Every message is \
         read at once, so only the copies of the READs meet cold memory. These are a small part of the work on this core: \
         the sender's copy, the frames between the daemons and the wake-ups are the same in all arms. All memory was used \
         before.",
    );
    t.note(
        "Expected by us: pool_over_1g_service of at least 1.0, pool_over_1g_bare_* of at least 1.5, pool_over_best_idle of at least 0.97, pool_op_ns of at \
         most 50. The paper states no such values. The bare pool is not the whole of Jet: nothing is admitted here, no \
         straggler is replaced, and nothing shares the cache but the antagonist.",
    );
    t
}

fn metrics(t: &mut Table<Arm>) {
    for (size, message) in [("256k", M256K), ("1m", M1M)] {
        let over =
            |of: fn(Setting) -> Setting| rate(of(POOL), message) / rate(of(LONGEST), message);
        t.metric(format!("pool_over_1g_bare_{size}"), over(|setting| setting));
        let key = format!("pool_over_1g_bare_{size}_antagonist");
        t.metric(key, over(Setting::loaded));
    }
    let best = ROOMY_RINGS_MIB.map(|mib| rate(Setting::of(ring(mib)), M256K));
    let best = Expr::Highest(best.to_vec());
    t.metric("pool_over_best_idle", rate(POOL, M256K) / best);
    let over = |of: fn(Setting) -> Setting| rate(of(POOL), M256K) / rate(of(LONGEST), M256K);
    let effect = over(Setting::loaded) / over(|setting| setting);
    t.metric("antagonist_effect", effect);
    t.metric("pool_op_ns", Expr::At(POOL_OP, P50));
    for (is_loaded, suffix) in [(false, ""), (true, "_antagonist")] {
        let rate = |pool| Expr::At(plan::service(pool, is_loaded), GB);
        t.metric(
            format!("pool_over_1g_service{suffix}"),
            rate(ServicePool::Usual) / rate(ServicePool::InTurn),
        );
        t.metric(
            format!("order_of_1g_service{suffix}"),
            rate(ServicePool::Long) / rate(ServicePool::InTurn),
        );
        let rate = rate(ServicePool::Usual);
        t.metric(format!("pool_service{suffix}_gb_per_s"), rate);
    }
    for (size, message) in [("256k", M256K), ("1m", M1M)] {
        t.metric(format!("pool_{size}_gb_per_s"), rate(POOL, message));
        t.metric(
            format!("rings_1024m_{size}_gb_per_s"),
            rate(LONGEST, message),
        );
    }
    let loaded = at(POOL.loaded(), M256K, LAG);
    t.metric("antagonist_gb_per_s", Expr::At(loaded, ANTAGONIST));
    for load in [BEFORE, AFTER] {
        for mib in SCANS_MIB {
            let key = format!("cache_scan_{mib}m_{load}_gb_per_s");
            t.metric(key, Expr::At(plan::scan(load, mib), GB));
        }
    }
    let [one, two] = [1, 2].map(|cores| Expr::At(plan::memory(cores), GB));
    t.metric("memory_1core_gb_per_s", one.clone());
    t.metric("memory_2cores_gb_per_s", two.clone());
    t.metric("memory_2cores_over_1core", two / one);
}

/// Makes the chart's marks of a point: a line over the rings' lengths, and the pool as a line of one height.
fn marks(point: &Point<Arm>) -> Vec<Mark<Arm>> {
    let Arm::Messages(setting) = point.arm else {
        return Vec::new();
    };
    let name = |kind: &str| match setting.is_loaded {
        true => format!("{kind}, antagonist"),
        false => kind.to_owned(),
    };
    let plain = Setting::of(setting.memory);
    let is_shown = [plain, plain.loaded()].contains(&setting);
    if !is_shown || (point.x, point.n) != (M256K, LAG) {
        return Vec::new();
    }
    let of = |x: usize, kind| (name(kind), Expr::Is(x as f64), Expr::At(*point, GB));
    match setting.memory {
        MemoryKind::Ring(len) => vec![of(len >> 20, "rings")],
        MemoryKind::Pool => {
            let [longest, .., shortest] = RINGS_MIB;
            [shortest, longest].map(|x| of(x, "pool")).to_vec()
        }
    }
}

/// Both hosts, and the memory of the antagonists.
struct Machine {
    hosts: Hosts,
    loads: [MemoryLoad; 2],
    cpus: Vec<usize>,
    /// The daemons and their applications, once they have started.
    service: Option<ServiceHosts>,
}

impl Machine {
    /// Opens the devices and touches all memory on ordinary pages.
    fn new(bench: &Bench<'_>) -> Result<Self, WorkloadError> {
        let [sender, receiver] = &bench.testbed.devices;
        let mut hosts = Hosts::open(sender, receiver)?;
        for memory in plan::memories() {
            hosts.prepare(memory, false)?;
        }
        Ok(Self {
            hosts,
            loads: Default::default(),
            cpus: allowed_cpus(),
            service: None,
        })
    }

    /// Touches all memory on huge pages. The error says why there are too few.
    fn prepare_huge(&mut self) -> Result<(), WorkloadError> {
        // The longest ring, which needs most, is first.
        plan::memories().try_for_each(|memory| self.hosts.prepare(memory, true))
    }

    /// The first allowed processor is the sender's or the antagonist's, the second the receiver's. A third one is the
    /// antagonist's if the sender copies.
    fn cpus(&self, setting: Setting) -> Cpus {
        let first = self.cpus.first().copied().unwrap_or_default();
        let second = self.cpus.get(1).copied().unwrap_or(first);
        let third = self.cpus.get(2).copied().unwrap_or(first);
        Cpus {
            receiver: second,
            sender: first,
            antagonist: match setting.copier {
                Copier::Write => third,
                Copier::Read => first,
            },
        }
    }

    fn sample(
        &mut self,
        bench: &Bench<'_>,
        point: &Point<Arm>,
        run: Wall,
    ) -> Result<Sample, WorkloadError> {
        let receiver = self.cpus(POOL).receiver;
        let gb = |rate: f64| Sample::of([(GB, rate * 1e-9)]);
        match point.arm {
            Arm::Messages(setting) => self.messages(bench, point, setting, run),
            Arm::Scan => {
                let area = self.hosts.area(MemoryKind::Ring(point.x as usize), false)?;
                machine::scan_rate(area, receiver, run).map(gb)
            }
            Arm::Service(setting) => {
                let cpu = self.cpus(POOL).antagonist;
                let service = self.service.as_mut();
                let service = service.ok_or_else(|| WorkloadError("there is no daemon".into()))?;
                let found = service.measure(bench, setting, (&mut self.loads[0], cpu), run)?;
                let antagonist = found.antagonist.map_or(f64::NAN, |rate| rate * 1e-9);
                Ok(gb(found.bytes_per_second).with(ANTAGONIST, antagonist))
            }
            Arm::Memory(cores) => {
                let cores = cores.min(self.loads.len());
                machine::memory_rate(&mut self.loads[..cores], &self.cpus, run).map(gb)
            }
            Arm::PoolOp => {
                let nanos = std::thread::scope(|scope| {
                    let measuring = scope.spawn(move || {
                        crate::cpu_affinity::pin(receiver)?;
                        pool_time::pool_op_ns(run)
                    });
                    let panicked = |_| WorkloadError("the measuring thread panicked".into());
                    measuring.join().map_err(panicked)?
                })?;
                Ok(Sample::of([(P50, nanos)]))
            }
        }
    }

    fn messages(
        &mut self,
        bench: &Bench<'_>,
        point: &Point<Arm>,
        setting: Setting,
        run: Wall,
    ) -> Result<Sample, WorkloadError> {
        let load = plan::load(setting, point.x, point.n);
        let cpus = self.cpus(setting);
        let mut faults = 0;
        for _ in 0..TRIES {
            let antagonist = setting.is_loaded.then_some(&mut self.loads[0]);
            let found = transfer(&mut self.hosts, &load, cpus, antagonist, run, bench.stop())?;
            faults = found.page_faults;
            if faults == 0 {
                return Ok(Sample::of([
                    (GB, found.bytes_per_second * 1e-9),
                    (BETWEEN, found.between as f64),
                    (FAULTS, 0.0),
                    (
                        ANTAGONIST,
                        found.antagonist.map_or(f64::NAN, |rate| rate * 1e-9),
                    ),
                ]));
            }
        }
        Err(WorkloadError(format!(
            "{faults} page faults in the measured time, the third time"
        )))
    }
}

/// Returns the number of programs that ran or waited for a processor, averaged over the last minute, as the kernel words
/// it.
fn load_average() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    Some(text.split_whitespace().next()?.to_owned())
}

fn measure(
    bench: &mut Bench<'_>,
    _: &mut Table<Arm>,
    outcome: &mut Outcome,
) -> Result<Measured<Arm>, RunError> {
    let machine = bench.once("memory", |bench| Machine::new(bench))?;
    let mut machine = machine.map_err(|why| RunError::Failed(why.to_string()))?;
    let huge = bench.once("huge pages", |_| machine.prepare_huge())?;
    let service = bench.once("daemons", |bench| {
        ServiceHosts::start(bench, machine.cpus(POOL))
    })?;
    let service = service.map_err(|why| {
        let why = format!("Nothing was measured through daemons: {why}.");
        outcome.notes.push(why);
    });
    machine.service = service.ok();
    let available = Available {
        has_daemons: machine.service.is_some(),
        cpus: machine.cpus.len(),
        has_huge_pages: huge.is_ok(),
        has_ordinary_stores: machine.hosts.has_ordinary_stores(),
    };
    let cpus = machine.cpus(POOL);
    outcome.pinning = format!(
        "the receiver, which reads the messages, on cpu {}; the sender, if it copies, or else the antagonist on cpu {}",
        cpus.receiver, cpus.sender
    );
    let notes = &mut outcome.notes;
    notes.extend(load_average().map(|load| {
        format!(
            "The load average was {load} when the run began. Other programs that use a core or the memory make every \
             figure here worse, above all where two threads wait for each other."
        )
    }));
    if let Err(why) = huge {
        notes.push(format!("Huge pages were not measured: {why}."));
    }
    if !available.has_ordinary_stores {
        let why = "WRITEs that are kept from bypassing the caches were not measured: the device has no such option, or \
                   its name sets it.";
        notes.push(why.into());
    }
    if available.cpus < 3 {
        let why = "The antagonist beside WRITEs was not measured: sender, receiver and antagonist need three processors.";
        notes.push(why.into());
    }
    notes.push(match numa_nodes()[1] {
        None => "NUMA: not exercised, this machine has one node.".into(),
        Some(_) => {
            "NUMA: not exercised, no thread and no memory is placed on a chosen node.".into()
        }
    });
    if bench.options.device.kind() != "soft" {
        let why = "One message at a time is copied. On an RNIC this shows the time of a message as well as the cache.";
        notes.push(why.into());
    }
    let points = plan::points(available, bench.options.quick);
    // Half of a quick run's budget: what is measured late in it gets less time.
    let sweep = Sweep {
        n: "µs",
        ..Sweep::over("B", Wall::from_millis(12), Wall::from_millis(300)).share(0.5)
    };
    let measured = bench.measure(points, sweep, |bench, point, run| {
        machine.sample(bench, point, run).map(Some)
    })?;
    let median = |point| Expr::At(point, GB).median(&measured);
    let scans = |load| SCANS_MIB.map(|mib| median(plan::scan(load, mib)).unwrap_or(f64::NAN));
    outcome.notes.push(plan::cache(scans(BEFORE), scans(AFTER)));
    if let (Some(one), Some(two)) = (median(plan::memory(1)), median(plan::memory(2))) {
        outcome.notes.push(plan::saturation(one, two));
    }
    Ok(measured.sorted())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_shows_rings_by_length_and_the_pool_as_a_line() {
        let names = |point| -> Vec<String> {
            let marks = marks(&point);
            marks.into_iter().map(|(name, ..)| name).collect()
        };
        assert_eq!(names(at(POOL, M256K, LAG)), ["pool", "pool"]);
        let loaded = at(LONGEST.loaded(), M256K, LAG);
        assert_eq!(names(loaded), ["rings, antagonist"]);
        assert!(names(at(LONGEST, M1M, LAG)).is_empty());
        assert!(names(POOL_OP).is_empty());
    }

    #[test]
    fn every_metric_is_computed_from_points_of_a_quick_run() {
        let available = Available {
            cpus: 2,
            has_huge_pages: false,
            has_ordinary_stores: true,
            has_daemons: true,
        };
        let sample = Sample::of([(GB, 2.0), (P50, 2.0), (ANTAGONIST, 2.0)]);
        let points = plan::points(available, true).into_iter();
        let points = points.map(|point| (point, vec![Some(sample.clone())]));
        let measured = Measured::new(points, Default::default());
        let mut outcome = Outcome::default();
        table().render(&measured, &mut outcome);
        assert!(outcome.skipped().is_empty(), "{:?}", outcome.skipped());
        assert_eq!(outcome.ratios()["pool_over_1g_bare_256k"].median, 1.0);
    }
}

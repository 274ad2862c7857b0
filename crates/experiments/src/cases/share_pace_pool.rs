//! Sharing, pacing and pooling together: a host with many connections to many hosts. Its RNIC has a cache of requests
//! and one of contexts, and its memory is contended. The expectations combine three papers: the shared queue pairs of
//! RaaS, Weir's pacing and Jet's receive pool. On simulated devices that model the memory of hosts.

use std::fmt;

use crate::cases::jet::receiving_host::{antagonist_of, memory_of};
use crate::cases::prelude::*;
use crate::cases::weir::arms::{PACING_NS, probe_of};
use crate::nic::{Verb, VerbLoad};
use crate::service::virtual_time::{Machine, OneSidedLoad, OneSidedOp, RequestPath};
use crate::share_pace_pool::{
    DEPTH, LOSSLESS, OUT_MESSAGE, SHARED_QUEUE_PAIRS, SharePacePool, SharePacePoolResult,
};

/// Connections of the server, and other hosts.
const CONNECTIONS: [u64; 4] = [64, FEW, MANY_TO_MANY, MOST];
const HOSTS: [u64; 5] = [2, 16, BORDER, 256, MOST_HOSTS];
/// Connections of the quick run, which suit every number of hosts.
const FEW: u64 = 1024;
const MOST: u64 = 16384;
/// Connections that are measured with [`MOST_HOSTS`] only.
const MANY_TO_MANY: u64 = 4096;
/// Number of hosts beyond which [`MOST`] connections are not measured.
const BORDER: u64 = 64;
const MOST_HOSTS: u64 = 1024;
const QUICK_HOSTS: [u64; 4] = [FEW_HOSTS, BORDER, 256, MOST_HOSTS];
/// The number of hosts with which a quick run measures rings too.
const FEW_HOSTS: u64 = 16;

/// Warm-up and measured time.
const TIMES: (Duration, Duration) = (Duration::from_millis(8), Duration::from_millis(2));
const QUICK_TIMES: (Duration, Duration) = (Duration::from_millis(6), Duration::from_millis(1));

/// Hosts of the check of the daemon, its connections, its callers and the READs that each of them has outstanding.
const CHECKED: [u64; 4] = [2, 4, 8, 16];
const CHECKED_CONNECTIONS: u64 = 512;
const CALLERS: usize = 8;
const CALLERS_OUTSTANDING: usize = 64;
/// Requests that the daemon has outstanding on a queue pair at most (`frame_depth`, `bulk_depth`).
const DAEMON_DEPTH: usize = 64;
const CHECKED_TIMES: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(1));

/// Share of the requests below which misses count as none, and above which they count as many.
const NONE: f64 = 0.01;
const MANY: f64 = 0.1;

/// Quantities of a point.
const OUT: Quantity = "out";
const IN: Quantity = "in";
const WQE: Quantity = "WQE";
const ICM: Quantity = "ICM";
const DDIO: Quantity = "DDIO";
const OUTSTANDING: Quantity = "outstanding";
const QUEUE_PAIRS: Quantity = "queue pairs";
const DRIFT: Quantity = "drift";
const DROPPED: Quantity = "dropped";
const REPEATED: Quantity = "repeated";

/// How the server's connections reach its RNIC and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Design {
    is_shared: bool,
    is_paced: bool,
    is_pooled: bool,
}

/// A measured system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// The load.
    Load(Design),
    /// The load, native, not paced and with the pool, with as many requests outstanding in all as the service has.
    FewOutstanding,
    /// READs by the service's daemon.
    CheckedDaemon,
    /// The load with as many requests outstanding on each queue pair as the daemon may have.
    CheckedModel,
}

impl Arm {
    const CHECKED: [Self; 2] = [Self::CheckedDaemon, Self::CheckedModel];

    const fn of(is_shared: bool, is_paced: bool, is_pooled: bool) -> Self {
        Self::Load(Design {
            is_shared,
            is_paced,
            is_pooled,
        })
    }

    /// Returns the arms of the load.
    fn loads() -> Vec<Self> {
        let mut arms = Vec::new();
        for is_shared in [false, true] {
            for is_paced in [false, true] {
                for is_pooled in [false, true] {
                    arms.push(Self::of(is_shared, is_paced, is_pooled));
                }
            }
        }
        arms.push(Self::FewOutstanding);
        arms
    }

    fn is_pooled(self) -> bool {
        match self {
            Self::Load(of) => of.is_pooled,
            Self::FewOutstanding | Self::CheckedDaemon | Self::CheckedModel => true,
        }
    }

    fn note(self) -> ArmNote {
        let what = match self {
            Self::Load(of) => {
                let sharing = match of.is_shared {
                    true => format!(
                        "all connections to a host share {SHARED_QUEUE_PAIRS} queue pairs, as in the service; programs post \
                         on them, there is no daemon"
                    ),
                    false => "a queue pair for each connection".to_owned(),
                };
                let pacing = match of.is_paced {
                    true => format!(
                        "a device that paces by delay, with the measured base delay and otherwise default constants, and \
                         {PACING_NS} ns more processor time for each request"
                    ),
                    false => "a plain device".to_owned(),
                };
                let memory = match of.is_pooled {
                    true => {
                        "messages arrive by SEND in extents of the receive pool (headworks-rxpool), which are the \
                         receives of a shared receive queue"
                    }
                    false => {
                        "messages arrive by WRITE with immediate in a ring of 64 KiB for each connection"
                    }
                };
                format!("{sharing}; {pacing}; {memory}")
            }
            Self::FewOutstanding => {
                "as \"native, pool\", but with fewer requests outstanding on each queue pair, at least one: as many in all as \
                 the service has with as many hosts"
                    .to_owned()
            }
            Self::CheckedDaemon => {
                "8 callers READ 512 B over 512 connections of the service, 64 at a time each: by the daemon's own core, on one \
                 processor core"
                    .to_owned()
            }
            Self::CheckedModel => format!(
                "the load, shared, not paced, with the pool and without an antagonist, and with {DAEMON_DEPTH} requests \
                 outstanding on each queue pair, as many as the daemon may have"
            ),
        };
        arm(self.to_string(), what, "poll", "0")
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match self {
            Self::Load(of) => of,
            Self::FewOutstanding => {
                return f.write_str("native, as many requests outstanding as the service, pool");
            }
            Self::CheckedDaemon => return f.write_str("check: READs by the daemon"),
            Self::CheckedModel => return f.write_str("check: model of sharing"),
        };
        let word = |is, yes, no| if is { yes } else { no };
        write!(
            f,
            "{}{}, {}",
            word(of.is_shared, "service", "native"),
            word(of.is_paced, ", paced", ""),
            word(of.is_pooled, "pool", "rings")
        )
    }
}

fn at(arm: Arm, (connections, hosts): (u64, u64), quantity: Quantity) -> Expr<Arm> {
    Expr::At(Point::at(arm, connections).with(hosts), quantity)
}

/// The experiment `share-pace-pool`.
pub static SHARE_PACE_POOL: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Simulated,
        paces: true,
        ..About::new(
            "share-pace-pool",
            "Shared queue pairs, pacing and a receive pool, by connections and hosts (--device sim:cx6dx-2x100g).",
            "One host has 64 to 16,384 connections to 2 to 1,024 hosts. It WRITEs messages of 512 B to them, with 128 \
             requests outstanding on each queue pair, and they send it messages of 4 KiB. An antagonist uses its memory. \
             Goodput in both directions, misses of its RNIC's caches of requests (WQE) and contexts (ICM), and DMA writes \
             that find their line cached (DDIO): with a queue pair for each connection and with two for each host, paced \
             and not, into a ring for each connection and into a receive pool. The service's daemon is measured beside it, \
             with 2 to 16 hosts.",
        )
    },
    table,
    measure: |bench, t, _| {
        let mut preset = memory_of(bench)?;
        for (key, value) in LOSSLESS {
            // A preset that pauses has thresholds that fit its buffers.
            let is_off = preset.value(key).is_some_and(|value| value.as_f64() == 0.0);
            if !bench.options.is_set(key) && (is_off || key == "dcqcn.on") {
                let set = preset.set(key, value);
                set.map_err(|e| RunError::Failed(e.to_string()))?;
            }
        }
        let checked = preset.check();
        checked.map_err(|why| RunError::BadInput(format!("settings of this experiment: {why}")))?;
        let seed = bench.options.machine().and_then(Result::ok);
        let seed = seed.map_or(1, |(_, seed)| seed);
        let base_delay = bench.once("base delay", |bench| {
            let load = VerbLoad::of(Verb::Write, OUT_MESSAGE);
            let place = bench.testbed_with(&["dcqcn.on=0".to_owned()])?;
            let delay = probe_of(&place, preset.all_links_gbps(), load);
            place.take_usage();
            delay
        })?;
        let base_delay = base_delay.map_err(|why| RunError::Failed(why.to_string()))?;
        t.note(format!(
            "{}: {} Gbit/s on {} ports, {} GB/s of memory, which the antagonist would use alone. Pacing has a base delay of \
             {} ns: the median time of one WRITE of 512 B at a time on the idle machine, less the time of its bytes at the \
             rate of all links.",
            preset.name,
            preset.all_links_gbps(),
            preset.ports,
            preset.host_memory,
            base_delay.nanos()
        ));
        let sweep = Sweep::in_virtual_time("connections", "hosts");
        bench.measure(points(bench.options.quick), sweep, |bench, point, _| {
            let machine = Machine {
                preset: preset.clone(),
                seed,
            };
            measure(bench, point, machine, base_delay)
        })
    },
};

/// Returns the points of a run.
fn points(is_quick: bool) -> Vec<Point<Arm>> {
    let (connections, hosts) = match is_quick {
        true => (&[FEW][..], &QUICK_HOSTS[..]),
        false => (&CONNECTIONS[..], &HOSTS[..]),
    };
    let mut points = Vec::new();
    for count in connections {
        for hosts in hosts {
            // Each connection has one host, and what takes the most memory and time is left out.
            let is_left_out = match *count {
                MANY_TO_MANY => *hosts < MOST_HOSTS,
                MOST => *hosts > BORDER,
                _ => false,
            };
            if hosts > count || is_left_out {
                continue;
            }
            let mut arms = Arm::loads();
            arms.retain(|arm| !is_quick || *hosts == FEW_HOSTS || arm.is_pooled());
            let loads = grid("", &arms, &[*count]).into_iter();
            points.extend(loads.map(|point| point.with(*hosts)));
        }
    }
    for hosts in CHECKED {
        let checks = grid("", &Arm::CHECKED, &[CHECKED_CONNECTIONS]).into_iter();
        points.extend(checks.map(|point| point.with(hosts)));
    }
    points
}

fn measure(
    bench: &Bench<'_>,
    point: &Point<Arm>,
    machine: Machine,
    base_delay: Duration,
) -> Result<Option<Sample>, WorkloadError> {
    let times = match bench.options.quick {
        true => QUICK_TIMES,
        false => TIMES,
    };
    let plain = SharePacePool {
        hosts: point.n as usize,
        connections: point.x as usize,
        is_shared: true,
        depth: DEPTH,
        pacing: String::new(),
        pacing_ns: 0,
        is_pooled: true,
        antagonist: antagonist_of(bench, machine.preset.host_memory)?,
    };
    let (load, times) = match point.arm {
        Arm::Load(of) => {
            let load = SharePacePool {
                is_shared: of.is_shared,
                is_pooled: of.is_pooled,
                pacing: match of.is_paced {
                    true => format!(",pace,pace_base_delay_ns={}", base_delay.nanos()),
                    false => String::new(),
                },
                pacing_ns: if of.is_paced { PACING_NS } else { 0 },
                ..plain
            };
            (load, times)
        }
        Arm::FewOutstanding => {
            let service = DEPTH * plain.queue_pairs();
            let load = SharePacePool {
                is_shared: false,
                depth: (service / plain.connections).max(1),
                ..plain
            };
            (load, times)
        }
        Arm::CheckedModel => {
            let load = SharePacePool {
                depth: DAEMON_DEPTH,
                antagonist: antagonist_of(bench, 0.0)?,
                ..plain
            };
            (load, CHECKED_TIMES)
        }
        Arm::CheckedDaemon => return daemon(bench, point, &machine).map(Some),
    };
    let found = load.measure(&machine, times, bench.stop())?;
    Ok(Some(sample(&found)))
}

/// Measures READs by the daemon.
fn daemon(
    bench: &Bench<'_>,
    point: &Point<Arm>,
    machine: &Machine,
) -> Result<Sample, WorkloadError> {
    let reads = OneSidedLoad {
        what: OneSidedOp::Reads {
            bytes: OUT_MESSAGE,
            region: 64 << 10,
        },
        callers: CALLERS,
        connections: point.x as usize,
        hosts: point.n as usize,
        outstanding: CALLERS_OUTSTANDING,
    };
    let found = reads.measure(RequestPath::Service, machine, CHECKED_TIMES, bench.stop())?;
    let sample = Sample::of([
        (IN, found.bytes_per_second * 1e-9),
        (QUEUE_PAIRS, found.queue_pairs as f64),
    ]);
    Ok(with_known(sample, [(WQE, found.wqe_misses)]))
}

/// Returns the values of a point.
fn sample(found: &SharePacePoolResult) -> Sample {
    let sample = Sample::of([
        (OUT, found.out_per_s * 1e-9),
        (IN, found.in_per_s * 1e-9),
        (QUEUE_PAIRS, found.queue_pairs as f64),
        (OUTSTANDING, found.outstanding as f64),
        (DROPPED, found.dropped as f64),
        (REPEATED, found.repeated as f64),
    ]);
    let known = [
        (WQE, found.wqe_misses),
        (ICM, found.icm_misses),
        (DDIO, found.ddio_hits.map(|hits| 100.0 * hits)),
        (DRIFT, found.drift),
    ];
    with_known(sample, known)
}

/// Adds those values that could be measured.
fn with_known(sample: Sample, values: impl IntoIterator<Item = (Quantity, Option<f64>)>) -> Sample {
    let values = values.into_iter();
    let known = values.filter_map(|(quantity, value)| Some((quantity, value?)));
    known.fold(sample, |sample, (quantity, value)| {
        sample.with(quantity, value)
    })
}

fn table() -> Table<Arm> {
    let arms = Arm::loads().into_iter().chain(Arm::CHECKED);
    let mut t = Table::new(arms.map(Arm::note).collect());
    t.arm().x("connections").n("hosts");
    t.value("queue pairs", QUEUE_PAIRS);
    t.value("requests outstanding", OUTSTANDING);
    t.value("goodput out [GB/s]", OUT);
    t.value("goodput in [GB/s]", IN);
    t.value("WQE misses [1/request]", WQE);
    t.value("ICM misses [1/message]", ICM);
    t.value("DDIO hits [%]", DDIO);
    t.value("first half over second", DRIFT);
    t.value("dropped packets", DROPPED);
    t.value("repeated packets", REPEATED);
    let name = |is, yes: &'static str, no: &'static str| if is { yes } else { no };
    for hosts in QUICK_HOSTS {
        for is_shared in [false, true] {
            let who = name(is_shared, "service", "native");
            let plain = Arm::of(is_shared, false, true);
            let paced = Arm::of(is_shared, true, true);
            let place = (FEW, hosts);
            let of = |quantity| at(plain, place, quantity);
            t.metric(format!("{who}_out_gb_per_s_{hosts}_hosts"), of(OUT));
            t.metric(format!("{who}_wqe_misses_{hosts}_hosts"), of(WQE));
            t.metric(format!("{who}_icm_misses_{hosts}_hosts"), of(ICM));
            let gain = at(paced, place, OUT) / of(OUT);
            t.metric(format!("{who}_paced_over_plain_{hosts}_hosts"), gain);
        }
        let few = |quantity| at(Arm::FewOutstanding, (FEW, hosts), quantity);
        t.metric(
            format!("native_few_outstanding_out_gb_per_s_{hosts}_hosts"),
            few(OUT),
        );
        t.metric(
            format!("native_few_outstanding_wqe_misses_{hosts}_hosts"),
            few(WQE),
        );
    }
    for (who, is_shared) in [("native", false), ("service", true)] {
        let of = |is_pooled, quantity| {
            at(
                Arm::of(is_shared, false, is_pooled),
                (FEW, FEW_HOSTS),
                quantity,
            )
        };
        let gain = of(true, IN) / of(false, IN);
        t.metric(format!("{who}_pool_over_rings_{FEW_HOSTS}_hosts"), gain);
        for (memory, is_pooled) in [("rings", false), ("pool", true)] {
            let key = format!("{who}_{memory}_ddio_hits_percent_{FEW_HOSTS}_hosts");
            t.metric(key, of(is_pooled, DDIO));
        }
    }
    expect(&mut t);
    notes(&mut t);
    for (file, title, quantity, y) in [
        ("out.svg", "Goodput out", OUT, "goodput [GB/s]"),
        ("in.svg", "Goodput in", IN, "goodput [GB/s]"),
        (
            "wqe.svg",
            "Misses of the WQE cache",
            WQE,
            "misses each request",
        ),
    ] {
        let title = format!("{title}, {FEW} connections");
        let axes = (Axis::log("hosts"), Axis::linear(y));
        t.chart(file, title, axes, move |point| {
            let is_drawn =
                point.x == FEW && matches!(point.arm, Arm::Load(_) | Arm::FewOutstanding);
            is_drawn.then(|| {
                let name = point.arm.to_string();
                (name, point.n as f64, Expr::At(*point, quantity))
            })
        });
    }
    t
}

/// Adds what was expected before the first run. All of it is about the pool with [`FEW`] connections, which a quick run
/// measures too.
fn expect(t: &mut Table<Arm>) {
    t.expectations();
    let of = |is_shared, is_paced, hosts, quantity| {
        at(Arm::of(is_shared, is_paced, true), (FEW, hosts), quantity)
    };
    let plain = |hosts, quantity| of(true, false, hosts, quantity);
    t.sentence(
        "sharing keeps requests in the cache, as pacing does: with 16 hosts none leaves it, and goodput out is higher than \
         that of paced native connections",
        [
            ("WQE misses", plain(16, WQE), Claim::Below(NONE)),
            (
                "native, not paced: WQE misses",
                of(false, false, 16, WQE),
                Claim::Above(MANY),
            ),
            (
                "service over paced native",
                plain(16, OUT) / of(false, true, 16, OUT),
                Claim::Above(1.0),
            ),
        ],
    );
    t.sentence(
        "shared queue pairs overflow the WQE cache at about 64 hosts: few misses with 16, many with 256",
        [
            ("16 hosts", plain(16, WQE), Claim::Below(NONE)),
            ("256 hosts", plain(256, WQE), Claim::Above(MANY)),
        ],
    );
    t.sentence(
        "and the context cache at about 1,024 hosts: few misses with 256, some with 1,024",
        [
            ("256 hosts", plain(256, ICM), Claim::Below(NONE)),
            ("1,024 hosts", plain(MOST_HOSTS, ICM), Claim::Above(NONE)),
        ],
    );
    let gain = |hosts| of(true, true, hosts, OUT) / plain(hosts, OUT);
    t.sentence(
        "below that, pacing costs the service 0 to 3 % of the goodput out",
        [(
            "16 hosts: paced over plain",
            gain(16),
            Claim::Between(0.97, 1.0 + 1e-3),
        )],
    );
    t.sentence(
        "beyond, pacing pays",
        [
            ("256 hosts: paced over plain", gain(256), Claim::More(1.0)),
            (
                "1,024 hosts: paced over plain",
                gain(MOST_HOSTS),
                Claim::More(1.0),
            ),
        ],
    );
    let mut agrees = Vec::new();
    for (arm, who) in [(Arm::CheckedDaemon, "daemon"), (Arm::CheckedModel, "model")] {
        for hosts in [2, 16] {
            let of = |quantity| at(arm, (CHECKED_CONNECTIONS, hosts), quantity);
            let pairs = Claim::Exactly((SHARED_QUEUE_PAIRS as u64 * hosts) as f64);
            agrees.push((
                format!("{who}, {hosts} hosts: queue pairs"),
                of(QUEUE_PAIRS),
                pairs,
            ));
            let misses = Claim::Below(NONE);
            agrees.push((format!("{who}, {hosts} hosts: WQE misses"), of(WQE), misses));
        }
    }
    t.sentence(
        "with 2 to 16 hosts the daemon makes two queue pairs for each host, as the model of sharing does, and requests stay \
         in the cache",
        agrees,
    );
}

fn notes(t: &mut Table<Arm>) {
    t.note(
        "Everything is simulated. The expectations were written down before the first run, except the one about the \
         daemon. The service is modelled by programs that post on two shared queue pairs for each host; its daemon, with its \
         copies, frames and processor time, is not in the load. The daemon's own core runs in the arms \"check: READs by the \
         daemon\".",
    );
    t.note(
        "16 threads of the server send, and 16 receive. A sending thread keeps 128 requests outstanding on each of its \
         queue pairs, or fewer if that were more than 262,144 in all. Each request has a doorbell of its own. A receiving \
         thread reads every byte of a message and returns its memory. The hosts send with a window: 256 messages in all, or \
         one for each host. Credit costs neither time nor bandwidth. Memory lies on huge pages.",
    );
    t.note(
        "DCQCN is off, and the RNIC and the switch pause links before they drop packets (nic.rx_pause, switch.pause), unless \
         --set says otherwise. The WQE and ICM columns are misses of the server's RNIC: WQE for each request that it sent, of \
         which one may count twice; ICM for each message that it sent or received. DDIO hits are lines that DMA wrote and \
         that were cached. A run measures 2 ms after 8 ms, a quick one 1 ms after 6 ms. A \
         quick run measures rings with 16 hosts only.",
    );
    t.note(
        "The daemon of the check uses its processor core for about 0.3 µs for each READ. So it never has thousands of \
         requests outstanding, and cannot show where shared queue pairs overflow the cache.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_the_units_of_its_columns() {
        let found = sample(&SharePacePoolResult {
            queue_pairs: 32,
            outstanding: 4096,
            out_per_s: 2e9,
            in_per_s: 3e9,
            drift: Some(1.5),
            wqe_misses: Some(0.5),
            icm_misses: Some(0.25),
            ddio_hits: Some(0.75),
            dropped: 4,
            repeated: 5,
        });
        let values = [
            QUEUE_PAIRS,
            OUTSTANDING,
            OUT,
            IN,
            DRIFT,
            WQE,
            ICM,
            DDIO,
            DROPPED,
            REPEATED,
        ];
        let values = values.map(|quantity| found.get(quantity));
        assert_eq!(
            values,
            [32.0, 4096.0, 2.0, 3.0, 1.5, 0.5, 0.25, 75.0, 4.0, 5.0]
        );
    }

    #[test]
    fn the_points_reach_16_ki_connections_and_1_024_hosts_and_hosts_have_equal_shares() {
        for is_quick in [false, true] {
            for point in points(is_quick) {
                assert_eq!(point.x % point.n, 0, "{} of {}", point.x, point.n);
            }
        }
        let all = points(false);
        for (connections, hosts) in [(MOST, BORDER), (MANY_TO_MANY, MOST_HOSTS), (64, 2)] {
            let mut arms = all
                .iter()
                .filter(|point| (point.x, point.n) == (connections, hosts));
            assert_eq!(arms.by_ref().count(), 9, "{connections} to {hosts}");
        }
    }

    #[test]
    fn arms_have_names_of_their_own() {
        let mut names: Vec<_> = Arm::loads().iter().map(ToString::to_string).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 9);
        assert!(names.contains(&"service, paced, pool".to_owned()));
    }
}

//! RDMA Communication Patterns (Ziegler, Leis and Binnig, 2020): the figures and tables of its evaluation, the
//! optimisations of its section 8, and two controls that it lacks.
//!
//! | module | what |
//! |---|---|
//! | [`one_to_one`] | figures 3 and 4: one requester and one responder |
//! | [`n_to_one`] | figures 5 to 7 and Table 1: many requesters and one responder |
//! | [`n_to_m`] | figures 8 to 10 and Table 2: many requesters and many responders |
//! | [`optimisations`] | signalling, inlining, dense flags, requests outstanding |
//! | [`mailbox_control`] | idle mailboxes beside the same load |
//! | [`mailbox_control_host`] | the same on a host with contended memory, and beside a shared receive queue |

pub mod mailbox_control;
pub mod mailbox_control_host;
pub mod n_to_m;
pub mod n_to_one;
pub mod one_to_one;
pub mod optimisations;

use std::fmt;
use std::sync::Arc;

use headworks::sim::{Preset, SimWorld};
use headworks_runtime::ActorRegistry;

use crate::cases::prelude::*;
use crate::patterns::run::PatternBed;
use crate::patterns::{self, Design, MailboxFlag, MessageVerb, PatternPrices, PatternTask};

/// Queue pairs of the responders.
const QUEUE_PAIRS: Quantity = "queue pairs";
/// Share of polled mailboxes that were empty, and of mailboxes without a request under way.
const EMPTY_POLLS: Quantity = "empty polls";
const EMPTY: Quantity = "empty mailboxes";
/// Processor cycles of a responder for each message, polling included.
const CYCLES: Quantity = "cycles";
/// Bytes per second that Little's law gives.
const LITTLE: Quantity = "Little's law";

/// Requester threads on a server (section 6), and on a node (section 7).
const PER_SERVER: usize = 8;
const PER_NODE: usize = 10;
/// Requesters of section 7.
const MANY: u64 = 90;
/// RNICs of the responders in section 7: the text's 66 GB/s are six times 11.
const RESPONDER_RNICS: usize = 6;
/// Cores of a NUMA node: two nodes with an RNIC each are a host with 28 cores.
const CORES: &str = "14";
/// Length of WRITEs whose bytes are in order, where a design relies on it: more than any response.
const DECLARED_ORDER: &str = "16777216";
/// Warm-up and measured time in virtual time.
const WARM: Duration = Duration::from_micros(100);
const RUN: Duration = Duration::from_millis(1);

const WW: Design = Design::PAIRS[0];
const SS: Design = Design::PAIRS[1];
const WS: Design = Design::PAIRS[2];
const SW: Design = Design::PAIRS[3];
/// The designs, with the order of a WRITE's bytes declared and not.
const DESIGNS: [Design; 7] = [
    WW,
    SS,
    WS,
    SW,
    WW.with_flag(MailboxFlag::SecondWrite),
    WS.with_flag(MailboxFlag::SecondWrite),
    SW.with_flag(MailboxFlag::SecondWrite),
];

/// A point of a pattern: everything but what the experiment sweeps has the paper's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arm {
    design: Design,
    /// Bytes of a response.
    response: u64,
    requesters: u64,
    responders: u64,
    /// Requests outstanding for each requester.
    outstanding: u32,
    /// Percentage of a requester's turns in which it waits.
    idle_percent: u32,
    /// Mailboxes that no requester uses.
    idle_mailboxes: u64,
    is_inline: bool,
    signal_every: u32,
    is_huge: bool,
    /// Items in a responder's region.
    items: u64,
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = Self::of(self.design);
        write!(f, "{}", self.design)?;
        if self.outstanding != plain.outstanding {
            write!(f, ", {} outstanding", self.outstanding)?;
        }
        if !self.is_inline {
            f.write_str(", not inline")?;
        }
        if self.signal_every != plain.signal_every {
            f.write_str(", all signalled")?;
        }
        match (self.items != plain.items, self.is_huge) {
            (true, true) => f.write_str(", large region on huge pages")?,
            (true, false) => f.write_str(", large region")?,
            (false, _) => {}
        }
        Ok(())
    }
}

impl Arm {
    /// One requester and one responder, and responses of 64 bytes.
    const fn of(design: Design) -> Self {
        Self {
            design,
            response: 64,
            requesters: 1,
            responders: 1,
            outstanding: 1,
            idle_percent: 0,
            idle_mailboxes: 0,
            is_inline: true,
            signal_every: 16,
            is_huge: false,
            items: 64,
        }
    }

    const fn size(self, response: u64) -> Self {
        Self { response, ..self }
    }

    const fn between(self, requesters: u64, responders: u64) -> Self {
        Self {
            requesters,
            responders,
            ..self
        }
    }

    /// The point at which `x` is on the axis.
    const fn at(self, x: u64) -> Point<Self> {
        Point::at(self, x)
    }

    fn note(self) -> ArmNote {
        let flag = match self.design.flag {
            _ if !self.design.has_mailboxes() => "",
            MailboxFlag::InMessage => "; the flag is the last byte of the message",
            MailboxFlag::SecondWrite => "; the flag is a second WRITE",
            MailboxFlag::Dense => {
                "; the flag of a request is a byte in a dense area, by a second WRITE"
            }
        };
        let verb = |verb| match verb {
            MessageVerb::Write => "WRITE",
            MessageVerb::Send => "SEND",
        };
        let (request, response) = (verb(self.design.request), verb(self.design.response));
        let what = format!("requests by {request}, responses by {response}{flag}");
        arm(self.to_string(), what, "poll", "0")
    }

    /// Makes the task of the point. `is_simulated`: each requester is a thread of its own; else all are connections
    /// of one thread.
    fn task(self, is_simulated: bool) -> PatternTask {
        let is_dispatched = self.design.connections == patterns::Connections::Dispatcher;
        let per_server = if self.responders > 1 {
            PER_NODE
        } else {
            PER_SERVER
        };
        let per_actor = match (is_dispatched, is_simulated) {
            (true, _) => per_server,
            (false, true) => 1,
            (false, false) => self.requesters as usize,
        };
        let (requesters, responders) = (self.requesters as usize, self.responders as usize);
        PatternTask {
            per_actor,
            outstanding: self.outstanding,
            idle_share: f64::from(self.idle_percent) / 100.0,
            idle_mailboxes: self.idle_mailboxes as usize,
            inline: self.is_inline,
            signal_every: self.signal_every,
            huge_pages: self.is_huge,
            items: self.items,
            time_every: if is_simulated { 1 } else { 64 },
            warm_ns: WARM.nanos(),
            run_ns: RUN.nanos(),
            ..PatternTask::paper(self.design, self.response as usize, requesters, responders)
        }
    }
}

const fn paper(figure: &'static str) -> Option<Paper> {
    Some(Paper {
        title: "RDMA Communication Patterns: A Systematic Evaluation",
        year: 2020,
        figure,
    })
}

const fn about(
    name: &'static str,
    figure: &'static str,
    line: &'static str,
    measures: &'static str,
) -> About {
    About {
        paper: paper(figure),
        ..About::new(name, line, measures)
    }
}

/// A table with a row for each point: what was run, and rate, bandwidth and latencies.
fn rows() -> Table<Arm> {
    let mut t: Table<Arm> = Table::new(Vec::new());
    t.arm();
    t.cell("requesters", |point| (point.arm.requesters as f64).into());
    t.cell("responders", |point| (point.arm.responders as f64).into());
    t.cell("response [B]", |point| (point.arm.response as f64).into());
    t.value("responses [1/s]", RATE);
    t.value("bandwidth [B/s]", BYTES);
    t.median("median [ns]", |point| Expr::At(*point, P50));
    t.median("p99 [ns]", |point| Expr::At(*point, P99));
    t.median("p99.9 [ns]", |point| Expr::At(*point, P999));
    t.value("responder's cycles each", CYCLES);
    t.value("empty polls [1]", EMPTY_POLLS);
    t.value("queue pairs", QUEUE_PAIRS);
    t
}

/// A chart of `quantity`, with a line for each design and size of response.
fn lines(t: &mut Table<Arm>, file: &str, title: &str, (x, y): (Axis, Axis), quantity: Quantity) {
    t.chart(file, title, (x, y), move |point| {
        let name = format!("{}, {} B", point.arm, point.arm.response);
        Some((name, point.x as f64, Expr::At(*point, quantity)))
    });
}

fn short(bytes: u64) -> String {
    match bytes {
        4_194_304 => "4m".to_owned(),
        1024.. => format!("{}k", bytes / 1024),
        _ => bytes.to_string(),
    }
}

/// The name of a design within a metric's key: `write_send`, `write_send_flag`.
fn key(design: Design) -> String {
    let text = design.to_string().replace('+', "_");
    text.replacen("Send", "send_", 1)
        .replacen("Send", "send", 1)
        .replacen("Write", "write_", 1)
        .replacen("Write", "write", 1)
        .replace("__", "_")
        .trim_end_matches('_')
        .to_owned()
}

/// Bandwidth of payload that the links of a host carry in WRITEs of `bytes`, in bytes per second.
fn line_rate(preset: &Preset, bytes: f64) -> f64 {
    let packets = (bytes / preset.mtu_bytes as f64).ceil();
    let wire = bytes + packets * preset.header_bytes as f64 + preset.reth_bytes as f64;
    preset.all_links_gbps() / 8.0 * 1e9 * bytes / wire
}

/// Measures `points`. Where a design relies on the order of a WRITE's bytes, the simulated RNICs declare it.
fn measure(
    bench: &mut Bench<'_>,
    t: &mut Table<Arm>,
    outcome: &mut Outcome,
    points: Vec<Point<Arm>>,
) -> Result<Measured<Arm>, RunError> {
    for Point { arm, .. } in &points {
        let note = arm.note();
        if !t.arms.contains(&note) {
            t.arms.push(note);
        }
    }
    notes(bench, t, outcome);
    let sweep = Sweep::over("", Wall::from_millis(30), Wall::from_secs(2));
    bench.measure(points, sweep, |bench, point, time| {
        let bed = bed(bench, point.arm.design)?;
        let mut task = point.arm.task(bed.is_simulated());
        if !bed.is_simulated() {
            let (warm, run) = warm_and_run(time);
            (task.warm_ns, task.run_ns) = (warm, run);
        }
        let result = patterns::run(&task, &bed, bench.stop())?;
        let mut sample: Sample = result.latency().into();
        for (quantity, value) in [
            (RATE, Some(result.per_second)),
            (BYTES, Some(result.bytes_per_second)),
            (QUEUE_PAIRS, Some(result.queue_pairs as f64)),
            (EMPTY, Some(result.empty_mailboxes)),
            (
                EMPTY_POLLS,
                result.empty_polls.filter(|_| !bed.is_simulated()),
            ),
            (
                CYCLES,
                match clock(bench)? {
                    Some(hz) => Some(hz / result.per_responder),
                    None => result.responder_work.map(|work| work.cycles),
                },
            ),
        ] {
            if let Some(value) = value {
                sample = sample.with(quantity, value);
            }
        }
        Ok(Some(sample))
    })
}

/// Says what the device can show.
fn notes(bench: &Bench<'_>, t: &mut Table<Arm>, outcome: &mut Outcome) {
    if bench.testbed.is_simulated() {
        outcome.pinning = "each thread on a simulated core of its own".to_owned();
        t.note(
            "Everything is simulated, in virtual time. A NUMA node with its RNIC is a simulated host of 14 cores, two of \
             which are one of the paper's machines. Designs with the flag in the message run on RNICs that declare the \
             order of a WRITE's bytes (`nic.write_order`), as the paper assumes; RB² found none on the same card. Those \
             with `+flag` need no such order. The lock of shared receive queues (`cpu.srq_lock`) is fitted to one value \
             of section 6; everything else is a prediction. A polling responder uses all cycles of its core, so its \
             cycles for a message are the clock over the rate.",
        );
        return;
    }
    t.without_verdicts();
    t.note(
        "No verdict on the paper's findings comes from this device: the requester's core executes the RNIC's copies, and \
         the requesters are connections of one thread, each with its own request outstanding. Cycles are those of the \
         processor's counters, where they can be read.",
    );
}

/// The clock of a simulated core in Hz.
fn clock(bench: &Bench<'_>) -> Result<Option<f64>, WorkloadError> {
    Ok(machine(bench)?.map(|(preset, _)| preset.clock_ghz * 1e9))
}

/// The simulated machine, with the cores of a NUMA node.
fn machine(bench: &Bench<'_>) -> Result<Option<(Preset, u64)>, WorkloadError> {
    let Some(machine) = bench.options.machine() else {
        return Ok(None);
    };
    let (mut preset, seed) = machine.map_err(|why| WorkloadError::at("device", why))?;
    if !bench.options.is_set("cpu.cores") {
        preset
            .set("cpu.cores", CORES)
            .map_err(|why| WorkloadError::at("cpu.cores", why))?;
    }
    Ok(Some((preset, seed)))
}

/// Where a point runs.
fn bed(bench: &Bench<'_>, design: Design) -> Result<PatternBed, WorkloadError> {
    let mut bed = PatternBed {
        world: bench.testbed.world.clone(),
        devices: bench.testbed.devices.clone(),
        usage_monitor: None,
        actors_per_host: PER_SERVER,
        responder_hosts: RESPONDER_RNICS,
    };
    if let Some((mut preset, seed)) = machine(bench)? {
        if design.flag == MailboxFlag::InMessage && preset.write_order_bytes == 0 {
            let set = preset.set("nic.write_order", DECLARED_ORDER);
            set.map_err(|why| WorkloadError::at("nic.write_order", why))?;
        }
        let mut actors = ActorRegistry::new();
        patterns::register(&mut actors, Some(PatternPrices::of(&preset)));
        bed.world = Arc::new(SimWorld::new(actors, preset, seed));
    }
    Ok(bed)
}

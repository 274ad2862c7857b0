//! Figures 8 and 9: what applications take of memory and processors, over how many of them a host has. Each asks its peer
//! on the other host short questions, over several connections.

use std::time::Duration;

use rustix::process::Pid;
use tempfile::TempDir;

use super::points::{Point, Points, at, drawing, sampled};
use super::{PORT, PROCESSES, note, paper, pinning};
use crate::bench::{Bench, Rounds};
use crate::error::RunError;
use crate::experiment::{About, Programmed, RunsOn};
use crate::format::svg::Axis;
use crate::outcome::{ArmNote, Outcome};
use crate::service::Role;
use crate::service::app::{App, By, Order, RECEIVE, RECEIVES, Said};
use crate::service::control::Told;
use crate::service::hosts::Hosts;
use crate::service::rusage::{Load, memory as taken};
use crate::testbed::Testbed;
use crate::transports::ArmError;

/// Applications of a host.
const APPLICATIONS: [u64; 5] = [1, 2, 4, 8, 16];
const MOST: u64 = 16;
/// Connections of each, to its peer on the other host.
const CONNECTIONS: usize = 16;
/// Questions of each, in a second.
const PER_SECOND: f64 = 500.0;
/// Until an application has done what one does at first.
const WARM: Duration = Duration::from_millis(100);
/// What takes so long has hung.
const LIMIT: Duration = Duration::from_secs(30);
/// Beside what is measured, for each application.
const OVERHEAD: Duration = Duration::from_millis(350);
const SHARE: f64 = 0.85;
const MIB: f64 = 1048576.0;

const SERVICE: &str = "service";
const NATIVE: &str = "native";
const SLEEPING: &str = "native, sleeping";
const BARE: &str = "nothing";

/// What was seen of an arm.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Bytes, of all of its processes; of the daemons among them, without what they share with applications; and bytes
    /// that are mapped.
    memory: f64,
    of_daemons: f64,
    mapped: f64,
    /// Processors that it used while it was asked, and while it was not.
    loaded: f64,
    idle: f64,
    /// The same, with what waited for one.
    wanted: f64,
    /// Of what should have been answered.
    carried: f64,
}

/// What is to be seen: for how long each.
#[derive(Clone, Copy)]
struct Times {
    loaded: Duration,
    idle: Duration,
}

fn points_of(arms: &[&'static str]) -> Vec<Point> {
    let of = |applications: u64| arms.iter().map(move |arm| at(arm, applications));
    APPLICATIONS.into_iter().flat_map(of).collect()
}

type Samples = Rounds<&'static str, Seen>;

fn see(
    bench: &mut Bench<'_>,
    arms: &[&'static str],
    times: impl Fn(Duration) -> Times,
) -> Result<(Vec<Point>, Samples), RunError> {
    let all = points_of(arms);
    let full = Duration::from_secs(2);
    let run = bench.time_per_point(all.len(), SHARE, OVERHEAD, full);
    let rounds = sampled(bench, &all, "applications", |bench, point| {
        measure(bench, point, times(bench.hurried(run)))
    })?;
    Ok((all, rounds))
}

fn measure(bench: &Bench<'_>, point: Point, times: Times) -> Result<Seen, ArmError> {
    let mut party = Party::start(bench, point)?;
    let stop = bench.stop();
    party.hear(Said::Ready, bench)?;
    party.tell(Order::Connect)?;
    party.hear(Said::Connected, bench)?;
    let mut seen = Seen::default();
    if point.arm != BARE {
        let asked = WARM + times.loaded + WARM;
        let order = Order::Ask {
            per_second: PER_SECOND,
            for_ns: asked.as_nanos() as u64,
        };
        for [asking, _] in &mut party.pairs {
            asking.tell(&order)?;
        }
        std::thread::sleep(WARM);
        let load = Load::of(&party.pids(), times.loaded)?;
        seen.loaded = load.runs;
        seen.wanted = load.runs + load.waits;
        let mut answered = 0;
        for [asking, _] in &mut party.pairs {
            if let Said::Answered(these) = asking.hear(LIMIT, stop)? {
                answered += these;
            }
        }
        let due = PER_SECOND * asked.as_secs_f64() * point.x as f64;
        seen.carried = answered as f64 / due;
        std::thread::sleep(WARM);
        seen.idle = Load::of(&party.pids(), times.idle)?.runs;
    }
    // What an application shares with its daemon is counted as the application's: they come first.
    let all = taken(&party.pids())?;
    let of_applications = all.len() - party.daemons().len();
    for (at, memory) in all.into_iter().enumerate() {
        let bytes = memory.bytes() as f64;
        seen.memory += bytes;
        seen.mapped += memory.mapped as f64;
        if at >= of_applications {
            seen.of_daemons += bytes;
        }
    }
    Ok(seen)
}

/// The processes of an arm.
struct Party {
    pairs: Vec<[Told; 2]>,
    hosts: Option<Hosts>,
    _directory: TempDir,
}

impl Party {
    fn start(bench: &Bench<'_>, point: Point) -> Result<Self, ArmError> {
        let Testbed { devices, cpus, .. } = &bench.place;
        let directory = tempfile::Builder::new().prefix("headworks-").tempdir();
        let directory = directory.map_err(|error| ArmError::at("private directory", error))?;
        let hosts = match point.arm {
            SERVICE => Some(Hosts::start(devices, cpus, bench.stop())?),
            _ => None,
        };
        let mut pairs = Vec::new();
        for number in 0..point.x as u16 {
            let start = |host: usize| {
                let by = match (&hosts, point.arm) {
                    (Some(hosts), _) => By::Service {
                        socket: hosts.socket(host),
                        first: hosts.at(1, PORT),
                    },
                    (None, BARE) => By::Nothing,
                    (None, arm) => By::Verbs {
                        device: devices[host].to_string(),
                        polls: arm == NATIVE,
                    },
                };
                let app = App {
                    by,
                    number,
                    asks: host == 0,
                    connections: CONNECTIONS,
                    holds: None,
                };
                Told::start(&Role::App(app), cpus[host], directory.path())
            };
            pairs.push([start(0)?, start(1)?]);
        }
        Ok(Self {
            pairs,
            hosts,
            _directory: directory,
        })
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Told> {
        self.pairs.iter_mut().flatten()
    }

    fn tell(&mut self, order: Order) -> Result<(), ArmError> {
        self.all().try_for_each(|one| one.tell(&order))
    }

    fn hear(&mut self, what: Said, bench: &Bench<'_>) -> Result<(), ArmError> {
        let mut all = self.all();
        all.try_for_each(|one| one.hear_that(what, LIMIT, bench.stop()))
    }

    fn daemons(&self) -> Vec<Pid> {
        let of = |hosts: &Hosts| [hosts.daemon(0), hosts.daemon(1)];
        self.hosts.as_ref().map(of).into_iter().flatten().collect()
    }

    fn pids(&self) -> Vec<Pid> {
        let own = self.pairs.iter().flatten().map(Told::pid);
        own.chain(self.daemons()).collect()
    }
}

fn notes(arms: &[&'static str]) -> Vec<ArmNote> {
    let arms = arms.iter().map(|arm| match *arm {
        SERVICE => note(
            SERVICE,
            "applications of the service, each asleep in poll(2) whenever nothing is there, with the two daemons",
            "block",
            "4 each way",
        ),
        NATIVE => {
            let what = format!(
                "each application has a device context, a queue pair for each connection, a completion queue, {RECEIVES} \
                 receives of {RECEIVE} bytes that its connections share, and a thread that polls, as the paper describes it"
            );
            note(NATIVE, &what, "poll", "1 each way")
        }
        SLEEPING => note(
            SLEEPING,
            "the same; the thread sleeps on a completion channel whenever nothing is there",
            "block",
            "1 each way",
        ),
        _ => note(
            BARE,
            "as many processes of the same program, which have neither daemon nor device",
            "block",
            "0",
        ),
    });
    arms.collect()
}

fn outcome(bench: &Bench<'_>, arms: &[&'static str]) -> Outcome {
    let mut outcome = bench.pinned(pinning);
    outcome.arms = notes(arms);
    let load = format!(
        "Each application of a host has {CONNECTIONS} connections with one on the other host, and asks {PER_SECOND} questions \
         of 64 bytes a second, over one connection after the other. Everything is new for each point. The paper normalises \
         its figures to one application, and its text states no number: that what native RDMA takes grows linearly, and \
         what the service does slowly."
    );
    outcome.notes.push(load);
    outcome
}

const FIG8_ARMS: [&str; 3] = [SERVICE, NATIVE, BARE];

/// How it presents itself, its metrics and what runs it.
pub static FIG8: Programmed = Programmed {
    about: About {
        paper: Some(paper("Figure 8")),
        runs_on: RunsOn::Real(PROCESSES),
        ..About::new(
            "raas-fig8",
            "Memory of 1 to 16 applications on each of two hosts: the service against verbs of their own.",
            "Bytes of all processes of an arm, of both hosts, the daemons among them, after a load: their own, and all that \
               the kernel has allocated for memory that they share or that devices use, counted once. Mapped is how much of \
               that was touched (PSS).",
        )
    },
    keys: &[
        "service_16_over_1",
        "native_16_over_1",
        "service_over_native_1",
        "service_over_native_16",
        "service_1_mib",
        "service_16_mib",
        "service_16_daemons_mib",
        "native_1_mib",
        "native_16_mib",
        "service_each_mib",
        "native_each_mib",
        "nothing_each_mib",
        "service_over_native_each",
        "service_over_native_each_above_nothing",
        "mapped_service_16_mib",
        "mapped_native_16_mib",
        "mapped_service_over_native_16",
        "mapped_service_16_over_1",
        "mapped_native_16_over_1",
    ],
    stated: &[],
    figures: &["fig8.svg"],
    run: run_fig8,
};

fn run_fig8(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    let mut outcome = outcome(bench, &FIG8_ARMS);
    let note = "What a key with each in it says is what another application on both hosts adds, between 1 and 16.";
    outcome.notes.push(note.to_owned());
    let times = |run: Duration| Times {
        loaded: run,
        idle: Duration::ZERO,
    };
    let (all, rounds) = see(bench, &FIG8_ARMS, times)?;
    memory(&mut outcome, &all, &rounds);
    Ok(outcome)
}

fn memory(outcome: &mut Outcome, all: &[Point], rounds: &Samples) {
    let points = Points::of(all, rounds, |seen| seen.memory);
    let [service, native, bare] = FIG8_ARMS.map(|arm| [at(arm, 1), at(arm, MOST)]);
    points.over(outcome, "service_16_over_1", service[1], service[0]);
    points.over(outcome, "native_16_over_1", native[1], native[0]);
    points.over(outcome, "service_over_native_1", service[0], native[0]);
    points.over(outcome, "service_over_native_16", service[1], native[1]);
    for (key, point) in [
        ("service_1_mib", service[0]),
        ("service_16_mib", service[1]),
        ("native_1_mib", native[0]),
        ("native_16_mib", native[1]),
    ] {
        points.figure(outcome, key, point, MIB);
    }
    let daemons = Points::of(all, rounds, |seen| seen.of_daemons);
    daemons.figure(outcome, "service_16_daemons_mib", service[1], MIB);
    let mapped = Points::of(all, rounds, |seen| seen.mapped);
    mapped.figure(outcome, "mapped_service_16_mib", service[1], MIB);
    mapped.figure(outcome, "mapped_native_16_mib", native[1], MIB);
    for (key, ours, theirs) in [
        ("mapped_service_over_native_16", service[1], native[1]),
        ("mapped_service_16_over_1", service[1], service[0]),
        ("mapped_native_16_over_1", native[1], native[0]),
    ] {
        mapped.over(outcome, key, ours, theirs);
    }
    let others = (MOST - 1) as f64;
    for (key, of) in [
        ("service_each_mib", service),
        ("native_each_mib", native),
        ("nothing_each_mib", bare),
    ] {
        points.above(outcome, key, (of[1], of[0]), MIB * others);
    }
    let each = |of| points.growth(of);
    let [service_each, native_each, bare_each] =
        [(SERVICE, service), (NATIVE, native), (BARE, bare)].map(|(arm, of)| (arm, each(of)));
    let why = points.why(&[service[0], native[0], bare[0]]);
    let key = "service_over_native_each";
    let ratio = crate::stats::paired_ratio(&service_each.1, &native_each.1);
    outcome.measured_or(key, ratio, why.clone());
    let above = |of: &[f64]| -> Vec<f64> {
        of.iter()
            .zip(&bare_each.1)
            .map(|(of, bare)| of - bare)
            .collect()
    };
    let key = "service_over_native_each_above_nothing";
    let ratio = crate::stats::paired_ratio(&above(&service_each.1), &above(&native_each.1));
    outcome.measured_or(key, ratio, why);
    let figure = drawing(
        "fig8.svg",
        "Memory of applications on two hosts",
        Axis::linear("applications of a host"),
        Axis::linear("[B]"),
    );
    points.write(outcome, figure, "[B]");
}

const FIG9_ARMS: [&str; 3] = [SERVICE, NATIVE, SLEEPING];

/// How it presents itself, its metrics and what runs it.
pub static FIG9: Programmed = Programmed {
    about: About {
        paper: Some(paper("Figure 9")),
        runs_on: RunsOn::Real(PROCESSES),
        ..About::new(
            "raas-fig9",
            "Processors that 1 to 16 applications on each of two hosts use: the service against verbs of their own.",
            "Processor time of all processes of an arm, of both hosts, the daemons among them, over time: at 500 questions a \
               second of each application, and at none. Also with the time that threads were ready to run and on no \
               processor, since what polls takes all that there is.",
        )
    },
    keys: &[
        "service_16_over_1",
        "native_16_over_1",
        "native_sleeping_16_over_1",
        "native_wanted_16_over_1",
        "service_over_native_1",
        "service_over_native_16",
        "service_over_native_wanted_16",
        "service_over_native_sleeping_1",
        "service_over_native_sleeping_16",
        "service_1_cores",
        "service_16_cores",
        "native_1_cores",
        "native_16_cores",
        "native_16_wanted_cores",
        "native_sleeping_1_cores",
        "native_sleeping_16_cores",
        "idle_service_16_cores",
        "idle_native_16_cores",
        "idle_native_sleeping_16_cores",
        "service_16_carried",
        "native_16_carried",
        "native_sleeping_16_carried",
    ],
    stated: &[],
    figures: &["fig9.svg"],
    run: run_fig9,
};

fn run_fig9(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    let mut outcome = outcome(bench, &FIG9_ARMS);
    let note = "Of processors that are used there are two, however many threads poll: those that were wanted are what \
                    more of them would be used. Carried is what was answered of what should have been.";
    outcome.notes.push(note.to_owned());
    let times = |run: Duration| Times {
        loaded: run * 2 / 3,
        idle: run / 3,
    };
    let (all, rounds) = see(bench, &FIG9_ARMS, times)?;
    processors(&mut outcome, &all, &rounds);
    Ok(outcome)
}

fn processors(outcome: &mut Outcome, all: &[Point], rounds: &Samples) {
    let of = |figure: fn(&Seen) -> f64| Points::of(all, rounds, figure);
    let (used, wanted) = (of(|seen| seen.loaded), of(|seen| seen.wanted));
    let (idle, carried) = (of(|seen| seen.idle), of(|seen| seen.carried));
    let [service, native, sleeping] = FIG9_ARMS.map(|arm| [at(arm, 1), at(arm, MOST)]);
    for (key, ours, theirs) in [
        ("service_16_over_1", service[1], service[0]),
        ("native_16_over_1", native[1], native[0]),
        ("native_sleeping_16_over_1", sleeping[1], sleeping[0]),
        ("service_over_native_1", service[0], native[0]),
        ("service_over_native_16", service[1], native[1]),
        ("service_over_native_sleeping_1", service[0], sleeping[0]),
        ("service_over_native_sleeping_16", service[1], sleeping[1]),
    ] {
        used.over(outcome, key, ours, theirs);
    }
    wanted.over(outcome, "native_wanted_16_over_1", native[1], native[0]);
    let key = "service_over_native_wanted_16";
    wanted.over(outcome, key, service[1], native[1]);
    for (name, of) in [
        ("service", service),
        ("native", native),
        ("native_sleeping", sleeping),
    ] {
        used.figure(outcome, &format!("{name}_1_cores"), of[0], 1.0);
        used.figure(outcome, &format!("{name}_16_cores"), of[1], 1.0);
        idle.figure(outcome, &format!("idle_{name}_16_cores"), of[1], 1.0);
        carried.figure(outcome, &format!("{name}_16_carried"), of[1], 1.0);
    }
    wanted.figure(outcome, "native_16_wanted_cores", native[1], 1.0);
    let figure = drawing(
        "fig9.svg",
        "Processors that applications on two hosts use",
        Axis::linear("applications of a host"),
        Axis::linear("[cores]"),
    );
    used.write(outcome, figure, "[cores]");
}

//! Figures 8 and 9: memory and processor time of applications, over the number of applications of a host.
//! Each sends short requests to its peer on the other host, over several connections.

use rustix::process::Pid;
use tempfile::TempDir;

use super::{PORT, PROCESSES, paper, pin, rows};
use crate::cases::prelude::*;
use crate::service::Role;
use crate::service::control::ControlledChild;
use crate::service::controlled_app::{
    AppCommand, AppReply, AppTransport, ControlledApp, RECEIVE, RECEIVES,
};
use crate::service::daemon_hosts::DaemonHosts;
use crate::service::rusage::{CpuLoad, memory, pause};

/// Numbers of applications of a host.
const APPLICATIONS: [u64; 5] = [1, 2, 4, 8, MOST];
const MOST: u64 = 16;
/// Connections of each application, to its peer on the other host.
const CONNECTIONS: usize = 16;
/// Requests of each application per second.
const PER_SECOND: f64 = 500.0;
/// Time after which an application has finished its start-up work.
const WARM: Wall = Wall::from_millis(100);
/// Time without a message after which a process counts as hung.
const LIMIT: Wall = Wall::from_secs(30);
const MIB: f64 = 1048576.0;

const SERVICE: &str = "service";
const NATIVE: &str = "native";
const SLEEPING: &str = "native, sleeping";
const BARE: &str = "nothing";

/// Bytes of all processes; bytes of the daemons alone, without the memory that they share with applications;
/// and mapped bytes of all processes.
const MEMORY: Quantity = "memory";
const OF_DAEMONS: Quantity = "of daemons";
const MAPPED: Quantity = "mapped";
/// Processors in use under load; the same with threads that wait for a processor; and processors in use
/// without load.
const USED: Quantity = "used";
const WANTED: Quantity = "wanted";
const IDLE: Quantity = "idle";
/// The fraction of all requests that was answered.
const CARRIED: Quantity = "carried";

fn of(arm: &'static str, applications: u64, quantity: Quantity) -> Expr<&'static str> {
    Expr::At(Point::at(arm, applications), quantity)
}

/// Adds the ratio of the value with the most applications to that with one.
fn grown(t: &mut Table<&'static str>, key: &str, arm: &'static str, quantity: Quantity) {
    let over = of(arm, MOST, quantity) / of(arm, 1, quantity);
    t.metric(format!("{key}_16_over_1"), over);
}

/// Adds the ratio of the service's value to another arm's, with `n` applications.
fn over(t: &mut Table<&'static str>, key: &str, arm: &'static str, (n, quantity): (u64, Quantity)) {
    t.metric(
        format!("{key}_{n}"),
        of(SERVICE, n, quantity) / of(arm, n, quantity),
    );
}

const fn about(
    name: &'static str,
    figure: &'static str,
    line: &'static str,
    measures: &'static str,
) -> About {
    About {
        paper: paper(figure),
        runs_on: PROCESSES,
        ..About::new(name, line, measures)
    }
}

/// Figure 8.
pub static FIG8: Case<&str> = Case {
    about: about(
        "raas-fig8",
        "Figure 8",
        "Memory of 1 to 16 applications on each of two hosts: the service against direct use of verbs.",
        "Bytes of all processes of an arm on both hosts, including the daemons, after a load: the processes' own \
         memory, and all memory that the kernel has allocated for them to share or for devices to use, each counted \
         once. Mapped is the part of it that was touched (PSS).",
    ),
    table: || {
        let mut t = table(
            &[SERVICE, NATIVE, BARE],
            ("fig8.svg", "Memory of applications on two hosts", "[B]"),
            MEMORY,
        );
        for (name, arm) in [("service", SERVICE), ("native", NATIVE)] {
            grown(&mut t, name, arm, MEMORY);
            grown(&mut t, &format!("mapped_{name}"), arm, MAPPED);
            for n in [1, MOST] {
                t.metric(format!("{name}_{n}_mib"), of(arm, n, MEMORY) / MIB);
            }
            t.metric(format!("mapped_{name}_16_mib"), of(arm, MOST, MAPPED) / MIB);
        }
        over(&mut t, "service_over_native", NATIVE, (1, MEMORY));
        over(&mut t, "service_over_native", NATIVE, (MOST, MEMORY));
        over(&mut t, "mapped_service_over_native", NATIVE, (MOST, MAPPED));
        t.metric(
            "service_16_daemons_mib",
            of(SERVICE, MOST, OF_DAEMONS) / MIB,
        );
        let added = |arm| of(arm, MOST, MEMORY) - of(arm, 1, MEMORY);
        for (name, arm) in [("service", SERVICE), ("native", NATIVE), ("nothing", BARE)] {
            t.metric(
                format!("{name}_each_mib"),
                added(arm) / (MIB * (MOST - 1) as f64),
            );
        }
        t.metric("service_over_native_each", added(SERVICE) / added(NATIVE));
        let [service, native] = [SERVICE, NATIVE].map(|arm| added(arm) - added(BARE));
        t.metric("service_over_native_each_above_nothing", service / native);
        t.note("A key that contains \"each\" is the increase per additional application on both hosts, between 1 and \
                16 applications.");
        t
    },
    measure: |bench, _, outcome| {
        measure(bench, outcome, &[SERVICE, NATIVE, BARE], |time| {
            [time, Wall::ZERO]
        })
    },
};

/// Figure 9.
pub static FIG9: Case<&str> = Case {
    about: about(
        "raas-fig9",
        "Figure 9",
        "Processors that 1 to 16 applications on each of two hosts use: the service against direct use of verbs.",
        "Processor time per unit of time of all processes of an arm on both hosts, including the daemons: with 500 \
         requests a second from each application, and with none. A further figure adds the time that threads were \
         ready to run but had no processor, because polling threads use all processors there are.",
    ),
    table: || {
        let title = "Processors that applications on two hosts use";
        let mut t = table(
            &[SERVICE, NATIVE, SLEEPING],
            ("fig9.svg", title, "[cores]"),
            USED,
        );
        for (name, arm) in [
            ("service", SERVICE),
            ("native", NATIVE),
            ("native_sleeping", SLEEPING),
        ] {
            grown(&mut t, name, arm, USED);
            t.metric(format!("{name}_1_cores"), of(arm, 1, USED));
            t.metric(format!("{name}_16_cores"), of(arm, MOST, USED));
            t.metric(format!("idle_{name}_16_cores"), of(arm, MOST, IDLE));
            t.metric(format!("{name}_16_carried"), of(arm, MOST, CARRIED));
        }
        for n in [1, MOST] {
            over(&mut t, "service_over_native", NATIVE, (n, USED));
            over(&mut t, "service_over_native_sleeping", SLEEPING, (n, USED));
        }
        grown(&mut t, "native_wanted", NATIVE, WANTED);
        over(&mut t, "service_over_native_wanted", NATIVE, (MOST, WANTED));
        t.metric("native_16_wanted_cores", of(NATIVE, MOST, WANTED));
        t.note(
            "The processes have two processors, so \"used\" is at most 2, however many threads poll. \"Wanted\" is \
             the number that they would use if there were more. \"Carried\" is the fraction of all requests that was \
             answered.",
        );
        t
    },
    measure: |bench, _, outcome| {
        measure(bench, outcome, &[SERVICE, NATIVE, SLEEPING], |time| {
            [time * 2 / 3, time / 3]
        })
    },
};

fn table(
    arms: &[&'static str],
    (file, title, unit): (&str, &str, &str),
    quantity: Quantity,
) -> Table<&'static str> {
    let axes = (Axis::linear("applications of a host"), Axis::linear(unit));
    let mut t = rows(file, title, axes, quantity);
    t.arms = arms.iter().map(|name| note(name)).collect();
    t.note(format!(
        "Each application of a host has {CONNECTIONS} connections to one on the other host, and sends {PER_SECOND} \
         requests of 64 bytes a second, over one connection after the other. All processes are started anew for each \
         point. The paper normalises its figures to one application. Its text states no number, only that native \
         RDMA takes linearly more and that the service grows slowly (VI-A)."
    ));
    t
}

fn note(name: &'static str) -> ArmNote {
    match name {
        SERVICE => {
            let what = "applications of the service, with the two daemons; each application sleeps in poll(2) \
                        whenever nothing has arrived";
            arm(name, what, "block", "5 each way")
        }
        NATIVE => {
            let what = format!(
                "each application has a device context, a queue pair for each connection, a completion queue, {RECEIVES} \
                 receives of {RECEIVE} bytes that its connections share, and a thread that polls, as the paper describes it"
            );
            arm(name, what, "poll", "1 each way")
        }
        SLEEPING => {
            let what = "as native, but the thread sleeps on a completion channel whenever nothing has arrived";
            arm(name, what, "block", "1 each way")
        }
        _ => {
            let what =
                "the same number of processes of the same program, with neither daemon nor device";
            arm(name, what, "block", "0")
        }
    }
}

/// Measures all points. `times` divides the time of a point into loaded and idle time.
fn measure(
    bench: &mut Bench<'_>,
    outcome: &mut Outcome,
    arms: &[&'static str],
    times: fn(Wall) -> [Wall; 2],
) -> Result<Measured<&'static str>, RunError> {
    pin(bench, outcome);
    let overhead = Wall::from_millis(350);
    let sweep = Sweep::over("applications", overhead, Wall::from_secs(2));
    let measured = bench.measure(
        grid("", arms, &APPLICATIONS),
        sweep,
        |bench, point, time| sample(bench, point, times(time)).map(Some),
    )?;
    Ok(measured.by_arm())
}

fn sample(
    bench: &Bench<'_>,
    point: &Point<&'static str>,
    [loaded, idle]: [Wall; 2],
) -> Result<Sample, WorkloadError> {
    let mut app_pairs = AppPairs::start(bench, point)?;
    app_pairs.expect_reply(AppReply::Ready, bench)?;
    app_pairs.send(AppCommand::Connect)?;
    app_pairs.expect_reply(AppReply::Connected, bench)?;
    let mut seen = Vec::new();
    if point.arm != BARE {
        let asked = WARM + loaded + WARM;
        let order = AppCommand::Ask {
            per_second: PER_SECOND,
            for_ns: asked.as_nanos() as u64,
        };
        for [asking, _] in &mut app_pairs.pairs {
            asking.send(&order)?;
        }
        pause(WARM, bench.stop())?;
        let load = CpuLoad::of(&app_pairs.pids(), loaded, bench.stop())?;
        let mut answered = 0;
        for [asking, _] in &mut app_pairs.pairs {
            if let AppReply::Answered(these) = asking.receive(LIMIT, bench.stop())? {
                answered += these;
            }
        }
        let due = PER_SECOND * asked.as_secs_f64() * point.x as f64;
        pause(WARM, bench.stop())?;
        let unloaded = CpuLoad::of(&app_pairs.pids(), idle, bench.stop())?;
        seen.extend([
            (USED, load.runs),
            (WANTED, load.runs + load.waits),
            (CARRIED, answered as f64 / due),
            (IDLE, unloaded.runs),
        ]);
    }
    // Applications come first: memory that one shares with its daemon is counted as the application's.
    let all = memory(&app_pairs.pids())?;
    let daemons = &all[2 * app_pairs.pairs.len()..];
    seen.extend([
        (MEMORY, all.iter().map(|of| of.bytes() as f64).sum()),
        (OF_DAEMONS, daemons.iter().map(|of| of.bytes() as f64).sum()),
        (MAPPED, all.iter().map(|of| of.mapped as f64).sum()),
    ]);
    Ok(Sample::of(seen))
}

/// The processes of an arm.
struct AppPairs {
    pairs: Vec<[ControlledChild; 2]>,
    hosts: Option<DaemonHosts>,
    _directory: TempDir,
}

impl AppPairs {
    fn start(bench: &Bench<'_>, point: &Point<&'static str>) -> Result<Self, WorkloadError> {
        let Testbed { devices, cpus, .. } = &bench.testbed;
        let directory = tempfile::Builder::new().prefix("headworks-").tempdir();
        let directory = directory.map_err(|error| WorkloadError::at("private directory", error))?;
        let hosts = match point.arm {
            SERVICE => Some(DaemonHosts::start(devices, cpus, bench.stop())?),
            _ => None,
        };
        let start = |number, host: usize| {
            let by = match (&hosts, point.arm) {
                (Some(hosts), _) => AppTransport::Service {
                    socket: hosts.socket(host),
                    first: hosts.at(1, PORT),
                },
                (None, BARE) => AppTransport::Nothing,
                (None, arm) => AppTransport::Verbs {
                    device: devices[host].to_string(),
                    polls: arm == NATIVE,
                },
            };
            let app = ControlledApp {
                by,
                number,
                asks: host == 0,
                connections: CONNECTIONS,
                holds: None,
            };
            ControlledChild::start(&Role::App(app), cpus[host], directory.path())
        };
        let pairs = (0..point.x as u16).map(|number| Ok([start(number, 0)?, start(number, 1)?]));
        let pairs: Result<_, WorkloadError> = pairs.collect();
        Ok(Self {
            pairs: pairs?,
            hosts,
            _directory: directory,
        })
    }

    fn send(&mut self, order: AppCommand) -> Result<(), WorkloadError> {
        let mut all = self.pairs.iter_mut().flatten();
        all.try_for_each(|one| one.send(&order))
    }

    fn expect_reply(&mut self, what: AppReply, bench: &Bench<'_>) -> Result<(), WorkloadError> {
        let mut all = self.pairs.iter_mut().flatten();
        all.try_for_each(|one| one.expect_reply(what, LIMIT, bench.stop()))
    }

    /// Returns the process ids of the applications, and then of the daemons.
    fn pids(&self) -> Vec<Pid> {
        let own = self.pairs.iter().flatten().map(ControlledChild::pid);
        let daemons = self
            .hosts
            .iter()
            .flat_map(|hosts| [hosts.daemon(0), hosts.daemon(1)]);
        own.chain(daemons).collect()
    }
}

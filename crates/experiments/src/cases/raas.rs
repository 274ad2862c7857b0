//! "Toward Deploying Scalable and Effective RDMA as a Service at End-hosts through Reliable Connection"
//! (RaaS): traffic through daemons, compared with verbs without daemons and with TCP, and over many
//! connections.
//!
//! | module | content |
//! |---|---|
//! | [`verb_sizes`] | verbs over size: Figure 1 |
//! | [`lock_contention`] | threads that share a queue pair under a lock, or use the service: Figures 2 and 7 |
//! | [`reads`] | random READs over many connections and in a cluster: Figures 6 and 10 |
//! | [`atomics`] | atomics by verbs and by daemons: Figure 12 |
//! | `one_sided` | one-sided requests on this machine and in virtual time, for the three modules above |
//! | [`scaling`] | requests per second over the number of a daemon's workers |
//! | [`latency`] | latency over size, and throughput without copies: Figure 11 |
//! | [`applications`] | memory and processor time of applications: Figures 8 and 9 |
//! | [`request_response`] | request and response, compared with TCP and beside a stream |
//! | [`connections`] | many idle connections |

pub mod applications;
pub mod atomics;
pub mod connections;
pub mod latency;
pub mod lock_contention;
mod one_sided;
pub mod reads;
pub mod request_response;
pub mod scaling;
pub mod verb_sizes;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use headworks::verbs::DeviceName;

use crate::cases::prelude::*;
use crate::service::Role;
use crate::service::daemon_hosts::{DaemonHosts, DaemonOptions};
use crate::service::load::{LoadClient, LoadFigure, LoadKind, LoadTransport, StreamWaiting};
use crate::service::virtual_time::{LoadResult, Machine, OneSidedLoad, RequestPath};

const fn paper(figure: &'static str) -> Option<Paper> {
    Some(Paper {
        title: "Toward Deploying Scalable and Effective RDMA as a Service at End-hosts through Reliable Connection",
        year: 2018,
        figure,
    })
}

/// The reason why some of these experiments do not run in virtual time.
const PROCESSES: RunsOn = RunsOn::Real(
    "its daemons and applications are processes of this machine, measured by the wall clock",
);
/// Time of a point beside the measurement: a process starts, attaches and ends.
const OVERHEAD: Wall = Wall::from_millis(60);
/// Time beyond its planned duration after which a process counts as hung.
const HUNG: Wall = Wall::from_secs(30);
/// Port of the applications that respond.
const PORT: u16 = 7000;

/// Makes a table with a row for each point, and a chart in `file` with a line for each arm: a quantity over
/// x.
fn rows<A: Copy + PartialEq + fmt::Display + 'static>(
    file: &str,
    title: &str,
    (x, y): (Axis, Axis),
    quantity: Quantity,
) -> Table<A> {
    let of = move |point: &Point<A>| Expr::At(*point, quantity);
    let unit = y.title.clone();
    let mut t = Table::new(Vec::new());
    t.arm().x(x.title.clone()).median(unit.clone(), of);
    t.median(format!("low {unit}"), move |point| {
        of(point).all(|spread| spread.low)
    });
    t.median(format!("high {unit}"), move |point| {
        of(point).all(|spread| spread.high)
    });
    t.repeats(of).lines(file, title, (x, y), of);
    t
}

/// Records in the outcome which processor each process runs on.
fn pin(bench: &Bench<'_>, outcome: &mut Outcome) {
    let [here, there] = bench.testbed.cpus;
    outcome.pinning = format!(
        "requesting applications and the daemon of their host on cpu {here}, all processes of the other hosts on cpu \
         {there}, for every arm that does not say otherwise"
    );
}

/// Daemons, and the applications on all hosts but the first, which the first host's applications connect to.
struct Daemons {
    hosts: DaemonHosts,
    to: Vec<SocketAddr>,
    /// Addresses of the TCP servers, by their processor.
    tcp: BTreeMap<usize, SocketAddr>,
}

impl Daemons {
    /// Starts daemons on `count` hosts: the bench's two, and others like the second.
    fn start(bench: &Bench<'_>, count: usize) -> Result<Self, WorkloadError> {
        let [here, there] = &bench.testbed.devices;
        Self::start_on(
            bench,
            vec![here.clone(), there.clone()],
            count,
            &DaemonOptions::default(),
        )
    }

    /// Starts two daemons whose applications use the direct path, on devices like the bench's.
    fn start_direct(bench: &Bench<'_>) -> Result<Self, WorkloadError> {
        let mut devices = Vec::new();
        for (host, device) in bench.testbed.devices.iter().enumerate() {
            devices.push(match device.kind() {
                "soft" => format!("soft:direct{host}")
                    .parse()
                    .map_err(|why| WorkloadError::at("a device's name", why))?,
                _ => device.clone(),
            });
        }
        let options = DaemonOptions {
            is_direct: true,
            ..DaemonOptions::default()
        };
        let count = devices.len();
        Self::start_on(bench, devices, count, &options)
    }

    fn start_on(
        bench: &Bench<'_>,
        mut devices: Vec<DeviceName>,
        count: usize,
        options: &DaemonOptions,
    ) -> Result<Self, WorkloadError> {
        let [here, there] = bench.testbed.cpus;
        for host in devices.len()..count {
            let name = match devices[1].kind() {
                "soft" => format!("soft:cluster{host}"),
                _ => devices[1].to_string(),
            };
            let name = name.parse();
            devices.push(name.map_err(|why| WorkloadError::at("a device's name", why))?);
        }
        let mut cpus = vec![there; count];
        cpus[0] = here;
        let options = vec![options.clone(); count];
        let mut hosts = DaemonHosts::start_with(&devices, &cpus, &options, bench.stop())?;
        let to = (1..count).map(|host| hosts.serve(host, PORT, bench.stop()));
        let to = to.collect::<Result<_, _>>()?;
        let tcp = BTreeMap::new();
        Ok(Self { hosts, to, tcp })
    }

    /// Returns the address of the TCP server on a processor; starts the server if there is none.
    fn tcp(&mut self, bench: &Bench<'_>, cpu: usize) -> Result<SocketAddr, WorkloadError> {
        if let Some(to) = self.tcp.get(&cpu) {
            return Ok(*to);
        }
        let to = self.hosts.serve_tcp(cpu, bench.stop())?;
        self.tcp.insert(cpu, to);
        Ok(to)
    }

    /// Returns streams of the service from the first host to an application on each of `others` other hosts.
    fn streams(&self, others: usize, waiting: StreamWaiting) -> LoadTransport {
        LoadTransport::Service {
            socket: self.hosts.socket(0),
            to: self.to[..others].to_vec(),
            waiting,
        }
    }

    /// Runs an application on the first host for `time`, a fifth of which is warm-up, and returns its value.
    fn ask(
        &self,
        bench: &Bench<'_>,
        what: LoadKind,
        by: LoadTransport,
        time: Wall,
    ) -> Result<f64, WorkloadError> {
        Ok(self.ask_figure(bench, what, by, time)?.value)
    }

    /// As [`ask`](Self::ask), with the latencies.
    fn ask_figure(
        &self,
        bench: &Bench<'_>,
        what: LoadKind,
        by: LoadTransport,
        time: Wall,
    ) -> Result<LoadFigure, WorkloadError> {
        let asking = asking(what, by, warm_and_run(time));
        let (cpu, limit) = (bench.testbed.cpus[0], time + HUNG);
        self.hosts.run_child(&asking, cpu, limit, bench.stop())
    }
}

fn asking(what: LoadKind, by: LoadTransport, (warm, run): (Wall, Wall)) -> Role {
    Role::Load(LoadClient {
        what,
        by,
        warm_ns: warm.as_nanos() as u64,
        run_ns: run.as_nanos() as u64,
    })
}

/// Divides `time` into warm-up and measured time.
fn warm_and_run(time: Wall) -> (Wall, Wall) {
    (time / 5, time / 5 * 4)
}

/// Measures points on `hosts` hosts, each with a daemon. If the daemons do not start, every point fails with
/// their error.
fn on_daemons<A: Copy + PartialEq + fmt::Display>(
    bench: &mut Bench<'_>,
    outcome: &mut Outcome,
    hosts: usize,
    (points, sweep): (Vec<Point<A>>, Sweep),
    mut sample: impl FnMut(&Bench<'_>, &mut Daemons, &Point<A>, Wall) -> Result<Sample, WorkloadError>,
) -> Result<Measured<A>, RunError> {
    pin(bench, outcome);
    bench.check()?;
    let mut served = Daemons::start(bench, hosts);
    let measured = bench.measure(points, sweep, |bench, point, time| {
        let served = served
            .as_mut()
            .map_err(|why| WorkloadError(why.0.clone()))?;
        sample(bench, served, point, time).map(Some)
    })?;
    Ok(measured.by_arm())
}

/// Measures points in virtual time.
fn in_virtual_time<A: Copy + PartialEq + fmt::Display>(
    bench: &mut Bench<'_>,
    outcome: &mut Outcome,
    (points, sweep): (Vec<Point<A>>, Sweep),
    mut sample: impl FnMut(&Bench<'_>, &Point<A>) -> Result<Sample, WorkloadError>,
) -> Result<Measured<A>, RunError> {
    outcome.pinning = "each daemon, thread and application has a simulated core of its own while its host has one \
                       left; the others share cores in turns"
        .to_owned();
    outcome.notes.push(
        "Everything is simulated, in virtual time. The service runs the core of the real daemon and the \
         application's side of it. Copies and calls of verbs cost what the model says. The processor time of the \
         remaining code was measured elsewhere and is charged. The values in the paper's figures are known only \
         where its text states them."
            .to_owned(),
    );
    let measured = bench.measure(points, sweep, |bench, point, _| {
        sample(bench, point).map(Some)
    })?;
    Ok(measured.by_arm())
}

/// Returns the machine that the device simulates.
fn machine(bench: &Bench<'_>) -> Result<Machine, WorkloadError> {
    let machine = bench.options.machine();
    let machine = machine.ok_or_else(|| WorkloadError("the device is not simulated".to_owned()))?;
    let (preset, seed) = machine.map_err(|why| WorkloadError::at("device", why))?;
    Ok(Machine { preset, seed })
}

/// Runs a load in virtual time, for `run` in a full run and a quarter of that in a quick one. The warm-up is
/// a fifth of `run` in both, because the outstanding requests take the same time to reach a steady state.
fn simulate(
    bench: &Bench<'_>,
    load: OneSidedLoad,
    arm: RequestPath,
    run: Duration,
) -> Result<LoadResult, WorkloadError> {
    let part = if bench.options.quick { 4 } else { 1 };
    let times = [5, part].map(|part| Duration::from_nanos(run.nanos() / part));
    load.measure(arm, &machine(bench)?, times.into(), bench.stop())
}

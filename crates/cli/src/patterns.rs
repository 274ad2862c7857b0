//! `headworks patterns` and `headworks advise`: request and response patterns by a plan, and what its results favour.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use headworks::net::Interrupt;
use headworks::runtime::{
    ACTORS_MAX, ActorRegistry, InProcess, Processes, Ranks, World, serve_rank,
};
use headworks::sim::{Setting, SimWorld, is_simulated};
use headworks::verbs::DeviceName;
use headworks_experiments::patterns::advice::{Described, RankedBy, advise};
use headworks_experiments::patterns::plan::{Plan, PlanPoint, parse_bytes};
use headworks_experiments::patterns::results::{MeasuredPoint, Results, ResultsError, RunOf};
use headworks_experiments::patterns::run::PatternBed;
use headworks_experiments::patterns::{self, Connections, MailboxFlag, PatternPrices};
use headworks_experiments::progress_bar::ProgressReporter;
use headworks_experiments::{Options, simulated_machine};

use crate::exit_status::{bad_input, interrupted_but, print};

/// How often an interrupt is looked for.
const INTERRUPT_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Port of rank 0 if all ranks are on one machine and none is given.
const PORT: u16 = 7471;

/// Subcommands of `headworks patterns`.
#[derive(Subcommand)]
pub(crate) enum Patterns {
    /// Measure every design of a plan, into a folder that `headworks advise` reads.
    ///
    /// Points that the folder already has are not measured again, so an interrupted run goes on where it ended. Under
    /// mpirun every rank runs this command; rank 0 coordinates and writes the results.
    Run(Box<Run>),
    /// Print the results in a folder as CSV.
    Show {
        /// Folder that `headworks patterns run` wrote
        folder: PathBuf,
        /// Print what the counters of RDMA NICs grew by, in place of rates and latencies
        #[arg(long)]
        counters: bool,
    },
}

/// Where the requesters and responders run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Place {
    /// In threads of this process
    Threads,
    /// In processes of this machine
    Processes,
}

/// Arguments of `headworks patterns run`.
#[derive(Args)]
pub(crate) struct Run {
    /// Plan in TOML: designs, responses, requesters, responders, outstanding, seconds, repeats
    plan: PathBuf,
    /// Folder of the results
    #[arg(long, default_value = "results/patterns")]
    out: PathBuf,
    /// Device of the requesters; with sim:PRESET in virtual time
    #[arg(long, default_value = headworks::DEFAULT_DEVICE, value_parser = crate::args::device)]
    device: DeviceName,
    /// Device of the responders, if it is another
    #[arg(long, value_parser = crate::args::device)]
    peer_device: Option<DeviceName>,
    /// Constants of the simulated machines, KEY=VALUE
    #[arg(long)]
    set: Vec<Setting>,
    /// Where the requesters and responders run, unless time is virtual or mpirun started the ranks
    #[arg(long, value_enum, default_value = "processes")]
    place: Place,
    /// Where rank 0 listens for the other ranks, HOST:PORT; by default port 7471 of this machine
    #[arg(long, value_name = "HOST:PORT")]
    rendezvous: Option<String>,
    /// Seconds that all ranks have to come
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    rank_timeout: u64,
}

/// Arguments of `headworks advise`.
#[derive(Args)]
pub(crate) struct Advise {
    /// Number of requesters, as in the plan: its requesters_per_thread says how many share a thread
    #[arg(long)]
    requesters: usize,
    /// Number of responders
    #[arg(long, default_value_t = 1)]
    responders: usize,
    /// Bytes of a response, such as 64 or 4KiB
    #[arg(long, value_parser = bytes)]
    response: usize,
    /// Requests that each requester has outstanding
    #[arg(long, default_value_t = 1)]
    outstanding: u32,
    /// Ranking of the designs: by the highest rate, or by the lowest 99th percentile of latency
    #[arg(long, value_enum, default_value = "rate")]
    by: By,
    /// Folder of the results of `headworks patterns run`
    #[arg(long, default_value = "results/patterns")]
    results: PathBuf,
}

/// The quantity by which designs are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// The highest rate
    Rate,
    /// The lowest 99th percentile of latency
    Tail,
}

fn bytes(text: &str) -> Result<usize, String> {
    parse_bytes(text).ok_or_else(|| "a number, with B, KiB, MiB or GiB behind it".to_owned())
}

/// Runs a plan, or shows results.
pub(crate) fn run(command: &Patterns) -> anyhow::Result<()> {
    match command {
        Patterns::Run(run) => match Rank::of_this_process()? {
            None => measure(run, None),
            Some(rank) => measure_as_rank(run, rank),
        },
        Patterns::Show { folder, counters } => show(folder, *counters),
    }
}

/// This process's place in a job of several processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rank {
    rank: usize,
    ranks: usize,
    /// Ranks on this machine, if the launcher tells.
    local: Option<usize>,
}

impl Rank {
    /// Reads the variables that Open MPI and MPICH set for their processes; `None` if neither started this process.
    fn of_this_process() -> anyhow::Result<Option<Self>> {
        let number = |name: &str| -> anyhow::Result<Option<usize>> {
            let Some(text) = std::env::var_os(name) else {
                return Ok(None);
            };
            let text = text.to_string_lossy();
            let parsed = text.parse();
            parsed
                .map(Some)
                .map_err(|_| bad_input(format_args!("{name} is {text:?}: a number is expected")))
        };
        for [rank, ranks, local] in [
            [
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ],
            ["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"],
        ] {
            if let (Some(rank), Some(ranks)) = (number(rank)?, number(ranks)?) {
                let local = number(local)?;
                return Ok(Some(Self { rank, ranks, local }));
            }
        }
        Ok(None)
    }
}

fn actors() -> ActorRegistry {
    let mut actors = ActorRegistry::new();
    patterns::register(&mut actors, None);
    actors
}

/// Runs a rank: rank 0 coordinates and plays a part too, the others play parts.
fn measure_as_rank(run: &Run, rank: Rank) -> anyhow::Result<()> {
    if is_simulated(&run.device) {
        return Err(bad_input(format_args!(
            "{} is simulated within one process: run without mpirun",
            run.device
        )));
    }
    let address = rendezvous(run, rank)?;
    let limit = Duration::from_secs(run.rank_timeout);
    if rank.rank != 0 {
        return Ok(serve_rank(
            address,
            rank.rank,
            &actors(),
            &headworks::opener(),
            limit,
        )?);
    }
    // The plan is read before anybody waits: a wrong one ends all ranks at once.
    let plan = read_plan(&run.plan)?;
    check_ranks(&plan, rank)?;
    let own =
        std::thread::spawn(move || serve_rank(address, 0, &actors(), &headworks::opener(), limit));
    let ranks = Ranks::listen(address, rank.ranks, limit)?;
    let measured = measure(run, Some(ranks));
    let served = own.join().map_err(|_| anyhow::anyhow!("rank 0 panicked"))?;
    measured?;
    Ok(served?)
}

/// Checks that the ranks are enough for every point of the plan, and that none is left over at all of them.
fn check_ranks(plan: &Plan, rank: Rank) -> anyhow::Result<()> {
    let needs = |point: &PlanPoint| plan.task(point, false).requester_actors() + point.responders;
    let points = plan.points()?;
    if let Some(point) = points
        .iter()
        .find(|point| point.design.connections != Connections::Private)
    {
        return Err(bad_input(format_args!(
            "{point}: the workers of a dispatcher share its memory, so dispatchers do not run under mpirun"
        )));
    }
    let most = points.iter().map(needs).max().unwrap_or(0);
    match rank.ranks {
        ranks if ranks < most => Err(bad_input(format_args!(
            "the plan needs {most} ranks, and mpirun started {ranks}: start {most}, or set requesters_per_thread higher"
        ))),
        ranks if ranks > most => Err(bad_input(format_args!(
            "mpirun started {ranks} ranks, and no point of the plan has more than {most} parts: start {most}"
        ))),
        _ => Ok(()),
    }
}

/// Returns where rank 0 listens.
fn rendezvous(run: &Run, rank: Rank) -> anyhow::Result<SocketAddr> {
    let Some(text) = &run.rendezvous else {
        if rank.local.is_some_and(|local| local < rank.ranks) {
            return Err(bad_input(
                "the ranks are on several machines: name the machine of rank 0 with --rendezvous HOST:PORT",
            ));
        }
        return Ok(([127, 0, 0, 1], PORT).into());
    };
    let found = text.to_socket_addrs();
    let found = found.map_err(|why| bad_input(format_args!("--rendezvous {text}: {why}")))?;
    let mut found = found.into_iter();
    found
        .next()
        .ok_or_else(|| bad_input(format_args!("--rendezvous {text}: the name has no address")))
}

fn read_plan(path: &Path) -> anyhow::Result<Plan> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|why| bad_input(format_args!("{}: {why}", path.display())))?;
    Plan::parse(&text).map_err(|why| bad_input(format_args!("{}: {why}", path.display())))
}

/// Results that are not this run's are bad input; a full disk is not.
fn refused(why: ResultsError) -> anyhow::Error {
    match why {
        ResultsError::Io { .. } => why.into(),
        _ => bad_input(why),
    }
}

/// Measures the points of the plan that the folder lacks.
fn measure(run: &Run, ranks: Option<Ranks>) -> anyhow::Result<()> {
    let plan = read_plan(&run.plan)?;
    let options = Options {
        peer_device: run.peer_device.clone(),
        set: run.set.clone(),
        ..Options::on(run.device.clone())
    };
    if !run.set.is_empty() && !is_simulated(&run.device) {
        return Err(bad_input(format_args!(
            "--set needs a simulated device, and {} is none",
            run.device
        )));
    }
    if let Some(machine) = options.machine() {
        let (preset, _) = machine?;
        let checked = preset.check();
        checked.map_err(|why| bad_input(format_args!("--set: {why}")))?;
    }
    let is_apart = ranks.is_none() && run.place == Place::Processes && !is_simulated(&run.device);
    let shares = |point: &&PlanPoint| point.design.connections == Connections::Dispatcher;
    if is_apart && let Some(point) = plan.points()?.iter().find(shares) {
        return Err(bad_input(format_args!(
            "{point}: the workers of a dispatcher share its memory: use --place threads"
        )));
    }
    let devices = [run.device.clone(), options.peer()];
    if devices.iter().any(is_simulated) && devices[0] != devices[1] {
        return Err(bad_input(format_args!(
            "--peer-device {}: a simulated run has one device for both sides, and --device is {}",
            devices[1], devices[0]
        )));
    }
    check_actors(&plan, is_simulated(&run.device))?;
    for device in &devices {
        let device = headworks::open(device)?;
        if !is_simulated(&run.device) {
            for point in plan.points()? {
                let checked = plan.task(&point, false).check_device(device.info());
                checked.map_err(|why| bad_input(format_args!("{point}: {why}")))?;
            }
        }
    }
    let (name, ranks): (_, Option<Arc<dyn World>>) = match (ranks, run.place) {
        _ if is_simulated(&run.device) => ("virtual time", None),
        (Some(ranks), _) => ("ranks", Some(Arc::new(ranks))),
        (None, Place::Processes) => ("processes", Some(Arc::new(Processes::of_this_program()))),
        (None, Place::Threads) => (
            "threads",
            Some(Arc::new(InProcess::new(actors(), headworks::opener()))),
        ),
    };
    let settings: String = options
        .settings()
        .map(|setting| format!(" {setting}"))
        .collect();
    let peer = match &run.peer_device {
        Some(peer) if *peer != run.device => format!(" to {peer}"),
        _ => String::new(),
    };
    let device = format!("{}{peer}{settings}", run.device);
    let results = Results::open(&run.out, RunOf::new(device, name, plan.clone()));
    let results = results.map_err(|why| match why {
        ResultsError::Io { path, source } => bad_input(format_args!(
            "--out {}: {}: {source}",
            run.out.display(),
            path.display()
        )),
        other => bad_input(other),
    })?;
    // Installed before anything exists that a signal could leave behind.
    let interrupt = Interrupt::install().context("catching signals")?;
    let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let measured = std::thread::scope(|scope| {
        // Also if measuring panics: the scope waits for its threads.
        let _ends = SetOnDrop(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                stop.fetch_or(interrupt.is_raised(), Ordering::Relaxed);
                std::thread::sleep(INTERRUPT_CHECK_INTERVAL);
            }
        });
        points(&plan, &options, &devices, ranks.as_ref(), &results, &stop)
    });
    drop(ranks);
    if measured.is_err() {
        let _ = headworks::registry().map(|registry| registry.remove_dead());
    }
    if stop.load(Ordering::Relaxed) && measured.is_err() {
        return Err(interrupted_but("run the same command again to go on"));
    }
    measured?;
    print(&table(&results.all().map_err(refused)?))
}

/// Sets a flag when it is dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Checks that no point has more actors than a scenario can have.
fn check_actors(plan: &Plan, is_simulated: bool) -> anyhow::Result<()> {
    for point in plan.points()? {
        let actors = plan.task(&point, is_simulated).actors();
        if actors > ACTORS_MAX {
            return Err(bad_input(format_args!(
                "{point}: {actors} threads, and {ACTORS_MAX} are the most: lower requesters or responders"
            )));
        }
    }
    Ok(())
}

fn points(
    plan: &Plan,
    options: &Options,
    devices: &[DeviceName; 2],
    world: Option<&Arc<dyn World>>,
    results: &Results,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let mut progress = ProgressReporter::new("patterns");
    let mut left = Vec::new();
    for point in plan.points()? {
        if results.get(&point).map_err(refused)?.is_none() {
            left.push(point);
        }
    }
    progress.expect(left.len() as u64, world.is_some());
    for point in left {
        progress.at(&point.to_string());
        let bed = match world {
            Some(world) => bed(world.clone(), devices),
            None => simulated(options, devices, &point)?,
        };
        let task = plan.task(&point, world.is_none());
        let mut repeats = Vec::new();
        // A second run in virtual time gives the same.
        for _ in 0..if world.is_some() { plan.repeats } else { 1 } {
            let result = patterns::run(&task, &bed, stop);
            repeats.push(result.with_context(|| point.to_string())?);
        }
        if repeats.iter().any(|result| result.is_oversubscribed) {
            progress.note(&format!(
                "{point}: more threads than processors; the figures are of a machine that is too small"
            ));
        }
        results
            .put(&MeasuredPoint::of(point, &repeats))
            .map_err(refused)?;
        progress.done();
    }
    progress.finish();
    Ok(())
}

fn bed(world: Arc<dyn World>, devices: &[DeviceName; 2]) -> PatternBed {
    PatternBed {
        world,
        devices: devices.clone(),
        actors_per_host: 8,
        responder_hosts: 6,
        usage_monitor: None,
    }
}

/// Where a point runs in virtual time. RNICs declare the order of a WRITE's bytes if its design relies on it.
fn simulated(
    options: &Options,
    devices: &[DeviceName; 2],
    point: &PlanPoint,
) -> anyhow::Result<PatternBed> {
    let machine = simulated_machine::machine(&options.device, &options.set);
    let (mut preset, seed) = machine.context("the device is not simulated")??;
    if point.design.flag == MailboxFlag::InMessage && preset.write_order_bytes == 0 {
        preset.set("nic.write_order", "1073741824")?;
    }
    let mut actors = ActorRegistry::new();
    patterns::register(&mut actors, Some(PatternPrices::of(&preset)));
    Ok(bed(Arc::new(SimWorld::new(actors, preset, seed)), devices))
}

/// The results as CSV.
fn table(all: &[MeasuredPoint]) -> String {
    let mut text = "design,response [B],requesters,responders,outstanding,rate [1/s],low,high,bandwidth [B/s],\
        median [ns],p99 [ns],p99.9 [ns],empty polls,queue pairs,oversubscribed,\
        requester [instructions/B],responder [instructions/B],requester [cycles],responder [cycles]\n"
        .to_owned();
    for one in all {
        let (point, latency) = (&one.point, one.latency());
        let low = one.per_second.iter().copied().fold(f64::MAX, f64::min);
        let high = one.per_second.iter().copied().fold(0.0, f64::max);
        let empty = one
            .empty_polls
            .map_or(String::new(), |share| format!("{share:.4}"));
        text += &format!(
            "{},{},{},{},{},{:.0},{low:.0},{high:.0},{:.0},{:.0},{:.0},{:.0},{empty},{},{},{}\n",
            point.design,
            point.response,
            point.requesters,
            point.responders,
            point.outstanding,
            one.rate(),
            one.rate() * point.response as f64,
            latency.p50_ns,
            latency.p99_ns,
            latency.p999_ns,
            one.queue_pairs,
            one.is_oversubscribed,
            work_columns(one),
        );
    }
    text
}

/// Instructions for each byte of a response, and cycles for each message, of requesters and responders.
fn work_columns(point: &MeasuredPoint) -> String {
    let response = point.point.response as f64;
    let number = |found: Option<f64>| {
        found.map_or_else(|| "not available".to_owned(), |value| format!("{value:.3}"))
    };
    let instructions = point
        .work
        .map(|work| number(work.map(|work| work.instructions / response)));
    let cycles = point.work.map(|work| number(work.map(|work| work.cycles)));
    [instructions, cycles].concat().join(",")
}

/// What the counters of RDMA NICs grew by in the last repeat of each point, as CSV.
fn counters_table(all: &[MeasuredPoint]) -> String {
    let mut text =
        "design,response [B],requesters,responders,outstanding,counter,growth\n".to_owned();
    for one in all {
        let point = &one.point;
        for (name, growth) in &one.rnic_counters {
            text += &format!(
                "{},{},{},{},{},{name},{growth}\n",
                point.design, point.response, point.requesters, point.responders, point.outstanding
            );
        }
    }
    text
}

fn show(folder: &Path, counters: bool) -> anyhow::Result<()> {
    let results = Results::load(folder).map_err(refused)?;
    let all = results.all().map_err(refused)?;
    if !counters {
        return print(&table(&all));
    }
    if all.is_empty() {
        return Err(bad_input(format_args!(
            "{}: no point was measured yet",
            folder.display()
        )));
    }
    if all.iter().all(|point| point.rnic_counters.is_empty()) {
        let device = &results.run.device;
        return print(&format!(
            "not available: {device} has no counters that could be read\n"
        ));
    }
    print(&counters_table(&all))
}

/// Prints the design that results favour.
pub(crate) fn advise_design(command: &Advise) -> anyhow::Result<()> {
    let results = Results::load(&command.results).map_err(refused)?;
    let described = Described {
        requesters: command.requesters,
        responders: command.responders,
        response: command.response,
        outstanding: command.outstanding,
    };
    let by = match command.by {
        By::Rate => RankedBy::Rate,
        By::Tail => RankedBy::Tail,
    };
    let advice = advise(&results.all().map_err(refused)?, described, by).map_err(bad_input)?;
    let wanted = results.run.plan.points()?.into_iter().filter(|point| {
        (
            point.requesters,
            point.responders,
            point.response,
            point.outstanding,
        ) == (
            described.requesters,
            described.responders,
            described.response,
            described.outstanding,
        )
    });
    let is_ranked = |design| {
        advice
            .ranked
            .iter()
            .any(|(point, _)| point.design == design)
    };
    let missing: Vec<String> = wanted
        .filter(|point| !is_ranked(point.design))
        .map(|point| point.design.to_string())
        .collect();
    let shown = |score: f64| match by {
        RankedBy::Rate => format!("{:.3} M responses/s", score / 1e6),
        RankedBy::Tail => format!("{:.2} µs at the 99th percentile", score / 1e3),
    };
    let mut text = String::new();
    for (place, (point, score)) in advice.ranked.iter().enumerate() {
        let gap = match (place, advice.advantage) {
            (1, Some(times)) if by == RankedBy::Rate => {
                format!(", {:.0} % less", (1.0 - 1.0 / times) * 100.0)
            }
            (1, Some(times)) => format!(", {:.0} % more", (times - 1.0) * 100.0),
            _ => String::new(),
        };
        text += &format!("{}. {}: {}{gap}\n", place + 1, point.design, shown(*score));
    }
    if !missing.is_empty() {
        text += &format!("Not measured yet: {}.\n", missing.join(", "));
    }
    if !advice.is_clear {
        text += "The repeats of the first two overlap: their order may be noise.\n";
    }
    let run = &results.run;
    let device = run.device.split([':', ',', ' ']).next().unwrap_or_default();
    text += &match device {
        "soft" => format!(
            "Measured on {} in {}: this holds on this machine only, and says nothing about an RDMA NIC.\n",
            run.device, run.world
        ),
        headworks::sim::KIND => format!("Simulated: {}, in {}.\n", run.device, run.world),
        _ => format!("Measured on {} in {}.\n", run.device, run.world),
    };
    print(&text)
}

#[cfg(test)]
mod tests {
    use headworks_experiments::patterns::run::MessageWork;

    use super::*;

    #[test]
    fn counted_work_is_printed_and_the_rest_is_not_available() {
        let plan = Plan::parse("designs = [\"WriteWrite\"]\nresponses = [\"64\"]\n").unwrap();
        let point = plan.points().unwrap()[0];
        let work = MessageWork {
            instructions: 320.0,
            cycles: 100.5,
        };
        let mut measured = MeasuredPoint::of(point, &[]);
        measured.work = [Some(work), None];
        assert_eq!(
            work_columns(&measured),
            "5.000,not available,100.500,not available"
        );
    }

    #[test]
    fn ranks_must_be_as_many_as_the_largest_point_needs() {
        let text = "designs = [\"WriteWrite\"]\nresponses = [\"64\"]\nrequesters = [1, 16]\n";
        let plan = Plan::parse(text).unwrap();
        let says = |ranks| {
            let rank = Rank {
                rank: 0,
                ranks,
                local: None,
            };
            check_ranks(&plan, rank).map_err(|why| why.to_string())
        };
        assert_eq!(says(3), Ok(()));
        assert!(says(2).unwrap_err().contains("needs 3 ranks"));
        assert!(says(4).unwrap_err().contains("started 4 ranks"));
    }
}

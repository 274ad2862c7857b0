//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use headworks::sim::{Preset, Setting};
use headworks::verbs::{DeviceName, NameError};

use crate::daemon::Daemon;
use crate::pace::Pace;
use crate::sim::Sim;

/// Data through RDMA rings, on an RDMA NIC or on a software one.
#[derive(Parser)]
#[command(name = "headworks", version, arg_required_else_help = true)]
pub(crate) struct Args {
    /// Say more on standard error; twice for more still.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// A byte stream between two processes, of this machine or of two.
    #[command(subcommand)]
    Pipe(Pipe),
    /// Show what this is in half a minute: data across a ring between two processes, and over many connections through
    /// two daemons, checked, and its speed beside the operating system's own means.
    Demo {
        /// A file or a directory to send; without one, 1 GiB is made up, or what passes in 5 s.
        path: Option<PathBuf>,
        /// The device to use: KIND[:NAME][,key=value…]; soft:h1,hostile,seed=7 misbehaves on purpose
        #[arg(long, default_value = headworks::DEFAULT_DEVICE, value_parser = device)]
        device: DeviceName,
        /// The device of the other process; without it the same.
        #[arg(long, value_parser = device)]
        peer_device: Option<DeviceName>,
    },
    /// The other process of the demonstration.
    #[command(hide = true)]
    DemoChild {
        /// What it does.
        role: String,
        /// Directory in which the two processes exchange files.
        place: String,
        /// Pieces of the stream that it receives, or its connections, where that is what it does.
        #[arg(long, default_value_t)]
        pieces: usize,
        /// Where other daemons call, where it is one.
        #[arg(long)]
        address: Option<SocketAddr>,
        /// The device to use.
        #[arg(long, default_value = headworks::DEFAULT_DEVICE, value_parser = device)]
        device: DeviceName,
    },
    /// List the devices that are there; with -v, all that they declare and all their limits.
    Devices {
        /// For programs: a JSON array of all that the devices declare.
        #[arg(long)]
        json: bool,
    },
    /// Look for what tends to be wrong around RDMA on this machine, and name the command that mends it.
    ///
    /// Exit code 1 if something keeps a device from working.
    Doctor {
        /// Only this RDMA device, ibv:NAME[,key=value…], and what of the machine concerns it.
        #[arg(value_parser = device)]
        device: Option<DeviceName>,
        /// For programs: a JSON array of what was found.
        #[arg(long)]
        json: bool,
    },
    /// Look at a live fabric or daemon from outside: processes, queue pairs, applications, counters, rates.
    ///
    /// On a terminal, again and again until Ctrl-C; else, or with --json, once or --count times. Looking disturbs
    /// nobody and joins nothing.
    Top(Top),
    /// Measure, and write reports.
    #[command(subcommand)]
    Experiment(Experiment),
    /// Look at what is simulated: devices sim:PRESET.
    #[command(subcommand)]
    Sim(Sim),
    /// Measure for the pacing of senders, and look at it: devices KIND[:NAME],pace.
    #[command(subcommand)]
    Pace(Pace),
    /// Serve the applications of this host: connections of many over few queue pairs.
    ///
    /// Runs until Ctrl-C or SIGTERM. Applications attach with the service of the headworks crate; other hosts' daemons meet
    /// this one at its address.
    Daemon(Daemon),
}

/// What to look at, and how often.
#[derive(clap::Args)]
pub(crate) struct Top {
    /// What to look at: soft for all soft hosts, soft:HOST for one.
    #[arg(long, default_value = headworks::DEFAULT_DEVICE, value_parser = device)]
    pub(crate) device: DeviceName,
    /// Look at a daemon instead, its applications and links: at the one of an address, or of 127.0.0.1 if no address is
    /// given; or where its metrics can be had, a path or IP:PORT.
    #[arg(
        long,
        value_name = "WHICH",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1",
        conflicts_with_all = ["device", "qps"]
    )]
    pub(crate) daemon: Option<String>,
    /// Seconds between two looks, 0.1 to 3600.
    #[arg(long, value_name = "SECS", default_value = "1", value_parser = interval, allow_hyphen_values = true)]
    pub(crate) interval: f64,
    /// Look so many times, each below the one before.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// List the queue pairs, the N busiest of each context (20 if N is not given).
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "20")]
    pub(crate) qps: Option<usize>,
    /// For programs: one line of JSON for each look, with all queue pairs.
    #[arg(long, conflicts_with = "qps")]
    pub(crate) json: bool,
}

/// A device's name. Where the machine to simulate is no name at all, what there is says more than how names look.
pub(crate) fn device(text: &str) -> Result<DeviceName, String> {
    let simulated = text.split(':').next() == Some(headworks::sim::KIND);
    text.parse().map_err(|why: NameError| match why {
        NameError::Name(_) if simulated => {
            format!("{why}; presets are {}", Preset::NAMES.join(", "))
        }
        _ => why.to_string(),
    })
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|seconds| (0.1..=3600.0).contains(seconds))
        .ok_or_else(|| "seconds, 0.1 to 3600".to_owned())
}

/// Which side of a pipe.
#[derive(Subcommand)]
pub(crate) enum Pipe {
    /// Wait under NAME for the other side, and write what it sends to standard output.
    ///
    /// Where the other side asked for --reverse, standard input is sent to it instead.
    Listen(PipeArgs),
    /// Send standard input to whoever listens under NAME.
    Connect {
        /// What both sides have.
        #[command(flatten)]
        args: PipeArgs,
        /// Turn the pipe round: receive into standard output what the listener reads from its
        /// standard input.
        #[arg(long)]
        reverse: bool,
    },
}

/// What both sides of a pipe have.
#[derive(clap::Args)]
pub(crate) struct PipeArgs {
    /// Where the two sides meet: a name, on one machine; HOST:PORT, to which a connector may come from
    /// another (what is said there is neither encrypted nor authenticated); rdma:HOST:PORT, the same by
    /// RDMA's connection manager, which also finds the device.
    pub(crate) name: String,
    /// The device to use: KIND[:NAME][,key=value…]; soft:h1,hostile,seed=7 misbehaves on purpose. [default:
    /// soft; at rdma:HOST:PORT ibv, the device that leads there]
    #[arg(long, value_parser = device)]
    pub(crate) device: Option<DeviceName>,
    /// Show bytes and rate on standard error.
    #[arg(long)]
    pub(crate) progress: bool,
    /// Wait at most this many seconds until the two are connected. Without it `listen` waits for ever and
    /// `connect` not at all for the other side to come; once there, it has 5 to 10 seconds to answer.
    // What begins with a dash is a wrong number here, not another flag.
    #[arg(long, value_name = "SECS", value_parser = seconds, allow_hyphen_values = true)]
    pub(crate) timeout: Option<u64>,
}

/// Longest timeout: a year.
const TIMEOUT_SECS_MAX: u64 = 365 * 24 * 3600;

fn seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("whole seconds, 0 to {TIMEOUT_SECS_MAX}");
    let seconds = text.parse().map_err(|_| wrong())?;
    (seconds <= TIMEOUT_SECS_MAX)
        .then_some(seconds)
        .ok_or_else(wrong)
}

/// What to do with experiments.
#[derive(Subcommand)]
pub(crate) enum Experiment {
    /// List the experiments.
    List,
    /// Run experiments one after the other and write what they found.
    Run(Box<RunExperiments>),
}

/// Which experiments, on what.
#[derive(clap::Args)]
pub(crate) struct RunExperiments {
    /// Which ones: `experiment list` names them.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// The device, of the sending host where there are two. Without it, the software RNIC; raw-verbs then runs on every
    /// simulated preset. rxe-ring is about devices ibv:NAME, weir-fig2 to weir-fig11a, raas-fig2, raas-fig7 and
    /// sim-speed about sim:PRESET, and need one; ring-vs-peers, ring-fanin, softnic, weir-overhead, what is called
    /// service-…, raas-fig8 and raas-fig9 run on no sim:PRESET.
    #[arg(long, value_parser = device)]
    pub(crate) device: Option<DeviceName>,
    /// The device of the receiving host, where an experiment has two: KIND[:NAME][,key=value…].
    /// Without it, the device of --device, on a host of its own where that is a soft or a simulated one. A
    /// simulated one has the preset and the seed of --device.
    #[arg(long, value_parser = device)]
    pub(crate) peer_device: Option<DeviceName>,
    /// About a minute in total: every arm, less time for each point. On a simulated device as long as it takes, so
    /// that the same comes of it each time.
    #[arg(long)]
    pub(crate) quick: bool,
    /// A capture of packets, pcap or pcapng, for rb2-case1 to replay instead of traffic that is
    /// made up.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Another value for a constant of a simulated device (--device sim:PRESET), as in nic.icm=4096; again
    /// for others. `headworks sim presets` lists them.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<Setting>,
    /// Write what simulated devices and actors did when to FILE, for Perfetto or chrome://tracing; the first
    /// million entries. A file of that name is replaced at the end; one that cannot be written is told of before.
    #[arg(long, value_name = "FILE")]
    pub(crate) sim_trace: Option<PathBuf>,
    /// Where the results go: each experiment writes DIR/NAME/ with points.csv, summary.json, a
    /// figure in SVG where there is one to draw, and report.md. Made if it is missing; what an earlier run wrote there is
    /// replaced.
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub(crate) out: PathBuf,
}

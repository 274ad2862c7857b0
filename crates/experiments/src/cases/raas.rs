//! RaaS on daemons and applications as processes of this machine: what the service takes beside what it stands on,
//! beside TCP, and over many connections.
//!
//! | module | what |
//! |---|---|
//! | [`fig2`] | threads that share a queue pair under a lock, and over the service: Figures 2 and 7, simulated |
//! | [`fig6`] | READs at random over so many connections |
//! | [`fig11`] | latency over size, and throughput without copies, beside verbs and beside four processes that only hand on |
//! | [`fig12`] | atomics by verbs and by daemons |
//! | [`fig10`] | READs at random in a cluster |
//! | `sim_fig6`, `sim_fig11` | the same figures on simulated RNICs |
//! | [`vs_tcp`] | question and answer beside TCP, at rest and under load |
//! | [`applications`] | what applications take, over how many there are: Figures 8 and 9 |
//! | [`connections`] | many connections over which nothing goes |
//! | [`fairness`] | question and answer beside a stream that sends all it can |
//! | `simulated` | what the simulated ones have in common |
//! | `points` | what was measured, by arm and size |

pub mod applications;
pub mod connections;
pub mod fairness;
pub mod fig10;
pub mod fig11;
pub mod fig12;
pub mod fig2;
pub mod fig6;
mod points;
mod sim_fig11;
mod sim_fig6;
mod simulated;
pub mod vs_tcp;

use std::net::SocketAddr;
use std::time::Duration;

use headworks::verbs;

use crate::bench::Bench;
use crate::error::RunError;
use crate::experiment::Paper;
use crate::outcome::{ArmNote, Outcome};
use crate::service::Role;
use crate::service::asking::{Asking, By, What};
use crate::service::control::Told;
use crate::service::hosts::Hosts;
use crate::service::native::Holding;
use crate::testbed::Testbed;
use crate::transports::ArmError;

/// The paper, with what is repeated of it.
const fn paper(figure: &'static str) -> Paper {
    Paper {
        title: "Toward Deploying Scalable and Effective RDMA as a Service at End-hosts through Reliable Connection",
        year: 2018,
        figure,
    }
}

/// Why these do not run in virtual time.
const PROCESSES: &str =
    "its daemons and applications are processes of this machine, by the wall clock";

/// Where processes run, for the report.
fn pinning([here, there]: [usize; 2]) -> String {
    format!(
        "whoever asks and its host's daemon on cpu {here}, the other daemon and whoever answers on cpu {there}, for every \
         arm that does not say otherwise"
    )
}

/// Beside what is measured: a process starts, attaches and ends.
const OVERHEAD: Duration = Duration::from_millis(60);
/// The port of whoever answers.
const PORT: u16 = 7000;
/// A process that takes so much longer than it should has hung.
const HUNG: Duration = Duration::from_secs(30);

/// Two daemons, on the devices and processors of the bench, and where an application of the second answers; or why there
/// are none, which is then why none of `keys` is measured.
fn served(
    bench: &Bench<'_>,
    keys: &[&str],
    outcome: &mut Outcome,
) -> Result<Option<(Hosts, SocketAddr)>, RunError> {
    bench.check()?;
    let Testbed { devices, cpus, .. } = &bench.place;
    let served = Hosts::start(devices, cpus, bench.stop()).and_then(|mut hosts| {
        let to = hosts.serve(1, PORT, bench.stop())?;
        Ok((hosts, to))
    });
    bench.check()?;
    match served {
        Ok(served) => Ok(Some(served)),
        Err(why) => {
            keys.iter()
                .for_each(|key| outcome.skip(*key, why.to_string()));
            Ok(None)
        }
    }
}

/// Streams of the service from the first host, to an application there.
fn service(hosts: &Hosts, to: SocketAddr, asleep: bool) -> By {
    By::Service {
        socket: hosts.socket(0),
        to: vec![to],
        asleep,
    }
}

/// Programs that hold so much memory each, for whoever asks on the first host over so many queue pairs to each of them,
/// and how that is asked for. They are hosts' of those numbers.
fn held(
    bench: &Bench<'_>,
    hosts: &Hosts,
    of: &[usize],
    queue_pairs: usize,
    len: usize,
) -> Result<(By, Vec<Told>), ArmError> {
    let mut names = Vec::new();
    let mut all = Vec::new();
    for host in of {
        let holding = Holding {
            device: hosts.device(*host).to_string(),
            name: format!("held-{host}"),
            queue_pairs,
            len,
        };
        names.push(holding.name.clone());
        all.push(hosts.begin(&Role::Holding(holding), bench.place.cpus[1])?);
    }
    let device = hosts.device(0).to_string();
    Ok((By::Verbs { device, names }, all))
}

/// What an application on the first processor finds.
fn ask(
    bench: &Bench<'_>,
    hosts: &Hosts,
    (what, by): (What, By),
    (warm, run): (Duration, Duration),
) -> Result<f64, ArmError> {
    let asking = asking(what, by, (warm, run));
    let (cpu, limit) = (bench.place.cpus[0], warm + run + HUNG);
    hosts.ask(&asking, cpu, limit, bench.stop())
}

fn asking(what: What, by: By, (warm, run): (Duration, Duration)) -> Role {
    Role::Asking(Asking {
        what,
        by,
        warm_ns: warm.as_nanos() as u64,
        run_ns: run.as_nanos() as u64,
    })
}

/// What a report says of an arm.
fn note(name: &str, what: &str, waiting: &'static str, copies: &str) -> ArmNote {
    ArmNote {
        name: name.to_owned(),
        what: what.to_owned(),
        waiting,
        copies: copies.to_owned(),
    }
}

/// How long to warm up and to measure, of so long.
fn times(run: Duration) -> (Duration, Duration) {
    (run / 5, run / 5 * 4)
}

/// The same, as those count who run on the clock of verbs.
fn counted((warm, run): (Duration, Duration)) -> (verbs::Duration, verbs::Duration) {
    let counted = |time: Duration| verbs::Duration::from_nanos(time.as_nanos() as u64);
    (counted(warm), counted(run))
}

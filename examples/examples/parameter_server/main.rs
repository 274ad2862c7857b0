//! A parameter server, after figures 15 and 16 of the RaaS paper. In each round the workers on one host push
//! gradients to servers on another host, which add them up, and pull the sums.
//!
//! ```text
//! parameter_server [ROUNDS]                 run both sides and two daemons, with 1 worker and 1
//!                                           server, then with 4 and 4 (default 1,000 rounds)
//! parameter_server serve [--servers N] [--socket PATH] [--port N]
//!                                           run N servers, at ports of the daemon at PATH
//! parameter_server work --to IP:PORT,… [ROUNDS] [--workers N] [--socket PATH]
//!                                           run N workers, with parameters spread over all servers
//! ```
//!
//! Each server (`server`) and each worker (`worker`) is a thread and a separate application of its daemon.

mod server;
mod worker;

use std::process::ExitCode;

use headworks::net::Interrupt;
use headworks_examples::local_hosts::LocalHosts;
use headworks_examples::program::{self, Failure, Outcome};
use headworks_examples::service_program::{self, Args};

const NAME: &str = "parameter_server";
const USAGE: &str = "usage: parameter_server [ROUNDS] | serve [--servers N] [--socket PATH] [--port N] | \
                     work --to IP:PORT,… [ROUNDS] [--workers N] [--socket PATH]";
const ROUNDS: u64 = 1000;
/// Key-value pairs that each worker pushes and pulls in a round.
const PAIRS: u32 = 1000;
/// Bytes of a key and of a value.
const KEY: usize = 4;
const VALUE: usize = 8;
/// Bytes of a worker's first message: the number of workers.
const HELLO: usize = 4;
/// Most workers, and most servers.
const MANY: u64 = 64;

fn main() -> ExitCode {
    service_program::run(NAME, |args, interrupt| match *args {
        ["serve", ..] => {
            let args = Args::of(args, &["--servers", "--socket", "--port"], USAGE)?;
            if args.words.len() > 1 {
                return Err(usage());
            }
            let port = args.port()?;
            let servers = (0..many(&args, "--servers")?).map(|_| args.service(NAME));
            let servers = servers.collect::<Outcome<Vec<_>>>()?;
            server::serve(&servers, port, interrupt)
        }
        ["work", ..] => {
            let args = Args::of(args, &["--to", "--workers", "--socket"], USAGE)?;
            let (rounds, to) = (rounds(&args.words[1..])?, args.to()?);
            let workers = (0..many(&args, "--workers")?).map(|_| args.service(NAME));
            worker::work(
                &workers.collect::<Outcome<Vec<_>>>()?,
                &to,
                rounds,
                interrupt,
            )
        }
        _ => {
            let args = Args::of(args, &[], USAGE)?;
            let rounds = rounds(&args.words)?;
            let hosts = LocalHosts::start(interrupt)?;
            for each in [1, 4] {
                both(&hosts, each, rounds, interrupt)?;
            }
            Ok(())
        }
    })
}

/// Runs `each` servers on one host and `each` workers on the other.
fn both(hosts: &LocalHosts, each: usize, rounds: u64, interrupt: &Interrupt) -> Outcome {
    let args = ["serve", "--servers", &each.to_string()];
    let (servers, to) = hosts.serve(1, &args, interrupt)?;
    let workers = (0..each).map(|_| hosts.attach(0, NAME));
    worker::work(
        &workers.collect::<Outcome<Vec<_>>>()?,
        &to,
        rounds,
        interrupt,
    )?;
    servers.finish()
}

fn usage() -> Failure {
    Failure::BadInput(USAGE.to_owned())
}

fn rounds(words: &[&str]) -> Outcome<u64> {
    match *words {
        [] => Ok(ROUNDS),
        [number] if program::is_number(number) => program::count(number),
        _ => Err(usage()),
    }
}

fn many(args: &Args<'_>, name: &str) -> Outcome<u64> {
    args.count(name, 1, MANY)
}

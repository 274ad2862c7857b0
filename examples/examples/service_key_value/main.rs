//! A key-value store on one host, and a client on another host that uses it over several connections. Both
//! know only the socket of a daemon, and nothing of RDMA.
//!
//! ```text
//! service_key_value [COUNT] [--connections N]            run both sides and two daemons, with COUNT requests
//!                                                        (default 200,000)
//! service_key_value serve [--socket PATH] [--port N]     run the store, at a port of the daemon at PATH
//! service_key_value ask --to IP:PORT [COUNT] [--socket PATH] [--connections N]
//! ```
//!
//! The store is one thread that sleeps in poll(2) (`server`). The client has two threads for each connection:
//! one sends, the other receives and checks every answer (`client`).

mod client;
mod server;
mod wire;

use std::process::ExitCode;

use headworks_examples::local_hosts::LocalHosts;
use headworks_examples::program::{self, Failure, Outcome};
use headworks_examples::service_program::{self, Args};

const NAME: &str = "service_key_value";
const USAGE: &str = "usage: service_key_value [COUNT] [--connections N] | serve [--socket PATH] [--port N] | \
                     ask --to IP:PORT [COUNT] [--socket PATH] [--connections N]";
const COUNT: u64 = 200_000;
const CONNECTIONS: u64 = 4;

fn main() -> ExitCode {
    service_program::run(NAME, |args, interrupt| {
        let known = |options| Args::of(args, options, USAGE);
        let count = |words: &[&str]| match *words {
            [] => Ok(COUNT),
            [number] if program::is_number(number) => program::count(number),
            _ => Err(Failure::BadInput(USAGE.to_owned())),
        };
        match *args {
            ["serve", ..] => {
                let args = known(&["--socket", "--port"])?;
                if args.words.len() > 1 {
                    return Err(Failure::BadInput(USAGE.to_owned()));
                }
                let port = args.port()?;
                server::serve(&args.service(NAME)?, port, interrupt)
            }
            ["ask", ..] => {
                let args = known(&["--socket", "--to", "--connections"])?;
                let count = count(&args.words[1..])?;
                let connections = connections(&args)?;
                let to = args.to()?[0];
                client::ask(&args.service(NAME)?, to, count, connections, interrupt)
            }
            _ => {
                let args = known(&["--connections"])?;
                let count = count(&args.words)?;
                let connections = connections(&args)?;
                let hosts = LocalHosts::start(interrupt)?;
                let (server, to) = hosts.serve(1, &["serve"], interrupt)?;
                let service = hosts.attach(0, NAME)?;
                let to = *to.first().ok_or_else(program::gone)?;
                client::ask(&service, to, count, connections, interrupt)?;
                server.finish()
            }
        }
    })
}

fn connections(args: &Args<'_>) -> Outcome<u64> {
    args.count("--connections", CONNECTIONS, client::CONNECTIONS_MAX)
}

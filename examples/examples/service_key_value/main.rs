//! A key-value store on one host, asked over several connections by an application on another. Both know a daemon's
//! socket, and nothing of RDMA.
//!
//! ```text
//! service_key_value [COUNT] [--connections N]            both sides and two daemons, with COUNT requests (200,000)
//! service_key_value serve [--socket PATH] [--port N]     the store, at a port of the host whose daemon is at PATH
//! service_key_value ask --to IP:PORT [COUNT] [--socket PATH] [--connections N]
//! ```
//!
//! The store is one thread that sleeps in poll(2) (`server`). Each connection of who asks has two threads: one sends,
//! the other receives and checks every answer (`client`).

mod client;
mod server;
mod wire;

use std::process::ExitCode;

use headworks_examples::applications::{self, Args};
use headworks_examples::hosts::Hosts;
use headworks_examples::shell::{self, Failure, Outcome};

const NAME: &str = "service_key_value";
const USAGE: &str = "usage: service_key_value [COUNT] [--connections N] | serve [--socket PATH] [--port N] | \
                     ask --to IP:PORT [COUNT] [--socket PATH] [--connections N]";
const COUNT: u64 = 200_000;
const CONNECTIONS: u64 = 4;

fn main() -> ExitCode {
    applications::run(NAME, |args, interrupt| {
        let known = |options| Args::of(args, options, USAGE);
        let count = |words: &[&str]| match *words {
            [] => Ok(COUNT),
            [number] if shell::is_number(number) => shell::count(number),
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
                let hosts = Hosts::start(interrupt)?;
                let (server, to) = hosts.serve(1, &["serve"], interrupt)?;
                let service = hosts.attach(0, NAME)?;
                let to = *to.first().ok_or_else(shell::gone)?;
                client::ask(&service, to, count, connections, interrupt)?;
                server.dismiss()
            }
        }
    })
}

fn connections(args: &Args<'_>) -> Outcome<u64> {
    args.count("--connections", CONNECTIONS, client::CONNECTIONS_MAX)
}

//! A gRPC server that sends back what it receives, over streams of the service and over TCP, and the rates of both.
//!
//! ```text
//! grpc_echo [COUNT]                                  run both sides and two daemons, with COUNT requests at a time
//!                                                    (default 20,000)
//! grpc_echo serve [--socket PATH] [--port N]         run the server, at a port of the daemon at PATH, and at a port of TCP
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Instant;

use headworks::asynchronous::AsyncListener;
use headworks::net::Interrupt;
use headworks::service::Service;
use headworks_examples::local_hosts::LocalHosts;
use headworks_examples::program::{self, Failure, Outcome, say};
use headworks_examples::service_program::{self, Args};
use headworks_examples_tasks::connection::{Server, incoming};
use headworks_examples_tasks::generated::Payload;
use headworks_examples_tasks::generated::echo_client::EchoClient;
use headworks_examples_tasks::generated::echo_server::{Echo, EchoServer};
use headworks_examples_tasks::interruptible;
use tokio::task::JoinSet;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

const NAME: &str = "grpc_echo";
const USAGE: &str = "usage: grpc_echo [COUNT] | serve [--socket PATH] [--port N]";
const COUNT: u64 = 20_000;
/// Bytes of a payload.
const LEN: usize = 64;
/// Requests under way at the same time.
const IN_FLIGHT: [u64; 2] = [1, 64];
/// Rounds in which service and TCP take turns. The middle rate of each counts.
const ROUNDS: usize = 5;

fn main() -> ExitCode {
    service_program::run(NAME, |args, interrupt| match *args {
        ["serve", ..] => {
            let args = Args::of(args, &["--socket", "--port"], USAGE)?;
            if args.words.len() > 1 {
                return Err(Failure::BadInput(USAGE.to_owned()));
            }
            let (service, port) = (args.service(NAME)?, args.port()?);
            interruptible::run(interrupt, serve(service, port))
        }
        [] => compare(COUNT, interrupt),
        [number] if program::is_number(number) => compare(program::count(number)?, interrupt),
        _ => Err(Failure::BadInput(USAGE.to_owned())),
    })
}

/// The server.
struct EchoService;

#[tonic::async_trait]
impl Echo for EchoService {
    async fn unary(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    type BidirectionalStream = Streaming<Payload>;

    async fn bidirectional(
        &self,
        request: Request<Streaming<Payload>>,
    ) -> Result<Response<Streaming<Payload>>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

/// Serves at a port of the service and at one of TCP until an error occurs.
async fn serve(service: Service, port: u16) -> Outcome {
    let listener = service.listen(port, 64)?;
    let at = listener.port();
    let tcp = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into())?.with_nodelay(Some(true));
    say(format!(
        "serving at port {at} and over TCP at {}\n",
        tcp.local_addr()?.port()
    )
    .as_bytes())?;
    let echo = || tonic::transport::Server::builder().add_service(EchoServer::new(EchoService));
    let by_service = echo().serve_with_incoming(incoming(AsyncListener::new(listener)?));
    let by_tcp = echo().serve_with_incoming(tcp);
    tokio::try_join!(by_service, by_tcp)?;
    Ok(())
}

/// Starts two daemons and the server, and prints the rates.
fn compare(count: u64, interrupt: &Interrupt) -> Outcome {
    let hosts = LocalHosts::start(interrupt)?;
    let (server, at) = hosts.serve(1, &["serve"], interrupt)?;
    let &[at, tcp] = &at[..] else {
        return Err(program::gone());
    };
    let tcp = SocketAddr::from((Ipv4Addr::LOCALHOST, tcp.port()));
    let service = hosts.attach(0, NAME)?;
    interruptible::run(interrupt, async {
        let arms = [Server::Service(service, at), Server::Tcp(tcp)];
        for in_flight in IN_FLIGHT {
            let mut rates = [const { Vec::new() }; 2];
            for _ in 0..ROUNDS {
                for (arm, rates) in arms.iter().zip(&mut rates) {
                    rates.push(rate(arm.clone(), count, in_flight).await?);
                }
            }
            let [by_service, by_tcp] = rates.map(|mut rates| {
                rates.sort_by(f64::total_cmp);
                rates[ROUNDS / 2]
            });
            let line = format!(
                "{in_flight} in flight: {by_service:.0} requests/s by the service, {by_tcp:.0} by TCP, {:.2} times as many\n",
                by_service / by_tcp
            );
            say(line.as_bytes())?;
        }
        Ok(())
    })?;
    server.finish()
}

/// Sends `count` requests, `in_flight` at a time, and checks the answers. Returns the number per second.
async fn rate(server: Server, count: u64, in_flight: u64) -> Outcome<f64> {
    let client = EchoClient::new(server.channel().await?);
    // The connection is there, and both sides are warm.
    ask(client.clone(), count / 10 + 1).await?;
    let began = Instant::now();
    let mut asking = JoinSet::new();
    for _ in 0..in_flight {
        asking.spawn(ask(client.clone(), count.div_ceil(in_flight)));
    }
    while let Some(asked) = asking.join_next().await {
        asked.map_err(|error| Failure::Failed(error.to_string()))??;
    }
    Ok((count.div_ceil(in_flight) * in_flight) as f64 / began.elapsed().as_secs_f64())
}

async fn ask(mut client: EchoClient<tonic::transport::Channel>, count: u64) -> Outcome {
    for number in 0..count {
        let data = vec![number as u8; LEN];
        let payload = Payload {
            data: data.clone().into(),
        };
        let answer = client.unary(payload).await?;
        if answer.into_inner().data != data {
            return Err(Failure::Failed("a wrong answer".to_owned()));
        }
    }
    Ok(())
}

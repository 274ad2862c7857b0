//! A server of HTTP/1.1 and HTTP/2 that sends back the body of a request, and a client that uses both.
//!
//! ```text
//! http_tasks [COUNT]                                 run both sides and two daemons, with COUNT requests of each kind
//!                                                    (default 5,000)
//! http_tasks serve [--socket PATH] [--port N]        run the server, at a port of the daemon at PATH
//! ```

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Instant;

use headworks::asynchronous::{AsyncListener, AsyncStream};
use headworks::net::Interrupt;
use headworks::service::Service;
use headworks_examples::local_hosts::LocalHosts;
use headworks_examples::program::{self, Failure, Outcome, say};
use headworks_examples::service_program::{self, Args};
use headworks_examples_tasks::interruptible;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;

const NAME: &str = "http_tasks";
const USAGE: &str = "usage: http_tasks [COUNT] | serve [--socket PATH] [--port N]";
const COUNT: u64 = 5_000;
/// Longest body, in bytes.
const LONGEST: usize = 100_000;

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
        [] => run_both(COUNT, interrupt),
        [number] if program::is_number(number) => run_both(program::count(number)?, interrupt),
        _ => Err(Failure::BadInput(USAGE.to_owned())),
    })
}

/// Serves until an error of the listener.
async fn serve(service: Service, port: u16) -> Outcome {
    let listener = service.listen(port, 64)?;
    say(format!("serving at port {}\n", listener.port()).as_bytes())?;
    let listener = AsyncListener::new(listener)?;
    loop {
        let stream = TokioIo::new(listener.accept().await?);
        tokio::spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            // A client that goes away ends its own connection only.
            let _ = server.serve_connection(stream, service_fn(echo)).await;
        });
    }
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    Ok(Response::new(Full::new(body)))
}

/// Starts two daemons and the server, and prints how long the requests took.
fn run_both(count: u64, interrupt: &Interrupt) -> Outcome {
    let hosts = LocalHosts::start(interrupt)?;
    let (server, to) = hosts.serve(1, &["serve"], interrupt)?;
    let to = *to.first().ok_or_else(program::gone)?;
    let service = hosts.attach(0, NAME)?;
    interruptible::run(interrupt, async {
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let began = Instant::now();
            let bytes = ask(&service, to, count, version).await?;
            let took = began.elapsed().as_secs_f64();
            say(format!(
                "{count} requests of {version:?} in {took:.2} s: {bytes} bytes each way\n"
            )
            .as_bytes())?;
        }
        Ok(())
    })?;
    server.finish()
}

/// Sends `count` requests, one after the other, and checks the answers. Returns the number of bytes of their bodies.
async fn ask(service: &Service, to: SocketAddr, count: u64, version: Version) -> Outcome<usize> {
    let stream = TokioIo::new(AsyncStream::connect(service, to).await?);
    let mut client = match version {
        Version::HTTP_2 => {
            let (client, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await?;
            tokio::spawn(connection);
            Client::Http2(client)
        }
        _ => {
            let (client, connection) = hyper::client::conn::http1::handshake(stream).await?;
            tokio::spawn(connection);
            Client::Http1(client)
        }
    };
    let mut bytes = 0;
    for number in 0..count {
        let body = Bytes::from(vec![number as u8; number as usize * 997 % LONGEST]);
        let request = Request::post("http://echo/").body(Full::new(body.clone()))?;
        let answer = client.send(request).await?;
        if answer.version() != version || answer.into_body().collect().await?.to_bytes() != body {
            return Err(Failure::Failed("a wrong answer".to_owned()));
        }
        bytes += body.len();
    }
    Ok(bytes)
}

/// A client of one connection.
enum Client {
    Http1(hyper::client::conn::http1::SendRequest<Full<Bytes>>),
    Http2(hyper::client::conn::http2::SendRequest<Full<Bytes>>),
}

impl Client {
    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(client) => {
                client.ready().await?;
                client.send_request(request).await
            }
            Self::Http2(client) => {
                client.ready().await?;
                client.send_request(request).await
            }
        }
    }
}

//! Serves a file over HTTP/1.1, one request at a time, with low latency.
//!
//! ```text
//! http_server [COUNT]              run both sides, with COUNT requests (default 100,000)
//! http_server listen NAME          serve /file, 1 KiB of generated text, under NAME to one client
//! http_server get NAME [PATH]      fetch PATH (default /file) once, and print the body
//! ```
//!
//! Messages have any length here, and each is a whole request or response. The rings are in latency
//! mode: each message is sent at once by a single WRITE, without batching.

use std::process::ExitCode;
use std::time::Instant;

use headworks::duplex::DuplexConfig;
use headworks::net::Interrupt;
use headworks::ring::{Framing, Mode, RingConfig};
use headworks_examples::duplex_rings::DuplexRings;
use headworks_examples::program::{self, Failure, Outcome};

/// Longest request or response, in bytes.
const MESSAGE_MAX: usize = 16 << 10;
/// Most header fields of a message.
const FIELDS_MAX: usize = 64;

/// Slots of 1,472 bytes: most requests and responses fit into one slot, so that each is one WRITE.
fn rings() -> DuplexConfig {
    let ring = RingConfig {
        slots: 64,
        slot_size: Some(1472),
        framing: Framing::Variable(MESSAGE_MAX),
        mode: Mode::Latency,
        ..RingConfig::default()
    };
    DuplexConfig {
        there: ring.clone(),
        back: ring,
    }
}

fn main() -> ExitCode {
    program::run("http_server", |args, interrupt| {
        let both = |count| program::run_both("http_server", |name| measure(name, count, interrupt));
        match *args {
            [] => both(100_000),
            ["listen", name] => serve(name, &made_up(), interrupt),
            ["get", name] => get(name, "/file", interrupt),
            ["get", name, path] => get(name, path, interrupt),
            [number] if program::is_number(number) => both(program::count(number)?),
            _ => Err(Failure::BadInput(
                "usage: http_server [COUNT] | listen NAME | get NAME [PATH]".to_owned(),
            )),
        }
    })
}

/// The server.
fn serve(name: &str, file: &[u8], interrupt: &Interrupt) -> Outcome {
    let mut client = DuplexRings::listen(name, &rings(), interrupt)?;
    let page = [&head("200 OK", file.len())[..], file].concat();
    loop {
        let response = match client.try_receive(status)? {
            Some("200 OK") => &page,
            Some(status) => &[&head(status, status.len())[..], status.as_bytes()].concat(),
            None if client.wait()? => return client.close_second(),
            None => continue,
        };
        client.send(response.len(), |place| place.copy_from_slice(response))?;
    }
}

/// The status to answer a request with, whatever its bytes are.
fn status(message: &[u8]) -> &'static str {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(message) {
        Ok(httparse::Status::Complete(len)) if len == message.len() => {}
        _ => return "400 Bad Request",
    }
    let fields = request.headers.iter();
    let hosts = fields.filter(|field| field.name.eq_ignore_ascii_case("Host"));
    if (request.version, hosts.count()) != (Some(1), 1) {
        return "400 Bad Request";
    }
    match (request.method, request.path) {
        (Some("GET"), Some("/file")) => "200 OK",
        (Some("GET"), _) => "404 Not Found",
        _ => "405 Method Not Allowed",
    }
}

fn head(status: &str, length: usize) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nAllow: GET\r\nContent-Length: {length}\r\n\r\n");
    head.into_bytes()
}

/// Sends a request, waits for the response, and passes its status and body to `look`.
fn fetch<R>(
    server: &mut DuplexRings<'_>,
    request: &[u8],
    look: impl Fn(u16, &[u8]) -> R,
) -> Outcome<R> {
    server.send(request.len(), |place| place.copy_from_slice(request))?;
    loop {
        let looked = server.try_receive(|message| {
            let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
            let mut response = httparse::Response::new(&mut fields);
            let Ok(httparse::Status::Complete(head)) = response.parse(message) else {
                return None;
            };
            let mut fields = response.headers.iter();
            let length = fields.find(|field| field.name.eq_ignore_ascii_case("Content-Length"))?;
            let length: usize = std::str::from_utf8(length.value).ok()?.parse().ok()?;
            let body = message.get(head..).filter(|body| body.len() == length)?;
            Some(look(response.code?, body))
        })?;
        match looked {
            Some(Some(looked)) => return Ok(looked),
            Some(None) => return Err(Failure::Failed("the response is incomplete".to_owned())),
            None => drop(server.wait()?),
        }
    }
}

fn request(path: &str) -> Vec<u8> {
    let text = format!(
        "GET {path} HTTP/1.1\r\nHost: example.org\r\nUser-Agent: headworks-example/1.0\r\n\
         Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\nAccept-Language: en;q=0.5\r\n\
         Connection: keep-alive\r\n\r\n"
    );
    text.into_bytes()
}

/// Fetches the file `count` times and checks it each time.
fn measure(name: &str, count: u64, interrupt: &Interrupt) -> Outcome {
    let mut server = DuplexRings::call(name, &rings(), interrupt)?;
    let (request, file) = (request("/file"), made_up());
    let mut nanos = Vec::new();
    for number in 0..count {
        let began = Instant::now();
        if !fetch(&mut server, &request, |code, body| {
            code == 200 && body == file
        })? {
            return Err(Failure::Failed(format!("response {number} is wrong")));
        }
        nanos.push(began.elapsed().as_nanos());
    }
    server.close_first()?;
    let seconds = nanos.iter().sum::<u128>() as f64 / 1e9;
    nanos.sort_unstable();
    let at = |share: usize| nanos[(nanos.len() - 1) * share / 100] as f64 / 1e3;
    let rate = count as f64 / seconds;
    let (median, p99) = (at(50), at(99));
    let line = format!(
        "{count} requests in {seconds:.2} s: {rate:.0} per second, median {median:.1} µs, p99 {p99:.1} µs\n"
    );
    program::say(line.as_bytes())
}

/// Fetches `path` once and prints the body.
fn get(name: &str, path: &str, interrupt: &Interrupt) -> Outcome {
    let mut server = DuplexRings::call(name, &rings(), interrupt)?;
    let (code, body) = fetch(&mut server, &request(path), |code, body| {
        (code, body.to_vec())
    })?;
    server.close_first()?;
    match code {
        200 => program::say(&body),
        code => Err(Failure::Failed(format!("{path}: {code}"))),
    }
}

/// Generates 1 KiB of text lines.
fn made_up() -> Vec<u8> {
    (0..1024)
        .map(|at| {
            if at % 64 == 63 {
                b'\n'
            } else {
                b'a' + (at % 26) as u8
            }
        })
        .collect()
}

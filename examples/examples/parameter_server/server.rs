//! A server: in each round it adds up what all workers push, and then returns the sums.

use std::collections::HashMap;
use std::thread;

use headworks::net::Interrupt;
use headworks::service::{Listener, Service, Stream};
use headworks_examples::program::{Failure, Outcome, gone, say};
use headworks_examples::service_program::{accept, join_all, receive, receive_exact, send};

use crate::{HELLO, KEY, MANY, PAIRS, VALUE};

/// Serves until Ctrl-C, at ports from `port` on, or at any free ports if it is 0.
pub(crate) fn serve(servers: &[Service], port: u16, interrupt: &Interrupt) -> Outcome {
    let mut listeners = Vec::new();
    for (at, service) in (0..).zip(servers) {
        let port = if port == 0 {
            0
        } else {
            port.saturating_add(at)
        };
        listeners.push(service.listen(port, MANY as u32)?);
    }
    let ports = listeners.iter().map(|listener| listener.port().to_string());
    let line = format!("serving at ports {}\n", ports.collect::<Vec<_>>().join(" "));
    say(line.as_bytes())?;
    thread::scope(|scope| {
        let serve = |listener| scope.spawn(move || serve_at(listener, interrupt));
        let threads: Vec<_> = listeners.iter().map(serve).collect();
        join_all(threads).map(drop)
    })
}

/// Serves one party of workers after another.
fn serve_at(listener: &Listener, interrupt: &Interrupt) -> Outcome {
    loop {
        let first = accept(listener, interrupt)?;
        // If one worker fails, the connections of its party are closed, and the next party is served.
        if let Err(Failure::Interrupted) = serve_party(first, listener, interrupt) {
            return Err(Failure::Interrupted);
        }
    }
}

/// Accepts a party of workers and serves it. Each worker first sends the size of the party.
fn serve_party(first: Stream, listener: &Listener, interrupt: &Interrupt) -> Outcome {
    let mut workers = Vec::new();
    let mut next = first;
    loop {
        let mut hello = [0; HELLO];
        receive_exact(&mut next, &mut hello, interrupt)?;
        workers.push(next);
        let party = u32::from_le_bytes(hello);
        if u64::from(party) > MANY {
            return Err(nonsense());
        }
        if workers.len() >= party as usize {
            return rounds(&mut workers, interrupt);
        }
        next = accept(listener, interrupt)?;
    }
}

/// Runs all rounds of a party.
fn rounds(workers: &mut [Stream], interrupt: &Interrupt) -> Outcome {
    let mut parameters: HashMap<u32, f64> = HashMap::new();
    let mut message = Vec::new();
    loop {
        for worker in &mut *workers {
            if !message_of(worker, KEY + VALUE, &mut message, interrupt)? {
                return Ok(());
            }
            for pair in message.chunks_exact(KEY + VALUE) {
                let value = pair
                    .last_chunk()
                    .map_or(0.0, |value| f64::from_le_bytes(*value));
                *parameters.entry(word(pair)).or_default() += value;
            }
        }
        for worker in &mut *workers {
            if !message_of(worker, KEY, &mut message, interrupt)? {
                return Err(gone());
            }
            let keys = message.chunks_exact(KEY).map(word);
            let values = keys.map(|key| parameters.get(&key).copied().unwrap_or_default());
            let answer: Vec<u8> = values.flat_map(f64::to_le_bytes).collect();
            send(worker, &answer, interrupt)?;
        }
    }
}

/// Receives the next message: a count, and that many entries of `each` bytes. Returns `false` if the worker
/// has ended.
fn message_of(
    worker: &mut Stream,
    each: usize,
    message: &mut Vec<u8>,
    interrupt: &Interrupt,
) -> Outcome<bool> {
    let mut count = [0; KEY];
    if !receive(worker, &mut count, interrupt)? {
        return Ok(false);
    }
    let count = word(&count);
    if count > PAIRS {
        return Err(nonsense());
    }
    message.resize(count as usize * each, 0);
    receive_exact(worker, message, interrupt)?;
    Ok(true)
}

fn nonsense() -> Failure {
    Failure::Failed("a worker sent an invalid message".to_owned())
}

/// The number at the start of `bytes`.
fn word(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk()
        .map_or(0, |word| u32::from_le_bytes(*word))
}

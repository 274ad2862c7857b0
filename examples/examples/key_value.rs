//! A key-value store in one process and its client in another, with many requests in flight at a time.
//!
//! ```text
//! key_value [COUNT]         run both sides, with COUNT requests (default 1,000,000)
//! key_value listen NAME     serve 100,000 records under NAME to one client
//! key_value ask NAME        ask for records, the default number of times
//! ```
//!
//! Requests and responses use two rings in opposite directions, a [`DuplexRings`].

use std::collections::{HashMap, VecDeque};
use std::process::ExitCode;
use std::time::Instant;

use headworks::duplex::DuplexConfig;
use headworks::net::Interrupt;
use headworks::ring::RingConfig;
use headworks_examples::duplex_rings::DuplexRings;
use headworks_examples::program::{self, Failure, Outcome};

/// Bytes of a request: its number and the key.
const REQUEST: usize = 16;
/// Bytes of a response: the number of the request and the value.
const RESPONSE: usize = 8 + VALUE;
const VALUE: usize = 120;
/// Most requests in flight.
const WINDOW: usize = 64;
const RECORDS: u64 = 100_000;
const COUNT: u64 = 1_000_000;

type Value = [u8; VALUE];

fn main() -> ExitCode {
    program::run("key_value", |args, interrupt| {
        let both = |count| program::run_both("key_value", |name| ask(name, count, interrupt));
        match *args {
            [] => both(COUNT),
            ["listen", name] => serve(name, interrupt),
            ["ask", name] => ask(name, COUNT, interrupt),
            [number] if program::is_number(number) => both(program::count(number)?),
            _ => Err(Failure::BadInput(
                "usage: key_value [COUNT] | listen NAME | ask NAME".to_owned(),
            )),
        }
    })
}

/// Requests use one ring, responses the other.
fn rings() -> DuplexConfig {
    DuplexConfig {
        there: RingConfig::fixed(128, REQUEST),
        back: RingConfig::fixed(128, RESPONSE),
    }
}

/// The side with the records.
fn serve(name: &str, interrupt: &Interrupt) -> Outcome {
    let records: HashMap<u64, Value> = (0..RECORDS).map(|key| (key, value_of(key))).collect();
    let mut client = DuplexRings::listen(name, &rings(), interrupt)?;
    loop {
        let request = client.try_receive(|message| [word(message, 0), word(message, 8)])?;
        if let Some([number, key]) = request {
            // A missing record is answered with zeros.
            let value = records.get(&key).unwrap_or(&[0; VALUE]);
            client.send(RESPONSE, |place| {
                place[..8].copy_from_slice(&number.to_le_bytes());
                place[8..].copy_from_slice(value);
            })?;
        } else if client.wait()? {
            return client.close_second();
        }
    }
}

/// The client, which checks every answer.
fn ask(name: &str, count: u64, interrupt: &Interrupt) -> Outcome {
    let mut server = DuplexRings::call(name, &rings(), interrupt)?;
    let began = Instant::now();
    // Keys of the requests in flight, oldest first.
    let mut asked = VecDeque::with_capacity(WINDOW);
    let (mut sent, mut answered) = (0u64, 0u64);
    while answered < count {
        if sent < count && asked.len() < WINDOW {
            let key = mixed(sent) % RECORDS;
            let request = |place: &mut [u8]| {
                place[..8].copy_from_slice(&sent.to_le_bytes());
                place[8..].copy_from_slice(&key.to_le_bytes());
            };
            if server.try_send(REQUEST, request)? {
                asked.push_back(key);
                sent += 1;
                continue;
            }
        }
        let key = asked.front().copied();
        let right = server.try_receive(|response| {
            word(response, 0) == answered && key.is_some_and(|key| response[8..] == value_of(key))
        })?;
        match right {
            Some(true) => {
                asked.pop_front();
                answered += 1;
            }
            Some(false) => return Err(Failure::Failed(format!("response {answered} is wrong"))),
            None => drop(server.wait()?),
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let rate = count as f64 / seconds / 1e6;
    server.close_first()?;
    let line = format!("{count} requests in {seconds:.2} s: {rate:.2} M/s, all answers right\n");
    program::say(line.as_bytes())
}

/// The value of a key. Both sides compute it, so that the client can check answers.
fn value_of(key: u64) -> Value {
    let mut value = [0; VALUE];
    for (at, word) in (0..).zip(value.chunks_exact_mut(8)) {
        word.copy_from_slice(&mixed(key + at).to_le_bytes());
    }
    value
}

fn mixed(number: u64) -> u64 {
    let number = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    number ^ number >> 32
}

/// The number at `at`; 0 if the message is too short.
fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

//! The client: on each connection one thread sends requests, another receives and checks the answers.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use headworks::net::Interrupt;
use headworks::service::{Reader, Service, Stream, Writer};
use headworks_examples::program::{Failure, Outcome, say};
use headworks_examples::service_program::{connect, join_all, receive_exact, send};

use crate::wire::{ANSWER, Operation, REQUEST, Request, VALUE_MAX};

/// Most requests of a connection in flight.
const WINDOW: usize = 32;
/// Keys of a connection, and the number of low bits of a key that select one of them.
const KEYS: u64 = 1000;
const KEY_BITS: u32 = 10;
/// Bits of a key below those that identify a run: the connection's number, then the key's own bits.
const RUN_BITS: u32 = 26;
/// Most connections.
pub(crate) const CONNECTIONS_MAX: u64 = 1 << (RUN_BITS - KEY_BITS);

/// A value as both threads know it: its bytes are generated from `seed`.
#[derive(Clone, Copy)]
struct Value {
    seed: u64,
    len: usize,
}

/// The answer that is expected.
struct Answer {
    was_there: bool,
    value: Option<Value>,
}

/// Sends `count` requests over `connections` connections at once.
pub(crate) fn ask(
    service: &Service,
    to: SocketAddr,
    count: u64,
    connections: u64,
    interrupt: &Interrupt,
) -> Outcome {
    let streams = (0..connections).map(|_| connect(service, to, interrupt));
    let streams: Vec<Stream> = streams.collect::<Outcome<_>>()?;
    // Keys begin with a random number, because other clients may use the store now or have left records in
    // it.
    let run = RandomState::new().hash_one(count) << RUN_BITS;
    let began = Instant::now();
    let done = thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(streams)
            .map(|(number, stream)| {
                // The remainder of the division goes to the first connections.
                let part = count / connections + u64::from(number < count % connections);
                let keys = run | (number << KEY_BITS);
                scope.spawn(move || converse(stream, keys, part, interrupt))
            })
            .collect();
        join_all(threads)
    })?;
    let bytes: u64 = done.into_iter().sum();
    let seconds = began.elapsed().as_secs_f64();
    let (rate, mib) = (count as f64 / seconds, bytes as f64 / f64::from(1 << 20));
    let line = format!(
        "{count} requests over {connections} connections in {seconds:.2} s: {rate:.0}/s, \
         {mib:.1} MiB of values, all answers right\n"
    );
    say(line.as_bytes())
}

/// Runs one connection and returns the bytes of values that it carried.
fn converse(stream: Stream, keys: u64, count: u64, interrupt: &Interrupt) -> Outcome<u64> {
    let (reader, mut writer) = stream.split();
    // Expected answers of the requests in flight. Its capacity limits how many there are.
    let (expect, expected) = sync_channel(WINDOW);
    thread::scope(|scope| {
        let checks = scope.spawn(move || check(reader, &expected, interrupt));
        let sent = request(&mut writer, keys, count, &expect, interrupt);
        drop(expect);
        let checked = join_all(vec![checks]);
        // Report a wrong answer before a failure to send: the former causes the latter.
        Ok(checked?.into_iter().sum::<u64>() + sent?)
    })
}

/// Sends requests and returns the bytes of values sent.
fn request(
    stream: &mut Writer,
    keys: u64,
    count: u64,
    expect: &SyncSender<Answer>,
    interrupt: &Interrupt,
) -> Outcome<u64> {
    let mut model: HashMap<u64, Value> = HashMap::new();
    let mut bytes = Vec::with_capacity(REQUEST + VALUE_MAX);
    let mut total = 0;
    for at in 0..count {
        let seed = mixed(keys ^ at);
        let key = keys | (seed % KEYS);
        let (operation, key, len) = match at {
            // Always include the shortest and the longest value.
            0..6 => {
                let operations = [Operation::Set, Operation::Get];
                let len = [0, VALUE_MAX, 1][at as usize / 2];
                (operations[at as usize % 2], keys, len)
            }
            _ => (drawn(seed), key, length(seed)),
        };
        let set = (operation == Operation::Set).then_some(Value { seed, len });
        let before = match (operation, set) {
            (Operation::Delete, _) => model.remove(&key),
            (_, Some(value)) => model.insert(key, value),
            _ => model.get(&key).copied(),
        };
        let answer = Answer {
            was_there: before.is_some(),
            value: before.filter(|_| operation == Operation::Get),
        };
        let len = set.map_or(0, |value| value.len);
        let head = Request {
            operation,
            key,
            len,
        };
        bytes.clear();
        bytes.extend_from_slice(&head.encode());
        if let Some(value) = set {
            write(value, &mut bytes);
        }
        // The checking thread has ended: an answer was wrong, or none came.
        if expect.send(answer).is_err() {
            break;
        }
        send(stream, &bytes, interrupt)?;
        total += len as u64;
    }
    Ok(total)
}

/// Receives and checks the answers. Returns the bytes of values received.
fn check(mut reader: Reader, expected: &Receiver<Answer>, interrupt: &Interrupt) -> Outcome<u64> {
    let mut found = vec![0; VALUE_MAX];
    let mut right = Vec::with_capacity(VALUE_MAX);
    let mut total = 0;
    for (at, answer) in expected.iter().enumerate() {
        let wrong = || Failure::Failed(format!("answer {at} is wrong"));
        let mut head = [0; ANSWER];
        receive_exact(&mut reader, &mut head, interrupt)?;
        right.clear();
        if let Some(value) = answer.value {
            write(value, &mut right);
        }
        if head != crate::wire::answer(answer.was_there, right.len()) {
            return Err(wrong());
        }
        let found = &mut found[..right.len()];
        receive_exact(&mut reader, found, interrupt)?;
        if *found != right[..] {
            return Err(wrong());
        }
        total += found.len() as u64;
    }
    Ok(total)
}

/// Half of the operations are reads, two fifths are writes and one tenth are deletions.
fn drawn(seed: u64) -> Operation {
    match seed >> 32 & 0xff {
        0..128 => Operation::Get,
        128..230 => Operation::Set,
        _ => Operation::Delete,
    }
}

/// Length of a value: most are short, few are long.
fn length(seed: u64) -> usize {
    let max = match seed >> 44 & 0x3ff {
        0 => VALUE_MAX,
        1..64 => 16 << 10,
        _ => 256,
    };
    (mixed(seed) >> 16) as usize % (max + 1)
}

/// Appends the bytes of a value.
fn write(Value { seed, len }: Value, to: &mut Vec<u8>) {
    let end = to.len() + len;
    for at in 0..len.div_ceil(8) as u64 {
        to.extend_from_slice(&mixed(seed.wrapping_add(at)).to_le_bytes());
    }
    to.truncate(end);
}

fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ number >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    number ^ number >> 32
}

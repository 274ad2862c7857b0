//! A worker: in each round it pushes a gradient, one number for each parameter, and pulls the sums over all
//! workers. Gradients are whole numbers, so the order of additions does not change a sum. Every worker can
//! compute the gradients of all workers, and checks the sums.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use headworks::net::Interrupt;
use headworks::service::{Service, Stream};
use headworks_examples::program::{Failure, Outcome, say};
use headworks_examples::service_program::{connect, join_all, receive_exact, send};

use crate::{PAIRS, VALUE};

/// Runs a worker for each of `services`, connected to all servers in `to`.
pub(crate) fn work(
    services: &[Service],
    to: &[SocketAddr],
    rounds: u64,
    interrupt: &Interrupt,
) -> Outcome {
    let party = services.len() as u32;
    let took = thread::scope(|scope| {
        let threads: Vec<_> = (0..party)
            .zip(services)
            .map(|(number, service)| {
                scope.spawn(move || {
                    let mut worker = Worker::connect(service, to, number, party, interrupt)?;
                    worker.rounds(rounds, interrupt)
                })
            })
            .collect();
        join_all(threads)
    })?;
    let longest = took.into_iter().max().unwrap_or_default();
    let each = longest.as_secs_f64() / rounds as f64;
    let line = format!(
        "{party} x {}: {rounds} rounds of {PAIRS} pairs per worker, {:.1} µs a round: \
         {:.2} M pairs/s pushed and pulled, all sums right\n",
        to.len(),
        each * 1e6,
        f64::from(party) * f64::from(PAIRS) / each / 1e6
    );
    say(line.as_bytes())
}

struct Worker {
    number: u32,
    party: u32,
    /// The server at `key % servers.len()` holds that parameter.
    servers: Vec<Stream>,
    /// The keys that each server holds.
    keys: Vec<Vec<u32>>,
    /// The correct value of every parameter.
    right: Vec<f64>,
}

impl Worker {
    fn connect(
        service: &Service,
        to: &[SocketAddr],
        number: u32,
        party: u32,
        interrupt: &Interrupt,
    ) -> Outcome<Self> {
        let mut servers = Vec::new();
        for to in to {
            let mut stream = connect(service, *to, interrupt)?;
            send(&mut stream, &party.to_le_bytes(), interrupt)?;
            servers.push(stream);
        }
        let of = |server| (server as u32..PAIRS).step_by(to.len()).collect();
        Ok(Self {
            number,
            party,
            servers,
            keys: (0..to.len()).map(of).collect(),
            right: vec![0.0; PAIRS as usize],
        })
    }

    /// Runs all rounds. Returns how long they took, without the time spent on checks.
    fn rounds(&mut self, rounds: u64, interrupt: &Interrupt) -> Outcome<Duration> {
        let mut took = Duration::ZERO;
        for round in 0..rounds {
            let asked: Vec<_> = self
                .keys
                .iter()
                .map(|keys| self.message(round, keys))
                .collect();
            let mut answers: Vec<Vec<u8>> = self.keys.iter().map(|keys| room(keys)).collect();
            let began = Instant::now();
            for (server, asked) in self.servers.iter_mut().zip(&asked) {
                send(server, asked, interrupt)?;
            }
            for (server, answer) in self.servers.iter_mut().zip(&mut answers) {
                receive_exact(server, answer, interrupt)?;
            }
            took += began.elapsed();
            self.check(round, &answers)?;
        }
        Ok(took)
    }

    /// The message to a server in a round: the pairs to push, then the keys to pull.
    fn message(&self, round: u64, keys: &[u32]) -> Vec<u8> {
        let count = (keys.len() as u32).to_le_bytes();
        let mut message = count.to_vec();
        for key in keys {
            message.extend(key.to_le_bytes());
            message.extend(gradient(self.number, round, *key).to_le_bytes());
        }
        message.extend(count);
        message.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
        message
    }

    /// Fails if the sums after this round are wrong.
    fn check(&mut self, round: u64, answers: &[Vec<u8>]) -> Outcome {
        for (keys, answer) in self.keys.iter().zip(answers) {
            for (key, value) in keys.iter().zip(answer.chunks_exact(VALUE)) {
                let all = (0..self.party).map(|worker| gradient(worker, round, *key));
                let right = &mut self.right[*key as usize];
                *right += all.sum::<f64>();
                if value != right.to_le_bytes() {
                    let line = format!("round {round}: parameter {key} is not {right}");
                    return Err(Failure::Failed(line));
                }
            }
        }
        Ok(())
    }
}

fn room(keys: &[u32]) -> Vec<u8> {
    vec![0; keys.len() * VALUE]
}

/// The value that a worker pushes: −3 to 4, so that sums stay exact for any practical number of rounds.
fn gradient(worker: u32, round: u64, key: u32) -> f64 {
    let number = (round << 20) ^ (u64::from(worker) << 10) ^ u64::from(key);
    let mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    f64::from((mixed >> 61) as u8) - 3.0
}

//! The operations as tables of messages. Pure. The algorithms are those that MPICH and MVAPICH use for long messages.

use std::fmt;

/// A message of an operation.
///
/// Buffers consist of blocks of equal length. Each process numbers its blocks from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sending process.
    pub from: usize,
    /// The receiving process.
    pub to: usize,
    /// First block of the sender's buffer that is sent.
    pub source: usize,
    /// First block of the receiver's buffer that the message goes to.
    pub target: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Whether the receiver adds the message to what is there.
    pub reduces: bool,
}

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// Each process sends a message of its own to each other one. Pairwise exchange: in step *i* a process exchanges
    /// with the process whose number differs by the bits of *i*.
    AllToAll,
    /// All get the message of each. Ring: each process passes on to the next one what it got in the step before.
    AllGather,
    /// All get the sum of all vectors. Recursive halving with sums, then recursive doubling.
    AllReduce,
    /// Each gets its part of the sum of all vectors. Pairwise exchange.
    ReduceScatter,
    /// All get the vector of process 0. A binomial tree spreads its parts, then they go around a ring.
    Broadcast,
    /// Process 0 gets the messages of all, in one step.
    Gather,
}

impl Pattern {
    /// All operations. The paper names the first three.
    pub const ALL: [Self; 6] = [
        Self::AllToAll,
        Self::AllGather,
        Self::AllReduce,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Gather,
    ];

    /// Returns the name in identifiers.
    pub fn key(self) -> &'static str {
        match self {
            Self::AllToAll => "all_to_all",
            Self::AllGather => "all_gather",
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::Gather => "gather",
        }
    }

    /// Returns the bytes of a block, of `bytes` of a message. All-to-all, all-gather and gather move messages as a
    /// whole. The others cut a vector of that length into as many parts as there are processes.
    pub fn block_bytes(self, processes: usize, bytes: u64) -> u64 {
        match self {
            Self::AllToAll | Self::AllGather | Self::Gather => bytes,
            Self::AllReduce | Self::ReduceScatter | Self::Broadcast => bytes / processes as u64,
        }
    }

    /// Returns the number of blocks of a process's buffer. With all-to-all, the blocks that are sent lie before those
    /// that are received.
    pub fn buffer_blocks(self, processes: usize) -> usize {
        match self {
            Self::AllToAll => 2 * processes,
            _ => processes,
        }
    }

    /// Returns the messages of each step. The number of processes is a power of two.
    pub fn steps(self, processes: usize) -> Vec<Vec<Message>> {
        assert!(processes.is_power_of_two(), "{processes} processes");
        let all = || 0..processes;
        let whole = |from: usize, to: usize, block: usize| Message {
            from,
            to,
            source: block,
            target: block,
            blocks: 1,
            reduces: false,
        };
        let ring = |steps: usize| {
            (0..steps).map(move |step| {
                let pass = |from: usize| {
                    let block = (from + processes - step) % processes;
                    whole(from, (from + 1) % processes, block)
                };
                (0..processes).map(pass).collect()
            })
        };
        match self {
            Self::AllToAll => {
                let step = |bits: usize| {
                    let exchange = |from: usize| Message {
                        source: from ^ bits,
                        target: processes + from,
                        ..whole(from, from ^ bits, 0)
                    };
                    all().map(exchange).collect()
                };
                (1..processes).map(step).collect()
            }
            Self::AllGather => ring(processes - 1).collect(),
            Self::AllReduce => {
                let mut steps = Vec::new();
                let mut distance = processes / 2;
                while distance > 0 {
                    // The group of 2 * distance blocks that a process still has is halved.
                    let halve = |from: usize| {
                        let to = from ^ distance;
                        Message {
                            blocks: distance,
                            reduces: true,
                            ..whole(from, to, to / distance * distance)
                        }
                    };
                    steps.push(all().map(halve).collect());
                    distance /= 2;
                }
                distance = 1;
                while distance < processes {
                    let double = |from: usize| Message {
                        blocks: distance,
                        ..whole(from, from ^ distance, from / distance * distance)
                    };
                    steps.push(all().map(double).collect());
                    distance *= 2;
                }
                steps
            }
            Self::ReduceScatter => {
                let step = |distance: usize| {
                    let send = |from: usize| {
                        let to = (from + distance) % processes;
                        Message {
                            reduces: true,
                            ..whole(from, to, to)
                        }
                    };
                    all().map(send).collect()
                };
                (1..processes).map(step).collect()
            }
            Self::Broadcast => {
                let mut steps: Vec<Vec<Message>> = Vec::new();
                let mut distance = processes / 2;
                while distance > 0 {
                    let senders = all().step_by(2 * distance);
                    let spread = senders.map(|from| Message {
                        blocks: distance,
                        ..whole(from, from + distance, from + distance)
                    });
                    steps.push(spread.collect());
                    distance /= 2;
                }
                steps.extend(ring(processes - 1));
                steps
            }
            Self::Gather => vec![all().skip(1).map(|from| whole(from, 0, from)).collect()],
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllToAll => "all-to-all",
            Self::AllGather => "all-gather",
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::Broadcast => "broadcast",
            Self::Gather => "gather",
        })
    }
}

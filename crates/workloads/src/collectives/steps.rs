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
        match self {
            Self::AllToAll => exchange_pairwise(processes),
            Self::AllGather => pass_around(processes),
            Self::AllReduce => [halve_with_sums(processes), double(processes)].concat(),
            Self::ReduceScatter => exchange_with_sums(processes),
            Self::Broadcast => [spread_by_tree(processes), pass_around(processes)].concat(),
            Self::Gather => vec![(1..processes).map(|from| whole(from, 0, from)).collect()],
        }
    }
}

/// Returns the message that brings one block to the same place of the receiver's buffer.
fn whole(from: usize, to: usize, block: usize) -> Message {
    Message {
        from,
        to,
        source: block,
        target: block,
        blocks: 1,
        reduces: false,
    }
}

/// Returns the distances of recursive halving: half the number of processes, a quarter, …, 1.
fn halved_distances(processes: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..processes.ilog2()).rev().map(|bit| 1 << bit)
}

/// All-to-all: in step *i* a process exchanges with the one whose number differs by the bits of *i*.
fn exchange_pairwise(processes: usize) -> Vec<Vec<Message>> {
    let step = |bits: usize| {
        let exchange = |from: usize| Message {
            source: from ^ bits,
            target: processes + from,
            ..whole(from, from ^ bits, 0)
        };
        (0..processes).map(exchange).collect()
    };
    (1..processes).map(step).collect()
}

/// A ring: each process passes on to the next one the block that it got in the step before, first its own.
fn pass_around(processes: usize) -> Vec<Vec<Message>> {
    let step = |step: usize| {
        let pass = |from: usize| {
            let block = (from + processes - step) % processes;
            whole(from, (from + 1) % processes, block)
        };
        (0..processes).map(pass).collect()
    };
    (0..processes - 1).map(step).collect()
}

/// Recursive halving with sums: the group of blocks that a process still has is halved in each step.
fn halve_with_sums(processes: usize) -> Vec<Vec<Message>> {
    let step = |distance: usize| {
        let halve = |from: usize| {
            let to = from ^ distance;
            Message {
                blocks: distance,
                reduces: true,
                ..whole(from, to, to / distance * distance)
            }
        };
        (0..processes).map(halve).collect()
    };
    halved_distances(processes).map(step).collect()
}

/// Recursive doubling: the group of blocks that a process has is doubled in each step.
fn double(processes: usize) -> Vec<Vec<Message>> {
    let step = |distance: usize| {
        let double = |from: usize| Message {
            blocks: distance,
            ..whole(from, from ^ distance, from / distance * distance)
        };
        (0..processes).map(double).collect()
    };
    halved_distances(processes).rev().map(step).collect()
}

/// Reduce-scatter by pairwise exchange: each process sends each other one its part of the vector, which is added there.
fn exchange_with_sums(processes: usize) -> Vec<Vec<Message>> {
    let step = |distance: usize| {
        let send = |from: usize| {
            let to = (from + distance) % processes;
            Message {
                reduces: true,
                ..whole(from, to, to)
            }
        };
        (0..processes).map(send).collect()
    };
    (1..processes).map(step).collect()
}

/// A binomial tree: each process that has parts of the vector sends half of them on in each step.
fn spread_by_tree(processes: usize) -> Vec<Vec<Message>> {
    let step = |distance: usize| {
        let senders = (0..processes).step_by(2 * distance);
        let spread = senders.map(|from| Message {
            blocks: distance,
            ..whole(from, from + distance, from + distance)
        });
        spread.collect()
    };
    halved_distances(processes).map(step).collect()
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

use std::collections::BTreeMap;

use headworks::sim::Preset;

use super::*;

/// Contents of a block of a process's buffer. The key is a sender and the number of its block at the beginning. The value
/// is how often that block was added.
type Block = BTreeMap<(usize, usize), u32>;

/// Plays an operation and returns the blocks of each process at its end.
fn played(pattern: Pattern) -> Vec<Vec<Block>> {
    let blocks = pattern.buffer_blocks(PROCESSES);
    // Block b of process p holds (p, b); what a process does not own at the beginning counts as its own all the same.
    let of = |rank| (0..blocks).map(move |block| Block::from([((rank, block), 1)]));
    let mut all: Vec<Vec<Block>> = (0..PROCESSES).map(|rank| of(rank).collect()).collect();
    for step in pattern.steps(PROCESSES) {
        let before = all.clone();
        for message in step {
            assert_ne!(message.from, message.to);
            for block in 0..message.blocks {
                let sent = &before[message.from][message.source + block];
                let target = &mut all[message.to][message.target + block];
                match message.reduces {
                    true => sent
                        .iter()
                        .for_each(|(key, count)| *target.entry(*key).or_default() += count),
                    false => target.clone_from(sent),
                }
            }
        }
    }
    all
}

/// The sum of a block over all processes.
fn sum(block: usize) -> Block {
    (0..PROCESSES).map(|rank| ((rank, block), 1)).collect()
}

#[test]
fn each_operation_leaves_what_mpi_says() {
    let one = |rank, block| Block::from([((rank, block), 1)]);
    let all_to_all = played(Pattern::AllToAll);
    let (gathered, reduced) = (played(Pattern::AllGather), played(Pattern::AllReduce));
    let (scattered, spread) = (played(Pattern::ReduceScatter), played(Pattern::Broadcast));
    let at_root = &played(Pattern::Gather)[0];
    for rank in 0..PROCESSES {
        assert_eq!(
            scattered[rank][rank],
            sum(rank),
            "reduce-scatter, process {rank}"
        );
        assert_eq!(at_root[rank], one(rank, rank), "gather, block {rank}");
        for block in 0..PROCESSES {
            if block != rank {
                let got = &all_to_all[rank][PROCESSES + block];
                assert_eq!(*got, one(block, rank), "all-to-all, process {rank}");
            }
            assert_eq!(
                gathered[rank][block],
                one(block, block),
                "all-gather, process {rank}"
            );
            assert_eq!(
                reduced[rank][block],
                sum(block),
                "all-reduce, process {rank}"
            );
            assert_eq!(
                spread[rank][block],
                one(0, block),
                "broadcast, process {rank}"
            );
        }
    }
}

fn measured(collective: &Collective, antagonist: &str) -> CollectiveResult {
    let mut preset = Preset::named("cx4lx-2x25g").expect("a preset");
    preset.set("host.antagonist", antagonist).expect("legal");
    preset.set("host.isolated", "1").expect("legal");
    let machine = Machine { preset, seed: 1 };
    let times = (Duration::from_nanos(1), Duration::from_micros(1));
    let found = collective.measure(&machine, times, &AtomicBool::new(false));
    found.unwrap_or_else(|why| panic!("{why}"))
}

fn pool(pattern: Pattern) -> Collective {
    Collective {
        pattern,
        bytes: 256 << 10,
        placement: Placement::Block,
        way: ReceiveWay::Pool,
        by_slices: true,
    }
}

/// Bytes that an operation moves between hosts.
fn between_hosts(collective: &Collective) -> u64 {
    let block = collective.pattern.block_bytes(PROCESSES, collective.bytes);
    let steps = collective.pattern.steps(PROCESSES);
    let messages = steps.iter().flatten();
    let host_of = |rank| collective.placement.host_of(rank);
    let messages = messages.filter(|message| host_of(message.from) != host_of(message.to));
    messages.map(|message| message.blocks as u64 * block).sum()
}

#[test]
fn the_bytes_of_an_operation_arrive_whatever_the_way() {
    for pattern in Pattern::ALL {
        for way in [
            ReceiveWay::Areas,
            ReceiveWay::AreasFreeCopies,
            ReceiveWay::Pool,
        ] {
            let collective = Collective {
                way,
                ..pool(pattern)
            };
            let found = measured(&collective, "0");
            assert_eq!(
                found.arrived,
                found.count as u64 * between_hosts(&collective),
                "{pattern} {way:?}"
            );
            assert!(
                found.mean_ns > 0.0 && found.slowest_ns >= found.mean_ns,
                "{found:?}"
            );
        }
    }
}

#[test]
fn in_a_ring_over_hosts_in_turn_every_message_crosses_them() {
    let of = |placement| {
        let collective = Collective {
            placement,
            ..pool(Pattern::AllGather)
        };
        let bytes = between_hosts(&collective);
        assert_eq!(measured(&collective, "0").arrived % bytes, 0);
        bytes
    };
    assert_eq!(of(Placement::Cyclic), 4 * of(Placement::Block));
}

#[test]
fn a_run_repeats_and_an_antagonist_slows_areas_down() {
    let areas = Collective {
        way: ReceiveWay::Areas,
        bytes: 4 << 20,
        ..pool(Pattern::Gather)
    };
    let (quiet, loaded) = (measured(&areas, "0"), measured(&areas, "60"));
    assert!(loaded.mean_ns > 1.2 * quiet.mean_ns, "{quiet:?} {loaded:?}");
    assert!(loaded.memory_antagonist > 0);
    assert_eq!(loaded, measured(&areas, "60"));
}

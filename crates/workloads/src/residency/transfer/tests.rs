use super::*;
use crate::cpu_affinity::two_cpus;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

#[test]
fn grants_come_in_order_and_once() {
    let grants = Grants::new();
    assert_eq!(grants.next(), None);
    for number in 0..3 * GRANTS as u32 {
        let piece = Piece {
            offset: number,
            len: 4096,
        };
        grants.grant(piece);
        assert_eq!(grants.next(), Some(piece));
        grants.wrote();
        assert_eq!(grants.next(), None);
    }
}

/// Measures one batch of each kind of memory and copier on the software RNIC, at `message` bytes and with `lag` bytes
/// between. Returns the bytes between, by kind of memory.
fn between(message: usize, lag: usize) -> Vec<usize> {
    let name = |host| format!("soft:{host}").parse().expect("a device name");
    let mut hosts = Hosts::open(&name("h1"), &name("h2")).expect("the software RNIC");
    let [sender, receiver] = two_cpus();
    let cpus = Cpus {
        receiver,
        sender,
        antagonist: sender,
    };
    let stop = AtomicBool::new(false);
    let mut found = Vec::new();
    for memory in [
        MemoryKind::Pool,
        MemoryKind::Ring(MIB),
        MemoryKind::Ring(4 * MIB),
    ] {
        hosts.prepare(memory, false).expect("memory");
        for (copier, bypasses_caches) in [
            (Copier::Read, true),
            (Copier::Write, true),
            (Copier::Write, false),
        ] {
            let load = ResidencyLoad {
                memory,
                is_huge: false,
                copier,
                bypasses_caches,
                message,
                lag,
            };
            let of = transfer(&mut hosts, &load, cpus, None, Duration::ZERO, &stop);
            let of = of.expect("messages arrive whole");
            assert!(of.bytes_per_second > 0.0 && of.antagonist.is_none());
            if copier == Copier::Read {
                found.push(of.between);
            }
        }
    }
    found
}

#[test]
fn as_many_bytes_lie_between_as_asked_for_or_as_the_memory_holds() {
    assert_eq!(between(256 * KIB, 0), [0, 0, 0]);
    let nine = 9 * 256 * KIB;
    assert_eq!(between(256 * KIB, 2_500_000), [nine, 768 * KIB, nine]);
    assert_eq!(between(MIB, 12_500_000), [7 * MIB, 0, 3 * MIB]);
}

#[test]
fn an_antagonist_runs_meanwhile_and_ends_with_the_measurement() {
    let name = |host| format!("soft:{host}").parse().expect("a device name");
    let mut hosts = Hosts::open(&name("h1"), &name("h2")).expect("the software RNIC");
    hosts.prepare(MemoryKind::Pool, false).expect("memory");
    let [antagonist, receiver] = two_cpus();
    let cpus = Cpus {
        receiver,
        sender: antagonist,
        antagonist,
    };
    let load = ResidencyLoad {
        memory: MemoryKind::Pool,
        is_huge: false,
        copier: Copier::Read,
        bypasses_caches: true,
        message: 64 * KIB,
        lag: MIB,
    };
    let (mut memory, stop) = (MemoryLoad::default(), AtomicBool::new(false));
    let of = transfer(
        &mut hosts,
        &load,
        cpus,
        Some(&mut memory),
        Duration::ZERO,
        &stop,
    );
    let of = of.expect("messages arrive whole");
    assert!(of.antagonist.is_some_and(|rate| rate > 0.0), "{of:?}");
}

//! The cost of the software RNIC, compared with the memory accesses and system calls that it is built on.

use super::prelude::*;
use crate::nic::{MessagePath, NicTask, NicWorkload, RemoteWritePath, WakeMethod};

/// The experiment `softnic`.
pub static SOFTNIC: Case<&str> = Case {
    about: About {
        runs_on: RunsOn::Real(
            "it measures what the software RNIC costs on this machine, by the wall clock",
        ),
        ..About::new(
            "softnic",
            "Cost of the software RNIC, against the memory accesses and the system calls that it is built on.",
            "Memory of a connected queue pair; WRITEs spread over a thousand queue pairs against one; WRITEs into \
             memory that did not come from the device against the bare system call; a wake-up through a completion \
             channel against one through an eventfd; SEND and RECV through a shared receive queue against WRITEs \
             into polled memory.",
        )
    },
    table,
    measure,
};

/// Number of queue pairs over which WRITEs are spread, and whose memory is measured.
const MANY: usize = 1000;
/// Bytes by which the heap grows for each queue pair.
const HEAP: Quantity = "heap";
/// Bytes of heap and of shared memory for each queue pair.
const BOTH: Quantity = "heap and shared";
/// Bytes by which resident memory grows for each queue pair.
const RESIDENT: Quantity = "resident";

const fn flow(way: MessagePath, chain: usize) -> NicWorkload {
    NicWorkload::Flow { way, chain }
}

const fn spread(queue_pairs: usize, chain: usize) -> NicWorkload {
    NicWorkload::Spread { queue_pairs, chain }
}

const fn foreign(size: usize, over: RemoteWritePath) -> NicWorkload {
    NicWorkload::Foreign { size, over }
}

/// The name and the workload of every arm. Arms that are compared are next to each other.
const ARMS: [(&str, NicWorkload); 15] = {
    use MessagePath::{PolledMemory, SharedReceives};
    use NicWorkload::{Footprint, Wake};
    use RemoteWritePath::{SystemCall, Verbs};
    [
        ("memory-1000qp", Footprint { queue_pairs: MANY }),
        ("write-and-poll-chain1", flow(PolledMemory, 1)),
        ("srq-chain1", flow(SharedReceives, 1)),
        ("write-1qp-chain1", spread(1, 1)),
        ("write-1000qp-chain1", spread(MANY, 1)),
        ("write-and-poll-chain16", flow(PolledMemory, 16)),
        ("srq-chain16", flow(SharedReceives, 16)),
        ("write-1qp-chain16", spread(1, 16)),
        ("write-1000qp-chain16", spread(MANY, 16)),
        ("foreign-64", foreign(64, Verbs)),
        ("process_vm_writev-64", foreign(64, SystemCall)),
        ("foreign-65536", foreign(65536, Verbs)),
        ("process_vm_writev-65536", foreign(65536, SystemCall)),
        ("channel-wakeup", Wake(WakeMethod::Channel)),
        ("eventfd-wakeup", Wake(WakeMethod::EventFd)),
    ]
};

/// Returns an arm's description, whether it polls or blocks, and its copies.
fn describe(what: NicWorkload) -> (&'static str, &'static str, &'static str) {
    let (polls, blocks) = ("poll", "block");
    match what {
        NicWorkload::Flow { way, .. } => match way {
            MessagePath::PolledMemory => (
                "WRITEs of 64 B into memory that the receiver polls, on one queue pair; chain1 or chain16 is the \
                 number of requests in a call; 1 in 32 signalled, at most 128 outstanding; the receiver WRITEs its \
                 head every 32; first and last word of each written and checked",
                polls,
                "1",
            ),
            MessagePath::SharedReceives => (
                "as write-and-poll, by SENDs into 128 receives of an SRQ; the receiver posts each receive again when \
                 it has polled its completion, in calls of the same number",
                polls,
                "1",
            ),
        },
        NicWorkload::Spread { .. } => (
            "WRITEs of 64 B round robin over the queue pairs, into 1,000 places of 64 B of one region in turn, which \
             nobody reads meanwhile; on each queue pair 1 in 32 is signalled (not all at the same time), all to one \
             CQ, which is polled as often",
            polls,
            "1",
        ),
        NicWorkload::Foreign { over, .. } => match over {
            RemoteWritePath::Verbs => (
                "WRITEs of 64 or 65,536 bytes, 1 in 32 signalled, into private memory of the other process that did \
                 not come from its device, always at the same address; first and last word of each written",
                polls,
                "1",
            ),
            RemoteWritePath::SystemCall => {
                ("as foreign, by bare calls of process_vm_writev", polls, "1")
            }
        },
        NicWorkload::Wake(_) => (
            "two processes wake each other in turn: by a SEND of 8 B (poll(2), next_event, arm, poll the CQ, post \
             the receive again), or by a write to an eventfd (poll(2), read)",
            blocks,
            "-",
        ),
        _ => (
            "that number of queue pairs, each connected and used for a WRITE, both ways",
            "-",
            "-",
        ),
    }
}

/// Nanoseconds of one operation.
const EACH: Quantity = "nanoseconds each";

/// Returns a quantity of the arm called `arm-which`.
fn value(arm: &str, which: &str, quantity: Quantity) -> Expr<&'static str> {
    let name = format!("{arm}-{which}");
    let found = ARMS.iter().find(|(other, _)| *other == name);
    Expr::At(Point::at(found.expect("an arm").0, 0), quantity)
}

fn table() -> Table<&'static str> {
    let notes = ARMS.map(|(name, what)| {
        let (what, waiting, copies) = describe(what);
        arm(name, what, waiting, copies)
    });
    let mut t = Table::new(notes.to_vec());
    t.arm().spread("rate [1/s]", |point| Expr::At(*point, RATE));
    t.repeats(|point| Expr::At(*point, RATE));
    let (one, many, writev) = ("write-1qp", "write-1000qp", "process_vm_writev");
    let (srq, polled) = ("srq", "write-and-poll");
    for (key, ours, theirs, which) in [
        ("qps1000_over_one", many, one, "chain1"),
        ("qps1000_over_one_chain16", many, one, "chain16"),
        ("foreign64k_over_writev", "foreign", writev, "65536"),
        // These metrics are ratios of times, so the rates are swapped.
        ("foreign64_cost_over_syscall", writev, "foreign", "64"),
        ("wakeup_over_eventfd", "eventfd", "channel", "wakeup"),
        ("srq64_over_write_and_poll", srq, polled, "chain1"),
        ("srq64_over_write_and_poll_chain16", srq, polled, "chain16"),
    ] {
        t.metric(key, value(ours, which, RATE) / value(theirs, which, RATE));
    }
    for (key, arm, which, quantity, scale) in [
        ("one_qp_mwrite_per_s", one, "chain1", RATE, 1e-6),
        ("qps1000_mwrite_per_s", many, "chain1", RATE, 1e-6),
        ("one_qp_chain16_mwrite_per_s", one, "chain16", RATE, 1e-6),
        ("qps1000_chain16_mwrite_per_s", many, "chain16", RATE, 1e-6),
        ("srq64_mmsg_per_s", srq, "chain1", RATE, 1e-6),
        ("write_and_poll64_mmsg_per_s", polled, "chain1", RATE, 1e-6),
        ("srq64_chain16_mmsg_per_s", srq, "chain16", RATE, 1e-6),
        (
            "write_and_poll64_chain16_mmsg_per_s",
            polled,
            "chain16",
            RATE,
            1e-6,
        ),
        ("foreign64k_gb_per_s", "foreign", "65536", RATE, 65536e-9),
        ("writev64k_gb_per_s", writev, "65536", RATE, 65536e-9),
        ("foreign64_ns", "foreign", "64", EACH, 1.0),
        ("writev64_ns", writev, "64", EACH, 1.0),
        ("channel_round_trip_ns", "channel", "wakeup", EACH, 1.0),
        ("eventfd_round_trip_ns", "eventfd", "wakeup", EACH, 1.0),
        ("bytes_per_qp", "memory", "1000qp", BOTH, 1.0),
        ("heap_bytes_per_qp", "memory", "1000qp", HEAP, 1.0),
        ("resident_bytes_per_qp", "memory", "1000qp", RESIDENT, 1.0),
    ] {
        t.metric(key, value(arm, which, quantity) * scale);
    }
    t.declare(["shared_bytes_per_qp"]);
    let shared = headworks::devices::SOFT_SHARED_BYTES_PER_QP;
    t.note(format!(
        "bytes_per_qp is the growth for each of {MANY} queue pairs from before their creation until each was \
         connected and used. It is the sum of the growth of a process's heap (mallinfo2, with the allocator's own \
         words, mean of both processes) and of {shared} bytes of shared memory: its row in the table and the header \
         of its receive queue. The slots of that queue are not included. resident_bytes_per_qp is a check: the \
         growth of VmRSS, including the slots (2 a queue pair). Rows are allocated with the table, and VmRSS counts \
         them when they are first touched."
    ));
    t
}

fn measure(
    bench: &mut Bench<'_>,
    _: &mut Table<&'static str>,
    outcome: &mut Outcome,
) -> Result<Measured<&'static str>, RunError> {
    let shared = headworks::devices::SOFT_SHARED_BYTES_PER_QP as f64;
    outcome.measured("shared_bytes_per_qp", Spread::single(shared));
    let points = ARMS.map(|(name, _)| Point::at(name, 0)).to_vec();
    let sweep = Sweep::over("", Wall::from_millis(60), Wall::from_millis(500));
    bench.measure(points, sweep, |bench, point, run| {
        let arm = ARMS.iter().find(|(name, _)| *name == point.arm);
        let (_, what) = *arm.expect("a point of an arm");
        let dir = private_dir()?;
        patiently(run, |run| {
            let (warm_ns, run_ns) = warm_and_run(run);
            let reports = bench.testbed.run_pair(NicTask {
                what,
                run_ns,
                warm_ns,
                together: false,
                dir: dir.path().to_owned(),
            })?;
            Ok(found(&reports))
        })
    })
}

/// Makes a sample of the rate that one of the ends reports, or of the growth of both ends' memory.
fn found(reports: &[Report; 2]) -> Option<Sample> {
    if let Some(rate) = reports.iter().find_map(Report::per_second) {
        return Some(Sample::of([(RATE, rate), (EACH, 1e9 / rate)]));
    }
    let [
        Report::Grown { heap, resident },
        Report::Grown {
            heap: heap_there,
            resident: resident_there,
        },
    ] = reports
    else {
        return None;
    };
    let each = |here: &i64, there: &i64| (here + there) as f64 / (2 * MANY) as f64;
    let heap = each(heap, heap_there);
    let shared = headworks::devices::SOFT_SHARED_BYTES_PER_QP as f64;
    let resident = each(resident, resident_there);
    Some(Sample::of([
        (HEAP, heap),
        (BOTH, heap + shared),
        (RESIDENT, resident),
    ]))
}

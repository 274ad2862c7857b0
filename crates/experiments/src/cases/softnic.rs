//! What the software RNIC costs, against what it stands on.

use std::time::Duration;

use crate::bench::{Bench, Sweep};
use crate::experiment::{About, Case, RunsOn};
use crate::nic::{Over, Task, Waker, Way, What};
use crate::outcome::Outcome;
use crate::runner::RunError;
use crate::stats::Spread;
use crate::table::{Expr, Measured, Point, Quantity, RATE, Sample, Table, arm};
use crate::transports::ArmError;
use crate::transports::job::Report;

/// The experiment.
pub static SOFTNIC: Case<&str> = Case {
    about: About {
        runs_on: RunsOn::Real(
            "it measures what the software RNIC costs on this machine, by the wall clock",
        ),
        ..About::new(
            "softnic",
            "The software RNIC itself, against the memory and the system calls that it stands on.",
            "Memory of a connected queue pair; WRITEs spread over a thousand queue pairs against \
             one; WRITEs into memory from anywhere against the bare system call; a wake-up \
             through a completion channel against one through an eventfd; SEND and RECV through \
             a shared receive queue against WRITEs into polled memory.",
        )
    },
    table,
    measure,
};

/// Queue pairs that WRITEs are spread over, and whose memory is counted.
const MANY: usize = 1000;
/// How often an arm is tried that measured nothing in its time, each time for longer.
const TRIES: u32 = 3;
/// Bytes by which the heap grows for each queue pair.
const HEAP: Quantity = "heap";
/// The heap's and what is shared.
const BOTH: Quantity = "heap and shared";
/// Bytes by which resident memory grows for each queue pair.
const RESIDENT: Quantity = "resident";

const fn flow(way: Way, chain: usize) -> What {
    What::Flow { way, chain }
}

const fn spread(queue_pairs: usize, chain: usize) -> What {
    What::Spread { queue_pairs, chain }
}

const fn foreign(size: usize, over: Over) -> What {
    What::Foreign { size, over }
}

/// Every arm, those to be compared next to each other: what each end does, its name in the points, how many requests a
/// call has or bytes a request, and the text of its kind.
const ARMS: [(&str, What, u64, Kind); 15] = {
    use Kind::{Bare, Foreign, Memory, Polled, Shared, Waking, Writes};
    use Over::{SystemCall, Verbs};
    use Way::{PolledMemory, SharedReceives};
    [
        (
            "memory-1000qp",
            What::Footprint { queue_pairs: MANY },
            0,
            Memory,
        ),
        ("write-and-poll-chain1", flow(PolledMemory, 1), 1, Polled),
        ("srq-chain1", flow(SharedReceives, 1), 1, Shared),
        ("write-1qp-chain1", spread(1, 1), 1, Writes),
        ("write-1000qp-chain1", spread(MANY, 1), 1, Writes),
        ("write-and-poll-chain16", flow(PolledMemory, 16), 16, Polled),
        ("srq-chain16", flow(SharedReceives, 16), 16, Shared),
        ("write-1qp-chain16", spread(1, 16), 16, Writes),
        ("write-1000qp-chain16", spread(MANY, 16), 16, Writes),
        ("foreign-64", foreign(64, Verbs), 64, Foreign),
        ("process_vm_writev-64", foreign(64, SystemCall), 64, Bare),
        ("foreign-65536", foreign(65536, Verbs), 65536, Foreign),
        (
            "process_vm_writev-65536",
            foreign(65536, SystemCall),
            65536,
            Bare,
        ),
        ("channel-wakeup", What::Wake(Waker::Channel), 0, Waking),
        ("eventfd-wakeup", What::Wake(Waker::EventFd), 0, Waking),
    ]
};

/// Arms of one kind have one description.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Memory,
    Polled,
    Shared,
    Writes,
    Foreign,
    Bare,
    Waking,
}

impl Kind {
    /// What its arms do, whether they poll or block, and the copies.
    const fn describe(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Memory => (
                "so many queue pairs, each connected and used for a WRITE, both ways",
                "-",
                "-",
            ),
            Self::Polled => (
                "WRITEs of 64 B into memory that the receiver polls; one queue pair; chain1 or chain16: requests of a \
                 call; 1 in 32 signalled, 128 outstanding at most, the receiver WRITEs its head every 32; first and last \
                 word of each written and checked",
                "poll",
                "1",
            ),
            Self::Shared => (
                "the same by SENDs into 128 receives of an SRQ, each posted again when its completion was polled, as \
                 many a call as are sent",
                "poll",
                "1",
            ),
            Self::Writes => (
                "WRITEs of 64 B round robin over the queue pairs, round 1,000 places of 64 B of one region, which nobody \
                 reads meanwhile; of each queue pair 1 in 32 is signalled (not all at the same time), all into one CQ \
                 that is polled as often",
                "poll",
                "1",
            ),
            Self::Foreign => (
                "WRITEs of so many bytes, 1 in 32 signalled, into private memory of the other process, again and again \
                 the same; first and last word of each written",
                "poll",
                "1",
            ),
            Self::Bare => ("the same by bare calls of process_vm_writev", "poll", "1"),
            Self::Waking => (
                "each wakes the other in turn: by a SEND of 8 B (poll(2), next_event, arm, poll the CQ, post the \
                 receive again), or by a write to an eventfd (poll(2), read)",
                "block",
                "-",
            ),
        }
    }
}

const fn rate(arm: &'static str) -> Expr<&'static str> {
    Expr::At(Point::at(arm, 0), RATE)
}

/// Nanoseconds of one.
const EACH: Quantity = "nanoseconds each";

fn table() -> Table<&'static str> {
    let notes = ARMS.map(|(name, _, _, kind)| {
        let (what, waiting, copies) = kind.describe();
        arm(name, what, waiting, copies)
    });
    let mut t = Table::new(notes.to_vec());
    t.arm().spread("rate [1/s]", |point| rate(point.arm));
    t.repeats(|point| rate(point.arm));
    for (key, ours, theirs) in [
        (
            "qps1000_over_one",
            "write-1000qp-chain1",
            "write-1qp-chain1",
        ),
        (
            "qps1000_over_one_chain16",
            "write-1000qp-chain16",
            "write-1qp-chain16",
        ),
        (
            "foreign64k_over_writev",
            "foreign-65536",
            "process_vm_writev-65536",
        ),
        // Of times: the other way round.
        (
            "foreign64_cost_over_syscall",
            "process_vm_writev-64",
            "foreign-64",
        ),
        ("wakeup_over_eventfd", "eventfd-wakeup", "channel-wakeup"),
        (
            "srq64_over_write_and_poll",
            "srq-chain1",
            "write-and-poll-chain1",
        ),
        (
            "srq64_over_write_and_poll_chain16",
            "srq-chain16",
            "write-and-poll-chain16",
        ),
    ] {
        t.metric(key, rate(ours) / rate(theirs));
    }
    for (key, arm) in [
        ("one_qp_mwrite_per_s", "write-1qp-chain1"),
        ("qps1000_mwrite_per_s", "write-1000qp-chain1"),
        ("one_qp_chain16_mwrite_per_s", "write-1qp-chain16"),
        ("qps1000_chain16_mwrite_per_s", "write-1000qp-chain16"),
        ("srq64_mmsg_per_s", "srq-chain1"),
        ("write_and_poll64_mmsg_per_s", "write-and-poll-chain1"),
        ("srq64_chain16_mmsg_per_s", "srq-chain16"),
        (
            "write_and_poll64_chain16_mmsg_per_s",
            "write-and-poll-chain16",
        ),
    ] {
        t.metric(key, rate(arm) * 1e-6);
    }
    t.metric("foreign64k_gb_per_s", rate("foreign-65536") * 65536e-9);
    t.metric(
        "writev64k_gb_per_s",
        rate("process_vm_writev-65536") * 65536e-9,
    );
    for (key, arm) in [
        ("foreign64_ns", "foreign-64"),
        ("writev64_ns", "process_vm_writev-64"),
        ("channel_round_trip_ns", "channel-wakeup"),
        ("eventfd_round_trip_ns", "eventfd-wakeup"),
    ] {
        t.metric(key, Expr::At(Point::at(arm, 0), EACH));
    }
    for (key, quantity) in [
        ("bytes_per_qp", BOTH),
        ("heap_bytes_per_qp", HEAP),
        ("resident_bytes_per_qp", RESIDENT),
    ] {
        t.metric(key, Expr::At(Point::at("memory-1000qp", 0), quantity));
    }
    t.declare(["shared_bytes_per_qp"]);
    let shared = headworks::devices::SOFT_SHARED_BYTES_PER_QP;
    t.note(format!(
        "bytes_per_qp is what the heap of a process grows by (mallinfo2, with the allocator's own \
         words, mean of both processes) for each of {MANY} queue pairs, from before they are made \
         to when each has been connected and used, and {shared} bytes of shared memory: its row in \
         the table and the header of its receive queue. The slots of that queue are not in it. \
         resident_bytes_per_qp, a check, is what VmRSS grows by, slots (2 a queue pair) included; \
         rows are allocated with the table, and counted there when they are touched first."
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
    let points = ARMS.map(|(name, ..)| Point::at(name, 0)).to_vec();
    let overhead = Duration::from_millis(60);
    let sweep = Sweep::over("", overhead, Duration::from_millis(500));
    bench.measure(points, sweep, |bench, point, run| {
        let arm = ARMS.iter().find(|(name, ..)| *name == point.arm);
        let (_, what, ..) = *arm.expect("a point of an arm");
        sample(bench, what, run)
    })
}

/// Measures an arm once; nothing if nothing ended in its time.
fn sample(bench: &Bench<'_>, what: What, mut run: Duration) -> Result<Option<Sample>, ArmError> {
    let dir = tempfile::Builder::new().prefix("headworks-").tempdir();
    let dir = dir.map_err(|why| ArmError::at("private directory", why))?;
    for _ in 0..TRIES {
        let run_ns = run.as_nanos() as u64;
        let reports = bench.place.run_pair(Task {
            what,
            run_ns: run_ns / 5 * 4,
            warm_ns: run_ns / 5,
            together: false,
            dir: dir.path().to_owned(),
        })?;
        if let Some(sample) = found(&reports) {
            return Ok(Some(sample));
        }
        // On a busy machine a part may have slept all that time.
        run *= 4;
    }
    Ok(None)
}

/// A rate from whichever end has one, or what both ends' memory grew by.
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

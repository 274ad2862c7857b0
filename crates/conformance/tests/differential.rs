//! Runs the same random programs on two devices and checks that they do the same, up to what the
//! specification leaves open.
//!
//! `HEADWORKS_SEED=N` runs the program of one seed, as a failure prints it. `PROPTEST_CASES=N` sets the
//! number of programs, and `HEADWORKS_LONG` multiplies it. Without an RDMA device, the test on this
//! machine's devices is skipped, with the reason; with `HEADWORKS_REQUIRE=ibv` it fails instead, as in
//! `ibv.rs`.

use std::time::Instant;

use headworks_conformance::call::Done;
use headworks_conformance::differential::search::{Search, search};
use headworks_conformance::worlds::{InProcessWorld, WorldLayout};
use headworks_conformance::{Call, DeviceBehaviour, HostId, HostRole, Reply, World};
use headworks_verbs::{Duration, Opcode, Status};

#[path = "shared/rdma_devices.rs"]
mod rdma_devices;
#[path = "shared/soft_registry.rs"]
mod soft_registry;

use rdma_devices::{RDMA_NIC_BEHAVIOUR, devices, known_deviations, opener};
use soft_registry::soft_opener;

/// Returns the programs to run: that of `HEADWORKS_SEED`, or else `PROPTEST_CASES` programs, or else
/// `programs`. `HEADWORKS_LONG` multiplies the number by twenty.
fn wanted(programs: u64) -> Search {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        let number = text.parse::<u64>();
        Some(number.unwrap_or_else(|_| panic!("{name} is {text:?}: a number is needed")))
    };
    if let Some(first) = number("HEADWORKS_SEED") {
        return Search {
            first,
            programs: 1,
            shrinks: true,
        };
    }
    let times = match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => 20,
        None => 1,
    };
    Search {
        first: 1,
        programs: number("PROPTEST_CASES").unwrap_or(programs) * times,
        shrinks: true,
    }
}

/// Runs programs on both worlds and prints the results. `test` is the name of the calling test.
fn compare<L: World, R: World>(
    test: &str,
    names: [&str; 2],
    programs: u64,
    left: impl FnMut() -> L,
    right: impl FnMut() -> R,
) {
    let start = Instant::now();
    let (tally, found) = search(wanted(programs), left, right);
    let [left, right] = names;
    println!(
        "{left} / {right}: {} programs, {} steps, {:.1} s",
        tally.programs,
        tally.steps,
        start.elapsed().as_secs_f64()
    );
    let fates = tally.fates.iter();
    let fates: Vec<_> = fates
        .map(|(fate, times)| format!("{times} {fate}"))
        .collect();
    println!("{}", fates.join(", "));
    for (rule, uses) in &tally.uses {
        println!("{uses} times {rule}");
    }
    if let Some(found) = found {
        let command = format!("cargo test -p headworks-conformance --test differential {test}");
        panic!("{}", found.report(left, right, &command));
    }
}

/// Returns a layout of soft hosts whose names have these options.
fn hosts(options: &str) -> WorldLayout {
    let [first, second, third] = ["h1", "h2", "h3"].map(|host| format!("soft:{host}{options}"));
    WorldLayout::of([&*first, &*second, &*third]).with(DeviceBehaviour::SOFT)
}

/// Compares ordinary soft hosts with those of another layout.
fn compare_soft(test: &str, name: &str, programs: u64, other: &WorldLayout) {
    let parent = tempfile::tempdir().expect("tempdir");
    let [first, second] = ["first", "second"].map(|name| parent.path().join(name));
    compare(
        test,
        ["soft", name],
        programs,
        || InProcessWorld::new(soft_opener(&first), hosts("")),
        || InProcessWorld::new(soft_opener(&second), other.clone()),
    );
}

#[test]
fn soft_devices_of_two_registries_agree() {
    compare_soft(
        "soft_devices_of_two_registries_agree",
        "soft",
        100,
        &hosts(""),
    );
}

#[test]
fn soft_devices_on_one_host_agree() {
    let layout = WorldLayout::loopback("soft").with(DeviceBehaviour::SOFT);
    compare_soft("soft_devices_on_one_host_agree", "loopback", 100, &layout);
}

#[test]
fn hostile_soft_devices_agree() {
    let layout = hosts(",hostile,kills=no,seed=1").with(DeviceBehaviour {
        completes_in_call: false,
        spurious_refusals: 3,
        empty_polls_max: 6,
        ..DeviceBehaviour::SOFT
    });
    compare_soft("hostile_soft_devices_agree", "hostile", 250, &layout);
}

/// Changes the reply to a call.
type Falsification = fn(&Call, &mut Reply);

/// Compares an ordinary software RNIC with the RDMA devices of this machine.
#[test]
fn of_libibverbs() {
    let Some(names) = devices() else { return };
    let parent = tempfile::tempdir().expect("tempdir");
    let fabric = parent.path().join("fabric");
    let layout = WorldLayout::of([&names[0], &names[1], &names[0]]).with(RDMA_NIC_BEHAVIOUR);
    let layout = layout.with_known_deviations(known_deviations(&names));
    compare(
        "of_libibverbs",
        ["soft", &names.join(" and ")],
        300,
        || InProcessWorld::new(soft_opener(&fabric), hosts("")),
        || InProcessWorld::new(opener(), layout.clone()),
    );
}

/// World that changes the replies of its hosts.
struct FalsifyingWorld {
    honest: InProcessWorld,
    lie: Falsification,
}

impl World for FalsifyingWorld {
    fn host(&mut self, end: HostRole) -> Result<HostId, String> {
        self.honest.host(end)
    }

    fn call(&mut self, host: HostId, call: Call) -> Reply {
        let mut reply = self.honest.call(host, call.clone());
        (self.lie)(&call, &mut reply);
        reply
    }

    fn call_concurrently(&mut self, calls: Vec<(HostId, Call)>) -> Vec<Reply> {
        self.honest.call_concurrently(calls)
    }

    fn begin_unanswered(&mut self, host: HostId, call: Call) -> Result<(), String> {
        self.honest.begin_unanswered(host, call)
    }

    fn advance(&mut self) {
        self.honest.advance();
    }

    /// Returns a time that runs ten times as fast, because changed replies make some waits time out.
    fn now(&self) -> headworks_verbs::Instant {
        let now = self.honest.now();
        now + Duration::from_nanos(9 * now.nanos())
    }

    fn behaviour(&self) -> DeviceBehaviour {
        self.honest.behaviour()
    }

    fn can_kill(&self) -> bool {
        false
    }

    fn kill(&mut self, host: HostId) -> Result<(), String> {
        self.honest.kill(host)
    }
}

/// Changes the completions in a reply.
fn completions(reply: &mut Reply, change: impl FnOnce(&mut Vec<Done>)) {
    if let Reply::Completions(done) = reply {
        change(done);
    }
}

/// Changes to replies, at least one for everything that is compared.
const FALSIFICATIONS: &[(&str, Falsification)] = &[
    ("another status", |_, reply| {
        completions(reply, |all| {
            for done in all
                .iter_mut()
                .filter(|done| done.status == Status::RemoteAccess)
            {
                done.status = Status::RemoteInvalidRequest;
            }
        });
    }),
    ("a failure that is a success", |_, reply| {
        completions(reply, |all| {
            for done in all
                .iter_mut()
                .filter(|done| done.status == Status::LocalProtection)
            {
                done.status = Status::Success;
            }
        });
    }),
    ("a lost completion", |_, reply| {
        completions(reply, |all| all.retain(|done| done.wr_id % 16 != 0));
    }),
    ("a doubled completion", |_, reply| {
        completions(reply, |all| {
            if all.len() == 3 {
                all.push(all[0]);
            }
        });
    }),
    ("completions out of order", |_, reply| {
        completions(reply, |all| {
            if all.len() == 3 {
                all.swap(0, 2);
            }
        });
    }),
    ("another length", |_, reply| {
        completions(reply, |all| {
            for done in all.iter_mut().filter(|done| done.opcode == Opcode::Recv) {
                done.byte_len += 1;
            }
        });
    }),
    ("no immediate", |_, reply| {
        completions(reply, |all| all.iter_mut().for_each(|done| done.imm = None));
    }),
    ("another operation", |_, reply| {
        completions(reply, |all| {
            for done in all
                .iter_mut()
                .filter(|done| done.opcode == Opcode::RecvWriteImm)
            {
                done.opcode = Opcode::Recv;
            }
        });
    }),
    ("a byte", |call, reply| {
        if let (Call::Get { .. }, Reply::Bytes(bytes)) = (call, reply) {
            bytes[3] ^= 1;
        }
    }),
    ("a request that is taken", |call, reply| {
        if let (Call::PostSend { .. }, Reply::No(refusal)) = (call, &*reply)
            && refusal.kind == "TooManySges"
        {
            *reply = Reply::Done;
        }
    }),
    ("another request that is refused", |_, reply| {
        if let Reply::No(refusal) = reply
            && let Some(index) = &mut refusal.index
        {
            *index += 1;
        }
    }),
    ("no event", |_, reply| {
        if let Reply::Events(events) = reply {
            events.clear();
        }
    }),
];

#[test]
fn every_injected_difference_is_found() {
    let parent = tempfile::tempdir().expect("tempdir");
    let [first, second] = ["first", "second"].map(|name| parent.path().join(name));
    for (what, lie) in FALSIFICATIONS {
        let programs = Search {
            first: 1,
            programs: 60,
            shrinks: false,
        };
        let (_, found) = search(
            programs,
            || InProcessWorld::new(soft_opener(&first), hosts("")),
            || FalsifyingWorld {
                honest: InProcessWorld::new(soft_opener(&second), hosts("")),
                lie: *lie,
            },
        );
        let found = found.unwrap_or_else(|| panic!("{what}: not found"));
        println!("{what}: seed {}: {}", found.seed, found.disagreement);
    }
}

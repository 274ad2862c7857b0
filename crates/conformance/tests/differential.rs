//! The same random programs on two devices: what one does the other does, up to what the
//! specification leaves open. `HEADWORKS_SEED=N` runs the program of one seed, as a failure printed
//! it; `PROPTEST_CASES=N` says how many are run, and `HEADWORKS_LONG` asks for many more. On the machine's
//! own RDMA devices as in `ibv.rs`: skipped, with the reason, where there is none, and `HEADWORKS_REQUIRE=ibv`
//! has that fail.

use std::time::Instant;

use headworks_conformance::call::Done;
use headworks_conformance::differential::search::{Search, search};
use headworks_conformance::worlds::{Layout, Local};
use headworks_conformance::{Call, End, HostId, Manners, Reply, World};
use headworks_verbs::{Duration, Opcode, Status};

#[path = "shared/fabric.rs"]
mod fabric;
#[path = "shared/devices.rs"]
mod shared;

use fabric::soft;
use shared::{PLAIN, devices, knowledge, opener};

/// Which programs: that of `HEADWORKS_SEED`, or as many as `PROPTEST_CASES` says or else so many, and twenty times
/// that with `HEADWORKS_LONG`.
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
            makes_small: true,
        };
    }
    let times = match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => 20,
        None => 1,
    };
    Search {
        first: 1,
        programs: number("PROPTEST_CASES").unwrap_or(programs) * times,
        makes_small: true,
    }
}

/// Runs programs on both, and says how that went; `test` is the name of the test that does.
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

/// The names of two soft hosts with these options.
fn hosts(options: &str) -> Layout {
    let [first, second, third] = ["h1", "h2", "h3"].map(|host| format!("soft:{host}{options}"));
    Layout::of([&*first, &*second, &*third]).with(Manners::SOFT)
}

/// What two ordinary hosts do, those of another layout do.
fn compare_soft(test: &str, name: &str, programs: u64, other: &Layout) {
    let parent = tempfile::tempdir().expect("tempdir");
    let [first, second] = ["first", "second"].map(|name| parent.path().join(name));
    compare(
        test,
        ["soft", name],
        programs,
        || Local::new(soft(&first), hosts("")),
        || Local::new(soft(&second), other.clone()),
    );
}

#[test]
fn of_two_fabrics() {
    compare_soft("of_two_fabrics", "soft", 100, &hosts(""));
}

#[test]
fn of_one_device() {
    let layout = Layout::loopback("soft").with(Manners::SOFT);
    compare_soft("of_one_device", "loopback", 100, &layout);
}

#[test]
fn of_hostile_hosts() {
    let layout = hosts(",hostile,kills=no,seed=1").with(Manners {
        at_once: false,
        refusals: 3,
        late: 6,
        ..Manners::SOFT
    });
    compare_soft("of_hostile_hosts", "hostile", 250, &layout);
}

/// Changes what a call was answered with.
type Lie = fn(&Call, &mut Reply);

/// What an ordinary software RNIC does, NICs do.
#[test]
fn of_libibverbs() {
    let Some(names) = devices() else { return };
    let parent = tempfile::tempdir().expect("tempdir");
    let fabric = parent.path().join("fabric");
    let layout = Layout::of([&names[0], &names[1], &names[0]]).with(PLAIN);
    let layout = layout.knowing(knowledge(&names));
    compare(
        "of_libibverbs",
        ["soft", &names.join(" and ")],
        300,
        || Local::new(soft(&fabric), hosts("")),
        || Local::new(opener(), layout.clone()),
    );
}

/// A world whose answers somebody changes.
struct Lying {
    honest: Local,
    lie: Lie,
}

impl World for Lying {
    fn host(&mut self, end: End) -> Result<HostId, String> {
        self.honest.host(end)
    }

    fn call(&mut self, host: HostId, call: Call) -> Reply {
        let mut reply = self.honest.call(host, call.clone());
        (self.lie)(&call, &mut reply);
        reply
    }

    fn at_once(&mut self, calls: Vec<(HostId, Call)>) -> Vec<Reply> {
        self.honest.at_once(calls)
    }

    fn begin(&mut self, host: HostId, call: Call) -> Result<(), String> {
        self.honest.begin(host, call)
    }

    fn advance(&mut self) {
        self.honest.advance();
    }

    /// Ten times as fast as it is: some things are waited for in vain here.
    fn now(&self) -> headworks_verbs::Instant {
        let now = self.honest.now();
        now + Duration::from_nanos(9 * now.nanos())
    }

    fn manners(&self) -> Manners {
        self.honest.manners()
    }

    fn can_kill(&self) -> bool {
        false
    }

    fn kill(&mut self, host: HostId) -> Result<(), String> {
        self.honest.kill(host)
    }
}

/// Changes completions.
fn completions(reply: &mut Reply, change: impl FnOnce(&mut Vec<Done>)) {
    if let Reply::Completions(done) = reply {
        change(done);
    }
}

/// One lie each, of many kinds: all that is compared.
const LIES: &[(&str, Lie)] = &[
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
fn what_one_device_does_otherwise_is_found() {
    let parent = tempfile::tempdir().expect("tempdir");
    let [first, second] = ["first", "second"].map(|name| parent.path().join(name));
    for (what, lie) in LIES {
        let programs = Search {
            first: 1,
            programs: 60,
            makes_small: false,
        };
        let (_, found) = search(
            programs,
            || Local::new(soft(&first), hosts("")),
            || Lying {
                honest: Local::new(soft(&second), hosts("")),
                lie: *lie,
            },
        );
        let found = found.unwrap_or_else(|| panic!("{what}: not found"));
        println!("{what}: seed {}: {}", found.seed, found.disagreement);
    }
}

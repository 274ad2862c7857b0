//! Every pair does its work, in one process, and says what it counted. What arrives is checked by the
//! parts themselves.

use std::sync::mpsc;

use headworks::verbs::Instant;
use headworks_stage::PartSpec;

use super::*;
use crate::arms::job::Report;
use crate::arms::{Env, Turn};

/// Far longer than anything honest takes.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

struct Desk {
    began: std::time::Instant,
    to: mpsc::SyncSender<Vec<u8>>,
    from: mpsc::Receiver<Vec<u8>>,
}

impl Env for Desk {
    fn now(&mut self) -> Instant {
        Instant::from_nanos(self.began.elapsed().as_nanos() as u64)
    }
    fn mail(&mut self, bytes: &[u8]) -> Result<(), ArmError> {
        let _ = self.to.send(bytes.to_vec());
        Ok(())
    }
    fn mailed(&mut self) -> Option<Vec<u8>> {
        self.from.try_recv().ok()
    }
}

fn play(task: &Task, role: Role, mut desk: Desk) -> Result<Report, ArmError> {
    let device = match role {
        Role::Sender => "soft:h1",
        Role::Receiver => "soft:h2",
    };
    let spec = PartSpec::new(role.name(), "experiment-nic-part").on(device.parse().unwrap());
    let handed = Handed {
        spec,
        opener: headworks::opener(),
    };
    let mut part = part(task, role, &handed)?;
    loop {
        assert!(desk.began.elapsed() < LIMIT, "the other end has failed");
        match part.step(&mut desk)? {
            Turn::Done(report) => return Ok(report),
            Turn::Again => {}
            Turn::Wait => std::thread::yield_now(),
        }
    }
}

fn pair(what: What) -> [Report; 2] {
    let dir = tempfile::tempdir().unwrap();
    let task = Task {
        what,
        run_ns: 2_000_000,
        warm_ns: 200_000,
        dir: dir.path().to_owned(),
    };
    let (to_b, from_a) = mpsc::sync_channel(64);
    let (to_a, from_b) = mpsc::sync_channel(64);
    let began = std::time::Instant::now();
    let other = task.clone();
    let receiver = std::thread::spawn(move || {
        let (to, from) = (to_a, from_a);
        play(&other, Role::Receiver, Desk { began, to, from }).unwrap()
    });
    let (to, from) = (to_b, from_b);
    let sent = play(&task, Role::Sender, Desk { began, to, from }).unwrap();
    [sent, receiver.join().unwrap()]
}

#[test]
fn messages_flow_both_ways_and_in_chains() {
    for way in [Way::PolledMemory, Way::SharedReceives] {
        for chain in [1, 16] {
            let [_, got] = pair(What::Flow { way, chain });
            assert!(got.per_second().is_some(), "{way:?} {chain} {got:?}");
        }
    }
}

#[test]
fn writes_spread_over_queue_pairs() {
    for (queue_pairs, chain) in [(1, 1), (1, 16), (7, 1), (7, 16)] {
        let [sent, _] = pair(What::Spread { queue_pairs, chain });
        assert!(
            sent.per_second().is_some(),
            "{queue_pairs} {chain} {sent:?}"
        );
    }
}

#[test]
fn memory_of_queue_pairs_is_counted_on_both_ends() {
    for report in pair(What::Footprint { queue_pairs: 50 }) {
        let Report::Grown { heap, .. } = report else {
            panic!("{report:?}");
        };
        // Both ends are of one process here.
        assert!((50 * 100..50 * 100_000).contains(&heap), "{heap}");
    }
}

#[test]
fn memory_from_elsewhere_is_written_both_ways() {
    for over in [Over::Verbs, Over::SystemCall] {
        for size in [64, 65536] {
            let [sent, _] = pair(What::Foreign { size, over });
            assert!(sent.per_second().is_some(), "{over:?} {size} {sent:?}");
        }
    }
}

#[test]
fn ends_wake_each_other_both_ways() {
    for waker in [Waker::Channel, Waker::EventFd] {
        let [sent, _] = pair(What::Wake(waker));
        assert!(sent.per_second().is_some(), "{waker:?} {sent:?}");
    }
}

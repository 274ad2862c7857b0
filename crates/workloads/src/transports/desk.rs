//! Both parts of a pair in one process, each on a thread, for tests.

use std::sync::mpsc;

use headworks::verbs::Instant;
use headworks_stage::PartSpec;

use super::connect::Role;
use super::job::Report;
use super::part::Part;
use super::{ArmError, Env, Turn};
use crate::world::Handed;

/// Far longer than anything honest takes.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// What stands for a part's surroundings.
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

/// Makes the part of a role.
type Make<'a> = dyn Fn(Role, &Handed) -> Result<Box<dyn Part>, ArmError> + Sync + 'a;

fn play(make: &Make<'_>, role: Role, mut desk: Desk, options: &str) -> Report {
    let host = match role {
        Role::Sender => "h1",
        Role::Receiver => "h2",
    };
    let device = format!("soft:{host}{options}");
    let spec = PartSpec::new(role.name(), "experiment-part").on(device.parse().unwrap());
    let handed = Handed {
        spec,
        opener: headworks::opener(),
    };
    let mut part = make(role, &handed).unwrap();
    loop {
        assert!(desk.began.elapsed() < LIMIT, "the other end has failed");
        match part.step(&mut desk).unwrap() {
            Turn::Done(report) => return report,
            Turn::Again => {}
            Turn::Report(report) => assert_eq!(report, Report::Ready),
            Turn::Wait | Turn::Idle => std::thread::yield_now(),
        }
    }
}

/// What the sender reports, and the receiver.
pub(crate) fn play_both(make: &Make<'_>) -> [Report; 2] {
    play_both_as(make, "")
}

/// [`play_both`], on devices whose names have these options.
pub(crate) fn play_both_as(make: &Make<'_>, options: &str) -> [Report; 2] {
    let (to_b, from_a) = mpsc::sync_channel(64);
    let (to_a, from_b) = mpsc::sync_channel(64);
    let began = std::time::Instant::now();
    let desk = |to, from| Desk { began, to, from };
    let (ours, theirs) = (desk(to_b, from_b), desk(to_a, from_a));
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| play(make, Role::Receiver, theirs, options));
        let sent = play(make, Role::Sender, ours, options);
        [sent, receiver.join().unwrap()]
    })
}

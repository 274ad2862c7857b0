//! The other end's process is killed. This end hands out what arrived, reports the death, and never hangs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use headworks_baselines::paper_baselines::farm::Farm;
use headworks_baselines::paper_baselines::l5::L5;
use headworks_baselines::paper_baselines::socksdirect::SocksDirect;
use headworks_baselines::paper_baselines::{BaselineSetup, Design, Head, Plan, SyncVariant, Tail};
use headworks_ring::{
    EndSetup, MessageReceiver, MessageSender, RingConfig, RingError, SendError, Unconnected,
};
use headworks_runtime::{
    Actor, ActorContext, ActorError, ActorInit, ActorSpec, Processes, RunningScenario, Scenario,
    ScenarioEvent, Step, WakeCondition, World,
};
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::{BringUp, Device, Duration, Provider};

use crate::{DesignTest, LIMIT, fill, holds};

const PEER: &str = "peer";
const LEN: usize = 64;
const PLAN: Plan = Plan {
    messages: 16,
    longest: LEN,
};

/// Passes design `number` to `act`.
fn design(number: u8, act: &mut impl DesignTest) {
    let ring = RingConfig {
        publish_every: Some(1),
        push_every: Some(2),
        ..RingConfig::fixed(16, LEN)
    };
    let points = |head, tail| SyncVariant { head, tail, ring };
    match number {
        0 => act.act(&Farm(PLAN)),
        1 => act.act(&L5(PLAN)),
        2 => act.act(&SocksDirect(PLAN)),
        3 => act.act(&points(Head::Push, Tail::WriteTwice)),
        4 => act.act(&points(Head::Push, Tail::PollCq)),
        5 => act.act(&points(Head::Pull, Tail::WriteTwice)),
        _ => act.act(&points(Head::Pull, Tail::PollCq)),
    }
}

/// The designs below this number have receivers that post requests, and so learn of the peer's death.
const PUSHING: u8 = 5;
const ALL: u8 = 7;

fn open(fabric: &Path, name: &str) -> Arc<dyn Device> {
    let provider = SoftProvider::on(Registry::open_at(fabric).unwrap());
    provider.open(&name.parse().unwrap()).unwrap()
}

/// Creates the other process's end for any design.
struct Make<'a> {
    part: &'a ActorInit,
    made: Option<Result<Box<dyn Actor>, ActorError>>,
}

impl DesignTest for Make<'_> {
    fn act<D: Design>(&mut self, design: &D) {
        let [sends, _, count, path @ ..] = &*self.part.args else {
            return;
        };
        let path = PathBuf::from(String::from_utf8_lossy(path).into_owned());
        let device = open(&path, "soft:h2");
        let count = u64::from(*count);
        self.made = Some(match sends {
            1 => BaselineSetup::sender(&device, design.clone())
                .map_err(ActorError::from)
                .and_then(|setup| Peer::actor(setup, device, count, send_all::<D>)),
            _ => BaselineSetup::receiver(&device, design.clone())
                .map_err(ActorError::from)
                .and_then(|setup| Peer::actor(setup, device, count, read_all::<D>)),
        });
    }
}

/// Sends what is left of `count` messages. Returns whether all are sent and flushed.
fn send_all<D: Design>(tx: &mut D::Sender, done: &mut u64, count: u64) -> Result<bool, ActorError> {
    while *done < count {
        match tx.try_send_with(LEN, |place| fill(*done, place)) {
            Ok(()) => *done += 1,
            Err(SendError::Full) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(tx.flush()?)
}

/// Reads what is left of `count` messages. Returns whether all are read and the head is pushed.
fn read_all<D: Design>(
    rx: &mut D::Receiver,
    done: &mut u64,
    count: u64,
) -> Result<bool, ActorError> {
    while *done < count {
        match rx.try_recv_with(|_| ())? {
            Some(()) => *done += 1,
            None => return Ok(false),
        }
    }
    Ok(rx.push_head()?)
}

type Work<E> = fn(&mut E, &mut u64, u64) -> Result<bool, ActorError>;

/// The other process's end. It sends or receives `count` messages, then waits to be killed.
struct Peer<S: EndSetup> {
    rising: Option<(S, BringUp)>,
    end: Option<S::End>,
    work: Work<S::End>,
    done: u64,
    count: u64,
    _device: Arc<dyn Device>,
}

impl<S: EndSetup<End: Send> + Send + 'static> Peer<S> {
    fn actor(
        mut setup: S,
        device: Arc<dyn Device>,
        count: u64,
        work: Work<S::End>,
    ) -> Result<Box<dyn Actor>, ActorError> {
        let (tuning, greeting) = (setup.connection_params(), setup.greeting());
        let up = BringUp::start(device.info(), setup.queue_pair(), tuning, 2, greeting)?;
        Ok(Box::new(Self {
            rising: Some((setup, up)),
            end: None,
            work,
            done: 0,
            count,
            _device: device,
        }))
    }
}

impl<S: EndSetup<End: Send> + Send + 'static> Actor for Peer<S> {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if let Some((mut setup, mut up)) = self.rising.take() {
            while let Some(mail) = cx.receive() {
                up.input(setup.queue_pair(), &mail.bytes)?;
            }
            let said = up.output();
            if !said.is_empty() {
                cx.report(&said)?;
            }
            if !up.is_connected() {
                self.rising = Some((setup, up));
                return Ok(Step::Wait(WakeCondition::mail()));
            }
            let hello = up.peer().ok_or("no peer")?;
            self.end = Some(setup.finish(&hello.payload)?);
            cx.report(b"connected")?;
        }
        let end = self.end.as_mut().ok_or("not connected")?;
        if !(self.work)(end, &mut self.done, self.count)? {
            return Ok(Step::Again);
        }
        cx.report(b"done")?;
        Ok(Step::Wait(WakeCondition::mail()))
    }
}

/// Creates the actor that the test's arguments describe.
pub(crate) fn peer(part: &ActorInit) -> Result<Box<dyn Actor>, ActorError> {
    let number = *part.args.get(1).ok_or("no design")?;
    let mut make = Make { part, made: None };
    design(number, &mut make);
    make.made.ok_or("no such part")?
}

fn report(running: &mut dyn RunningScenario) -> Vec<u8> {
    match running.poll(Duration::from_millis(60_000)) {
        Some(ScenarioEvent::Report { bytes, .. }) => bytes,
        other => panic!("{other:?}"),
    }
}

/// Starts the other process, which sends or receives `count` messages, and connects our end.
fn meet<S: EndSetup + Unconnected>(
    args: Vec<u8>,
    device: &Arc<dyn Device>,
    mut setup: S,
) -> (Box<dyn RunningScenario>, S::End) {
    let scenario = Scenario::of([ActorSpec::new(PEER, "rival-peer").with_args(args)]);
    let world = Processes::of_this_test("killed::child_process_entry");
    let mut running = world.start(&scenario).unwrap();
    let (tuning, greeting) = (setup.connection_params(), setup.greeting());
    let mut up = BringUp::start(device.info(), setup.queue_pair(), tuning, 1, greeting).unwrap();
    running.send(PEER, &up.output()).unwrap();
    loop {
        let bytes = report(&mut *running);
        if bytes == b"connected" {
            let hello = up.peer().unwrap().clone();
            return (running, setup.finish(&hello.payload).unwrap());
        }
        up.input(setup.queue_pair(), &bytes).unwrap();
        let answer = up.output();
        if !answer.is_empty() {
            running.send(PEER, &answer).unwrap();
        }
    }
}

fn args(sends: bool, number: u8, count: u8, fabric: &Path) -> Vec<u8> {
    let mut args = vec![sends.into(), number, count];
    args.extend(fabric.to_string_lossy().as_bytes());
    args
}

/// Receives in design `.0`. The sender is killed after it has sent `.1` messages.
struct OurReceiver(u8, u8);

impl DesignTest for OurReceiver {
    fn act<D: Design>(&mut self, design: &D) {
        let Self(number, count) = *self;
        let dir = tempfile::tempdir().unwrap();
        let fabric = dir.path().join("fabric");
        let device = open(&fabric, "soft:h1");
        let setup = BaselineSetup::receiver(&device, design.clone()).unwrap();
        let args = args(true, number, count, &fabric);
        let (mut running, mut rx) = meet(args, &device, setup);
        assert_eq!(report(&mut *running), b"done");
        running.kill(PEER).unwrap();
        let since = Instant::now();
        let mut read = 0;
        let error: RingError = loop {
            match rx.try_recv_with(|bytes| holds(read, bytes)) {
                Ok(Some(good)) => {
                    assert!(good, "design {number}: message {read}");
                    read += 1;
                    continue;
                }
                Ok(None) => {}
                Err(error) => break error,
            }
            if let Err(error) = rx.step().and_then(|_| rx.push_head()) {
                // Messages that arrived are handed out although the end is broken.
                while let Ok(Some(good)) = rx.try_recv_with(|bytes| holds(read, bytes)) {
                    assert!(good);
                    read += 1;
                }
                break error;
            }
            assert!(since.elapsed() < LIMIT, "design {number}: no error");
        };
        assert!(error.is_peer_gone(), "design {number}: {error}");
        assert_eq!(read, u64::from(count), "design {number}");
        assert_eq!(rx.try_recv_with(|_| ()), Err(error));
    }
}

#[test]
fn a_receiver_reads_the_rest_and_learns_that_the_sender_was_killed() {
    for number in 0..PUSHING {
        for count in [1, 9, 15] {
            design(number, &mut OurReceiver(number, count));
        }
    }
}

/// Sends in design `.0`. The receiver is killed after it has read `.1` messages, while more are sent.
struct OurSender(u8, u8);

impl DesignTest for OurSender {
    fn act<D: Design>(&mut self, design: &D) {
        let Self(number, count) = *self;
        let dir = tempfile::tempdir().unwrap();
        let fabric = dir.path().join("fabric");
        let device = open(&fabric, "soft:h1");
        let setup = BaselineSetup::sender(&device, design.clone()).unwrap();
        let args = args(false, number, count, &fabric);
        let (mut running, mut tx) = meet(args, &device, setup);
        for _ in 0..count {
            tx.try_send(&[1; LEN]).unwrap();
        }
        tx.flush().unwrap();
        assert_eq!(report(&mut *running), b"done");
        running.kill(PEER).unwrap();
        let since = Instant::now();
        let error = loop {
            match tx.try_send(&[1; LEN]) {
                Ok(()) | Err(SendError::Full) => {}
                Err(SendError::Broken(error)) => break error,
                Err(other) => panic!("{other}"),
            }
            if let Err(error) = tx.step() {
                break error;
            }
            assert!(since.elapsed() < LIMIT, "design {number}: no error");
        };
        assert!(error.is_peer_gone(), "design {number}: {error}");
        assert_eq!(tx.try_send(&[1; LEN]), Err(SendError::Broken(error)));
        assert_eq!(tx.flush(), Err(error));
    }
}

#[test]
fn a_sender_learns_that_the_receiver_was_killed() {
    for number in 0..ALL {
        for count in [0, 5] {
            design(number, &mut OurSender(number, count));
        }
    }
}

/// Entry point of the processes that the tests above start; does nothing elsewhere.
#[test]
fn child_process_entry() {
    let mut actors = headworks_runtime::ActorRegistry::new();
    actors.register("rival-peer", peer);
    headworks_runtime::child_entry_in_test(&actors, headworks_runtime::no_device_opener());
}

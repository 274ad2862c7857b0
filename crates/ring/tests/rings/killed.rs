//! The other end's process is killed while this one sleeps.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headworks_ring::{
    Framing, Mode, Receiver, ReceiverSetup, RingConfig, RingError, SendError, Sender, SenderSetup,
};
use headworks_shm::FabricDir;
use headworks_softnic::SoftProvider;
use headworks_stage::{
    Actor, ActorError, Change, Cx, Event, Part, PartSpec, Play, Processes, Running, Step, World,
};
use headworks_verbs::bringup::Hello;
use headworks_verbs::{BringUp, Device, Provider, QueuePair};

use crate::asleep::{await_message, sleep};
use crate::pair::{config, fill, holds};

const LIMIT: Duration = Duration::from_secs(10);
const LEN: usize = 48;

fn ring() -> RingConfig {
    config(16, Framing::Fixed(LEN), Mode::Notify)
}

fn open(fabric: &Path, name: &str) -> Arc<dyn Device> {
    let provider = SoftProvider::on(FabricDir::at(fabric).unwrap());
    provider.open(&name.parse().unwrap()).unwrap()
}

enum End {
    Rising(BringUp, Setup),
    Sends(Sender, u64),
    Receives(Receiver, u64),
    Gone,
}

enum Setup {
    Sends(SenderSetup),
    Receives(ReceiverSetup),
}

impl Setup {
    fn queue_pair(&mut self) -> &mut dyn QueuePair {
        match self {
            Self::Sends(setup) => setup.queue_pair(),
            Self::Receives(setup) => setup.queue_pair(),
        }
    }
}

/// The other end: sends numbered messages for ever, or receives as many as it is told and then
/// lets them come.
pub(crate) struct Peer {
    end: End,
    greeted: bool,
    /// Messages to send or receive.
    count: u64,
    _device: Arc<dyn Device>,
}

impl Peer {
    pub(crate) fn new(part: &Part) -> Result<Self, ActorError> {
        let (sends, count) = (part.args[0] != 0, part.args[1]);
        let path = PathBuf::from(String::from_utf8_lossy(&part.args[2..]).into_owned());
        let device = open(&path, "soft:h2");
        let (mut setup, hello) = if sends {
            let setup = SenderSetup::new(&device, &ring())?;
            let hello = setup.greeting();
            (Setup::Sends(setup), hello)
        } else {
            let setup = ReceiverSetup::new(&device, &ring())?;
            let hello = setup.greeting();
            (Setup::Receives(setup), hello)
        };
        let tuning = Default::default();
        let up = BringUp::start(device.info(), setup.queue_pair(), tuning, 2, hello)?;
        Ok(Self {
            end: End::Rising(up, setup),
            greeted: false,
            count: count.into(),
            _device: device,
        })
    }

    fn rise(&mut self, cx: &mut Cx<'_>) -> Result<(), ActorError> {
        let End::Rising(up, setup) = &mut self.end else {
            return Ok(());
        };
        if !std::mem::replace(&mut self.greeted, true) {
            cx.report(&up.output())?;
        }
        while let Some(mail) = cx.receive() {
            up.input(setup.queue_pair(), &mail.bytes)?;
        }
        let answer = up.output();
        if !answer.is_empty() {
            cx.report(&answer)?;
        }
        if !up.is_connected() {
            return Ok(());
        }
        let End::Rising(up, setup) = std::mem::replace(&mut self.end, End::Gone) else {
            return Ok(());
        };
        let hello = &up.peer().ok_or("no peer")?.payload;
        self.end = match setup {
            Setup::Sends(setup) => End::Sends(setup.finish(hello)?, 0),
            Setup::Receives(setup) => End::Receives(setup.finish(hello)?, 0),
        };
        cx.report(b"connected")?;
        Ok(())
    }
}

impl Actor for Peer {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        match &mut self.end {
            End::Rising(..) => {
                self.rise(cx)?;
                if let End::Rising(..) = self.end {
                    return Ok(Step::OnChange(Change::mail()));
                }
            }
            End::Sends(tx, sent) => {
                while *sent < self.count {
                    let mut message = [0; LEN];
                    fill(*sent, &mut message);
                    match tx.try_send(&message) {
                        Ok(()) => *sent += 1,
                        Err(SendError::Full) => return Ok(Step::Again),
                        Err(error) => return Err(error.into()),
                    }
                }
                tx.flush()?;
                cx.report(b"done")?;
                return Ok(Step::OnChange(Change::mail()));
            }
            End::Receives(rx, received) => {
                while *received < self.count {
                    match rx.try_recv()? {
                        Some(_) => *received += 1,
                        None => return Ok(Step::Again),
                    }
                }
                rx.push_head()?;
                cx.report(b"done")?;
                return Ok(Step::OnChange(Change::mail()));
            }
            End::Gone => return Err("gone".into()),
        }
        Ok(Step::Again)
    }
}

/// Starts the peer and brings up our queue pair.
fn meet(
    fabric: &Path,
    args: [u8; 2],
    device: &Arc<dyn Device>,
    qp: &mut dyn QueuePair,
    greeting: Vec<u8>,
) -> (Box<dyn Running>, Hello) {
    let mut all = args.to_vec();
    all.extend(fabric.to_string_lossy().as_bytes());
    let play = Play::of([PartSpec::new("peer", "ring-peer").with_args(all)]);
    let mut running = Processes::of_this_test("plays_a_part")
        .start(&play)
        .unwrap();
    let mut up = BringUp::start(device.info(), qp, Default::default(), 1, greeting).unwrap();
    running.send("peer", &up.output()).unwrap();
    loop {
        let bytes = report(running.as_mut());
        if bytes == b"connected" {
            return (running, up.peer().unwrap().clone());
        }
        up.input(qp, &bytes).unwrap();
        let answer = up.output();
        if !answer.is_empty() {
            running.send("peer", &answer).unwrap();
        }
    }
}

fn report(running: &mut dyn Running) -> Vec<u8> {
    match running.poll(headworks_verbs::Duration::from_millis(10_000)) {
        Some(Event::Report { bytes, .. }) => bytes,
        other => panic!("{other:?}"),
    }
}

/// Calls `look` until it finds the ring's error; asleep on what it leaves armed.
fn error_of<E>(end: &mut E, mut look: impl FnMut(&mut E) -> Option<RingError>) -> RingError {
    let killed = Instant::now();
    loop {
        if let Some(error) = look(end) {
            println!("told after {} us: {error}", killed.elapsed().as_micros());
            return error;
        }
        assert!(killed.elapsed() < LIMIT, "never told");
    }
}

#[test]
fn a_receiver_asleep_reads_the_rest_and_learns_that_the_sender_was_killed() {
    // In the late cases nothing is looked at until the death is all over: what came before it lies
    // in one batch with what it left.
    for (count, late) in [
        (0, false),
        (1, false),
        (1, true),
        (15, false),
        (15, true),
        (40, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let fabric = dir.path().join("fabric");
        let device = open(&fabric, "soft:h1");
        let mut setup = ReceiverSetup::new(&device, &ring()).unwrap();
        let greeting = setup.greeting();
        let (mut running, hello) = meet(&fabric, [1, count], &device, setup.queue_pair(), greeting);
        let mut rx = setup.finish(&hello.payload).unwrap();
        let count = u64::from(count);
        // What does not fit at once, or not before the next head, is read before the kill.
        let mut read = 0;
        let mut next = |rx: &mut Receiver| {
            match rx.try_recv() {
                Ok(Some(message)) => {
                    assert!(holds(read, &message), "contents of message {read}");
                    read += 1;
                    return None;
                }
                Ok(None) => {}
                Err(error) => return Some(error),
            }
            await_message(rx).err()
        };
        while rx.consumed() + 8 < count {
            assert_eq!(next(&mut rx), None);
        }
        assert_eq!(report(running.as_mut()), b"done");
        running.kill("peer").unwrap();
        let killed = Instant::now();
        while late && device.next_async_event().is_none() {
            assert!(killed.elapsed() < LIMIT, "the device never tells");
            std::thread::yield_now();
        }
        let error = error_of(&mut rx, next);
        assert!(error.is_peer_gone(), "{error}");
        assert_eq!(read, count, "what was published was lost");
        assert_eq!(rx.consumed(), count);
        assert_eq!(rx.try_recv().map(drop), Err(error));
    }
}

#[test]
fn a_sender_asleep_learns_that_the_receiver_was_killed_and_how_far_it_read() {
    for read in [0, 1, 7, 15] {
        let dir = tempfile::tempdir().unwrap();
        let fabric = dir.path().join("fabric");
        let device = open(&fabric, "soft:h1");
        let mut setup = SenderSetup::new(&device, &ring()).unwrap();
        let greeting = setup.greeting();
        let (mut running, hello) = meet(&fabric, [0, read], &device, setup.queue_pair(), greeting);
        let mut tx = setup.finish(&hello.payload).unwrap();
        for _ in 0..read {
            tx.try_send(&[1; LEN]).unwrap();
        }
        tx.flush().unwrap();
        assert_eq!(report(running.as_mut()), b"done");
        while tx.try_send(&[1; LEN]).is_ok() {}
        running.kill("peer").unwrap();
        let error = error_of(&mut tx, |tx| {
            tx.arm();
            if let Err(error) = tx.step() {
                return Some(error);
            }
            if tx.is_full() {
                sleep(tx.fd().unwrap());
            }
            tx.drain_events();
            None
        });
        assert!(error.is_peer_gone(), "{error}");
        let read = u64::from(read);
        assert_eq!((tx.consumed(), tx.published()), (read, read + 15));
        assert_eq!(tx.try_send(&[1; LEN]), Err(SendError::Broken(error)));
    }
}

//! Asynchronous rings whose other end is in another process.

use headworks::blocking::BlockingError;
use headworks::net::{Listener, dial};
use headworks::ring::Framing;
use headworks::runtime::{
    Actor, ActorContext, ActorError, ActorInit, ActorOutcome, ActorRegistry, ActorSpec, Processes,
    RunningScenario, Scenario, Step, WakeCondition, World, child_entry_in_test, no_device_opener,
};

use super::*;

/// How long an end may take to notice that the other process is dead. The tests print the measured time.
const NOTICE: Duration = Duration::from_secs(10);
const COUNT: u64 = 3_000;

/// A ring of 16 slots of 64 bytes. At most 15 slots can be filled, and one message may take all of them.
fn narrow() -> RingConfig {
    RingConfig {
        mode: Mode::Notify,
        framing: Framing::Variable(15 * 64 - 8),
        ..RingConfig::variable(16, 64)
    }
}

/// Runs only in the processes that the tests below start.
#[test]
fn child_process_entry() {
    let mut actors = ActorRegistry::new();
    actors.register("idle", |part| Ok(Box::new(IdleEndActor::new(part)?)));
    actors.register("reads", |part| {
        Ok(Box::new(ReaderActor(Some(fabric_of(part)))))
    });
    actors.register("echo", |part| {
        Ok(Box::new(EchoActor(Some(fabric_of(part)))))
    });
    child_entry_in_test(&actors, no_device_opener());
}

fn fabric_of(part: &ActorInit) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(&part.args[1..]).into_owned())
}

fn call(path: &Path) -> Result<ControlStream, ActorError> {
    let fabric = Registry::open_at(path).map_err(|error| error.to_string())?;
    Ok(dial(&fabric, "meet").map_err(|error| error.to_string())?)
}

fn tx(
    path: &Path,
    host: &str,
    config: &RingConfig,
    mut control: ControlStream,
) -> (Sender, ControlStream) {
    let ring = connect::sender(&open(path, host), config, &mut control, soon());
    (ring.expect("connects"), control)
}

fn rx(
    path: &Path,
    host: &str,
    config: &RingConfig,
    mut control: ControlStream,
) -> (Receiver, ControlStream) {
    let ring = connect::receiver(&open(path, host), config, &mut control, soon());
    (ring.expect("connects"), control)
}

/// One end of a ring, which does nothing until it is killed.
enum IdleEndActor {
    Sends { _end: (Sender, ControlStream) },
    Receives { _end: (Receiver, ControlStream) },
}

impl IdleEndActor {
    fn new(part: &ActorInit) -> Result<Self, ActorError> {
        let path = fabric_of(part);
        let control = call(&path)?;
        Ok(if part.args[0] != 0 {
            let _end = tx(&path, "soft:h2", &fixed(128), control);
            Self::Sends { _end }
        } else {
            let _end = rx(&path, "soft:h2", &fixed(128), control);
            Self::Receives { _end }
        })
    }
}

impl Actor for IdleEndActor {
    fn step(&mut self, _: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        Ok(Step::Wait(WakeCondition::mail()))
    }
}

/// Sends every message back, in its own asynchronous runtime.
struct EchoActor(Option<PathBuf>);

impl Actor for EchoActor {
    fn step(&mut self, _: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let Some(path) = self.0.take() else {
            return Ok(Step::Done);
        };
        let asked = rx(&path, "soft:h2", &narrow(), call(&path)?);
        let answers = tx(&path, "soft:h2", &narrow(), call(&path)?);
        let echoed = runtime().block_on(async {
            let mut asked = AsyncReceiver::new(asked.0, asked.1)?;
            let mut answers = AsyncSender::new(answers.0, answers.1)?;
            for _ in 0..COUNT {
                let message = asked.recv().await?;
                answers.send(&message).await?;
                drop(message);
                answers.flush().await?;
            }
            answers.close().await?;
            asked.close();
            Ok::<_, BlockingError>(())
        });
        echoed.map_err(|error| error.to_string())?;
        Ok(Step::Done)
    }
}

/// Reads three messages and leaves.
struct ReaderActor(Option<PathBuf>);

impl Actor for ReaderActor {
    fn step(&mut self, _: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let Some(path) = self.0.take() else {
            return Ok(Step::Done);
        };
        let (ring, control) = rx(&path, "soft:h2", &fixed(8), call(&path)?);
        runtime().block_on(async {
            let mut receiver = AsyncReceiver::new(ring, control).expect("can be slept on");
            expect(&mut receiver, 0..3).await;
            receiver.close();
        });
        Ok(Step::Done)
    }
}

/// A running actor in another process, with a private fabric.
struct KillSetup {
    running: Box<dyn RunningScenario>,
    listener: Listener,
    path: PathBuf,
    _fabric: tempfile::TempDir,
}

fn start_other_process(part: &str, sends: bool) -> KillSetup {
    let fabric = tempfile::tempdir().expect("a directory");
    let path = fabric.path().join("fabric");
    let listener = Listener::bind(&Registry::open_at(&path).expect("a fabric"), "meet");
    let mut args = vec![sends.into()];
    args.extend(path.to_string_lossy().as_bytes());
    let scenario = Scenario::of([ActorSpec::new("peer", part).with_args(args)]);
    let world = Processes::of_this_test("two_processes::child_process_entry");
    KillSetup {
        running: world.start(&scenario).expect("starts"),
        listener: listener.expect("listens"),
        path,
        _fabric: fabric,
    }
}

#[test]
fn two_processes_pass_messages_of_every_length_both_ways() {
    let other = start_other_process("echo", false);
    let control = other.listener.accept(soon()).expect("a caller");
    let asks = tx(&other.path, "soft:h1", &narrow(), control);
    let control = other.listener.accept(soon()).expect("a caller");
    let answered = rx(&other.path, "soft:h1", &narrow(), control);
    run(async || {
        let mut asks = AsyncSender::new(asks.0, asks.1).expect("can be slept on");
        let mut answered = AsyncReceiver::new(answered.0, answered.1).expect("can be slept on");
        let longest = asks.ring().max_message();
        let asking = tokio::spawn(async move {
            for number in 0..COUNT {
                asks.send(&varied(number, longest)).await.expect("asks");
            }
            asks.close().await.expect("was consumed");
        });
        for number in 0..COUNT {
            let received = answered.recv().await.expect("an answer");
            assert_eq!(*received, varied(number, longest)[..], "answer {number}");
        }
        answered.close();
        asking.await.expect("asks");
    });
    let endings = other.running.finish(clock::now() + LIMIT);
    assert_eq!(endings[0].outcome, ActorOutcome::Done);
}

#[test]
fn closing_succeeds_after_a_receiver_that_read_everything_and_went() {
    let other = start_other_process("reads", false);
    let control = other.listener.accept(soon()).expect("a caller");
    let (mut ring, control) = tx(&other.path, "soft:h1", &fixed(8), control);
    for number in 0..3 {
        ring.try_send(&message(number)).expect("room");
    }
    while !ring.flush().expect("whole") {}
    let endings = other.running.finish(clock::now() + LIMIT);
    assert_eq!(endings[0].outcome, ActorOutcome::Done);
    // The ring breaks because the receiver is gone, but the receiver has consumed everything before.
    let began = clock::now();
    while ring.step().is_ok() {
        assert!(
            clock::now().since(began) < LIMIT,
            "nobody says that the peer is gone"
        );
        thread::yield_now();
    }
    run(async || {
        let mut sender = AsyncSender::new(ring, control).expect("can be slept on");
        sender.close().await.expect("everything was consumed");
        let error = sender.send(&message(3)).await.expect_err("to nobody");
        assert!(matches!(error, BlockingError::PeerGone), "{error}");
    });
}

/// Runs `wait`, kills the other process once `wait` sleeps, and checks the error that `wait` returns.
fn killed<F, T>(
    sends: bool,
    wait: impl FnOnce(PathBuf, ControlStream, ThreadSleepProbe) -> F + Send + 'static,
) where
    F: Future<Output = Result<T, BlockingError>>,
{
    let mut other = start_other_process("idle", sends);
    let control = other.listener.accept(soon()).expect("a caller");
    let path = other.path.clone();
    let waits = ThreadSleepProbe::default();
    let asleep = waits.clone();
    let waiting = thread::spawn(move || run(async || wait(path, control, waits).await.err()));
    // Once its only task waits, the runtime's thread sleeps.
    let began = clock::now();
    while !asleep.is_asleep() {
        assert!(clock::now().since(began) < LIMIT, "never asleep");
        thread::yield_now();
    }
    let killed = clock::now();
    other.running.kill("peer").expect("kills");
    let error = waiting.join().expect("ends").expect("an error");
    let took = clock::now().since(killed);
    println!("told after {took} (limit {NOTICE})");
    assert!(took < NOTICE, "told after {took}");
    assert!(matches!(error, BlockingError::PeerGone), "{error}");
}

/// Records the thread of a runtime whose only task is about to wait, to check whether that thread sleeps.
#[derive(Clone, Default)]
struct ThreadSleepProbe(Arc<OnceLock<i32>>);

impl ThreadSleepProbe {
    fn here(&self) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let _ = self.0.set(thread);
    }

    fn is_asleep(&self) -> bool {
        self.0.get().is_some_and(|thread| {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
            let stat = stat.expect("a thread");
            stat[stat.rfind(')').expect("a name")..].starts_with(") S")
        })
    }
}

#[test]
fn a_wait_for_a_message_ends_with_a_killed_sender() {
    killed(true, async |path, control, waits| {
        let (ring, control) = rx(&path, "soft:h1", &fixed(128), control);
        let mut receiver = AsyncReceiver::new(ring, control)?;
        waits.here();
        let outcome = receiver.recv().await.map(|message| message.to_vec());
        // A second call fails too.
        assert!(receiver.recv().await.is_err());
        outcome
    });
}

#[test]
fn a_wait_for_room_ends_with_a_killed_receiver() {
    killed(false, async |path, control, waits| {
        let (ring, control) = tx(&path, "soft:h1", &fixed(128), control);
        let mut sender = AsyncSender::new(ring, control)?;
        send(&mut sender, 0..127).await;
        waits.here();
        sender.send(&message(127)).await
    });
}

#[test]
fn closing_ends_with_a_killed_receiver() {
    killed(false, async |path, control, waits| {
        let (ring, control) = tx(&path, "soft:h1", &fixed(128), control);
        let mut sender = AsyncSender::new(ring, control)?;
        send(&mut sender, 0..3).await;
        waits.here();
        sender.close().await
    });
}

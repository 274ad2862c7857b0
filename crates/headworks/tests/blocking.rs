//! The blocking ends of a ring: how they end, and what ends a wait.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use headworks::blocking::{BlockingError, BlockingReceiver, BlockingSender};
use headworks::connect;
use headworks::net::{ControlStream, Listener, WaitLimit, clock, dial};
use headworks::ring::{Mode, RingConfig};
use headworks::runtime::{
    Actor, ActorContext, ActorError, ActorInit, ActorOutcome, ActorRegistry, ActorSpec, Processes,
    Scenario, Step, WakeCondition, World, child_entry_in_test, no_device_opener,
};
use headworks::verbs::{Device, Duration, Provider};
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;

/// Time limit of a test: only a hang exceeds it.
const LIMIT: Duration = Duration::from_secs(90);
/// How long an end may take to notice that the other is dead; the test prints the time it took.
const NOTICE: Duration = Duration::from_secs(10);
/// Bytes of a message, which takes one slot.
const LEN: usize = 64;
/// Slots after which the receiver pushes its head at the latest.
const GAMMA: u64 = 32;

fn config() -> RingConfig {
    RingConfig {
        mode: Mode::Notify,
        push_every: Some(GAMMA as u32),
        ..RingConfig::fixed(128, LEN)
    }
}

fn open(fabric: &Path, name: &str) -> Arc<dyn Device> {
    let provider = SoftProvider::on(Registry::open_at(fabric).expect("a fabric"));
    let name = name.parse().expect("a name");
    provider.open(&name).expect("opens")
}

fn soon() -> WaitLimit<'static> {
    WaitLimit::deadline(clock::now() + LIMIT)
}

fn sender(
    device: &Arc<dyn Device>,
    config: &RingConfig,
    mut control: ControlStream,
) -> BlockingSender {
    let ring = connect::sender(device, config, &mut control, soon()).expect("connects");
    BlockingSender::new(ring, control).expect("can be slept on")
}

fn receiver(
    device: &Arc<dyn Device>,
    config: &RingConfig,
    mut control: ControlStream,
) -> BlockingReceiver {
    let ring = connect::receiver(device, config, &mut control, soon()).expect("connects");
    BlockingReceiver::new(ring, control).expect("can be slept on")
}

/// Both ends of a ring between two soft hosts of a private fabric.
struct Ends {
    sender: BlockingSender,
    receiver: BlockingReceiver,
    _fabric: tempfile::TempDir,
}

fn ends(config: &RingConfig) -> Ends {
    let fabric = tempfile::tempdir().expect("a directory");
    let path = fabric.path().join("fabric");
    let (here, there) = ControlStream::pair().expect("a line");
    let theirs = (path.clone(), config.clone());
    let other = thread::spawn(move || receiver(&open(&theirs.0, "soft:h2"), &theirs.1, there));
    let mut ends = Ends {
        sender: sender(&open(&path, "soft:h1"), config, here),
        receiver: other.join().expect("connects"),
        _fabric: fabric,
    };
    // With deadlines, a wait that hangs is an error.
    ends.sender.set_deadline(Some(clock::now() + LIMIT));
    ends.receiver.set_deadline(Some(clock::now() + LIMIT));
    ends
}

fn message(number: u64) -> [u8; LEN] {
    let mut bytes = [0x5a; LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Receives messages `from..to`.
fn expect(receiver: &mut BlockingReceiver, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let received = receiver.recv().expect("a message");
        assert_eq!(*received, message(number)[..], "message {number}");
    }
}

fn send(sender: &mut BlockingSender, numbers: std::ops::Range<u64>) {
    for number in numbers {
        sender.send(&message(number)).expect("sends");
    }
}

/// Sends until a send fails. Returns the error.
fn send_until_it_fails(sender: &mut BlockingSender) -> BlockingError {
    loop {
        if let Err(error) = sender.send(&message(0)) {
            return error;
        }
    }
}

#[test]
fn few_messages_are_closed_while_the_receiver_waits_for_more() {
    for count in [0, 1, GAMMA - 1, GAMMA, GAMMA + 1] {
        let Ends {
            mut sender,
            mut receiver,
            _fabric,
        } = ends(&config());
        let receiving = thread::spawn(move || {
            expect(&mut receiver, 0..count);
            let end = receiver.recv().map(|message| message.to_vec());
            (end, receiver)
        });
        send(&mut sender, 0..count);
        sender.close().expect("everything was consumed");
        // The receiver waits until the peer is gone, which the end of the control stream shows.
        drop(sender);
        let (end, _receiver) = receiving.join().expect("receives");
        assert!(matches!(end, Err(BlockingError::PeerGone)), "{end:?}");
    }
}

#[test]
fn few_messages_are_closed_after_the_receiver_was() {
    for count in [1, GAMMA - 1] {
        let Ends {
            mut sender,
            mut receiver,
            _fabric,
        } = ends(&config());
        send(&mut sender, 0..count);
        sender.flush().expect("publishes");
        expect(&mut receiver, 0..count);
        let _line = receiver.close();
        sender.close().expect("everything was consumed");
    }
}

#[test]
fn the_consumed_count_is_known_after_the_receiver_closed() {
    let Ends {
        mut sender,
        mut receiver,
        _fabric,
    } = ends(&config());
    send(&mut sender, 0..5);
    sender.flush().expect("publishes");
    expect(&mut receiver, 0..3);
    drop(receiver.close());
    let error = send_until_it_fails(&mut sender);
    assert!(matches!(error, BlockingError::PeerGone), "{error}");
    assert_eq!(sender.ring().consumed(), 3);
    // Closing fails, and keeps the sender with its count.
    let error = sender.close().expect_err("two were not consumed");
    assert!(matches!(error, BlockingError::PeerGone), "{error}");
    assert_eq!(sender.ring().consumed(), 3);
}

#[test]
fn closing_can_be_repeated_after_a_timeout() {
    let Ends {
        mut sender,
        mut receiver,
        _fabric,
    } = ends(&config());
    send(&mut sender, 0..5);
    sender.set_timeout(Some(std::time::Duration::from_millis(1)));
    let error = sender.close().expect_err("nothing was consumed");
    assert!(matches!(error, BlockingError::Deadline), "{error}");
    expect(&mut receiver, 0..5);
    let _line = receiver.close();
    sender.set_timeout(None);
    sender.close().expect("everything was consumed");
    let (ring, _control) = sender.into_parts();
    assert_eq!(ring.consumed(), 5);
}

#[test]
fn a_timeout_ends_each_call_and_the_earlier_of_two_limits_counts() {
    let Ends {
        mut sender,
        mut receiver,
        _fabric,
    } = ends(&config());
    let short = std::time::Duration::from_millis(1);
    for _ in 0..2 {
        let began = clock::now();
        let end = receiver.recv_timeout(short).map(|message| message.to_vec());
        assert!(matches!(end, Err(BlockingError::Deadline)), "{end:?}");
        assert!(clock::now() >= began + short);
    }
    receiver.set_timeout(Some(short));
    let end = receiver.recv().map(|message| message.to_vec());
    assert!(matches!(end, Err(BlockingError::Deadline)), "{end:?}");
    // A timeout does not extend a deadline that has passed.
    receiver.set_timeout(Some(LIMIT.into()));
    receiver.set_deadline(Some(clock::now()));
    let end = receiver.recv().map(|message| message.to_vec());
    assert!(matches!(end, Err(BlockingError::Deadline)), "{end:?}");
    sender.set_timeout(Some(short));
    let error = send_until_it_fails(&mut sender);
    assert!(matches!(error, BlockingError::Deadline), "{error}");
    // The ring is unaffected.
    receiver.set_deadline(None);
    assert_eq!(*receiver.recv().expect("a message"), message(0)[..]);
}

#[test]
fn a_ring_that_waiting_ends_connect_can_be_slept_on_in_any_mode() {
    let fabric = tempfile::tempdir().expect("a directory");
    let path = fabric.path().join("fabric");
    let (here, there) = ControlStream::pair().expect("a line");
    let config = RingConfig::fixed(128, LEN);
    let theirs = (path.clone(), config.clone());
    let limit = std::time::Duration::from(LIMIT);
    let other = thread::spawn(move || {
        let device = open(&theirs.0, "soft:h2");
        let end = BlockingReceiver::connect(&device, &theirs.1, there, limit);
        let mut receiver = end.expect("connects");
        expect(&mut receiver, 0..3);
        receiver.close()
    });
    let device = open(&path, "soft:h1");
    let end = BlockingSender::connect(&device, &config, here, limit);
    let mut sender = end.expect("connects");
    send(&mut sender, 0..3);
    sender.close().expect("everything was consumed");
    drop(other.join().expect("receives"));
}

#[test]
fn a_dropped_sender_ends_the_stream_after_flushed_messages() {
    let Ends {
        mut sender,
        mut receiver,
        _fabric,
    } = ends(&config());
    send(&mut sender, 0..5);
    sender.flush().expect("publishes");
    drop(sender);
    expect(&mut receiver, 0..5);
    for _ in 0..2 {
        let end = receiver.recv().map(|message| message.to_vec());
        assert!(matches!(end, Err(BlockingError::PeerGone)), "{end:?}");
    }
}

#[test]
fn a_receiver_dropped_without_closing_ends_a_wait_for_room() {
    let Ends {
        mut sender,
        receiver,
        _fabric,
    } = ends(&config());
    let (asleep, told) = channel();
    let sending = thread::spawn(move || {
        asleep.send(rustix::thread::gettid()).expect("tells");
        send_until_it_fails(&mut sender)
    });
    until_asleep(told.recv().expect("is told").as_raw_nonzero().get());
    drop(receiver);
    let error = sending.join().expect("ends");
    assert!(matches!(error, BlockingError::PeerGone), "{error}");
}

#[test]
fn interrupts_and_deadlines_end_waits_and_nothing_else() {
    let Ends {
        mut sender,
        mut receiver,
        _fabric,
    } = ends(&config());
    receiver.set_deadline(Some(clock::now()));
    let end = receiver.recv().map(|message| message.to_vec());
    assert!(matches!(end, Err(BlockingError::Deadline)), "{end:?}");
    receiver.set_deadline(None);
    sender.set_deadline(Some(clock::now()));
    let error = send_until_it_fails(&mut sender);
    assert!(matches!(error, BlockingError::Deadline), "{error}");
    let (interrupt, mut raise) = UnixStream::pair().expect("a pair");
    sender.set_deadline(None);
    sender.interrupt_on(&interrupt).expect("a descriptor");
    receiver.interrupt_on(&interrupt).expect("a descriptor");
    raise.write_all(b"!").expect("raises");
    let error = send_until_it_fails(&mut sender);
    assert!(matches!(error, BlockingError::Interrupted), "{error}");
    // The ring is unaffected: what was sent arrives, and there is room for more.
    let sent = sender.ring().sent();
    for _ in 0..sent {
        let received = receiver.recv().expect("no need to wait");
        assert_eq!(*received, message(0)[..]);
    }
    let end = receiver.recv().map(|message| message.to_vec());
    assert!(matches!(end, Err(BlockingError::Interrupted)), "{end:?}");
    sender.send(&message(1)).expect("no need to wait");
    sender.close().expect_err("interrupted");
}

#[test]
fn ends_that_wait_for_each_other_all_the_time_pass_everything() {
    let config = RingConfig {
        mode: Mode::Notify,
        ..RingConfig::fixed(8, LEN)
    };
    let Ends {
        mut sender,
        mut receiver,
        _fabric,
    } = ends(&config);
    let me = || rustix::thread::gettid().as_raw_nonzero().get();
    let (tell, told) = channel();
    let receiver_thread = me();
    let sending = thread::spawn(move || {
        tell.send(me()).expect("tells");
        for number in 0..20_000 {
            sender.send(&message(number)).expect("sends");
            if number % 1000 == 0 {
                // Flushes and waits until the receiver, which then has everything, sleeps.
                sender.flush().expect("publishes");
                until_asleep(receiver_thread);
            }
        }
        sender.close()
    });
    let sender_thread = told.recv().expect("is told");
    for number in 0..20_000 {
        if number % 1000 == 500 {
            // Waits until the sender sleeps, because there is no room.
            until_asleep(sender_thread);
        }
        expect(&mut receiver, number..number + 1);
    }
    // The sender closes only once it knows that the receiver has everything.
    drop(receiver.close());
    sending.join().expect("sends").expect("closes");
}

#[test]
fn a_peer_that_talks_on_over_the_line_is_an_error_and_not_listened_to_for_ever() {
    for sends in [true, false] {
        let fabric = tempfile::tempdir().expect("a directory");
        let path = fabric.path().join("fabric");
        let (here, mut there) = ControlStream::pair().expect("a line");
        let theirs = path.clone();
        // The ring is as it should be; only the control stream gets too many messages.
        let other = thread::spawn(move || {
            let device = open(&theirs, "soft:h2");
            let (to, from) = match sends {
                true => {
                    let to = connect::receiver(&device, &config(), &mut there, soon());
                    (Some(to.expect("connects")), None)
                }
                false => {
                    let from = connect::sender(&device, &config(), &mut there, soon());
                    (None, Some(from.expect("connects")))
                }
            };
            for _ in 0..100 {
                there.send_control(&[7; 100]).expect("sends");
            }
            (there, to, from)
        });
        let device = open(&path, "soft:h1");
        let error = match sends {
            true => {
                let mut sender = sender(&device, &config(), here);
                let (control, _ring, _) = other.join().expect("connects");
                // An end that read every message would notice that the peer is gone.
                drop(control);
                send_until_it_fails(&mut sender)
            }
            false => {
                let mut receiver = receiver(&device, &config(), here);
                let (control, _, _ring) = other.join().expect("connects");
                drop(control);
                let end = receiver.recv().map(|message| message.to_vec());
                end.expect_err("no message comes")
            }
        };
        let few = matches!(error, BlockingError::TooManyMessages { limit } if limit < 100);
        assert!(few, "{error}");
        // The error names the control stream: the messages of the ring are not too many.
        let said = error.to_string();
        assert!(said.contains("over the line"), "{said}");
    }
}

#[test]
fn a_ring_that_cannot_be_slept_on_is_refused() {
    let fabric = tempfile::tempdir().expect("a directory");
    let path = fabric.path().join("fabric");
    let (mut here, mut there) = ControlStream::pair().expect("a line");
    let config = RingConfig::fixed(128, LEN);
    let theirs = (path.clone(), config.clone());
    let other = thread::spawn(move || {
        let device = open(&theirs.0, "soft:h2");
        let ring = connect::receiver(&device, &theirs.1, &mut there, soon()).expect("connects");
        BlockingReceiver::new(ring, there).err()
    });
    let device = open(&path, "soft:h1");
    let ring = connect::sender(&device, &config, &mut here, soon()).expect("connects");
    let refused = BlockingSender::new(ring, here).err();
    assert!(matches!(refused, Some(BlockingError::NotNotify)));
    let refused = other.join().expect("connects");
    assert!(matches!(refused, Some(BlockingError::NotNotify)));
}

/// Waits until a thread of this process sleeps.
fn until_asleep(thread: i32) {
    let began = clock::now();
    loop {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        let stat = stat.expect("a thread");
        if stat[stat.rfind(')').expect("a name")..].starts_with(") S") {
            return;
        }
        assert!(clock::now().since(began) < LIMIT, "never asleep");
        thread::yield_now();
    }
}

/// Runs only in the processes that the test below starts.
#[test]
fn child_process_entry() {
    let mut actors = ActorRegistry::new();
    actors.register("peer", |part| Ok(Box::new(Peer::new(part)?)));
    actors.register("reads", |part| Ok(Box::new(ReaderActor(path_of(part)))));
    child_entry_in_test(&actors, no_device_opener());
}

/// One end of a ring, which does nothing until it is killed.
enum Peer {
    Sends { _end: BlockingSender },
    Receives { _end: BlockingReceiver },
}

impl Peer {
    fn new(part: &ActorInit) -> Result<Self, ActorError> {
        let sends = part.args[0] != 0;
        let path = path_of(part);
        let fabric = Registry::open_at(&path).map_err(|error| error.to_string())?;
        let control = dial(&fabric, "meet").map_err(|error| error.to_string())?;
        let device = open(&path, "soft:h2");
        Ok(if sends {
            let _end = sender(&device, &config(), control);
            Self::Sends { _end }
        } else {
            let _end = receiver(&device, &config(), control);
            Self::Receives { _end }
        })
    }
}

impl Actor for Peer {
    fn step(&mut self, _: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        Ok(Step::Wait(WakeCondition::mail()))
    }
}

fn path_of(part: &ActorInit) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(&part.args[1..]).into_owned())
}

/// Reads three messages and leaves.
struct ReaderActor(PathBuf);

impl Actor for ReaderActor {
    fn step(&mut self, _: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let fabric = Registry::open_at(&self.0).map_err(|error| error.to_string())?;
        let control = dial(&fabric, "meet").map_err(|error| error.to_string())?;
        let mut end = receiver(&open(&self.0, "soft:h2"), &config(), control);
        expect(&mut end, 0..3);
        end.close();
        Ok(Step::Done)
    }
}

#[test]
fn closing_succeeds_after_a_receiver_that_read_everything_and_went() {
    let fabric = tempfile::tempdir().expect("a directory");
    let path = fabric.path().join("fabric");
    let listener = Listener::bind(&Registry::open_at(&path).expect("a fabric"), "meet");
    let mut args = vec![0];
    args.extend(path.to_string_lossy().as_bytes());
    let scenario = Scenario::of([ActorSpec::new("reader", "reads").with_args(args)]);
    let world = Processes::of_this_test("child_process_entry");
    let running = world.start(&scenario).expect("starts");
    let control = listener.expect("listens").accept(soon());
    let device = open(&path, "soft:h1");
    let mut sender = sender(&device, &config(), control.expect("a caller"));
    send(&mut sender, 0..3);
    sender.flush().expect("publishes");
    let endings = running.finish(clock::now() + LIMIT);
    assert_eq!(endings[0].outcome, ActorOutcome::Done);
    // The ring breaks, but everything was consumed before.
    let began = clock::now();
    while sender.ring().step().is_ok() {
        assert!(clock::now().since(began) < LIMIT, "the ring never broke");
        thread::yield_now();
    }
    sender.close().expect("everything was consumed");
}

/// Kills the peer process while `wait` sleeps, and checks the error that `wait` returns.
fn killed<T>(
    sends: bool,
    end: impl FnOnce(&Arc<dyn Device>, ControlStream) -> T + Send,
    wait: impl FnOnce(T) -> Option<BlockingError> + Send,
) {
    let fabric = tempfile::tempdir().expect("a directory");
    let path = fabric.path().join("fabric");
    let listener = Listener::bind(&Registry::open_at(&path).expect("a fabric"), "meet");
    let listener = listener.expect("listens");
    let mut args = vec![sends.into()];
    args.extend(path.to_string_lossy().as_bytes());
    let scenario = Scenario::of([ActorSpec::new("peer", "peer").with_args(args)]);
    let world = Processes::of_this_test("child_process_entry");
    let mut running = world.start(&scenario).expect("starts");
    let control = listener.accept(soon()).expect("a caller");
    let (asleep, told) = channel();
    let error = thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let device = open(&path, "soft:h1");
            let end = end(&device, control);
            asleep.send(rustix::thread::gettid()).expect("tells");
            wait(end)
        });
        until_asleep(told.recv().expect("is told").as_raw_nonzero().get());
        let killed = clock::now();
        running.kill("peer").expect("kills");
        let error = waiting.join().expect("ends");
        let took = clock::now().since(killed);
        println!("told after {took} (limit {NOTICE})");
        assert!(took < NOTICE, "told after {took}");
        error
    });
    let error = error.expect("an error");
    assert!(matches!(error, BlockingError::PeerGone), "{error}");
}

#[test]
fn a_wait_for_a_message_ends_with_a_killed_sender() {
    killed(
        true,
        |device, control| receiver(device, &config(), control),
        |mut receiver| receiver.recv().err(),
    );
}

#[test]
fn a_wait_for_room_ends_with_a_killed_receiver() {
    killed(
        false,
        |device, control| sender(device, &config(), control),
        |mut sender| Some(send_until_it_fails(&mut sender)),
    );
}

#[test]
fn closing_ends_with_a_killed_receiver() {
    killed(
        false,
        |device, control| {
            let mut sender = sender(device, &config(), control);
            send(&mut sender, 0..3);
            sender
        },
        |mut sender| sender.close().err(),
    );
}

//! A ring's ends for tasks: in one runtime, between processes, cancelled, and with killed peers.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use headworks::asynchronous::{AsyncReceiver, AsyncSender};
use headworks::connect;
use headworks::net::{ControlStream, WaitLimit, clock};
use headworks::ring::{Mode, Receiver, RingConfig, Sender};
use headworks::verbs::{Device, Duration, Provider};
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;

mod cancelled;
mod one_process;
mod two_processes;

/// Time limit of a test: only a hang exceeds it.
const LIMIT: Duration = Duration::from_secs(90);
/// Bytes of a message of [`fixed`].
const LEN: usize = 64;

/// Returns the configuration of a ring that holds `slots - 1` messages.
fn fixed(slots: u32) -> RingConfig {
    RingConfig {
        mode: Mode::Notify,
        ..RingConfig::fixed(slots, LEN)
    }
}

fn open(fabric: &Path, name: &str) -> Arc<dyn Device> {
    let provider = SoftProvider::on(Registry::open_at(fabric).expect("a fabric"));
    provider
        .open(&name.parse().expect("a name"))
        .expect("opens")
}

fn soon() -> WaitLimit<'static> {
    WaitLimit::deadline(clock::now() + LIMIT)
}

/// A ring between two soft hosts of a private fabric, and its control stream.
struct Ring {
    sender: (Sender, ControlStream),
    receiver: (Receiver, ControlStream),
    _fabric: tempfile::TempDir,
}

fn ring(config: &RingConfig) -> Ring {
    ring_on(config, "")
}

/// Makes a ring between devices with these options.
fn ring_on(config: &RingConfig, options: &str) -> Ring {
    let fabric = tempfile::tempdir().expect("a directory");
    let path = fabric.path().join("fabric");
    let (mut here, mut there) = ControlStream::pair().expect("a line");
    let (theirs, their_fabric) = (config.clone(), path.clone());
    let name = format!("soft:h2{options}");
    let other = thread::spawn(move || {
        let device = open(&their_fabric, &name);
        let ring = connect::receiver(&device, &theirs, &mut there, soon()).expect("connects");
        (ring, there)
    });
    let device = open(&path, &format!("soft:h1{options}"));
    let ring = connect::sender(&device, config, &mut here, soon());
    Ring {
        sender: (ring.expect("connects"), here),
        receiver: other.join().expect("connects"),
        _fabric: fabric,
    }
}

impl Ring {
    /// Converts both ends for tasks. Call it within a runtime.
    fn ends(self) -> (AsyncSender, AsyncReceiver, tempfile::TempDir) {
        let (sender, control) = self.sender;
        let sender = AsyncSender::new(sender, control).expect("can be slept on");
        let (receiver, control) = self.receiver;
        let receiver = AsyncReceiver::new(receiver, control).expect("can be slept on");
        (sender, receiver, self._fabric)
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().build().expect("a runtime")
}

/// Runs a task, and what it spawns, on one thread. Panics if it hangs.
fn run<F: Future<Output = T>, T: Send + 'static>(task: impl FnOnce() -> F + Send + 'static) -> T {
    let (tell, told) = channel();
    let running = thread::spawn(move || {
        let outcome = runtime().block_on(async { task().await });
        let _ = tell.send(outcome);
    });
    match told.recv_timeout(LIMIT.into()) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => panic!("hangs"),
        Err(RecvTimeoutError::Disconnected) => match running.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("it tells before it ends"),
        },
    }
}

/// Counts wake-ups.
#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Polls a future once; drops it if it is not ready.
fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn message(number: u64) -> [u8; LEN] {
    let mut bytes = [0x5a; LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Returns message `number` of a ring that takes up to `longest` bytes. Lengths include 0 and `longest`.
fn varied(number: u64, longest: usize) -> Vec<u8> {
    let len = match number % 16 {
        0 => 0,
        1 => longest,
        _ => (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % (longest + 1),
    };
    (0..len)
        .map(|at| (number as usize).wrapping_mul(31).wrapping_add(at) as u8)
        .collect()
}

async fn send(sender: &mut AsyncSender, numbers: std::ops::Range<u64>) {
    for number in numbers {
        sender.send(&message(number)).await.expect("sends");
    }
}

async fn expect(receiver: &mut AsyncReceiver, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let received = receiver.recv().await.expect("a message");
        assert_eq!(*received, message(number)[..], "message {number}");
    }
}

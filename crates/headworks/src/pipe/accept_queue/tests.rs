//! Callers of a listener at a TCP address. The time that the queue is given stands still unless a test moves it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Weak};

use headworks_net::{ControlStream, dial_tcp};
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::{
    AllocRequest, AsyncEvent, Buffer, CompletionChannel, CompletionQueue, CqInit, DeviceInfo,
    ProtectionDomain, Provider, ResourceError,
};

use super::*;
use crate::pipe::handshake::{HELLO, WELCOME, decode_hello, encode_hello};
use crate::pipe::ring_bring_up::RingBringUp;

/// Returns the time limit of a test: only a hang exceeds it.
fn limit() -> Instant {
    clock::now() + Duration::from_secs(60)
}

/// A listener at a TCP address, its address, and a device for its callers.
struct TestListener {
    listener: NetworkListener,
    address: String,
    callers_device: Arc<dyn Device>,
    _folder: tempfile::TempDir,
}

impl TestListener {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let registry = Registry::open_at(folder.path().join("fabric")).expect("a registry");
        let provider = SoftProvider::on(registry);
        let open = |name: &str| {
            let device = provider.open(&name.parse().expect("a name"));
            device.expect("opens")
        };
        let listener = Listener::bind_tcp("127.0.0.1:0").expect("listens");
        let address = listener.address().expect("an address").to_string();
        Self {
            listener: NetworkListener::Tcp(open("soft:h1"), listener),
            address,
            callers_device: open("soft:h2"),
            _folder: folder,
        }
    }

    /// Limits the completion queues of the listener's device to those of `rings` rings.
    fn with_room_for(self, rings: usize) -> Self {
        let NetworkListener::Tcp(device, listener) = self.listener else {
            panic!("it listens over TCP");
        };
        let small = SmallDevice {
            inner: device,
            queues: Mutex::default(),
            most: AtomicUsize::new(usize::MAX),
        };
        let device = Arc::new(small);
        let dynamic: Arc<dyn Device> = device.clone();
        let one = RingBringUp::start(&dynamic, false).expect("there is room");
        device.most.store(rings * device.count(), Ordering::Relaxed);
        drop(one);
        Self {
            listener: NetworkListener::Tcp(dynamic, listener),
            ..self
        }
    }

    fn queue(&self) -> AcceptQueue<'_> {
        AcceptQueue::new(&self.listener, &self.address)
    }

    fn call(&self) -> ControlStream {
        dial_tcp(&self.address, limit()).expect("it listens")
    }

    /// Calls and greets, to receive.
    fn greet(&self) -> ControlStream {
        let mut control = self.call();
        control
            .send_control(&encode_hello(HELLO, &[1]))
            .expect("sends");
        control
    }

    /// Greets, begins to connect the ring, and does not go on. Steps the queue at the time `now` until the listener
    /// has a ring for this caller.
    fn stall(&self, queue: &mut AcceptQueue<'_>, now: Instant) -> (ControlStream, RingBringUp) {
        let mut control = self.greet();
        until_some(queue, now, || welcomed(&mut control).then_some(()));
        let ring = RingBringUp::start(&self.callers_device, false).expect("a ring");
        let begun = ring.step(&mut control).expect("sends");
        let ControlFlow::Continue(ring) = begun else {
            panic!("the listener did not answer yet");
        };
        until(queue, now, |queue| {
            let newest = queue.greeted.last();
            newest.is_some_and(|(caller, _)| caller.has_ring())
        });
        (control, ring)
    }

    /// Greets and connects the ring. Steps the queue at the time `now` until this caller is connected.
    fn connect(&self, queue: &mut AcceptQueue<'_>, now: Instant) -> ConnectedCaller {
        let mut control = self.greet();
        let is_connected = until_some(queue, now, || welcomed(&mut control).then_some(()));
        assert!(is_connected.is_none(), "no caller has connected a ring");
        let ring = RingBringUp::start(&self.callers_device, false).expect("a ring");
        let mut ring = Some(ring);
        let connected = until_some(queue, now, || {
            let ControlFlow::Continue(next) = ring.take()?.step(&mut control).expect("goes on")
            else {
                return None;
            };
            ring = Some(next);
            None::<()>
        });
        connected.expect("this caller")
    }
}

/// A device with a limited number of completion queues.
struct SmallDevice {
    inner: Arc<dyn Device>,
    queues: Mutex<Vec<Weak<dyn CompletionQueue>>>,
    most: AtomicUsize,
}

impl SmallDevice {
    fn count(&self) -> usize {
        let queues = self.queues.lock().expect("no thread panicked");
        queues
            .iter()
            .filter(|queue| queue.strong_count() > 0)
            .count()
    }
}

impl Device for SmallDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        self.inner.alloc_pd()
    }
    fn alloc(&self, request: &AllocRequest) -> Result<Arc<dyn Buffer>, ResourceError> {
        self.inner.alloc(request)
    }
    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, ResourceError> {
        self.inner.create_channel()
    }
    fn create_cq(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, ResourceError> {
        if self.count() >= self.most.load(Ordering::Relaxed) {
            return Err(ResourceError::NoSpace("completion queues".to_owned()));
        }
        let made = self.inner.create_cq(init)?;
        let mut queues = self.queues.lock().expect("no thread panicked");
        queues.push(Arc::downgrade(&made));
        Ok(made)
    }
    fn async_fd(&self) -> BorrowedFd<'_> {
        self.inner.async_fd()
    }
    fn next_async_event(&self) -> Option<AsyncEvent> {
        self.inner.next_async_event()
    }
    fn now(&self) -> Instant {
        self.inner.now()
    }
}

/// Whether the welcome has arrived.
fn welcomed(control: &mut ControlStream) -> bool {
    match control.recv_control() {
        Ok(Some(welcome)) => decode_hello(WELCOME, &welcome).is_ok(),
        Ok(None) => false,
        Err(error) => panic!("turned away: {error}"),
    }
}

fn is_gone(control: &mut ControlStream) -> bool {
    matches!(control.recv_control_wait(limit()), Err(NetError::PeerGone))
}

/// Steps the queue at the time `now` until `look` returns something, or a caller is connected. Returns that
/// caller.
fn until_some<T>(
    queue: &mut AcceptQueue<'_>,
    now: Instant,
    mut look: impl FnMut() -> Option<T>,
) -> Option<ConnectedCaller> {
    let limit = limit();
    loop {
        let connected = queue.step(now).expect("no caller fails the listener");
        if connected.is_some() || look().is_some() {
            return connected;
        }
        assert!(clock::now() < limit, "no progress");
        std::thread::yield_now();
    }
}

/// Steps the queue at the time `now` until `holds`.
fn until(queue: &mut AcceptQueue<'_>, now: Instant, holds: impl Fn(&AcceptQueue<'_>) -> bool) {
    let limit = limit();
    while !holds(queue) {
        let connected = queue.step(now).expect("no caller fails the listener");
        assert!(connected.is_none(), "no caller has connected a ring");
        assert!(clock::now() < limit, "no progress");
        std::thread::yield_now();
    }
}

#[test]
fn silent_callers_do_not_keep_out_one_that_greets() {
    for count in [40, 200_usize] {
        let there = TestListener::new();
        let mut queue = there.queue();
        let now = clock::now();
        let mut silent = Vec::new();
        for called in 0..count {
            silent.push(there.call());
            match called.checked_sub(STRANGERS_TCP) {
                None => until(&mut queue, now, |queue| queue.strangers.len() == called + 1),
                Some(oldest) => until(&mut queue, now, |_| silent[oldest].peer_gone()),
            }
        }
        there.connect(&mut queue, now);
        // The oldest lost their places, and one more to the caller that greeted.
        let lost = (count + 1).saturating_sub(STRANGERS_TCP);
        assert!(silent[..lost].iter_mut().all(is_gone));
        assert!(silent[lost..].iter().all(|control| !control.peer_gone()));
    }
}

#[test]
fn a_caller_without_a_place_is_accepted_in_place_of_the_oldest() {
    let there = TestListener::new();
    let mut queue = there.queue();
    let now = clock::now();
    let mut silent: Vec<_> = (0..STRANGERS_TCP).map(|_| there.call()).collect();
    until(&mut queue, now, |queue| {
        queue.strangers.len() == STRANGERS_TCP
    });
    // The listener's descriptor is waited for, although all places are taken.
    assert_eq!(queue.fds().len(), 1 + STRANGERS_TCP);
    let newest = there.call();
    let left = queue.next_deadline();
    until_some(&mut queue, now, || silent[0].peer_gone().then_some(()));
    assert!(is_gone(&mut silent[0]) && !silent[1].peer_gone() && !newest.peer_gone());
    assert_eq!(queue.strangers.len(), STRANGERS_TCP);
    assert_eq!(queue.next_deadline(), left, "all came at the same time");
}

#[test]
fn callers_that_greet_and_stall_do_not_keep_out_the_next() {
    let there = TestListener::new();
    let mut queue = there.queue();
    let now = clock::now();
    let mut stalled = Vec::new();
    for called in 1..=GREETED_MAX {
        let mut greets = there.greet();
        until_some(&mut queue, now, || welcomed(&mut greets).then_some(()));
        let (begins, ring) = there.stall(&mut queue, now);
        stalled.extend([(greets, None), (begins, Some(ring))]);
        assert_eq!(queue.greeted.len(), GREETED_MAX.min(2 * called));
    }
    there.connect(&mut queue, now);
    let mut lost = stalled.iter().take(GREETED_MAX + 1);
    assert!(lost.all(|(control, _)| control.peer_gone()));
}

#[test]
fn rings_of_callers_that_stall_do_not_use_up_the_device() {
    let there = TestListener::new().with_room_for(2);
    let mut queue = there.queue();
    let now = clock::now();
    let stalled = [(); 2].map(|()| there.stall(&mut queue, now));
    let waits = there.greet();
    until(&mut queue, now, |queue| queue.greeted.len() == 3);
    there.connect(&mut queue, now);
    let is_gone = |control: &ControlStream| control.peer_gone();
    assert_eq!(
        stalled.each_ref().map(|(control, _)| is_gone(control)),
        [true, false]
    );
    assert!(!is_gone(&waits), "this caller has no ring");
}

#[test]
fn a_device_without_room_for_one_ring_fails_the_listener() {
    let there = TestListener::new().with_room_for(0);
    let mut queue = there.queue();
    let now = clock::now();
    let mut control = there.greet();
    until_some(&mut queue, now, || welcomed(&mut control).then_some(()));
    let ring = RingBringUp::start(&there.callers_device, false).expect("a ring");
    let _begun = ring.step(&mut control).expect("sends");
    let limit = limit();
    let error = loop {
        if let Some(error) = queue.step(now).err() {
            break error;
        }
        assert!(clock::now() < limit, "no progress");
        std::thread::yield_now();
    };
    assert!(error.to_string().contains("completion queues"), "{error}");
}

#[test]
fn a_caller_that_takes_too_long_loses_its_place() {
    let there = TestListener::new();
    let mut queue = there.queue();
    let began = clock::now();
    let mut stalls = there.greet();
    until(&mut queue, began, |queue| queue.greeted.len() == 1);
    let mut silent = there.call();
    until(&mut queue, began, |queue| queue.strangers.len() == 1);
    let deadline = began + HELLO_TIMEOUT_NETWORK;
    assert_eq!(queue.next_deadline(), deadline);
    let before = Instant::from_nanos(deadline.nanos() - 1);
    assert!(queue.step(before).expect("steps").is_none());
    assert_eq!((queue.greeted.len(), queue.strangers.len()), (1, 1));
    assert!(queue.step(deadline).expect("steps").is_none());
    assert_eq!((queue.greeted.len(), queue.strangers.len()), (0, 0));
    assert!(is_gone(&mut silent));
    assert!(stalls.recv_control_wait(limit()).is_ok(), "the welcome");
    assert!(is_gone(&mut stalls));
}

#[test]
fn an_expired_accept_reports_a_timeout_despite_silent_callers() {
    let there = TestListener::new();
    let mut queue = there.queue();
    let began = clock::now();
    let silent = there.call();
    until(&mut queue, began, |queue| queue.strangers.len() == 1);
    let patience = WaitOptions {
        deadline: Some(began + Duration::from_nanos(1)),
        interrupt: None,
    };
    let over = queue.accept(began, &patience).err();
    let said = over.expect("no caller greets").to_string();
    assert!(
        said.contains(&there.address) && said.contains("(1 s)"),
        "{said}"
    );
    assert!(!silent.peer_gone() && queue.strangers.len() == 1);
}

//! Whether the soak sees what it is there to see: runs that are spoilt on purpose, each in its own way.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use headworks::ring::{Mode, RingConfig};
use headworks::sim::faults::{Verdict, rules};
use headworks::verbs::{
    Access, AddressHandle, AhInit, AllocRequest, AsyncEvent, Buffer, CompletionChannel,
    CompletionQueue, CqInit, Device, DeviceInfo, Duration, Instant, ModifyError, Payload,
    PostError, ProtectionDomain, QpAttr, QpCaps, QpInit, QpState, Qpn, QueuePair, RecvWr, Region,
    ResourceError, SendOp, SendWr, Sge, SharedReceiveQueue, SrqInit,
};

use super::plan::{Plan, RECEIVER};
use super::{EVENTS_MAX, Ran, Violation, guarded};

/// What is done to the slots' WRITE number [`SPOILT`], and by which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoils {
    /// It is left out.
    Drops,
    /// The bytes of the one before are written in its place.
    Repeats,
    /// Its bytes and those of the next change places.
    Swaps,
    /// It takes other bytes than those it was to.
    Corrupts,
    /// From it on nothing is posted.
    Silences,
    /// Nothing; another queue pair is made with it, and kept.
    Keeps,
    /// Nothing; another region is registered, and kept.
    Hoards,
    /// Nothing; another region is registered, and never let go of.
    Leaks,
    /// Nothing; a completion channel is made, and never let go of.
    Forgets,
    /// It panics.
    Panics,
}

const SPOILT: u64 = 20;

struct Spoilt {
    inner: Arc<dyn Device>,
    how: Spoils,
}

struct Domain {
    inner: Arc<dyn ProtectionDomain>,
    how: Spoils,
    kept: Mutex<Vec<Box<dyn QueuePair>>>,
    hoard: Mutex<Vec<Region>>,
}

struct Pair {
    inner: Box<dyn QueuePair>,
    how: Spoils,
    /// WRITEs of slots so far, and where the last one took its bytes.
    writes: AtomicU64,
    before: Option<Sge>,
    _domain: Arc<Domain>,
}

impl Device for Spoilt {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        Ok(Arc::new(Outer(Arc::new(Domain {
            inner: self.inner.alloc_pd()?,
            how: self.how,
            kept: Mutex::default(),
            hoard: Mutex::default(),
        }))))
    }
    fn alloc(&self, request: &AllocRequest) -> Result<Arc<dyn Buffer>, ResourceError> {
        self.inner.alloc(request)
    }
    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, ResourceError> {
        self.inner.create_channel()
    }
    fn create_cq(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, ResourceError> {
        if self.how == Spoils::Forgets {
            std::mem::forget(self.inner.create_channel()?);
        }
        self.inner.create_cq(init)
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

/// The queue pairs made in a domain keep it, and what it keeps.
struct Outer(Arc<Domain>);

impl ProtectionDomain for Outer {
    fn register(&self, buffer: &Arc<dyn Buffer>, access: Access) -> Result<Region, ResourceError> {
        match self.0.how {
            Spoils::Hoards => {
                let more = self.0.inner.register(buffer, access)?;
                self.0.hoard.lock().expect("nobody panicked").push(more);
            }
            Spoils::Leaks => std::mem::forget(self.0.inner.register(buffer, access)?),
            _ => {}
        }
        self.0.inner.register(buffer, access)
    }
    fn create_ah(&self, init: &AhInit) -> Result<Arc<dyn AddressHandle>, ResourceError> {
        self.0.inner.create_ah(init)
    }
    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, ResourceError> {
        self.0.inner.create_srq(init)
    }
    fn create_qp(&self, init: &QpInit) -> Result<Box<dyn QueuePair>, ResourceError> {
        if self.0.how == Spoils::Keeps {
            let more = self.0.inner.create_qp(init)?;
            self.0.kept.lock().expect("nobody panicked").push(more);
        }
        Ok(Box::new(Pair {
            inner: self.0.inner.create_qp(init)?,
            how: self.0.how,
            writes: AtomicU64::new(0),
            before: None,
            _domain: self.0.clone(),
        }))
    }
}

impl QueuePair for Pair {
    fn qpn(&self) -> Qpn {
        self.inner.qpn()
    }
    fn state(&self) -> QpState {
        self.inner.state()
    }
    fn caps(&self) -> &QpCaps {
        self.inner.caps()
    }
    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        self.inner.modify(attr)
    }
    fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        for wr in wrs {
            let Payload::Gather([sge]) = wr.payload else {
                self.pass(*wr)?;
                continue;
            };
            let number = self.writes.fetch_add(1, Ordering::Relaxed);
            let before = self.before.replace(*sge).unwrap_or_default();
            let mut sge = *sge;
            match (self.how, number) {
                (Spoils::Drops, SPOILT) => continue,
                (Spoils::Repeats, SPOILT) => sge = before,
                (Spoils::Swaps, SPOILT) => sge.addr += u64::from(sge.len),
                (Spoils::Swaps, _) if number == SPOILT + 1 => sge = before,
                (Spoils::Corrupts, SPOILT) => sge.addr += 1,
                (Spoils::Panics, SPOILT) => panic!("spoilt on purpose"),
                _ => {}
            }
            let payload = Payload::Gather(std::slice::from_ref(&sge));
            self.pass(SendWr { payload, ..*wr })?;
        }
        Ok(())
    }
    fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.inner.post_recv(wrs)
    }
}

impl Pair {
    fn pass(&mut self, wr: SendWr<'_>) -> Result<(), PostError> {
        let so_far = self.writes.load(Ordering::Relaxed);
        if self.how == Spoils::Silences && so_far > SPOILT && matches!(wr.op, SendOp::Write(_)) {
            return Ok(());
        }
        self.inner.post_send(&[wr])
    }
}

fn config() -> RingConfig {
    RingConfig {
        transmit_every: Some(1),
        publish_every: Some(1),
        push_every: Some(1),
        mode: Mode::Poll,
        ..RingConfig::fixed(8, 64)
    }
}

fn run(plan: Plan) -> Result<Ran, Box<Violation>> {
    guarded(0, || Arc::new(plan))
}

/// What is said of a run in which the device of the sender does that.
fn spoilt(how: Spoils) -> String {
    spoilt_in(Plan::calm(config()), how)
}

fn spoilt_in(mut plan: Plan, how: Spoils) -> String {
    plan.around = Box::new(move |role, inner| match role {
        RECEIVER => inner,
        _ => Arc::new(Spoilt { inner, how }),
    });
    let violation = run(plan).expect_err("nobody noticed");
    assert_eq!(violation.replay(), "headworks sim soak --seeds 0..1");
    violation.what.join("; ")
}

#[test]
fn what_is_not_spoilt_is_not_told_of() {
    let ran = run(Plan::calm(config())).expect("nothing is wrong");
    assert_eq!((ran.messages, ran.rings, ran.broken), (200, 1, 0));
    let ran = run(Plan::calm(config()).crossing()).expect("nothing is wrong");
    assert_eq!((ran.messages, ran.rings, ran.broken), (400, 2, 0));
}

#[test]
fn whatever_a_device_does_to_rings_that_cross_is_seen() {
    let said = [
        (Spoils::Drops, "ring 0: message 12 came in place of 20"),
        (Spoils::Silences, "nothing moves"),
        (Spoils::Keeps, "there are Census"),
        (Spoils::Leaks, "left behind"),
    ];
    for (how, what) in said {
        let told = spoilt_in(Plan::calm(config()).crossing(), how);
        assert!(told.contains(what), "{how:?}: {told}");
    }
    for host in ["sender0", RECEIVER] {
        let stall = Duration::from_secs(3600);
        let stall = rules::stall(host, Instant::ZERO + Duration::from_micros(60), stall);
        let told = run(Plan::calm(config()).crossing().with(stall)).expect_err("stalled");
        assert!(told.what[0].contains("nothing moves"), "{host}: {told}");
    }
    // One of the two breaks, and the other goes on.
    let kill = || rules::kill_after("sender0", 30);
    let ran = run(Plan::calm(config())
        .crossing()
        .with_death("sender0", kill()));
    let ran = ran.expect("planned");
    assert!(ran.broken == 1 && ran.messages >= 200, "{ran:?}");
    let told = run(Plan::calm(config()).crossing().with(kill())).expect_err("broken");
    assert!(told.to_string().contains("without a cause"), "{told}");
}

#[test]
fn whatever_a_device_does_to_a_message_is_seen() {
    // What a message that was left out left there is the one a lap before.
    let said = [
        (Spoils::Drops, "message 12 came in place of 20"),
        (Spoils::Repeats, "message 19 came in place of 20"),
        (Spoils::Swaps, "in place of 2"),
        (Spoils::Corrupts, "changed at byte 0"),
    ];
    for (how, what) in said {
        let told = spoilt(how);
        assert!(told.contains(what), "{how:?}: {told}");
    }
}

#[test]
fn an_end_that_stops_is_seen() {
    let told = spoilt(Spoils::Silences);
    assert!(told.contains("nothing moves"), "{told}");
    let long = Duration::from_secs(3600);
    for host in ["sender0", RECEIVER] {
        let stall = rules::stall(host, Instant::ZERO + Duration::from_micros(60), long);
        let told = run(Plan::calm(config()).with(stall)).expect_err("stalled");
        assert!(told.what[0].contains("nothing moves"), "{host}: {told}");
    }
}

#[test]
fn what_is_left_is_seen_while_its_owner_lives_and_after() {
    for how in [Spoils::Keeps, Spoils::Hoards] {
        let told = spoilt(how);
        assert!(told.contains("there are Census"), "{how:?}: {told}");
        assert!(!told.contains("left behind"), "{how:?}: {told}");
    }
    let leaks = [
        (Spoils::Leaks, "regions: 1"),
        (Spoils::Forgets, "completion_channels: 1"),
    ];
    for (how, what) in leaks {
        let told = spoilt(how);
        assert!(told.contains("there are Census"), "{how:?}: {told}");
        let left = told.split("left behind: ").nth(1);
        assert!(
            left.is_some_and(|left| left.contains(what)),
            "{how:?}: {told}"
        );
        // Where nobody stays to be looked at, what is left is seen all the same.
        let mut plan = Plan::calm(config());
        plan.lingers = false;
        let told = spoilt_in(plan, how);
        assert!(
            !told.contains("there are") && told.contains(what),
            "{how:?}: {told}"
        );
    }
}

#[test]
fn a_panic_is_told_with_its_seed() {
    let told = spoilt(Spoils::Panics);
    assert!(told.contains("spoilt on purpose"), "{told}");
    let told = guarded(7, || panic!("no plan")).expect_err("panicked");
    assert!(told.to_string().contains("no plan") && told.replay().ends_with("7..8"));
    // In a rule, which is asked where no actor is stepped.
    let bad = rules::by(|event, _| (event.number > 50).then(|| panic!("a rule")));
    let told = run(Plan::calm(config()).with(bad)).expect_err("panicked");
    assert!(told.to_string().contains("a rule"), "{told}");
}

#[test]
fn a_ring_breaks_only_of_what_came_to_pass() {
    // A queue pair fails, and that was not planned; and where it was.
    let kill = || rules::kill_after("sender0", 30);
    let told = run(Plan::calm(config()).with(kill())).expect_err("broken");
    assert!(told.to_string().contains("without a cause"), "{told}");
    let ran = run(Plan::calm(config()).with_death("sender0", kill())).expect("planned");
    assert_eq!(ran.broken, 1);
    // What was planned never came, and something else did it.
    let never = rules::kill_after("sender0", u64::MAX);
    let plan = Plan::calm(config()).with_death("sender0", never);
    let other = rules::by(|event, _| {
        (event.host == RECEIVER && event.number == 30).then_some(Verdict::Kill)
    });
    let told = run(plan.with(other)).expect_err("broken");
    assert!(told.to_string().contains("without a cause"), "{told}");
}

#[test]
fn what_goes_back_for_each_gap_is_bounded() {
    // Nearly all that happens is packets sent again, about four events each.
    let smooth = run(Plan::calm(config())).expect("nothing is wrong");
    assert_eq!(smooth.sent_again, 0);
    let rough = run(Plan::rough(600).bounded()).expect("nothing is wrong");
    assert!(8 * rough.sent_again > rough.events, "{rough:?}");
    assert!(rough.events < EVENTS_MAX / 3, "{rough:?}");
}

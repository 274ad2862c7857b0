//! Calls that no correct initiator makes, and calls that are being served when something ends.

use std::sync::MutexGuard;
use std::sync::atomic::AtomicBool;

use super::child::meanwhile;
use super::local_mrs::{Route, bytes, calls_made, fill, go_by, heap, joined};
use super::*;
use crate::control::bounce_service::serve;
use crate::datapath::bounce::{BounceBuffer, BounceCall, CallKind, CallResult, DATA};
use crate::table::rows::{QpLife, QpRow, QueueLocation, SegmentOffset};

fn row(end: &TestQp) -> &QpRow {
    end.device.context.table.qp(slot_of(end.qp.qpn().raw()))
}

/// Returns the row that says where the bounce buffer of `end` is.
fn place(end: &TestQp) -> &QueueLocation {
    end.device
        .context
        .table
        .bounce_buffer(slot_of(end.qp.qpn().raw()))
}

/// Holds the progress thread of `context`, which executes waiting requests and serves calls.
fn hold(context: &Context) -> MutexGuard<'_, ()> {
    context.progress.service()
}

/// A queue pair whose bounce buffer the test writes itself.
struct BounceCaller {
    near: TestQp,
    far: TestQp,
    bounce_buffer: BounceBuffer,
}

impl BounceCaller {
    fn new(fabric: &Fabric) -> Self {
        let [near, far] = fabric.pair();
        let bounce_buffer = BounceBuffer::open(&near.device.context).unwrap();
        bounce_buffer.publish(place(&near));
        Self {
            near,
            far,
            bounce_buffer,
        }
    }

    /// Tells the owner of the last call, and has it serve that.
    fn ring(&self) -> Option<CallResult> {
        let context = &self.far.device.context;
        let _alone = hold(context);
        let slot = slot_of(self.far.qp.qpn().raw());
        context.table.attention().calls.set(slot);
        serve(context, &self.far.device.objects.queue_pairs);
        self.bounce_buffer.answer()
    }

    fn call(&mut self, what: CallKind, at: RemoteAddr, len: usize) -> Option<CallResult> {
        let (key, addr) = (at.rkey, at.addr);
        self.bounce_buffer.call(&BounceCall {
            what,
            key,
            addr,
            len,
        });
        self.ring()
    }
}

const DONE: Option<CallResult> = Some(CallResult::Done(0));
const REFUSED: Option<CallResult> = Some(CallResult::Refused);
const ADD: CallKind = CallKind::FetchAdd { add: 3 };

#[test]
fn the_owner_checks_a_call_whatever_the_caller_has_checked() {
    let fabric = Fabric::new();
    let mut caller = BounceCaller::new(&fabric);
    let device = caller.far.device.again();
    let region = |pd, access| {
        let buffer: Arc<dyn Buffer> = headworks_verbs::HeapBuffer::new(2 * DATA);
        device.register(pd, &buffer, access).unwrap()
    };
    let all = region(PD, Access::ALL);
    let end = 2 * DATA;
    assert_eq!(caller.call(CallKind::Place, all.remote(end - 8), 8), DONE);
    assert_eq!(
        caller.call(CallKind::Place, all.remote(end - 7), 8),
        REFUSED
    );
    assert_eq!(caller.call(CallKind::Fetch, all.remote(end), 8), REFUSED);
    let before = all.remote(0).plus(u64::MAX);
    assert_eq!(caller.call(CallKind::Place, before, 8), REFUSED);
    assert_eq!(
        caller.call(CallKind::Place, all.remote(0), usize::MAX),
        REFUSED
    );
    // A bounce buffer has `DATA` bytes, however long the region is.
    assert_eq!(caller.call(CallKind::Fetch, all.remote(0), DATA), DONE);
    assert_eq!(
        caller.call(CallKind::Fetch, all.remote(0), DATA + 1),
        REFUSED
    );
    // The region's access rights and protection domain.
    let plain = region(PD, Access::LOCAL_WRITE);
    for what in [CallKind::Place, CallKind::Fetch, ADD] {
        assert_eq!(caller.call(what, plain.remote(0), 8), REFUSED, "{what:?}");
    }
    assert_eq!(caller.call(CallKind::Receive, plain.remote(0), 8), DONE);
    let read = region(PD, Access::REMOTE_READ);
    assert_eq!(caller.call(CallKind::Receive, read.remote(0), 8), REFUSED);
    let other = region(PD + 1, Access::ALL);
    for what in [CallKind::Place, CallKind::Receive, CallKind::Fetch, ADD] {
        assert_eq!(caller.call(what, other.remote(0), 8), REFUSED, "{what:?}");
    }
    // Atomics need aligned words of 8 bytes.
    assert_eq!(caller.call(ADD, all.remote(8), 8), DONE);
    for (offset, len) in [(9, 8), (12, 8), (8, 4), (8, 16)] {
        let refused = caller.call(ADD, all.remote(offset), len);
        assert_eq!(refused, REFUSED, "{len} bytes at {offset}");
    }
    // The access that the queue pair allows; it does not apply to receives.
    let access = Access::LOCAL_WRITE.bits();
    row(&caller.far).access.store(access, Ordering::Relaxed);
    for what in [CallKind::Place, CallKind::Fetch, ADD] {
        assert_eq!(caller.call(what, all.remote(0), 8), REFUSED, "{what:?}");
    }
    assert_eq!(caller.call(CallKind::Receive, all.remote(0), 8), DONE);
    // A region that is not registered any more.
    let gone = all.remote(0);
    drop(all);
    assert_eq!(caller.call(CallKind::Receive, gone, 8), REFUSED);
}

#[test]
fn a_call_is_served_once_despite_repeated_notifications() {
    let fabric = Fabric::new();
    let mut caller = BounceCaller::new(&fabric);
    let there = heap(&caller.far, 64);
    assert_eq!(caller.call(ADD, there.remote(0), 8), DONE);
    assert_eq!(caller.ring(), DONE);
    assert_eq!(bytes(&there, 0, 8), 3_u64.to_ne_bytes());
    let again = caller.call(ADD, there.remote(0), 8);
    assert_eq!(again, Some(CallResult::Done(3)));
}

#[test]
fn nobody_is_served_but_the_queue_pair_at_the_other_end() {
    let fabric = Fabric::new();
    let mut caller = BounceCaller::new(&fabric);
    let there = heap(&caller.far, 64);
    let at = there.remote(0);
    let table = caller.near.device.context.table.clone();
    let near = table.held_qp(slot_of(caller.near.qp.qpn().raw()));
    let mut served = 0;
    let mut is_served = |caller: &mut BounceCaller| {
        let served_now = caller.call(ADD, at, 8).is_some();
        served += u64::from(served_now);
        let sum = u64::from_ne_bytes(bytes(&there, 0, 8).try_into().unwrap());
        assert_eq!(sum, 3 * served, "executed but not answered");
        served_now
    };
    assert!(is_served(&mut caller));
    for word in [&near.qpn, &near.dest_qpn, &near.sq_psn] {
        let before = word.fetch_xor(1, Ordering::Relaxed);
        assert!(!is_served(&mut caller), "served on another connection");
        word.store(before, Ordering::Relaxed);
        assert!(is_served(&mut caller));
    }
    let life = near.life();
    for state in [QpState::Error, QpState::Reset, QpState::Rtr] {
        let other = QpLife::new(life.generation(), state);
        near.life.store(other.0, Ordering::Release);
        assert!(!is_served(&mut caller), "{state:?}");
    }
    near.life.store(life.0, Ordering::Release);
    // Locations that are no bounce buffer: cleared, or not aligned to a cache line.
    let bounce_buffer = |caller: &BounceCaller| caller.bounce_buffer.publish(place(&caller.near));
    place(&caller.near).clear();
    assert!(!is_served(&mut caller));
    bounce_buffer(&caller);
    let (at, _) = place(&caller.near).get();
    let offset = at.offset + 8;
    place(&caller.near).set(SegmentOffset { offset, ..at }, DATA);
    assert!(!is_served(&mut caller));
    bounce_buffer(&caller);
    assert!(is_served(&mut caller));
    let error = QpAttr::to_state(QpState::Error);
    caller.far.qp.modify(&error).unwrap();
    assert!(!is_served(&mut caller), "a queue pair that failed");
}

/// Makes two ends, of which the first reaches the second by calls. Its requests are given up after `retries`
/// retries of microseconds each, or never.
fn calling(fabric: &Fabric, retries: Option<u8>) -> [TestQp; 2] {
    let mut ends = joined(&fabric.open("soft:h1"), &fabric.open("soft:h2"));
    if let Some(retry_count) = retries {
        let [near, far] = &mut ends;
        near.qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
        let steps = [
            to_init(),
            to_rtr(far.device.info().gid, far.qp.qpn()),
            QpAttr {
                sq_psn: Some(Psn::truncated(1)),
                timeout: Some(1),
                retry_count: Some(retry_count),
                rnr_retry: Some(7),
                max_rd_atomic: Some(1),
                ..QpAttr::to_state(QpState::Rts)
            },
        ];
        for step in &steps {
            near.qp.modify(step).unwrap();
        }
    }
    let [near, far] = &ends;
    go_by(Route::BounceBuffer, near, far);
    ends
}

fn receive(end: &mut TestQp, into: &Region) {
    let sges = [into.sge(0, 8)];
    end.qp
        .post_recv(&[RecvWr {
            wr_id: 3,
            sges: &sges,
        }])
        .unwrap();
}

/// Posts, and has the call made. No other thread may be executing waiting requests of `end`.
fn post_call(end: &mut TestQp, op: SendOp) {
    end.post(op);
    assert!(is_quiet(end));
    assert_eq!(calls_made(end), 1);
}

fn is_quiet(end: &TestQp) -> bool {
    end.cq.poll(&mut [Completion::default()]) == Ok(0)
}

#[test]
fn a_queue_pair_is_reset_when_no_call_is_being_served_any_more() {
    let fabric = Fabric::new();
    let [mut near, mut far] = calling(&fabric, None);
    let there = heap(&far, 64);
    let contexts = [&near, &far].map(|end| end.device.context.clone());
    let queue_pairs = far.device.objects.queue_pairs.clone();
    let alone = contexts.each_ref().map(|context| hold(context));
    post_call(&mut near, SendOp::Write(there.remote(0)));
    let (tell, told) = mpsc::channel();
    meanwhile("checked", move || {
        let reset = Arc::new(AtomicBool::new(false));
        let is_reset = reset.clone();
        let resets = std::thread::spawn(move || {
            far.qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
            reset.store(true, Ordering::Release);
            far
        });
        // Long enough for a reset that does not wait.
        for _ in 0..20_000 {
            std::thread::yield_now();
        }
        tell.send((resets, is_reset.load(Ordering::Acquire)))
            .unwrap();
    });
    serve(&contexts[1], &queue_pairs);
    let (far, too_early) = told.try_recv().expect("a call that is served");
    drop(alone);
    assert!(!too_early, "its memory was written to");
    assert_eq!(far.join().unwrap().qp.state(), QpState::Reset);
}

#[test]
fn a_receive_is_not_given_back_while_it_is_being_filled() {
    let fabric = Fabric::new();
    let [mut near, mut far] = calling(&fabric, None);
    let into = heap(&far, 64);
    receive(&mut far, &into);
    let contexts = [&near, &far].map(|end| end.device.context.clone());
    let queue_pairs = far.device.objects.queue_pairs.clone();
    let alone = contexts.each_ref().map(|context| hold(context));
    post_call(&mut near, SendOp::Send);
    let far_cq = far.cq.clone();
    let (tell, told) = mpsc::channel();
    meanwhile("checked", move || {
        // The owner, on which the change of state waits, does not go on meanwhile: it stops waiting.
        near.qp.modify(&QpAttr::to_state(QpState::Error)).unwrap();
        let polled = far_cq.poll(&mut [Completion::default()]);
        tell.send((near, polled)).unwrap();
    });
    serve(&contexts[1], &queue_pairs);
    let (near, polled) = told.try_recv().expect("a call that is served");
    drop(alone);
    assert_eq!(polled, Ok(0), "its memory was written to");
    assert_eq!(near.completed().status, Status::Flushed);
    assert!(is_quiet(&far));
    far.qp.modify(&QpAttr::to_state(QpState::Error)).unwrap();
    let ended = far.completed();
    assert_eq!((ended.wr_id, ended.status), (3, Status::Flushed));
    assert!(is_quiet(&far));
    drop(near);
}

#[test]
fn a_call_that_is_given_up_is_not_served_later() {
    let fabric = Fabric::new();
    let [mut near, mut far] = calling(&fabric, Some(0));
    let into = heap(&far, 64);
    fill(&into, |_| 0x5a);
    receive(&mut far, &into);
    let contexts = [&near, &far].map(|end| end.device.context.clone());
    let queue_pairs = far.device.objects.queue_pairs.clone();
    let alone = contexts.each_ref().map(|context| hold(context));
    near.post(SendOp::Send);
    let owner = contexts[1].clone();
    let (tell, told) = mpsc::channel();
    meanwhile("filled", move || {
        serve(&owner, &queue_pairs);
        tell.send(()).unwrap();
    });
    // No one answers the call.
    assert_eq!(near.completed().status, Status::RetryExceeded);
    assert_eq!(told.try_recv(), Ok(()));
    assert_eq!(bytes(&into, 0, 8), [0x5a; 8]);
    let ended = far.completed();
    assert_eq!((ended.wr_id, ended.status), (3, Status::Flushed));
    drop(alone);
}

#[test]
fn a_call_over_a_connection_that_ended_is_not_served_over_the_next() {
    let fabric = Fabric::new();
    let [mut near, mut far] = calling(&fabric, None);
    let there = heap(&far, 64);
    let contexts = [&near, &far].map(|end| end.device.context.clone());
    let queue_pairs = far.device.objects.queue_pairs.clone();
    let alone = contexts.each_ref().map(|context| hold(context));
    let remote = there.remote(0);
    post_call(&mut near, SendOp::FetchAdd { remote, add: 3 });
    far.qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
    assert!(is_quiet(&near));
    join(&mut far.qp, near.device.info().gid, near.qp.qpn());
    serve(&contexts[1], &queue_pairs);
    assert_eq!(bytes(&there, 0, 8), [0; 8]);
    drop(alone);
    // The request begins again.
    assert_eq!(near.completed().status, Status::Success);
    assert_eq!(bytes(&there, 0, 8), 3_u64.to_ne_bytes());
}

#[test]
fn an_unanswering_owner_is_notified_again() {
    let fabric = Fabric::new();
    let [mut near, far] = calling(&fabric, None);
    let there = heap(&far, 64);
    let contexts = [&near, &far].map(|end| end.device.context.clone());
    let alone = contexts.each_ref().map(|context| hold(context));
    post_call(&mut near, SendOp::Write(there.remote(0)));
    let mut marks = 0;
    let calls = &far.device.context.table.attention().calls;
    calls.take(|_| marks += 1);
    assert_eq!(marks, 1);
    drop(alone);
    assert_eq!(near.completed().status, Status::Success);
}

#[test]
fn the_owner_refuses_a_receive_over_memory_that_may_not_be_received_into() {
    let fabric = Fabric::new();
    let [mut near, mut far] = calling(&fabric, None);
    let buffer: Arc<dyn Buffer> = headworks_verbs::HeapBuffer::new(64);
    let context = far.device.context.clone();
    let into = far
        .device
        .register(PD, &buffer, Access::REMOTE_READ)
        .unwrap();
    // The row allows it, but the owner does not trust the row.
    let row = context.table.region(into.rkey());
    row.access.store(Access::ALL.bits(), Ordering::Relaxed);
    receive(&mut far, &into);
    near.post(SendOp::Send);
    assert_eq!(near.completed().status, Status::RemoteOperation);
    let ended = far.completed();
    assert_eq!((ended.wr_id, ended.status), (3, Status::LocalProtection));
    assert_eq!(far.qp.state(), QpState::Error);
    assert_eq!(bytes(&into, 0, 64), [0; 64]);
}

#[test]
fn a_receive_that_was_taken_on_a_connection_that_ended_is_forgotten() {
    let fabric = Fabric::new();
    let [mut near, mut far] = calling(&fabric, None);
    let into = heap(&far, 64);
    receive(&mut far, &into);
    let contexts = [&near, &far].map(|end| end.device.context.clone());
    let alone = contexts.each_ref().map(|context| hold(context));
    // The SEND has taken the receive, and waits to be executed further.
    near.post(SendOp::Send);
    far.qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
    join(&mut far.qp, near.device.info().gid, near.qp.qpn());
    let sges = [into.sge(8, 8)];
    let sges = &sges[..];
    far.qp.post_recv(&[RecvWr { wr_id: 4, sges }]).unwrap();
    drop(alone);
    assert_eq!(near.completed().status, Status::Success);
    let got = far.completed();
    assert_eq!((got.wr_id, got.status), (4, Status::Success));
    assert!(is_quiet(&far));
}

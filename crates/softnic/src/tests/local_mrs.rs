//! Private memory, which no device allocated, at either end or both, between two contexts of this process.
//! To each other they are two processes that share one pid.

use std::sync::atomic::AtomicU32;

use headworks_verbs::{HeapBuffer, Sge};
use rustix::io::Errno;

use super::*;
use crate::datapath::cross_process_copy::CrossError;
use crate::datapath::remote_memory::note_failure;

/// How the peer's memory is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The kernel copies between the processes.
    Crossing,
    /// The peer copies, as it must if the kernel refuses to.
    BounceBuffer,
}

/// Has `from` reach the memory of `to` by that route from now on.
pub(super) fn go_by(route: Route, from: &TestQp, to: &TestQp) {
    if route == Route::BounceBuffer {
        let host = host_of(to.device.info().gid);
        let peer = from.device.context.peers.attach(host, to.qp.qpn().raw());
        let peer = peer.unwrap().unwrap();
        note_failure(&peer, CrossError::Refused(Errno::PERM));
    }
}

/// Bytes before and after the target that must stay untouched.
pub(super) const MARGIN: usize = 96;
pub(super) const UNTOUCHED: u8 = 0xa5;

/// Lengths around every boundary: a word, the longest request executed in the call, a chunk.
const LENGTHS: [usize; 8] = [
    0,
    1,
    63,
    64 << 10,
    (64 << 10) + 1,
    256 << 10,
    (256 << 10) + 7,
    10 << 20,
];

/// Registers a region of heap memory.
pub(super) fn heap(end: &TestQp, len: usize) -> Region {
    let buffer: Arc<dyn Buffer> = HeapBuffer::new(len);
    end.device.register(PD, &buffer, Access::ALL).unwrap()
}

pub(super) fn fill(region: &Region, byte: impl Fn(usize) -> u8) {
    let bytes: Vec<u8> = (0..region.len()).map(byte).collect();
    // SAFETY: the region has that many bytes, and nothing else uses them now.
    unsafe {
        region
            .buffer()
            .as_ptr()
            .copy_from(bytes.as_ptr(), bytes.len())
    };
}

pub(super) fn bytes(region: &Region, at: usize, len: usize) -> Vec<u8> {
    assert!(at + len <= region.len());
    let mut bytes = vec![0; len];
    // SAFETY: in range, and nothing else uses the bytes now.
    unsafe {
        region
            .buffer()
            .as_ptr()
            .wrapping_add(at)
            .copy_to(bytes.as_mut_ptr(), len);
    }
    bytes
}

pub(super) fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at / 251)) as u8
}

/// Returns `len` bytes from `at` of the region as six pieces, cut at odd places.
pub(super) fn pieces(region: &Region, at: usize, len: usize) -> Vec<Sge> {
    let mut rest = len;
    let mut offset = at;
    let mut list = Vec::new();
    for part in [1, 7, len / 3, 0, len / 5 + 3, usize::MAX] {
        let part = part.min(rest);
        list.push(region.sge(offset, part as u32));
        offset += part;
        rest -= part;
    }
    list
}

/// Asserts that the pattern is in the `len` bytes from [`MARGIN`], and that the bytes around are untouched.
pub(super) fn check(region: &Region, len: usize) {
    let expected: Vec<u8> = (0..len).map(pattern).collect();
    assert!(bytes(region, MARGIN, len) == expected, "{len} bytes");
    let around = [
        bytes(region, 0, MARGIN),
        bytes(region, MARGIN + len, MARGIN),
    ];
    assert!(around.concat().iter().all(|byte| *byte == UNTOUCHED));
}

pub(super) fn post(end: &mut TestQp, op: SendOp, sges: &[Sge]) -> Completion {
    let wr = SendWr {
        wr_id: 7,
        op,
        payload: Payload::Gather(sges),
        flags: SendFlags::default(),
    };
    end.qp.post_send(&[wr]).unwrap();
    end.completed()
}

fn round(ends: &mut [TestQp; 2], len: usize) {
    let room = len + 2 * MARGIN;
    let [near, far] = ends;
    let (here, there) = (heap(near, room), heap(far, room));
    fill(&here, |at| pattern(at.wrapping_sub(MARGIN)));
    let from = pieces(&here, MARGIN, len);
    for op in [
        SendOp::Write(there.remote(MARGIN)),
        SendOp::WriteImm(there.remote(MARGIN), 9),
        SendOp::Send,
        SendOp::SendImm(9),
    ] {
        fill(&there, |_| UNTOUCHED);
        let needs_receive = !matches!(op, SendOp::Write(_));
        if needs_receive {
            let into = pieces(&there, MARGIN, len);
            let wr = RecvWr {
                wr_id: 3,
                sges: &into,
            };
            far.qp.post_recv(&[wr]).unwrap();
        }
        let done = post(near, op, &from);
        assert_eq!(done.status, Status::Success, "{op:?}");
        if needs_receive {
            let got = far.completed();
            let found = (got.status, got.byte_len as usize);
            assert_eq!(found, (Status::Success, len), "{op:?}");
        }
        check(&there, len);
    }
    let there = heap(far, room);
    fill(&there, |at| pattern(at.wrapping_sub(MARGIN)));
    fill(&here, |_| UNTOUCHED);
    let done = post(near, SendOp::Read(there.remote(MARGIN)), &from);
    assert_eq!(
        (done.status, done.byte_len as usize),
        (Status::Success, len)
    );
    check(&here, len);
}

/// Makes an end whose queue pair takes lists of six pieces.
pub(super) fn wide_end(device: SoftDevice) -> TestQp {
    let cq = device.create_cq(&cq_init(16)).unwrap();
    let mut init = qp_init(&cq, None);
    (init.caps.max_send_sge, init.caps.max_recv_sge) = (6, 6);
    TestQp {
        qp: device.create_qp(PD, &init).unwrap(),
        region: region(&device, PD),
        cq,
        device,
    }
}

/// Makes two connected ends whose queue pairs take lists of six pieces.
fn wide_pair(fabric: &Fabric) -> [TestQp; 2] {
    let mut ends = ["soft:h1", "soft:h2"].map(|name| wide_end(fabric.open(name)));
    connect(&mut ends);
    ends
}

fn all_lengths(route: Route) {
    within_limit(move || {
        let fabric = Fabric::new();
        let mut ends = wide_pair(&fabric);
        go_by(route, &ends[0], &ends[1]);
        for len in LENGTHS {
            round(&mut ends, len);
        }
        assert_eq!(calls_made(&ends[0]) > 0, route == Route::BounceBuffer);
    });
}

/// Returns how many calls a queue pair has made through its bounce buffer.
pub(super) fn calls_made(end: &TestQp) -> u64 {
    let slot = slot_of(end.qp.qpn().raw());
    let (at, len) = end.device.context.table.bounce_buffer(slot).get();
    if len == 0 {
        return 0;
    }
    let (start, _keep) = end.device.context.own.memory(at, 8).unwrap();
    // SAFETY: a bounce buffer begins with the number of its last call.
    unsafe { start.cast::<u64>().read_volatile() }
}

#[test]
fn every_operation_reaches_it_at_every_length() {
    all_lengths(Route::Crossing);
}

#[test]
fn every_operation_reaches_it_through_the_bounce_buffer() {
    all_lengths(Route::BounceBuffer);
}

/// Connects a new queue pair of `near` with a new one of `far`, and returns both.
pub(super) fn joined(near: &SoftDevice, far: &SoftDevice) -> [TestQp; 2] {
    let device = |of: &SoftDevice| of.again();
    let mut ends = [
        TestQp::new(device(near), None, 16),
        TestQp::new(device(far), None, 16),
    ];
    connect(&mut ends);
    ends
}

#[test]
fn atomics_of_many_initiators_and_of_the_owner_add_up() {
    const EACH: u64 = 300;
    within_limit(|| {
        let fabric = Fabric::new();
        let owner = fabric.open("soft:h1");
        let buffer: Arc<dyn Buffer> = HeapBuffer::new(4096);
        let there = owner.register(PD, &buffer, Access::ALL).unwrap();
        let at = there.remote(8);
        let mut pairs: Vec<_> = ["soft:h2", "soft:h3", "soft:h4"]
            .map(|name| joined(&fabric.open(name), &owner))
            .into();
        // The owner's own requests take part.
        pairs.push(joined(&owner, &owner));
        let threads: Vec<_> = pairs
            .into_iter()
            .map(|[mut near, far]| {
                std::thread::spawn(move || {
                    let _far = far;
                    let mut swapped = 0;
                    let mut found_before = None;
                    for _ in 0..EACH {
                        let into = [near.region.sge(0, 8)];
                        let add = SendOp::FetchAdd { remote: at, add: 3 };
                        let done = post(&mut near, add, &into);
                        assert_eq!((done.status, done.byte_len), (Status::Success, 8));
                        let found =
                            u64::from_ne_bytes(bytes(&near.region, 0, 8).try_into().unwrap());
                        // The word only grows, and at least by what this thread has added.
                        assert!(Some(found) >= found_before, "{found}, {found_before:?}");
                        found_before = Some(found + 3);
                        let swap = SendOp::CompareSwap {
                            remote: at,
                            expect: found + 3,
                            swap: found + 4,
                        };
                        assert_eq!(post(&mut near, swap, &into).status, Status::Success);
                        let now = u64::from_ne_bytes(bytes(&near.region, 0, 8).try_into().unwrap());
                        swapped += u64::from(now == found + 3);
                    }
                    swapped
                })
            })
            .collect();
        let swapped: u64 = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum();
        let sum = u64::from_ne_bytes(bytes(&there, 8, 8).try_into().unwrap());
        assert_eq!(sum, 4 * EACH * 3 + swapped);
        assert!(swapped > 0, "nothing was ever swapped");
        assert_eq!(bytes(&there, 0, 8), [0; 8]);
    });
}

#[test]
fn atomics_on_it_are_checked_by_its_owner() {
    let fabric = Fabric::new();
    let owner = fabric.open("soft:h1");
    let other = fabric.open("soft:h2");
    let buffer: Arc<dyn Buffer> = HeapBuffer::new(64);
    let writable = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let [all, plain] =
        [Access::ALL, writable].map(|access| owner.register(PD, &buffer, access).unwrap());
    for (remote, status) in [
        (all.remote(56), Status::Success),
        (all.remote(57), Status::RemoteInvalidRequest),
        (all.remote(64), Status::RemoteAccess),
        (plain.remote(0), Status::RemoteAccess),
    ] {
        let [mut near, _far] = joined(&other, &owner);
        near.post(SendOp::FetchAdd { remote, add: 1 });
        assert_eq!(near.completed().status, status, "{remote:?}");
    }
}

/// The owner checks a call against what its process knows, not against the region's row, which peers can
/// write.
#[test]
fn the_owner_does_not_believe_its_own_table() {
    let fabric = Fabric::new();
    let owner = fabric.open("soft:h1");
    let other = fabric.open("soft:h2");
    let buffer: Arc<dyn Buffer> = HeapBuffer::new(64);
    let there = owner.register(PD, &buffer, Access::REMOTE_READ).unwrap();
    let row = owner.context.table.region(there.rkey());
    row.access.store(Access::ALL.bits(), Ordering::Relaxed);
    row.len.store(1 << 40, Ordering::Relaxed);
    for offset in [0, 1 << 20] {
        let [mut near, far] = joined(&other, &owner);
        go_by(Route::BounceBuffer, &near, &far);
        near.post(SendOp::Write(there.remote(0).plus(offset)));
        assert_eq!(near.completed().status, Status::RemoteAccess);
        let [mut near, _far] = joined(&owner, &owner);
        near.post(SendOp::Write(there.remote(0).plus(offset)));
        assert_eq!(near.completed().status, Status::RemoteAccess);
    }
    assert_eq!(bytes(&there, 0, 64), [0; 64]);
}

fn deregistration_under_fire(route: Route) {
    const LEN: usize = 64 << 10;
    within_limit(move || {
        let fabric = Fabric::new();
        let owner = fabric.open("soft:h1");
        let other = fabric.open("soft:h2");
        for round in 0..20 {
            let [mut near, far] = joined(&other, &owner);
            go_by(route, &near, &far);
            let buffer: Arc<dyn Buffer> = HeapBuffer::new(LEN);
            let there = owner.register(PD, &buffer, Access::ALL).unwrap();
            let at = there.remote(0);
            let written = Arc::new(AtomicU32::new(0));
            let seen = written.clone();
            let writer = std::thread::spawn(move || {
                let from = heap(&near, LEN);
                fill(&from, |_| 1);
                loop {
                    let done = post(&mut near, SendOp::Write(at), &[from.sge(0, LEN as u32)]);
                    match done.status {
                        Status::Success => written.fetch_add(1, Ordering::Relaxed),
                        other => break other,
                    };
                }
            });
            // From before the first WRITE, in round 0, to well under way.
            until("WRITEs", || seen.load(Ordering::Relaxed) >= round);
            drop(there);
            // SAFETY: nothing else uses the memory any more; that is what this test checks.
            unsafe { buffer.as_ptr().write_bytes(0x5a, LEN) };
            assert_eq!(writer.join().unwrap(), Status::RemoteAccess);
            let mut after = vec![0; LEN];
            // SAFETY: as above.
            unsafe { buffer.as_ptr().copy_to(after.as_mut_ptr(), LEN) };
            assert!(after.iter().all(|byte| *byte == 0x5a), "round {round}");
        }
    });
}

#[test]
fn nothing_is_written_after_deregistration() {
    deregistration_under_fire(Route::Crossing);
}

#[test]
fn nothing_is_served_after_deregistration() {
    deregistration_under_fire(Route::BounceBuffer);
}

#[test]
fn accessing_unmapped_memory_is_an_operational_error() {
    /// A buffer that claims to be where nothing is mapped.
    struct UnmappedBuffer;

    // SAFETY: none: this is how a program breaks the contract. Only the kernel uses the address here.
    unsafe impl Buffer for UnmappedBuffer {
        fn as_ptr(&self) -> *mut u8 {
            std::ptr::without_provenance_mut(4096)
        }

        fn len(&self) -> usize {
            4096
        }
    }

    let fabric = Fabric::new();
    for op in [SendOp::Write, SendOp::Read] {
        let mut ends = fabric.pair();
        let buffer: Arc<dyn Buffer> = Arc::new(UnmappedBuffer);
        let there = ends[1].device.register(PD, &buffer, Access::ALL).unwrap();
        ends[0].post(op(there.remote(8)));
        assert_eq!(ends[0].completed().status, Status::RemoteOperation);
        assert_eq!(ends[1].qp.state(), QpState::Error);
    }
}

#[test]
fn a_partly_unmapped_buffer_is_an_operational_error() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    /// Two pages, the second of which is unmapped.
    struct HalfMappedBuffer(usize);

    // SAFETY: none: this is how a program breaks the contract. Only the kernel uses the unmapped page here.
    unsafe impl Buffer for HalfMappedBuffer {
        fn as_ptr(&self) -> *mut u8 {
            self.0 as *mut u8
        }

        fn len(&self) -> usize {
            8192
        }
    }

    // SAFETY: a new mapping, half of which is unmapped again.
    let mapped = unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mapped = mmap_anonymous(std::ptr::null_mut(), 8192, access, MapFlags::PRIVATE).unwrap();
        munmap(mapped.byte_add(4096), 4096).unwrap();
        mapped as usize
    };
    let fabric = Fabric::new();
    for op in [SendOp::Write, SendOp::Read] {
        let [near, far] = ["soft:h1", "soft:h2"].map(|name| fabric.open(name));
        let [mut near, far] = joined(&near, &far);
        let here = heap(&near, 8192);
        let buffer: Arc<dyn Buffer> = Arc::new(HalfMappedBuffer(mapped));
        let there = far.device.register(PD, &buffer, Access::ALL).unwrap();
        let done = post(&mut near, op(there.remote(0)), &[here.sge(0, 8192)]);
        assert_eq!(done.status, Status::RemoteOperation);
    }
    // SAFETY: nothing uses it any more.
    unsafe { munmap(std::ptr::without_provenance_mut(mapped), 4096) }.unwrap();
}

#[test]
fn it_is_checked_as_any_memory() {
    let fabric = Fabric::new();
    let ends = fabric.pair();
    let buffer: Arc<dyn Buffer> = HeapBuffer::new(100);
    let device = ends[1].device.again();
    let readable = Access::REMOTE_READ;
    let [all, read] =
        [Access::ALL, readable].map(|access| device.register(PD, &buffer, access).unwrap());
    let other = device.register(PD + 1, &buffer, Access::ALL).unwrap();
    assert!(!all.atomic_aligned_8());
    let gone = device.register(PD, &buffer, Access::ALL).unwrap();
    let gone_at = gone.remote(0);
    drop(gone);
    drop(ends);
    for (at, status) in [
        (all.remote(92), Status::Success),
        (all.remote(93), Status::RemoteAccess),
        (all.remote(0).plus(u64::MAX), Status::RemoteAccess),
        (read.remote(0), Status::RemoteAccess),
        (other.remote(0), Status::RemoteAccess),
        (gone_at, Status::RemoteAccess),
    ] {
        let mut ends = [
            TestQp::new(fabric.open("soft:h1"), None, 16),
            TestQp::new(device.again(), None, 16),
        ];
        connect(&mut ends);
        ends[0].post(SendOp::Write(at));
        assert_eq!(ends[0].completed().status, status, "{at:?}");
    }
}

#[test]
fn a_part_of_the_devices_memory_is_shared_as_the_whole() {
    /// 100 bytes in the middle of another buffer.
    struct SubBuffer(Arc<dyn Buffer>);

    // SAFETY: the buffer that it is a part of has 4096 bytes and is kept by this one.
    unsafe impl Buffer for SubBuffer {
        fn as_ptr(&self) -> *mut u8 {
            self.0.as_ptr().wrapping_add(1000)
        }

        fn len(&self) -> usize {
            100
        }
    }

    let fabric = Fabric::new();
    let mut ends = fabric.pair();
    let whole = ends[1].device.alloc(&AllocRequest::of(4096)).unwrap();
    let part: Arc<dyn Buffer> = Arc::new(SubBuffer(whole.clone()));
    let there = ends[1].device.register(PD, &part, Access::ALL).unwrap();
    assert!(there.atomic_aligned_8());
    fill(&ends[0].region, pattern);
    assert_eq!(post_eight(&mut ends[0], there.remote(92)), Status::Success);
    let expected: Vec<u8> = (0..8).map(pattern).collect();
    assert_eq!(bytes(&there, 92, 8), expected);
    assert_eq!(
        post_eight(&mut ends[0], there.remote(93)),
        Status::RemoteAccess
    );
}

/// A process does not use a registration of its own after its end, whatever others write to the row.
#[test]
fn a_key_rewritten_by_another_process_is_not_used() {
    let fabric = Fabric::new();
    let mut ends = fabric.pair();
    let there = ends[1].region.remote(0);
    let here = heap(&ends[0], 64);
    let (sge, key) = (here.sge(0, 8), here.lkey());
    assert_eq!(
        post(&mut ends[0], SendOp::Write(there), &[sge]).status,
        Status::Success
    );
    let row = ends[0].device.context.table.held_region(key);
    let word = row.key.load(Ordering::Relaxed);
    let kept = here.buffer().clone();
    drop(here);
    row.key.store(word, Ordering::Release);
    let status = post(&mut ends[0], SendOp::Write(there), &[sge]).status;
    assert_eq!(status, Status::LocalProtection);
    drop(kept);
}

fn post_eight(end: &mut TestQp, to: RemoteAddr) -> Status {
    end.post(SendOp::Write(to));
    end.completed().status
}

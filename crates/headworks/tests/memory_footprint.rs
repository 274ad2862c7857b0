//! A ring takes as much memory as the guide says; a paced request allocates none.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use headworks::connect;
use headworks::net::clock;
use headworks::pacing::{PacedDevice, Pacing, PacingConfig, SharedPacing, shared_state};
use headworks::ring::{Mode, RingConfig};
use headworks::verbs::bringup::ConnectionParams;
use headworks::verbs::{
    Access, AllocRequest, BringUp, Completion, CqInit, Device, Payload, Provider, QpCaps, QpInit,
    QpType, SendFlags, SendOp, SendWr,
};
use headworks_shm::{HugePages, Registry, SegmentRequest, SharedSegment, View};
use headworks_softnic::{SoftProvider, inspect};

/// Counts bytes that are allocated and not freed.
struct CountingAllocator;

static HELD: AtomicUsize = AtomicUsize::new(0);

/// Serializes the tests: they count what the whole process holds.
static ALONE: Mutex<()> = Mutex::new(());

thread_local! {
    /// Number of allocations by this thread.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator; the counters do not affect it.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        CALLS.set(CALLS.get() + 1);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Returns the bytes of shared memory of the soft host `host`.
fn shared(fabric: &Path, host: &str) -> u64 {
    let fabric = Registry::open_at(fabric).expect("a fabric");
    let snapshot = inspect::look(&fabric, Some(host)).expect("looks");
    snapshot.contexts[0].segments.bytes
}

/// Returns the bytes that one end takes by the guide: shared memory, and the process's own.
fn promised(slots: u64, slot: u64, completions: u64) -> (u64, u64) {
    let completions = completions.next_power_of_two();
    let receives = (2 * slots).next_power_of_two();
    let shared = slots * slot + 64 + completions * (112 - 48) + receives * 128;
    (shared, completions * 48)
}

#[test]
fn a_ring_takes_the_documented_amount_of_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const RINGS: u64 = 4;
    // Every buffer is long enough for a segment of its own, so that all memory is visible.
    for (slots, slot) in [(4_096, 256), (8_192, 64)] {
        for mode in [Mode::Poll, Mode::Notify] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("fabric");
            let provider = SoftProvider::on(Registry::open_at(&path).expect("a fabric"));
            let open = |name: &str| {
                let name = name.parse().expect("a name");
                provider.open(&name).expect("opens")
            };
            let (near, far) = (open("soft:h1"), open("soft:h2"));
            let config = RingConfig {
                mode,
                slot_size: Some(slot),
                ..RingConfig::fixed(slots, slot)
            };
            let pair = || connect::pair(&near, &far, &config).expect("connects");
            // The first ring also allocates what exists only once, which must not be counted.
            let first = pair();
            let now = || {
                let own = HELD.load(Ordering::Relaxed) as u64;
                [shared(&path, "h1"), shared(&path, "h2"), own]
            };
            let before = now();
            let rings: Vec<_> = (0..RINGS).map(|_| pair()).collect();
            let after = now();
            let [near_shared, far_shared, own] =
                std::array::from_fn(|at| (after[at] - before[at]) / RINGS);
            let (slots, slot) = (u64::from(slots), slot as u64);
            let sending = promised(slots, slot, 3 * slots + 8);
            let waits = match mode {
                Mode::Notify => slots,
                _ => 16,
            };
            let receiving = promised(slots, slot, slots + waits);
            let about = |what: &str, found: u64, promised: u64| {
                println!("{slots} of {slot}, {mode:?}: {what} {found}, {promised} by the guide");
                assert!(
                    (promised..promised + (16 << 10)).contains(&found),
                    "{slots} of {slot}, {mode:?}: {what} {found}, {promised} by the guide"
                );
            };
            about("sender's shared memory", near_shared, sending.0);
            about("receiver's shared memory", far_shared, receiving.0);
            about("own memory of both", own, sending.1 + receiving.1);
            drop((first, rings));
        }
    }
}

/// Returns a soft device, paced with these constants.
fn paced(fabric: &Path, config: PacingConfig) -> Arc<dyn Device> {
    let provider = SoftProvider::on(Registry::open_at(fabric).expect("a fabric"));
    let device = provider
        .open(&"soft:h1".parse().expect("a name"))
        .expect("opens");
    let request = SegmentRequest {
        name: "paced",
        len: shared_state::BYTES,
        huge_pages: HugePages::No,
        numa_node: None,
        is_sealed: false,
    };
    let segment = Arc::new(SharedSegment::create(&request).expect("a segment"));
    let info = device.info().clone();
    let pacing = Pacing {
        share: SharedPacing::over(View::from(segment)).expect("long enough"),
        config: Arc::new(config),
        clock: Arc::new(clock::now),
        is_real: true,
        keeper: None,
    };
    Arc::new(PacedDevice::new(device, info, pacing))
}

/// Requests are posted at once or wait, and are cut or not.
#[test]
fn paced_requests_allocate_nothing_of_their_own() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const DEPTH: usize = 64;
    /// Limit on how often queues of 64 entries double, all queues together.
    const GROWN: usize = 32;
    let limited = PacingConfig {
        timestamps: false,
        line_rate_gbps: 8.0,
        slice_bytes: 256,
        burst_bytes: 0,
        ..PacingConfig::default()
    };
    let free = PacingConfig {
        timestamps: false,
        ..PacingConfig::default()
    };
    for config in [free, limited] {
        let dir = tempfile::tempdir().expect("a directory");
        let device = paced(&dir.path().join("fabric"), config);
        let (pd, cq) = (
            device.alloc_pd().expect("made"),
            CqInit {
                depth: 256,
                ..CqInit::default()
            },
        );
        let cq = device.create_cq(&cq).expect("made");
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps: QpCaps {
                max_send_wr: DEPTH as u32,
                max_send_sge: 2,
                ..QpCaps::default()
            },
            signal_all: false,
        };
        let (mut here, mut there) = (
            pd.create_qp(&init).expect("made"),
            pd.create_qp(&init).expect("made"),
        );
        let start = |qp: &mut dyn headworks::verbs::QueuePair, psn| {
            BringUp::start(
                device.info(),
                qp,
                ConnectionParams::default(),
                psn,
                Vec::new(),
            )
            .expect("starts")
        };
        let (mut a, mut b) = (start(&mut *here, 1), start(&mut *there, 2));
        a.connect_both(&mut *here, &mut b, &mut *there)
            .expect("meet");
        let memory = device.alloc(&AllocRequest::of(8192)).expect("memory");
        let region = pd.register(&memory, Access::ALL).expect("registered");
        let mut round = || {
            let sges = [region.sge(0, 100), region.sge(200, 400)];
            for id in 0..DEPTH as u64 {
                let payload = match id % 3 {
                    0 => Payload::Inline(b"some bytes that are copied"),
                    _ => Payload::Gather(&sges),
                };
                let flags = if id % 4 == 3 {
                    SendFlags::SIGNALED
                } else {
                    SendFlags::NONE
                };
                let op = SendOp::Write(region.remote(4096));
                let wr = SendWr {
                    wr_id: id,
                    op,
                    payload,
                    flags,
                };
                here.post_send(&[wr]).expect("posted");
            }
            let mut seen = 0;
            while seen < DEPTH / 4 {
                let mut found = [Completion::default(); 8];
                seen += cq.poll(&mut found).expect("polls");
            }
        };
        // A queue grows when more requests wait than ever before. That happens rarely, and may happen late.
        let before = CALLS.get();
        for _ in 0..220 {
            round();
        }
        let allocated = CALLS.get() - before;
        assert!(allocated <= GROWN, "{allocated} times for 14080 requests");
    }
}

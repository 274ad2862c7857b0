//! What a ring takes of memory is what the guide says.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use headworks::connect;
use headworks::ring::{Mode, RingConfig};
use headworks::verbs::Provider;
use headworks_shm::FabricDir;
use headworks_softnic::{SoftProvider, census};

/// Counts what is allocated and not freed.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all of it is the system's allocator; what is counted beside it has no part in it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
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
static ALLOCATOR: Counting = Counting;

/// Shared memory of the soft host `host`, in bytes.
fn shared(fabric: &Path, host: &str) -> u64 {
    let fabric = FabricDir::at(fabric).expect("a fabric");
    let census = census::look(&fabric, Some(host)).expect("looks");
    census.contexts[0].segments.bytes
}

/// What one end takes by the guide: of shared memory, and of the process's own.
fn promised(slots: u64, slot: u64, completions: u64) -> (u64, u64) {
    let completions = completions.next_power_of_two();
    let receives = (2 * slots).next_power_of_two();
    let shared = slots * slot + 64 + completions * (112 - 48) + receives * 128;
    (shared, completions * 48)
}

#[test]
fn a_ring_takes_what_the_guide_says() {
    const RINGS: u64 = 4;
    // Every piece is long enough for a segment of its own, so that all of it can be seen.
    for (slots, slot) in [(4_096, 256), (8_192, 64)] {
        for mode in [Mode::Poll, Mode::Notify] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("fabric");
            let provider = SoftProvider::on(FabricDir::at(&path).expect("a fabric"));
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
            // What is there once is no ring's.
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

//! Getting and releasing extents allocates no memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use headworks_rxpool::admission::Class;
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::pool::{AppLimits, ReceivePool};
use headworks_verbs::Instant;

/// The system's allocator, with a count of each thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: by the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn extents_are_handed_out_and_released_without_allocating() {
    let mut pool = ReceivePool::new(&PoolConfig::default());
    let app = pool.add(AppLimits {
        class: Class::Normal,
        quota: u32::MAX,
    });
    let mut held = Vec::with_capacity(1000);
    assert!(pool.claim(app, 100));
    let before = ALLOCATIONS.get();
    assert!(before > 0, "allocations are counted");
    for round in 0..10_000_u32 {
        if let Ok(one) = pool.get_up_to(app, 1 + round * 7 % 64) {
            assert!(pool.arrived(app, one, Instant::ZERO));
            held.push(one);
        }
        if held.len() > round as usize % 90 {
            let one = held.swap_remove(round as usize * 31 % held.len());
            for unit in 0..one.extent.units {
                assert!(pool.release(app, one, unit, 1).is_ok());
            }
        }
    }
    assert_eq!(ALLOCATIONS.get(), before);
}

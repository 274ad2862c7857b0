//! Getting and releasing extents, and sending payloads that are copied, allocates no memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use headworks_ring::view_of_buffer;
use headworks_rxpool::admission::Class;
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::pool::{AppLimits, ReceivePool};
use headworks_rxpool::sender::{SendPayload, Sender, SenderConfig};
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::{AllocRequest, Instant, Provider};

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

#[test]
fn payloads_are_copied_without_allocating() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open_at(folder.path().join("fabric")).unwrap();
    let device = SoftProvider::on(registry).open(&"soft:h0".parse().unwrap());
    let device = device.unwrap();
    let pd = device.alloc_pd().unwrap();
    let config = SenderConfig::default();
    let mut sender = Sender::new(&*device, pd, &config, view_of_buffer).unwrap();
    let buffer = device.alloc(&AllocRequest::of(100_000)).unwrap();
    let bytes = vec![1; 100_000];
    let mut tickets = Vec::with_capacity(20);
    let mut before = 0;
    for round in 0..3000_usize {
        if round == 1000 {
            before = ALLOCATIONS.get();
        }
        let len = 1 + round * 7919 % 100_000;
        let payload = match round % 2 {
            0 => SendPayload::Bytes(&bytes[..len]),
            _ => SendPayload::Memory {
                buffer: &buffer,
                range: 0..len,
            },
        };
        let sent = sender.send(payload).unwrap();
        assert!(sent.is_copied);
        tickets.push(sent.ticket);
        if tickets.len() > 15 {
            let ticket = tickets.swap_remove(round * 31 % tickets.len());
            sender.done(ticket).unwrap();
        }
    }
    assert_eq!(ALLOCATIONS.get(), before);
}

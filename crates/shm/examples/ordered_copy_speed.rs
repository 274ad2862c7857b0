//! Compares the speed of `copy_in_order` and `memcpy`, in the cache and through memory larger than it; and that of `copy_in_order` and
//! `copy_in_any_order` from one thread to another.
//!
//! `cargo run --release -p headworks-shm --example ordered_copy_speed`

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use headworks_shm::copy_in_order;
use headworks_shm::ordered_copy::copy_in_any_order;

const ROUNDS: usize = 7;
const FOOTPRINT_BYTES: usize = 128 << 20;

type Copy = unsafe fn(*mut u8, *const u8, usize);

fn main() {
    let mut from = vec![1_u8; FOOTPRINT_BYTES + 64];
    let mut to = vec![2_u8; FOOTPRINT_BYTES + 64];
    let aligned = |memory: &mut [u8]| {
        let skip = memory.as_ptr().align_offset(64);
        memory[skip..].as_mut_ptr()
    };
    let (from, to) = (aligned(&mut from), aligned(&mut to));
    let arms: [(&str, Copy); 2] = [("memcpy", memcpy), ("copy_in_order", copied_in_order)];
    println!("GB/s{:>32}{:>34}", "same buffers", "2 x 128 MiB");
    for len in [64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20] {
        print!("{len:>8}");
        for footprint in [len, FOOTPRINT_BYTES] {
            let mut best = [0.0_f64; 2];
            for _ in 0..ROUNDS {
                for (best, (_, copy)) in best.iter_mut().zip(arms) {
                    *best = best.max(speed(copy, to, from, len, footprint));
                }
            }
            for (best, (name, _)) in best.iter().zip(arms) {
                print!("  {name} {best:6.2}");
            }
            print!("  ratio {:.2}", best[1] / best[0]);
        }
        println!();
    }
    println!("GB/s from one thread to another, through a ring of 1 MiB");
    let arms: [(&str, Copy); 2] = [
        ("copy_in_order", copied_in_order),
        ("copy_in_any_order", copied_in_any_order),
    ];
    for len in [1 << 10, 4 << 10, 16 << 10, 64 << 10] {
        print!("{len:>8}");
        for (name, copy) in arms {
            let speeds = (0..ROUNDS).map(|_| speed_between_threads(copy, len));
            print!("  {name} {:6.2}", speeds.fold(0.0, f64::max));
        }
        println!();
    }
}

/// Returns the speed, in gigabytes per second, at which one thread copies pieces of `len` bytes into a ring, and another copies
/// them out.
fn speed_between_threads(copy: Copy, len: usize) -> f64 {
    const RING: usize = 1 << 20;
    const TOTAL: usize = 1 << 30;
    let ring: Vec<AtomicU64> = (0..RING / 8).map(|_| AtomicU64::new(0)).collect();
    let (written, read) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let source = vec![1_u8; len];
            for at in (0..TOTAL).step_by(len) {
                while at + len - read.load(Ordering::Acquire) > RING {
                    std::hint::spin_loop();
                }
                let place = ring[at % RING / 8].as_ptr().cast();
                // SAFETY: the piece is within the ring, whose bytes are atomics. The reader has left it.
                unsafe { copy(place, source.as_ptr(), len) };
                written.store(at + len, Ordering::Release);
            }
        });
        let mut target = vec![0_u8; len];
        for at in (0..TOTAL).step_by(len) {
            while written.load(Ordering::Acquire) < at + len {
                std::hint::spin_loop();
            }
            let place = ring[at % RING / 8].as_ptr().cast();
            // SAFETY: the piece is within the ring, and the writer does not write it before it is left.
            unsafe { copy(target.as_mut_ptr(), place, len) };
            black_box(&target);
            read.store(at + len, Ordering::Release);
        }
    });
    TOTAL as f64 / start.elapsed().as_nanos() as f64
}

/// Returns the speed, in gigabytes per second, of consecutive copies of `len` bytes through `footprint`.
fn speed(copy: Copy, to: *mut u8, from: *const u8, len: usize, footprint: usize) -> f64 {
    let total = if footprint == len {
        64 << 20
    } else {
        footprint
    };
    let (total, mask) = (total.max(len), footprint - 1);
    let start = Instant::now();
    for at in (0..total).step_by(len) {
        let at = at & mask;
        // SAFETY: `at + len` is within the footprint, which is the size of both buffers at least.
        unsafe {
            copy(
                black_box(to.add(at)),
                black_box(from.add(at)),
                black_box(len),
            )
        };
    }
    total as f64 / start.elapsed().as_nanos() as f64
}

unsafe fn memcpy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's contract is the same.
    unsafe { from.copy_to_nonoverlapping(to, len) };
}

unsafe fn copied_in_any_order(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_in_any_order(to, from, len) };
}

unsafe fn copied_in_order(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_in_order(to, from, len) };
}

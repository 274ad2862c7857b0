//! Compares the speed of `copy_in_order` and `memcpy`, in the cache and through memory larger than it.
//!
//! `cargo run --release -p headworks-shm --example ordered_copy_speed`

use std::hint::black_box;
use std::time::Instant;

use headworks_shm::copy_in_order;

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

unsafe fn copied_in_order(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_in_order(to, from, len) };
}

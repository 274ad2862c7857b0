//! The system calls that the software RNIC stands on, bare; what the heap holds.

use std::io;

/// Writes `bytes` at `address` of process `pid`, in one system call. Says how many it wrote.
#[inline]
pub fn write_across(pid: u32, address: u64, bytes: &[u8]) -> io::Result<usize> {
    let here = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let there = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    // SAFETY: the kernel reads `bytes` through `here`, which it does not write to; what `there`
    // names is the other process's, and the kernel checks it.
    let wrote = unsafe { libc::process_vm_writev(pid as libc::pid_t, &here, 1, &there, 1, 0) };
    usize::try_from(wrote).map_err(|_| io::Error::last_os_error())
}

/// Bytes that this process has from the heap now, with the allocator's own words; `None` where the C
/// library does not say.
pub fn heap_in_use() -> Option<u64> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: it only reads the allocator's counts, under its locks.
        let info = unsafe { libc::mallinfo2() };
        Some(info.uordblks as u64 + info.hblkhd as u64)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_and_bad_addresses_are_errors() {
        let target: Vec<std::sync::atomic::AtomicU64> =
            (0..8).map(std::sync::atomic::AtomicU64::new).collect();
        let address = target.as_ptr() as u64;
        let us = std::process::id();
        match write_across(us, address + 8, &7_u64.to_ne_bytes()) {
            Ok(wrote) => {
                assert_eq!(wrote, 8);
                let load = |at: usize| target[at].load(std::sync::atomic::Ordering::Relaxed);
                assert_eq!([load(0), load(1), load(2)], [0, 7, 2]);
                assert!(write_across(us, 8, &[1; 8]).is_err());
            }
            // A sandbox may refuse the call as a whole.
            Err(why) => println!("skipped: process_vm_writev: {why}"),
        }
    }

    #[test]
    fn the_heap_grows_by_what_is_allocated() {
        let Some(before) = heap_in_use() else {
            return println!("skipped: the C library does not count");
        };
        let held: Vec<Vec<u8>> = (0..1000).map(|_| vec![1; 4000]).collect();
        let grown = heap_in_use().unwrap_or(0).saturating_sub(before);
        assert!(grown >= 3_900_000, "{grown} for {}", held.len());
        assert!(grown < 8_000_000, "{grown}");
    }
}

//! The system call under the software RNIC, called directly; and the bytes allocated on the heap.

use std::io;

/// Writes `bytes` at `address` of process `pid` with one system call. Returns the number of bytes written.
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
    // SAFETY: the kernel only reads `bytes` through `here`. `there` names memory of the other process, and
    // the kernel checks that range.
    let wrote = unsafe { libc::process_vm_writev(pid as libc::pid_t, &here, 1, &there, 1, 0) };
    usize::try_from(wrote).map_err(|_| io::Error::last_os_error())
}

/// Returns the bytes this process has allocated on the heap, including the allocator's own overhead;
/// `None` if the C library does not report it.
pub fn heap_in_use() -> Option<u64> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: `mallinfo2` only reads the allocator's counts, under the allocator's locks.
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
    fn heap_in_use_grows_by_the_allocated_bytes() {
        let Some(before) = heap_in_use() else {
            return println!("skipped: the C library does not count");
        };
        let held: Vec<Vec<u8>> = (0..1000).map(|_| vec![1; 4000]).collect();
        let grown = heap_in_use().unwrap_or(0).saturating_sub(before);
        assert!(grown >= 3_900_000, "{grown} for {}", held.len());
        assert!(grown < 8_000_000, "{grown}");
    }
}

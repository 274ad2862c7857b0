//! Copies between this process's memory and another's through the kernel. One system call takes a gather
//! list on each side.
//!
//! Nothing here checks that the pid still names the process that was attached: that would cost another
//! system call. Two facts bound the risk. The pidfd that this process holds wakes its progress thread when
//! the peer ends. And the kernel reuses a pid only after the process was reaped and all other free pids
//! were handed out. The new process would have to belong to this user, who may write to its memory anyway.

use libc::iovec;
use rustix::io::Errno;

use crate::datapath::copy::Span;
use crate::table::rows::MAX_SGE;

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From here to the other process.
    Place,
    /// From the other process to here.
    Fetch,
}

/// A range of another process's address space, which may not be mapped there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteRange {
    pub(crate) addr: u64,
    pub(crate) len: usize,
}

impl RemoteRange {
    pub(crate) const EMPTY: Self = Self { addr: 0, len: 0 };
}

/// The reason why nothing was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrossError {
    /// The other process has no such memory.
    Fault,
    /// There is no such process, or it is exiting.
    Gone,
    /// The kernel does not permit the copy, or cannot do it now.
    Refused(Errno),
}

/// Copies between `here` and `there`, at most [`MAX_SGE`] ranges each, as many bytes as the shorter list has.
/// Returns how many bytes it copied. If that is fewer, the next byte is not mapped: the next call returns
/// the error.
pub(crate) fn copy(
    direction: Direction,
    pid: u32,
    here: &[Span],
    there: &[RemoteRange],
) -> Result<usize, CrossError> {
    const NONE: iovec = iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    };
    let (mut local, mut remote) = ([NONE; MAX_SGE], [NONE; MAX_SGE]);
    for (to, from) in local.iter_mut().zip(here) {
        *to = from.io_vec();
    }
    for (to, from) in remote.iter_mut().zip(there) {
        *to = iovec {
            iov_base: from.addr as usize as *mut libc::c_void,
            iov_len: from.len,
        };
    }
    let counts = [here.len(), there.len()].map(|count| count.min(MAX_SGE) as libc::c_ulong);
    let (local, remote) = (local.as_ptr(), remote.as_ptr());
    let pid = pid as libc::pid_t;
    // SAFETY: both lists outlive the call and have as many entries as the counts say. The memory that `here`
    // names is mapped, by the contract of `Span`. The kernel checks the memory that `there` names.
    let copied = unsafe {
        match direction {
            Direction::Place => {
                libc::process_vm_writev(pid, local, counts[0], remote, counts[1], 0)
            }
            Direction::Fetch => libc::process_vm_readv(pid, local, counts[0], remote, counts[1], 0),
        }
    };
    usize::try_from(copied).map_err(|_| {
        match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::FAULT) => CrossError::Fault,
            Some(Errno::SRCH) => CrossError::Gone,
            Some(other) => CrossError::Refused(other),
            None => CrossError::Refused(Errno::NOSYS),
        }
    })
}

/// Asks the kernel whether this process may write to memory of process `pid`. Writes nothing: the kernel
/// checks permissions before addresses, and the address used here is never mapped.
pub(crate) fn probe(pid: u32) -> Result<(), CrossError> {
    // Address in the first page, which no process has mapped.
    const NOTHING: usize = 8;
    let nothing = iovec {
        iov_base: std::ptr::without_provenance_mut(NOTHING),
        iov_len: 1,
    };
    let pid = pid as libc::pid_t;
    // SAFETY: the list outlives the call, and the kernel checks the addresses in it.
    let copied = unsafe { libc::process_vm_writev(pid, &nothing, 1, &nothing, 1, 0) };
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::FAULT) => Ok(()),
        _ if copied >= 0 => Ok(()),
        Some(Errno::SRCH) => Err(CrossError::Gone),
        other => Err(CrossError::Refused(other.unwrap_or(Errno::NOSYS))),
    }
}

/// Checks that the kernel copies between the memory of processes for this one, by asking it about this process's
/// own memory. Another process may still be closed to it.
///
/// # Errors
///
/// The errors of process_vm_writev(2): a sandbox may forbid it, and a kernel may be without it.
pub fn check_support() -> std::io::Result<()> {
    match probe(std::process::id()) {
        Ok(()) | Err(CrossError::Fault) => Ok(()),
        Err(CrossError::Gone) => Err(Errno::SRCH.into()),
        Err(CrossError::Refused(errno)) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(bytes: &mut [u8], cuts: [usize; 2]) -> [Span; 2] {
        let (head, tail) = bytes.split_at_mut(cuts[0]);
        // SAFETY: the bytes outlive the spans in each test.
        [head, &mut tail[..cuts[1]]].map(|part| unsafe { Span::new(part.as_mut_ptr(), part.len()) })
    }

    #[test]
    fn our_own_memory_is_copied_across_all_cuts() {
        let mut from: Vec<u8> = (0..100).collect();
        let mut to = vec![0xff_u8; 100];
        let base = to.as_mut_ptr() as u64;
        let there = [(0, 7), (20, 60)].map(|(at, len)| RemoteRange {
            addr: base + at,
            len,
        });
        let pid = std::process::id();
        let here = spans(&mut from, [33, 34]);
        assert_eq!(copy(Direction::Place, pid, &here, &there), Ok(67));
        assert_eq!(to[..7], from[..7]);
        assert_eq!(to[7..20], [0xff; 13]);
        assert_eq!(to[20..80], from[7..67]);
        assert_eq!(to[80..], [0xff; 20]);
        let mut back = vec![0; 67];
        let here = spans(&mut back, [1, 66]);
        assert_eq!(copy(Direction::Fetch, pid, &here, &there), Ok(67));
        assert_eq!(back, from[..67]);
    }

    #[test]
    fn bad_addresses_fault_and_dead_processes_are_gone() {
        assert_eq!(probe(std::process::id()), Ok(()));
        check_support().expect("as above");
        let mut bytes = vec![0; 8];
        let here = spans(&mut bytes, [4, 4]);
        let there = [RemoteRange { addr: 8, len: 8 }];
        let us = std::process::id();
        let copied = copy(Direction::Fetch, us, &here, &there);
        assert_eq!(copied, Err(CrossError::Fault));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let copied = copy(Direction::Place, child.id(), &here, &there);
        assert_eq!(copied, Err(CrossError::Gone));
        assert_eq!(probe(child.id()), Err(CrossError::Gone));
    }
}

//! Limits of the calling process (`ulimit`). A sandbox may forbid to ask for them; then they count as absent.

/// Returns the size in bytes of the largest file that this process may write, if there is a limit.
pub fn file_size() -> Option<u64> {
    soft_limit(libc::RLIMIT_FSIZE)
}

/// Returns the bytes of address space that this process may have, if there is a limit.
pub fn address_space() -> Option<u64> {
    soft_limit(libc::RLIMIT_AS)
}

/// Returns how many descriptors this process may have open, if there is a limit.
pub fn open_files() -> Option<u64> {
    soft_limit(libc::RLIMIT_NOFILE)
}

/// Limit on one resource of the calling process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    /// Limit that the kernel enforces; `None` if there is none.
    pub soft: Option<u64>,
    /// Value up to which this process may raise `soft`; `None` if it may remove the limit.
    pub hard: Option<u64>,
}

impl ResourceLimit {
    /// No limit.
    pub const UNLIMITED: Self = Self {
        soft: None,
        hard: None,
    };
}

/// Returns the limit on open descriptors; `None` if the kernel does not tell this process.
pub fn open_files_limit() -> Option<ResourceLimit> {
    both(libc::RLIMIT_NOFILE)
}

/// Returns the limit on bytes of locked memory; `None` if the kernel does not tell this process.
pub fn locked_memory_limit() -> Option<ResourceLimit> {
    both(libc::RLIMIT_MEMLOCK)
}

/// Raises the number of descriptors that this process may have open as far as that is allowed. Returns the limit
/// before and after.
pub fn raise_open_files() -> Option<(u64, u64)> {
    let mut limit = limits(libc::RLIMIT_NOFILE)?;
    let before = limit.rlim_cur;
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the structure outlives the call.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        if set != 0 {
            return Some((before, before));
        }
    }
    Some((before, limit.rlim_cur))
}

fn soft_limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    both(resource)?.soft
}

fn both(resource: libc::__rlimit_resource_t) -> Option<ResourceLimit> {
    let limit = limits(resource)?;
    let finite = |limit| (limit != libc::RLIM_INFINITY).then_some(limit);
    Some(ResourceLimit {
        soft: finite(limit.rlim_cur),
        hard: finite(limit.rlim_max),
    })
}

fn limits(resource: libc::__rlimit_resource_t) -> Option<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call only writes the structure.
    let got = unsafe { libc::getrlimit(resource, &raw mut limit) };
    (got == 0).then_some(limit)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_limit_of_open_files_is_raised_to_what_is_allowed() {
        let (before, after) = super::raise_open_files().expect("allowed here");
        assert!(after >= before);
        assert_eq!(super::raise_open_files(), Some((after, after)));
        let now = super::open_files();
        assert!(now == Some(after) || now.is_none());
        let limit = super::open_files_limit().expect("allowed here");
        assert_eq!((limit.soft, limit.hard), (now, now));
    }
}

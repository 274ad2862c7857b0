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
    let limit = limits(resource)?.rlim_cur;
    (limit != libc::RLIM_INFINITY).then_some(limit)
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
    }
}

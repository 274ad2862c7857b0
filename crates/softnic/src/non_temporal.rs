//! Which WRITEs go past the processor's caches.

use std::fs;
use std::sync::LazyLock;

/// Bytes of the longest WRITE whose bytes are placed in address order. Longer ones may go past the caches,
/// where there is no order.
pub(crate) const IN_ORDER_MAX: u32 = 256 << 10;

/// What is assumed of a processor that does not say how large its largest cache is.
const USUAL_BYTES: usize = 32 << 20;

/// Bytes of the largest cache of the first core.
static LARGEST: LazyLock<usize> = LazyLock::new(|| {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache");
    let sizes = caches.into_iter().flatten().flatten().filter_map(|cache| {
        let size = fs::read_to_string(cache.path().join("size")).ok()?;
        bytes(size.trim())
    });
    sizes.max().unwrap_or(USUAL_BYTES)
});

/// Whether a WRITE of `len` bytes is to go past the caches into a region of `region` bytes.
///
/// Somebody who writes so much at a time into a region that no cache can hold uses it from one end to
/// the other: what is written has left the cache before its turn comes again, and reading the old bytes into
/// it first is for nothing. Into smaller regions, whose bytes the cache still has, ordinary stores are faster.
#[inline(always)]
pub(crate) fn passed_by(len: u64, region: impl FnOnce() -> usize) -> bool {
    len > IN_ORDER_MAX.into() && region() > *LARGEST
}

/// As the kernel words the size of a cache: `32768K`.
fn bytes(size: &str) -> Option<usize> {
    let (digits, unit) = match size.strip_suffix('K') {
        Some(digits) => (digits, 10),
        None => match size.strip_suffix('M') {
            Some(digits) => (digits, 20),
            None => (size, 0),
        },
    };
    let count: usize = digits.parse().ok()?;
    count
        .checked_shl(unit)
        .filter(|bytes| bytes >> unit == count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_kernel_words_them() {
        let sizes = [
            "32768K",
            "16M",
            "512",
            "",
            "K",
            "-1K",
            "99999999999999999999K",
        ];
        let read = sizes.map(bytes);
        let expected = [
            Some(32 << 20),
            Some(16 << 20),
            Some(512),
            None,
            None,
            None,
            None,
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn only_long_writes_into_what_no_cache_holds_go_past_them() {
        let long = u64::from(IN_ORDER_MAX) + 1;
        assert!(passed_by(long, || *LARGEST + 1));
        assert!(!passed_by(long, || *LARGEST));
        assert!(!passed_by(long - 1, || unreachable!(
            "short ones do not ask"
        )));
    }
}

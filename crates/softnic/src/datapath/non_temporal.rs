//! Choice of the WRITEs that use non-temporal stores, which bypass the processor's caches.

use std::fs;
use std::sync::LazyLock;

/// Maximum size in bytes of a WRITE whose bytes are always placed in address order. Longer WRITEs may use
/// non-temporal stores, which keep no order.
pub(crate) const IN_ORDER_MAX: u32 = 256 << 10;

/// Assumed size in bytes of the largest cache, if the processor does not report one.
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

/// Returns whether a WRITE of `len` bytes into a region of `region` bytes uses non-temporal stores.
///
/// A program that makes long WRITEs into a region larger than any cache passes over the region from one end
/// to the other. A line that it wrote has left the cache before it is written again, so reading the old bytes
/// into the cache first is wasted. Smaller regions are still in the cache, and ordinary stores are faster.
#[inline(always)]
pub(crate) fn passed_by(len: u64, region: impl FnOnce() -> usize) -> bool {
    len > IN_ORDER_MAX.into() && region() > *LARGEST
}

/// Parses a cache size as the kernel writes it: `32768K`.
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
    fn only_long_uncacheable_writes_bypass_the_caches() {
        let long = u64::from(IN_ORDER_MAX) + 1;
        assert!(passed_by(long, || *LARGEST + 1));
        assert!(!passed_by(long, || *LARGEST));
        assert!(!passed_by(long - 1, || unreachable!(
            "short ones do not ask"
        )));
    }
}

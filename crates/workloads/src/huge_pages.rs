//! Amount of a process's memory on huge pages: what it got, not what it asked for.

use std::sync::atomic::Ordering;

use headworks::verbs::{Access, AllocRequest, DeviceName, Pages};
use headworks_baselines::WordMemory;

use crate::error::WorkloadError;

/// Memory on huge pages, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePages {
    /// Bytes on reserved pages of 2 MiB or more.
    pub reserved_bytes: u64,
    /// Bytes on ordinary pages that the kernel merged into huge ones.
    pub merged_bytes: u64,
}

impl HugePages {
    /// Returns the huge pages of the calling process, over all its shared mappings. Zero if the kernel does
    /// not tell.
    pub fn here() -> Self {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup");
        Self::parse(&text.unwrap_or_default())
    }

    /// Parses the kernel's account of a process (proc_pid_smaps(5)).
    fn parse(text: &str) -> Self {
        let sum = |keys: [&str; 2]| -> u64 {
            let kib = text.lines().filter_map(|line| {
                let (key, value) = line.split_once(':')?;
                let number = value.trim().strip_suffix("kB")?.trim();
                keys.contains(&key).then(|| number.parse::<u64>().ok())?
            });
            kib.sum::<u64>().saturating_mul(1024)
        };
        Self {
            reserved_bytes: sum(["Shared_Hugetlb", "Private_Hugetlb"]),
            merged_bytes: sum(["ShmemPmdMapped", "FilePmdMapped"]),
        }
    }

    /// Returns the bytes on reserved and on merged huge pages.
    pub fn bytes(self) -> u64 {
        self.reserved_bytes + self.merged_bytes
    }
}

/// Allocates `buffers` buffers of `len` bytes on a device, touches all of them, and returns how many bytes
/// lie on huge pages. The memory is on `numa_node`, or by default on the device's own node. The buffers are
/// freed afterwards.
pub fn huge_bytes(
    device: &DeviceName,
    (buffers, len): (u64, u64),
    numa_node: Option<u32>,
) -> Result<u64, WorkloadError> {
    let failed = |why| WorkloadError::at("memory", why);
    let device = headworks::open(device).map_err(|why| WorkloadError::at("device", why))?;
    let pd = device.alloc_pd().map_err(failed)?;
    let request = AllocRequest {
        pages: Pages::PreferHuge,
        numa_node: numa_node.or_else(|| device.info().numa_node),
        ..AllocRequest::of(len as usize)
    };
    let (before, mut touched) = (HugePages::here().bytes(), Vec::new());
    for _ in 0..buffers {
        let buffer = device.alloc(&request).map_err(failed)?;
        let region = pd.register(&buffer, Access::LOCAL_WRITE);
        let memory = WordMemory::over(region.map_err(failed)?);
        for page in (0..request.len).step_by(4096) {
            memory.word(page).store(1, Ordering::Relaxed);
        }
        touched.push(memory);
    }
    Ok(HugePages::here().bytes().saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_page_counts_are_summed_by_kind() {
        let text = "55d-7ff ---p 00000000 00:00 0    [rollup]\n\
                    Rss:              888 kB\n\
                    AnonHugePages:   2048 kB\n\
                    ShmemPmdMapped:  4096 kB\n\
                    FilePmdMapped:      0 kB\n\
                    Shared_Hugetlb:  2048 kB\n\
                    Private_Hugetlb: 6144 kB\n";
        let pages = HugePages::parse(text);
        let [four, eight] = [4 << 20, 8 << 20];
        assert_eq!((pages.reserved_bytes, pages.merged_bytes), (eight, four));
        assert_eq!(pages.bytes(), four + eight);
        for odd in ["", "Shared_Hugetlb: x kB", "Shared_Hugetlb: 5"] {
            assert_eq!(HugePages::parse(odd).bytes(), 0, "{odd}");
        }
    }
}

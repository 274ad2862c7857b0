//! How much of a process's memory lies on huge pages: what it got, not what it asked for.

use std::sync::atomic::Ordering;

use headworks::verbs::{Access, AllocRequest, DeviceName, Pages};
use headworks_baselines::Memory;

use crate::error::WorkloadError;

/// Memory on huge pages, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePages {
    /// On pages of 2 MiB or more that the system had reserved.
    pub reserved_bytes: u64,
    /// On ordinary pages that the kernel merged.
    pub merged_bytes: u64,
}

impl HugePages {
    /// Of the calling process, of all that it has mapped to be shared. Nothing where the kernel does not
    /// say.
    pub fn here() -> Self {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup");
        Self::parse(&text.unwrap_or_default())
    }

    /// From the text that the kernel has of a process (proc_pid_smaps(5)).
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

    /// Bytes on reserved and on merged huge pages.
    pub fn bytes(self) -> u64 {
        self.reserved_bytes + self.merged_bytes
    }
}

/// Bytes on huge pages among that many buffers of a device, each of so many bytes and all touched, on `numa_node` or on
/// the device's own node. The buffers are gone afterwards.
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
        let memory = Memory::over(region.map_err(failed)?);
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
    fn what_the_kernel_says_is_added_up_by_kind() {
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

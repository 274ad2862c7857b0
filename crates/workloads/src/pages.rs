//! How much of a process's memory lies on huge pages: what it got, not what it asked for.

use serde::{Deserialize, Serialize};

/// Memory on huge pages, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

    /// Whether there is any.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

impl std::fmt::Display for HugePages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        match (self.reserved_bytes, self.merged_bytes) {
            (0, 0) => write!(f, "ordinary pages only"),
            (reserved, 0) => write!(f, "{} MiB on reserved huge pages", mib(reserved)),
            (0, merged) => write!(f, "{} MiB on merged pages", mib(merged)),
            (reserved, merged) => write!(
                f,
                "{} MiB on reserved huge pages and {} MiB on merged ones",
                mib(reserved),
                mib(merged)
            ),
        }
    }
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
        let said = pages.to_string();
        assert!(said.contains("8 MiB on reserved") && said.contains("4 MiB on merged"));
        for odd in ["", "Shared_Hugetlb: x kB", "Shared_Hugetlb: 5"] {
            assert!(!HugePages::parse(odd).any(), "{odd}");
        }
    }
}

//! Description of the machine that an experiment ran on, without anything that identifies the machine.

use serde::Serialize;

/// Name of the profile that this program was built with; published results use `dist`.
pub const PROFILE: &str = env!("HEADWORKS_PROFILE");

/// The machine's description in a summary.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Model name of the processor, or the architecture if the kernel reports none.
    pub cpu: String,
    /// Logical cores that this process may use.
    pub cores: usize,
    /// Memory in GiB.
    pub memory_gib: f64,
}

impl Machine {
    /// Describes this machine.
    pub fn here() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            cpu: cpu_model(&read("/proc/cpuinfo")),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: memory_gib(&read("/proc/meminfo")),
        }
    }
}

fn cpu_model(cpuinfo: &str) -> String {
    let named = |line: &str| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "model name").then(|| value.trim().to_owned())
    };
    let found = cpuinfo.lines().find_map(named);
    found.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn memory_gib(meminfo: &str) -> f64 {
    let kib = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|n| n.parse::<f64>().ok())
        .unwrap_or(0.0);
    (kib / 1048576.0 * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_tables() {
        assert_eq!(
            cpu_model("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n"),
            "Some CPU @ 3 GHz"
        );
        assert_eq!(cpu_model(""), std::env::consts::ARCH);
        assert_eq!(
            memory_gib("MemTotal:       16777216 kB\nMemFree: 1 kB"),
            16.0
        );
        assert_eq!(memory_gib("nonsense"), 0.0);
    }
}

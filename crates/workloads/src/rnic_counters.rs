//! Counters of RDMA NICs: what the kernel shows of a device's packets, retries and errors.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use headworks::verbs::DeviceName;

/// Folder in which the kernel shows RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// Values of counters, by name: `DEVICE port PORT FOLDER/COUNTER`.
pub type RnicCounters = BTreeMap<String, u64>;

/// Reads the counters of those of `devices` that are RDMA NICs named on this machine. Each appears once. Empty where
/// there is nothing to read, as for software and simulated RNICs.
pub fn read(devices: &[DeviceName]) -> RnicCounters {
    let mut all = RnicCounters::new();
    for device in devices.iter().filter(|device| device.kind() == "ibv") {
        let only = || match &names(Path::new(DEVICES))[..] {
            // A name without one means the only device.
            [name] => Some(name.clone()),
            _ => None,
        };
        if let Some(name) = device.name().map(str::to_owned).or_else(only) {
            read_into(&mut all, Path::new(DEVICES), &name);
        }
    }
    all
}

/// Returns what each counter has grown by since `before`. Counters that did not grow, or that somebody reset, are left
/// out.
pub fn growth(before: &RnicCounters, after: &RnicCounters) -> RnicCounters {
    let grown = after.iter().filter_map(|(name, now)| {
        let more = now.checked_sub(*before.get(name)?)?;
        (more > 0).then(|| (name.clone(), more))
    });
    grown.collect()
}

fn read_into(all: &mut RnicCounters, devices: &Path, device: &str) {
    for port in names(&devices.join(device).join("ports")) {
        for folder in ["counters", "hw_counters"] {
            let path = devices.join(device).join("ports").join(&port).join(folder);
            for name in names(&path) {
                let text = fs::read_to_string(path.join(&name)).unwrap_or_default();
                // `lifespan` is a setting: the milliseconds for which the kernel keeps values.
                if name != "lifespan"
                    && let Ok(value) = text.trim().parse()
                {
                    all.insert(format!("{device} port {port} {folder}/{name}"), value);
                }
            }
        }
    }
}

/// The names in a folder; none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_and_their_growth_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join("mlx5_0/ports/1").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("counters/port_xmit_packets", "10\n");
        write("hw_counters/duplicate_request", "3\n");
        write("hw_counters/lifespan", "10\n");
        write("hw_counters/odd", "not a number\n");
        let mut before = RnicCounters::new();
        read_into(&mut before, folder.path(), "mlx5_0");
        assert_eq!(before.len(), 2, "{before:?}");
        write("counters/port_xmit_packets", "17\n");
        let mut after = RnicCounters::new();
        read_into(&mut after, folder.path(), "mlx5_0");
        let name = "mlx5_0 port 1 counters/port_xmit_packets".to_owned();
        assert_eq!(growth(&before, &after), RnicCounters::from([(name, 7)]));
        // A counter that was reset, and one that was not there before.
        assert_eq!(growth(&after, &before), RnicCounters::new());
        assert_eq!(growth(&RnicCounters::new(), &after), RnicCounters::new());
    }

    #[test]
    fn software_and_simulated_rnics_have_no_counters() {
        let names = ["soft", "sim:cx5-100g"].map(|name| name.parse().unwrap());
        assert_eq!(read(&names), RnicCounters::new());
    }
}

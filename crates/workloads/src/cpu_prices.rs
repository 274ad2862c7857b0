//! The simulated machine that a device's name stands for, and what its processors pay for work of the program's own.

use headworks::sim::{Preset, Setting, is_simulated, provider};
use headworks::verbs::{DeviceName, Duration, OpenError};

/// What the model of a machine leaves to the program that runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPrices {
    /// What perftest does for each request beside the verbs: `cpu.bench`.
    pub bench: Duration,
    /// What handling a message takes beside copies and calls of verbs, framing, the look at the ring, a word of the
    /// message: `cpu.message`.
    pub message: Duration,
}

impl CpuPrices {
    /// On a machine like this.
    pub fn of(machine: &Preset) -> Self {
        let nanos = |nanos: f64| Duration::from_nanos(nanos.round() as u64);
        Self {
            bench: nanos(machine.bench_ns),
            message: nanos(machine.message_ns),
        }
    }
}

/// What perftest does for a request beside the verbs, in nanoseconds, on simulated machines: the constant
/// `cpu.bench`, with these settings. Elsewhere it takes what it takes, and this is 0.
pub fn perftest_ns(device: &DeviceName, set: &[Setting]) -> u64 {
    let machine = machine(device, set).and_then(Result::ok);
    machine.map_or(0, |(preset, _)| preset.bench_ns as u64)
}

/// The machine that a simulated device stands for, paced or not, with other values for some constants, and the seed of
/// chance; `None` of devices that are not simulated. Nothing else here makes a preset of a name.
///
/// # Errors
///
/// Those of opening a device of that name.
pub fn machine(device: &DeviceName, set: &[Setting]) -> Option<Result<(Preset, u64), OpenError>> {
    let with = |(mut preset, seed): (Preset, u64)| {
        for setting in set {
            preset.apply(setting);
        }
        (preset, seed)
    };
    is_simulated(device).then(|| {
        let (plain, _) = headworks::pace::split(device)?;
        provider::machine(&plain).map(with)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perftest_costs_what_the_preset_says_and_nothing_on_other_devices() {
        let cost = |device: &str, set: &[Setting]| perftest_ns(&device.parse().unwrap(), set);
        let other: Setting = "cpu.bench=7".parse().unwrap();
        assert_eq!(cost("sim:cx3-40g", &[]), 30);
        assert_eq!(cost("sim:cx5-100g,seed=3", &[]), 100);
        assert_eq!(cost("sim:cx5-100g", &[other]), 7);
        assert_eq!(cost("soft", &[]), 0);
    }

    #[test]
    fn prices_are_the_machines_constants() {
        let mut machine = Preset::named("cx5-100g").unwrap();
        let nanos = |prices: CpuPrices| [prices.bench, prices.message].map(Duration::nanos);
        assert_eq!(nanos(CpuPrices::of(&machine)), [100, 15]);
        machine.apply(&"cpu.bench=40".parse().unwrap());
        assert_eq!(nanos(CpuPrices::of(&machine)), [40, 15]);
    }
}

//! The simulated machine that a device's name stands for, and what its constants say of the program's own work.

use headworks::sim::{Preset, Setting, is_simulated, provider};
use headworks::verbs::{DeviceName, Duration, OpenError};

/// Constants of the program's own work, which the machine model does not apply by itself: processor time, and messages
/// that are processed slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuPrices {
    /// Time that perftest spends on a request outside verbs calls: the constant `cpu.bench`.
    pub bench: Duration,
    /// Time to handle a message, without copies and verbs calls: framing, checking the ring, reading a word
    /// of the message. The constant `cpu.message`.
    pub message: Duration,
    /// Messages of a storage server that stay in memory for long.
    pub stragglers: Stragglers,
}

/// Injected stragglers: messages of a storage server that stay in memory for much longer than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stragglers {
    /// Number of stragglers in a million messages: the constant `host.straggler_share`.
    pub per_million: u64,
    /// Time for which a straggler stays in memory: the constant `host.straggler_time`.
    pub stay: Duration,
}

impl Stragglers {
    /// No message is a straggler.
    pub const NONE: Self = Self {
        per_million: 0,
        stay: Duration::ZERO,
    };
}

impl CpuPrices {
    /// Returns the prices of `machine`.
    pub fn of(machine: &Preset) -> Self {
        let nanos = |nanos: f64| Duration::from_nanos(nanos.round() as u64);
        Self {
            bench: nanos(machine.bench_ns),
            message: nanos(machine.message_ns),
            stragglers: Stragglers {
                per_million: (machine.straggler_share * 1e4).round() as u64,
                stay: nanos(machine.straggler_us * 1e3),
            },
        }
    }
}

/// Nanoseconds that perftest spends on a request outside verbs calls on a simulated machine: the constant
/// `cpu.bench`, with these settings applied. 0 for other devices, where that time passes by itself.
pub fn perftest_ns(device: &DeviceName, set: &[Setting]) -> u64 {
    let machine = machine(device, set).and_then(Result::ok);
    machine.map_or(0, |(preset, _)| preset.bench_ns as u64)
}

/// Returns the machine that a simulated device stands for, with `set` applied to its constants, and the
/// random seed. `None` if the device is not simulated. Paced devices are supported. This is the only place
/// here that makes a preset of a device name.
///
/// # Errors
///
/// The device's name has an unknown preset or an illegal option.
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
    fn stragglers_come_from_the_preset_and_are_off_by_default() {
        let mut machine = Preset::named("cx6dx-2x100g").unwrap();
        assert_eq!(CpuPrices::of(&machine).stragglers.per_million, 0);
        machine.apply(&"host.straggler_share=0.5".parse().unwrap());
        machine.apply(&"host.straggler_time=3000".parse().unwrap());
        let expected = Stragglers {
            per_million: 5_000,
            stay: Duration::from_millis(3),
        };
        assert_eq!(CpuPrices::of(&machine).stragglers, expected);
    }

    #[test]
    fn perftest_costs_come_from_the_preset_or_are_zero() {
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

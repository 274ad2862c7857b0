//! Simulated machines: what a device's name and settings stand for, and a world of them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headworks::sim::{Figures, Preset, Setting, SimWorld, Tracer, is_simulated, provider};
use headworks::verbs::{DeviceName, OpenError};
use headworks_stage::{Cast, World};

use crate::transports::cpu_cost::Prices;
use crate::world::{Place, register_simulated};

/// Two hosts of a preset.
#[derive(Clone)]
pub struct Simulated {
    preset: Preset,
    device: DeviceName,
    world: Arc<dyn World>,
    figures: Arc<Figures>,
}

impl Simulated {
    /// Of the preset of that name; `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        let device: DeviceName = format!("sim:{name}").parse().ok()?;
        Self::on(&device, &[], None)?.ok()
    }

    /// What `device` stands for, with other values for some constants, where what happens is traced if there is a
    /// tracer. `None` if it is not simulated.
    ///
    /// # Errors
    ///
    /// Those of opening a device of that name.
    pub fn on(
        device: &DeviceName,
        set: &[Setting],
        tracer: Option<Tracer>,
    ) -> Option<Result<Self, OpenError>> {
        let on = |(preset, seed): (Preset, u64)| {
            let mut cast = Cast::new();
            register_simulated(&mut cast, Prices::of(&preset));
            let mut world = SimWorld::new(cast, preset.clone(), seed);
            if let Some(tracer) = tracer {
                world = world.traced(tracer);
            }
            Self {
                figures: world.figures(),
                world: Arc::new(world),
                preset,
                device: device.clone(),
            }
        };
        Some(machine(device, set)?.map(on))
    }

    /// Of every preset.
    pub fn all() -> Vec<Self> {
        let all = Preset::NAMES.into_iter();
        all.filter_map(Self::named).collect()
    }

    /// The constants.
    pub fn preset(&self) -> &Preset {
        &self.preset
    }

    /// The device that both hosts have.
    pub fn device(&self) -> &DeviceName {
        &self.device
    }

    /// What the latest play counted.
    pub fn figures(&self) -> &Arc<Figures> {
        &self.figures
    }

    /// Where plays of the experiments' actors run on it.
    pub fn world(&self) -> &Arc<dyn World> {
        &self.world
    }

    /// Where pairs of parts run on it; `stop` ends that.
    pub fn place<'a>(&self, stop: &'a AtomicBool) -> Place<'a> {
        Place {
            world: self.world.clone(),
            devices: [self.device.clone(), self.device.clone()],
            cpus: [0, 0],
            stop,
            figures: Some(self.figures.clone()),
            counted: Arc::default(),
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
        let all = Simulated::all();
        assert_eq!(all.len(), Preset::NAMES.len());
        assert!(all.iter().all(|each| is_simulated(each.device())));
    }
}

//! Simulated machines: what a device's name and settings stand for, and a world of them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headworks::sim::{Preset, Setting, SimWorld, Tracer, UsageMonitor};
use headworks::verbs::{DeviceName, OpenError};
use headworks_runtime::{ActorRegistry, World};

use crate::cpu_prices::CpuPrices;
pub use crate::cpu_prices::{machine, perftest_ns};
use crate::task::register;
use crate::testbed::Testbed;

/// Two hosts of a preset.
#[derive(Clone)]
pub struct SimulatedMachine {
    preset: Preset,
    device: DeviceName,
    world: Arc<dyn World>,
    usage_monitor: Arc<UsageMonitor>,
}

impl SimulatedMachine {
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
            let mut actors = ActorRegistry::new();
            register(&mut actors, Some(CpuPrices::of(&preset)));
            let mut world = SimWorld::new(actors, preset.clone(), seed);
            if let Some(tracer) = tracer {
                world = world.traced(tracer);
            }
            Self {
                usage_monitor: world.usage_monitor(),
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
    pub fn usage_monitor(&self) -> &Arc<UsageMonitor> {
        &self.usage_monitor
    }

    /// Where plays of the experiments' actors run on it.
    pub fn world(&self) -> &Arc<dyn World> {
        &self.world
    }

    /// Where pairs of parts run on it; `stop` ends that.
    pub fn testbed<'a>(&self, stop: &'a AtomicBool) -> Testbed<'a> {
        Testbed {
            world: self.world.clone(),
            devices: [self.device.clone(), self.device.clone()],
            cpus: [0, 0],
            stop,
            usage_monitor: Some(self.usage_monitor.clone()),
            measured_usage: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use headworks::sim::is_simulated;

    use super::*;

    #[test]
    fn every_preset_is_a_simulated_machine() {
        let all = SimulatedMachine::all();
        assert_eq!(all.len(), Preset::NAMES.len());
        assert!(all.iter().all(|each| is_simulated(each.device())));
    }
}

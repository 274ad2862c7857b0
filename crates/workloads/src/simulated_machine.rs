//! Simulated machines: the machine that a device's name and settings stand for, and a world of two such
//! hosts.

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
    /// Makes the machine of the preset `name`; `None` if there is no such preset.
    pub fn named(name: &str) -> Option<Self> {
        let device: DeviceName = format!("sim:{name}").parse().ok()?;
        Self::on(&device, &[], None)?.ok()
    }

    /// Makes the machine that `device` stands for, with `set` applied to its constants. A tracer, if there is
    /// one, traces what happens. `None` if the device is not simulated.
    ///
    /// # Errors
    ///
    /// The device's name has an unknown preset or an illegal option.
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

    /// Makes a machine of every preset.
    pub fn all() -> Vec<Self> {
        let all = Preset::NAMES.into_iter();
        all.filter_map(Self::named).collect()
    }

    /// Returns the constants.
    pub fn preset(&self) -> &Preset {
        &self.preset
    }

    /// Returns the device that both hosts have.
    pub fn device(&self) -> &DeviceName {
        &self.device
    }

    /// Returns the monitor of the latest scenario's usage.
    pub fn usage_monitor(&self) -> &Arc<UsageMonitor> {
        &self.usage_monitor
    }

    /// Returns the world that runs scenarios of workload actors on this machine.
    pub fn world(&self) -> &Arc<dyn World> {
        &self.world
    }

    /// Returns a testbed that runs pairs of actors on this machine. Setting `stop` ends a run.
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

//! How an experiment presents itself, and how experiments are run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use headworks::sim::{Preset, Setting, UsageMonitor, is_simulated};
use headworks::verbs::{DeviceName, OpenError};
use serde::Serialize;

use crate::simulated_machine;

/// The publication that a figure is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Paper {
    /// Its title.
    pub title: &'static str,
    /// When it was published.
    pub year: u16,
    /// The figure or table, as the paper numbers it.
    pub figure: &'static str,
}

/// How an experiment presents itself, and what it runs on.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// What it is called on the command line and in the results directory.
    pub name: &'static str,
    /// One line on it.
    pub line: &'static str,
    /// What is measured, in a sentence or two.
    pub measures: &'static str,
    /// The publication it repeats a figure of.
    pub paper: Option<Paper>,
    /// The devices on which it means something.
    pub runs_on: RunsOn,
    /// Whether it paces devices itself, and is given plain ones.
    pub paces: bool,
    /// Whether it replays the capture of [`Options::trace`] if there is one.
    pub replays: bool,
}

impl About {
    /// An experiment of any device that repeats no figure, does not pace and replays nothing.
    pub const fn new(name: &'static str, line: &'static str, measures: &'static str) -> Self {
        Self {
            name,
            line,
            measures,
            paper: None,
            runs_on: RunsOn::Any,
            paces: false,
            replays: false,
        }
    }
}

/// The devices on which an experiment means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunsOn {
    /// Any; the software RNIC unless another is named.
    Any,
    /// Devices of this kind, one of which must be named.
    Kind(&'static str),
    /// Simulated devices, one of which must be named.
    Simulated,
    /// Devices of this machine, for the reason given as the end of a sentence.
    Real(&'static str),
}

impl RunsOn {
    /// The kind that a device must be of.
    pub fn kind(self) -> Option<&'static str> {
        match self {
            Self::Kind(kind) => Some(kind),
            Self::Simulated => Some(headworks::sim::KIND),
            Self::Any | Self::Real(_) => None,
        }
    }
}

/// How to run experiments.
#[derive(Clone, Debug)]
pub struct Options {
    /// The device, of the sending host where there are two.
    pub device: DeviceName,
    /// Whether it was named; one that was not is the default, and an experiment may take others then.
    pub is_named: bool,
    /// The other host's device. Unset: the same, on the soft fabric with another host name.
    pub peer_device: Option<DeviceName>,
    /// About a minute in total: every arm, less time per point.
    pub quick: bool,
    /// A capture of packets, for experiments that replay one.
    pub trace: Option<PathBuf>,
    /// Other values for constants of the simulated machines, where the device is one.
    pub set: Vec<Setting>,
    /// What plays count in the world of virtual time, where the experiments run in one.
    pub usage_monitor: Option<Arc<UsageMonitor>>,
    /// Where the results go; each experiment has a directory of its name below it.
    pub out: PathBuf,
}

impl Options {
    /// On `device`, in full, into `results`.
    pub fn on(device: DeviceName) -> Self {
        Self {
            device,
            is_named: true,
            peer_device: None,
            quick: false,
            trace: None,
            set: Vec::new(),
            usage_monitor: None,
            out: PathBuf::from("results"),
        }
    }

    /// Other values for constants of the simulated machines, by key: of what was given twice the last.
    pub fn settings(&self) -> impl Iterator<Item = &Setting> {
        let by_key = self
            .set
            .iter()
            .map(|setting| (setting.constant().key, setting));
        by_key.collect::<BTreeMap<_, _>>().into_values()
    }

    /// The machine that the device simulates, with its settings, and the seed; `None` if it simulates none.
    pub fn machine(&self) -> Option<Result<(Preset, u64), OpenError>> {
        simulated_machine::machine(&self.device, &self.set)
    }

    /// The other host's device: as given, or for a soft device another host of the same fabric, and for a simulated
    /// one another of the same network.
    pub fn peer(&self) -> DeviceName {
        if let Some(peer) = &self.peer_device {
            return peer.clone();
        }
        let device = &self.device;
        let host = device.option("host").flatten();
        let host = host.filter(|_| is_simulated(device));
        let other = match host {
            Some("receiver") => "sender",
            _ => "receiver",
        };
        let mut text = match (device.kind(), device.name()) {
            ("soft", Some("h2")) => "soft:h1".to_owned(),
            ("soft", _) => "soft:h2".to_owned(),
            _ if host.is_none() => return device.clone(),
            (kind, Some(name)) => format!("{kind}:{name},host={other}"),
            (kind, None) => format!("{kind},host={other}"),
        };
        for (key, value) in device.options() {
            match value {
                _ if host.is_some() && key == "host" => {}
                Some(value) => text += &format!(",{key}={value}"),
                None => text += &format!(",{key}"),
            }
        }
        text.parse().unwrap_or_else(|_| device.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_is_another_host_of_the_fabric() {
        let peer = |name: &str| Options::on(name.parse().unwrap()).peer().to_string();
        assert_eq!(peer("soft"), "soft:h2");
        assert_eq!(peer("soft:h2,hostile,seed=7"), "soft:h1,hostile,seed=7");
        assert_eq!(peer("ibv:rxe0"), "ibv:rxe0");
        assert_eq!(peer("sim:cx5-100g,seed=3"), "sim:cx5-100g,seed=3");
        let other = "sim:cx5-100g,host=receiver,seed=3";
        assert_eq!(peer("sim:cx5-100g,host=a,seed=3"), other);
        assert_eq!(peer("sim,host=receiver"), "sim,host=sender");
    }
}

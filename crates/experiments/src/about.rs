//! The description of an experiment, and the options of a run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use headworks::sim::{Preset, Setting, UsageMonitor, is_simulated};
use headworks::verbs::{DeviceName, OpenError};
use serde::Serialize;

use crate::simulated_machine;

/// The publication whose figure an experiment reproduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Paper {
    /// Title of the publication.
    pub title: &'static str,
    /// Year of publication.
    pub year: u16,
    /// The figure or table, as the paper numbers it.
    pub figure: &'static str,
}

/// Description of an experiment: names, texts, and the devices that it runs on.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Name on the command line and in the results directory.
    pub name: &'static str,
    /// Summary in one line.
    pub line: &'static str,
    /// Description of what is measured, in one or two sentences.
    pub measures: &'static str,
    /// The publication whose figure the experiment reproduces.
    pub paper: Option<Paper>,
    /// The devices on which the experiment is meaningful.
    pub runs_on: RunsOn,
    /// Whether the experiment paces devices itself; it then takes only devices without pacing options.
    pub paces: bool,
    /// Whether the experiment replays the capture of [`Options::trace`], if one is given.
    pub replays: bool,
}

impl About {
    /// Describes an experiment that runs on any device, reproduces no figure, does not pace and replays
    /// nothing.
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

/// The devices on which an experiment is meaningful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunsOn {
    /// Any device; the software RNIC unless another one is named.
    Any,
    /// Devices of this kind only; one must be named.
    Kind(&'static str),
    /// Simulated devices only; one must be named.
    Simulated,
    /// Devices that are not simulated. The text is the reason, as the end of a sentence.
    Real(&'static str),
}

impl RunsOn {
    /// Returns the kind that a device must have, if there is only one.
    pub fn kind(self) -> Option<&'static str> {
        match self {
            Self::Kind(kind) => Some(kind),
            Self::Simulated => Some(headworks::sim::KIND),
            Self::Any | Self::Real(_) => None,
        }
    }
}

/// Options of a run of experiments.
#[derive(Clone, Debug)]
pub struct Options {
    /// The device; with two hosts, the sending host's.
    pub device: DeviceName,
    /// Whether the user named the device. If not, it is the default, and an experiment may use other devices.
    pub is_named: bool,
    /// The other host's device. If unset, [`Options::peer`] derives it from `device`.
    pub peer_device: Option<DeviceName>,
    /// Runs for about a minute in total: every arm, with less time per point.
    pub quick: bool,
    /// Packet capture for experiments that replay one.
    pub trace: Option<PathBuf>,
    /// Settings that override constants of the simulated machines, if the device is simulated.
    pub set: Vec<Setting>,
    /// Monitor of the simulated machines' usage, if the experiments run in virtual time.
    pub usage_monitor: Option<Arc<UsageMonitor>>,
    /// Directory of the results; each experiment has a subdirectory of its name.
    pub out: PathBuf,
}

impl Options {
    /// Options of a full run on `device`, with results in `results`.
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

    /// Returns the settings of the simulated machines, in the order of their keys. Of several settings of one
    /// key, only the last counts.
    pub fn settings(&self) -> impl Iterator<Item = &Setting> {
        let by_key = self
            .set
            .iter()
            .map(|setting| (setting.constant().key, setting));
        by_key.collect::<BTreeMap<_, _>>().into_values()
    }

    /// Returns whether the user set the constant called `key`.
    pub(crate) fn is_set(&self, key: &str) -> bool {
        self.set.iter().any(|set| set.constant().key == key)
    }

    /// Returns the machine that the device simulates, with its settings, and the seed; `None` if it simulates
    /// none.
    pub fn machine(&self) -> Option<Result<(Preset, u64), OpenError>> {
        simulated_machine::machine(&self.device, &self.set)
    }

    /// Returns the name of the preset that the device simulates; `None` if it simulates none.
    pub fn preset(&self) -> Option<&'static str> {
        let machine = self.machine().and_then(Result::ok);
        machine.map(|(preset, _)| preset.name)
    }

    /// Returns the other host's device: the given one if there is one; for a soft device, another host of the
    /// same fabric; for a simulated device that names its host, another host of the same network; otherwise
    /// the same name.
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

//! What an experiment is, and the list of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use headworks::sim::{Figures, Preset, Setting, is_simulated};
use headworks::verbs::{DeviceName, OpenError};
use serde::Serialize;

use crate::bench::Bench;
use crate::cases;
use crate::outcome::Outcome;
use crate::runner::RunError;
use crate::simulated;

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

/// How an experiment presents itself.
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
    /// Every key of `ratios`. One that is neither measured nor skipped is a bug.
    pub keys: &'static [&'static str],
    /// Values that the paper's text states, by key.
    pub paper_values: &'static [(&'static str, f64)],
    /// Whether it replays the capture of [`Options::trace`] if there is one.
    pub replays: bool,
}

/// One experiment. It measures through the [`Bench`] it is handed and writes nothing itself.
pub trait Experiment: Sync {
    /// How it presents itself.
    fn about(&self) -> &'static About;

    /// The kind of device that it is about, which must be named then; `None` where any will do, and the
    /// software one does.
    fn kind(&self) -> Option<&'static str> {
        None
    }

    /// Why it does not run on simulated devices, as the end of a sentence; `None` where it does. What it measures has
    /// to go by virtual time there, and each step of its actors to end.
    fn not_simulated(&self) -> Option<&'static str> {
        None
    }

    /// Whether it measures what pacing is worth: it paces devices itself, and is given plain ones.
    fn paces(&self) -> bool {
        false
    }

    /// Measures everything. What could not be measured goes to [`Outcome::skip`]; an error is for
    /// an interrupt or for what makes the whole experiment pointless.
    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError>;
}

/// Every experiment, in the order in which they are listed and run.
pub fn registry() -> &'static [&'static dyn Experiment] {
    cases::ALL
}

/// The experiment called `name`.
pub fn find(name: &str) -> Option<&'static dyn Experiment> {
    registry().iter().copied().find(|e| e.about().name == name)
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
    pub figures: Option<Arc<Figures>>,
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
            figures: None,
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
        simulated::machine(&self.device, &self.set)
    }

    /// Both hosts of a simulated network are of one preset and follow one seed.
    pub(crate) fn check_peer(&self) -> Result<(), RunError> {
        let Some(peer) = &self.peer_device else {
            return Ok(());
        };
        let stands_for = |device| match simulated::machine(device, &[]) {
            Some(Ok((preset, seed))) => Ok(Some((preset.name, seed))),
            None => Ok(None),
            // Whoever opens it says what is wrong with it.
            Some(Err(_)) => Err(()),
        };
        match (stands_for(&self.device), stands_for(peer)) {
            (Ok(ours), Ok(theirs)) if ours != theirs => Err(RunError::OtherMachine {
                device: self.device.to_string(),
                peer: peer.to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// The other host's device: as given, or for a soft device another host of the same fabric, and for a simulated
    /// one another of the same network.
    pub fn peer(&self) -> DeviceName {
        if let Some(peer) = &self.peer_device {
            return peer.clone();
        }
        let device = &self.device;
        let simulated_host = device.option("host").flatten();
        let simulated_host = simulated_host.filter(|_| is_simulated(device));
        let (mut text, replaced) = match (device.kind(), simulated_host) {
            ("soft", _) if device.name() == Some("h2") => ("soft:h1".to_owned(), None),
            ("soft", _) => ("soft:h2".to_owned(), None),
            (kind, Some(host)) => {
                let other = if host == "receiver" {
                    "sender"
                } else {
                    "receiver"
                };
                let name = device.name().map(|name| format!(":{name}"));
                let name = name.unwrap_or_default();
                (format!("{kind}{name},host={other}"), Some("host"))
            }
            _ => return device.clone(),
        };
        for (key, value) in device.options().filter(|(key, _)| Some(*key) != replaced) {
            text.push(',');
            text.push_str(key);
            if let Some(value) = value {
                text.push('=');
                text.push_str(value);
            }
        }
        text.parse().unwrap_or_else(|_| self.device.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_keys_are_declared_once() {
        let names: BTreeSet<_> = registry().iter().map(|e| e.about().name).collect();
        assert_eq!(names.len(), registry().len());
        for experiment in registry() {
            let about = experiment.about();
            let keys: BTreeSet<_> = about.keys.iter().collect();
            assert_eq!(keys.len(), about.keys.len(), "{}", about.name);
            assert!(about.paper.is_some() || about.paper_values.is_empty());
            for (key, _) in about.paper_values {
                assert!(keys.contains(key), "{}: {key}", about.name);
            }
            assert!(find(about.name).is_some());
        }
    }

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

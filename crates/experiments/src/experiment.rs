//! What an experiment is, and the list of them.

use std::path::PathBuf;

use headworks::verbs::DeviceName;
use serde::Serialize;

use crate::bench::Bench;
use crate::cases;
use crate::outcome::Outcome;
use crate::runner::RunError;

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
    /// The other host's device. Unset: the same, on the soft fabric with another host name.
    pub peer_device: Option<DeviceName>,
    /// About a minute in total: every arm, less time per point.
    pub quick: bool,
    /// A capture of packets, for experiments that replay one.
    pub trace: Option<PathBuf>,
    /// Where the results go; each experiment has a directory of its name below it.
    pub out: PathBuf,
}

impl Options {
    /// On `device`, in full, into `results`.
    pub fn on(device: DeviceName) -> Self {
        Self {
            device,
            peer_device: None,
            quick: false,
            trace: None,
            out: PathBuf::from("results"),
        }
    }

    /// The other host's device: as given, or for a soft device another host of the same fabric.
    pub fn peer(&self) -> DeviceName {
        if let Some(peer) = &self.peer_device {
            return peer.clone();
        }
        if self.device.kind() != "soft" {
            return self.device.clone();
        }
        let other = if self.device.name() == Some("h2") {
            "h1"
        } else {
            "h2"
        };
        let mut text = format!("soft:{other}");
        for (key, value) in self.device.options() {
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
    }
}

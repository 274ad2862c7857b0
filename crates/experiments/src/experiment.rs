//! What an experiment is, and the list of them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use headworks::sim::{Figures, Preset, Setting, is_simulated};
use headworks::verbs::{DeviceName, OpenError};
use serde::Serialize;

use crate::bench::Bench;
use crate::cases;
use crate::claim::{Claim, Stated};
use crate::outcome::Outcome;
use crate::runner::RunError;
use crate::simulated;
use crate::table::{Measured, Table};

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

    /// Why it does not run on simulated devices.
    pub fn not_simulated(self) -> Option<&'static str> {
        match self {
            Self::Real(why) => Some(why),
            _ => None,
        }
    }
}

/// One experiment. It measures through the [`Bench`] it is handed and writes nothing itself.
pub trait Experiment: Sync {
    /// How it presents itself.
    fn about(&self) -> &About;

    /// Every metric of its summary, with what the paper states of it.
    fn metrics(&self) -> Vec<(String, Option<Stated>)>;

    /// The files of its figures, where they do not depend on the device.
    fn figures(&self) -> Vec<String>;

    /// Measures everything. What could not be measured goes to [`Outcome::skip`]; an error is for
    /// an interrupt or for what makes the whole experiment pointless.
    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError>;
}

/// An experiment that is declared: a table, and what measures its points.
pub struct Case<A: 'static> {
    /// How it presents itself.
    pub about: About,
    /// What it compares and reports.
    pub table: fn() -> Table<A>,
    /// Measures the points. It may add to the table what depends on the device, and record in the outcome what is not
    /// computed from points.
    pub measure: Measure<A>,
}

/// Measures the points of a table.
pub type Measure<A> =
    fn(&mut Bench<'_>, &mut Table<A>, &mut Outcome) -> Result<Measured<A>, RunError>;

impl<A: Copy + PartialEq + fmt::Display> Experiment for Case<A> {
    fn about(&self) -> &About {
        &self.about
    }

    fn metrics(&self) -> Vec<(String, Option<Stated>)> {
        (self.table)().keys()
    }

    fn figures(&self) -> Vec<String> {
        (self.table)().files()
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let (mut table, mut outcome) = ((self.table)(), bench.outcome());
        let measured = (self.measure)(bench, &mut table, &mut outcome)?;
        table.render(&measured, bench.place.is_simulated(), &mut outcome);
        Ok(outcome)
    }
}

/// An experiment that makes its outcome itself, where a table of points does not hold it.
#[derive(Debug)]
pub struct Programmed {
    /// How it presents itself.
    pub about: About,
    /// The keys of its metrics.
    pub keys: &'static [&'static str],
    /// What the paper states: metric, value, section.
    pub stated: &'static [(&'static str, Claim, &'static str)],
    /// The files of its figures.
    pub figures: &'static [&'static str],
    /// Measures everything.
    pub run: fn(&mut Bench<'_>) -> Result<Outcome, RunError>,
}

impl Experiment for Programmed {
    fn about(&self) -> &About {
        &self.about
    }

    fn metrics(&self) -> Vec<(String, Option<Stated>)> {
        let stated = |key: &str| {
            let found = self.stated.iter().find(|(of, ..)| *of == key);
            found.map(|(_, claim, section)| Stated {
                claim: *claim,
                section,
            })
        };
        let keys = self.keys.iter();
        keys.map(|key| ((*key).to_owned(), stated(key))).collect()
    }

    fn figures(&self) -> Vec<String> {
        self.figures.iter().map(|file| (*file).to_owned()).collect()
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        (self.run)(bench)
    }
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
    fn names_are_unique_and_metrics_are_declared_once() {
        let names: BTreeSet<_> = registry().iter().map(|e| e.about().name).collect();
        assert_eq!(names.len(), registry().len());
        for experiment in registry() {
            let (about, metrics) = (experiment.about(), experiment.metrics());
            let keys: BTreeSet<_> = metrics.iter().map(|(key, _)| key).collect();
            assert_eq!(keys.len(), metrics.len(), "{}", about.name);
            let states = metrics.iter().any(|(_, stated)| stated.is_some());
            assert!(about.paper.is_some() || !states, "{}", about.name);
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

//! The results of one run of an experiment, before they are written.

use std::collections::{BTreeMap, BTreeSet};

use headworks::sim::is_simulated;
use headworks::verbs::DeviceName;

use crate::about::Options;
use crate::format::svg::Figure;
use crate::stats::Spread;

pub use crate::format::grid::Grid;
pub use headworks_workloads::transports::ArmNote;

/// The results of one run of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Devices that the experiment ran on; empty if it was the device of the options.
    pub devices: Vec<DeviceName>,
    /// All measured points, for `points.csv`.
    pub points: Grid,
    /// Charts; each becomes one SVG file.
    pub figures: Vec<Figure>,
    /// Tables for the report.
    pub grids: Vec<Grid>,
    /// The compared arms, and how each waits.
    pub arms: Vec<ArmNote>,
    /// External programs and their versions.
    pub versions: Vec<(String, String)>,
    /// Assignment of actors to processors, in words.
    pub pinning: String,
    /// Number of times that every arm was measured.
    pub repeats: usize,
    /// Remarks for the report.
    pub notes: Vec<String>,
    ratios: BTreeMap<String, Spread>,
    skipped: BTreeMap<String, String>,
}

/// Reason for a key whose points this run does not measure, although a run on another device or a full run
/// does. The report only counts such keys.
pub const ELSEWHERE: &str = "not part of this run";

impl Outcome {
    /// Returns the names of the devices that the experiment ran on, and whether all of them are simulated.
    pub fn ran_on(&self, options: &Options) -> (String, bool) {
        let devices = match &*self.devices {
            [] => std::slice::from_ref(&options.device),
            devices => devices,
        };
        let names: Vec<_> = devices.iter().map(ToString::to_string).collect();
        let simulated = devices.iter().all(is_simulated);
        (names.join(", "), simulated)
    }

    /// Adds "(simulated)" to the title of every chart if the devices are simulated. A chart may be seen
    /// without its report.
    pub(crate) fn label_simulated(&mut self, options: &Options) {
        let (_, simulated) = self.ran_on(options);
        for figure in self.figures.iter_mut().filter(|_| simulated) {
            if !figure.title.contains("simulated") {
                figure.title.push_str(" (simulated)");
            }
        }
    }

    /// Records the value of the metric `key`.
    pub fn measured(&mut self, key: impl Into<String>, value: Spread) {
        let key = key.into();
        self.skipped.remove(&key);
        self.ratios.insert(key, value);
    }

    /// Records why the metric `key` has no value. A value that was recorded before stays.
    pub fn skip(&mut self, key: impl Into<String>, why: impl Into<String>) {
        let key = key.into();
        if !self.ratios.contains_key(&key) {
            self.skipped.entry(key).or_insert_with(|| why.into());
        }
    }

    /// Records `value`, or `why` if there is no value.
    pub fn measured_or(&mut self, key: &str, value: Option<Spread>, why: impl Into<String>) {
        match value {
            Some(value) => self.measured(key, value),
            None => self.skip(key, why),
        }
    }

    /// Skips every key of `declared` that is neither measured nor skipped. Adds a note about keys that are
    /// recorded but not declared, which is a bug of the experiment; their values stay.
    pub fn complete<'k>(&mut self, declared: impl Iterator<Item = &'k str>) {
        let declared: BTreeSet<&str> = declared.collect();
        for key in &declared {
            self.skip(*key, "not measured");
        }
        let keys = self.ratios.keys().chain(self.skipped.keys());
        let keys = keys.map(String::as_str);
        let others: Vec<_> = keys.filter(|key| !declared.contains(key)).collect();
        if !others.is_empty() {
            let others = others.join(", ");
            let note = format!("A bug of this experiment: it does not declare the keys {others}.");
            self.notes.push(note);
        }
    }

    /// Returns the measured values by key.
    pub fn ratios(&self) -> &BTreeMap<String, Spread> {
        &self.ratios
    }

    /// Returns the reasons of the keys without a value.
    pub fn skipped(&self) -> &BTreeMap<String, String> {
        &self.skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_declared_key_is_reported_and_undeclared_ones_noted() {
        let mut outcome = Outcome::default();
        outcome.measured("a", Spread::single(1.0));
        outcome.skip("a", "late");
        outcome.skip("b", "no such tool");
        outcome.complete(["a", "b", "c"].into_iter());
        assert_eq!(outcome.ratios().keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(outcome.skipped()["b"], "no such tool");
        assert_eq!(outcome.skipped()["c"], "not measured");
        assert!(outcome.notes.is_empty());
        outcome.measured("x", Spread::single(1.0));
        outcome.skip("y", "late");
        outcome.complete(["a", "b", "c"].into_iter());
        assert!(outcome.notes[0].contains("x, y"), "{:?}", outcome.notes);
        assert_eq!(outcome.ratios().len(), 2);
    }

    #[test]
    fn only_figures_of_simulated_devices_are_titled_simulated() {
        let titles = |device: &str, devices: &[&str]| {
            let figures = ["rates", "misses (simulated)"].map(|title| Figure {
                title: title.to_owned(),
                ..Figure::default()
            });
            let mut outcome = Outcome {
                devices: devices.iter().map(|name| name.parse().unwrap()).collect(),
                figures: figures.into(),
                ..Outcome::default()
            };
            outcome.label_simulated(&Options::on(device.parse().unwrap()));
            let titles = outcome.figures.into_iter().map(|figure| figure.title);
            titles.collect::<Vec<_>>()
        };
        let said = ["rates (simulated)", "misses (simulated)"];
        assert_eq!(titles("sim:cx5-100g", &[]), said);
        assert_eq!(titles("soft", &["sim:cx3-40g", "sim:cx5-100g"]), said);
        assert_eq!(titles("soft", &[])[0], "rates");
    }
}

//! `summary.json`: what programs read.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::experiment::{About, Options, Paper};
use crate::machine::Machine;
use crate::outcome::Outcome;

/// The summary, field by field.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    experiment: &'static str,
    paper: Option<Paper>,
    device: String,
    simulated: bool,
    machine: Machine,
    version: &'static str,
    repeats: usize,
    ratios: BTreeMap<String, f64>,
    paper_values: BTreeMap<&'static str, f64>,
    skipped: BTreeMap<String, String>,
}

impl Summary {
    /// The summary of `outcome`.
    pub fn new(about: &About, options: &Options, machine: Machine, outcome: &Outcome) -> Self {
        Self {
            experiment: about.name,
            paper: about.paper,
            device: options.device.to_string(),
            simulated: options.device.kind() == "sim",
            machine,
            version: env!("CARGO_PKG_VERSION"),
            repeats: outcome.repeats,
            ratios: outcome
                .ratios()
                .iter()
                .map(|(k, v)| (k.clone(), v.median))
                .collect(),
            paper_values: about.paper_values.iter().copied().collect(),
            skipped: outcome.skipped().clone(),
        }
    }

    /// As JSON, with a newline at the end.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("plain data has a JSON form");
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Spread;

    #[test]
    fn has_exactly_the_documented_shape() {
        let about = About {
            name: "x",
            line: "",
            measures: "",
            paper: Some(Paper {
                title: "T",
                year: 2022,
                figure: "Fig. 3",
            }),
            keys: &["a", "b"],
            paper_values: &[("a", 9.0)],
            replays: false,
        };
        let mut outcome = Outcome::with_repeats(3);
        outcome.measured("a", Spread::single(2.5));
        outcome.skip("b", "why");
        let machine = Machine {
            cpu: "C".into(),
            cores: 2,
            memory_gib: 4.0,
        };
        let summary = |device: &str| {
            let options = Options::on(device.parse().unwrap());
            let text = Summary::new(&about, &options, machine.clone(), &outcome).to_json();
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        };
        let expected = serde_json::json!({
            "experiment": "x",
            "paper": {"title": "T", "year": 2022, "figure": "Fig. 3"},
            "device": "sim:cx5,seed=1", "simulated": true,
            "machine": {"cpu": "C", "cores": 2, "memory_gib": 4.0},
            "version": env!("CARGO_PKG_VERSION"), "repeats": 3,
            "ratios": {"a": 2.5}, "paper_values": {"a": 9.0}, "skipped": {"b": "why"},
        });
        assert_eq!(summary("sim:cx5,seed=1"), expected);
        assert_eq!(summary("soft")["simulated"], false);
    }
}

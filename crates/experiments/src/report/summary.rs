//! `summary.json`: what programs read.

use std::collections::BTreeMap;

use headworks::sim::Setting;
use serde::Serialize;
use serde_json::Number;

use crate::about::{About, Options, Paper};
use crate::chance;
use crate::machine::{Machine, PROFILE};
use crate::outcome::Outcome;
use crate::report::StatedValues;

/// The summary, field by field.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    experiment: &'static str,
    paper: Option<Paper>,
    device: String,
    /// Whether the device is a simulated one.
    simulated: bool,
    /// What chance followed: `seed=N` of a simulated device, or its usual one. Not there where time is real.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    /// Constants of the simulated machines that were given other values (`--set KEY=VALUE`), in the constants'
    /// units. Empty: the preset as it is, or real machines.
    settings: BTreeMap<&'static str, Number>,
    machine: Machine,
    version: &'static str,
    profile: &'static str,
    repeats: usize,
    ratios: BTreeMap<String, f64>,
    /// What the paper states of a metric: how it is meant, and in which section.
    paper_values: StatedValues,
    skipped: BTreeMap<String, String>,
}

impl Summary {
    /// The summary of `outcome`.
    pub fn new(
        about: &About,
        stated: &StatedValues,
        options: &Options,
        machine: Machine,
        outcome: &Outcome,
    ) -> Self {
        let (device, simulated) = outcome.ran_on(options);
        Self {
            experiment: about.name,
            paper: about.paper,
            device,
            simulated,
            seed: chance::seed(&options.device),
            settings: options.settings().map(number).collect(),
            machine,
            version: env!("CARGO_PKG_VERSION"),
            profile: PROFILE,
            repeats: outcome.repeats,
            ratios: outcome
                .ratios()
                .iter()
                .map(|(k, v)| (k.clone(), v.median))
                .collect(),
            paper_values: stated.clone(),
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

/// A setting's key and value, without a point where there is nothing behind it.
fn number(setting: &Setting) -> (&'static str, Number) {
    let value = setting.value();
    let whole = (value.fract() == 0.0).then_some(value as i64);
    let number = whole.map(Number::from).or_else(|| Number::from_f64(value));
    // A setting is in its constant's bounds: finite.
    (setting.constant().key, number.unwrap_or_else(|| 0.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Claim, Stated};
    use crate::stats::Spread;

    #[test]
    fn has_exactly_the_documented_shape() {
        let about = About {
            paper: Some(Paper {
                title: "T",
                year: 2022,
                figure: "Fig. 3",
            }),
            ..About::new("x", "", "")
        };
        let stated = Stated {
            claim: Claim::Between(8.0, 9.0),
            section: "V",
        };
        let stated = StatedValues::from([("a".to_owned(), stated)]);
        let mut outcome = Outcome::default();
        outcome.repeats = 3;
        outcome.measured("a", Spread::single(2.5));
        outcome.skip("b", "why");
        let machine = Machine {
            cpu: "C".into(),
            cores: 2,
            memory_gib: 4.0,
        };
        let summary = |device: &str, set: &[&str]| {
            let set = set.iter().map(|setting| setting.parse().unwrap());
            let options = Options {
                set: set.collect(),
                ..Options::on(device.parse().unwrap())
            };
            let text = Summary::new(&about, &stated, &options, machine.clone(), &outcome).to_json();
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        };
        let expected = serde_json::json!({
            "experiment": "x",
            "paper": {"title": "T", "year": 2022, "figure": "Fig. 3"},
            "device": "sim:cx5-100g,seed=3", "simulated": true, "seed": 3,
            "settings": {"link.rate": 56.5, "nic.icm": 4096},
            "machine": {"cpu": "C", "cores": 2, "memory_gib": 4.0},
            "version": env!("CARGO_PKG_VERSION"), "profile": PROFILE, "repeats": 3,
            "ratios": {"a": 2.5}, "paper_values": {"a": {"claim": {"between": [8.0, 9.0]}, "section": "V"}}, "skipped": {"b": "why"},
        });
        // What is given twice has the value that was given last.
        let set = ["nic.icm=1", "link.rate=56.5", "nic.icm=4096"];
        assert_eq!(summary("sim:cx5-100g,seed=3", &set), expected);
        let usual = summary("sim:cx5-100g", &[]);
        assert_eq!(
            (&usual["seed"], &usual["settings"]),
            (&1.into(), &serde_json::json!({}))
        );
        let real = summary("soft:h1,hostile,seed=3", &[]);
        assert_eq!(
            (&real["simulated"], real.get("seed")),
            (&false.into(), None)
        );
        assert_eq!(real["settings"], serde_json::json!({}));
    }
}

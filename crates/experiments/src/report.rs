//! Writes the results to `DIR/NAME/`: `points.csv`, `summary.json`, one SVG per chart, `report.md`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use headworks::sim::Setting;
use serde::Serialize;
use serde_json::Number;

use crate::about::{About, Options, Paper};
use crate::claim::PaperValue;
use crate::format::grid::Grid;
use crate::format::human;
use crate::machine::{Machine, PROFILE};
use crate::outcome::{ELSEWHERE, Outcome};
use crate::seeds;
use crate::table::NOT_STATED;

/// The error of writing a file.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", path.display())]
pub struct WriteError {
    /// The file, or the directory that should have contained it.
    pub path: PathBuf,
    /// The operating system's error.
    pub source: io::Error,
}

impl WriteError {
    /// Makes the error of a failure at `path`.
    pub(crate) fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self { path, source }
    }
}

/// Names of the files that every experiment has besides its charts.
const FILES: [&str; 3] = ["points.csv", "report.md", "summary.json"];
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Checks that the result files in `dir`, the directory of an experiment, can be replaced.
pub fn check(dir: &Path) -> Result<(), WriteError> {
    FILES
        .map(|name| dir.join(name))
        .into_iter()
        .try_for_each(|path| {
            let file = crate::atomic_file::AtomicFile::of(&path);
            file.map(drop).map_err(WriteError::at(path))
        })
}

/// The contents of an experiment's report.
pub struct Results<'a> {
    /// The experiment.
    pub about: &'a About,
    /// The paper's values, by metric. `None`: the paper states values for other testbeds only.
    pub stated: BTreeMap<String, Option<PaperValue>>,
    /// Options of the run.
    pub options: &'a Options,
    /// The machine that the experiment ran on.
    pub machine: Machine,
    /// The results of the experiment.
    pub outcome: &'a Outcome,
}

/// The fields of `summary.json`, which programs read.
#[derive(Serialize)]
struct Summary<'a> {
    experiment: &'static str,
    paper: Option<Paper>,
    device: String,
    /// Whether all devices are simulated.
    simulated: bool,
    /// The seed of a simulated device: `seed=N`, or the default. `None` where time is real.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    /// Settings of the simulated machines (`--set KEY=VALUE`), in the constants' units. Empty if the preset
    /// is unchanged or the machines are real.
    settings: BTreeMap<&'static str, Number>,
    machine: &'a Machine,
    version: &'static str,
    profile: &'static str,
    repeats: usize,
    ratios: BTreeMap<&'a String, f64>,
    /// The paper's value of a metric: the claim and its section.
    paper_values: BTreeMap<&'a String, PaperValue>,
    skipped: &'a BTreeMap<String, String>,
}

impl Results<'_> {
    /// Writes all files to `DIR/NAME` and returns that directory. Each file is replaced as a whole. The
    /// summary is written last, so a directory with a summary is complete.
    pub fn write(&self, dir: &Path) -> Result<PathBuf, WriteError> {
        let dir = dir.join(self.about.name);
        std::fs::create_dir_all(&dir).map_err(WriteError::at(&dir))?;
        let put = |name: &str, text: &str| {
            let path = dir.join(name);
            crate::atomic_file::replace(&path, text.as_bytes()).map_err(WriteError::at(path))
        };
        put("points.csv", &self.outcome.points.to_csv())?;
        for figure in &self.outcome.figures {
            let text = figure.to_svg().map_err(io::Error::other);
            put(
                &figure.file,
                &text.map_err(WriteError::at(dir.join(&figure.file)))?,
            )?;
        }
        put("report.md", &self.markdown())?;
        put("summary.json", &self.json())?;
        Ok(dir)
    }

    fn json(&self) -> String {
        let Self {
            about,
            options,
            outcome,
            ..
        } = self;
        let (device, simulated) = outcome.ran_on(options);
        let ratios = outcome.ratios().iter();
        let stated = self.stated.iter();
        let stated = stated.filter_map(|(key, stated)| Some((key, (*stated)?)));
        let summary = Summary {
            experiment: about.name,
            paper: about.paper,
            device,
            simulated,
            seed: seeds::seed(&options.device),
            settings: options.settings().map(number).collect(),
            machine: &self.machine,
            version: VERSION,
            profile: PROFILE,
            repeats: outcome.repeats,
            ratios: ratios.map(|(key, value)| (key, value.median)).collect(),
            paper_values: stated.collect(),
            skipped: outcome.skipped(),
        };
        let text = serde_json::to_string_pretty(&summary);
        text.expect("plain data has a JSON form") + "\n"
    }

    /// Makes `report.md`, which people read.
    fn markdown(&self) -> String {
        let Self { about, outcome, .. } = self;
        let About {
            name,
            line,
            measures,
            ..
        } = about;
        let mut out = format!("# {name}\n\n{line}\n\n{measures}\n\n");
        if let Some(Paper {
            title,
            year,
            figure,
        }) = about.paper
        {
            out += &format!("Paper: {title} ({year}), {figure}.\n\n");
        }
        for (what, value) in self.environment() {
            out += &format!("- {what}: {value}\n");
        }
        out.push('\n');
        for figure in &outcome.figures {
            out += &format!("![{}]({})\n", figure.title, figure.file);
        }
        if !outcome.figures.is_empty() {
            out.push('\n');
        }
        out += &self.ratios();
        let arms = outcome.arms.iter().map(|arm| {
            let cells = [&arm.name, &arm.what, arm.waiting, &arm.copies];
            cells.map(str::to_owned).to_vec()
        });
        let header = ["arm", "what", "both sides", "copies of the bytes"];
        let arms = Grid::of("Arms", header, arms.collect());
        let grids = outcome.grids.iter().filter(|grid| !grid.rows.is_empty());
        out.extend(grids.chain(&arms).map(Grid::to_markdown));
        if !outcome.notes.is_empty() {
            out += "## Remarks\n\n";
        }
        out.extend(outcome.notes.iter().map(|note| format!("- {note}\n")));
        out
    }

    /// Returns the device, the machine and the options of the run, as names and values.
    fn environment(&self) -> Vec<(&str, String)> {
        let Self {
            options, outcome, ..
        } = self;
        let Machine {
            cpu,
            cores,
            memory_gib,
        } = &self.machine;
        let (device, is_simulated) = outcome.ran_on(options);
        let simulated = if is_simulated { " (simulated)" } else { "" };
        let peer = match &*outcome.devices {
            [] => options.peer().to_string(),
            _ => "the same".to_owned(),
        };
        let mut all = vec![("device", format!("{device}{simulated}, peer {peer}"))];
        all.extend(seeds::seed(&options.device).map(|seed| ("seed", seed.to_string())));
        let with_unit = |setting: &Setting| format!("{setting} {}", setting.constant().unit);
        let settings: Vec<_> = options.settings().map(with_unit).collect();
        if !settings.is_empty() {
            let settings = settings.join(", ");
            all.push(("settings", format!("{settings}; the preset has others")));
        }
        all.push(("machine", format!("{cpu}, {cores} cores, {memory_gib} GiB")));
        if !outcome.pinning.is_empty() {
            all.push(("pinning", outcome.pinning.clone()));
        }
        let quick = if options.quick { ", quick" } else { "" };
        all.push(("repeats", format!("{}{quick}", outcome.repeats)));
        all.push(("headworks", format!("{VERSION}, profile {PROFILE}")));
        let versions = outcome.versions.iter();
        all.extend(versions.map(|(name, version)| (&**name, version.clone())));
        all
    }

    /// Makes the table of metrics. Keys that this run does not measure are only counted.
    fn ratios(&self) -> String {
        let paper = |key: &str| match self.stated.get(key) {
            None => String::new(),
            Some(None) => NOT_STATED.to_owned(),
            Some(Some(stated)) => format!("{} ({})", stated.claim, stated.section),
        };
        let measured = self.outcome.ratios().iter().map(|(key, value)| {
            let spread = format!("{} – {}", human(value.low), human(value.high));
            vec![key.clone(), human(value.median), spread, paper(key)]
        });
        let skipped = self.outcome.skipped();
        let here = skipped.iter().filter(|(_, why)| *why != ELSEWHERE);
        let here =
            here.map(|(key, why)| vec![key.clone(), "skipped".to_owned(), why.clone(), paper(key)]);
        let header = ["key", "median", "lowest – highest repeat", "paper"];
        let figures = Grid::of("Figures", header, measured.chain(here).collect());
        let mut out = figures.map_or_else(String::new, |figures| figures.to_markdown());
        let elsewhere = skipped.values().filter(|why| *why == ELSEWHERE).count();
        if elsewhere > 0 {
            out += &format!(
                "{elsewhere} keys of `summary.json` are of points that this run does not measure, and not in this table.\n\n"
            );
        }
        out
    }
}

/// Returns a setting's key and value; a whole number has no decimal point.
fn number(setting: &Setting) -> (&'static str, Number) {
    let value = setting.value().as_f64();
    let whole = (value.fract() == 0.0).then_some(value as i64);
    let number = whole.map(Number::from).or_else(|| Number::from_f64(value));
    // A setting is within the bounds of its constant, so it is finite.
    (setting.constant().key, number.unwrap_or_else(|| 0.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Claim;
    use crate::stats::Spread;
    use serde_json::{Value, json};

    /// Returns the report and the summary of a run on `device` with the settings `set`.
    fn written(device: &str, set: &[&str]) -> (String, Value) {
        let (title, year, figure) = ("T", 2022, "Fig. 3");
        let about = About {
            paper: Some(Paper {
                title,
                year,
                figure,
            }),
            ..About::new("demo", "A demo.", "Nothing.")
        };
        let mut outcome = Outcome::default();
        outcome.pinning = "sender on cpu 0".into();
        outcome.versions = vec![("ucx".into(), "1.13.1".into())];
        outcome.repeats = 3;
        outcome.arms = vec![crate::table::arm("tcp", "a|b", "block", "2")];
        outcome.measured("k", Spread::of(&[1.0, 2.5, 3.0]).unwrap());
        outcome.measured("l", Spread::single(4.0));
        for (key, why) in [("m", "not installed"), ("n", ELSEWHERE), ("o", ELSEWHERE)] {
            outcome.skip(key, why);
        }
        let stated = PaperValue {
            claim: Claim::Between(8.0, 9.0),
            section: "V-B",
            presets: &[],
        };
        let set = set.iter().map(|setting| setting.parse().unwrap());
        let results = Results {
            about: &about,
            stated: BTreeMap::from([("k".to_owned(), Some(stated)), ("l".to_owned(), None)]),
            options: &Options {
                set: set.collect(),
                ..Options::on(device.parse().unwrap())
            },
            machine: Machine {
                cpu: "C".into(),
                cores: 2,
                memory_gib: 4.0,
            },
            outcome: &outcome,
        };
        (
            results.markdown(),
            serde_json::from_str(&results.json()).unwrap(),
        )
    }

    #[test]
    fn the_report_records_experiment_device_and_settings() {
        // The last value of a constant that is given twice counts.
        let set = ["nic.icm=1", "link.rate=56", "nic.icm=7"];
        let simulated = [
            "- device: sim:cx5-100g,seed=3 (simulated)",
            "- seed: 3\n",
            "- settings: link.rate=56 Gbit/s, nic.icm=7 entries; the preset has others\n",
        ];
        let real = [
            "Paper: T (2022), Fig. 3.",
            "- device: soft, peer soft:h2",
            "- machine: C, 2 cores, 4 GiB",
            "- pinning: sender on cpu 0",
            "- ucx: 1.13.1",
            "| k | 2.500 | 1.000 – 3.000 | 8.000 to 9.000 (V-B) |",
            "| l | 4.000 | 4.000 – 4.000 | no value in the paper |",
            "| m | skipped | not installed |  |",
            "| tcp | a\\|b | block | 2 |",
            "\n2 keys of `summary.json` are of points that",
        ];
        for (device, set, wanted, absent) in [
            ("sim:cx5-100g,seed=3", &set[..], &simulated[..], "| n |"),
            ("soft", &[], &real, "- seed"),
            ("soft", &[], &real, "- settings"),
            ("soft", &[], &real, ELSEWHERE),
        ] {
            let (text, _) = written(device, set);
            for wanted in wanted {
                assert!(text.contains(wanted), "{wanted} in\n{text}");
            }
            assert!(!text.contains(absent), "{absent} in\n{text}");
        }
    }

    #[test]
    fn the_summary_has_exactly_the_documented_shape() {
        let expected = json!({
            "experiment": "demo",
            "paper": {"title": "T", "year": 2022, "figure": "Fig. 3"},
            "device": "sim:cx5-100g,seed=3", "simulated": true, "seed": 3,
            "settings": {"link.rate": 56.5, "nic.icm": 4096},
            "machine": {"cpu": "C", "cores": 2, "memory_gib": 4.0},
            "version": VERSION, "profile": PROFILE, "repeats": 3,
            "ratios": {"k": 2.5, "l": 4.0}, "paper_values": {"k": {"claim": {"between": [8.0, 9.0]}, "section": "V-B"}},
            "skipped": {"m": "not installed", "n": ELSEWHERE, "o": ELSEWHERE},
        });
        let set = ["link.rate=56.5", "nic.icm=4096"];
        assert_eq!(written("sim:cx5-100g,seed=3", &set).1, expected);
        for (device, simulated, seed) in [
            ("sim:cx5-100g", true, Some(&json!(1))),
            ("soft:h1,hostile,seed=3", false, None),
        ] {
            let (_, summary) = written(device, &[]);
            assert_eq!(summary["simulated"], simulated);
            assert_eq!(summary.get("seed"), seed);
            assert_eq!(summary["settings"], json!({}));
        }
    }
}

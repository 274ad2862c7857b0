//! What is written to `DIR/NAME/`: `points.csv`, `summary.json`, one SVG per figure, `report.md`.

pub mod csv;
pub mod markdown;
pub mod summary;
pub mod svg;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::claim::Stated;
use crate::experiment::{About, Options};
use crate::machine::Machine;
use crate::outcome::Outcome;

/// A file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", path.display())]
pub struct WriteError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// What the paper states, by metric.
pub type StatedValues = BTreeMap<String, Stated>;

/// The files that every experiment has, besides its figures.
const FILES: [&str; 3] = ["points.csv", "report.md", "summary.json"];

/// That what is in `dir`, the directory of an experiment, can be replaced.
pub fn check(dir: &Path) -> Result<(), WriteError> {
    for path in FILES.map(|name| dir.join(name)) {
        crate::files::Replacement::of(&path).map_err(|source| WriteError { path, source })?;
    }
    Ok(())
}

/// Writes everything that `outcome` holds into `dir/NAME`, each file whole; the summary is last,
/// so that a directory with a summary is complete. Answers the experiment's directory.
pub fn write(
    dir: &Path,
    about: &About,
    stated: &StatedValues,
    options: &Options,
    outcome: &Outcome,
) -> Result<PathBuf, WriteError> {
    let dir = dir.join(about.name);
    std::fs::create_dir_all(&dir).map_err(|source| WriteError {
        path: dir.clone(),
        source,
    })?;
    let put = |name: &str, text: &str| {
        let path = dir.join(name);
        crate::files::replace(&path, text.as_bytes()).map_err(|source| WriteError { path, source })
    };
    let machine = Machine::here();
    put("points.csv", &outcome.points.to_csv())?;
    for figure in &outcome.figures {
        let text = figure.to_svg().map_err(|why| WriteError {
            path: dir.join(&figure.file),
            source: io::Error::other(why),
        })?;
        put(&figure.file, &text)?;
    }
    put(
        "report.md",
        &markdown::report(about, stated, options, &machine, outcome),
    )?;
    put(
        "summary.json",
        &summary::Summary::new(about, stated, options, machine, outcome).to_json(),
    )?;
    Ok(dir)
}

/// A number with three significant digits or so, as people write it.
pub(crate) fn human(x: f64) -> String {
    match x.abs() {
        a if !a.is_finite() => x.to_string(),
        0.0 => "0".to_owned(),
        a if a >= 1e9 => format!("{:.3}e9", x / 1e9),
        a if a >= 1e6 => format!("{:.2}M", x / 1e6),
        a if a >= 1e4 => format!("{:.1}k", x / 1e3),
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 0.01 => format!("{x:.3}"),
        _ => format!("{x:.2e}"),
    }
}

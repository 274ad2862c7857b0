//! What is written to `DIR/NAME/`: `points.csv`, `summary.json`, one SVG per figure, `report.md`.

pub mod markdown;
pub mod summary;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::about::{About, Options};
use crate::claim::Stated;
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

//! Running experiments by name.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headworks_stage::World;

use crate::apps::flows::Capture;
use crate::bench::Bench;
use crate::experiment::{Experiment, Options, find, registry};
use crate::report::{self, WriteError};

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is no experiment of that name.
    #[error("no experiment is called {name:?} (known: {})", known())]
    Unknown {
        /// The name.
        name: String,
    },
    /// The capture to replay cannot be read, or nothing replays it.
    #[error("--trace: {0}")]
    Trace(String),
    /// Where the results are to go is no directory.
    #[error("--out: {} is no directory", .0.display())]
    NoDirectory(PathBuf),
    /// An interrupt was asked for. What was finished before it is written.
    #[error("interrupted")]
    Interrupted,
    /// Results could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The experiment could not measure what it is about.
    #[error("{0}")]
    Failed(String),
}

impl RunError {
    /// The exit code of a program that ends with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Unknown { .. } | Self::Trace(_) | Self::NoDirectory(_) => 2,
            Self::Interrupted => 130,
            Self::Write(_) | Self::Failed(_) => 1,
        }
    }
}

fn known() -> String {
    registry()
        .iter()
        .map(|e| e.about().name)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Runs the experiments called `names` one after the other and writes the results of each as soon
/// as it is finished. `stop`, once set, ends the run at the next point with
/// [`RunError::Interrupted`]. Answers the directories written.
///
/// Pairs of parts run in `world`, whose cast has what [`register`](crate::register) adds. The
/// program that calls this begins with [`child_main`](crate::child_main): some measurements start
/// it again as another process.
pub fn run(
    names: &[String],
    options: &Options,
    world: &Arc<dyn World>,
    stop: &AtomicBool,
) -> Result<Vec<PathBuf>, RunError> {
    let chosen = names
        .iter()
        .map(|name| find(name).ok_or_else(|| RunError::Unknown { name: name.clone() }))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(trace) = &options.trace {
        if !chosen.iter().any(|e| e.about().replays) {
            let who: Vec<_> = registry().iter().filter(|e| e.about().replays).collect();
            let who: Vec<_> = who.iter().map(|e| e.about().name).collect();
            let why = format!("only {} replays a capture", who.join(", "));
            return Err(RunError::Trace(why));
        }
        Capture::read(trace, 1).map_err(|why| RunError::Trace(why.to_string()))?;
    }
    // A directory that cannot be written is told now, not after the measurements.
    for path in [options.out.clone()]
        .into_iter()
        .chain(chosen.iter().map(|e| options.out.join(e.about().name)))
    {
        if path.exists() && !path.is_dir() {
            return Err(RunError::NoDirectory(path));
        }
    }
    std::fs::create_dir_all(&options.out).map_err(|source| WriteError {
        path: options.out.clone(),
        source,
    })?;
    let count = chosen.len();
    chosen
        .into_iter()
        .map(|experiment| run_one(experiment, options, world, stop, count))
        .collect()
}

fn run_one(
    experiment: &dyn Experiment,
    options: &Options,
    world: &Arc<dyn World>,
    stop: &AtomicBool,
    count: usize,
) -> Result<PathBuf, RunError> {
    let about = experiment.about();
    let mut bench = Bench::new(about.name, options, world.clone(), stop, count);
    let mut outcome = experiment.run(&mut bench)?;
    outcome.complete(about.keys);
    bench.finish();
    Ok(report::write(&options.out, about, options, &outcome)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_that_nobody_replays_or_that_cannot_be_read_is_bad_input() {
        struct Nowhere;
        impl World for Nowhere {
            fn start(
                &self,
                _: &headworks_stage::Play,
            ) -> Result<Box<dyn headworks_stage::Running>, headworks_stage::StageError>
            {
                unreachable!("nothing is played")
            }
            fn can_kill(&self) -> bool {
                false
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            trace: Some(dir.path().join("none.pcap")),
            out: dir.path().join("results"),
            ..Options::on("soft".parse().unwrap())
        };
        let world: Arc<dyn World> = Arc::new(Nowhere);
        for (name, part) in [("rb2-case2", "only rb2-case1"), ("rb2-case1", "none.pcap")] {
            let stop = AtomicBool::new(false);
            let refused = run(&[name.to_owned()], &options, &world, &stop).unwrap_err();
            assert!(refused.to_string().contains(part), "{refused}");
            assert_eq!(refused.exit_code(), 2);
            assert!(!options.out.exists());
        }
    }

    #[test]
    fn exit_codes_are_the_documented_ones() {
        let unknown = RunError::Unknown { name: "x".into() };
        assert_eq!(unknown.exit_code(), 2);
        assert!(unknown.to_string().contains("ring-vs-peers"));
        let file = RunError::NoDirectory("/dev/null".into());
        assert_eq!(
            (file.exit_code(), &*file.to_string()),
            (2, "--out: /dev/null is no directory")
        );
        assert_eq!(RunError::Interrupted.exit_code(), 130);
        assert_eq!(RunError::Failed(String::new()).exit_code(), 1);
    }
}

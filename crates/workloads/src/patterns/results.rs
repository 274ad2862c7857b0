//! Results of a plan: a folder with a file for each measured point. A run that is interrupted goes on where it ended.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::plan::{Plan, PlanPoint};
use super::run::{MessageWork, PatternResult};
use crate::atomic_file;
use crate::latency::{Histogram, Quantiles};
use crate::rnic_counters::RnicCounters;
use crate::stats::median;

/// Version of the files.
const VERSION: u32 = 1;
/// File that the process which measures into the folder holds a lock on.
const LOCK: &str = "lock";
/// File with the plan and the device.
const RUN: &str = "run.json";

/// Results cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Another process measures into the folder.
    #[error("{} is in use by another run; wait for its end, or use another folder", .0.display())]
    InUse(PathBuf),
    /// The folder has results of another plan or device.
    #[error("{} has results of {was}, not of {is}; use another folder", folder.display())]
    Other {
        /// The folder.
        folder: PathBuf,
        /// Description of the run whose results it has.
        was: String,
        /// Description of this run.
        is: String,
    },
    /// A file has another version.
    #[error("{}: version {was}; this program reads version {VERSION}; use another folder", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        was: u32,
    },
    /// A file is damaged.
    #[error("{}: {why}; delete the file to measure its point again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Description of the damage.
        why: String,
    },
    /// The file that describes the run is damaged.
    #[error("{}: {why}; use another folder", path.display())]
    DamagedRun {
        /// The file.
        path: PathBuf,
        /// Description of the damage.
        why: String,
    },
    /// The folder has points, but no description of their run.
    #[error("{} has points and no {RUN}, which says what they are of; use another folder", .0.display())]
    NoRun(PathBuf),
    /// The folder has no results.
    #[error("{} has no results: run `headworks patterns run` first", .0.display())]
    Empty(PathBuf),
}

/// Description of a run: the device, the world and the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunOf {
    version: u32,
    /// The device's name, with the settings of a simulated one.
    pub device: String,
    /// How the actors ran: `threads`, `processes`, `ranks` or `virtual time`.
    pub world: String,
    /// The plan.
    pub plan: Plan,
}

impl RunOf {
    /// Describes a run.
    pub fn new(device: String, world: &str, plan: Plan) -> Self {
        let world = world.to_owned();
        Self {
            version: VERSION,
            device,
            world,
            plan,
        }
    }
}

/// A measured point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPoint {
    version: u32,
    /// The point.
    pub point: PlanPoint,
    /// Responses per second, of each repeat.
    pub per_second: Vec<f64>,
    /// Latencies of all repeats: values in nanoseconds, and how often each occurred.
    pub latencies: Vec<(u64, u64)>,
    /// Share of polled mailboxes that were empty; `None` if requests travel by SEND, or it is not known.
    pub empty_polls: Option<f64>,
    /// Queue pairs of the responders.
    pub queue_pairs: usize,
    /// What the requesters and the responders executed for each message in the last repeat; `None` if hardware did not
    /// count it.
    #[serde(default)]
    pub work: [Option<MessageWork>; 2],
    /// What the counters of this machine's RDMA NICs grew by in the last repeat.
    #[serde(default)]
    pub rnic_counters: RnicCounters,
    /// Whether there were more actors than processors.
    pub is_oversubscribed: bool,
}

impl MeasuredPoint {
    /// Sums up the repeats of a point.
    pub fn of(point: PlanPoint, repeats: &[PatternResult]) -> Self {
        let mut latencies = Histogram::default();
        for result in repeats {
            latencies.add(&result.latencies);
        }
        let last = repeats.last();
        Self {
            version: VERSION,
            point,
            per_second: repeats.iter().map(|result| result.per_second).collect(),
            latencies: latencies.recorded(),
            empty_polls: last.and_then(|result| result.empty_polls),
            queue_pairs: last.map_or(0, |result| result.queue_pairs),
            work: last.map_or([None; 2], |result| {
                [result.requester_work, result.responder_work]
            }),
            rnic_counters: last.map_or(RnicCounters::new(), |result| result.rnic_counters.clone()),
            is_oversubscribed: repeats.iter().any(|result| result.is_oversubscribed),
        }
    }

    /// Returns the median rate of the repeats.
    pub fn rate(&self) -> f64 {
        median(&self.per_second).unwrap_or(0.0)
    }

    /// Returns the latencies' quantiles.
    pub fn latency(&self) -> Quantiles {
        let mut latencies = Histogram::default();
        latencies.add_recorded(&self.latencies);
        latencies.quantiles(1.0)
    }
}

/// A folder of results.
#[derive(Debug)]
pub struct Results {
    folder: PathBuf,
    /// Description of the run.
    pub run: RunOf,
    /// The lock, held until this is dropped, if the folder is measured into.
    _lock: Option<fs::File>,
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> ResultsError {
    let path = path.to_owned();
    move |source| ResultsError::Io { path, source }
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, ResultsError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let bytes = fs::read(path).map_err(io_at(path))?;
    let damaged = |why: serde_json::Error| ResultsError::Damaged {
        path: path.to_owned(),
        why: why.to_string(),
    };
    let was = serde_json::from_slice::<Versioned>(&bytes)
        .map_err(damaged)?
        .version;
    if was != VERSION {
        let path = path.to_owned();
        return Err(ResultsError::Version { path, was });
    }
    serde_json::from_slice(&bytes).map_err(damaged)
}

/// Reads the description of a run.
fn read_run(path: &Path) -> Result<RunOf, ResultsError> {
    read(path).map_err(|why| match why {
        ResultsError::Damaged { path, why } => ResultsError::DamagedRun { path, why },
        other => other,
    })
}

/// Whether a folder has files of points.
fn has_points(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let path = entry.path();
        let is_point = path.extension().is_some_and(|suffix| suffix == "json");
        is_point && !path.ends_with(RUN)
    })
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), ResultsError> {
    let text = serde_json::to_vec_pretty(value).expect("plain data has a JSON form");
    atomic_file::replace(path, &text).map_err(io_at(path))
}

impl Results {
    /// Opens `folder` to measure `run` into it. Points that it has are not measured again.
    ///
    /// # Errors
    ///
    /// [`ResultsError`]: another process measures into it, or it has results of another run.
    pub fn open(folder: &Path, run: RunOf) -> Result<Self, ResultsError> {
        fs::create_dir_all(folder).map_err(io_at(folder))?;
        let path = folder.join(LOCK);
        let lock = fs::File::create(&path).map_err(io_at(&path))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(ResultsError::InUse(folder.to_owned()));
        }
        let path = folder.join(RUN);
        if path.exists() {
            let was = read_run(&path)?;
            if was != run {
                let of = |run: &RunOf, other: &RunOf| match run.plan.difference(&other.plan) {
                    None => format!("{} in {}", run.device, run.world),
                    Some((key, value)) => format!("a plan with {key} = {value}"),
                };
                return Err(ResultsError::Other {
                    folder: folder.to_owned(),
                    was: of(&was, &run),
                    is: of(&run, &was),
                });
            }
        } else if has_points(folder) {
            return Err(ResultsError::NoRun(folder.to_owned()));
        } else {
            write(&path, &run)?;
        }
        Ok(Self {
            folder: folder.to_owned(),
            run,
            _lock: Some(lock),
        })
    }

    /// Opens the results in `folder` to read them.
    ///
    /// # Errors
    ///
    /// [`ResultsError`]: there are none, or they cannot be read.
    pub fn load(folder: &Path) -> Result<Self, ResultsError> {
        let path = folder.join(RUN);
        if !path.exists() {
            return Err(match has_points(folder) {
                true => ResultsError::NoRun(folder.to_owned()),
                false => ResultsError::Empty(folder.to_owned()),
            });
        }
        Ok(Self {
            folder: folder.to_owned(),
            run: read_run(&path)?,
            _lock: None,
        })
    }

    fn path(&self, point: &PlanPoint) -> PathBuf {
        self.folder.join(format!("{}.json", point.file_stem()))
    }

    /// Returns a point that was measured; `None` if it was not.
    ///
    /// # Errors
    ///
    /// Its file is damaged, or has another version.
    pub fn get(&self, point: &PlanPoint) -> Result<Option<MeasuredPoint>, ResultsError> {
        let path = self.path(point);
        if !path.exists() {
            return Ok(None);
        }
        let found: MeasuredPoint = read(&path)?;
        let is_rate = |rate: &f64| rate.is_finite() && *rate >= 0.0;
        let why = if found.point != *point {
            format!("it has the results of {}", found.point)
        } else if !found.per_second.iter().all(is_rate) {
            "a rate is negative".to_owned()
        } else {
            return Ok(Some(found));
        };
        Err(ResultsError::Damaged { path, why })
    }

    /// Stores a measured point. Its file is complete or absent, whenever this process dies.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn put(&self, measured: &MeasuredPoint) -> Result<(), ResultsError> {
        write(&self.path(&measured.point), measured)
    }

    /// Returns all measured points of the plan.
    ///
    /// # Errors
    ///
    /// A file is damaged, or has another version.
    pub fn all(&self) -> Result<Vec<MeasuredPoint>, ResultsError> {
        let points = self
            .run
            .plan
            .points()
            .map_err(|why| ResultsError::DamagedRun {
                path: self.folder.join(RUN),
                why: why.to_string(),
            })?;
        let mut all = Vec::new();
        for point in points {
            all.extend(self.get(&point)?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(device: &str) -> RunOf {
        let text = "designs = [\"WriteWrite\"]\nresponses = [\"64\", \"128\"]\n";
        RunOf::new(device.into(), "threads", Plan::parse(text).unwrap())
    }

    fn measured(point: PlanPoint) -> MeasuredPoint {
        MeasuredPoint {
            per_second: vec![1.0, 3.0, 2.0],
            latencies: vec![(100, 2)],
            ..MeasuredPoint::of(point, &[])
        }
    }

    #[test]
    fn measured_points_are_kept_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let points = run("soft").plan.points().unwrap();
        {
            let results = Results::open(folder.path(), run("soft")).unwrap();
            assert_eq!(results.get(&points[0]).unwrap(), None);
            results.put(&measured(points[0])).unwrap();
        }
        let results = Results::open(folder.path(), run("soft")).unwrap();
        let found = results.get(&points[0]).unwrap().unwrap();
        assert_eq!(found, measured(points[0]));
        assert_eq!(found.rate(), 2.0);
        assert_eq!(found.latency().count, 2);
        assert_eq!(results.get(&points[1]).unwrap(), None);
        assert_eq!(
            Results::load(folder.path()).unwrap().all().unwrap().len(),
            1
        );
    }

    #[test]
    fn a_folder_of_another_run_is_refused_and_stays_readable() {
        let folder = tempfile::tempdir().unwrap();
        let held = Results::open(folder.path(), run("soft")).unwrap();
        let says = |opened: Result<Results, ResultsError>| opened.unwrap_err().to_string();
        let twice = says(Results::open(folder.path(), run("soft")));
        assert!(twice.contains("in use by another run"), "{twice}");
        drop(held);
        let other = says(Results::open(folder.path(), run("ibv:rxe0")));
        assert!(
            other.contains("soft") && other.contains("ibv:rxe0"),
            "{other}"
        );
        let empty = tempfile::tempdir().unwrap();
        assert!(says(Results::load(empty.path())).contains("headworks patterns run"));
        let path = folder.path().join(RUN);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"version\": 1", "\"version\": 9")).unwrap();
        let version = says(Results::load(folder.path()));
        assert!(version.contains("version 9"), "{version}");
        fs::write(&path, "{").unwrap();
        assert!(says(Results::load(folder.path())).contains(RUN));
    }
}

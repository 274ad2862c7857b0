//! Running experiments by name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headworks::sim::is_simulated;
use headworks_stage::World;

use crate::about::{About, Options};
use crate::apps::flows::Capture;
use crate::bench::Bench;
use crate::busy;
use crate::cases::{find, registry};
pub use crate::error::RunError;
use crate::experiment::Experiment;
use crate::report::{self, WriteError};
use crate::simulated;

fn unknown(name: &str) -> RunError {
    let known: Vec<_> = registry().iter().map(|e| e.about().name).collect();
    RunError::Unknown {
        name: name.to_owned(),
        known: known.join(", "),
    }
}

/// Runs the experiments called `names` one after the other and writes the results of each as soon
/// as it is finished, which `written` is told of with its directory. `stop`, once set, ends the run at the next
/// point with [`RunError::Interrupted`]. Directories that were made and have nothing in them at the end are
/// removed again.
///
/// Pairs of parts run in `world`, whose cast has what [`register`](crate::register) adds. The
/// program that calls this begins with [`child_main`](crate::child_main): some measurements start
/// it again as another process.
pub fn run(
    names: &[String],
    options: &Options,
    world: &Arc<dyn World>,
    stop: &AtomicBool,
    written: &mut dyn FnMut(&Path),
) -> Result<(), RunError> {
    let chosen = names
        .iter()
        .map(|name| find(name).ok_or_else(|| unknown(name)))
        .collect::<Result<Vec<_>, _>>()?;
    for experiment in &chosen {
        check_devices(*experiment, options)?;
    }
    check_peer(options)?;
    if let Some(trace) = &options.trace {
        if !chosen.iter().any(|e| e.about().replays) {
            let who: Vec<_> = registry().iter().filter(|e| e.about().replays).collect();
            let who: Vec<_> = who.iter().map(|e| e.about().name).collect();
            let why = format!("only {} replays a capture", who.join(", "));
            return Err(RunError::Trace(why));
        }
        Capture::read(trace, 1).map_err(|why| RunError::Trace(why.to_string()))?;
    }
    let places = places(&chosen, options);
    if let Some(path) = places.iter().find(|path| path.exists() && !path.is_dir()) {
        return Err(RunError::NoDirectory(path.clone()));
    }
    run_all(chosen, options, world, stop, written)
}

/// An experiment runs on its kind of devices, and on simulated ones only where that means something.
fn check_devices(experiment: &dyn Experiment, options: &Options) -> Result<(), RunError> {
    let About {
        name,
        runs_on,
        paces,
        ..
    } = *experiment.about();
    for device in std::iter::once(&options.device).chain(&options.peer_device) {
        let device = device.clone();
        // A device whose constants are wrong is refused when it is opened.
        let is_paced = || !matches!(headworks::pace::split(&device), Ok((_, None)));
        let why = runs_on.not_simulated().filter(|_| is_simulated(&device));
        let kind = runs_on.kind().filter(|kind| *kind != device.kind());
        return Err(match (kind, why) {
            (Some(kind), _) => RunError::OtherKind { name, kind, device },
            (_, Some(why)) => RunError::NotSimulated { name, device, why },
            _ if paces && is_paced() => RunError::Paced { name, device },
            _ => continue,
        });
    }
    Ok(())
}

/// Both hosts of a simulated network are of one preset and follow one seed.
fn check_peer(options: &Options) -> Result<(), RunError> {
    let Some(peer) = &options.peer_device else {
        return Ok(());
    };
    let stands_for = |device| match simulated::machine(device, &[]) {
        Some(Ok((preset, seed))) => Ok(Some((preset.name, seed))),
        None => Ok(None),
        // Opening the device says what is wrong with it.
        Some(Err(_)) => Err(()),
    };
    match (stands_for(&options.device), stands_for(peer)) {
        (Ok(ours), Ok(theirs)) if ours != theirs => Err(RunError::OtherMachine {
            device: options.device.to_string(),
            peer: peer.to_string(),
        }),
        _ => Ok(()),
    }
}

/// The directories that results go to.
fn places(chosen: &[&dyn Experiment], options: &Options) -> Vec<PathBuf> {
    let each = chosen
        .iter()
        .map(|experiment| options.out.join(experiment.about().name));
    std::iter::once(options.out.clone()).chain(each).collect()
}

fn run_all(
    chosen: Vec<&dyn Experiment>,
    options: &Options,
    world: &Arc<dyn World>,
    stop: &AtomicBool,
    written: &mut dyn FnMut(&Path),
) -> Result<(), RunError> {
    // What cannot be written is told now, not after the measurements.
    let _made = Made::all(&options.out).map_err(RunError::Unwritable)?;
    let places = places(&chosen, options);
    for path in places.iter().filter(|path| path.exists()) {
        // A file without a name, or with one that has gone before anybody looks.
        tempfile::tempfile_in(path).map_err(|source| {
            let path = path.clone();
            RunError::Unwritable(WriteError { path, source })
        })?;
    }
    // The first is that of all.
    for path in places[1..].iter().filter(|path| path.exists()) {
        report::check(path).map_err(RunError::Unwritable)?;
    }
    let count = chosen.len();
    for experiment in chosen {
        written(&run_one(experiment, options, world, stop, count)?);
    }
    Ok(())
}

/// Directories that were made for results, outermost first. Those that are empty when it is dropped go.
struct Made(Vec<PathBuf>);

impl Made {
    fn all(path: &Path) -> Result<Self, WriteError> {
        let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let missing = path.ancestors().take_while(missing).map(Path::to_owned);
        let mut made = Self(missing.collect());
        made.0.reverse();
        std::fs::create_dir_all(path).map_err(|source| WriteError {
            path: path.to_owned(),
            source,
        })?;
        Ok(made)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // What is in use stays.
            let _ = std::fs::remove_dir(path);
        }
    }
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
    if let Some(table) = bench.utilisation() {
        outcome.grids.push(table);
        outcome.notes.push(busy::NOTE.into());
    }
    let metrics = experiment.metrics();
    outcome.complete(metrics.iter().map(|(key, _)| key.as_str()));
    let stated = metrics.into_iter();
    let stated = stated
        .filter_map(|(key, stated)| Some((key, stated?)))
        .collect();
    outcome.say_simulated(options);
    bench.finish();
    Ok(report::write(
        &options.out,
        about,
        &stated,
        options,
        &outcome,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Stated;
    use crate::outcome::Outcome;
    use std::sync::atomic::Ordering;

    struct Nowhere;

    impl World for Nowhere {
        fn start(
            &self,
            _: &headworks_stage::Play,
        ) -> Result<Box<dyn headworks_stage::Running>, headworks_stage::StageError> {
            unreachable!("nothing is played")
        }
        fn can_kill(&self) -> bool {
            false
        }
    }

    /// A temporary directory, and options on `device` whose results go below it.
    fn on(device: &str) -> (tempfile::TempDir, Options) {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            out: dir.path().join("results"),
            ..Options::on(device.parse().unwrap())
        };
        (dir, options)
    }

    /// How a run ends that was interrupted before it began.
    fn interrupted(name: &str, options: &Options) -> RunError {
        let (world, stop): (Arc<dyn World>, _) = (Arc::new(Nowhere), AtomicBool::new(true));
        let mut written = |path: &Path| panic!("{} was written", path.display());
        run(&[name.to_owned()], options, &world, &stop, &mut written).unwrap_err()
    }

    /// That a run is refused as bad input, in one line that says all of `parts`, and leaves nothing behind.
    fn refused(name: &str, options: &Options, parts: &[&str]) {
        let was_there = options.out.exists();
        let error = interrupted(name, options);
        let said = error.to_string();
        let says = |part: &&str| assert!(said.contains(*part), "{said}, without {part}");
        parts.iter().for_each(says);
        assert_eq!((error.exit_code(), said.lines().count()), (2, 1), "{said}");
        assert_eq!(options.out.exists(), was_there);
    }

    /// That a run is not refused.
    fn begins(name: &str, options: &Options) {
        let error = interrupted(name, options);
        assert!(matches!(error, RunError::Interrupted), "{error}");
    }

    #[test]
    fn an_interrupt_leaves_no_empty_directory_and_what_was_there_stays() {
        let (dir, mut options) = on("soft");
        let all = dir.path().join("all");
        options.out = all.join("results");
        begins("rb2-table2", &options);
        assert!(!all.exists());
        // Of another run, or of somebody who wants it there.
        std::fs::create_dir(&all).unwrap();
        begins("rb2-table2", &options);
        assert!(all.exists() && !options.out.exists());
        options.out = all.clone();
        begins("rb2-table2", &options);
        assert!(all.exists());
        let made = Made::all(&all.join("a/b")).unwrap();
        std::fs::write(all.join("a/kept"), "by an experiment").unwrap();
        drop(made);
        assert!(!all.join("a/b").exists() && all.join("a/kept").exists());
    }

    /// An experiment that finds nothing; or is interrupted.
    struct Quick(bool);

    impl Experiment for Quick {
        fn about(&self) -> &About {
            const ABOUT: &About = &About::new("quick", "Nothing.", "Nothing.");
            ABOUT
        }

        fn metrics(&self) -> Vec<(String, Option<Stated>)> {
            Vec::new()
        }

        fn figures(&self) -> Vec<String> {
            Vec::new()
        }

        fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
            bench.stop().store(self.0, Ordering::Relaxed);
            bench.check().map(|()| Outcome::default())
        }
    }

    #[test]
    fn what_was_written_before_an_interrupt_stays_and_is_told_of() {
        let (_dir, options) = on("soft");
        let (world, stop): (Arc<dyn World>, _) = (Arc::new(Nowhere), AtomicBool::new(false));
        let mut told = Vec::new();
        let mut written = |path: &Path| told.push(path.to_owned());
        let chosen: Vec<&dyn Experiment> = vec![&Quick(false), &Quick(true)];
        let ended = run_all(chosen, &options, &world, &stop, &mut written);
        assert!(matches!(ended, Err(RunError::Interrupted)), "{ended:?}");
        assert_eq!(told, [options.out.join("quick")]);
        assert!(told[0].join("summary.json").exists());
    }

    #[test]
    fn hosts_of_a_simulated_network_are_of_one_preset_and_seed() {
        for (device, peer, fits) in [
            ("sim:cx5-100g", "sim:cx3-40g", false),
            ("sim:cx5-100g", "sim:cx5-100g,seed=9", false),
            ("sim:cx5-100g,seed=9", "sim:cx5-100g,host=b", false),
            ("sim:cx5-100g", "soft", false),
            ("soft", "sim", false),
            ("sim:cx5-100g,host=a", "sim:cx5-100g,seed=1", true),
            ("soft:h1", "soft:h3", true),
        ] {
            let (_dir, mut options) = on(device);
            options.peer_device = Some(peer.parse().unwrap());
            match fits {
                true => begins("rb2-table2", &options),
                false => refused("rb2-table2", &options, &[device, peer, "preset and seed"]),
            }
        }
    }

    #[test]
    fn where_nothing_can_be_written_is_bad_input_before_anything_is_measured() {
        // Nobody makes anything there, whoever they are.
        for out in ["/proc/self/results", "/proc/self/task"] {
            let (_dir, mut options) = on("soft");
            options.out = out.into();
            let said = format!("--out: cannot write {out}: ");
            refused("rb2-table2", &options, &[&said]);
        }
        // A directory in the place of a file.
        for name in ["points.csv", "report.md", "summary.json"] {
            let (_dir, options) = on("soft");
            let taken = options.out.join("rb2-table2").join(name);
            std::fs::create_dir_all(&taken).unwrap();
            let said = format!("--out: cannot write {}: ", taken.display());
            refused("rb2-table2", &options, &[&said]);
            let there = std::fs::read_dir(taken.parent().unwrap());
            assert_eq!(there.unwrap().count(), 1, "what was made to look stays");
        }
    }

    #[test]
    fn an_experiment_about_another_kind_of_device_says_which() {
        refused("rxe-ring", &on("soft").1, &["rxe-ring", "ibv:NAME"]);
        begins("rxe-ring", &on("ibv:rxe0").1);
    }

    #[test]
    fn an_experiment_that_does_not_run_in_virtual_time_says_why_and_what_it_runs_on() {
        let [soft, sim] = ["soft", "sim:cx5-100g,seed=3"];
        for experiment in registry() {
            let name = experiment.about().name;
            let Some(why) = experiment.about().runs_on.not_simulated() else {
                continue;
            };
            // Either host's.
            for device in [sim, soft] {
                let (_dir, mut options) = on(device);
                options.peer_device = Some(sim.parse().unwrap());
                let allowed = "--device: soft or ibv:NAME";
                refused(name, &options, &[name, sim, why, allowed]);
            }
            begins(name, &on(soft).1);
        }
    }

    #[test]
    fn a_capture_that_nobody_replays_or_that_cannot_be_read_is_bad_input() {
        let (dir, mut options) = on("soft");
        options.trace = Some(dir.path().join("none.pcap"));
        refused("rb2-case2", &options, &["only rb2-case1"]);
        refused("rb2-case1", &options, &["none.pcap"]);
    }

    #[test]
    fn exit_codes_are_the_documented_ones() {
        let unknown = unknown("x");
        assert!(unknown.to_string().contains("ring-vs-peers"));
        let file = RunError::NoDirectory("/dev/null".into());
        assert_eq!(file.to_string(), "--out: /dev/null is no directory");
        for (error, code) in [
            (unknown, 2),
            (file, 2),
            (RunError::Interrupted, 130),
            (RunError::Failed(String::new()), 1),
        ] {
            assert_eq!(error.exit_code(), code, "{error}");
        }
    }
}

//! Runs experiments by name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headworks::sim::is_simulated;
use headworks_runtime::World;

use crate::about::{About, Options, RunsOn};
use crate::apps::flows::Capture;
use crate::bench::Bench;
use crate::cases::{find, registry};
pub use crate::error::RunError;
use crate::experiment::Experiment;
use crate::machine::Machine;
use crate::report::{self, Results, WriteError};
use crate::simulated_machine;
use crate::utilisation;

/// Runs the experiments called `names` one after the other. The results of each are written as soon as it has
/// finished; `written` is then called with their directory. `stop`, once set, ends the run at the next point
/// with [`RunError::Interrupted`]. Directories are made with the first results.
///
/// Pairs of actors run in `world`, whose registry of actors must hold the actor that
/// [`register`](crate::register) adds. The calling program must begin with [`child_main`](crate::child_main):
/// some measurements start the program again as another process.
///
/// # Errors
///
/// [`RunError::BadInput`] before anything is measured, if a name or an option is invalid; otherwise the first
/// error of an experiment or of writing its results.
pub fn run(
    names: &[String],
    options: &Options,
    world: &Arc<dyn World>,
    stop: &AtomicBool,
    written: &mut dyn FnMut(&Path),
) -> Result<(), RunError> {
    let known = |name: &String| {
        let known: Vec<_> = registry().iter().map(|e| e.about().name).collect();
        let known = known.join(", ");
        find(name).ok_or_else(|| format!("no experiment is called {name:?} (known: {known})"))
    };
    let chosen: Result<Vec<_>, _> = names.iter().map(known).collect();
    let chosen = chosen.map_err(RunError::BadInput)?;
    check(&chosen, options).map_err(RunError::BadInput)?;
    run_all(chosen, options, world, stop, written)
}

/// Checks that the chosen experiments can run with these options; returns the reason if not.
fn check(chosen: &[&dyn Experiment], options: &Options) -> Result<(), String> {
    for experiment in chosen {
        check_devices(experiment.about(), options)?;
    }
    check_peer(options)?;
    check_settings(options)?;
    if let Some(trace) = &options.trace {
        if !chosen.iter().any(|e| e.about().replays) {
            let replaying = registry().iter().map(|e| e.about()).filter(|e| e.replays);
            let replaying: Vec<_> = replaying.map(|about| about.name).collect();
            let replaying = replaying.join(", ");
            return Err(format!("--trace: only {replaying} replays a capture"));
        }
        Capture::read(trace, 1).map_err(|why| format!("--trace: {why}"))?;
    }
    let names = chosen.iter().map(|experiment| experiment.about().name);
    check_out(&options.out, names)
}

/// Checks that the output directory can be written, before anything is measured. The check leaves no new
/// directory behind: the run makes directories with the first results.
fn check_out<'a>(out: &Path, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let dirs: Vec<PathBuf> = names.map(|name| out.join(name)).collect();
    let mut all = std::iter::once(out).chain(dirs.iter().map(PathBuf::as_path));
    if let Some(path) = all.find(|path| path.exists() && !path.is_dir()) {
        return Err(format!("--out: {} is no directory", path.display()));
    }
    // The check makes the directories, and removes those that did not exist before.
    let made: Vec<&Path> = out.ancestors().take_while(|path| !path.exists()).collect();
    let mut checked = std::fs::create_dir_all(out).map_err(WriteError::at(out));
    for dir in &dirs {
        let can_be = match dir.exists() {
            true => Ok(()),
            false => std::fs::create_dir(dir).and_then(|()| std::fs::remove_dir(dir)),
        };
        checked = checked.and_then(|()| can_be.map_err(WriteError::at(out)));
    }
    for path in made {
        let _ = std::fs::remove_dir(path);
    }
    for dir in dirs.iter().filter(|dir| dir.exists()) {
        checked = checked.and_then(|()| report::check(dir));
    }
    checked.map_err(|why| format!("--out: {why}"))
}

/// Checks that the devices are of the experiment's kind, and simulated only if the experiment is meaningful
/// there.
fn check_devices(about: &About, options: &Options) -> Result<(), String> {
    let (name, runs_on) = (about.name, about.runs_on);
    for device in std::iter::once(&options.device).chain(&options.peer_device) {
        if let Some(kind) = runs_on.kind().filter(|kind| *kind != device.kind()) {
            return Err(format!(
                "{name} is about devices {kind}:NAME, and not {device}: name one with --device, as `headworks devices` \
                 lists them"
            ));
        }
        if let RunsOn::Real(why) = runs_on
            && is_simulated(device)
        {
            return Err(format!(
                "{name} does not run on {device}, which is simulated: {why} (name another with --device: soft or ibv:NAME)"
            ));
        }
        // The pacing options are invalid, or ask for pacing; either way the experiment cannot use this name.
        if about.paces && !matches!(headworks::pace::split(device), Ok((_, None))) {
            return Err(format!(
                "{name} paces devices itself: name {device} without pace and pace_KEY"
            ));
        }
    }
    Ok(())
}

/// Checks that both hosts of a simulated network have the same preset and seed.
fn check_peer(options: &Options) -> Result<(), String> {
    let Options {
        device,
        peer_device: Some(peer),
        ..
    } = options
    else {
        return Ok(());
    };
    let stands_for = |device| match simulated_machine::machine(device, &[]) {
        Some(Ok((preset, seed))) => Ok(Some((preset.name, seed))),
        None => Ok(None),
        // Opening the device reports what is wrong with it.
        Some(Err(_)) => Err(()),
    };
    match (stands_for(device), stands_for(peer)) {
        (Ok(ours), Ok(theirs)) if ours != theirs => Err(format!(
            "--peer-device {peer}: not on one network with --device {device}: the two hosts of a simulated one have \
             the same preset and seed (host=NAME tells them apart)"
        )),
        _ => Ok(()),
    }
}

/// Checks that the settings of a simulated machine do not contradict each other or its preset.
fn check_settings(options: &Options) -> Result<(), String> {
    match options.machine() {
        Some(Ok((preset, _))) => preset.check().map_err(|why| format!("--set: {why}")),
        // Opening the device reports what is wrong with it.
        Some(Err(_)) | None => Ok(()),
    }
}

fn run_all(
    chosen: Vec<&dyn Experiment>,
    options: &Options,
    world: &Arc<dyn World>,
    stop: &AtomicBool,
    written: &mut dyn FnMut(&Path),
) -> Result<(), RunError> {
    let count = chosen.len();
    for experiment in chosen {
        written(&run_one(experiment, options, world, stop, count)?);
    }
    Ok(())
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
        outcome.notes.push(utilisation::NOTE.into());
    }
    let metrics = experiment.metrics();
    outcome.complete(metrics.iter().map(|(key, _)| key.as_str()));
    let stated = metrics.into_iter();
    let stated = stated.filter(|(_, stated)| !stated.is_empty());
    let stated = stated.map(|(key, stated)| (key, stated.on(options.preset())));
    outcome.label_simulated(options);
    bench.finish();
    let results = Results {
        about,
        stated: stated.collect(),
        options,
        machine: Machine::here(),
        outcome: &outcome,
    };
    Ok(results.write(&options.out)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Case, Measure};
    use crate::table::{Measured, Table};
    use std::sync::atomic::Ordering;

    /// A world that runs no actors.
    fn nowhere() -> Arc<dyn World> {
        let simulated = simulated_machine::SimulatedMachine::named("cx5-100g");
        simulated.expect("a preset").world().clone()
    }

    /// Makes a temporary directory, and options on `device` whose results go below it.
    fn on(device: &str) -> (tempfile::TempDir, Options) {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            out: dir.path().join("results"),
            ..Options::on(device.parse().unwrap())
        };
        (dir, options)
    }

    /// Returns the error of a run that is interrupted before it begins.
    fn interrupted(name: &str, options: &Options) -> RunError {
        let (world, stop) = (nowhere(), AtomicBool::new(true));
        let mut written = |path: &Path| panic!("{} was written", path.display());
        run(&[name.to_owned()], options, &world, &stop, &mut written).unwrap_err()
    }

    /// Asserts that a run is refused as bad input, with an error of one line that contains all of `parts`,
    /// and that it leaves no directory behind.
    fn refused(name: &str, options: &Options, parts: &[&str]) {
        let was_there = options.out.exists();
        let error = interrupted(name, options);
        let said = error.to_string();
        let says = |part: &&str| assert!(said.contains(*part), "{said}, without {part}");
        parts.iter().for_each(says);
        assert_eq!((error.exit_code(), said.lines().count()), (2, 1), "{said}");
        assert_eq!(options.out.exists(), was_there);
    }

    /// Asserts that a run is not refused.
    fn begins(name: &str, options: &Options) {
        let error = interrupted(name, options);
        assert!(matches!(error, RunError::Interrupted), "{error}");
    }

    #[test]
    fn an_interrupt_removes_only_directories_it_created() {
        let (dir, mut options) = on("soft");
        let all = dir.path().join("all");
        options.out = all.join("results");
        begins("rb2-table2", &options);
        assert!(!all.exists());
        // A directory that another run or the user made stays.
        std::fs::create_dir(&all).unwrap();
        begins("rb2-table2", &options);
        assert!(all.exists() && !options.out.exists());
        options.out = all.clone();
        begins("rb2-table2", &options);
        assert!(all.exists());
    }

    /// Two experiments: the first finds nothing, the second is interrupted.
    const QUICK: [Case<&str>; 2] = {
        const fn case(measure: Measure<&'static str>) -> Case<&'static str> {
            let about = About::new("quick", "Nothing.", "Nothing.");
            let table = || Table::new(Vec::new());
            Case {
                about,
                table,
                measure,
            }
        }
        [
            case(|_, _, _| Ok(Measured::default())),
            case(|bench, _, _| {
                bench.stop().store(true, Ordering::Relaxed);
                bench.check().map(|()| Measured::default())
            }),
        ]
    };

    #[test]
    fn results_written_before_an_interrupt_stay_and_are_reported() {
        let (_dir, options) = on("soft");
        let (world, stop) = (nowhere(), AtomicBool::new(false));
        let mut told = Vec::new();
        let mut written = |path: &Path| told.push(path.to_owned());
        let chosen: Vec<&dyn Experiment> = QUICK.iter().map(|case| case as _).collect();
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
    fn settings_that_contradict_each_other_are_bad_input() {
        for (setting, parts) in [
            (
                "nic.rx_pause=300",
                ["nic.rx_buffer=255.875", "at most 255.875 KiB"],
            ),
            (
                "switch.mark_all=50",
                ["switch.mark_from=100", "at most 50 KiB"],
            ),
        ] {
            let (_dir, mut options) = on("sim:cx4lx-2x25g");
            options.set = vec![setting.parse().unwrap()];
            let [other, allowed] = parts;
            refused("jet-fig2", &options, &["--set: ", setting, other, allowed]);
            options.set.push("nic.rx_buffer=0".parse().unwrap());
            options.set.push("switch.mark_from=0".parse().unwrap());
            begins("jet-fig2", &options);
        }
    }

    #[test]
    fn where_nothing_can_be_written_is_bad_input_before_anything_is_measured() {
        // No user can create anything in these directories.
        for out in ["/proc/self/results", "/proc/self/task"] {
            let (_dir, mut options) = on("soft");
            options.out = out.into();
            let said = format!("--out: cannot write {out}: ");
            refused("rb2-table2", &options, &[&said]);
        }
        // A directory has the name of a result file.
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
    fn a_real_time_experiment_refuses_simulated_devices_with_reasons() {
        let [soft, sim] = ["soft", "sim:cx5-100g,seed=3"];
        for experiment in registry() {
            let About { name, runs_on, .. } = *experiment.about();
            let RunsOn::Real(why) = runs_on else {
                continue;
            };
            // The experiment refuses a simulated device of either host.
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
    fn an_unrunnable_experiment_is_bad_input_with_a_reason() {
        let (dir, mut options) = on("soft");
        refused(
            "x",
            &options,
            &["no experiment is called \"x\"", "ring-vs-peers"],
        );
        refused("rxe-ring", &options, &["rxe-ring", "ibv:NAME"]);
        begins("rxe-ring", &on("ibv:rxe0").1);
        options.trace = Some(dir.path().join("none.pcap"));
        refused("rb2-case2", &options, &["only rb2-case1"]);
        refused("rb2-case1", &options, &["none.pcap"]);
        options.out = "/dev/null".into();
        options.trace = None;
        refused("rb2-case1", &options, &["--out: /dev/null is no directory"]);
        assert_eq!(RunError::Interrupted.exit_code(), 130);
        assert_eq!(RunError::Failed(String::new()).exit_code(), 1);
    }
}

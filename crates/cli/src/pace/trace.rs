//! `headworks pace trace`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use headworks::devices::check;
use headworks::net::Interrupt;
use headworks::pace::{PaceStatus, observers, rnic};
use headworks::sim::is_simulated;
use headworks::verbs::DeviceName;
use headworks_experiments::atomic_file::AtomicFile;
use headworks_experiments::format::grid::{Cell, Grid};
use headworks_experiments::format::svg::{Axis, Figure, Series};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{gbps, micros, unreadable_line};
use crate::args::device;
use crate::exit_status::{bad_input, write_line};
use crate::interruptible_sleep::sleep_unless_interrupted;

/// Longest time, in seconds: a year.
const FOR_MAX: u64 = 365 * 24 * 3600;
/// Longest interval, in milliseconds: a minute.
const INTERVAL_MAX: u64 = 60_000;
/// Most samples of one trace.
const SAMPLES_MAX: usize = 1_000_000;
/// Most points of a line of the figure.
const POINTS_MAX: usize = 1000;

/// Options of `headworks pace trace`.
#[derive(clap::Args)]
pub(crate) struct Trace {
    /// Milliseconds between two samples, 1 to 60000.
    #[arg(long, value_name = "N", default_value = "10", value_parser = interval, allow_hyphen_values = true)]
    interval_ms: u64,
    /// End after this many seconds; by default at Ctrl-C, or after a million samples.
    #[arg(long = "for", id = "secs", value_name = "SECS", value_parser = secs, allow_hyphen_values = true)]
    secs: Option<u64>,
    /// Directory of pace.csv and pace.svg. A missing one is created; existing files of these names are
    /// replaced.
    #[arg(long, value_name = "DIR", default_value = "results")]
    out: PathBuf,
    /// Watch this RNIC only, KIND[:NAME]; further options are ignored. Default: every RNIC that is paced.
    #[arg(long, value_name = "NAME", value_parser = device)]
    device: Option<DeviceName>,
}

fn within(text: &str, most: u64, what: &str) -> Result<u64, String> {
    let found: Option<u64> = text.parse().ok();
    found
        .filter(|found| (1..=most).contains(found))
        .ok_or_else(|| format!("whole {what}, 1 to {most}"))
}

fn interval(text: &str) -> Result<u64, String> {
    within(text, INTERVAL_MAX, "milliseconds")
}

fn secs(text: &str) -> Result<u64, String> {
    within(text, FOR_MAX, "seconds")
}

/// State of one RNIC at one time.
struct Sample {
    seconds: f64,
    /// Number of the RNIC, in the order in which RNICs were first seen.
    rnic: usize,
    status: PaceStatus,
}

/// The two output files. Each appears whole or not at all.
struct Files {
    csv: AtomicFile,
    svg: AtomicFile,
    directory: PathBuf,
}

impl Files {
    /// Reports files that cannot be written now, not after an hour of sampling.
    fn new(directory: &Path) -> anyhow::Result<Self> {
        let refused =
            |path: &Path, why| bad_input(format_args!("--out: {}: {why}", path.display()));
        std::fs::create_dir_all(directory).map_err(|why| refused(directory, why))?;
        let file = |name| {
            let path = directory.join(name);
            AtomicFile::of(&path).map_err(|why| refused(&path, why))
        };
        Ok(Self {
            csv: file("pace.csv")?,
            svg: file("pace.svg")?,
            directory: directory.to_owned(),
        })
    }

    fn write(self, csv: &str, svg: &str) -> anyhow::Result<()> {
        let Self {
            csv: table,
            svg: figure,
            directory,
        } = self;
        for (file, text) in [(table, csv), (figure, svg)] {
            let written = file.write(|out| out.write_all(text.as_bytes()));
            written.with_context(|| format!("writing to {}", directory.display()))?;
        }
        write_line(format_args!(
            "written: {}/pace.csv, pace.svg",
            directory.display()
        ));
        Ok(())
    }
}

pub(crate) fn run(command: &Trace) -> anyhow::Result<()> {
    let interrupt = Interrupt::install().context("catching signals")?;
    let only = command.device.as_ref().map(named).transpose()?;
    // Reports an unreadable registry before any file or directory is created.
    observers()?;
    let files = Files::new(&command.out)?;
    let mut watch = TraceRecorder {
        only,
        began: Instant::now(),
        rnics: BTreeMap::new(),
        samples: Vec::new(),
        unreadable: None,
    };
    let ended = watch.record(command, &interrupt);
    if let Some(line) = &watch.unreadable {
        write_line(line);
    }
    if watch.samples.is_empty() {
        write_line("nothing was paced meanwhile: the table is empty");
    }
    let svg = watch.figure().to_svg().map_err(anyhow::Error::msg)?;
    files.write(&watch.table().to_csv(), &svg)?;
    ended
}

/// Returns the name of the RNIC of a device that is to be watched.
fn named(device: &DeviceName) -> anyhow::Result<String> {
    match device.kind() {
        // Other options of the name concern opening the device, and nothing opens it here.
        "soft" | "ibv" => Ok(check(device).map(|()| rnic(device))?),
        _ if is_simulated(device) => Err(bad_input(format_args!(
            "{device} is simulated, and paced within its process only: this command cannot see it"
        ))),
        kind => Err(bad_input(format_args!(
            "no device kind {kind:?} is paced (known: soft, ibv)"
        ))),
    }
}

struct TraceRecorder {
    only: Option<String>,
    began: Instant,
    /// Number of each RNIC by its name, in the order in which they were first seen.
    rnics: BTreeMap<String, usize>,
    samples: Vec<Sample>,
    /// The line about processes whose pacing could not be read at the last sample.
    unreadable: Option<String>,
}

impl TraceRecorder {
    fn record(&mut self, command: &Trace, interrupt: &Interrupt) -> anyhow::Result<()> {
        let interval = Duration::from_millis(command.interval_ms);
        let end = command.secs.map(Duration::from_secs);
        let bar = bar();
        let mut next = Duration::ZERO;
        let ended = loop {
            if let Err(error) = self.take_samples(&bar) {
                break Err(error);
            }
            if self.samples.len() >= SAMPLES_MAX {
                bar.suspend(|| {
                    write_line(format_args!(
                        "{SAMPLES_MAX} samples: that is the most a trace may have"
                    ))
                });
                break Ok(());
            }
            // Sample times are multiples of the interval, so that a slow sample delays no other. Missed ones
            // are left out.
            let now = self.began.elapsed();
            while next <= now {
                next += interval;
            }
            let until = end.map_or(next, |end| next.min(end));
            if sleep_unless_interrupted(interrupt, until.saturating_sub(now))? {
                break Err(crate::exit_status::interrupted());
            }
            if end.is_some_and(|end| self.began.elapsed() >= end) {
                break Ok(());
            }
        };
        bar.finish_and_clear();
        ended
    }

    fn take_samples(&mut self, bar: &ProgressBar) -> anyhow::Result<()> {
        let is_new = self.samples.is_empty();
        let all = observers()?;
        self.unreadable = unreadable_line(&all);
        for observer in &all.rnics {
            let rnic = observer.rnic();
            if self.only.as_ref().is_some_and(|only| *only != rnic) {
                continue;
            }
            let number = self.rnics.len();
            let rnic = *self.rnics.entry(rnic).or_insert(number);
            self.samples.push(Sample {
                seconds: self.began.elapsed().as_secs_f64(),
                rnic,
                status: observer.status(),
            });
        }
        let line = match (&self.only, self.names().first()) {
            (None, None) => "nothing is paced yet: waiting".to_owned(),
            (Some(only), None) => format!("{only} is not paced yet: waiting"),
            (_, Some(rnic)) => format!("{rnic} is paced: watching"),
        };
        if (is_new && !self.samples.is_empty()) || bar.position() == 0 {
            bar.suspend(|| write_line(line));
        }
        if bar.position() == 0
            && let Some(line) = &self.unreadable
        {
            bar.suspend(|| write_line(line));
        }
        bar.inc(1);
        Ok(())
    }

    /// Returns the names of the RNICs, in the order of their numbers.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self
            .rnics
            .iter()
            .map(|(name, number)| (*number, &**name))
            .collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name).collect()
    }

    fn table(&self) -> Grid {
        let header = [
            "time [s]",
            "rnic",
            "rate [Gbit/s]",
            "delay [us]",
            "ratio [base delays]",
            "raise_below [base delays]",
            "lower_above [base delays]",
            "active [queue pairs]",
        ];
        let names = self.names();
        let row = |sample: &Sample| {
            let status = &sample.status;
            // There is no delay before the first completion.
            let is_seen = status.delay.nanos() > 0;
            let cells: [Cell; 8] = [
                // Rounded to the microsecond.
                ((sample.seconds * 1e6).round() / 1e6).into(),
                names[sample.rnic].into(),
                gbps(status.rate_bytes_per_s).into(),
                is_seen.then(|| micros(status)).into(),
                is_seen.then_some(status.ratio).into(),
                status.raise_below.into(),
                status.lower_above.into(),
                f64::from(status.active).into(),
            ];
            cells.map(|cell| cell.0).to_vec()
        };
        Grid {
            title: String::new(),
            header: header.map(str::to_owned).to_vec(),
            rows: self.samples.iter().map(row).collect(),
        }
    }

    fn figure(&self) -> Figure {
        let mut series = Vec::new();
        let mut stride = 1;
        for (number, name) in self.names().into_iter().enumerate() {
            let of = || self.samples.iter().filter(|sample| sample.rnic == number);
            let every = of().count().div_ceil(POINTS_MAX).max(1);
            stride = stride.max(every);
            let line = |what: &str, value: fn(&PaceStatus) -> f64| Series {
                name: format!("{what}, {name}"),
                points: of()
                    .step_by(every)
                    .map(|sample| (sample.seconds, value(&sample.status)))
                    .collect(),
            };
            series.push(line("rate", |status| gbps(status.rate_bytes_per_s)));
            series.push(line("delay", micros));
        }
        let title = match stride {
            1 => "Pacing: rate and delay".to_owned(),
            _ => format!("Pacing: rate and delay, one sample in {stride}"),
        };
        Figure {
            file: "pace.svg".to_owned(),
            title,
            x: Axis::linear("time [s]"),
            y: Axis::log("rate [Gbit/s], delay [us]"),
            series,
        }
    }
}

/// Creates the display of samples taken and time passed, which only a terminal shows.
fn bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    if let Ok(style) = ProgressStyle::with_template("{pos} samples, {elapsed}") {
        bar.set_style(style);
    }
    bar
}

//! `headworks sim soak`.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context;
use headworks::net::Interrupt;
use headworks_soak as soak;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::exit_status::{Exit, FAILED, bad_input, print, write_line};

/// Default seeds.
const SEEDS: Range<u64> = 1..1001;
/// End of a range of seeds that has no end.
const ENDLESS: u64 = u64::MAX;
/// Longest time, in seconds: a year.
const FOR_MAX: u64 = 365 * 24 * 3600;

/// Options of `headworks sim soak`.
#[derive(clap::Args)]
pub(crate) struct Soak {
    /// Run the seeds from A up to, but not including, B; A.. has no end and needs --for. [default: 1..1001;
    /// 1.. with --for]
    #[arg(long, value_name = "A..B", value_parser = seeds, allow_hyphen_values = true)]
    seeds: Option<Range<u64>>,
    /// Start no further seed after this many seconds.
    #[arg(long = "for", id = "secs", value_name = "SECS", value_parser = secs, allow_hyphen_values = true)]
    secs: Option<u64>,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let ends = text.split_once("..").and_then(|(from, to)| {
        let to = match to {
            "" => ENDLESS,
            to => to.parse().ok()?,
        };
        Some(from.parse().ok()?..to)
    });
    ends.filter(|seeds: &Range<u64>| seeds.start < seeds.end)
        .ok_or_else(|| {
            format!(
                "two whole numbers A..B, the first below the second, the second at most {}, or A.. with --for",
                u64::MAX
            )
        })
}

fn secs(text: &str) -> Result<u64, String> {
    let found: Option<u64> = text.parse().ok();
    found
        .filter(|secs| (1..=FOR_MAX).contains(secs))
        .ok_or_else(|| format!("whole seconds, 1 to {FOR_MAX}"))
}

/// Totals over all seeds.
#[derive(Default)]
struct SoakTotals {
    /// First seed.
    from: u64,
    seeds: u64,
    messages: u64,
    rings: usize,
    broken: usize,
    failed: u64,
}

/// Runs the seeds one after the other.
pub(crate) fn run(command: &Soak) -> anyhow::Result<()> {
    let interrupt = Interrupt::install().context("catching signals")?;
    let seeds = match (&command.seeds, command.secs) {
        (Some(seeds), None) if seeds.end == ENDLESS => {
            let from = seeds.start;
            return Err(bad_input(format_args!(
                "--seeds {from}..: seeds without an end need --for SECS, or an end, as in {from}..{}",
                from.saturating_add(1000)
            )));
        }
        (Some(seeds), _) => seeds.clone(),
        (None, Some(_)) => SEEDS.start..ENDLESS,
        (None, None) => SEEDS,
    };
    let until = command
        .secs
        .map(|secs| Instant::now() + Duration::from_secs(secs));
    let bar = bar(&seeds);
    let mut sum = SoakTotals {
        from: seeds.start,
        ..SoakTotals::default()
    };
    for seed in seeds {
        if interrupt.is_raised() || until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        sum.seeds += 1;
        match soak::run(seed) {
            Ok(ran) => {
                sum.messages += ran.messages;
                sum.rings += ran.rings;
                sum.broken += ran.broken;
            }
            Err(violation) => {
                sum.failed += 1;
                bar.suspend(|| write_line(&violation));
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    sum.print()?;
    let SoakTotals { seeds, failed, .. } = sum;
    if failed > 0 {
        let line = format!("{failed} of {seeds} seeds failed");
        return Err(Exit { code: FAILED, line }.into());
    }
    if interrupt.is_raised() {
        return Err(crate::exit_status::interrupted());
    }
    Ok(())
}

impl SoakTotals {
    fn print(&self) -> anyhow::Result<()> {
        let Self {
            from,
            seeds,
            messages,
            rings,
            broken,
            failed,
        } = self;
        print(&format!(
            "simulated: {seeds} seeds from {from} on, {messages} messages on {rings} rings, {broken} of them broken by the injected \
             faults; {failed} seeds failed\n"
        ))
    }
}

/// Creates the progress bar, which only a terminal shows.
fn bar(seeds: &Range<u64>) -> ProgressBar {
    let (bar, template) = match seeds.end {
        ENDLESS => (
            ProgressBar::no_length(),
            "{pos} seeds, {per_sec}, {elapsed}",
        ),
        _ => (
            ProgressBar::new(seeds.end - seeds.start),
            "{pos} of {len} seeds, {per_sec}, {eta} left",
        ),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

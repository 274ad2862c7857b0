//! Progress on standard error: a progress bar on a terminal, or occasional lines elsewhere. It includes the
//! time left if that is known.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Least time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Progress of one experiment.
#[derive(Debug)]
pub struct ProgressReporter {
    name: &'static str,
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Instant,
    total: u64,
    done: u64,
    /// Whether all points take about as long as each other.
    alike: bool,
}

/// Template of the bar.
const BAR: &str = "{prefix} [{bar:30}], {eta} left: {msg}";
/// Template of the bar if some points take much longer than others.
const UNEVEN: &str = "{prefix} [{bar:30}], {elapsed} so far: {msg}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl ProgressReporter {
    /// Makes the reporter of experiment `name`. It shows nothing until [`expect`](Self::expect).
    pub fn new(name: &'static str) -> Self {
        let now = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            bar.set_style(style(BAR));
            bar.set_prefix(name);
            bar
        });
        Self {
            name,
            bar,
            started: now,
            last_line: now,
            total: 0,
            done: 0,
            alike: true,
        }
    }

    /// Announces `points` more points. `alike` says that each takes about as long as any other; otherwise the
    /// time left is not shown.
    pub fn expect(&mut self, points: u64, alike: bool) {
        self.total += points;
        self.alike &= alike;
        match &self.bar {
            Some(bar) => {
                bar.set_length(self.total);
                bar.set_style(style(if self.alike { BAR } else { UNEVEN }));
            }
            None if points > 1 => {
                tell(format_args!(
                    "{}: {} points to measure",
                    self.name, self.total
                ));
            }
            None => {}
        }
    }

    /// Shows that `what` is being measured now.
    pub fn at(&mut self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_prefix(self.number());
            bar.set_message(what.to_owned());
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            tell(format_args!("{}", self.line(self.started.elapsed(), what)));
        }
    }

    /// Returns the experiment's name, the number of the point that is being measured, and the number of all points.
    fn number(&self) -> String {
        let number = (self.done + 1).min(self.total);
        format!("{}: {number}/{}", self.name, self.total)
    }

    /// Returns the progress line after `elapsed`.
    fn line(&self, elapsed: Duration, what: &str) -> String {
        let left = match self.alike {
            true => format!(", {} left", time_left(elapsed, self.done, self.total)),
            false => String::new(),
        };
        format!("{}{left}: {what}", self.number())
    }

    /// Notes that one more point is done.
    pub fn done(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        }
    }

    /// Prints a message that the user should see at once.
    pub fn note(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.println(format!("{}: {what}", self.name)),
            None => tell(format_args!("{}: {what}", self.name)),
        }
    }

    /// Ends the progress display.
    pub fn finish(&mut self) {
        match &self.bar {
            Some(bar) => bar.finish_and_clear(),
            None => tell(format_args!(
                "{}: done in {} s",
                self.name,
                self.started.elapsed().as_secs()
            )),
        }
    }
}

/// Prints a line on standard error. Errors are ignored, because standard error may have no reader.
pub(crate) fn tell(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn time_left(elapsed: Duration, done: u64, total: u64) -> String {
    if done == 0 {
        return "unknown time".to_owned();
    }
    let each = elapsed.as_secs_f64() / done as f64;
    format!("{:.0} s", each * total.saturating_sub(done) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_the_pace_so_far() {
        assert_eq!(time_left(Duration::from_secs(10), 5, 20), "30 s");
        assert_eq!(time_left(Duration::from_secs(10), 0, 20), "unknown time");
    }

    #[test]
    fn no_remaining_time_is_shown_for_unequal_points() {
        let line = |alike| {
            let mut progress = ProgressReporter::new("t");
            progress.expect(4, true);
            progress.expect(1, alike);
            for _ in 0..4 {
                progress.done();
            }
            progress.line(Duration::from_secs(16), "the last")
        };
        assert_eq!(line(true), "t: 5/5, 4 s left: the last");
        assert_eq!(line(false), "t: 5/5: the last");
    }
}

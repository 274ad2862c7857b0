//! Progress on standard error: a bar with the time left on a terminal, a line now and then
//! elsewhere.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Progress of one experiment.
#[derive(Debug)]
pub struct Progress {
    name: &'static str,
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Instant,
    total: u64,
    done: u64,
}

impl Progress {
    /// Of the experiment called `name`; shows nothing until [`expect`](Self::expect).
    pub fn new(name: &'static str) -> Self {
        let now = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            let style = "{prefix} [{bar:30}] {pos}/{len}, {eta} left: {msg}";
            bar.set_style(
                ProgressStyle::with_template(style)
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
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
        }
    }

    /// There will be `points` more.
    pub fn expect(&mut self, points: u64) {
        self.total += points;
        match &self.bar {
            Some(bar) => bar.set_length(self.total),
            None if points > 1 => tell(format_args!("{}: {points} points to measure", self.name)),
            None => {}
        }
    }

    /// Now measuring `what`.
    pub fn at(&mut self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            let left = time_left(self.started.elapsed(), self.done, self.total);
            tell(format_args!(
                "{}: {}/{}, {left} left: {what}",
                self.name, self.done, self.total
            ));
        }
    }

    /// One more point is done.
    pub fn done(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        }
    }

    /// Something that whoever waits should know now.
    pub fn note(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.println(format!("{}: {what}", self.name)),
            None => tell(format_args!("{}: {what}", self.name)),
        }
    }

    /// Nothing more comes.
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

/// A line on standard error, which may have no reader.
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
}

//! Log of a daemon on standard error. Applications and peers can provoke lines, and the reader may have
//! stopped reading. Lines are therefore [rate limited](headworks::daemon::log_ratelimit), and a line that
//! standard error has no room for is dropped and counted. Logging never blocks.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks::daemon::log_ratelimit::LogRateLimit;
use headworks::net::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::exit_status::cut;

/// Longest line, in characters. With the notes about other lines it stays within the 4,096 bytes that a pipe
/// accepts at once if it accepts any.
const LINE_MAX: usize = 900;

/// Destination of a daemon's log lines. Clones share one state.
pub(crate) struct StderrLog<F = io::Stderr>(Arc<Mutex<State<F>>>);

struct State<F> {
    out: F,
    seldom: LogRateLimit<Identifier>,
    /// Lines dropped for lack of room since the last line that was written.
    lost: u64,
}

impl StderrLog {
    pub(crate) fn of_stderr() -> Self {
        Self::of(io::stderr())
    }
}

impl<F: AsFd> StderrLog<F> {
    fn of(out: F) -> Self {
        let state = State {
            out,
            seldom: LogRateLimit::default(),
            lost: 0,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, State<F>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a line; no rate limit applies.
    pub(crate) fn write_line(&self, line: impl fmt::Display) {
        self.lock().say(&line.to_string(), 0);
    }
}

impl<F: AsFd> State<F> {
    fn say(&mut self, line: &str, unsaid: u64) {
        let line = cut(line.trim_end(), LINE_MAX);
        let lost = match self.lost {
            0 => Cow::Borrowed(""),
            lost => format!("{lost} lines were lost: nobody read standard error\n").into(),
        };
        let more = match unsaid {
            0 => Cow::Borrowed(""),
            more => format!(" (and {more} more like it since the last)").into(),
        };
        let text = format!("{lost}{line}{more}\n");
        let is_said = has_room(&self.out) && rustix::io::write(&self.out, text.as_bytes()).is_ok();
        self.lost = if is_said { 0 } else { self.lost + 1 };
    }
}

/// Whether a line can be written without blocking. Also true if the write would fail, which does not block.
fn has_room(out: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(out, PollFlags::OUT)];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    polled.is_ok_and(|ready| ready > 0)
}

impl<F> Clone for StderrLog<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Writer for one line that a library logs.
pub(crate) struct LogLine<'j, F> {
    journal: &'j StderrLog<F>,
    /// How many lines of its kind were suppressed before it; `None` if this line is suppressed, too.
    unsaid: Option<u64>,
}

impl<F: AsFd> io::Write for LogLine<'_, F> {
    /// Logs all of `bytes`: tracing formats a whole line before it writes it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(unsaid) = self.unsaid {
            let line = String::from_utf8_lossy(bytes);
            self.journal.lock().say(&line, unsaid);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'j, F: AsFd + 'j> MakeWriter<'j> for StderrLog<F> {
    type Writer = LogLine<'j, F>;

    fn make_writer(&'j self) -> Self::Writer {
        LogLine {
            journal: self,
            unsaid: Some(0),
        }
    }

    fn make_writer_for(&'j self, of: &Metadata<'_>) -> Self::Writer {
        // Debug and trace lines are not limited: they are switched on to find something, and all are needed.
        let is_seldom = *of.level() <= Level::INFO;
        let due = || self.lock().seldom.due(of.callsite(), clock::now());
        LogLine {
            journal: self,
            unsaid: if is_seldom { due() } else { Some(0) },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use headworks::daemon::log_ratelimit::LINES;
    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::pipe::pipe;

    use super::*;

    /// Reads what a pipe holds.
    fn drained(pipe: &mut File) -> String {
        fcntl_setfl(&*pipe, OFlags::NONBLOCK).unwrap();
        let mut bytes = Vec::new();
        if let Err(error) = pipe.read_to_end(&mut bytes) {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
        String::from_utf8(bytes).unwrap()
    }

    fn stderr_log() -> (File, StderrLog<OwnedFd>) {
        let (read, write) = pipe().unwrap();
        (read.into(), StderrLog::of(write))
    }

    #[test]
    fn an_unread_log_never_blocks_and_counts_lost_lines() {
        let (mut pipe, journal) = stderr_log();
        // Many times what a pipe holds. Some lines are longer than a pipe accepts at once.
        let long = "long ".repeat(2000);
        for number in 0..1000 {
            journal.write_line(format_args!("{number} {}", &long[..(number * 10) % 9000]));
        }
        let said = drained(&mut pipe);
        let kept = said.lines().count();
        assert!(kept < 1000, "nothing was lost");
        for (number, line) in said.lines().enumerate() {
            assert_eq!(line.split(' ').next(), Some(&*number.to_string()));
            assert!(line.chars().count() <= LINE_MAX + 1, "{line}");
        }
        journal.write_line("heard");
        let lost = 1000 - kept;
        let said = drained(&mut pipe);
        assert_eq!(
            said,
            format!("{lost} lines were lost: nobody read standard error\nheard\n")
        );
        // A reader that is gone is no failure.
        drop(pipe);
        journal.write_line("unheard");
    }

    #[test]
    fn warnings_are_rate_limited_and_debug_lines_are_not() {
        let (mut pipe, journal) = stderr_log();
        let log = tracing_subscriber::fmt()
            .with_max_level(Level::DEBUG)
            .with_writer(journal)
            .finish();
        tracing::subscriber::with_default(log, || {
            for number in 0..100 {
                tracing::warn!("provoked {number}");
                tracing::debug!("asked for {number}");
            }
            tracing::warn!("another");
        });
        let said = drained(&mut pipe);
        assert_eq!(said.matches("provoked").count(), LINES as usize, "{said}");
        assert_eq!(said.matches("asked for").count(), 100, "{said}");
        assert_eq!(said.matches("another").count(), 1, "{said}");
    }
}

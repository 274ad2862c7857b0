//! What a daemon says on standard error. Others provoke some of it, and whoever reads it may have stopped to: a line is
//! said [seldom](headworks::daemon::log_ratelimit), and is lost, and counted, where there is no room for it. Nothing waits.

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

/// Characters of a line at most: beside what is said of other lines they are no more than the 4,096 bytes that a pipe
/// takes at once if it takes any.
const LINE_MAX: usize = 900;

/// Where a daemon's lines go. Clones are the same one.
pub(crate) struct StderrLog<F = io::Stderr>(Arc<Mutex<State<F>>>);

struct State<F> {
    out: F,
    seldom: LogRateLimit<Identifier>,
    /// Lines for which there was no room.
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

    /// Says a line.
    pub(crate) fn tell(&self, line: impl fmt::Display) {
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

/// Whether a line can be written without waiting; also where that fails, which is no wait.
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

/// A line that the libraries say.
pub(crate) struct LogLine<'j, F> {
    journal: &'j StderrLog<F>,
    /// How many like it were not said; `None` where it is not either.
    unsaid: Option<u64>,
}

impl<F: AsFd> io::Write for LogLine<'_, F> {
    /// All of it: lines are made before they are written.
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
        // Whoever asks for more than that looks for something, and wants all of it.
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

    /// What lies in a pipe.
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
    fn nobody_waits_for_who_does_not_read_and_what_was_lost_is_counted() {
        let (mut pipe, journal) = stderr_log();
        // Many times what a pipe holds; some are longer than what it takes at once.
        let long = "long ".repeat(2000);
        for number in 0..1000 {
            journal.tell(format_args!("{number} {}", &long[..(number * 10) % 9000]));
        }
        let said = drained(&mut pipe);
        let kept = said.lines().count();
        assert!(kept < 1000, "nothing was lost");
        for (number, line) in said.lines().enumerate() {
            assert_eq!(line.split(' ').next(), Some(&*number.to_string()));
            assert!(line.chars().count() <= LINE_MAX + 1, "{line}");
        }
        journal.tell("heard");
        let lost = 1000 - kept;
        let said = drained(&mut pipe);
        assert_eq!(
            said,
            format!("{lost} lines were lost: nobody read standard error\nheard\n")
        );
        // A reader that is gone is no failure.
        drop(pipe);
        journal.tell("unheard");
    }

    #[test]
    fn lines_that_are_provoked_are_said_seldom_and_others_none_the_less() {
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

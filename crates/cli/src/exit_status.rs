//! Turns a failure into one line and an exit code.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use headworks::devices::is_bad_input;
use headworks::net::signals::EXIT_INTERRUPTED;
use headworks::pipe::PipeError;
use headworks::sim::is_simulated;
use headworks::verbs::{DeviceName, OpenError};

/// Exit code of a failure, for example that the peer died.
pub(crate) const FAILED: u8 = 1;
/// Exit code of bad input: a flag, a name, a device.
pub(crate) const BAD_INPUT: u8 = 2;

/// Failure whose exit code is known where it happens.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) code: u8,
    pub(crate) line: String,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl Error for Exit {}

/// Returns a failure with the exit code [`BAD_INPUT`] and this line.
pub(crate) fn bad_input(line: impl fmt::Display) -> anyhow::Error {
    let line = line.to_string();
    Exit {
        code: BAD_INPUT,
        line,
    }
    .into()
}

/// Returns the failure of a command that a signal ended.
pub(crate) fn interrupted() -> anyhow::Error {
    let line = "interrupted".to_owned();
    let code = EXIT_INTERRUPTED;
    Exit { code, line }.into()
}

/// Returns the failure of a command that a signal ended, with what the user can do now.
pub(crate) fn interrupted_but(advice: &str) -> anyhow::Error {
    let line = format!("interrupted: {advice}");
    let code = EXIT_INTERRUPTED;
    Exit { code, line }.into()
}

/// Refuses a simulated `device`: its network exists within one process, so two processes cannot meet on it.
pub(crate) fn check_not_simulated(device: &DeviceName) -> anyhow::Result<()> {
    match is_simulated(device) {
        true => Err(bad_input(format_args!(
            "{device} is simulated within this process, and no other process can connect to it: name another device (`headworks \
             experiment run NAME --device {device}` needs one process only)"
        ))),
        false => Ok(()),
    }
}

/// Writes text to standard output. A closed reader is no failure; a full disk is.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_unless_closed(text).map(drop)
}

/// Does what [`print`] does, and returns `false` if the reader has closed standard output.
pub(crate) fn print_unless_closed(text: &str) -> anyhow::Result<bool> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(anyhow::Error::new(error).context("writing to standard output")),
    }
}

/// Writes a line to standard error. A failed write is ignored: the exit code still reports the outcome.
pub(crate) fn write_line(line: impl fmt::Display) {
    // One write: another process may write a line at the same time, or be killed in the middle of one.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Reports in one line what is wrong with the command line. A request for help or the version succeeds.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A failed write is ignored: that nobody reads the help is no failure.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| {
        !line.is_empty() && !line.starts_with("Usage:") && !line.starts_with("For more information")
    });
    let first = lines.next().unwrap_or("error: bad command line");
    let rest: Vec<_> = lines.take(4).collect();
    if matches!(
        error.kind(),
        clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        write_line("headworks: no command given; `headworks --help` lists the commands");
        return BAD_INPUT.into();
    }
    let line = first.trim_start_matches("error: ");
    let rest = rest.join(" ");
    let gap = if rest.is_empty() { "" } else { " " };
    write_line(format_args!(
        "headworks: {} (see --help)",
        brief(&format!("{line}{gap}{rest}"))
    ));
    BAD_INPUT.into()
}

/// Reports what failed, and returns the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let code = code_of(error);
    write_line(format_args!("headworks: {}", brief(&one_line(error))));
    code.into()
}

/// Longest word of a message, in characters. Legal names are far shorter.
const WORD_MAX: usize = 200;
/// Longest message, in characters.
const LINE_MAX: usize = 1000;

/// Shortens a message that somebody's input has made long.
fn brief(line: &str) -> String {
    let words = line.split(' ').map(|word| cut(word, WORD_MAX));
    cut(&words.collect::<Vec<_>>().join(" "), LINE_MAX)
}

/// Returns the first `most` characters of a text, with an ellipsis if it is longer.
pub(crate) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Joins the error and its causes, leaving out a cause that the text before it already ends with.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.ends_with(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

/// Returns the exit code for an error.
pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(exit) = cause.downcast_ref::<Exit>() {
            return exit.code;
        }
        if let Some(error) = cause.downcast_ref::<headworks_experiments::RunError>() {
            return error.exit_code();
        }
        if let Some(error) = cause.downcast_ref::<OpenError>() {
            return if is_bad_input(error) {
                BAD_INPUT
            } else {
                FAILED
            };
        }
        match cause.downcast_ref::<PipeError>() {
            Some(PipeError::Interrupted) => return EXIT_INTERRUPTED,
            Some(error) if error.is_bad_input() => return BAD_INPUT,
            _ => {}
        }
    }
    FAILED
}

//! How a failure becomes one line and an exit code.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use headworks::devices::is_bad_input;
use headworks::net::signals::EXIT_INTERRUPTED;
use headworks::pipe::PipeError;
use headworks::sim::is_simulated;
use headworks::verbs::{DeviceName, OpenError};

/// Failed, or the peer died.
pub(crate) const FAILED: u8 = 1;
/// Bad input: a flag, a name, a device.
pub(crate) const BAD_INPUT: u8 = 2;

/// A failure whose exit code is known where it happens.
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

/// Bad input, in one line.
pub(crate) fn bad_input(line: impl fmt::Display) -> anyhow::Error {
    let line = line.to_string();
    Exit {
        code: BAD_INPUT,
        line,
    }
    .into()
}

/// That a signal came.
pub(crate) fn interrupted() -> anyhow::Error {
    let line = "interrupted".to_owned();
    let code = EXIT_INTERRUPTED;
    Exit { code, line }.into()
}

/// That `device` is one on which two processes can meet: each simulates a network of its own.
pub(crate) fn check_not_simulated(device: &DeviceName) -> anyhow::Result<()> {
    match is_simulated(device) {
        true => Err(bad_input(format_args!(
            "{device} is simulated, in a world of this process alone: no other process is there to meet (`headworks \
             experiment run NAME --device {device}` runs in one process; for two name another device)"
        ))),
        false => Ok(()),
    }
}

/// Text on standard output. A reader that has seen enough is no failure; a full disk is.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_unless_closed(text).map(drop)
}

/// [`print`]; `false` once nobody reads it any more.
pub(crate) fn print_unless_closed(text: &str) -> anyhow::Result<bool> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(anyhow::Error::new(error).context("writing to standard output")),
    }
}

/// A line on standard error. Where nobody reads it, the exit code still says how it went.
pub(crate) fn tell(line: impl fmt::Display) {
    // In one piece: another process may be writing a line of its own, and may be killed in the middle.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Says in one line what is wrong with the command line. What was only asked for help succeeds.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Nobody reads it: no reason to fail.
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
        tell("headworks: no command given: `--help` lists them");
        return BAD_INPUT.into();
    }
    let line = first.trim_start_matches("error: ");
    let rest = rest.join(" ");
    let gap = if rest.is_empty() { "" } else { " " };
    tell(format_args!(
        "headworks: {} (see --help)",
        brief(&format!("{line}{gap}{rest}"))
    ));
    BAD_INPUT.into()
}

/// Says what failed, and what the program exits with.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let code = code_of(error);
    tell(format_args!("headworks: {}", brief(&one_line(error))));
    code.into()
}

/// Longest word of a message, in characters; no legal name comes near.
const WORD_MAX: usize = 200;
/// Longest message.
const LINE_MAX: usize = 1000;

/// A message as it is, unless somebody's input makes it long.
fn brief(line: &str) -> String {
    let words = line.split(' ').map(|word| cut(word, WORD_MAX));
    cut(&words.collect::<Vec<_>>().join(" "), LINE_MAX)
}

/// The first so many characters of a text.
pub(crate) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// The error and its causes, each said once: many name their cause themselves.
fn one_line(error: &anyhow::Error) -> String {
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

/// What the program exits with.
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

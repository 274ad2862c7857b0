//! Small programs within this one that are started as separate processes: the TCP program that
//! `headworks pipe` is compared with, and the program whose instructions per posted WRITE are counted.

pub mod post_writes;
pub mod tcp_copy;

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use headworks::verbs::DeviceName;
use headworks_runtime::DeviceOpener;

use crate::error::WorkloadError;
use crate::patterns;
use crate::service;
use crate::subprocess::{PROBE, Subprocess, SubprocessError, command, this_program};

/// Runs the probe that this process was started as, and returns its exit code; `None` if it was not started
/// as a probe. A program that runs experiments calls this first.
pub fn child_main(open: &DeviceOpener) -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != PROBE {
        return None;
    }
    let words: Vec<String> = args.filter_map(|a| a.into_string().ok()).collect();
    Some(match run(&words, open) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            crate::progress_bar::tell(format_args!("{why}"));
            ExitCode::FAILURE
        }
    })
}

fn run(words: &[String], open: &DeviceOpener) -> Result<(), WorkloadError> {
    let number = |text: &str| text.parse::<u64>().map_err(|e| WorkloadError::at(text, e));
    match words {
        [name, device, count] if name == "posts" => {
            let device: DeviceName = device.parse().map_err(|e| WorkloadError::at("device", e))?;
            post_writes::post(&device, number(count)?, open)
        }
        [name, port, buffer] if name == "tcp-receive" => {
            tcp_copy::receive(std::path::Path::new(port), number(buffer)? as usize)
        }
        [name, port, buffer] if name == "tcp-send" => {
            tcp_copy::send(std::path::Path::new(port), number(buffer)? as usize)
        }
        [name, role] if name == service::control::NAME => service::run_role(role),
        [name, words @ ..] if name == patterns::instructions::NAME => {
            patterns::instructions::probe(words, open)
        }
        _ => Err(WorkloadError(format!("unknown probe {words:?}"))),
    }
}

/// Counts the instructions of a 64-byte WRITE that is posted by itself, and returns them with Valgrind's
/// version. The count is the difference between two runs under callgrind, so that one-time work cancels out.
pub fn post_instructions(
    device: &DeviceName,
    stop: &AtomicBool,
) -> Result<(f64, String), SubprocessError> {
    const COUNTS: [u64; 2] = [2_000, 22_000];
    let mut version = command("valgrind");
    let version = Subprocess::start(version.arg("--version"), None)
        .and_then(|v| v.finish(Duration::from_secs(10), stop))
        .map_err(|why| SubprocessError(format!("valgrind is not installed ({why})")))?
        .out;
    let mut totals = [0.0; 2];
    for (total, count) in totals.iter_mut().zip(COUNTS) {
        let mut run = command("valgrind");
        run.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        run.arg(this_program()?)
            .args([PROBE, "posts", &device.to_string(), &count.to_string()]);
        let run = Subprocess::start(&mut run, None)?.finish(Duration::from_secs(60), stop)?;
        *total = collected(&run.err).filter(|_| run.success).ok_or_else(|| {
            let line = run
                .err
                .lines()
                .rfind(|l| !l.starts_with("=="))
                .unwrap_or("no count");
            SubprocessError(format!("under valgrind: {line}"))
        })?;
    }
    Ok((
        (totals[1] - totals[0]) / (COUNTS[1] - COUNTS[0]) as f64,
        version.trim().to_owned(),
    ))
}

/// Finds the instruction count in callgrind's output: `==7== Collected : 1234567`.
fn collected(text: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let (_, rest) = line.split_once("Collected :")?;
        rest.split_whitespace().next()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_callgrinds_count() {
        assert_eq!(
            collected("==7== Events    : Ir\n==7== Collected : 1234567\n"),
            Some(1234567.0)
        );
        assert_eq!(collected("no such thing"), None);
    }
}

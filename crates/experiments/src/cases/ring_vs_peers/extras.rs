//! What is measured by starting this program again: a file through `headworks pipe` and over TCP,
//! and the instructions of a post.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::external::{ExternalError, Running};
use crate::outcome::Outcome;
use crate::probe;
use crate::runner::RunError;
use crate::stats::{Spread, median, paired_ratio};

const FILE: u64 = 4 << 30;
const QUICK_FILE: u64 = 256 << 20;
/// The buffers that the TCP program is tried with.
const TCP_BUFFERS: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];
/// A transfer that takes longer has hung.
const LIMIT: Duration = Duration::from_secs(60);
const QUICK_LIMIT: Duration = Duration::from_secs(6);

/// Adds the figures to `outcome`.
pub(super) fn measure(bench: &mut Bench<'_>, outcome: &mut Outcome) -> Result<(), RunError> {
    let device = bench.options.device.clone();
    match bench.once("instructions of a post", |b| {
        probe::post_instructions(&device, b.stop())
    })? {
        Ok((instructions, version)) => {
            outcome.versions.push(("Valgrind".into(), version));
            outcome.measured("post_write_instructions", Spread::single(instructions));
        }
        Err(why) => outcome.skip("post_write_instructions", why.to_string()),
    }
    let file = match bench.once("writing a file", cached_file)? {
        Ok(file) => file,
        Err(why) => {
            for key in ["pipe_over_tcp", "pipe_gb_per_s", "tcp_file_gb_per_s"] {
                outcome.skip(key, why.to_string());
            }
            return Ok(());
        }
    };
    let bytes = if bench.options.quick {
        QUICK_FILE
    } else {
        FILE
    };
    let rounds = match (bench.options.quick, bench.is_late()) {
        (true, true) => 1,
        (true, false) => 2,
        (false, _) => 5,
    };
    let buffer = bench.once("TCP buffers", |b| best_buffer(b, file.path()))?;
    let (mut pipe, mut tcp, mut failure) = (Vec::new(), Vec::new(), None);
    for _ in 0..rounds {
        let time = bench.once("file over TCP", |b| over_tcp(b, file.path(), buffer))?;
        tcp.push(rate(bytes, time, &mut failure));
        if failure.is_none() {
            let time = bench.once("file through headworks pipe", |b| piped(b, file.path()))?;
            pipe.push(rate(bytes, time, &mut failure));
        }
    }
    outcome.notes.push(format!(
        "The file for pipe_over_tcp has {} MiB and is in the page cache; the TCP program reads and \
         writes {} KiB at a time.",
        bytes >> 20,
        buffer >> 10
    ));
    let why = failure.unwrap_or_default();
    outcome.measured_or("pipe_over_tcp", paired_ratio(&pipe, &tcp), &*why);
    outcome.measured_or("pipe_gb_per_s", Spread::of(&pipe), &*why);
    outcome.measured_or("tcp_file_gb_per_s", Spread::of(&tcp), &*why);
    Ok(())
}

fn rate(bytes: u64, time: Result<Duration, ExternalError>, failure: &mut Option<String>) -> f64 {
    match time {
        Ok(time) => bytes as f64 / time.as_secs_f64() / 1e9,
        Err(why) => {
            failure.get_or_insert(why.to_string());
            f64::NAN
        }
    }
}

/// A file of the size to send, just written and therefore in the page cache.
fn cached_file(bench: &Bench<'_>) -> Result<tempfile::NamedTempFile, ExternalError> {
    let failed = |why: std::io::Error| ExternalError(format!("a file to send: {why}"));
    let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
    let piece: Vec<u8> = (0..1_u32 << 20)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let bytes = if bench.options.quick {
        QUICK_FILE
    } else {
        FILE
    };
    for _ in 0..bytes >> 20 {
        file.write_all(&piece).map_err(failed)?;
        if bench.check().is_err() {
            return Err(ExternalError("interrupted".into()));
        }
    }
    Ok(file)
}

fn best_buffer(bench: &Bench<'_>, file: &Path) -> usize {
    let timed = TCP_BUFFERS.map(|buffer| {
        let tries = if bench.options.quick { 1 } else { 2 };
        let times: Vec<f64> = (0..tries)
            .filter_map(|_| over_tcp(bench, file, buffer).ok())
            .map(|time| time.as_secs_f64())
            .collect();
        (median(&times).unwrap_or(f64::INFINITY), buffer)
    });
    timed
        .into_iter()
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(TCP_BUFFERS[1], |best| best.1)
}

/// From the start of both programs to the end of both.
fn over_tcp(bench: &Bench<'_>, file: &Path, buffer: usize) -> Result<Duration, ExternalError> {
    let dir = private()?;
    let port = dir.path().join("port");
    let (port, buffer) = (port.to_string_lossy().into_owned(), buffer.to_string());
    let receive = probe::probe(&["tcp-receive", &port, &buffer])?;
    let send = probe::probe(&["tcp-send", &port, &buffer])?;
    both(bench, receive, send, file)
}

/// The same through `headworks pipe`, which is a subcommand of this program.
fn piped(bench: &Bench<'_>, file: &Path) -> Result<Duration, ExternalError> {
    let dir = private()?;
    let name = dir
        .path()
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let [send, receive] = pipe_commands(bench, &name)?;
    both(bench, receive, send, file)
}

/// `headworks pipe` as sender of standard input and as receiver to standard output, which meet
/// under `name`.
fn pipe_commands(bench: &Bench<'_>, name: &str) -> Result<[Command; 2], ExternalError> {
    let program = probe::this_program()?;
    let [here, there] = &bench.place.devices;
    let pipe = |way: &str, device: &str| {
        let mut command = Command::new(&program);
        // They are started together: either may be there first.
        command.args(["pipe", way, name, "--device", device, "--timeout", "10"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    };
    Ok([
        pipe("connect", &here.to_string()),
        pipe("listen", &there.to_string()),
    ])
}

fn both(
    bench: &Bench<'_>,
    mut receive: Command,
    mut send: Command,
    file: &Path,
) -> Result<Duration, ExternalError> {
    let input = File::open(file).map_err(|e| ExternalError(format!("the file to send: {e}")))?;
    let [here, there] = bench.place.cpus;
    let began = Instant::now();
    let receiver = Running::start(&mut receive, Some(there))?;
    let sender = Running::start(send.stdin(input), Some(here))?;
    let limit = if bench.options.quick {
        QUICK_LIMIT
    } else {
        LIMIT
    };
    for part in [sender, receiver] {
        let finished = part.finish(limit, bench.stop())?;
        if !finished.success {
            let line = finished
                .err
                .lines()
                .next()
                .unwrap_or("failed without a word")
                .to_owned();
            return Err(ExternalError(line));
        }
    }
    Ok(began.elapsed())
}

fn private() -> Result<tempfile::TempDir, ExternalError> {
    let dir = tempfile::Builder::new().prefix("headworks-").tempdir();
    dir.map_err(|e| ExternalError(format!("private directory: {e}")))
}

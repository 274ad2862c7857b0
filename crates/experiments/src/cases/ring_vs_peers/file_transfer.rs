//! The transfer of a file through `headworks pipe` and over TCP, by programs that are started for it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::{Arm, Pipe, TcpFile, file as point_of};
use crate::cases::prelude::*;
use crate::stats::median;
use crate::subprocess::{self, Subprocess};

/// Buffer sizes that the TCP program is tried with.
const TCP_BUFFERS: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];

/// Returns the bytes of the file, and the time after which a transfer counts as hung.
fn bytes_and_limit(bench: &Bench<'_>) -> (u64, Wall) {
    match bench.options.quick {
        true => (256 << 20, Wall::from_secs(6)),
        false => (4 << 30, Wall::from_secs(60)),
    }
}

/// Measures both transfers in GB/s.
pub(super) fn measure(
    bench: &mut Bench<'_>,
    t: &mut Table<Arm>,
) -> Result<Measured<Arm>, RunError> {
    let file = match bench.once("writing a file", cached_file)? {
        Ok(file) => file,
        Err(why) => {
            let failures = [Pipe, TcpFile].map(|arm| (arm.to_string(), why.to_string()));
            return Ok(Measured::new([], BTreeMap::from(failures)));
        }
    };
    let (bytes, _) = bytes_and_limit(bench);
    let buffer = bench.once("TCP buffers", |bench| best_buffer(bench, file.path()))?;
    t.note(format!(
        "The file for pipe_over_tcp has {} MiB and is in the page cache; the TCP program reads and \
         writes {} KiB at a time.",
        bytes >> 20,
        buffer >> 10
    ));
    let points = vec![point_of(TcpFile), point_of(Pipe)];
    let sweep = Sweep::over("", Wall::ZERO, Wall::ZERO);
    bench.measure(points, sweep, |bench, point, _| {
        let seconds = match point.arm {
            Pipe => piped(bench, file.path())?,
            _ => over_tcp(bench, file.path(), buffer)?,
        };
        Ok(Some((bytes as f64 / seconds / 1e9).into()))
    })
}

/// Writes the file to send. It has just been written, so it is in the page cache.
fn cached_file(bench: &Bench<'_>) -> Result<tempfile::NamedTempFile, WorkloadError> {
    let failed = |why: std::io::Error| WorkloadError::at("a file to send", why);
    let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
    let piece = (0..1_u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8);
    let piece: Vec<u8> = piece.collect();
    for _ in 0..bytes_and_limit(bench).0 >> 20 {
        file.write_all(&piece).map_err(failed)?;
        bench
            .check()
            .map_err(|why| WorkloadError(why.to_string()))?;
    }
    Ok(file)
}

fn best_buffer(bench: &Bench<'_>, file: &Path) -> usize {
    let tries = if bench.options.quick { 1 } else { 2 };
    let timed = TCP_BUFFERS.map(|buffer| {
        let times = (0..tries).filter_map(|_| over_tcp(bench, file, buffer).ok());
        let times: Vec<f64> = times.collect();
        (median(&times).unwrap_or(f64::INFINITY), buffer)
    });
    let best = timed.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    best.map_or(TCP_BUFFERS[1], |(_, buffer)| buffer)
}

/// Transfers the file over TCP; returns the seconds from the start of both programs to the end of both.
fn over_tcp(bench: &Bench<'_>, file: &Path, buffer: usize) -> Result<f64, WorkloadError> {
    let dir = private_dir()?;
    let port = dir.path().join("port");
    let (port, buffer) = (port.to_string_lossy().into_owned(), buffer.to_string());
    let [receive, send] =
        ["tcp-receive", "tcp-send"].map(|way| subprocess::child_program(&[way, &port, &buffer]));
    both(bench, receive?, send?, file)
}

/// Transfers the file through `headworks pipe`, a subcommand of this program that sends standard input and
/// receives to standard output. Returns the seconds from the start of both programs to the end of both.
fn piped(bench: &Bench<'_>, file: &Path) -> Result<f64, WorkloadError> {
    let dir = private_dir()?;
    let name = dir.path().file_name().unwrap_or_default();
    let program = subprocess::this_program()?;
    let [here, there] = &bench.testbed.devices;
    let pipe = |way: &str, device: &str| {
        let mut command = Command::new(&program);
        // Both are started at the same time, and either may be ready first.
        command.args(["pipe", way]).arg(name);
        command.args(["--device", device, "--timeout", "10"]);
        let (input, output) = (Stdio::null(), Stdio::null());
        command.stdin(input).stdout(output).stderr(Stdio::piped());
        command
    };
    let send = pipe("connect", &here.to_string());
    both(bench, pipe("listen", &there.to_string()), send, file)
}

fn both(
    bench: &Bench<'_>,
    mut receive: Command,
    mut send: Command,
    file: &Path,
) -> Result<f64, WorkloadError> {
    let input = File::open(file).map_err(|why| WorkloadError::at("the file to send", why))?;
    let [here, there] = bench.testbed.cpus;
    let began = Instant::now();
    let receiver = Subprocess::start(&mut receive, Some(there))?;
    let sender = Subprocess::start(send.stdin(input), Some(here))?;
    for part in [sender, receiver] {
        let finished = part.finish(bytes_and_limit(bench).1, bench.stop())?;
        if !finished.success {
            let line = finished.err.lines().next();
            return Err(WorkloadError(
                line.unwrap_or("failed without a word").to_owned(),
            ));
        }
    }
    Ok(began.elapsed().as_secs_f64())
}

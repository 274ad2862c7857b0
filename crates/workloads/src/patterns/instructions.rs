//! Instructions per request of a requester's or a responder's turn, counted by callgrind on the software RNIC. Everything
//! runs in one thread in a fixed order, so two counts are the same.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use headworks::verbs::{Device, DeviceName};
use headworks_runtime::DeviceOpener;

use super::design::Design;
use super::hand_written::HandWritten;
use super::one_thread::OneThread;
use super::task::PatternTask;
use crate::error::{Result, WorkloadError};
use crate::subprocess::{PROBE, Subprocess, SubprocessError, command, this_program};

/// Name of the probe that runs the counted program.
pub(crate) const NAME: &str = "pattern-turns";
/// Requests of a count.
const COUNT: u64 = 2_000;
/// Time limit of a count.
const LIMIT: Duration = Duration::from_secs(120);

/// The side whose instructions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedSide {
    /// The requester.
    Requester,
    /// The responder.
    Responder,
}

/// The program that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedProgram {
    /// The building blocks.
    Blocks,
    /// The loop that is written by hand.
    HandWritten,
}

/// Instructions per request, by where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TurnInstructions {
    /// In the program: the building blocks or the hand-written loop.
    pub program: f64,
    /// In the software RNIC.
    pub device: f64,
    /// In the standard library and the C library: copies, mainly.
    pub other: f64,
}

impl TurnInstructions {
    /// All instructions.
    pub fn total(self) -> f64 {
        self.program + self.device + self.other
    }
}

/// Counts the instructions of one side's turns, per request with a response of `response` bytes.
///
/// # Errors
///
/// Valgrind is not installed, or the program failed under it.
pub fn count(
    program: CountedProgram,
    design: Design,
    response: usize,
    side: CountedSide,
    stop: &AtomicBool,
) -> Result<TurnInstructions, SubprocessError> {
    let folder =
        tempfile::tempdir().map_err(|why| SubprocessError(format!("a temporary folder: {why}")))?;
    let out = folder.path().join("callgrind.out");
    let turn = match side {
        CountedSide::Requester => "requester_turn",
        CountedSide::Responder => "responder_turn",
    };
    let program = match program {
        CountedProgram::Blocks => "blocks",
        CountedProgram::HandWritten => "hand-written",
    };
    let mut run = command("valgrind");
    run.args([
        "--tool=callgrind",
        "--compress-strings=no",
        "--compress-pos=no",
    ])
    .arg(format!("--toggle-collect=*{turn}*"))
    .arg(format!("--callgrind-out-file={}", out.display()))
    .arg(this_program()?)
    .args([PROBE, NAME, program, &design.to_string()])
    .args([response, COUNT as usize].map(|number| number.to_string()));
    let started = Subprocess::start(&mut run, None)
        .map_err(|why| SubprocessError(format!("valgrind is not installed ({why})")))?;
    let run = started.finish(LIMIT, stop)?;
    let text = std::fs::read_to_string(&out).ok().filter(|_| run.success);
    let text = text.ok_or_else(|| {
        let line = run.err.lines().rfind(|line| !line.starts_with("=="));
        SubprocessError(format!("under valgrind: {}", line.unwrap_or("no count")))
    })?;
    let counted = by_place(&text, COUNT);
    match counted.total() > 0.0 {
        true => Ok(counted),
        false => Err(SubprocessError(format!("no function is called {turn}"))),
    }
}

/// Sums the instructions in callgrind's output by place, per request.
fn by_place(text: &str, requests: u64) -> TurnInstructions {
    let mut sums = TurnInstructions::default();
    let mut function = "";
    let mut is_call = false;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = name;
        } else if line.starts_with("calls=") {
            // The next line has the instructions of the called function.
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let cost = line.split_whitespace().nth(1);
            let cost = cost
                .and_then(|cost| cost.parse::<f64>().ok())
                .unwrap_or(0.0);
            if !std::mem::take(&mut is_call) {
                *place_of(function, &mut sums) += cost / requests as f64;
            }
        }
    }
    sums
}

fn place_of<'a>(function: &str, sums: &'a mut TurnInstructions) -> &'a mut f64 {
    let is_in = |crates: &[&str]| crates.iter().any(|name| function.contains(name));
    // A trait's method is named with its type first, so the type's crate decides.
    if is_in(&[
        "headworks_workloads",
        "headworks_patterns",
        "headworks_baselines",
    ]) {
        &mut sums.program
    } else if is_in(&["headworks"]) {
        &mut sums.device
    } else {
        &mut sums.other
    }
}

/// Runs the counted program: `words` are its name, the design, the size of a response, and the number of requests.
///
/// # Errors
///
/// A word is not legal, or the run failed.
pub(crate) fn probe(words: &[String], open: &DeviceOpener) -> Result<()> {
    let wrong = || WorkloadError(format!("{NAME}: unknown words {words:?}"));
    let [program, design, response, count] = words else {
        return Err(wrong());
    };
    let design: Design = design
        .parse()
        .map_err(|why| WorkloadError::at("design", why))?;
    let number = |word: &String| word.parse::<u64>().map_err(|_| wrong());
    let (response, count) = (number(response)? as usize, number(count)?);
    let devices = devices(open)?;
    match program.as_str() {
        "blocks" => {
            let task = PatternTask::paper(design, response, 1, 1);
            OneThread::open(&task, devices)?.run(count, 1).map(drop)
        }
        "hand-written" => HandWritten::open(design, response, devices)?.run(count),
        _ => Err(wrong()),
    }
}

/// Opens two hosts of the software RNIC.
///
/// # Errors
///
/// The registry cannot be used.
pub fn devices(open: &DeviceOpener) -> Result<[Arc<dyn Device>; 2]> {
    let one = |name: &str| {
        let name: DeviceName = name
            .parse()
            .map_err(|why| WorkloadError::at("device", why))?;
        open(&name).map_err(|why| WorkloadError::at("device", why))
    };
    Ok([one("soft:h1")?, one("soft:h2")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_summed_by_place_without_those_of_called_functions() {
        let text = "version: 1\nevents: Ir\n\nfn=<headworks_patterns::requester::Requester>::step\n\
            10 300\ncfn=<headworks_softnic::datapath::qp::SoftQp as headworks_verbs::QueuePair>::post_send\n\
            calls=100 5\n11 9000\n12 100\n\nfn=<headworks_softnic::datapath::qp::SoftQp>::post_send\n5 8000\n\
            fn=__memcpy_avx\n1 1000\n";
        let sums = by_place(text, 100);
        let expected = TurnInstructions {
            program: 4.0,
            device: 80.0,
            other: 10.0,
        };
        assert_eq!(sums, expected);
        assert_eq!(sums.total(), 94.0);
    }
}

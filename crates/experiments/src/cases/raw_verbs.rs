//! What a device does with plain verbs: how many requests, how many bytes, how fast one comes. On every simulated
//! preset, or on a device that is named.
//!
//! | module | what |
//! |---|---|
//! | `points` | what is measured, and measuring it |
//! | `published` | what others published of such RNICs |
//! | `keys` | the keys of the summary |
//! | `drawings` | tables and figures |

mod drawings;
mod keys;
mod points;
mod published;

use crate::bench::Bench;
use crate::experiment::{About, Programmed};
use crate::outcome::{ArmNote, Outcome};
use crate::runner::RunError;
use crate::simulated::Simulated;

use points::Machine;

/// How it presents itself, its metrics and what runs it.
pub static RAW_VERBS: Programmed = Programmed {
    about: About {
        paper: None,

        ..About::new(
            "raw-verbs",
            "Plain verbs by size: requests per second, bandwidth, latency; on every simulated preset, or on a device \
           that is named.",
            "SEND, WRITE, WRITE with immediate, READ, compare-and-swap and fetch-and-add, 64 B to 1 MiB: requests \
               per second and Gbit/s of one process with 128 requests outstanding on each of one and of eight queue \
               pairs; the latency of one at a time. On simulated devices also the rate of a process on every core, with 32.",
        )
    },
    keys: keys::KEYS,
    stated: &[],
    figures: &[
        "cx3-40g-rate.svg",
        "cx3-40g-bandwidth.svg",
        "cx3-40g-latency.svg",
        "cx5-100g-rate.svg",
        "cx5-100g-bandwidth.svg",
        "cx5-100g-latency.svg",
        "cx6-100g-rate.svg",
        "cx6-100g-bandwidth.svg",
        "cx6-100g-latency.svg",
    ],
    run: run_raw_verbs,
};

fn run_raw_verbs(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    let stop = bench.place.stop;
    let presets = match bench.options.is_named {
        true => Vec::new(),
        false => Simulated::all(),
    };
    let mut machines: Vec<Machine<'_>> = presets
        .iter()
        .map(|each| Machine::new(each.device(), each.place(stop), Some(each.preset())))
        .collect();
    if machines.is_empty() {
        let device = &bench.options.device;
        // What the device could be opened by has a preset.
        let machine = bench.options.machine().and_then(Result::ok);
        let preset = machine.as_ref().map(|(preset, _)| preset);
        machines.push(Machine::new(device, bench.place.clone(), preset));
    }
    // Where it runs is what it is about: virtual time needs no second round.
    bench.place = machines[0].place.clone();
    let mut outcome = bench
        .pinned(|[here, there]| format!("initiator on cpu {here}, the other end on cpu {there}"));
    outcome.devices = presets.iter().map(|each| each.device().clone()).collect();
    outcome.arms = arms();
    let measured = points::measure(bench, &machines)?;
    outcome.repeats = measured.rounds();
    keys::record(&mut outcome, &machines, &measured);
    drawings::record(&mut outcome, &machines, &measured);
    Ok(outcome)
}

fn arms() -> Vec<ArmNote> {
    let note = |name: &str, what: &str| ArmNote {
        name: name.to_owned(),
        what: what.to_owned(),
        waiting: "poll",
        copies: "0".into(),
    };
    vec![
        note(
            "rate",
            "128 requests outstanding on each queue pair, 32 where a process on every core has one; each posted by a \
             call of its own and signalled, as perftest does it; where time is virtual, the program takes the constant cpu.bench for a request beside the verbs. \
             SENDs and WRITEs with immediate go into 4,096 receives of an SRQ",
        ),
        note(
            "latency of SEND, WRITE, WRITE with immediate",
            "ping-pong: half of a message there and one back. A WRITE is seen by polling its last word, the others by \
             their completions",
        ),
        note(
            "latency of READ and atomics",
            "from the call that posts it to its polled completion, one at a time",
        ),
    ]
}

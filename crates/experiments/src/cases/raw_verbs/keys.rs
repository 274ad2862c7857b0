//! The keys of the summary: the same of every preset, and of a device that is named and is none.

use headworks::sim::Preset;

use crate::nic::loaded::Verb;
use crate::outcome::{ELSEWHERE, Outcome};

use super::points::{FEW, Machine, Measured, Point};

/// What a key is a figure of, on the machine of that index, and what makes its unit of a request per second or a
/// nanosecond.
struct Key {
    point: fn(usize) -> Point,
    scale: f64,
}

const MIB: usize = 1 << 20;
const MILLIONS: f64 = 1e-6;
const GBIT_OF_MIB: f64 = MIB as f64 * 8e-9;

macro_rules! keys {
    ($($name:literal $scale:expr, $point:expr;)*) => {
        /// Without the machine that they are of.
        const NAMES: &[&str] = &[$($name),*];
        const FIGURES: &[Key] = &[$(Key { point: $point, scale: $scale }),*];
        /// Every key of this experiment.
        pub(super) const KEYS: &[&str] = &[
            $(concat!("cx3_40g_", $name),)*
            $(concat!("cx5_100g_", $name),)*
            $(concat!("cx6_100g_", $name),)*
            $(concat!("device_", $name),)*
        ];
    };
}

keys! {
    "send64_mmsg_per_s" MILLIONS, |at| Point::rate(at, Verb::Send, 64, 1);
    "write64_mmsg_per_s" MILLIONS, |at| Point::rate(at, Verb::Write, 64, 1);
    "read64_mmsg_per_s" MILLIONS, |at| Point::rate(at, Verb::Read, 64, 1);
    "fetch_add_mop_per_s" MILLIONS, |at| Point::rate(at, Verb::FetchAdd, 8, 1);
    "write64_8qp_mmsg_per_s" MILLIONS, |at| Point::rate(at, Verb::Write, 64, FEW);
    "fetch_add_8qp_mop_per_s" MILLIONS, |at| Point::rate(at, Verb::FetchAdd, 8, FEW);
    "write64_all_cores_mmsg_per_s" MILLIONS, |at| Point::all_cores(at, Verb::Write, 64);
    "read64_all_cores_mmsg_per_s" MILLIONS, |at| Point::all_cores(at, Verb::Read, 64);
    "send1m_gbit_per_s" GBIT_OF_MIB, |at| Point::rate(at, Verb::Send, MIB, FEW);
    "write1m_gbit_per_s" GBIT_OF_MIB, |at| Point::rate(at, Verb::Write, MIB, FEW);
    "read1m_gbit_per_s" GBIT_OF_MIB, |at| Point::rate(at, Verb::Read, MIB, FEW);
    "send64_inline_latency_ns" 1.0, |at| Point::latency(at, Verb::Send, 64).inline();
    "write64_inline_latency_ns" 1.0, |at| Point::latency(at, Verb::Write, 64).inline();
    "write64_latency_ns" 1.0, |at| Point::latency(at, Verb::Write, 64);
    "read64_latency_ns" 1.0, |at| Point::latency(at, Verb::Read, 64);
    "fetch_add_latency_ns" 1.0, |at| Point::latency(at, Verb::FetchAdd, 8);
}

/// What the keys of a machine begin with.
fn prefix(machine: &str) -> String {
    match Preset::NAMES.contains(&machine) {
        true => format!("{}_", machine.replace('-', "_")),
        false => "device_".to_owned(),
    }
}

/// Computes every key.
pub(super) fn record(outcome: &mut Outcome, machines: &[Machine<'_>], measured: &Measured) {
    for (index, machine) in machines.iter().enumerate() {
        for (name, key) in NAMES.iter().zip(FIGURES) {
            let point = (key.point)(index);
            let found = measured.spread(&point);
            let failed = measured.failures.get(&point).cloned();
            let why = match machine.cores {
                None if point.of == super::points::Of::AllCores => {
                    "only where cores are simulated: elsewhere they are other people's, too"
                        .to_owned()
                }
                _ => failed.unwrap_or_else(|| "nothing ended in the time".to_owned()),
            };
            let key_of = format!("{}{name}", prefix(&machine.name));
            outcome.measured_or(&key_of, found.map(|found| found.scaled(key.scale)), why);
        }
    }
    for key in KEYS {
        outcome.skip(*key, ELSEWHERE);
    }
}

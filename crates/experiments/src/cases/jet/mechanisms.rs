//! Figures 2 and 3 with one mechanism of the receiving host switched off at a time.

use std::fmt;

use headworks::sim::Preset;

use super::receiving_host::{
    MISSES, PAUSED, QUICK_TIMES, THROUGHPUT, about, check_arms, memory_of, unless_set, write_all,
};
use crate::cases::prelude::*;

/// Sizes of messages in KiB: the two that the paper compares.
const SIZES: [u64; 2] = [SMALL, LARGE];
const SMALL: u64 = 64;
const LARGE: u64 = 1024;

/// A mechanism that limits nothing, by settings of constants.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mechanism {
    name: &'static str,
    what: &'static str,
    /// Word in the keys of the metrics.
    key: &'static str,
    settings: &'static [&'static str],
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// All mechanisms, beginning with the machine as it is.
static MECHANISMS: [Mechanism; 9] = [
    Mechanism {
        name: "as it is",
        what: "every mechanism limits",
        key: "as_it_is",
        settings: &[],
    },
    Mechanism {
        name: "cache for everything",
        what: "the cache and the part of it in which DMA allocates hold all buffers",
        key: "cache",
        settings: &["host.cache=1048576", "host.dma_cache=1048576"],
    },
    Mechanism {
        name: "memory without a limit",
        what: "the memory of a host has 100 TB/s, the antagonist wants as much as before",
        key: "memory",
        settings: &["host.memory=100000"],
    },
    Mechanism {
        name: "memory for the RNIC first",
        what: "the RNIC may take all of the memory's bandwidth before processors do",
        key: "share",
        settings: &["host.rnic_share=100"],
    },
    Mechanism {
        name: "posted writes without a limit",
        what: "any number of lines that the RNIC writes may be under way on the host",
        key: "posted",
        settings: &["host.posted_lines=0"],
    },
    Mechanism {
        name: "buffer without a limit",
        what: "the RNIC's buffer holds everything, and neither pauses the switch nor notifies senders",
        key: "buffer",
        settings: &["nic.rx_buffer=0", "nic.rx_pause=0", "nic.rx_notify=0"],
    },
    Mechanism {
        name: "switch without a limit",
        what: "the switch's queues hold everything, pause no link and mark no packet",
        key: "switch",
        settings: &["switch.buffer=0", "switch.pause=0", "switch.mark_all=0"],
    },
    Mechanism {
        name: "no pauses",
        what: "neither the RNIC nor the switch pauses a link: packets are dropped instead",
        key: "pauses",
        settings: &["nic.rx_pause=0", "switch.pause=0"],
    },
    Mechanism {
        name: "no congestion control",
        what: "notifications lower no rate",
        key: "dcqcn",
        settings: &["dcqcn.on=0"],
    },
];

fn at(mechanism: &'static Mechanism, kib: u64, quantity: Quantity) -> Expr<&'static Mechanism> {
    Expr::At(Point::at(mechanism, kib), quantity)
}

fn settings(mechanism: &Mechanism, preset: &Preset) -> Vec<String> {
    let antagonist = format!("host.antagonist={}", preset.host_memory);
    let own = mechanism.settings.iter().map(ToString::to_string);
    std::iter::once(antagonist).chain(own).collect()
}

/// Figures 2 and 3 without one mechanism at a time.
pub static MECHANISMS_CASE: Case<&Mechanism> = Case {
    about: about(
        "jet-mechanisms",
        "Figures 2 and 3",
        "What each mechanism of a receiving host explains (--device sim:cx4lx-2x25g or sim:cx6dx-2x100g).",
        "WRITEs of 64 KiB and 1 MiB over 32 queue pairs into a host whose memory an antagonist uses, as jet-fig2 has \
         them. Then each mechanism in turn is switched off by its constants: throughput, lines that were not cached, and \
         pauses.",
    ),
    table: mechanisms,
    measure: |bench, t, _| {
        let preset = memory_of(bench)?;
        check_arms(bench, MECHANISMS.iter().map(|one| settings(one, &preset)))?;
        t.note(format!(
            "{}. An arm that has the throughput of 64 KiB at 1 MiB leaves out a mechanism that the loss needs.",
            preset.name
        ));
        let arms: Vec<_> = MECHANISMS.iter().collect();
        bench.measure(
            grid("", &arms, &SIZES),
            Sweep::in_virtual_time("message size [KiB]", ""),
            |bench, point, _| {
                let settings = unless_set(bench, settings(point.arm, &preset));
                let testbed = bench.testbed_with(&settings)?;
                write_all(&testbed, point.x, QUICK_TIMES)
            },
        )
    },
};

fn mechanisms() -> Table<&'static Mechanism> {
    let note = |one: &Mechanism| arm(one.to_string(), one.what, "poll", "0");
    let mut t = Table::new(MECHANISMS.iter().map(note).collect());
    t.arm().x("message size [KiB]");
    t.value("throughput [GB/s]", THROUGHPUT);
    t.value("lines that were not cached [%]", MISSES);
    t.value("paused [% of the time, mean of the ports]", PAUSED);
    for one in &MECHANISMS {
        let lost = Expr::Is(1.0) - at(one, LARGE, THROUGHPUT) / at(one, SMALL, THROUGHPUT);
        t.metric(format!("lost_percent_{}", one.key), lost * 100.0);
        t.metric(
            format!("missed_percent_{}", one.key),
            at(one, LARGE, MISSES),
        );
    }
    t.note("Everything is simulated.");
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_every_mechanism_are_legal_on_both_presets() {
        for name in ["cx4lx-2x25g", "cx6dx-2x100g"] {
            let preset = Preset::named(name).expect("a preset");
            for mechanism in &MECHANISMS {
                let device = format!("sim:{name}").parse().expect("a device's name");
                let set: Vec<_> = settings(mechanism, &preset)
                    .iter()
                    .map(|setting| setting.parse().expect("a setting"))
                    .collect();
                let machine = crate::simulated_machine::machine(&device, &set);
                let machine = machine.expect("a simulated device");
                let (machine, _) = machine.unwrap_or_else(|why| panic!("{mechanism}: {why}"));
                assert_eq!(machine.check(), Ok(()), "{name}, {mechanism}");
            }
        }
    }
}

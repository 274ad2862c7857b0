//! Hardware counters of a thread: instructions and cycles in user space, where the kernel lets a program read them.

use std::io;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use serde::{Deserialize, Serialize};

/// Instructions retired and processor cycles, in user space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardwareCounts {
    /// Instructions.
    pub instructions: u64,
    /// Cycles.
    pub cycles: u64,
}

impl HardwareCounts {
    /// Adds the counts of another thread.
    pub fn add(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.cycles += other.cycles;
    }
}

/// The running counters of the thread that started them.
#[derive(Debug)]
pub struct ThreadCounters {
    instructions: Counter,
    cycles: Counter,
}

impl ThreadCounters {
    /// Starts counting what the calling thread executes.
    ///
    /// # Errors
    ///
    /// The processor has no such counters, as in many virtual machines, or the kernel lets nobody read them
    /// (`/proc/sys/kernel/perf_event_paranoid` above 2).
    pub fn start() -> io::Result<Self> {
        let start = |event| {
            let mut counter = Builder::new().kind(event).build()?;
            counter.enable()?;
            Ok::<_, io::Error>(counter)
        };
        Ok(Self {
            instructions: start(Hardware::INSTRUCTIONS)?,
            cycles: start(Hardware::CPU_CYCLES)?,
        })
    }

    /// Returns the counts since the start. `None` if the kernel gave a counter to other programs in between, or it
    /// cannot be read.
    pub fn read(&mut self) -> Option<HardwareCounts> {
        let read = |counter: &mut Counter| {
            let found = counter.read_count_and_time().ok()?;
            let is_whole = found.time_running == found.time_enabled && found.time_running > 0;
            is_whole.then_some(found.count)
        };
        Some(HardwareCounts {
            instructions: read(&mut self.instructions)?,
            cycles: read(&mut self.cycles)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instructions_of_a_loop_are_counted() {
        let mut counters = match ThreadCounters::start() {
            Ok(counters) => counters,
            Err(why) => {
                let required = headworks_runtime::testing::is_required("hardware-counters");
                assert!(!required, "{why}");
                println!("skipped: this machine has no hardware counters to read: {why}");
                return;
            }
        };
        for number in 0..1_000_000 {
            std::hint::black_box(number);
        }
        let counts = counters.read().expect("a counter that ran all the time");
        assert!(counts.instructions >= 1_000_000, "{counts:?}");
        assert!(counts.cycles > 0, "{counts:?}");
    }
}

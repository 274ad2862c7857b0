//! Benchmark: how many work requests are simulated per second of wall time. The workload is WRITEs at a fixed
//! depth, whose bytes are moved and checked.
//!
//! `cargo bench -p headworks-simnic --bench speed -- [PRESET [QUEUE_PAIRS [DEPTH [TOTAL [BYTES]]]]] [KEY=VALUE…]`
//!
//! `headworks experiment run sim-speed` measures the same with repeats, and records it.

use headworks_baselines::{WriteWindow, Writes};
use headworks_net::clock;
use headworks_simnic::{Preset, Setting, SimProvider};
use headworks_verbs::{Device, Provider};
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let (settings, words): (Vec<_>, Vec<_>) = args.iter().partition(|arg| arg.contains('='));
    let number = |at: usize, usual: usize| words.get(at).map_or(Ok(usual), |word| word.parse());
    let name = words.first().map_or("cx5-100g", |name| name.as_str());
    let total = number(3, 3_000_000)? as u64;
    let window = WriteWindow {
        queue_pairs: number(1, 1)?,
        depth: number(2, 128)?,
        bytes: number(4, 64)?,
    };
    let mut machine = Preset::named(name).ok_or("no such preset")?;
    for setting in settings {
        machine.apply(&setting.parse::<Setting>()?);
    }
    let provider = SimProvider::of(machine);
    let open = |host: &str| -> Result<Arc<dyn Device>, Failure> {
        Ok(provider.open(&format!("sim:{name},host={host}").parse()?)?)
    };
    let mut writes = Writes::connect([open("a")?, open("b")?], window)?;
    let (began, start) = (clock::now(), provider.now());
    writes.run(total)?;
    let wall = clock::now().since(began).as_secs_f64();
    let virtual_time = provider.now().since(start).as_secs_f64();
    let [wall, simulated] = [wall, virtual_time].map(|time| total as f64 / time / 1e6);
    let WriteWindow {
        queue_pairs,
        depth,
        bytes,
    } = window;
    println!(
        "{name}, {queue_pairs} queue pairs, depth {depth}, {bytes} B: {wall:.2} M requests a second of wall time; \
         simulated: {simulated:.2} M/s, {:.1} Gbit/s",
        simulated * bytes as f64 * 8e-3
    );
    Ok(())
}

//! Experiments: what they are, what they measure with, and how results are written.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`experiment`] | [`Experiment`], its [`About`], [`Options`], the [`registry`] |
//! | [`runner`] | [`run`] experiments by name |
//! | [`mod@bench`] | what a running experiment is handed: budget, rounds in which arms alternate, interrupt |
//! | [`table`] | an experiment as a table, and its renderer |
//! | [`claim`] | a value that a paper states: exact, about, below, above, range |
//! | [`cases`] | the experiments, a file or folder for each paper |
//! | [`arms`] | message channels as generic ends, and the workloads that drive them |
//! | [`apps`] | applications over such channels: flow measurement, a key-value store, HTTP |
//! | [`nic`] | what is measured of a device itself: queue pairs by the thousand, receives, wake-ups |
//! | [`fanin`] | one thread that receives from many rings, and who sends on them |
//! | [`service`] | the service as it is used: daemons and applications as processes of this program |
//! | [`soak`] | rings on simulated RNICs on which things go wrong, by a seed: whether they keep what they promise |
//! | [`study`] | the case studies as parts of a play: an application's side over any design |
//! | [`simulated`] | what a device's name and settings simulate, and a world of that |
//! | [`paper_claims`] | what papers state of raw devices, and what the presets make of it |
//! | [`world`] | the seam to the stage: a part as an actor, a pair as a play |
//! | [`external`], [`ucx`], [`probe`] | other programs, and this one started as another process |
//! | [`outcome`], [`report`] | what was found; CSV, JSON, SVG and Markdown |
//! | [`stats`], [`latency`] | medians and spreads; the histogram and the open-loop schedule |
//! | `busy` | what held simulated machines back while something was measured |
//! | [`chance`] | what a run draws from: the seed of a simulated one |
//! | [`machine`], [`pages`], [`pin`], [`progress`] | what it ran on, on which pages, where, and how far it is |
#![forbid(unsafe_code)]

pub mod bench;
pub(crate) mod busy;
pub mod cases;
pub mod claim;
pub mod experiment;
pub mod machine;
pub mod outcome;
pub mod paper_claims;
pub mod report;
pub mod runner;
pub mod soak;
pub mod table;

pub use experiment::{About, Case, Experiment, Options, Paper, RunsOn, find, registry};
pub use headworks_workloads::probe::child_main;
pub use headworks_workloads::transports::cpu_cost::Prices;
pub use headworks_workloads::world::{register, register_simulated};
pub use headworks_workloads::{
    apps, chance, external, fanin, files, latency, nic, pages, pin, probe, progress, random,
    service, simulated, stats, study, transports, ucx, world,
};
pub use runner::{RunError, run};

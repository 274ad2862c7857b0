//! Experiments: what they are, what they measure with, and how results are written.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`about`], [`experiment`] | what an [`Experiment`] is, its [`About`], [`Options`] |
//! | [`runner`], [`error`] | [`run`] experiments by name, and why a run ends early |
//! | [`mod@bench`] | what a running experiment is handed: budget, rounds in which arms alternate, interrupt |
//! | [`table`] | an experiment as a table, and its renderer |
//! | [`claim`] | a value that a paper states: exact, about, below, above, range |
//! | [`cases`] | the experiments, a file or folder for each paper; the [`registry`] |
//! | [`outcome`], [`report`], [`mod@format`] | what was found; CSV, JSON, SVG and Markdown |
//! | `busy` | utilisation of simulated machines at each point |
//! | [`machine`] | the machine that it ran on |
//!
//! What is measured with, the transports and workloads, is the crate `headworks-workloads`, whose modules are re-exported.
#![forbid(unsafe_code)]

pub mod about;
pub mod bench;
pub(crate) mod busy;
pub mod cases;
pub mod claim;
pub mod error;
pub mod experiment;
pub mod format;
pub mod machine;
pub mod outcome;
pub mod report;
pub mod runner;
pub mod table;

pub use about::{About, Options, Paper, RunsOn};
pub use cases::{find, registry};
pub use error::RunError;
pub use experiment::{Case, Experiment};
pub use headworks_workloads::probe::child_main;
pub use headworks_workloads::task::register;
pub use headworks_workloads::transports::cpu_cost::Prices;
pub use headworks_workloads::{
    apps, chance, external, fanin, files, latency, measure, nic, pages, pin, probe, progress,
    random, service, simulated, stats, study, testbed, transports, ucx,
};
pub use runner::run;

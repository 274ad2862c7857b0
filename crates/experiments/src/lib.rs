//! Experiments: their declaration, the runner, and the reports that it writes.
//!
//! # Map
//!
//! | module | content |
//! |---|---|
//! | [`about`], [`experiment`] | [`Experiment`], its description [`About`], and [`Options`] |
//! | [`runner`], [`error`] | [`run`], which runs experiments by name, and its errors |
//! | [`mod@bench`] | what a running experiment measures with: budget, rounds in which arms alternate, interrupt |
//! | [`table`] | an experiment as a table, and its renderer |
//! | [`claim`] | a value that a paper states: exact, about, below, above, range |
//! | [`cases`] | the experiments, a file or folder for each paper; the [`registry`] |
//! | [`outcome`], [`report`], [`mod@format`] | results, and their output as CSV, JSON, SVG and Markdown |
//! | `utilisation` | utilisation of simulated machines at each point |
//! | [`machine`] | description of the machine that an experiment ran on |
//!
//! The transports and workloads are in the crate `headworks-workloads`, whose modules are re-exported.
//!
#![doc = include_str!("how_it_works.md")]
#![forbid(unsafe_code)]

pub mod about;
pub mod bench;
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
pub(crate) mod utilisation;

pub use about::{About, Options, Paper, RunsOn};
pub use cases::{find, registry};
pub use error::RunError;
pub use experiment::{Case, Experiment};
pub use headworks_workloads::child_programs::child_main;
pub use headworks_workloads::cpu_prices::CpuPrices;
pub use headworks_workloads::task::register;
pub use headworks_workloads::{
    apps, atomic_file, case_studies, child_programs, collectives, cpu_affinity, fanin, huge_pages,
    incast, latency, nic, nic_measurements, patterns, progress_bar, random, residency, seeds,
    service, share_pace_pool, simulated_machine, stats, storage_series, subprocess, testbed,
    transports, ucx_perftest, verbs_perftest,
};
pub use runner::run;

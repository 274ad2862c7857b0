//! Workloads and the transports that carry them: what experiments, and later evaluations, measure with.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`transports`] | message channels as generic ends, and the workloads that drive them |
//! | [`nic`] | loads on a device itself: queue pairs by the thousand, receives, wake-ups |
//! | [`fanin`] | one thread that receives from many rings, and their senders |
//! | [`apps`] | applications over message channels: flow measurement, a key-value store, HTTP |
//! | [`case_studies`] | the case studies as actors: an application's side over any transport |
//! | [`service`] | daemons and their applications: as processes, and in virtual time |
//! | [`task`], [`actor_pair`] | what the two actors of a pair are told to do, and what each is made from |
//! | [`connecting_actor`], [`mail_bring_up`] | actors that connect and then drive a workload; bringing queue pairs up by mail |
//! | [`testbed`], [`nic_measurements`] | running pairs of actors, in either world; what is asked of many workloads |
//! | [`report`], [`error`] | what an actor found, and why it cannot go on |
//! | [`cpu_prices`] | what processors of a simulated machine pay for work of the program's own |
//! | [`simulated_machine`] | the simulated machine that a device name stands for, and a world of it |
//! | [`usage_samples`] | samples of what a simulated play counts |
//! | [`subprocess`], [`ucx_perftest`], [`child_programs`] | other programs, and this one started as another process |
//! | [`latency`], [`stats`] | the histogram and the open-loop schedule; medians and spreads |
//! | [`random`], [`seeds`] | seeded randomness; the seed of a simulated run |
//! | [`atomic_file`], [`huge_pages`], [`cpu_affinity`], [`progress_bar`] | files replaced whole, huge pages, processor affinity, progress on standard error |
#![forbid(unsafe_code)]

pub mod actor_pair;
pub mod apps;
pub mod atomic_file;
pub mod case_studies;
pub mod child_programs;
pub mod connecting_actor;
pub mod cpu_affinity;
pub mod cpu_prices;
pub mod error;
pub mod fanin;
pub mod huge_pages;
pub mod latency;
pub mod mail_bring_up;
pub mod nic;
pub mod nic_measurements;
pub mod progress_bar;
pub mod random;
pub mod report;
pub mod seeds;
pub mod service;
pub mod simulated_machine;
pub mod stats;
pub mod subprocess;
pub mod task;
pub mod testbed;
pub mod transports;
pub mod ucx_perftest;
pub mod usage_samples;

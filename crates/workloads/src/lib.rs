//! Workloads, and the transports that carry them: the parts of which experiments are made.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`transports`] | message channels as generic ends, and the workloads that drive them |
//! | [`nic`] | loads on a device itself: thousands of queue pairs, receives, wake-ups |
//! | [`fanin`] | one thread that receives from many rings, and their senders |
//! | [`apps`] | applications over message channels: flow measurement, a key-value store, HTTP |
//! | [`case_studies`] | the case studies as actors: an application's side over any transport |
//! | [`patterns`] | request and response by every design of RDMA Communication Patterns |
//! | [`collectives`] | collective operations of MPI on two simulated hosts with contended memory |
//! | [`storage_series`] | a storage server over virtual time, while an antagonist comes and goes |
//! | [`share_pace_pool`] | a host with connections to many hosts: shared queue pairs, pacing and a receive pool, in virtual time |
//! | [`incast`] | many hosts that send to one contended host, and signals from it, in virtual time |
//! | [`residency`] | what receive memory that stays in the processor's cache is worth |
//! | [`service`] | daemons and their applications: as processes, and in virtual time |
//! | [`task`], [`actor_pair`] | the task of a pair, and what its two actors are made from |
//! | [`connecting_actor`], [`mail_bring_up`] | actors that connect, then drive a workload; connecting by mail |
//! | [`testbed`], [`nic_measurements`] | running pairs of actors; measurements with loads on a NIC |
//! | [`report`], [`error`] | what an actor found, and why it cannot go on |
//! | [`cpu_prices`] | processor time of the program's own work on a simulated machine |
//! | [`simulated_machine`] | the simulated machine that a device name stands for, and a world of it |
//! | `virtual_run` | connecting queue pairs within a program, and driving a scenario in virtual time to its end |
//! | [`usage_samples`] | samples of a simulated machine's counters |
//! | [`subprocess`], [`ucx_perftest`], [`verbs_perftest`], [`child_programs`] | other programs, and this one started as another process |
//! | [`latency`], [`stats`] | the histogram and the open-loop schedule; medians and spreads |
//! | [`random`], [`seeds`] | seeded randomness; the seed of a simulated run |
//! | [`atomic_file`], [`huge_pages`] | files that are replaced atomically; memory on huge pages |
//! | [`thread_counters`], [`rnic_counters`] | instructions and cycles of a thread; packets, retries and errors of an RDMA NIC |
//! | [`cpu_affinity`], [`progress_bar`] | processor affinity; progress on standard error |
#![forbid(unsafe_code)]

pub mod actor_pair;
pub mod apps;
pub mod atomic_file;
pub mod case_studies;
pub mod child_programs;
pub mod collectives;
pub mod connecting_actor;
pub mod cpu_affinity;
pub mod cpu_prices;
pub mod error;
pub mod fanin;
pub mod huge_pages;
pub mod incast;
pub mod latency;
pub mod mail_bring_up;
pub mod nic;
pub mod nic_measurements;
pub mod patterns;
pub mod progress_bar;
pub mod random;
pub mod report;
pub mod residency;
pub mod rnic_counters;
pub mod seeds;
pub mod service;
pub mod share_pace_pool;
pub mod simulated_machine;
pub mod stats;
pub mod storage_series;
pub mod subprocess;
pub mod task;
pub mod testbed;
pub mod thread_counters;
pub mod transports;
pub mod ucx_perftest;
pub mod usage_samples;
pub mod verbs_perftest;
mod virtual_run;

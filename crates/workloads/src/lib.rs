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
//! | [`study`] | the case studies as actors: an application's side over any transport |
//! | [`service`] | daemons and their applications: as processes, and in virtual time |
//! | [`task`], [`pair`] | what the two actors of a pair are told to do, and what each is made from |
//! | [`driven`], [`meeting`] | actors that connect and then drive a workload; bringing queue pairs up by mail |
//! | [`testbed`], [`measure`] | running pairs of actors, in either world; what is asked of many workloads |
//! | [`report`], [`error`] | what an actor found, and why it cannot go on |
//! | [`preset`] | what processors of a simulated machine pay for work of the program's own |
//! | [`simulated`] | the simulated machine that a device name stands for, and a world of it |
//! | [`observer`] | samples of what a simulated play counts |
//! | [`external`], [`ucx`], [`probe`] | other programs, and this one started as another process |
//! | [`latency`], [`stats`] | the histogram and the open-loop schedule; medians and spreads |
//! | [`random`], [`chance`] | seeded randomness; the seed of a simulated run |
//! | [`files`], [`pages`], [`pin`], [`progress`] | files replaced whole, huge pages, processor affinity, progress on standard error |
#![forbid(unsafe_code)]

pub mod apps;
pub mod chance;
pub mod driven;
pub mod error;
pub mod external;
pub mod fanin;
pub mod files;
pub mod latency;
pub mod measure;
pub mod meeting;
pub mod nic;
pub mod observer;
pub mod pages;
pub mod pair;
pub mod pin;
pub mod preset;
pub mod probe;
pub mod progress;
pub mod random;
pub mod report;
pub mod service;
pub mod simulated;
pub mod stats;
pub mod study;
pub mod task;
pub mod testbed;
pub mod transports;
pub mod ucx;

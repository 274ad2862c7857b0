//! A simulated RNIC, its hosts and their network, in virtual time. Code runs on it unchanged, as on any other
//! device, and every run repeats to the byte.
//!
//! The model is a discrete-event simulation of mechanisms (doorbells, fetches, caches, units, links), not a
//! fit to measured curves. Its constants come from a [`preset`]; docs/simulation.md gives the source of each.
//! Every figure it prints is simulated.
//!
//! # Map
//!
//! | module | contents |
//! |---|---|
//! | [`provider`] | opens devices `sim:PRESET[,host=NAME][,seed=N]`: names, options, limits, promises |
//! | [`world`] | the world of virtual time: actors on the cores of simulated hosts |
//! | [`preset`] | every constant of the model |
//! | [`utilisation`], `usage_monitor` | utilisation of units, and what limited a run |
//! | [`trace`] | event trace in Chrome's trace format |
//! | [`faults`] | fault injection by rules and a seed |
//! | `device` | a host's device and its objects |
//! | `completion_channel` | completion channels |
//! | `model` | discrete-event model of hosts, RNICs and network |
//! | `wqe` | work requests inside the RNIC |
//! | `registered_memory` | registered memory |
//! | `receiving_host` | cache, memory bandwidth and buffer of a host that receives: pure |
//! | `congestion` | finite queues, pauses, marks, rates of queue pairs: pure |
//! | `event_queue`, `hardware_units`, `cache` | event queue; service units; on-chip caches: pure |
//!
#![doc = include_str!("how_it_works.md")]

mod cache;
mod completion_channel;
mod congestion;
mod device;
mod event_queue;
pub mod faults;
mod hardware_units;
mod model;
pub mod preset;
pub mod provider;
mod receiving_host;
#[allow(
    unsafe_code,
    reason = "copies between registered memory of this process"
)]
mod registered_memory;
pub mod trace;
mod usage_monitor;
pub mod utilisation;
pub mod world;
mod wqe;

pub use model::{Backlog, Counters, ObjectCounts};
pub use preset::{CONSTANTS, Constant, Contradiction, Kind, Preset, SetError, Setting, Value};
pub use provider::{KIND, SimProvider, is_simulated};
pub use receiving_host::HostCounters;
pub use trace::Tracer;
pub use usage_monitor::UsageMonitor;
pub use utilisation::{Usage, Utilisation};
pub use world::SimWorld;

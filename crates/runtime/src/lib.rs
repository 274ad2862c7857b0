//! Actor runtime: actors and the worlds that they run in.
//!
//! Experiments, conformance cases, fault tests and the demo are actors: objects with one bounded `step`, one
//! per host, that talk through byte mailboxes. The same actor runs on a thread of this process, in a process
//! of its own that can be killed, or in virtual time (`headworks-simnic`).
//!
//! The module list is a map of the crate:
//!
//! - what runs: [`actor`] (an actor, its steps, its view of the world [`ActorContext`]), [`actors`] (the
//!   registry of actors by name), [`scenario`] (which actor runs where, on which device);
//! - where it runs: [`world`] (what every world offers), [`in_process`] (a thread per actor), [`processes`]
//!   (a process per actor, and their coordinator; deaths are noticed, kills are possible), [`ranks`] (processes
//!   that something else started, such as `mpirun`, on one or several machines);
//! - for tests: [`testing`] (the devices to run on, polling with a budget, the scenarios that every world
//!   must run).
//!
//! Nothing here knows a provider: devices are opened by a [`DeviceOpener`] that the caller hands in.
//!
#![doc = include_str!("how_it_works.md")]
#![deny(unsafe_code)]

pub mod actor;
pub mod actors;
pub mod in_process;
pub mod processes;
pub mod ranks;
pub mod scenario;
pub mod testing;
pub mod world;

mod context;
mod mailbox;
mod scenario_events;
mod step_loop;

pub use actor::{
    Actor, ActorContext, ActorError, COORDINATOR, ContextBackend, MAIL_MAX, Mail, MailError,
    StandaloneContext, Step, WakeCondition, WakeFd,
};
pub use actors::ActorRegistry;
pub use headworks_verbs::DeviceOpener;
pub use in_process::InProcess;
pub use processes::{Processes, child_entry, child_entry_in_test};
pub use ranks::{Ranks, RanksError, serve_rank};
pub use scenario::{ACTORS_MAX, ActorInit, ActorSpec, Scenario, no_device_opener};
pub use scenario_events::{MAILBOX_BYTES_MAX, MESSAGE_OVERHEAD};
pub use step_loop::catch_failure;
pub use world::{
    ActorOutcome, ActorResult, ProcessExit, RunningScenario, ScenarioError, ScenarioEvent, World,
};

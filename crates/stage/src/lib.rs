//! Actors, the worlds they run in, and the thin shells around code that never blocks.
//!
//! Experiments, conformance cases, fault tests and the demo are actors: objects with one bounded
//! `step`, one per host, that talk through byte mailboxes. The same actor runs on a thread of this
//! process, in a process of its own that can be killed, or in virtual time.
//!
//! The module list is a map of the crate:
//!
//! - what runs: [`actor`] (an actor, its steps, its view of the world [`Cx`]), [`cast`] (actors by name;
//!   the [`Play`] that says which part runs where);
//! - where it runs: [`world`] (what every world offers), [`in_process`] (a thread per part),
//!   [`processes`] (a process per part; deaths are noticed, kills are possible);
//! - time and processors: [`clock`] (the one place that reads the real clock), [`pin`] (CPU affinity),
//!   [`waiting`] (yield for a bounded time, then sleep), [`signals`] (Ctrl-C);
//! - between two processes: [`exchange`] (meeting under a name or at an address, bringing up a queue pair, noticing the
//!   other's end), [`frame`] (bounded messages on a byte stream);
//! - between an application and a daemon: [`packets`];
//! - for tests: [`testing`] (the devices to run on, and patience with those).
//!
//! Nothing here knows a provider: devices are opened by an [`Opener`] that the caller hands in.
#![deny(unsafe_code)]

pub mod actor;
pub mod cast;
pub mod clock;
pub mod exchange;
pub mod frame;
pub mod in_process;
pub mod packets;
pub mod pin;
pub mod processes;
pub mod signals;
pub mod testing;
pub mod waiting;
pub mod world;

mod alarm;
mod desk;
mod mailbox;
mod queue;
mod runner;

pub use actor::{
    Actor, ActorError, Alone, Change, Cx, CxBackend, MAIL_MAX, Mail, MailError, Step, WakeFd,
};
pub use alarm::Alarm;
pub use cast::{Cast, Opener, Part, PartSpec, Play, no_devices};
pub use exchange::{
    BringUpOnLine, ExchangeError, Line, Listener, Place, Until, dial, dial_at, dial_at_by, dial_by,
};
pub use in_process::InProcess;
pub use processes::{Processes, child_entry, child_entry_in_test};
pub use queue::{MESSAGE_COST, WAITING_MAX};
pub use runner::caught;
pub use signals::Interrupt;
pub use waiting::{Backoff, Phase, SPIN_BUDGET, Spacing, Spin, Waiter, Woken};
pub use world::{Death, Ending, Event, Outcome, Running, StageError, World};

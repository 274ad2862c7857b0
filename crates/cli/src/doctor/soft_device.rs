//! Tries the software device: opens it in the user's registry, as other commands do, and moves a message.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context;
use headworks::net::clock;
use headworks::ring::{RingConfig, SendError};
use headworks::verbs::{self, Device, OpenError};
use headworks::{connect, devices};

use crate::exit_status::one_line;

/// Name of the device. Several processes may have it open at a time.
const DEVICE: &str = "soft:doctor";
/// Longest time of the trial, in seconds. A process that holds the registry's lock is waited for 10 seconds.
const LIMIT_S: u64 = 30;
/// Longest wait for the message, in seconds.
const MESSAGE_LIMIT_S: u64 = 5;
/// The message.
const MESSAGE: &[u8] = b"headworks doctor";

/// Reason why the device does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unusable {
    /// Text of the error, one line.
    pub(super) said: String,
    /// Whether the registry is the reason.
    pub(super) is_registry: bool,
}

impl Unusable {
    fn of(error: &anyhow::Error) -> Self {
        let opening = error.downcast_ref::<OpenError>();
        Self {
            // The text of an error of opening includes its cause.
            said: opening.map_or_else(|| one_line(error), ToString::to_string),
            is_registry: opening.is_some_and(devices::is_registry_error),
        }
    }
}

/// Opens the device, sends a message from one ring's end on it to the other, and closes it. Ends within
/// [`LIMIT_S`] seconds, and leaves nothing in the registry.
pub(super) fn check() -> Result<(), Unusable> {
    let (say, said) = channel();
    // A file system that does not answer stops the thread for ever. It ends with the process.
    let trial = move || {
        let outcome = exchange().map_err(|error| Unusable::of(&error));
        // Nobody listens any more if the time was over.
        let _ = say.send(outcome);
    };
    if let Err(error) = std::thread::Builder::new().spawn(trial) {
        return Err(unusable(format_args!(
            "cannot open {DEVICE}: no thread: {error}"
        )));
    }
    match said.recv_timeout(Duration::from_secs(LIMIT_S)) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => Err(unusable(format_args!(
            "opening {DEVICE} has not ended after {LIMIT_S} seconds"
        ))),
        Err(RecvTimeoutError::Disconnected) => {
            Err(unusable(format_args!("opening {DEVICE} panicked")))
        }
    }
}

fn unusable(said: impl fmt::Display) -> Unusable {
    Unusable {
        said: said.to_string(),
        is_registry: false,
    }
}

fn exchange() -> anyhow::Result<()> {
    let device = headworks::open(DEVICE)?;
    send_to_self(&device).with_context(|| format!("{DEVICE} opens, and does not work"))
}

fn send_to_self(device: &Arc<dyn Device>) -> anyhow::Result<()> {
    let config = RingConfig::default();
    let (mut sender, mut receiver) = connect::pair(device, device, &config)?;
    let end = clock::now() + verbs::Duration::from_secs(MESSAGE_LIMIT_S);
    let mut is_sent = false;
    while clock::now() < end {
        if !is_sent {
            match sender.try_send(MESSAGE) {
                Ok(()) => is_sent = true,
                Err(SendError::Full) => {}
                Err(error) => return Err(error.into()),
            }
        }
        sender.flush()?;
        sender.step()?;
        if let Some(message) = receiver.try_recv()? {
            anyhow::ensure!(*message == *MESSAGE, "a message arrived changed");
            return Ok(());
        }
        receiver.step()?;
        std::thread::yield_now();
    }
    anyhow::bail!("a message did not arrive within {MESSAGE_LIMIT_S} seconds")
}

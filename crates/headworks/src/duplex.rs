//! A duplex ring: one ring in each direction behind one handle, for requests and responses.
//!
//! Both rings are connected over one [`ControlStream`]. One side [calls](DuplexRing::call), the other
//! [answers](DuplexRing::answer).
//!
//! Two sides that wait for each other can stop each other: each may hold back its last messages until more follow, or
//! space that it has freed and not announced. A side that finds no message, or no room, therefore calls
//! [`DuplexRing::step`], which publishes the messages; with [`AfterStep::Wait`] it also announces the space. Besides, a
//! side that finds no room must go on receiving, or must limit the requests that are not answered yet.
//!
//! In this example each function may run in a process of its own, or, as here, on a thread:
//!
//! ```
//! use std::time::Duration;
//!
//! use headworks::duplex::{DuplexConfig, DuplexRing};
//! use headworks::net::{Listener, dial_wait};
//! use headworks::ring::{AfterStep, RingConfig};
//!
//! type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
//!
//! const LIMIT: Duration = Duration::from_secs(10);
//!
//! /// Requests and responses of any length up to 8184 bytes. Both sides use the same configuration.
//! fn config() -> DuplexConfig {
//!     RingConfig::variable(128, 128).into()
//! }
//!
//! /// Returns each request in capitals. An empty one is the last.
//! fn server(name: &str) -> Outcome<()> {
//!     let registry = headworks::registry()?;
//!     let mut control = Listener::bind(&registry, name)?.accept(LIMIT)?;
//!     let device = headworks::open("soft:h2")?;
//!     let mut client = DuplexRing::answer(&device, &config(), &mut control, LIMIT)?;
//!     loop {
//!         let request = client.try_recv()?.map(|message| message.to_ascii_uppercase());
//!         let Some(answer) = request else {
//!             // There is no request: the client may wait for what this side holds back.
//!             client.step(AfterStep::Wait)?;
//!             std::thread::yield_now();
//!             continue;
//!         };
//!         // The client has one request at a time, so there is room for the answer.
//!         client.try_send(&answer)?;
//!         if answer.is_empty() {
//!             break;
//!         }
//!     }
//!     // The rings end when this side leaves: the client says when it has the last answer.
//!     while !client.is_drained() {
//!         client.step(AfterStep::Wait)?;
//!     }
//!     control.recv_control_wait(LIMIT)?;
//!     Ok(())
//! }
//!
//! fn client(name: &str) -> Outcome<Vec<String>> {
//!     let registry = headworks::registry()?;
//!     let mut control = dial_wait(&registry, name, LIMIT)?;
//!     let device = headworks::open("soft:h1")?;
//!     let mut server = DuplexRing::call(&device, &config(), &mut control, LIMIT)?;
//!     let mut answers = Vec::new();
//!     for request in ["over", "the", "weir", ""] {
//!         server.try_send(request.as_bytes())?;
//!         let answer = loop {
//!             if let Some(answer) = server.try_recv()? {
//!                 break answer.to_vec();
//!             }
//!             server.step(AfterStep::Wait)?;
//!             std::thread::yield_now();
//!         };
//!         answers.push(String::from_utf8(answer)?);
//!     }
//!     // Announces that the last answer was consumed.
//!     server.step(AfterStep::Wait)?;
//!     control.send_control(b"done")?;
//!     Ok(answers)
//! }
//!
//! # fn main() -> Outcome<()> {
//! # let name = format!("duplex-{}", std::process::id());
//! # let theirs = name.clone();
//! # let serving = std::thread::spawn(move || server(&theirs));
//! # assert_eq!(client(&name)?, ["OVER", "THE", "WEIR", ""]);
//! # serving.join().unwrap()?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use headworks_net::{ControlStream, WaitLimit};
use headworks_ring::{
    AfterStep, BrokenRing, Group, Message, Receiver, Reservation, RingConfig, RingError, RingId,
    SendError, Sender,
};
use headworks_verbs::Device;

use crate::connect::{self, ConnectError};

/// Configuration of both rings; the same at both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplexConfig {
    /// The ring from the side that [calls](DuplexRing::call) to the side that answers.
    pub there: RingConfig,
    /// The ring back.
    pub back: RingConfig,
}

impl From<RingConfig> for DuplexConfig {
    /// Uses `both` in both directions.
    fn from(both: RingConfig) -> Self {
        Self {
            there: both.clone(),
            back: both,
        }
    }
}

/// One side of two rings in opposite directions. No call waits.
pub struct DuplexRing {
    rings: Group,
    /// The ring to send on. It is never removed from the group.
    out: RingId,
}

impl DuplexRing {
    /// Connects both rings with the side of the control stream that [answers](Self::answer), and waits for it.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn call<'u>(
        device: &Arc<dyn Device>,
        config: &DuplexConfig,
        control: &mut ControlStream,
        until: impl Into<WaitLimit<'u>>,
    ) -> Result<Self, ConnectError> {
        let until = until.into();
        let sender = connect::sender(device, &config.there, control, until)?;
        let receiver = connect::receiver(device, &config.back, control, until)?;
        Ok(Self::new(sender, receiver))
    }

    /// Connects both rings with the side of the control stream that [calls](Self::call), and waits for it.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn answer<'u>(
        device: &Arc<dyn Device>,
        config: &DuplexConfig,
        control: &mut ControlStream,
        until: impl Into<WaitLimit<'u>>,
    ) -> Result<Self, ConnectError> {
        let until = until.into();
        let receiver = connect::receiver(device, &config.there, control, until)?;
        let sender = connect::sender(device, &config.back, control, until)?;
        Ok(Self::new(sender, receiver))
    }

    /// Makes and connects both sides in one process, for a test or for two threads. Does not wait. The first side is
    /// that of `near`, which sends on [`DuplexConfig::there`].
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn pair(
        near: &Arc<dyn Device>,
        far: &Arc<dyn Device>,
        config: &DuplexConfig,
    ) -> Result<(Self, Self), ConnectError> {
        let (to_far, from_near) = connect::pair(near, far, &config.there)?;
        let (to_near, from_far) = connect::pair(far, near, &config.back)?;
        Ok((Self::new(to_far, from_far), Self::new(to_near, from_near)))
    }

    fn new(sender: Sender, receiver: Receiver) -> Self {
        let mut rings = Group::default();
        let out = rings.add_sender(sender);
        rings.add_receiver(receiver);
        Self { rings, out }
    }

    /// Returns the sending ring itself.
    pub fn sender(&mut self) -> &mut Sender {
        self.rings.sender(self.out).expect("it is never removed")
    }

    /// Sends a copy of `message`, as [`Sender::try_send`] does.
    ///
    /// # Errors
    ///
    /// As [`Sender::try_send`]. After [`SendError::Full`], call [`step`](Self::step) and receive.
    pub fn try_send(&mut self, message: &[u8]) -> Result<(), SendError> {
        self.sender().try_send(message)
    }

    /// Lends the place of a message of `len` bytes, as [`Sender::try_reserve`] does.
    ///
    /// # Errors
    ///
    /// As [`DuplexRing::try_send`].
    pub fn try_reserve(&mut self, len: usize) -> Result<Reservation<'_>, SendError> {
        self.sender().try_reserve(len)
    }

    /// Lends the next message where it lies, if there is one. Dropping it frees its space.
    ///
    /// # Errors
    ///
    /// The error of the receiving ring.
    pub fn try_recv(&mut self) -> Result<Option<Message<'_>>, RingError> {
        let found = self.rings.try_recv().map_err(|broken| broken.error)?;
        Ok(found.map(|(_, message)| message))
    }

    /// Publishes what was sent, and notices errors and the peer's death. Announces free space too if this side waits
    /// next. Call it after every [`SendError::Full`] and whenever there is no message. Returns whether something
    /// changed or messages may be waiting.
    ///
    /// # Errors
    ///
    /// The error of the sending ring. It is reported once; [`try_recv`](Self::try_recv) reports that of the receiving
    /// ring.
    pub fn step(&mut self, next: AfterStep) -> Result<bool, RingError> {
        let stepped = self.rings.step(next);
        stepped.map_err(|BrokenRing { error, .. }| error)
    }

    /// Returns whether the other side has consumed everything that was sent, as far as this side knows.
    pub fn is_drained(&mut self) -> bool {
        self.sender().is_drained()
    }
}

//! Accepts callers at a network address. Several may be connected at the same time, and the first whose ring is
//! connected becomes the other side.
//!
//! Anybody may connect to an address, so no caller makes others wait. Each phase has a limited number of places.
//! If they are all taken, the caller that has been there longest loses its place to the newest.

mod caller;

use std::fmt::Display;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use headworks_net::{Listener, NetError, clock};
use headworks_ring::SetupError;
use headworks_verbs::{Device, Duration, Instant};

use super::PipeError;
use super::handshake::{HELLO_TIMEOUT, Pipe, WaitOptions, deadline_error, rdma_error};
use crate::rdma;
use crate::rejection_log::{Rejection, RejectionLog};

use caller::{ConnectedCaller, Stranger, step_connection};

pub(super) use caller::{GreetedCaller, receive_hello};

/// Time that a caller has over TCP to greet, and a caller that has greeted to connect its ring.
const HELLO_TIMEOUT_NETWORK: Duration = Duration::from_secs(5);
/// Most callers over TCP that have not greeted.
const STRANGERS_TCP: usize = 64;
/// Most callers over RDMA that have not greeted. Each of them costs a queue pair and 128 KiB of locked memory.
const STRANGERS_RDMA: usize = 8;
/// Most callers that have greeted and whose ring is not connected. Each of them costs a ring.
const GREETED_MAX: usize = 8;

/// Listens at a network address for connectors.
pub(super) enum NetworkListener {
    Tcp(Arc<dyn Device>, Listener),
    Rdma(Box<rdma::RdmaListener>),
}

impl NetworkListener {
    /// Takes the next caller, if one waits.
    fn try_next(&self, name: &str, now: Instant) -> Result<Option<Stranger<'_>>, PipeError> {
        match self {
            Self::Tcp(device, listener) => {
                let caller = listener.try_accept()?;
                Ok(caller.map(|control| Stranger::AwaitingHello {
                    device: device.clone(),
                    control,
                    deadline: now + self.hello_timeout(),
                }))
            }
            Self::Rdma(listening) => {
                let caller = listening.try_next();
                let caller = caller.map_err(|error| rdma_error(name, HELLO_TIMEOUT, error))?;
                Ok(caller.map(Box::new).map(Stranger::Connecting))
            }
        }
    }

    /// Whether callers choose the device: so it is at an unspecified address over RDMA.
    fn is_any_device(&self) -> bool {
        match self {
            Self::Tcp(..) => false,
            Self::Rdma(listening) => listening.address().ip().is_unspecified(),
        }
    }

    /// Returns how many callers may be connected that have not greeted.
    fn strangers_max(&self) -> usize {
        match self {
            Self::Tcp(..) => STRANGERS_TCP,
            Self::Rdma(_) => STRANGERS_RDMA,
        }
    }

    /// Returns how long a connected caller may take to greet.
    fn hello_timeout(&self) -> Duration {
        match self {
            // A connector over TCP has its greeting ready.
            Self::Tcp(..) => HELLO_TIMEOUT_NETWORK,
            // A connector over RDMA may have to open a device first.
            Self::Rdma(_) => HELLO_TIMEOUT,
        }
    }
}

impl AsFd for NetworkListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(_, listener) => listener.as_fd(),
            Self::Rdma(listening) => listening.as_fd(),
        }
    }
}

/// The callers of a listener, in both lists the oldest first.
pub(super) struct AcceptQueue<'d> {
    listener: &'d NetworkListener,
    name: &'d str,
    strangers: Vec<Stranger<'d>>,
    /// Callers that have greeted, each with the time at which its ring must be connected.
    greeted: Vec<(GreetedCaller, Instant)>,
    rejections: RejectionLog,
}

impl<'d> AcceptQueue<'d> {
    pub(super) fn new(listener: &'d NetworkListener, name: &'d str) -> Self {
        Self {
            listener,
            name,
            strangers: Vec::new(),
            greeted: Vec::new(),
            rejections: RejectionLog::default(),
        }
    }

    /// Waits for a caller whose ring is connected. `began` is when the whole wait began; a deadline error counts
    /// from it.
    pub(super) fn accept(
        &mut self,
        began: Instant,
        patience: &WaitOptions<'_>,
    ) -> Result<Pipe, PipeError> {
        let until = patience.arrival();
        loop {
            if let Some(connected) = self.step(clock::now())? {
                return connected.into_pipe(patience);
            }
            let what = match self.greeted.is_empty() {
                true => "waiting for a caller",
                false => "connecting",
            };
            until
                .wait_any_readable(what, &self.fds(), self.next_deadline())
                .map_err(deadline_error(self.name, patience.allowed(began)))?;
        }
    }

    /// Returns the earliest deadline of a caller.
    fn next_deadline(&self) -> Instant {
        let strangers = self.strangers.iter().map(Stranger::deadline);
        let greeted = self.greeted.iter().map(|(_, deadline)| *deadline);
        strangers
            .chain(greeted)
            .fold(Instant::FAR_FUTURE, Instant::min)
    }

    /// Returns the descriptors to wait for: the listener's and every caller's.
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let strangers = self.strangers.iter().map(AsFd::as_fd);
        let greeted = self.greeted.iter().map(|(caller, _)| caller.as_fd());
        let listener = std::iter::once(self.listener.as_fd());
        listener.chain(strangers).chain(greeted).collect()
    }

    /// Steps every caller, and takes one more. Returns the first whose ring is connected.
    fn step(&mut self, now: Instant) -> Result<Option<ConnectedCaller>, PipeError> {
        for stranger in std::mem::take(&mut self.strangers) {
            self.step_stranger(stranger, now)?;
        }
        let connected = self.step_greeted(now)?;
        if connected.is_some() {
            return Ok(connected);
        }
        // Every stranger was stepped just now, so a caller whose greeting has arrived does not lose its place.
        if let Some(newest) = self.listener.try_next(self.name, now)? {
            if self.strangers.len() >= self.listener.strangers_max() {
                let oldest = self.strangers.remove(0);
                let why = "it did not greet, and a newer caller took its place";
                self.reject(Rejection::Silent, oldest.host(), now, &why);
            }
            self.strangers.push(newest);
        }
        Ok(None)
    }

    /// Steps a caller that has not greeted: keeps it, moves it to those that have, or rejects it.
    fn step_stranger(&mut self, stranger: Stranger<'d>, now: Instant) -> Result<(), PipeError> {
        let (device, mut control, deadline) = match stranger {
            Stranger::AwaitingHello {
                device,
                control,
                deadline,
            } => (device, control, deadline),
            Stranger::Connecting(caller) => {
                let (listening, host) = (caller.listener(), caller.host());
                match step_connection(*caller, now, now + self.listener.hello_timeout()) {
                    Ok(stranger) => self.strangers.push(stranger),
                    Err(error) => listening
                        .turn_away(error, host, false)
                        .map_err(|error| rdma_error(self.name, HELLO_TIMEOUT, error))?,
                }
                return Ok(());
            }
        };
        let host = control.peer_host();
        let greeted = match receive_hello(&mut control) {
            Ok(Some(direction)) => GreetedCaller::welcome(device, control, direction),
            Ok(None) if now < deadline => {
                self.strangers.push(Stranger::AwaitingHello {
                    device,
                    control,
                    deadline,
                });
                return Ok(());
            }
            Ok(None) => Err(self.late("waiting for a greeting", self.listener.hello_timeout())),
            Err(error) => Err(error),
        };
        match greeted {
            Ok(caller) => {
                if self.greeted.len() >= GREETED_MAX {
                    self.displace_greeted(0, now);
                }
                self.greeted.push((caller, now + HELLO_TIMEOUT_NETWORK));
            }
            Err(error) => {
                let kind = match error {
                    PipeError::Ungreeted | PipeError::Deadline { .. } => Rejection::Silent,
                    _ => Rejection::Failed,
                };
                self.reject(kind, host, now, &error);
            }
        }
        Ok(())
    }

    /// Steps the callers that have greeted. Returns the first whose ring is connected.
    fn step_greeted(&mut self, now: Instant) -> Result<Option<ConnectedCaller>, PipeError> {
        let mut at = 0;
        while at < self.greeted.len() {
            let Err(error) = self.greeted[at].0.make_ring() else {
                at += 1;
                continue;
            };
            // Rings of callers that stall must not use up the device.
            let mut rings = self.greeted.iter();
            match rings.position(|(caller, _)| caller.has_ring()) {
                Some(oldest) if matches!(error, PipeError::Setup(SetupError::Resource(_))) => {
                    self.displace_greeted(oldest, now);
                    at -= usize::from(oldest < at);
                }
                _ => {
                    let (caller, _) = self.greeted.remove(at);
                    self.reject_or_fail(caller.host(), now, error)?;
                }
            }
        }
        for (caller, deadline) in std::mem::take(&mut self.greeted) {
            let host = caller.host();
            match caller.step() {
                Ok(ControlFlow::Break(connected)) => return Ok(Some(connected)),
                Ok(ControlFlow::Continue(caller)) if now < deadline => {
                    self.greeted.push((caller, deadline));
                }
                Ok(ControlFlow::Continue(_)) => {
                    let error = self.late("connecting", HELLO_TIMEOUT_NETWORK);
                    self.reject(Rejection::Failed, host, now, &error);
                }
                Err(error) => self.reject_or_fail(host, now, error)?,
            }
        }
        Ok(None)
    }

    /// Returns the error of a caller that did not do `what` within the time `allowed`.
    fn late(&self, what: &'static str, allowed: Duration) -> PipeError {
        deadline_error(self.name, allowed)(NetError::Deadline { what })
    }

    /// Rejects the caller at `place` of those that have greeted, because others need its place.
    fn displace_greeted(&mut self, place: usize, now: Instant) {
        let (oldest, _) = self.greeted.remove(place);
        let why = "it did not connect its ring, and a newer caller took its place";
        self.reject(Rejection::Failed, oldest.host(), now, &why);
    }

    /// Rejects a caller that failed. Returns the error if the caller is not at fault.
    fn reject_or_fail(
        &self,
        host: Option<IpAddr>,
        now: Instant,
        error: PipeError,
    ) -> Result<(), PipeError> {
        if !error.is_callers_fault(self.listener.is_any_device()) {
            return Err(error);
        }
        self.reject(Rejection::Failed, host, now, &error);
        Ok(())
    }

    fn reject(&self, kind: Rejection, host: Option<IpAddr>, now: Instant, why: &dyn Display) {
        self.rejections.log(kind, now, self.name, host, why);
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;

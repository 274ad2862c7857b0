//! A caller of a listener, from its connection to its connected ring.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use headworks_net::{ControlStream, NetError, WaitLimit};
use headworks_verbs::{Device, Duration, Instant};
use rustix::event::PollFlags;

use crate::pipe::PipeError;
use crate::pipe::endpoints::ready;
use crate::pipe::handshake::{
    Direction, HELLO, Pipe, WELCOME, WaitOptions, deadline_error, decode_hello, encode_hello,
    failures_of_port,
};
use crate::pipe::ring_bring_up::{RingBringUp, RingEnd};
use crate::rdma::{self, RdmaError};

/// A caller that has not greeted yet.
pub(super) enum Stranger<'d> {
    /// The connection of a caller over RDMA takes several steps.
    Connecting(Box<rdma::IncomingConnection<'d>>),
    AwaitingHello {
        device: Arc<dyn Device>,
        control: ControlStream,
        deadline: Instant,
    },
}

impl Stranger<'_> {
    /// Returns when the caller's present phase, connecting or greeting, must be over.
    pub(super) fn deadline(&self) -> Instant {
        match self {
            Self::Connecting(caller) => caller.deadline(),
            Self::AwaitingHello { deadline, .. } => *deadline,
        }
    }

    /// Returns the host that the caller came from, if that is known.
    pub(super) fn host(&self) -> Option<IpAddr> {
        match self {
            Self::Connecting(caller) => caller.host(),
            Self::AwaitingHello { control, .. } => control.peer_host(),
        }
    }
}

impl AsFd for Stranger<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Connecting(caller) => caller.as_fd(),
            Self::AwaitingHello { control, .. } => control.as_fd(),
        }
    }
}

/// Steps the connection of a caller over RDMA. Opens the device for its ring once the connection is established.
/// The caller then has until `hello_deadline` to greet.
pub(super) fn step_connection(
    caller: rdma::IncomingConnection<'_>,
    now: Instant,
    hello_deadline: Instant,
) -> Result<Stranger<'_>, RdmaError> {
    Ok(match caller.step(now)? {
        ControlFlow::Continue(caller) => Stranger::Connecting(Box::new(caller)),
        ControlFlow::Break(met) => Stranger::AwaitingHello {
            device: crate::open(&met.device)?,
            control: met.control,
            deadline: hello_deadline,
        },
    })
}

/// Returns the direction in the caller's hello; `None` if it has not arrived.
pub(in crate::pipe) fn receive_hello(
    control: &mut ControlStream,
) -> Result<Option<Direction>, PipeError> {
    match control.recv_control() {
        Ok(Some(hello)) => direction(control, &hello).map(Some),
        Ok(None) => Ok(None),
        Err(NetError::PeerGone) => Err(PipeError::Ungreeted),
        Err(NetError::Frame(_)) => Err(PipeError::Protocol("its greeting")),
        Err(error) => Err(error.into()),
    }
}

/// Reads the direction from a connector's hello.
fn direction(control: &mut ControlStream, hello: &[u8]) -> Result<Direction, PipeError> {
    match decode_hello(HELLO, hello) {
        Ok([0]) => Ok(Direction::ToListener),
        Ok([1]) => Ok(Direction::ToConnector),
        Ok(_) => Err(PipeError::Protocol("its direction")),
        Err(error) => {
            // A pipe of another version understands this much of the answer, and reports our version.
            if matches!(error, PipeError::Version { .. }) {
                let _ = control.send_control(&encode_hello(WELCOME, &[]));
            }
            Err(error)
        }
    }
}

/// A caller that has greeted, and whose ring is not connected yet.
pub(in crate::pipe) struct GreetedCaller {
    /// The ring, once the caller has begun to connect it. It must not outlive the device.
    bring_up: Option<RingBringUp>,
    control: ControlStream,
    direction: Direction,
    device: Arc<dyn Device>,
    /// [Failures](failures_of_port) of the device's port before the ring was made.
    before: u64,
}

impl GreetedCaller {
    /// Answers the caller's greeting.
    pub(in crate::pipe) fn welcome(
        device: Arc<dyn Device>,
        mut control: ControlStream,
        direction: Direction,
    ) -> Result<Self, PipeError> {
        control.send_control(&encode_hello(WELCOME, &[]))?;
        Ok(Self {
            bring_up: None,
            control,
            direction,
            device,
            before: 0,
        })
    }

    /// Returns the host that the caller came from, if that is known.
    pub(super) fn host(&self) -> Option<IpAddr> {
        self.control.peer_host()
    }

    /// Whether this side holds a ring for the caller.
    pub(super) fn has_ring(&self) -> bool {
        self.bring_up.is_some()
    }

    /// Makes the ring if the caller has begun to connect it, so that a silent caller costs no ring. After an
    /// error the caller can still be used.
    pub(super) fn make_ring(&mut self) -> Result<(), PipeError> {
        if self.bring_up.is_none() && ready(&self.control, PollFlags::IN) {
            let sends = self.direction == Direction::ToConnector;
            self.before = failures_of_port(&*self.device);
            self.bring_up = Some(RingBringUp::start(&self.device, sends)?);
        }
        Ok(())
    }

    /// Steps the connection of the ring. Breaks once it is connected, else continues with the caller.
    pub(super) fn step(mut self) -> Result<ControlFlow<ConnectedCaller, Self>, PipeError> {
        let Some(bring_up) = self.bring_up.take() else {
            return Ok(ControlFlow::Continue(self));
        };
        Ok(match bring_up.step(&mut self.control)? {
            ControlFlow::Continue(bring_up) => {
                self.bring_up = Some(bring_up);
                ControlFlow::Continue(self)
            }
            ControlFlow::Break(ring) => ControlFlow::Break(ConnectedCaller {
                ring,
                control: self.control,
                device: self.device,
                before: self.before,
            }),
        })
    }

    /// Waits until the ring is connected. `allowed` is the time that this may take, for errors.
    pub(in crate::pipe) fn connect(
        mut self,
        name: &str,
        (until, allowed): (WaitLimit<'_>, Duration),
    ) -> Result<ConnectedCaller, PipeError> {
        loop {
            self.make_ring()?;
            self = match self.step()? {
                ControlFlow::Break(connected) => return Ok(connected),
                ControlFlow::Continue(caller) => caller,
            };
            until
                .wait_readable("connecting", &self)
                .map_err(deadline_error(name, allowed))?;
        }
    }
}

impl AsFd for GreetedCaller {
    /// Readable when a step has something to do. What this side sends is less than a socket takes at once, so
    /// no step waits for room.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

/// A caller whose ring is connected.
pub(in crate::pipe) struct ConnectedCaller {
    ring: RingEnd,
    control: ControlStream,
    device: Arc<dyn Device>,
    before: u64,
}

impl ConnectedCaller {
    /// Returns this side of the pipe.
    pub(in crate::pipe) fn into_pipe(self, patience: &WaitOptions<'_>) -> Result<Pipe, PipeError> {
        let device = (&self.device, self.before);
        Pipe::over(self.ring, self.control, device, patience)
    }
}

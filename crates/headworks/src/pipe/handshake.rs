//! Connects the two sides and agrees on which way the bytes go.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use headworks_net::{
    ControlStream, Listener, NetError, RendezvousAddr, WaitLimit, clock, dial, dial_tcp,
    dial_tcp_wait, dial_wait,
};
use headworks_shm::Registry;
use headworks_verbs::{Device, DeviceName, Duration, Instant};

use super::accept_queue::{AcceptQueue, GreetedCaller, NetworkListener, receive_hello};
use super::ring_bring_up::RingEnd;
use super::{PipeError, PipeReceiver, PipeSender, VERSION, ring};
use crate::blocking::{BlockingReceiver, BlockingSender};
use crate::connect::{self, ConnectError};
use crate::rdma::{self, RdmaError};

/// How long the other side may take to answer once it is there, if no deadline extends it.
pub(super) const HELLO_TIMEOUT: Duration = rdma::ANSWER_TIMEOUT;

pub(super) const HELLO: u8 = b'H';
pub(super) const WELCOME: u8 = b'W';

/// Direction in which the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the connector to the listener.
    ToListener,
    /// From the listener to the connector.
    ToConnector,
}

/// One side of a pipe that is connected.
pub enum Pipe {
    /// This side sends.
    Sender(PipeSender),
    /// This side receives.
    Receiver(PipeReceiver),
}

/// Limits of a wait: an interrupt, a deadline.
#[derive(Clone, Copy, Default)]
pub struct WaitOptions<'a> {
    /// Ends the wait when it is readable.
    pub interrupt: Option<BorrowedFd<'a>>,
    /// When the two sides must be connected. Without a deadline, a listener waits for a caller without limit, and
    /// a connector waits 10 seconds for each step: to reach the listener, for its answer, and for the ring. A
    /// listener limits the time of each caller as well, as [`Pipe::listen`] says. Resolving a host name takes as
    /// long as the system's resolver does, whatever the deadline.
    pub deadline: Option<Instant>,
}

impl<'a> WaitOptions<'a> {
    /// Returns a limit at `deadline` or at the interrupt.
    pub(super) fn until(&'a self, deadline: Instant) -> WaitLimit<'a> {
        let until = WaitLimit::deadline(deadline);
        match &self.interrupt {
            Some(interrupt) => until.or_readable(interrupt),
            None => until,
        }
    }

    /// Returns the limit for the other side to arrive; none if no deadline was given.
    pub(super) fn arrival(&'a self) -> WaitLimit<'a> {
        self.until(self.deadline.unwrap_or(Instant::FAR_FUTURE))
    }

    /// Returns the limit for an answer of a caller that may take `takes` from now, and how long was allowed, for
    /// errors. If the deadline comes first, it is the limit, and the time allowed counts from `began`.
    fn answer(&'a self, began: Instant, takes: Duration) -> (WaitLimit<'a>, Duration) {
        let by = clock::now() + takes;
        match self.deadline.filter(|deadline| *deadline < by) {
            Some(deadline) => (self.until(deadline), deadline.since(began)),
            None => (self.until(by), takes),
        }
    }

    /// Returns the limit for a step of a connector: the deadline, if there is one. Also returns how long was
    /// allowed, for errors; until a deadline that counts from `began`.
    fn step_of_connector(&'a self, began: Instant) -> (WaitLimit<'a>, Duration) {
        match self.deadline {
            Some(deadline) => (self.until(deadline), deadline.since(began)),
            None => (self.until(clock::now() + HELLO_TIMEOUT), HELLO_TIMEOUT),
        }
    }

    /// Returns how long the other side had to arrive; without a deadline, how long it has to answer once it
    /// is there.
    pub(super) fn allowed(&self, began: Instant) -> Duration {
        self.deadline
            .map_or(HELLO_TIMEOUT, |deadline| deadline.since(began))
    }
}

impl Pipe {
    /// Waits under `name` for a connector, which says which way the bytes go.
    ///
    /// A name with a colon is an address, `HOST:PORT`, which connectors reach from other hosts. With the
    /// prefix `rdma:` they connect over RDMA, and then the device name `ibv` alone selects the device that
    /// leads there.
    ///
    /// If the host's name has several addresses, it listens at all of them over TCP, and at the first that can be
    /// used over RDMA. A warning names addresses that are not used.
    ///
    /// Anybody may connect to an address. A caller that does not greet as a pipe of this version is turned away.
    /// So is one that does not go on to connect its ring. The first caller whose ring is connected becomes the
    /// other side. The time limits of each caller are:
    ///
    /// | step | under a name | over TCP | over RDMA |
    /// |---|---|---|---|
    /// | establish the connection | | | 10 s |
    /// | then greet | 10 s | 5 s | 10 s |
    /// | then connect the ring | 10 s | 5 s | 5 s |
    ///
    /// At an address, up to 64 callers (8 over RDMA) are held until they greet, and up to 8 that have greeted
    /// connect their rings at the same time. If all places are taken, a new caller takes the place of the oldest.
    /// Under a name, where only processes of the same user can connect, the first caller is the only one, and its
    /// failure is the listener's.
    pub fn listen(
        device: &DeviceName,
        name: &str,
        patience: WaitOptions<'_>,
    ) -> Result<Self, PipeError> {
        let began = clock::now();
        let listener = match parse_address(name)? {
            RendezvousAddr::Name(name) => {
                return listen_under_name(device, &name, began, &patience);
            }
            RendezvousAddr::Tcp(address) => {
                let device = crate::open(device)?;
                NetworkListener::Tcp(device, Listener::bind_tcp(&address)?)
            }
            RendezvousAddr::Rdma(address) => {
                let listening = rdma::RdmaListener::at(&address, device);
                let listening =
                    listening.map_err(|error| rdma_error(name, HELLO_TIMEOUT, error))?;
                NetworkListener::Rdma(Box::new(listening))
            }
        };
        AcceptQueue::new(&listener, name).accept(began, &patience)
    }

    /// Connects to the listener under `name`, and tells it which way the bytes go. Waits for a listener
    /// only if a deadline is given. All steps may then last until the deadline; [`WaitOptions::deadline`] has the
    /// limits without one.
    pub fn connect(
        device: &DeviceName,
        name: &str,
        direction: Direction,
        patience: WaitOptions<'_>,
    ) -> Result<Self, PipeError> {
        let began = clock::now();
        let (device, mut control) = call_listener(device, name, &patience)?;
        let reverse = direction == Direction::ToConnector;
        let said = control.send_control(&encode_hello(HELLO, &[reverse.into()]));
        let (until, allowed) = patience.step_of_connector(began);
        let welcome = said
            .and_then(|()| control.recv_control_wait(until))
            .map_err(no_answer_error(name, allowed))?;
        decode_hello(WELCOME, &welcome).map_err(|error| match error {
            PipeError::Protocol(_) => PipeError::NoPipe {
                name: name.to_owned(),
            },
            error => error,
        })?;
        let limit = patience.step_of_connector(began);
        let before = failures_of_port(&*device);
        let ring = connect_ring(&device, &mut control, !reverse, name, limit)?;
        Self::over(ring, control, (&device, before), &patience)
    }

    /// Returns this side of a pipe over a connected ring of a device, which had these
    /// [failures](failures_of_port) before.
    pub(super) fn over(
        ring: RingEnd,
        control: ControlStream,
        (device, before): (&Arc<dyn Device>, u64),
        patience: &WaitOptions<'_>,
    ) -> Result<Self, PipeError> {
        let failed = PipeError::waiting;
        match ring {
            RingEnd::Sender(sender) => {
                let mut sender = BlockingSender::new(sender, control).map_err(failed(0))?;
                if let Some(interrupt) = &patience.interrupt {
                    sender.interrupt_on(interrupt).map_err(failed(0))?;
                }
                Ok(Self::Sender(PipeSender::new(
                    sender,
                    device.clone(),
                    before,
                )))
            }
            RingEnd::Receiver(receiver) => {
                let mut receiver = BlockingReceiver::new(receiver, control).map_err(failed(0))?;
                if let Some(interrupt) = &patience.interrupt {
                    receiver.interrupt_on(interrupt).map_err(failed(0))?;
                }
                Ok(Self::Receiver(PipeReceiver::new(
                    receiver,
                    device.clone(),
                    before,
                )))
            }
        }
    }
}

/// Number of the latest failure of the device's port; 0 for none. Asked before a connection is begun.
pub(super) fn failures_of_port(device: &dyn Device) -> u64 {
    device.port_failure().map_or(0, |failure| failure.number)
}

/// Waits under a name for the one caller that becomes the other side.
fn listen_under_name(
    device: &DeviceName,
    name: &str,
    began: Instant,
    patience: &WaitOptions<'_>,
) -> Result<Pipe, PipeError> {
    let device = crate::open(device)?;
    let listener = Listener::bind(&registry()?, name)?;
    let mut control = listener
        .accept(patience.arrival())
        .map_err(deadline_error(name, patience.allowed(began)))?;
    let (until, allowed) = patience.answer(began, HELLO_TIMEOUT);
    let direction = loop {
        if let Some(direction) = receive_hello(&mut control)? {
            break direction;
        }
        until
            .wait_readable("waiting for a greeting", &control)
            .map_err(deadline_error(name, allowed))?;
    };
    // Frees the name for the next pair.
    drop(listener);
    GreetedCaller::welcome(device, control, direction)?
        .connect(name, patience.answer(began, HELLO_TIMEOUT))?
        .into_pipe(patience)
}

/// Returns the device that a pipe at `name` uses if the caller names none.
pub fn default_device_for(name: &str) -> &'static str {
    match name.parse() {
        Ok(RendezvousAddr::Rdma(_)) => rdma::KIND,
        _ => crate::DEFAULT_DEVICE,
    }
}

/// An open device, and a control stream to another process.
type DeviceAndControl = (Arc<dyn Device>, ControlStream);

/// Connects to a listener.
fn call_listener(
    device: &DeviceName,
    name: &str,
    patience: &WaitOptions<'_>,
) -> Result<DeviceAndControl, PipeError> {
    let began = clock::now();
    let waits = patience.deadline.is_some();
    let (until, allowed) = patience.step_of_connector(began);
    let (device, control) = match parse_address(name)? {
        RendezvousAddr::Name(name) => {
            let (device, fabric) = (crate::open(device)?, registry()?);
            let control = match waits {
                true => dial_wait(&fabric, &name, until),
                false => dial(&fabric, &name),
            };
            (device, control)
        }
        RendezvousAddr::Tcp(address) => {
            let device = crate::open(device)?;
            let control = match waits {
                true => dial_tcp_wait(&address, until),
                false => dial_tcp(&address, until),
            };
            (device, control)
        }
        RendezvousAddr::Rdma(address) => {
            let met = match waits {
                true => rdma::dial_wait(&address, device, until),
                false => rdma::dial(&address, device, until),
            };
            let met = met.map_err(|error| rdma_error(name, allowed, error))?;
            return Ok((crate::open(&met.device)?, met.control));
        }
    };
    Ok((device, control.map_err(deadline_error(name, allowed))?))
}

/// Converts an error of connecting over RDMA.
pub(super) fn rdma_error(name: &str, allowed: Duration, error: RdmaError) -> PipeError {
    if let RdmaError::ControlStream(error) = error {
        return deadline_error(name, allowed)(error);
    }
    if let RdmaError::Device(error) = error {
        return error.into();
    }
    PipeError::Rdma(error)
}

pub(super) fn parse_address(name: &str) -> Result<RendezvousAddr, PipeError> {
    let place = name.parse().map_err(PipeError::Meeting)?;
    if let RendezvousAddr::Tcp(address) | RendezvousAddr::Rdma(address) = &place
        && address
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok())
            == Some(0u16)
    {
        // The system would choose a port that no connector knows.
        return Err(PipeError::NoPort(name.to_owned()));
    }
    Ok(place)
}

pub(super) fn registry() -> Result<Arc<Registry>, PipeError> {
    Registry::open_default().map_err(|error| PipeError::Meeting(error.into()))
}

/// For `map_err`: names `name` and the time `allowed` in a missed deadline; passes on any other error.
pub(super) fn deadline_error(name: &str, allowed: Duration) -> impl FnOnce(NetError) -> PipeError {
    let seconds = seconds(allowed);
    move |error| match error {
        NetError::Deadline { what } => PipeError::Deadline {
            what,
            name: name.to_owned(),
            seconds,
        },
        error => error.into(),
    }
}

/// Converts to seconds. Rounds up to the time that was meant: the deadline was set a moment ago.
fn seconds(allowed: Duration) -> u64 {
    allowed.nanos().div_ceil(1_000_000_000)
}

/// For `map_err`: the process that was called at `name` did not answer.
fn no_answer_error(name: &str, allowed: Duration) -> impl FnOnce(NetError) -> PipeError {
    move |error| {
        let name = name.to_owned();
        match error {
            NetError::PeerGone => PipeError::Wordless { name },
            NetError::Frame(_) => PipeError::NoPipe { name },
            NetError::Deadline { .. } => PipeError::Silent {
                name,
                seconds: seconds(allowed),
            },
            error => deadline_error(&name, allowed)(error),
        }
    }
}

pub(super) fn encode_hello(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

/// Returns what follows the version in a greeting of this kind.
pub(super) fn decode_hello(kind: u8, bytes: &[u8]) -> Result<&[u8], PipeError> {
    match bytes {
        [found, low, high, rest @ ..] if *found == kind => {
            match u16::from_le_bytes([*low, *high]) {
                VERSION => Ok(rest),
                found => Err(PipeError::Version { found }),
            }
        }
        _ => Err(PipeError::Protocol("its greeting")),
    }
}

/// For `map_err`: the ring could not be connected.
fn connect_error(name: &str, allowed: Duration) -> impl FnOnce(ConnectError) -> PipeError {
    move |error| match error {
        ConnectError::Setup(error) => error.into(),
        ConnectError::ControlStream(NetError::PeerGone) => PipeError::NotConnected {
            name: name.to_owned(),
        },
        ConnectError::ControlStream(error) => deadline_error(name, allowed)(error),
    }
}

/// Makes and connects the ring of a connector.
fn connect_ring(
    device: &Arc<dyn Device>,
    control: &mut ControlStream,
    sends: bool,
    name: &str,
    (until, allowed): (WaitLimit<'_>, Duration),
) -> Result<RingEnd, PipeError> {
    let ring = ring();
    let connected = match sends {
        true => connect::sender(device, &ring, control, until).map(RingEnd::Sender),
        false => connect::receiver(device, &ring, control, until).map(RingEnd::Receiver),
    };
    connected.map_err(connect_error(name, allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_are_parsed_or_refused() {
        let hello = encode_hello(HELLO, &[1]);
        assert_eq!(decode_hello(HELLO, &hello).expect("ours"), [1]);
        assert!(matches!(
            decode_hello(WELCOME, &hello),
            Err(PipeError::Protocol(_))
        ));
        assert!(matches!(
            decode_hello(HELLO, &[]),
            Err(PipeError::Protocol(_))
        ));
        let other = [HELLO, 7, 1, 0];
        let error = decode_hello(HELLO, &other).expect_err("another version");
        assert!(matches!(error, PipeError::Version { found: 263 }));
        assert!(error.is_bad_input());
    }

    #[test]
    fn an_answer_may_take_its_time_and_no_longer_than_everything_may() {
        let began = clock::now();
        let within = |seconds: Option<u64>| {
            let deadline = seconds.map(|seconds| began + Duration::from_secs(seconds));
            let patience = WaitOptions {
                deadline,
                interrupt: None,
            };
            let (until, allowed) = patience.answer(began, HELLO_TIMEOUT);
            let ends = |seconds| until.is_over(began + Duration::from_secs(seconds));
            (allowed, [2, 3, 9, 60].map(ends))
        };
        let whole = (HELLO_TIMEOUT, [false, false, false, true]);
        assert_eq!(within(None), whole);
        assert_eq!(within(Some(600)), whole);
        let short = (Duration::from_secs(3), [false, true, true, true]);
        assert_eq!(within(Some(3)), short);
    }

    #[test]
    fn a_deadline_extends_the_steps_of_a_connector() {
        let began = clock::now();
        let within = |seconds: Option<u64>| {
            let deadline = seconds.map(|seconds| began + Duration::from_secs(seconds));
            let patience = WaitOptions {
                deadline,
                interrupt: None,
            };
            let (until, allowed) = patience.step_of_connector(began);
            let ends = |seconds| until.is_over(began + Duration::from_secs(seconds));
            (allowed, [2, 9, 59, 600].map(ends))
        };
        let no_deadline = (HELLO_TIMEOUT, [false, false, true, true]);
        assert_eq!(within(None), no_deadline);
        let long = (Duration::from_secs(60), [false, false, false, true]);
        assert_eq!(within(Some(60)), long);
        let short = (Duration::from_secs(1), [true; 4]);
        assert_eq!(within(Some(1)), short);
    }

    #[test]
    fn a_place_without_a_port_is_none() {
        for name in ["127.0.0.1:0", "rdma:[::1]:00", "rdma:0"] {
            let error = parse_address(name).expect_err("port 0");
            let said = error.to_string();
            assert!(error.is_bad_input() && said.contains(name), "{said}");
        }
        for name in ["0", "h:10", "rdma:h:1000"] {
            parse_address(name).expect("a place");
        }
    }

    #[test]
    fn a_wait_without_a_deadline_is_reported_with_the_limit_that_ended_it() {
        let began = clock::now();
        let seconds = |patience: WaitOptions<'_>| {
            let deadline = NetError::Deadline { what: "connecting" };
            let error = rdma_error("rdma:h:1", patience.allowed(began), deadline.into());
            match error {
                PipeError::Deadline { seconds, .. } => seconds,
                error => panic!("{error}"),
            }
        };
        assert_eq!(seconds(WaitOptions::default()), 10);
        let patience = WaitOptions {
            deadline: Some(began + Duration::from_secs(3)),
            interrupt: None,
        };
        assert_eq!(seconds(patience), 3);
    }
}

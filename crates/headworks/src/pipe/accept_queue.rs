//! Accepts connectors: several may be connected at the same time, and the first to greet is accepted.

use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use headworks_net::{ControlStream, Listener, NetError, RendezvousAddr, clock};
use headworks_verbs::{Device, DeviceName, Duration, Instant};

use super::PipeError;
use super::handshake::{
    Direction, HELLO, HELLO_TIMEOUT, WELCOME, WaitOptions, deadline_error, decode_hello,
    encode_hello, log_rejected_caller, parse_address, rdma_error, registry,
};
use crate::rdma::{self, RdmaError};

/// How long a connector may take to greet over TCP, where anybody may connect, and then to connect its ring.
/// A connector waits twice as long for its answer ([`HELLO_TIMEOUT`]), so it outlasts one silent caller.
pub(super) const HELLO_TIMEOUT_NETWORK: Duration = Duration::from_secs(5);
/// Limit on callers that are connected to an address and have not greeted.
const PENDING_CALLERS_MAX: usize = 8;

/// Listens for connectors.
pub(super) enum PipeListener {
    /// Under a name, for processes of this user, or at a TCP address, for anybody.
    Rendezvous(Arc<dyn Device>, Listener),
    Rdma(Box<rdma::RdmaListener>),
}

/// A connector that has greeted: its device, its control stream, and the direction it asked for.
pub(super) struct AcceptedPeer {
    pub(super) device: Arc<dyn Device>,
    pub(super) control: ControlStream,
    pub(super) direction: Direction,
}

impl PipeListener {
    pub(super) fn open(device: &DeviceName, name: &str) -> Result<Self, PipeError> {
        Ok(match parse_address(name)? {
            RendezvousAddr::Name(name) => {
                let device = crate::open(device)?;
                Self::Rendezvous(device, Listener::bind(&registry()?, &name)?)
            }
            RendezvousAddr::Tcp(address) => {
                let device = crate::open(device)?;
                Self::Rendezvous(device, Listener::bind_tcp(&address)?)
            }
            RendezvousAddr::Rdma(address) => {
                let listening = rdma::RdmaListener::at(&address, device);
                let listening =
                    listening.map_err(|error| rdma_error(name, HELLO_TIMEOUT, error))?;
                Self::Rdma(Box::new(listening))
            }
        })
    }

    /// Takes the next caller, if one waits.
    fn try_next(&self, name: &str, now: Instant) -> Result<Option<PendingCaller<'_>>, PipeError> {
        match self {
            Self::Rendezvous(device, listener) => {
                Ok(listener
                    .try_accept()?
                    .map(|control| PendingCaller::AwaitingHello {
                        device: device.clone(),
                        control,
                        deadline: now + self.hello_timeout(),
                    }))
            }
            Self::Rdma(listening) => {
                let caller = listening.try_next();
                let caller = caller.map_err(|error| rdma_error(name, HELLO_TIMEOUT, error))?;
                Ok(caller.map(Box::new).map(PendingCaller::Connecting))
            }
        }
    }

    /// Whether it listens at an address, to which anybody may connect.
    pub(super) fn is_network_address(&self) -> bool {
        match self {
            Self::Rendezvous(_, listener) => listener.address().is_some(),
            Self::Rdma(_) => true,
        }
    }

    /// Whether callers choose the device: so it is at an unspecified address over RDMA.
    pub(super) fn is_any_device(&self) -> bool {
        match self {
            Self::Rendezvous(..) => false,
            Self::Rdma(listening) => listening.address().ip().is_unspecified(),
        }
    }

    /// Returns how long a caller may take to greet.
    fn hello_timeout(&self) -> Duration {
        match self {
            // A connector over TCP has its greeting ready. Those after it may wait, and wait twice as long.
            Self::Rendezvous(_, listener) if listener.address().is_some() => HELLO_TIMEOUT_NETWORK,
            // Another process of this user, or a caller over RDMA: it may have to open a device first.
            _ => HELLO_TIMEOUT,
        }
    }
}

impl AsFd for PipeListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Rendezvous(_, listener) => listener.as_fd(),
            Self::Rdma(listening) => listening.as_fd(),
        }
    }
}

/// A caller that has not greeted yet.
enum PendingCaller<'d> {
    /// Over RDMA, where the connection itself takes several steps.
    Connecting(Box<rdma::IncomingConnection<'d>>),
    AwaitingHello {
        device: Arc<dyn Device>,
        control: ControlStream,
        deadline: Instant,
    },
}

impl PendingCaller<'_> {
    /// Returns when the caller's present phase, connecting or greeting, must be over.
    fn deadline(&self) -> Instant {
        match self {
            Self::Connecting(caller) => caller.deadline(),
            Self::AwaitingHello { deadline, .. } => *deadline,
        }
    }
}

impl AsFd for PendingCaller<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Connecting(caller) => caller.as_fd(),
            Self::AwaitingHello { control, .. } => control.as_fd(),
        }
    }
}

/// The callers that have not greeted yet.
pub(super) struct AcceptQueue<'d> {
    door: &'d PipeListener,
    name: &'d str,
    waiting: Vec<PendingCaller<'d>>,
}

impl<'d> AcceptQueue<'d> {
    pub(super) fn new(door: &'d PipeListener, name: &'d str) -> Self {
        let waiting = Vec::new();
        Self {
            door,
            name,
            waiting,
        }
    }

    /// Waits for a connector that greets. `began` is when the whole wait began; a deadline error counts from
    /// it.
    pub(super) fn accept(
        &mut self,
        began: Instant,
        patience: &WaitOptions<'_>,
    ) -> Result<AcceptedPeer, PipeError> {
        const WHAT: &str = "waiting for a caller";
        let until = patience.arrival();
        loop {
            if let Some(greeted) = self.accept_and_step(clock::now())? {
                return Ok(greeted);
            }
            let nap = self.waiting.iter().map(PendingCaller::deadline);
            let nap = nap.fold(Instant::FAR_FUTURE, Instant::min);
            until
                .wait_any_readable(WHAT, &self.fds(), nap)
                .map_err(deadline_error(self.name, patience.allowed(began)))?;
        }
    }

    /// Whether one more caller may be taken: under a name the first caller is the only one.
    fn has_room(&self) -> bool {
        let most = if self.door.is_network_address() {
            PENDING_CALLERS_MAX
        } else {
            1
        };
        self.waiting.len() < most
    }

    /// Returns the descriptors to wait for: the listener's, if there is room, and every caller's.
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let door = self.has_room().then(|| self.door.as_fd());
        let callers = self.waiting.iter().map(AsFd::as_fd);
        door.into_iter().chain(callers).collect()
    }

    /// Takes one more caller, if there is room, and steps every caller. Returns the first that has greeted.
    fn accept_and_step(&mut self, now: Instant) -> Result<Option<AcceptedPeer>, PipeError> {
        if self.has_room() {
            self.waiting.extend(self.door.try_next(self.name, now)?);
        }
        // The other callers keep their places when one greets: its ring may still fail to connect.
        let mut callers = std::mem::take(&mut self.waiting).into_iter();
        while let Some(caller) = callers.next() {
            match self.step(caller, now)? {
                ControlFlow::Break(greeted) => {
                    self.waiting.extend(callers);
                    return Ok(Some(greeted));
                }
                ControlFlow::Continue(caller) => self.waiting.extend(caller),
            }
        }
        Ok(None)
    }

    /// Steps one caller. Breaks with the peer if it greeted; else continues with the caller, or with `None`
    /// if it was turned away.
    fn step(
        &self,
        caller: PendingCaller<'d>,
        now: Instant,
    ) -> Result<ControlFlow<AcceptedPeer, Option<PendingCaller<'d>>>, PipeError> {
        let (device, mut control, deadline) = match caller {
            PendingCaller::AwaitingHello {
                device,
                control,
                deadline,
            } => (device, control, deadline),
            PendingCaller::Connecting(caller) => {
                let (listening, host) = (caller.listener(), caller.host());
                let caller = connected(*caller, now, self.door.hello_timeout()).or_else(|error| {
                    let passed = listening.turn_away(error, host, false).map(|()| None);
                    passed.map_err(|error| rdma_error(self.name, HELLO_TIMEOUT, error))
                });
                return caller.map(ControlFlow::Continue);
            }
        };
        let greeted = control.recv_control().map_err(|error| match error {
            NetError::PeerGone => PipeError::Ungreeted,
            NetError::Frame(_) => PipeError::Protocol("its greeting"),
            error => error.into(),
        });
        let greeted = match greeted.and_then(|hello| match hello {
            Some(hello) => direction(&mut control, &hello).map(Some),
            None if now < deadline => Ok(None),
            None => {
                let what = "waiting for a greeting";
                let allowed = self.door.hello_timeout();
                Err(deadline_error(self.name, allowed)(NetError::Deadline {
                    what,
                }))
            }
        }) {
            Ok(Some(direction)) => ControlFlow::Break(AcceptedPeer {
                device,
                control,
                direction,
            }),
            Ok(None) => ControlFlow::Continue(Some(PendingCaller::AwaitingHello {
                device,
                control,
                deadline,
            })),
            Err(error) if self.door.is_network_address() => {
                log_rejected_caller(self.name, control.peer_host(), &error);
                ControlFlow::Continue(None)
            }
            Err(error) => return Err(error),
        };
        Ok(greeted)
    }
}

/// Steps a caller over RDMA. Opens the device for its ring once the connection is established.
fn connected(
    caller: rdma::IncomingConnection<'_>,
    now: Instant,
    greets: Duration,
) -> Result<Option<PendingCaller<'_>>, RdmaError> {
    Ok(Some(match caller.step(now)? {
        ControlFlow::Continue(caller) => PendingCaller::Connecting(Box::new(caller)),
        ControlFlow::Break(met) => PendingCaller::AwaitingHello {
            device: crate::open(&met.device)?,
            control: met.control,
            deadline: now + greets,
        },
    }))
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

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_net::dial_tcp;
    use headworks_shm::Registry;
    use headworks_softnic::SoftProvider;
    use headworks_verbs::Provider;

    /// Listens at a TCP address, with a soft device in a registry in `folder`.
    fn door(folder: &tempfile::TempDir) -> (PipeListener, String) {
        let fabric = Registry::open_at(folder.path().join("fabric")).expect("a fabric");
        let device = SoftProvider::on(fabric).open(&"soft".parse().expect("a name"));
        let listener = Listener::bind_tcp("127.0.0.1:0").expect("listens");
        let address = listener.address().expect("an address").to_string();
        (
            PipeListener::Rendezvous(device.expect("opens"), listener),
            address,
        )
    }

    #[test]
    fn an_expired_accept_reports_a_timeout_despite_silent_callers() {
        let folder = tempfile::tempdir().expect("a folder");
        let (door, address) = door(&folder);
        let mut callers = AcceptQueue::new(&door, &address);
        let began = clock::now();
        let silent = dial_tcp(&address, began + Duration::from_secs(60)).expect("it listens");
        while callers.waiting.is_empty() {
            assert!(
                callers
                    .accept_and_step(clock::now())
                    .expect("none fails")
                    .is_none()
            );
        }
        let patience = WaitOptions {
            deadline: Some(began + Duration::from_nanos(1)),
            interrupt: None,
        };
        let over = callers
            .accept(began, &patience)
            .err()
            .expect("nobody greets");
        let said = over.to_string();
        assert!(said.contains(&address) && said.contains("(1 s)"), "{said}");
        assert!(!silent.peer_gone() && callers.waiting.len() == 1);
    }

    #[test]
    fn waiting_callers_are_limited_and_a_leaving_one_frees_its_slot() {
        let folder = tempfile::tempdir().expect("a folder");
        let (door, address) = door(&folder);
        let mut callers = AcceptQueue::new(&door, &address);
        let limit = clock::now() + Duration::from_secs(60);
        // All of them connect before the listener accepts any.
        let call = |_| dial_tcp(&address, limit).expect("it listens");
        let mut silent: Vec<_> = (0..2 * PENDING_CALLERS_MAX).map(call).collect();
        let began = clock::now();
        let mut look = |now| callers.accept_and_step(now).expect("none fails").is_some();
        for _ in 0..2 * PENDING_CALLERS_MAX {
            assert!(!look(began));
        }
        assert_eq!(callers.waiting.len(), PENDING_CALLERS_MAX);
        // The listener's descriptor is not waited for: it would always be readable.
        assert_eq!(callers.fds().len(), PENDING_CALLERS_MAX);
        assert!(silent.iter().all(|control| !control.peer_gone()));
        let mut look = |now| callers.accept_and_step(now).expect("none fails");
        // The first callers time out, and the time of the others begins.
        let later = began + HELLO_TIMEOUT_NETWORK;
        assert!(look(later).is_none());
        let gone = |control: &mut ControlStream| {
            matches!(control.recv_control_wait(limit), Err(NetError::PeerGone))
        };
        assert!(silent[..PENDING_CALLERS_MAX].iter_mut().all(gone));
        assert!((0..PENDING_CALLERS_MAX).all(|_| look(later).is_none()));
        let first = &mut silent[PENDING_CALLERS_MAX];
        first
            .send_control(&encode_hello(HELLO, &[1]))
            .expect("sends");
        let greeted = (0..2 * PENDING_CALLERS_MAX).find_map(|_| look(later));
        let direction = greeted.expect("it greets").direction;
        assert_eq!(direction, Direction::ToConnector);
        // The others are kept, in case the accepted one fails to connect its ring.
        assert_eq!(callers.waiting.len(), PENDING_CALLERS_MAX - 1);
    }
}

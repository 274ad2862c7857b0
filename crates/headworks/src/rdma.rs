//! Connects processes over RDMA: a control stream whose bytes go over a queue pair that librdmacm connected.
//!
//! Two processes that meet at a network address can connect by RDMA alone. No TCP port has to be open, and
//! the device, its port and address, the MTU and the service level are those that the connection manager
//! found for the route. The control stream has a queue pair of its own. A ring that is connected over it has another
//! one, on the device that [`EstablishedControl::device`] names.
//!
//! ```text
//! dial                                      Listening
//! resolve address, then way
//! connect: magic, version               ->
//!                                       <-  accept: magic, version  (or reject: magic, version)
//!          bytes of the control, either way, as SENDs
//! ```

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};

use headworks_ibverbs::cm::{
    CmError, Connection, Greeting, GreetingError, REASON_PROGRAM, Route, RouteError,
};
use headworks_net::{ControlStream, NetError, WaitLimit, clock};
use headworks_net::{NO_LISTENER, QpConnection, QpStream, QpStreamSetup};
use headworks_verbs::{DeviceName, Duration, OpenError, PostError, PostErrorKind, ResourceError};

use crate::devices;

pub(crate) use listener::IncomingConnection;
pub use listener::RdmaListener;

mod listener;

/// Kind of the devices that connect over RDMA; as a device name, any of them.
pub const KIND: &str = "ibv";
/// How long a caller waits before it calls again, if nobody listens yet.
const RETRY: Duration = Duration::from_millis(200);
/// How long the other side may take after it was asked, or was answered.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Two processes did not meet over RDMA.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// The named device is of another kind.
    #[error(
        "{0} cannot connect over RDMA: name a device of libibverbs, as in ibv:mlx5_0, or ibv alone for the one that leads there"
    )]
    Kind(DeviceName),
    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] OpenError),
    /// The host's name could not be resolved.
    #[error("rdma:{address}: {source}")]
    Host {
        /// The address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// librdmacm could not connect the two sides.
    #[error("rdma:{address}: {source}")]
    Manager {
        /// The address.
        address: String,
        /// The error of librdmacm.
        source: CmError,
    },
    /// The other side is another program, or another version of this one.
    #[error("rdma:{address}: {source}")]
    Greeting {
        /// The address.
        address: String,
        /// Fault of the hello.
        source: GreetingError,
    },
    /// The queue pair of the control stream, or its memory, could not be made.
    #[error("making a line over RDMA: {0}")]
    Resource(#[from] ResourceError),
    /// The receives of the control stream's queue pair could not be posted.
    #[error("making a line over RDMA: {0}")]
    Post(#[from] PostError),
    /// The wait ended, by the deadline or by an interrupt, or the control stream failed.
    #[error(transparent)]
    ControlStream(#[from] NetError),
}

impl RdmaError {
    /// Whether the error is in the request and not a failure of the system.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Manager {
                source: CmError::NotOfADevice | CmError::Route(RouteError::NotItsAddress { .. }),
                ..
            } => true,
            Self::Kind(_) | Self::Greeting { .. } => true,
            Self::Manager { source, .. } => match source {
                CmError::Route(RouteError::OtherDevice { .. }) => true,
                source => source.is_address_unavailable(),
            },
            Self::Device(error) => devices::is_bad_input(error),
            _ => false,
        }
    }

    /// Whether a listener may still come: nobody listens, or a listener that just closed had callers queued.
    fn is_no_listener_yet(&self) -> bool {
        let Self::Manager { source, .. } = self else {
            return false;
        };
        match source {
            CmError::NobodyListens => true,
            CmError::Refused { reason, .. } => *reason == REASON_PROGRAM && source.is_wordless(),
            _ => false,
        }
    }

    /// Whether one caller is at fault, and the next may succeed. `is_over`: the listener's wait is over.
    /// `any_device`: callers choose among several devices.
    fn is_callers_fault(&self, is_over: bool, any_device: bool) -> bool {
        match self {
            Self::Greeting { .. } => true,
            Self::Manager { source, .. } => match source {
                CmError::Forked => false,
                // A listener at one address has one device, so its failure is not the caller's.
                CmError::Removed | CmError::Route(RouteError::OtherDevice { .. }) => any_device,
                _ => true,
            },
            Self::ControlStream(NetError::Deadline { .. }) => !is_over,
            // An option that no device accepts was set on this side.
            Self::Device(OpenError::BadOption { .. } | OpenError::Name(_)) => false,
            Self::Resource(ResourceError::Forked) => false,
            Self::Post(error) if error.kind == PostErrorKind::Forked => false,
            // The caller chose the device.
            Self::Device(_) | Self::Resource(_) | Self::Post(_) => any_device,
            _ => false,
        }
    }

    /// For `map_err`: librdmacm failed at `address`.
    fn manager(address: &str) -> impl Fn(CmError) -> Self {
        move |source| {
            let address = address.to_owned();
            // A program that refuses sends its greeting. If that is ours, the program had another reason and
            // logged it on its own host. A refusal without a greeting may be the kernel's, which does not
            // tell what listens.
            let stranger = match &source {
                CmError::Refused {
                    reason: REASON_PROGRAM,
                    greeting,
                } if !source.is_wordless() => Greeting::check(greeting).err(),
                _ => None,
            };
            match stranger {
                Some(source) => Self::Greeting { address, source },
                None => Self::Manager { address, source },
            }
        }
    }
}

/// An established control stream to another process.
#[derive(Debug)]
pub struct EstablishedControl {
    /// The control stream between them.
    pub control: ControlStream,
    /// The device that leads to the other process, with every option that the connection manager determined
    /// and the caller left open. Connections made over the control stream must use this device.
    pub device: DeviceName,
}

/// Calls the listener at `address`, `HOST:PORT`, over RDMA, through `device`; `ibv` alone selects the device
/// that leads there. Resolving the host takes as long as the system's resolver does. Of several addresses,
/// the first that answers is used, and one that does not answer leaves time for those after it.
pub fn dial<'u>(
    address: &str,
    device: &DeviceName,
    until: impl Into<WaitLimit<'u>>,
) -> Result<EstablishedControl, RdmaError> {
    call(address, device, false, until)
}

/// Calls as [`dial`] does, but waits for a listener as long as one of the host's addresses answers that nobody
/// listens yet.
pub fn dial_wait<'u>(
    address: &str,
    device: &DeviceName,
    until: impl Into<WaitLimit<'u>>,
) -> Result<EstablishedControl, RdmaError> {
    call(address, device, true, until)
}

fn call<'u>(
    address: &str,
    device: &DeviceName,
    waits: bool,
    until: impl Into<WaitLimit<'u>>,
) -> Result<EstablishedControl, RdmaError> {
    let source = source_of(device)?;
    let there = resolve(address)?;
    connect_any(&there, address, waits, &until.into(), |to, until| {
        // A source address of the other family cannot be used to reach this address.
        let from = source.filter(|from| from.is_ipv4() == to.is_ipv4());
        connect_one(to, from.as_ref(), device, address, until)
    })
}

fn connect_any<A, T>(
    there: &[A],
    address: &str,
    waits: bool,
    until: &WaitLimit<'_>,
    mut call: impl FnMut(&A, &WaitLimit<'_>) -> Result<T, RdmaError>,
) -> Result<T, RdmaError> {
    let mut nobody = false;
    loop {
        let mut failed = no_address_error(address);
        for (tried, to) in there.iter().enumerate() {
            let more = usize::from(waits && failed.is_no_listener_yet());
            let began = clock::now();
            let share = until.share(began, there.len() - tried + more);
            let error = match call(to, &share) {
                Err(error @ RdmaError::Manager { .. }) => error,
                Err(RdmaError::ControlStream(NetError::Deadline { .. }))
                    if !until.is_over(clock::now()) =>
                {
                    // Rounds up to the time that was meant, in tenths of seconds.
                    let tenths = share.left(began).nanos().div_ceil(100_000_000);
                    let what = format!("no answer for {}.{} s", tenths / 10, tenths % 10);
                    let source = io::Error::new(io::ErrorKind::TimedOut, what);
                    RdmaError::manager(address)(CmError::NoAnswer { source })
                }
                // An earlier attempt found that nobody listened; that is the cause, wherever the wait ends.
                Err(RdmaError::ControlStream(NetError::Deadline { .. })) if nobody => {
                    return Err(NetError::Deadline { what: NO_LISTENER }.into());
                }
                called => return called,
            };
            // An answer that the host is there and nobody listens outweighs the errors of other addresses.
            if !failed.is_no_listener_yet() {
                failed = error;
            }
            nobody |= failed.is_no_listener_yet();
        }
        if !(waits && failed.is_no_listener_yet()) {
            return Err(failed);
        }
        until.wait_until(NO_LISTENER, clock::now() + RETRY)?;
    }
}

fn connect_one(
    to: &SocketAddr,
    from: Option<&SocketAddr>,
    device: &DeviceName,
    address: &str,
    until: &WaitLimit<'_>,
) -> Result<EstablishedControl, RdmaError> {
    let failed = RdmaError::manager(address);
    let mut call = Connection::call(to, from).map_err(&failed)?;
    let route = loop {
        if let Some(route) = call.resolve().map_err(&failed)? {
            break route;
        }
        until.wait_readable("finding the way", &call)?;
    };
    let (own, device) = devices_of(&route, device, address)?;
    let mut setup = QpStreamSetup::new(&devices::open(&own)?)?;
    call.prepare(setup.queue_pair()).map_err(&failed)?;
    setup.post_receives()?;
    let qpn = setup.queue_pair().qpn();
    let question = Greeting::OURS.bytes();
    call.ask(qpn, &question).map_err(&failed)?;
    wait_established(&mut call, &mut setup, address, until)?;
    check_greeting(&call, address)?;
    let control = open_control(call, setup)?;
    Ok(EstablishedControl { control, device })
}

/// Waits until both sides can send.
fn wait_established(
    connection: &mut Connection,
    setup: &mut QpStreamSetup,
    address: &str,
    until: &WaitLimit<'_>,
) -> Result<(), RdmaError> {
    let failed = RdmaError::manager(address);
    while !connection.step(setup.queue_pair()).map_err(&failed)? {
        until.wait_readable("connecting", &*connection)?;
    }
    Ok(())
}

fn open_control(connection: Connection, setup: QpStreamSetup) -> Result<ControlStream, NetError> {
    let peer = connection.peer().and_then(usable_gid_address);
    let stream: QpStream = setup.finish(Box::new(StreamConnection(connection)))?;
    Ok(ControlStream::from_transport(Box::new(stream)).with_peer_host(peer))
}

/// Checks that the other side is the same program and version.
fn check_greeting(connection: &Connection, address: &str) -> Result<(), RdmaError> {
    Greeting::check(connection.greeting()).map_err(|source| RdmaError::Greeting {
        address: address.to_owned(),
        source,
    })
}

/// Returns the route's device twice: for the control stream's own queue pair, and for what the caller connects.
fn devices_of(
    route: &Route,
    asked: &DeviceName,
    address: &str,
) -> Result<(DeviceName, DeviceName), RdmaError> {
    let failed = |error: RouteError| RdmaError::manager(address)(error.into());
    let own = route.own_device().map_err(failed)?;
    let device = route.device(asked).map_err(failed)?;
    tracing::info!(%device, "the route of the connection");
    Ok((own, device))
}

/// Returns the source address of calls through `device`, if it names one device: the address of its port.
fn source_of(device: &DeviceName) -> Result<Option<SocketAddr>, RdmaError> {
    if device.kind() != KIND {
        return Err(RdmaError::Kind(device.clone()));
    }
    if device.name().is_none() {
        return Ok(None);
    }
    let device = devices::open(device)?;
    let info = device.info();
    // On an InfiniBand network the GID is no IP address.
    if info.lid.is_some() {
        return Ok(None);
    }
    let gid = Ipv6Addr::from(info.gid.0);
    Ok(usable_gid_address(gid).map(|address| SocketAddr::new(address, 0)))
}

/// Returns the IP address that a port's GID stands for, if a call can come from it.
fn usable_gid_address(gid: Ipv6Addr) -> Option<IpAddr> {
    match gid.to_ipv4_mapped() {
        Some(address) => Some(address.into()),
        // A link-local address means nothing without its interface.
        None if gid.is_unicast_link_local() || gid.is_unspecified() => None,
        None => Some(gid.into()),
    }
}

fn resolve(address: &str) -> Result<Vec<SocketAddr>, RdmaError> {
    let found = address.to_socket_addrs().map_err(|source| RdmaError::Host {
        address: address.to_owned(),
        source,
    });
    Ok(found?.collect())
}

fn no_address_error(address: &str) -> RdmaError {
    RdmaError::Host {
        address: address.to_owned(),
        source: io::ErrorKind::NotFound.into(),
    }
}

/// Adapts a connection of librdmacm to what a stream needs of its connection.
struct StreamConnection(Connection);

impl QpConnection for StreamConnection {
    fn is_disconnected(&mut self) -> bool {
        self.0.is_ended()
    }

    fn disconnect(&mut self) {
        self.0.disconnect();
    }
}

impl AsFd for StreamConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_another_kind_is_refused_by_name() {
        let soft: DeviceName = "soft:h1".parse().expect("a name");
        for error in [
            RdmaListener::at("127.0.0.1:0", &soft).expect_err("no such thing"),
            dial("127.0.0.1:1", &soft, clock::now()).expect_err("no such thing"),
        ] {
            let said = error.to_string();
            assert!(error.is_bad_input(), "{said}");
            assert!(said.contains("soft:h1") && said.contains("ibv:"), "{said}");
        }
    }

    #[test]
    fn addresses_of_ports_are_those_of_the_network() {
        let ip = |gid: &str| {
            usable_gid_address(gid.parse().expect("an address")).map(|ip| ip.to_string())
        };
        assert_eq!(ip("::ffff:192.0.2.1").as_deref(), Some("192.0.2.1"));
        assert_eq!(ip("2001:db8::1").as_deref(), Some("2001:db8::1"));
        assert_eq!(ip("fe80::1"), None);
        assert_eq!(ip("::"), None);
    }

    #[test]
    fn a_refusal_says_which_version_there_is() {
        let of = |greeting: &[u8]| {
            RdmaError::manager("h:1")(CmError::Refused {
                reason: 28,
                greeting: greeting.to_vec(),
            })
        };
        let said = of(&Greeting { version: 513 }.bytes()).to_string();
        assert!(said.contains("513") && said.contains("rdma:h:1"), "{said}");
        let said = of(b"no").to_string();
        assert!(said.contains("another program"), "{said}");
        let ours = of(&Greeting::OURS.bytes());
        assert!(ours.to_string().contains("refuses"), "{ours}");
    }

    fn refused(reason: i32, greeting: &[u8]) -> RdmaError {
        RdmaError::manager("h:1")(CmError::Refused {
            reason,
            greeting: greeting.to_vec(),
        })
    }

    #[test]
    fn a_kernel_rejection_is_not_taken_for_a_greeting() {
        for (reason, greeting) in [
            (28, &[0; 148][..]),
            (28, b""),
            // A stale connection, and a timeout; the data that comes with them is no greeting.
            (10, &[0; 148]),
            (10, b"GET /"),
            (4, &[0; 148]),
        ] {
            let error = refused(reason, greeting);
            assert!(matches!(error, RdmaError::Manager { .. }), "{error}");
            assert!(!error.is_bad_input(), "{reason}: {error}");
            assert_eq!(
                error.is_no_listener_yet(),
                reason == 28,
                "{reason}: {error}"
            );
        }
        let stranger = refused(28, b"GET /\0\0\0");
        assert!(stranger.is_bad_input() && !stranger.is_no_listener_yet());
        assert!(!refused(28, &Greeting::OURS.bytes()).is_no_listener_yet());
    }

    fn failed(source: CmError) -> RdmaError {
        RdmaError::manager("h:1")(source)
    }

    fn no_way() -> RdmaError {
        failed(CmError::NoWay {
            source: io::ErrorKind::HostUnreachable.into(),
        })
    }

    fn late() -> RdmaError {
        RdmaError::ControlStream(NetError::Deadline { what: "connecting" })
    }

    /// Calls two addresses, with the results `ends` in turn. Returns the result, and how many calls were
    /// made.
    fn called(waits: bool, ends: Vec<Result<u32, RdmaError>>) -> (Result<u32, RdmaError>, usize) {
        let mut ends = ends.into_iter();
        let mut calls = 0;
        let until = WaitLimit::deadline(clock::now() + Duration::from_secs(60));
        let called = connect_any(&[4, 6], "h:1", waits, &until, |_, _| {
            calls += 1;
            ends.next().expect("no more calls than that")
        });
        (called, calls)
    }

    #[test]
    fn a_listener_that_may_come_at_one_address_is_waited_for_whatever_the_others_say() {
        let nobody = || failed(CmError::NobodyListens);
        let gone = || refused(28, &[0; 148]);
        let cases: [[fn() -> RdmaError; 2]; 4] = [
            [nobody, no_way],
            [no_way, nobody],
            [nobody, late],
            [gone, no_way],
        ];
        for [one, other] in cases {
            let ends = || vec![Err(one()), Err(other()), Err(no_way()), Ok(7)];
            let (met, calls) = called(true, ends());
            assert!(matches!(met, Ok(7)) && calls == 4, "{met:?} {calls}");
            // A caller that does not wait learns that the host is there.
            let (met, calls) = called(false, ends());
            let error = met.expect_err("nobody listens");
            assert!(error.is_no_listener_yet() && calls == 2, "{error} {calls}");
        }
        let (met, calls) = called(true, vec![Err(no_way()), Err(late())]);
        let error = met.expect_err("no way there");
        assert!(error.to_string().contains("nobody answers") && calls == 2);
    }

    #[test]
    fn a_connect_timeout_after_refusals_reports_no_listener() {
        let over = |refusals: usize| {
            let mut before = 0..refusals;
            let until = WaitLimit::deadline(clock::now() + Duration::from_millis(700));
            let met: Result<(), _> = connect_any(&[4], "h:1", true, &until, |_, share| {
                if before.next().is_none() {
                    share.wait_until("connecting", headworks_verbs::Instant::FAR_FUTURE)?;
                }
                Err(failed(CmError::NobodyListens))
            });
            met.expect_err("the time is over").to_string()
        };
        // Without any refusal, nothing is known of the host.
        for (refusals, is_known) in [(0, false), (1, true), (2, true)] {
            let said = over(refusals);
            assert_eq!(said.contains("nobody listens"), is_known, "{said}");
        }
    }

    #[test]
    fn an_unreachable_listen_address_is_bad_input() {
        for error in [
            failed(CmError::NotOfADevice),
            failed(CmError::Route(RouteError::NotItsAddress {
                asked: "ibv:a".to_owned(),
                found: "ibv:b".to_owned(),
            })),
        ] {
            assert!(error.is_bad_input(), "{error}");
        }
        assert!(!failed(CmError::NoDevice).is_bad_input());
    }

    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        let until = WaitLimit::deadline(clock::now() + Duration::from_secs(600));
        let mut shares = Vec::new();
        let met = connect_any(&[4, 6], "h:1", false, &until, |to, share| {
            let soon = clock::now() + Duration::from_secs(100);
            shares.push(share.is_over(soon));
            match to {
                4 => Err(late()),
                _ => Ok(()),
            }
        });
        assert!(met.is_ok());
        assert_eq!(shares, [true, false]);
    }

    #[test]
    fn one_callers_failure_is_not_the_listeners() {
        let stranger = || refused(28, b"GET /");
        let other = || {
            failed(CmError::Route(RouteError::OtherDevice {
                asked: "ibv:a".to_owned(),
                found: "ibv:b".to_owned(),
            }))
        };
        let silent = || {
            failed(CmError::NoAnswer {
                source: io::ErrorKind::TimedOut.into(),
            })
        };
        let no_locks = || {
            RdmaError::Device(OpenError::Provider {
                what: "ibv:a".to_owned(),
                source: "it has no locks".into(),
            })
        };
        let slow = OpenError::OptionLimit {
            option: "mtu",
            asked: 4096,
            what: "port 1 of a has active".to_owned(),
            highest: 1024,
        };
        let nonsense = OpenError::BadOption {
            option: "mtu=7".to_owned(),
            kind: KIND,
            legal: "mtu=256",
        };
        let no_memory = ResourceError::NoSpace("locked memory".to_owned());
        for (error, is_callers_fault) in [
            (stranger(), [true, true]),
            (silent(), [true, true]),
            (no_way(), [true, true]),
            (other(), [false, true]),
            (failed(CmError::Removed), [false, true]),
            (failed(CmError::Forked), [false, false]),
            (late(), [true, true]),
            (
                RdmaError::ControlStream(NetError::Interrupted),
                [false, false],
            ),
            (RdmaError::Resource(ResourceError::Forked), [false, false]),
            (RdmaError::Post(PostErrorKind::Forked.at(0)), [false, false]),
            // The caller's device is unusable; another one may be usable.
            (no_locks(), [false, true]),
            (RdmaError::Device(slow), [false, true]),
            (RdmaError::Resource(no_memory), [false, true]),
            (RdmaError::Post(PostErrorKind::Device.at(0)), [false, true]),
            // This option is legal on no device.
            (RdmaError::Device(nonsense), [false, false]),
        ] {
            let found = [false, true].map(|any_device| error.is_callers_fault(false, any_device));
            assert_eq!(found, is_callers_fault, "{error}");
        }
        assert!(!late().is_callers_fault(true, true), "the wait is over");
    }
}

//! Two processes meet, bring up a queue pair between them, and notice each other's end.
//!
//! One listens under a name in the fabric's directory ([`Listener::bind`]), the other dials it ([`dial`],
//! [`dial_by`] where it may be early). On different hosts they meet at an address instead
//! ([`Listener::at`], [`dial_at`], [`dial_at_by`]): whoever reaches it may come, and what is said there,
//! keys of memory among it, is neither encrypted nor authenticated, as RDMA itself is not. Or they have a
//! queue pair connected by other means, and the line runs over that ([`QpStream`]). Both have a [`Line`] then: it carries the bytes of a
//! [`BringUp`](headworks_verbs::BringUp) and, afterwards, short control messages; it stays open for as long
//! as the connection lives, because its end is the peer's death.
//!
//! Steps ([`BringUpOnLine::step`], [`Line::recv_small`], …) never block; the calls that wait take an
//! [`Until`].

mod bring_up;
mod carrier;
mod line;
mod meeting;
mod place;
mod stream;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use headworks_shm::FabricError;
use headworks_verbs::{BringUpError, Duration, Instant};
use rustix::event::{PollFd, PollFlags};

use crate::clock;
use crate::frame::FrameError;
use crate::waiting::{Phase, Waiter, Woken, ready_now};

pub use bring_up::BringUpOnLine;
pub use carrier::Carrier;
pub use line::{Line, SILENCE_MAX_S, SMALL_MAX};
pub use meeting::{Listener, NOBODY, dial, dial_at, dial_at_by, dial_by};
pub use place::Place;
pub use stream::{QpStream, StreamSetup, Tether};

/// The longest share of a wait, where something else is to be tried after it.
const SHARE_MAX: Duration = Duration::from_secs(3);

/// How long a call may wait: until a deadline, or until a descriptor is readable, such as
/// [`Interrupt`](crate::Interrupt)'s.
#[derive(Clone, Copy, Debug)]
pub struct Until<'a> {
    deadline: Instant,
    interrupt: Option<BorrowedFd<'a>>,
}

impl<'a> Until<'a> {
    /// Until this instant of the real clock.
    pub const fn deadline(deadline: Instant) -> Self {
        Self {
            deadline,
            interrupt: None,
        }
    }

    /// This, or until `interrupt` is readable.
    pub fn or_readable(self, interrupt: &'a impl AsFd) -> Self {
        Self {
            interrupt: Some(interrupt.as_fd()),
            ..self
        }
    }

    /// This, or until `deadline` if that is earlier.
    pub fn no_later_than(self, deadline: Instant) -> Self {
        Self {
            deadline: self.deadline.min(deadline),
            ..self
        }
    }

    /// For the first of `tries` that follow each other from `now` on: so long that each has an equal share
    /// of the time that is left, and three seconds at most. The last one has all of it.
    pub fn share(self, now: Instant, tries: usize) -> Self {
        let left = self.deadline.since(now).nanos();
        let share = Duration::from_nanos(left / tries.max(1) as u64).min(SHARE_MAX);
        match tries {
            0 | 1 => self,
            _ => self.no_later_than(now + share),
        }
    }

    /// Whether the deadline has passed by `now`.
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// Waits until `nap` is over; `what` is waited for.
    pub fn wait_until(&self, what: &'static str, nap: Instant) -> Result<(), ExchangeError> {
        self.wait(what, &[], Some(nap))
    }

    /// Waits until `fd` is readable; `what` is waited for.
    pub fn wait_readable(&self, what: &'static str, fd: &impl AsFd) -> Result<(), ExchangeError> {
        self.wait(what, &[(fd.as_fd(), PollFlags::IN)], None)
    }

    /// Waits until one of `fds` is readable, or `nap` is over; `what` is waited for.
    pub fn wait_any_readable(
        &self,
        what: &'static str,
        fds: &[BorrowedFd<'_>],
        nap: Instant,
    ) -> Result<(), ExchangeError> {
        let fds: Vec<_> = fds.iter().map(|fd| (*fd, PollFlags::IN)).collect();
        self.wait(what, &fds, Some(nap))
    }

    /// Waits for `events` on one of `fds`, and no longer than `nap`.
    fn wait(
        &self,
        what: &'static str,
        fds: &[(BorrowedFd<'_>, PollFlags)],
        nap: Option<Instant>,
    ) -> Result<(), ExchangeError> {
        let interrupt = self
            .interrupt
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN));
        let mut polled: Vec<_> = interrupt
            .chain(fds.iter().map(|(fd, events)| PollFd::new(fd, *events)))
            .collect();
        let deadline = nap.map_or(self.deadline, |nap| nap.min(self.deadline));
        let woken = Waiter::default()
            .wait_polling(&mut polled, Some(deadline), &mut |_: Phase| false)
            .map_err(|source| ExchangeError::System { what, source })?;
        let raised = |fd: &BorrowedFd<'_>| match woken {
            // A time that is over is over before anything is looked at.
            Woken::Deadline => !ready_now(*fd, PollFlags::IN).is_empty(),
            _ => !polled[0].revents().is_empty(),
        };
        if self.interrupt.as_ref().is_some_and(raised) {
            return Err(ExchangeError::Interrupted);
        }
        if woken == Woken::Deadline && clock::now() >= self.deadline {
            return Err(ExchangeError::Deadline { what });
        }
        Ok(())
    }
}

impl From<Instant> for Until<'_> {
    fn from(deadline: Instant) -> Self {
        Self::deadline(deadline)
    }
}

/// Two processes did not meet, or lost each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The name is not legal, is taken, or nobody listens under it; or the registry cannot be used.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Text with a colon that is no address.
    #[error(
        "bad address {0:?}: HOST:PORT or [IPV6]:PORT, rdma: before it to meet over RDMA, with a port up to 65535"
    )]
    BadAddress(String),
    /// An address cannot be listened at.
    #[error(
        "{address}: {source}: it takes an address of this machine, and a port where nobody listens"
    )]
    CannotListen {
        /// The address.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// Nobody answers at an address.
    #[error("{address}: {source}")]
    Unreachable {
        /// The address.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The deadline passed.
    #[error("{what}: the deadline passed")]
    Deadline {
        /// What was waited for.
        what: &'static str,
    },
    /// The interrupt's descriptor was readable.
    #[error("interrupted")]
    Interrupted,
    /// The other end closed or died.
    #[error("the other end is gone")]
    PeerGone,
    /// The other end is another user's.
    #[error("the other end belongs to user {theirs}, this one to user {ours}")]
    OtherUser {
        /// Its user id.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The queue pair could not be brought up.
    #[error("connecting: {0}")]
    BringUp(#[from] BringUpError),
    /// A control message is too long.
    #[error("control message: {0}")]
    Frame(#[from] FrameError),
    /// The other end does not read; try again when the line takes more.
    #[error("the other end does not read its control messages")]
    Full,
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl ExchangeError {
    /// Whether an address was asked for at which this machine cannot listen: it is another's, or in use.
    pub fn is_wrong_address(&self) -> bool {
        matches!(self, Self::CannotListen { source, .. } if matches!(
            source.kind(),
            io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
        ))
    }

    /// For `map_err`.
    fn unreachable(address: &str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Unreachable {
            address: address.to_owned(),
            source,
        }
    }

    /// For `map_err`.
    fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            what,
            source: source.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_ends_a_wait_whose_time_is_over() {
        let (interrupt, raise) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let ever = Until::deadline(Instant::FAR_FUTURE).or_readable(&interrupt);
        let over = || ever.wait_until("nothing", clock::now());
        assert!(over().is_ok());
        rustix::io::write(&raise, b"!").expect("raises");
        assert!(matches!(over(), Err(ExchangeError::Interrupted)));
    }

    #[test]
    fn tries_share_the_time_and_the_last_one_has_what_is_left() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let end = |left: u64, tries| Until::deadline(at(10 + left)).share(at(10), tries).deadline;
        assert_eq!(end(4, 2), at(12));
        assert_eq!(end(4, 4), at(11));
        assert_eq!(end(4, 1), at(14));
        assert_eq!(end(60, 2), at(13));
        assert_eq!(end(0, 3), at(10));
        let ever = Until::deadline(Instant::FAR_FUTURE);
        assert_eq!(ever.share(at(10), 2).deadline, at(13));
        assert_eq!(ever.share(at(10), 1).deadline, Instant::FAR_FUTURE);
        // One that has passed gets no longer.
        let past = Until::deadline(at(5)).share(at(10), 2);
        assert!(past.deadline == at(5) && past.is_over(at(5)) && !past.is_over(at(4)));
    }
}

//! The listening side.

use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};

use headworks_ibverbs::cm::{CmListener, Connection, Greeting};
use headworks_net::QpStreamSetup;
use headworks_net::{NetError, WaitLimit, clock};
use headworks_verbs::{DeviceName, Instant};

use super::{
    ANSWER_TIMEOUT, EstablishedControl, RdmaError, check_greeting, devices_of, no_address_error,
    open_control, resolve, source_of, usable_gid_address,
};
use crate::devices;
use crate::rejection_log::{Rejection, RejectionLog};

/// Listens for callers over RDMA.
#[derive(Debug)]
pub struct RdmaListener {
    listener: CmListener,
    address: String,
    device: DeviceName,
    rejections: RejectionLog,
}

impl RdmaListener {
    /// Listens at `address`, `HOST:PORT`, for callers that come through `device`; `ibv` alone means any
    /// device. Refuses an address of another RDMA device, or of no RDMA device: no caller could reach it. If
    /// the host has several addresses, listens at the first that can be used, and logs which. Resolving the
    /// host takes as long as the system's resolver does.
    pub fn at(address: &str, device: &DeviceName) -> Result<Self, RdmaError> {
        source_of(device)?;
        let there = resolve(address)?;
        let failed = RdmaError::manager(address);
        let listener = first_usable(&there, |at| {
            let listener = CmListener::at(at).map_err(&failed)?;
            listener
                .check(device)
                .map_err(|error| failed(error.into()))?;
            Ok(listener)
        });
        let listener = listener.unwrap_or_else(|| Err(no_address_error(address)))?;
        if there.len() > 1 {
            let (count, at) = (there.len(), listener.address());
            tracing::warn!("rdma:{address} has {count} addresses: listening at {at} only");
        }
        Ok(Self {
            listener,
            address: address.to_owned(),
            device: device.clone(),
            rejections: RejectionLog::default(),
        })
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Waits for a caller. Turns away a caller that is another program or does not complete the connection,
    /// and waits for the next. Errors are what is wrong on this side: a device that cannot be opened, memory
    /// that cannot be locked, a device other than the one named for this address. At `0.0.0.0` or `[::]` the
    /// caller chooses the device, so there a caller whose device is unusable is turned away as well.
    pub fn accept<'u>(
        &self,
        until: impl Into<WaitLimit<'u>>,
    ) -> Result<EstablishedControl, RdmaError> {
        const WHAT: &str = "waiting for a caller";
        let until = until.into();
        loop {
            let Some(caller) = self.try_next()? else {
                until.wait_readable(WHAT, &self.listener)?;
                continue;
            };
            let host = caller.host();
            match caller.wait_established(&until) {
                Err(error) => self.turn_away(error, host, until.is_over(clock::now()))?,
                met => return met,
            }
            // Callers that fail one after another must not extend the wait.
            until.wait_until(WHAT, clock::now())?;
        }
    }

    /// Takes the next caller, if one waits and is not turned away. Never blocks.
    pub(crate) fn try_next(&self) -> Result<Option<IncomingConnection<'_>>, RdmaError> {
        let asked = self.listener.try_accept();
        let Some(mut asked) = asked.map_err(RdmaError::manager(&self.address))? else {
            return Ok(None);
        };
        match self.answer(&mut asked) {
            Ok((setup, device)) => Ok(Some(IncomingConnection {
                setup,
                asked,
                device,
                by: clock::now() + ANSWER_TIMEOUT,
                listener: self,
            })),
            Err(error) => {
                let host = asked.peer().and_then(usable_gid_address);
                refuse(asked);
                self.turn_away(error, host, false).map(|()| None)
            }
        }
    }

    /// Answers a caller with the control stream's queue pair. Returns that and the device for later connections.
    fn answer(&self, asked: &mut Connection) -> Result<(QpStreamSetup, DeviceName), RdmaError> {
        let failed = RdmaError::manager(&self.address);
        check_greeting(asked, &self.address)?;
        let route = asked.route().map_err(&failed)?;
        let (own, device) = devices_of(&route, &self.device, &self.address)?;
        let mut setup = QpStreamSetup::new(&devices::open(&own)?)?;
        asked.prepare(setup.queue_pair()).map_err(&failed)?;
        setup.post_receives()?;
        let answer = Greeting::OURS.bytes();
        asked.answer(setup.queue_pair(), &answer).map_err(&failed)?;
        Ok((setup, device))
    }

    /// Logs a caller's failure, or returns it if the caller is not at fault. `is_over`: the listener's wait
    /// is over.
    pub(crate) fn turn_away(
        &self,
        error: RdmaError,
        caller: Option<IpAddr>,
        is_over: bool,
    ) -> Result<(), RdmaError> {
        let any_device = self.address().ip().is_unspecified();
        if !error.is_callers_fault(is_over, any_device) {
            return Err(error);
        }
        let kind = match error {
            RdmaError::ControlStream(NetError::Deadline { .. }) => Rejection::Silent,
            _ => Rejection::Failed,
        };
        let now = clock::now();
        self.rejections
            .log(kind, now, &self.address, caller, &error);
        Ok(())
    }
}

impl AsFd for RdmaListener {
    /// Readable when a caller waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Listens at the first address that can be used. Fails with the first error if none can. Returns `None` if
/// there is no address.
fn first_usable<A, T, E>(
    there: &[A],
    mut listen: impl FnMut(&A) -> Result<T, E>,
) -> Option<Result<T, E>> {
    let mut failed = None;
    for at in there {
        match listen(at) {
            Ok(listener) => return Some(Ok(listener)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map(Err)
}

/// Refuses a caller, and tells it by our greeting which program refused.
fn refuse(asked: Connection) {
    let _ = asked.refuse(&Greeting::OURS.bytes());
}

/// A caller that was answered and whose connection is not established yet.
pub(crate) struct IncomingConnection<'l> {
    setup: QpStreamSetup,
    asked: Connection,
    device: DeviceName,
    by: Instant,
    listener: &'l RdmaListener,
}

impl<'l> IncomingConnection<'l> {
    /// Returns the listener that the caller came to.
    pub(crate) fn listener(&self) -> &'l RdmaListener {
        self.listener
    }

    /// Returns the host that the caller came from, if that is known.
    pub(crate) fn host(&self) -> Option<IpAddr> {
        self.asked.peer().and_then(usable_gid_address)
    }

    /// Returns when the connection must be established.
    pub(crate) fn deadline(&self) -> Instant {
        self.by
    }

    /// Takes the next step. Breaks with the control stream once it is established, else continues with the caller.
    /// Never blocks.
    pub(crate) fn step(
        mut self,
        now: Instant,
    ) -> Result<ControlFlow<EstablishedControl, Self>, RdmaError> {
        match self.asked.step(self.setup.queue_pair()) {
            Ok(true) => Ok(ControlFlow::Break(EstablishedControl {
                control: open_control(self.asked, self.setup)?,
                device: self.device,
            })),
            Ok(false) if now < self.by => Ok(ControlFlow::Continue(self)),
            Ok(false) => {
                self.refuse();
                Err(NetError::Deadline { what: "connecting" }.into())
            }
            Err(error) => {
                let error = RdmaError::manager(&self.listener.address)(error);
                self.refuse();
                Err(error)
            }
        }
    }

    /// Waits until the connection is established.
    fn wait_established(mut self, until: &WaitLimit<'_>) -> Result<EstablishedControl, RdmaError> {
        let until = until.no_later_than(self.by);
        loop {
            self = match self.step(clock::now())? {
                ControlFlow::Break(met) => return Ok(met),
                ControlFlow::Continue(caller) => caller,
            };
            if let Err(error) = until.wait_readable("connecting", &self) {
                self.refuse();
                return Err(error.into());
            }
        }
    }

    fn refuse(self) {
        // The queue pair goes before the other side learns of the refusal.
        drop(self.setup);
        refuse(self.asked);
    }
}

impl AsFd for IncomingConnection<'_> {
    /// Readable when a step has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.asked.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_served_at_the_first_of_its_addresses_that_can_be_used() {
        let odd = |at: &u32| (at % 2 == 1).then_some(*at).ok_or(*at);
        assert_eq!(first_usable(&[2, 4, 5, 7], odd), Some(Ok(5)));
        assert_eq!(first_usable(&[2, 4], odd), Some(Err(2)));
        assert_eq!(first_usable(&[], odd), None);
    }
}

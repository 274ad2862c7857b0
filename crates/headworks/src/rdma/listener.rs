//! The side that is called.

use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};

use headworks_ibverbs::cm::{CmListener, Connection, Greeting};
use headworks_net::QpStreamSetup;
use headworks_net::{NetError, WaitLimit, clock};
use headworks_verbs::{DeviceName, Instant};

use super::{
    ANSWER_TIMEOUT, EstablishedLine, RdmaError, check_greeting, describe_caller, devices_of,
    no_address_error, open_line, resolve, source_of, usable_gid_address,
};
use crate::devices;

/// Listens for callers over RDMA.
#[derive(Debug)]
pub struct RdmaListener {
    listener: CmListener,
    address: String,
    device: DeviceName,
}

impl RdmaListener {
    /// Listens at `address`, `HOST:PORT`, for callers that come by way of `device`: `ibv` for any. An address
    /// of another RDMA device, or of none, is refused: nobody would ever come. Looks the host up, which may take as long as the system's resolver does.
    pub fn at(address: &str, device: &DeviceName) -> Result<Self, RdmaError> {
        source_of(device)?;
        let at = resolve(address)?;
        let at = at.first().ok_or_else(|| no_address_error(address))?;
        let failed = RdmaError::manager(address);
        let listener = CmListener::at(at).map_err(&failed)?;
        listener
            .check(device)
            .map_err(|error| failed(error.into()))?;
        Ok(Self {
            listener,
            address: address.to_owned(),
            device: device.clone(),
        })
    }

    /// The address that it listens at.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Waits for a caller. One of another kind, or one that does not go on, is turned away, and the next is
    /// waited for. What is wrong on this side is an error: a device that cannot be opened, memory
    /// that cannot be locked, another device than was named at this one address. At `0.0.0.0` or `[::]` it is
    /// the caller who chooses the device: there one that comes by a device of no use is turned away as well.
    pub fn accept<'u>(
        &self,
        until: impl Into<WaitLimit<'u>>,
    ) -> Result<EstablishedLine, RdmaError> {
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
            // However many of them there are.
            until.wait_until(WHAT, clock::now())?;
        }
    }

    /// The next caller, if one waits, and was not turned away. Never blocks.
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

    /// Answers a caller, with the stream's queue pair; the device for what comes after.
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

    /// A caller failed: passes on what is not its alone. `is_over`: so is the wait.
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
        let caller = describe_caller(caller);
        tracing::warn!(%error, caller, "turned a caller away");
        Ok(())
    }
}

impl AsFd for RdmaListener {
    /// Readable when a caller waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Whoever asked hears that it was for nothing, and from whom.
fn refuse(asked: Connection) {
    let _ = asked.refuse(&Greeting::OURS.bytes());
}

/// One who was answered, and whose connection does not stand yet.
pub(crate) struct IncomingConnection<'l> {
    setup: QpStreamSetup,
    asked: Connection,
    device: DeviceName,
    by: Instant,
    listener: &'l RdmaListener,
}

impl<'l> IncomingConnection<'l> {
    /// Where it came.
    pub(crate) fn listener(&self) -> &'l RdmaListener {
        self.listener
    }

    /// Where it came from, if that is known.
    pub(crate) fn host(&self) -> Option<IpAddr> {
        self.asked.peer().and_then(usable_gid_address)
    }

    /// When it must stand.
    pub(crate) fn deadline(&self) -> Instant {
        self.by
    }

    /// The next step: whom was met, or the caller again. Never blocks.
    pub(crate) fn step(
        mut self,
        now: Instant,
    ) -> Result<ControlFlow<EstablishedLine, Self>, RdmaError> {
        match self.asked.step(self.setup.queue_pair()) {
            Ok(true) => Ok(ControlFlow::Break(EstablishedLine {
                line: open_line(self.asked, self.setup)?,
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

    /// Waits until the connection stands.
    fn wait_established(mut self, until: &WaitLimit<'_>) -> Result<EstablishedLine, RdmaError> {
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
        // Before the other side hears of it.
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

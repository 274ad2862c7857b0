//! Takes the place of `rdma` in a build without the feature `ibv`: refuses to connect over RDMA.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};

use headworks_net::{ControlStream, NetError, WaitLimit};
use headworks_verbs::{DeviceName, Duration, Instant, OpenError};

/// Kind of the devices that connect over RDMA.
pub(crate) const KIND: &str = "ibv";
/// How long the other side may take after it was asked, or was answered.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Two processes did not meet over RDMA.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// The device could not be opened: its feature is off.
    #[error(transparent)]
    Device(#[from] OpenError),
    /// The wait ended, by the deadline or by an interrupt, or the control stream failed.
    #[error(transparent)]
    ControlStream(#[from] NetError),
}

impl RdmaError {
    /// Whether the error is in the request and not a failure of the system.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Device(error) => crate::devices::is_bad_input(error),
            Self::ControlStream(_) => false,
        }
    }
}

fn missing(address: &str) -> RdmaError {
    let missing = OpenError::MissingFeature {
        what: format!("the address rdma:{address}"),
        feature: KIND,
    };
    missing.into()
}

/// An established control stream. None exists.
pub(crate) struct EstablishedControl {
    pub(crate) control: ControlStream,
    pub(crate) device: DeviceName,
}

/// Refuses to call.
pub(crate) fn dial<'u>(
    address: &str,
    _: &DeviceName,
    _: impl Into<WaitLimit<'u>>,
) -> Result<EstablishedControl, RdmaError> {
    Err(missing(address))
}

/// Refuses to call.
pub(crate) fn dial_wait<'u>(
    address: &str,
    device: &DeviceName,
    until: impl Into<WaitLimit<'u>>,
) -> Result<EstablishedControl, RdmaError> {
    dial(address, device, until)
}

/// A listener over RDMA. None exists.
pub(crate) struct RdmaListener(Infallible);

impl RdmaListener {
    /// Refuses to listen.
    pub(crate) fn at(address: &str, _: &DeviceName) -> Result<Self, RdmaError> {
        Err(missing(address))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self.0 {}
    }

    pub(crate) fn try_next(&self) -> Result<Option<IncomingConnection<'_>>, RdmaError> {
        match self.0 {}
    }

    pub(crate) fn turn_away(
        &self,
        _: RdmaError,
        _: Option<IpAddr>,
        _: bool,
    ) -> Result<(), RdmaError> {
        match self.0 {}
    }
}

impl AsFd for RdmaListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}

/// A caller of a listener over RDMA. None exists.
pub(crate) struct IncomingConnection<'l>(&'l RdmaListener);

impl<'l> IncomingConnection<'l> {
    pub(crate) fn listener(&self) -> &'l RdmaListener {
        self.0
    }

    pub(crate) fn host(&self) -> Option<IpAddr> {
        match self.0.0 {}
    }

    pub(crate) fn deadline(&self) -> Instant {
        match self.0.0 {}
    }

    pub(crate) fn step(
        self,
        _: Instant,
    ) -> Result<ControlFlow<EstablishedControl, Self>, RdmaError> {
        match self.0.0 {}
    }
}

impl AsFd for IncomingConnection<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipe::{Pipe, WaitOptions};

    #[test]
    fn an_address_over_rdma_is_refused_with_the_feature() {
        let device = KIND.parse().expect("a name");
        let listened = Pipe::listen(&device, "rdma:127.0.0.1:7", WaitOptions::default());
        let error = listened.map(drop).expect_err("no RDMA");
        let said = error.to_string();
        assert!(error.is_bad_input(), "{said}");
        assert!(
            said.contains("rdma:127.0.0.1:7") && said.contains("\"ibv\""),
            "{said}"
        );
    }
}

//! A listener: where calls come.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use headworks_verbs::DeviceName;

use super::abi::event;
use super::connection::{Connection, Libraries};
use super::raw::Id;
use super::route::{self, RouteError};
use super::{CmError, LISTENING};

/// Calls that may wait to be taken.
const BACKLOG: i32 = 8;

/// Listens at an address for calls over RDMA; the port is free again when it is dropped.
pub struct CmListener {
    libraries: Libraries,
    id: Id,
    address: SocketAddr,
    /// Whose the address is.
    of: Option<Port>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Port {
    device: String,
    number: u8,
}

impl std::fmt::Debug for CmListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CmListener({})", self.address)
    }
}

impl CmListener {
    /// Listens at `address`, on all RDMA devices if that is the unspecified one; port 0 takes a free one. An
    /// address that no device has is refused, where the kernel would take it and nobody could come.
    pub fn at(address: &SocketAddr) -> Result<Self, CmError> {
        Self::by(Libraries::load()?, address)
    }

    pub(crate) fn by(libraries: Libraries, address: &SocketAddr) -> Result<Self, CmError> {
        let channel = libraries.channel()?;
        let id = Id::create(&channel).map_err(CmError::system("making an identifier"))?;
        id.bind(address)
            .map_err(|source| match source.raw_os_error() {
                Some(libc::ENODEV) => CmError::NotOfADevice,
                _ => CmError::system(LISTENING)(source),
            })?;
        // It takes a loopback address all the same, and does not say whose it is.
        let way = id.way();
        if way.is_none() && !address.ip().is_unspecified() {
            return Err(CmError::NotOfADevice);
        }
        id.listen(BACKLOG).map_err(CmError::system(LISTENING))?;
        let mut address = *address;
        address.set_port(id.port());
        let of = way.map(|way| Port {
            device: way.device,
            number: way.port,
        });
        Ok(Self {
            libraries,
            id,
            address,
            of,
        })
    }

    /// Whether callers come here by way of `device`: if the address is one device's alone, they come by that.
    pub fn check(&self, device: &DeviceName) -> Result<(), RouteError> {
        match &self.of {
            Some(of) => route::check_address(&of.device, of.number, device),
            None => Ok(()),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next caller, if one waits. Never blocks. One that cannot be taken over, for want of a descriptor
    /// for example, is turned away.
    pub fn try_accept(&self) -> Result<Option<Connection>, CmError> {
        let channel = &self.id.channel;
        if channel.is_foreign() {
            return Err(CmError::Forked);
        }
        loop {
            let heard = channel.next();
            let heard = heard.map_err(CmError::system("reading events of a listener"))?;
            let Some(heard) = heard else { return Ok(None) };
            let Some(caller) = heard.caller else {
                // By another nobody comes here.
                if heard.event == event::DEVICE_REMOVAL && self.of.is_some() {
                    return Err(CmError::Removed);
                }
                tracing::debug!(
                    event = heard.event,
                    "an event that a listener has no use for"
                );
                continue;
            };
            match Connection::asked(self.libraries, caller, heard.said) {
                Ok(asked) => return Ok(Some(asked)),
                Err(error) => tracing::warn!(%error, "turned a caller away"),
            }
        }
    }
}

impl AsFd for CmListener {
    /// Readable when a caller waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.channel.fd()
    }
}

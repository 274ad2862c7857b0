//! A listener for connections.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use headworks_verbs::DeviceName;

use super::abi::event;
use super::connection::{Connection, Libraries};
use super::raw::Id;
use super::route::{self, RouteError};
use super::{CmError, LISTENING};

/// Most requests that wait to be accepted.
const BACKLOG: i32 = 8;

/// Listens at an address for connections over RDMA. Dropping it frees the port.
pub struct CmListener {
    libraries: Libraries,
    id: Id,
    address: SocketAddr,
    /// The device's port that has the address; `None` for the unspecified address.
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
    /// Listens at `address`; on all RDMA devices if it is the unspecified address. Port 0 takes a free port.
    /// An address that no device has is refused: the kernel would accept it, but no connection could arrive
    /// there.
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
        // The kernel accepts a loopback address nevertheless, and reports no device for it.
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

    /// Checks that connections here can use `device`. If the address belongs to one device, they use that
    /// one.
    pub fn check(&self, device: &DeviceName) -> Result<(), RouteError> {
        match &self.of {
            Some(of) => route::check_address(&of.device, of.number, device),
            None => Ok(()),
        }
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection request, if one waits. Never blocks. A request that cannot be taken over, for lack
    /// of a descriptor for example, is refused.
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
                // If the listener's own device is removed, no connection can arrive. Other devices do not
                // matter.
                if heard.event == event::DEVICE_REMOVAL && self.of.is_some() {
                    return Err(CmError::Removed);
                }
                tracing::debug!(event = heard.event, "event ignored by a listener");
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
    /// The descriptor, readable when a request waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.channel.fd()
    }
}

//! A listener: where calls come.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::CmError;
use super::connection::{Connection, Libraries};
use super::raw::Id;

/// Calls that may wait to be taken.
const BACKLOG: i32 = 8;

/// Listens at an address for calls over RDMA; the port is free again when it is dropped.
pub struct CmListener {
    libraries: Libraries,
    id: Id,
    address: SocketAddr,
}

impl std::fmt::Debug for CmListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CmListener({})", self.address)
    }
}

impl CmListener {
    /// Listens at `address`, on all RDMA devices if that is the unspecified one; port 0 takes a free one.
    pub fn at(address: &SocketAddr) -> Result<Self, CmError> {
        Self::by(Libraries::load()?, address)
    }

    pub(crate) fn by(libraries: Libraries, address: &SocketAddr) -> Result<Self, CmError> {
        let channel = libraries.channel()?;
        let id = Id::create(&channel).map_err(CmError::system("making an identifier"))?;
        let listens = id.listen(address, BACKLOG);
        listens.map_err(CmError::system("listening"))?;
        let mut address = *address;
        address.set_port(id.port());
        Ok(Self {
            libraries,
            id,
            address,
        })
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

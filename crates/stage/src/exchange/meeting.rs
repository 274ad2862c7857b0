//! Where two processes meet: under the names of the fabric's registry.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use headworks_shm::{FabricDir, FabricError, NameClaim};
use headworks_verbs::Duration;
use rustix::event::PollFlags;

use crate::clock;
use crate::exchange::{ExchangeError, Line, Until};

/// How long an early caller waits before it calls again.
const RETRY: Duration = Duration::from_millis(2);

/// Listens under a name. The name is free again when the value is dropped or its process dies.
#[derive(Debug)]
pub struct Listener {
    claim: NameClaim,
}

impl Listener {
    /// Takes the name, if no living process has it.
    pub fn bind(fabric: &Arc<FabricDir>, name: &str) -> Result<Self, ExchangeError> {
        let claim = fabric.bind_name(name)?;
        claim
            .listener()
            .set_nonblocking(true)
            .map_err(ExchangeError::system("listening"))?;
        Ok(Self { claim })
    }

    /// The next caller, if one waits. Callers of other users are turned away.
    pub fn try_accept(&self) -> Result<Option<Line>, ExchangeError> {
        loop {
            let stream = match self.claim.listener().accept() {
                Ok((stream, _)) => stream,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    // It hung up before it was accepted.
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ => return Err(ExchangeError::system("accepting")(error)),
                },
            };
            match Line::over(stream) {
                Ok(line) => return Ok(Some(line)),
                Err(error @ ExchangeError::OtherUser { .. }) => {
                    tracing::warn!(%error, "turned a caller away");
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the next caller.
    pub fn accept<'u>(&self, until: impl Into<Until<'u>>) -> Result<Line, ExchangeError> {
        let until = until.into();
        loop {
            if let Some(line) = self.try_accept()? {
                return Ok(line);
            }
            let readable = (self.as_fd(), PollFlags::IN);
            until.wait("waiting for a caller", &[readable], None)?;
        }
    }
}

impl AsFd for Listener {
    /// Readable when a caller waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.claim.listener().as_fd()
    }
}

/// Calls whoever listens under `name`, now.
pub fn dial(fabric: &FabricDir, name: &str) -> Result<Line, ExchangeError> {
    Line::over(fabric.connect_name(name)?)
}

/// Calls whoever listens under `name`, and waits for a listener that is not there yet.
pub fn dial_by<'u>(
    fabric: &FabricDir,
    name: &str,
    until: impl Into<Until<'u>>,
) -> Result<Line, ExchangeError> {
    let until = until.into();
    loop {
        match dial(fabric, name) {
            Err(ExchangeError::Fabric(FabricError::NobodyListening { .. })) => {}
            called => return called,
        }
        until.wait("waiting for a listener", &[], Some(clock::now() + RETRY))?;
    }
}

//! Descriptors that a context hands to other processes: of its table and wake pipe, its segments and channels.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use headworks_shm::{
    DescriptorClient, DescriptorRequest, DescriptorSource, ProcessId, Registry, RegistryError,
    WakePipe, WakeSender,
};

use crate::table::arena::Arena;
use crate::table::progress::Progress;
use crate::table::rows::Table;

/// What another process may ask a context for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DescriptorKind {
    /// The table's segment, and both ends of the wake pipe.
    Table,
    /// The segment in a row of the table, in one generation.
    Segment { row: u32, generation: u32 },
    /// Both ends of a completion channel's pipe, by the channel's number.
    Channel(u32),
}

impl From<DescriptorKind> for DescriptorRequest {
    fn from(kind: DescriptorKind) -> Self {
        let (kind, number, generation) = match kind {
            DescriptorKind::Table => (0, 0, 0),
            DescriptorKind::Segment { row, generation } => (1, row, generation),
            DescriptorKind::Channel(number) => (2, number, 0),
        };
        Self {
            kind,
            number,
            generation,
        }
    }
}

impl DescriptorKind {
    fn of(request: DescriptorRequest) -> Option<Self> {
        let DescriptorRequest {
            kind,
            number,
            generation,
        } = request;
        match (kind, number, generation) {
            (0, 0, 0) => Some(Self::Table),
            (1, row, generation) => Some(Self::Segment { row, generation }),
            (2, number, 0) => Some(Self::Channel(number)),
            _ => None,
        }
    }
}

/// The descriptors of one context.
pub(crate) struct ContextDescriptors {
    table: Table,
    arena: Arc<Arena>,
    progress: Arc<Progress>,
    channels: Mutex<HashMap<u32, Weak<WakePipe>>>,
}

impl ContextDescriptors {
    pub(crate) fn new(table: Table, arena: Arc<Arena>, progress: Arc<Progress>) -> Arc<Self> {
        Arc::new(Self {
            table,
            arena,
            progress,
            channels: Mutex::default(),
        })
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<u32, Weak<WakePipe>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands out the pipe of a channel from now on, as long as it lives.
    pub(crate) fn add_channel(&self, number: u32, pipe: &Arc<WakePipe>) {
        let mut channels = self.channels();
        channels.retain(|_, known| known.strong_count() > 0);
        channels.insert(number, Arc::downgrade(pipe));
    }

    /// Returns a sender to the pipe of a channel, for this process.
    pub(crate) fn channel_sender(&self, number: u32) -> Option<WakeSender> {
        let pipe = self.channels().get(&number).and_then(Weak::upgrade);
        pipe.map(|pipe| pipe.sender())
    }
}

impl DescriptorSource for ContextDescriptors {
    fn descriptors(&self, request: DescriptorRequest) -> io::Result<Option<Vec<OwnedFd>>> {
        match DescriptorKind::of(request) {
            None => Ok(None),
            Some(DescriptorKind::Table) => {
                let mut all = vec![self.table.shared().fd().try_clone_to_owned()?];
                all.extend(self.progress.pipe().descriptors()?);
                Ok(Some(all))
            }
            Some(DescriptorKind::Segment { row, generation }) => {
                let found = self.arena.find(row, generation);
                let fd = found.map(|segment| segment.fd().try_clone_to_owned());
                Ok(fd.transpose()?.map(|fd| vec![fd]))
            }
            Some(DescriptorKind::Channel(number)) => {
                let pipe = self.channels().get(&number).and_then(Weak::upgrade);
                pipe.map(|pipe| pipe.descriptors()).transpose()
            }
        }
    }
}

/// Where the descriptors of another context come from.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorOrigin {
    pub(crate) registry: Arc<Registry>,
    pub(crate) process: ProcessId,
    /// The context's incarnation.
    pub(crate) object: u64,
}

impl DescriptorOrigin {
    /// Asks for descriptors. Returns `None` if there is no such thing (any more), or the process is dead. The process
    /// has `limit` to answer.
    pub(crate) fn ask(
        &self,
        kind: DescriptorKind,
        limit: Duration,
    ) -> Result<Option<Vec<OwnedFd>>, RegistryError> {
        let client = DescriptorClient::connect_within(&self.registry, self.process, limit)?;
        match client {
            Some(mut client) => client.descriptors(self.object, kind.into()),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        let kinds = [
            DescriptorKind::Table,
            DescriptorKind::Channel(7),
            DescriptorKind::Segment {
                row: 3,
                generation: u32::MAX,
            },
        ];
        for kind in kinds {
            assert_eq!(DescriptorKind::of(kind.into()), Some(kind));
        }
        let unknown = DescriptorRequest {
            kind: 3,
            ..DescriptorRequest::default()
        };
        assert_eq!(DescriptorKind::of(unknown), None);
    }
}

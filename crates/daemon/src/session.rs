//! A worker's side of an application's session.

use headworks_client::socket_message::Refusal;
use headworks_client::{Doorbell, Extent, Vqpn};

use headworks_rxpool::holdings::AppId;

use crate::session_memory::SessionMemory;
use crate::snapshot::Traffic;

/// The part of an application's session that one worker carries: its connections over that worker's queue-pair groups.
pub(crate) struct Session {
    /// Name that the application chose.
    pub(crate) name: String,
    pub(crate) memory: SessionMemory,
    /// The application in the receive pool of the worker's part of its domain.
    pub(crate) app: AppId,
    pub(crate) doorbell: Doorbell,
    /// Memory of the doorbell.
    pub(crate) doorbell_extent: Extent,
    /// Whether this doorbell is the one that the application was told of when it attached.
    pub(crate) is_first: bool,
    /// Connections by handle.
    pub(crate) handles: HandleTable,
    pub(crate) traffic: Traffic,
    /// The receive pool has named the application to be copied out, and nothing was copied since.
    pub(crate) is_copy_due: bool,
    /// The application is gone. The worker finishes what is left without it.
    pub(crate) is_gone: bool,
}

impl Session {
    /// Creates the part of a session that may have handles below `handles`.
    ///
    /// # Errors
    ///
    /// [`Refusal::Limit`], [`Refusal::Memory`].
    pub(crate) fn new(
        mut memory: SessionMemory,
        name: String,
        app: AppId,
        handles: usize,
        is_first: bool,
    ) -> Result<Self, Refusal> {
        let extent = memory.take(Doorbell::bytes(handles) as u32)?;
        let doorbell = Doorbell::at(memory.slabs(), extent, handles);
        let doorbell = doorbell.map_err(|_| Refusal::Memory)?;
        Ok(Self {
            name,
            memory,
            app,
            doorbell,
            doorbell_extent: extent,
            is_first,
            handles: HandleTable::default(),
            traffic: Traffic::default(),
            is_copy_due: false,
            is_gone: false,
        })
    }
}

/// Numbers of connections by handle.
#[derive(Debug, Default)]
pub(crate) struct HandleTable {
    numbers: Vec<Option<Vqpn>>,
    len: usize,
}

impl HandleTable {
    pub(crate) fn get(&self, handle: u32) -> Option<Vqpn> {
        *self.numbers.get(handle as usize)?
    }

    /// Adds a connection under a free handle.
    pub(crate) fn insert(&mut self, handle: u32, number: Vqpn) {
        let at = handle as usize;
        if self.numbers.len() <= at {
            self.numbers.resize(at + 1, None);
        }
        let before = self.numbers[at].replace(number);
        debug_assert_eq!(before, None, "the handle is free");
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, handle: u32) {
        let entry = self.numbers.get_mut(handle as usize);
        if entry.and_then(Option::take).is_some() {
            self.len -= 1;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Vqpn> {
        self.numbers.iter().filter_map(|number| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_counted_and_found() {
        let mut handles = HandleTable::default();
        let number = Vqpn::new(5, 1);
        handles.insert(3, number);
        assert_eq!(
            (handles.get(3), handles.get(2), handles.len()),
            (Some(number), None, 1)
        );
        handles.remove(2);
        handles.remove(9);
        assert_eq!(handles.iter().collect::<Vec<_>>(), [number]);
        handles.remove(3);
        handles.remove(3);
        assert_eq!((handles.get(3), handles.len()), (None, 0));
    }
}

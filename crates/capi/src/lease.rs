//! Memory that C has the address of, and who has it: C, or the daemon for a time.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Mutex;

use headworks::service::{Export, Loan, RemoteOperation, ServiceError, SharedMemory};

use crate::connection::Link;
use crate::error::Error;
use crate::handle::{Handle, Waits, Way, locked};
use crate::library;

/// By address, which is a number here: nothing is read from there.
static PLACES: Mutex<BTreeMap<usize, Place>> = Mutex::new(BTreeMap::new());

/// Who has it.
enum Place {
    /// C.
    Own(SharedMemory),
    /// A call, just now.
    InUse,
    /// The daemon, by the connection of that [id](Handle::id).
    Held(u64, Held),
    /// The daemon, and nobody can ask for it any more: the connection is closed.
    Lost,
}

/// What for.
pub(crate) enum Held {
    /// It is being sent.
    Loan(Loan),
    /// It is read to, or written from.
    Operating(RemoteOperation),
    /// The other end may use it.
    Export(Export),
}

/// Memory that a call has, for a connection: C's, or what the daemon holds.
pub(crate) struct Lease<'h> {
    at: usize,
    handle: &'h Handle,
    pub(crate) memory: Option<SharedMemory>,
    held: Option<Held>,
}

impl<'h> Lease<'h> {
    /// What is C's at that address.
    pub(crate) fn own(at: usize, handle: &'h Handle) -> Result<Self, Error> {
        Self::take(at, handle, |place| match place {
            Place::Own(_) => Ok(()),
            _ => Err(Error::Busy),
        })
    }

    /// What the daemon has by the connection, of those that `is_it` says.
    pub(crate) fn held(
        at: usize,
        handle: &'h Handle,
        is_it: impl FnOnce(&Held) -> bool,
    ) -> Result<Self, Error> {
        Self::take(at, handle, |place| match place {
            Place::Held(id, held) if *id == handle.id() && is_it(held) => Ok(()),
            Place::InUse => Err(Error::Busy),
            _ => Err(Error::Invalid("not memory that the daemon has for that")),
        })
    }

    fn take(
        at: usize,
        handle: &'h Handle,
        may: impl FnOnce(&Place) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let mut places = locked(&PLACES);
        let place = places.get_mut(&at);
        let place = place.ok_or(Error::Invalid("no memory of hw_alloc's"))?;
        may(place)?;
        let (memory, held) = match mem::replace(place, Place::InUse) {
            Place::Own(memory) => (Some(memory), None),
            Place::Held(_, held) => (None, Some(held)),
            Place::InUse | Place::Lost => (None, None),
        };
        Ok(Self {
            at,
            handle,
            memory,
            held,
        })
    }

    /// The daemon has it now.
    pub(crate) fn hold(&mut self, held: Held) {
        self.held = Some(held);
    }

    /// Tries to have it back.
    fn settle(&mut self, link: &mut Link) -> Result<(), Error> {
        let stream = link.stream()?;
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        let (back, error) = match held {
            Held::Loan(loan) => match stream.reclaim(loan) {
                Ok(memory) => (Ok(memory), None),
                Err(left) => (Err(Held::Loan(left.loan)), Some(left.error)),
            },
            Held::Export(export) => match stream.revoke(export) {
                Ok(memory) => (Ok(memory), None),
                Err(left) => (Err(Held::Export(left.export)), Some(left.error)),
            },
            Held::Operating(mut operating) => {
                let finished = stream.finish(&mut operating);
                let memory = operating.take_memory();
                (memory.ok_or(Held::Operating(operating)), finished.err())
            }
        };
        match back {
            Ok(memory) => self.memory = Some(memory),
            Err(held) => self.held = Some(held),
        }
        error.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Waits until it is C's again. What becomes of an operation is said where that is an error.
    pub(crate) fn back(&mut self, waits: Waits) -> Result<(), Error> {
        let connection = self.handle.made(waits)?;
        let way = match self.held {
            Some(Held::Export(_)) => Way::Answer,
            _ => Way::Out,
        };
        self.handle
            .wait(way, waits, || connection.sending(|link| self.settle(link)))
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let (memory, held) = (self.memory.take(), self.held.take());
        let mut places = locked(&PLACES);
        // Seen with the lock: who closes the connection looks for what it has after that.
        let held = held.filter(|_| !self.handle.is_closed());
        let place = match (memory, held) {
            (Some(memory), _) => Place::Own(memory),
            (None, Some(held)) => Place::Held(self.handle.id(), held),
            (None, None) => Place::Lost,
        };
        places.insert(self.at, place);
    }
}

/// Memory for C: its address.
pub(crate) fn alloc(len: usize) -> Result<usize, Error> {
    if len == 0 {
        return Err(Error::Invalid("memory of no length"));
    }
    let too_much = || ServiceError::Refused(headworks::service::Refusal::Memory);
    let len = u32::try_from(len).map_err(|_| too_much())?;
    let mut memory = library::service()?.alloc(len)?;
    let at = memory.as_mut_ptr() as usize;
    locked(&PLACES).insert(at, Place::Own(memory));
    Ok(at)
}

/// C has no use for memory any more.
pub(crate) fn free(at: usize) -> Result<(), Error> {
    let mut places = locked(&PLACES);
    let freed = match places.get(&at) {
        None => return Err(Error::Invalid("no memory of hw_alloc's")),
        Some(Place::InUse | Place::Held(..)) => return Err(Error::Busy),
        Some(Place::Own(_) | Place::Lost) => places.remove(&at),
    };
    // The daemon is told without the lock.
    drop(places);
    drop(freed);
    Ok(())
}

/// A connection is closed: what it has of C's memory comes back now or never.
pub(crate) fn abandon(handle: &Handle) {
    let is_its = |place: &Place| matches!(place, Place::Held(id, _) if *id == handle.id());
    let places = locked(&PLACES);
    let its = places.iter().filter(|(_, place)| is_its(place));
    let its: Vec<usize> = its.map(|(at, _)| *at).collect();
    drop(places);
    for at in its {
        let Ok(mut lease) = Lease::held(at, handle, |_| true) else {
            continue;
        };
        // What is not back by now is lost: dropped, it is held by what is closed.
        let _ = lease.back(Waits::Never);
    }
}

/// Sends memory from where it is.
pub(crate) fn lend(handle: &Handle, at: usize, len: usize, waits: Waits) -> Result<(), Error> {
    let connection = handle.made(waits)?;
    let mut lease = Lease::own(at, handle)?;
    if len == 0
        || lease
            .memory
            .as_ref()
            .is_none_or(|memory| len > memory.len())
    {
        return Err(Error::Invalid("the memory has not as many bytes, or none"));
    }
    let loan = handle.wait(Way::Out, waits, || {
        connection.sending(|link| Ok(link.stream()?.lend_from(&mut lease.memory, len)?))
    })?;
    lease.hold(Held::Loan(loan));
    Ok(())
}

//! Memory from `hw_alloc`, and its current owner: the C program, or the daemon while it uses the memory.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Mutex;

use headworks::service::{Export, Loan, RemoteOperation, ServiceError, SharedMemory};

use crate::connection::Halves;
use crate::error::Error;
use crate::handle::{Handle, WaitFor, WaitMode, locked};
use crate::library;

/// All memory of `hw_alloc`, by address. The address is only a key; this module reads nothing through it.
static PLACES: Mutex<BTreeMap<usize, LeaseState>> = Mutex::new(BTreeMap::new());

/// Owner of a piece of memory.
enum LeaseState {
    /// The C program owns it.
    Own(SharedMemory),
    /// A call is using it.
    InUse,
    /// The daemon holds it, for the connection with that [id](Handle::id).
    Held(u64, LeasePurpose),
    /// The daemon holds it for a connection that was closed, so the program can no longer ask for it. The program
    /// can only free it.
    Lost,
}

/// Purpose for which the daemon holds memory.
pub(crate) enum LeasePurpose {
    /// The daemon is sending it.
    Loan(Loan),
    /// A one-sided operation copies to it or from it.
    Operating(RemoteOperation),
    /// It is exported: the peer may read or write it.
    Export(Export),
}

/// Memory that a call is using for a connection. Before the call, the C program or the daemon owned it. On
/// drop, the owner is recorded again.
pub(crate) struct Lease<'h> {
    /// Address that `hw_alloc` returned.
    at: usize,
    handle: &'h Handle,
    /// The memory, if the C program owns it.
    pub(crate) memory: Option<SharedMemory>,
    /// Purpose for which the daemon holds the memory, if it does.
    held: Option<LeasePurpose>,
}

impl<'h> Lease<'h> {
    /// Leases the memory at `at`, which the C program must own.
    pub(crate) fn own(at: usize, handle: &'h Handle) -> Result<Self, Error> {
        Self::take(at, handle, |place| match place {
            LeaseState::Own(_) => Ok(()),
            _ => Err(Error::Busy),
        })
    }

    /// Leases the memory at `at`, which the daemon must hold for the connection and for a purpose that
    /// `is_it` accepts.
    pub(crate) fn held(
        at: usize,
        handle: &'h Handle,
        is_it: impl FnOnce(&LeasePurpose) -> bool,
    ) -> Result<Self, Error> {
        Self::take(at, handle, |place| match place {
            LeaseState::Held(id, held) if *id == handle.id() && is_it(held) => Ok(()),
            LeaseState::InUse => Err(Error::Busy),
            _ => Err(Error::Invalid(
                "the daemon does not hold this memory for this call",
            )),
        })
    }

    fn take(
        at: usize,
        handle: &'h Handle,
        may: impl FnOnce(&LeaseState) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let mut places = locked(&PLACES);
        let place = places.get_mut(&at);
        let place = place.ok_or(Error::Invalid("hw_alloc did not return this address"))?;
        may(place)?;
        let (memory, held) = match mem::replace(place, LeaseState::InUse) {
            LeaseState::Own(memory) => (Some(memory), None),
            LeaseState::Held(_, held) => (None, Some(held)),
            LeaseState::InUse | LeaseState::Lost => (None, None),
        };
        Ok(Self {
            at,
            handle,
            memory,
            held,
        })
    }

    /// Records that the daemon holds the memory now.
    pub(crate) fn hold(&mut self, held: LeasePurpose) {
        self.held = Some(held);
    }

    /// Tries to take the memory back from the daemon.
    fn settle(&mut self, link: &mut Halves) -> Result<(), Error> {
        let stream = link.stream()?;
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        let (back, error) = match held {
            LeasePurpose::Loan(loan) => match stream.reclaim(loan) {
                Ok(memory) => (Ok(memory), None),
                Err(left) => (Err(LeasePurpose::Loan(left.loan)), Some(left.error)),
            },
            LeasePurpose::Export(export) => match stream.revoke(export) {
                Ok(memory) => (Ok(memory), None),
                Err(left) => (Err(LeasePurpose::Export(left.export)), Some(left.error)),
            },
            LeasePurpose::Operating(mut operating) => {
                let finished = stream.finish(&mut operating);
                let memory = operating.take_memory();
                (
                    memory.ok_or(LeasePurpose::Operating(operating)),
                    finished.err(),
                )
            }
        };
        match back {
            Ok(memory) => self.memory = Some(memory),
            Err(held) => self.held = Some(held),
        }
        error.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Waits until the C program owns the memory again. If an operation failed, returns its error.
    pub(crate) fn back(&mut self, waits: WaitMode) -> Result<(), Error> {
        let connection = self.handle.made(waits)?;
        let way = match self.held {
            Some(LeasePurpose::Export(_)) => WaitFor::Answer,
            _ => WaitFor::Out,
        };
        self.handle
            .wait(way, waits, || connection.sending(|link| self.settle(link)))
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let (memory, held) = (self.memory.take(), self.held.take());
        let mut places = locked(&PLACES);
        // Read the flag under the lock. `hw_close` sets it before it takes the lock. So either this code sees the
        // flag, or `abandon` finds the memory.
        let held = held.filter(|_| !self.handle.is_closed());
        let place = match (memory, held) {
            (Some(memory), _) => LeaseState::Own(memory),
            (None, Some(held)) => LeaseState::Held(self.handle.id(), held),
            (None, None) => LeaseState::Lost,
        };
        places.insert(self.at, place);
    }
}

/// Allocates memory for the C program, and returns its address.
pub(crate) fn alloc(len: usize) -> Result<usize, Error> {
    if len == 0 {
        return Err(Error::Invalid("len is 0; it must be at least 1"));
    }
    let too_much = || ServiceError::Refused(headworks::service::Refusal::Memory);
    let len = u32::try_from(len).map_err(|_| too_much())?;
    let mut memory = library::service()?.alloc(len)?;
    let at = memory.as_mut_ptr() as usize;
    locked(&PLACES).insert(at, LeaseState::Own(memory));
    Ok(at)
}

/// Frees memory that the C program owns or that is lost.
pub(crate) fn free(at: usize) -> Result<(), Error> {
    let mut places = locked(&PLACES);
    let freed = match places.get(&at) {
        None => return Err(Error::Invalid("hw_alloc did not return this address")),
        Some(LeaseState::InUse | LeaseState::Held(..)) => return Err(Error::Busy),
        Some(LeaseState::Own(_) | LeaseState::Lost) => places.remove(&at),
    };
    // Dropping the memory sends a message to the daemon, so the lock is released first.
    drop(places);
    drop(freed);
    Ok(())
}

/// Takes back the memory that the daemon holds for a connection that was closed. Memory that the daemon still
/// uses is marked as lost.
pub(crate) fn abandon(handle: &Handle) {
    let is_its =
        |place: &LeaseState| matches!(place, LeaseState::Held(id, _) if *id == handle.id());
    let places = locked(&PLACES);
    let its = places.iter().filter(|(_, place)| is_its(place));
    let its: Vec<usize> = its.map(|(at, _)| *at).collect();
    drop(places);
    for at in its {
        let Ok(mut lease) = Lease::held(at, handle, |_| true) else {
            continue;
        };
        // If it is not back yet, dropping the lease marks it as lost, because the handle is closed.
        let _ = lease.back(WaitMode::Never);
    }
}

/// Asks the daemon to send the first `len` bytes of the memory at `at` in place, without a copy.
pub(crate) fn lend(handle: &Handle, at: usize, len: usize, waits: WaitMode) -> Result<(), Error> {
    let connection = handle.made(waits)?;
    let mut lease = Lease::own(at, handle)?;
    if len == 0
        || lease
            .memory
            .as_ref()
            .is_none_or(|memory| len > memory.len())
    {
        return Err(Error::Invalid("len must be 1 to the length of the memory"));
    }
    let loan = handle.wait(WaitFor::Out, waits, || {
        connection.sending(|link| Ok(link.stream()?.lend_from(&mut lease.memory, len)?))
    })?;
    lease.hold(LeasePurpose::Loan(loan));
    Ok(())
}

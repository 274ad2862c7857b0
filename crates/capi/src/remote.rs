//! Operations on memory of the peer.

use headworks::service::{RemoteOperation, Rights, ServiceError, Stream};

use crate::connection::{Connection, Halves};
use crate::error::Error;
use crate::handle::{Handle, WaitFor, WaitMode};
use crate::lease::{Lease, LeasePurpose};

/// Exports memory to the peer. Returns the number of the export at both ends.
pub(crate) fn export(handle: &Handle, at: usize, rights: Rights) -> Result<u32, Error> {
    let connection = handle.made(WaitMode::AsSet)?;
    let mut lease = Lease::own(at, handle)?;
    let export =
        connection.sending(|link| Ok(link.stream()?.export_from(&mut lease.memory, rights)?))?;
    let export_id = export.id();
    lease.hold(LeasePurpose::Export(export));
    Ok(export_id)
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyDirection {
    /// From the other end's memory.
    Here,
    /// To the other end's memory.
    There,
}

/// Arguments of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) copied: CopyDirection,
    pub(crate) export_id: u32,
    /// Offset in the export at which the copy begins, in bytes.
    pub(crate) at: u64,
    /// Address of this end's memory.
    pub(crate) memory: usize,
}

/// Copies as many bytes as this end's memory has, and returns their number. If `only_begins`, returns once
/// the copy has begun.
pub(crate) fn copy(
    handle: &Handle,
    copy: Copy,
    waits: WaitMode,
    only_begins: bool,
) -> Result<usize, Error> {
    let connection = handle.made(waits)?;
    let mut lease = Lease::own(copy.memory, handle)?;
    let len = lease.memory.as_ref().map_or(0, |memory| memory.len());
    let Copy { export_id, at, .. } = copy;
    let operating = begin(handle, connection, waits, |stream| match copy.copied {
        CopyDirection::Here => stream.read_start_from(export_id, at, &mut lease.memory),
        CopyDirection::There => stream.write_start_from(export_id, at, &mut lease.memory),
    })?;
    lease.hold(LeasePurpose::Operating(operating));
    if !only_begins {
        lease.back(WaitMode::Always)?;
    }
    Ok(len)
}

/// Changes a word of the peer's memory with an atomic operation. Returns the previous value.
pub(crate) fn change(
    handle: &Handle,
    waits: WaitMode,
    start: impl FnMut(&mut Stream) -> Result<RemoteOperation, ServiceError>,
) -> Result<u64, Error> {
    let connection = handle.made(waits)?;
    let mut operating = begin(handle, connection, waits, start)?;
    let finished = handle.wait(WaitFor::Out, WaitMode::Always, || {
        connection.sending(|link| Ok(link.stream()?.finish(&mut operating)?))
    });
    let is_over = matches!(
        finished,
        Ok(_) | Err(Error::Service(ServiceError::Operation(_)))
    );
    if !is_over {
        connection.sending(|link| {
            link.orphans.push(operating);
            Ok(())
        })?;
    }
    finished
}

fn begin(
    handle: &Handle,
    connection: &Connection,
    waits: WaitMode,
    mut start: impl FnMut(&mut Stream) -> Result<RemoteOperation, ServiceError>,
) -> Result<RemoteOperation, Error> {
    handle.wait(WaitFor::Out, waits, || {
        connection.sending(|link| {
            reap(link)?;
            Ok(start(link.stream()?)?)
        })
    })
}

/// Finishes orphaned operations that are over.
fn reap(link: &mut Halves) -> Result<(), Error> {
    for mut orphan in std::mem::take(&mut link.orphans) {
        match orphan.is_over() {
            // No call waits for this operation any more, so its outcome is dropped.
            true => drop(link.stream()?.finish(&mut orphan)),
            false => link.orphans.push(orphan),
        }
    }
    Ok(())
}

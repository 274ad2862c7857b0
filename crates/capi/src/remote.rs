//! Memory of the other end's.

use headworks::service::{RemoteOperation, Rights, ServiceError, Stream};

use crate::connection::{Connection, Link};
use crate::error::Error;
use crate::handle::{Handle, Waits, Way};
use crate::lease::{Held, Lease};

/// Lets the other end use memory; what both call it.
pub(crate) fn export(handle: &Handle, at: usize, rights: Rights) -> Result<u32, Error> {
    let connection = handle.made(Waits::AsSet)?;
    let mut lease = Lease::own(at, handle)?;
    let export =
        connection.sending(|link| Ok(link.stream()?.export_from(&mut lease.memory, rights)?))?;
    let window = export.window();
    lease.hold(Held::Export(export));
    Ok(window)
}

/// Which way bytes are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    /// From the other end's memory.
    Here,
    /// To it.
    There,
}

/// What a copy is of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) copied: Copied,
    pub(crate) window: u32,
    /// Where in the window it begins.
    pub(crate) at: u64,
    /// The address of this end's memory.
    pub(crate) memory: usize,
}

/// Copies as many bytes as the memory of this end has; says how many. It is only begun if `only_begins`.
pub(crate) fn copy(
    handle: &Handle,
    copy: Copy,
    waits: Waits,
    only_begins: bool,
) -> Result<usize, Error> {
    let connection = handle.made(waits)?;
    let mut lease = Lease::own(copy.memory, handle)?;
    let len = lease.memory.as_ref().map_or(0, |memory| memory.len());
    let Copy { window, at, .. } = copy;
    let operating = begin(handle, connection, waits, |stream| match copy.copied {
        Copied::Here => stream.read_start_from(window, at, &mut lease.memory),
        Copied::There => stream.write_start_from(window, at, &mut lease.memory),
    })?;
    lease.hold(Held::Operating(operating));
    if !only_begins {
        lease.back(Waits::Always)?;
    }
    Ok(len)
}

/// Changes a word of the other end's memory; the word as it was.
pub(crate) fn change(
    handle: &Handle,
    waits: Waits,
    start: impl FnMut(&mut Stream) -> Result<RemoteOperation, ServiceError>,
) -> Result<u64, Error> {
    let connection = handle.made(waits)?;
    let mut operating = begin(handle, connection, waits, start)?;
    let finished = handle.wait(Way::Out, Waits::Always, || {
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
    waits: Waits,
    mut start: impl FnMut(&mut Stream) -> Result<RemoteOperation, ServiceError>,
) -> Result<RemoteOperation, Error> {
    handle.wait(Way::Out, waits, || {
        connection.sending(|link| {
            reap(link)?;
            Ok(start(link.stream()?)?)
        })
    })
}

/// Finishes operations that nobody waits for, where they are over.
fn reap(link: &mut Link) -> Result<(), Error> {
    for mut orphan in std::mem::take(&mut link.orphans) {
        match orphan.is_over() {
            // What became of it, nobody asks any more.
            true => drop(link.stream()?.finish(&mut orphan)),
            false => link.orphans.push(orphan),
        }
    }
    Ok(())
}

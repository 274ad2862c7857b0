//! Memory of the peer, mapped in this process or not, and copies to and from it.

use rustix::io::Errno;

use crate::datapath::copy::{Span, copy_spans, cut};
use crate::datapath::cross_process_copy::{self, CrossError, Direction, RemoteRange};
use crate::table::peer::Peer;
use crate::table::rows::MAX_SGE;

/// Memory of the peer that a key check has allowed.
#[derive(Clone, Copy)]
pub(crate) enum RemoteSpan {
    /// Mapped in this process.
    Mapped(Span),
    /// Mapped only in the peer's process, as part of the region `key`. The addresses are those that requests use; the memory is at
    /// this distance from them.
    Across {
        key: u32,
        stretch: RemoteRange,
        distance: u64,
    },
}

/// The reason why bytes were not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyError {
    /// The memory is not mapped there, though it is registered.
    Fault,
    /// The peer is dead.
    Dead,
    /// The kernel does not let this process reach the memory. The owner must be asked to copy this range.
    Refused { key: u32, stretch: RemoteRange },
}

impl RemoteSpan {
    pub(crate) const EMPTY: Self = Self::Mapped(Span::EMPTY);

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Mapped(span) => span.len(),
            Self::Across { stretch, .. } => stretch.len,
        }
    }

    /// Returns the span, if it is mapped in this process.
    pub(crate) fn mapped(&self) -> Option<Span> {
        match self {
            Self::Mapped(span) => Some(*span),
            Self::Across { .. } => None,
        }
    }
}

/// Copies `budget` bytes, or a few more, between the spans `here` and the memory `there` of `peer`: in order,
/// both from byte `done` on. Adds to `done` what it copied: fewer than `budget` if either list ran out.
pub(crate) fn transfer(
    direction: Direction,
    peer: &Peer,
    here: &[Span],
    there: &[RemoteSpan],
    done: &mut u64,
    budget: usize,
) -> Result<(), CopyError> {
    let mut spans = [Span::EMPTY; MAX_SGE];
    if let Some(there) = all_mapped(there, &mut spans) {
        *done += match direction {
            Direction::Place => copy_spans(there, here, *done, budget),
            Direction::Fetch => copy_spans(here, there, *done, budget),
        } as u64;
        return Ok(());
    }
    let room: u64 = here.iter().map(|span| span.len() as u64).sum();
    let until = room.min(*done + budget as u64);
    while *done < until {
        let at = *done;
        let step = match run(there, at, (until - at) as usize) {
            CopyRun::End => break,
            CopyRun::Mapped(span) => {
                let mut parts = [Span::EMPTY; MAX_SGE];
                let count = cut(here, at, span.len(), &mut parts);
                match direction {
                    Direction::Place => copy_spans(&[span], &parts[..count], 0, span.len()),
                    Direction::Fetch => copy_spans(&parts[..count], &[span], 0, span.len()),
                }
            }
            CopyRun::Across(stretches, (key, first), count, len) => {
                let mut parts = [Span::EMPTY; MAX_SGE];
                let parts_count = cut(here, at, len, &mut parts);
                let moved = across(direction, peer, &parts[..parts_count], &stretches[..count]);
                moved.map_err(|why| why.of(key, first))?
            }
        };
        if step == 0 {
            break;
        }
        *done += step as u64;
    }
    Ok(())
}

/// Returns the spans in `out`, if all of the memory is mapped in this process.
#[inline(always)]
fn all_mapped<'a>(list: &[RemoteSpan], out: &'a mut [Span; MAX_SGE]) -> Option<&'a [Span]> {
    let out = out.get_mut(..list.len())?;
    for (far, out) in list.iter().zip(&mut *out) {
        *out = far.mapped()?;
    }
    Some(out)
}

/// A run of memory that one call can copy.
enum CopyRun {
    Mapped(Span),
    /// The ranges in the peer's process, the first one's region and its range there, the number of ranges, and their bytes
    /// together.
    Across([RemoteRange; MAX_SGE], (u32, RemoteRange), usize, usize),
    End,
}

/// Returns the run that begins at byte `skip` of `there`, of at most `budget` bytes.
fn run(there: &[RemoteSpan], mut skip: u64, budget: usize) -> CopyRun {
    let (mut stretches, mut count, mut len) = ([RemoteRange::EMPTY; MAX_SGE], 0, 0);
    let mut first = (0, RemoteRange::EMPTY);
    for far in there {
        let Some(rest) = (far.len() as u64)
            .checked_sub(skip)
            .filter(|rest| *rest > 0)
        else {
            skip -= far.len() as u64;
            continue;
        };
        let part = rest.min((budget - len) as u64) as usize;
        match far {
            RemoteSpan::Mapped(span) if count == 0 => {
                let mut out = [Span::EMPTY];
                cut(&[*span], skip, part, &mut out);
                return CopyRun::Mapped(out[0]);
            }
            RemoteSpan::Across {
                key,
                stretch,
                distance,
            } if part > 0 && count < MAX_SGE => {
                let addr = stretch.addr.wrapping_add(skip);
                if count == 0 {
                    first = (*key, RemoteRange { addr, len: part });
                }
                let addr = addr.wrapping_add(*distance);
                stretches[count] = RemoteRange { addr, len: part };
                count += 1;
                len += part;
            }
            _ => break,
        }
        skip = 0;
    }
    match count {
        0 => CopyRun::End,
        _ => CopyRun::Across(stretches, first, count, len),
    }
}

/// A [`CopyError`] without the place at which the run failed.
enum RunError {
    Fault,
    Dead,
    Refused,
}

impl RunError {
    fn of(self, key: u32, stretch: RemoteRange) -> CopyError {
        match self {
            Self::Fault => CopyError::Fault,
            Self::Dead => CopyError::Dead,
            Self::Refused => CopyError::Refused { key, stretch },
        }
    }
}

fn across(
    direction: Direction,
    peer: &Peer,
    here: &[Span],
    there: &[RemoteRange],
) -> Result<usize, RunError> {
    if peer.refuses_crossing() {
        return Err(RunError::Refused);
    }
    cross_process_copy::copy(direction, peer.pid(), here, there).map_err(|error| match error {
        CrossError::Fault => RunError::Fault,
        CrossError::Gone if peer.check_dead() => RunError::Dead,
        CrossError::Gone | CrossError::Refused(_) => {
            note_failure(peer, error);
            RunError::Refused
        }
    })
}

/// Asks the kernel whether the private memory of `peer` can be accessed now.
pub(crate) fn can_cross(peer: &Peer) -> bool {
    !peer.refuses_crossing()
        && cross_process_copy::probe(peer.pid())
            .map_err(|why| note_failure(peer, why))
            .is_ok()
}

/// Notes that the private memory of `peer` was not reached. A refusal of permission is permanent; one for lack of
/// memory is temporary.
pub(crate) fn note_failure(peer: &Peer, why: CrossError) {
    let for_good = [Errno::PERM, Errno::ACCESS, Errno::NOSYS].map(CrossError::Refused);
    // The kernel also reports `Gone` for a process whose first thread has ended while others run.
    if why == CrossError::Gone || for_good.contains(&why) {
        peer.refuse_crossing(&why);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

    use super::*;
    use crate::table::rows::Table;

    /// Returns the id of a process that has ended, which is unused, and its pidfd.
    fn the_dead() -> (u32, OwnedFd) {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        (child.id(), pidfd)
    }

    fn reached(pid: u32, pidfd: OwnedFd) -> (Result<usize, RunError>, bool) {
        let table = Table::new(crate::table::rows::empty_segment()).unwrap();
        let peer = Peer::stand_in(pid, pidfd, table);
        let here = [Span::of_inline(&[0; 8])];
        let there = [RemoteRange { addr: 4096, len: 8 }];
        let found = across(Direction::Place, &peer, &here, &there);
        (found, peer.refuses_crossing())
    }

    #[test]
    fn a_missing_pid_is_death_only_if_pidfd_agrees() {
        let (dead, pidfd) = the_dead();
        assert!(matches!(reached(dead, pidfd), (Err(RunError::Dead), false)));
        // As if its first thread had ended while others run: the owner is asked.
        let us = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        assert!(matches!(reached(dead, us), (Err(RunError::Refused), true)));
    }
}

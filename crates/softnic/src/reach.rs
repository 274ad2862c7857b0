//! Memory at the other end, mapped here or not, and moving bytes there and back.

use crate::copy::{Span, copy_spans, cut};
use crate::crossmem::{self, CrossError, Direction, Stretch};
use crate::peer::Peer;
use crate::table::MAX_SGE;

/// Checked memory of the peer.
#[derive(Clone, Copy)]
pub(crate) enum Far {
    /// Mapped here.
    Mapped(Span),
    /// Mapped there only, as part of the region `key`.
    Across {
        #[expect(dead_code, reason = "what its owner would be asked by")]
        key: u32,
        stretch: Stretch,
    },
}

/// Why bytes were not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmoved {
    /// The memory is not there, though it is registered.
    Fault,
    /// The peer is dead.
    Dead,
    /// The kernel does not let this process reach it.
    Refused,
}

impl Far {
    pub(crate) const EMPTY: Self = Self::Mapped(Span::EMPTY);

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Mapped(span) => span.len(),
            Self::Across { stretch, .. } => stretch.len,
        }
    }
}

/// Moves up to `budget` bytes between the spans `here` and the memory `there` of `peer`, both without
/// their first `skip` bytes, in order. Returns how many it moved: fewer than `budget` when either ran
/// out.
pub(crate) fn transfer(
    direction: Direction,
    peer: &Peer,
    here: &[Span],
    there: &[Far],
    skip: u64,
    budget: usize,
) -> Result<usize, Unmoved> {
    if let [Far::Mapped(span)] = there {
        return Ok(match direction {
            Direction::Place => copy_spans(&[*span], here, skip, budget),
            Direction::Fetch => copy_spans(here, &[*span], skip, budget),
        });
    }
    let room: u64 = here.iter().map(|span| span.len() as u64).sum();
    let budget = room.saturating_sub(skip).min(budget as u64) as usize;
    let mut moved = 0;
    while moved < budget {
        let at = skip + moved as u64;
        let step = match run(there, at, budget - moved) {
            Run::End => break,
            Run::Mapped(span) => {
                let mut parts = [Span::EMPTY; MAX_SGE];
                let count = cut(here, at, span.len(), &mut parts);
                match direction {
                    Direction::Place => copy_spans(&[span], &parts[..count], 0, span.len()),
                    Direction::Fetch => copy_spans(&parts[..count], &[span], 0, span.len()),
                }
            }
            Run::Across(stretches, count, len) => {
                let mut parts = [Span::EMPTY; MAX_SGE];
                let parts_count = cut(here, at, len, &mut parts);
                across(direction, peer, &parts[..parts_count], &stretches[..count])?
            }
        };
        if step == 0 {
            break;
        }
        moved += step;
    }
    Ok(moved)
}

/// Memory that can be moved at once.
enum Run {
    Mapped(Span),
    /// So many of them, so many bytes together.
    Across([Stretch; MAX_SGE], usize, usize),
    End,
}

/// What begins at byte `skip` of `there`, at most `budget` bytes.
fn run(there: &[Far], mut skip: u64, budget: usize) -> Run {
    let (mut stretches, mut count, mut len) = ([Stretch::EMPTY; MAX_SGE], 0, 0);
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
            Far::Mapped(span) if count == 0 => {
                let mut out = [Span::EMPTY];
                cut(&[*span], skip, part, &mut out);
                return Run::Mapped(out[0]);
            }
            Far::Across { stretch, .. } if part > 0 && count < MAX_SGE => {
                let addr = stretch.addr.wrapping_add(skip);
                stretches[count] = Stretch { addr, len: part };
                count += 1;
                len += part;
            }
            _ => break,
        }
        skip = 0;
    }
    match count {
        0 => Run::End,
        _ => Run::Across(stretches, count, len),
    }
}

fn across(
    direction: Direction,
    peer: &Peer,
    here: &[Span],
    there: &[Stretch],
) -> Result<usize, Unmoved> {
    if peer.refuses_crossing() {
        return Err(Unmoved::Refused);
    }
    crossmem::copy(direction, peer.pid(), here, there).map_err(|error| match error {
        CrossError::Fault => Unmoved::Fault,
        // Also said of a process whose first thread has ended while others run.
        CrossError::Gone if peer.check_dead() => Unmoved::Dead,
        CrossError::Gone | CrossError::Refused(_) => {
            peer.refuse_crossing(error);
            Unmoved::Refused
        }
    })
}

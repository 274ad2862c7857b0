//! Cuts long WRITEs and READs into slices (section IV-D), pure. A slice has its own part of the request's
//! gather list.

use headworks_verbs::{SendOp, Sge};

/// Bytes of a cache line.
const LINE: u64 = 64;

/// How requests are cut.
#[derive(Clone, Copy, Debug)]
pub struct SliceRule {
    /// Longest slice, in bytes; at least 1.
    pub slice: u64,
    /// Whether a WRITE with immediate is cut too. Its last slice carries the immediate.
    pub with_imm: bool,
}

/// A slice of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slice {
    /// Operation of the slice, with the remote address of its first byte.
    pub op: SendOp,
    /// Length of the slice in bytes.
    pub len: u64,
    /// Whether no slice of the request follows.
    pub is_last: bool,
    /// Whether the slice is the whole request, which was not cut.
    pub is_whole: bool,
}

/// Whether a request is cut.
#[inline]
pub fn is_cut(op: &SendOp, len: u64, cut: SliceRule) -> bool {
    len > cut.slice
        && match op {
            SendOp::Write(_) | SendOp::Read(_) => true,
            SendOp::WriteImm(..) => cut.with_imm,
            _ => false,
        }
}

/// Returns the slice that follows the first `done` bytes of a request of `len` bytes. A request without a
/// gather list (`has_list` false) is not cut, because inline data is short.
pub fn next(op: &SendOp, len: u64, has_list: bool, done: u64, cut: SliceRule) -> Slice {
    if !has_list || !is_cut(op, len, cut) {
        return Slice {
            op: *op,
            len,
            is_last: true,
            is_whole: true,
        };
    }
    let left = len.saturating_sub(done);
    let is_last = left <= cut.slice;
    let here = match (is_last, op) {
        (false, SendOp::Write(remote) | SendOp::WriteImm(remote, _) | SendOp::Read(remote)) => {
            aligned(remote.addr.wrapping_add(done), cut.slice)
        }
        _ => left.min(cut.slice),
    };
    let op = match *op {
        SendOp::Write(remote) => SendOp::Write(remote.plus(done)),
        SendOp::Read(remote) => SendOp::Read(remote.plus(done)),
        SendOp::WriteImm(remote, imm) if is_last => SendOp::WriteImm(remote.plus(done), imm),
        SendOp::WriteImm(remote, _) => SendOp::Write(remote.plus(done)),
        other => other,
    };
    Slice {
        op,
        len: here,
        is_last,
        is_whole: false,
    }
}

/// Length of a slice that starts at remote address `addr`: the most bytes, up to `slice`, that end at a
/// boundary of a cache line. If `slice` bytes reach no boundary, it is `slice`. So a cut tears no aligned word
/// that the device would place at once.
fn aligned(addr: u64, slice: u64) -> u64 {
    let beyond = addr.wrapping_add(slice) % LINE;
    match slice > beyond {
        true => slice - beyond,
        false => slice,
    }
}

/// Appends to `into` the gather entries for the `len` bytes from offset `from` on. If `is_whole`, appends the
/// whole list unchanged.
pub fn gather(
    all: impl Iterator<Item = Sge>,
    from: u64,
    len: u64,
    is_whole: bool,
    into: &mut Vec<Sge>,
) {
    if is_whole {
        into.extend(all);
        return;
    }
    let (mut skip, mut left) = (from, len);
    for sge in all {
        let here = u64::from(sge.len);
        if skip >= here {
            skip -= here;
            continue;
        }
        if left == 0 {
            return;
        }
        let take = (here - skip).min(left);
        into.push(Sge {
            addr: sge.addr.wrapping_add(skip),
            len: take as u32,
            lkey: sge.lkey,
        });
        (skip, left) = (0, left - take);
    }
}

#[cfg(test)]
mod tests {
    use headworks_verbs::RemoteAddr;
    use proptest::prelude::*;

    use super::*;

    fn remote(addr: u64) -> RemoteAddr {
        RemoteAddr { addr, rkey: 7 }
    }

    proptest! {
        /// The slices together name every byte of the request once, in order.
        #[test]
        fn slices_are_the_request(
            lens in proptest::collection::vec(0..400_u32, 0..6),
            slice in 1..150_u64,
            which in 0..3_usize,
            first in (1 << 40)..(1 << 40) + 64_u64,
        ) {
            let sges: Vec<_> = lens.iter().zip(1_u64..).map(|(len, at)| Sge { addr: at * 1000, len: *len, lkey: at as u32 }).collect();
            let len: u64 = lens.iter().map(|len| u64::from(*len)).sum();
            let op = [SendOp::Write(remote(first)), SendOp::Read(remote(first)), SendOp::WriteImm(remote(first), 5)][which];
            let cut = SliceRule { slice, with_imm: true };
            let bytes = |sges: &[Sge]| -> Vec<(u64, u32)> {
                sges.iter().flat_map(|s| (0..u64::from(s.len)).map(|b| (s.addr + b, s.lkey))).collect()
            };
            let (mut done, mut seen) = (0, Vec::new());
            let most = slice;
            loop {
                let slice = next(&op, len, true, done, cut);
                prop_assert!(slice.len <= most && (slice.len > 0 || len == 0));
                if !slice.is_last {
                    // A slice ends within a remote cache line only if the limit is shorter than a line. No
                    // slice is shorter than necessary.
                    let end = first + done + slice.len;
                    prop_assert!(end.is_multiple_of(LINE) || most < LINE, "{end}");
                    prop_assert!(slice.len + LINE > most, "{slice:?}");
                }
                let mut list = Vec::new();
                gather(sges.iter().copied(), done, slice.len, slice.is_whole, &mut list);
                prop_assert!(list.len() <= sges.len());
                let here = bytes(&list);
                prop_assert_eq!(here.len() as u64, slice.len);
                let at = match slice.op {
                    SendOp::Write(at) | SendOp::Read(at) => { prop_assert!(which != 2 || !slice.is_last); at }
                    SendOp::WriteImm(at, 5) => { prop_assert!(slice.is_last); at }
                    _ => unreachable!(),
                };
                prop_assert_eq!(at, remote(first + done));
                seen.extend(here);
                done += slice.len;
                if slice.is_last { break; }
            }
            prop_assert_eq!(seen, bytes(&sges));
        }
    }

    #[test]
    fn others_are_not_cut() {
        let cut = SliceRule {
            slice: 8,
            with_imm: false,
        };
        for op in [
            SendOp::Send,
            SendOp::SendImm(1),
            SendOp::WriteImm(remote(0), 1),
        ] {
            let slice = next(&op, 100, true, 0, cut);
            assert!(slice.is_whole && slice.is_last && slice.len == 100 && slice.op == op);
        }
        assert!(next(&SendOp::Write(remote(0)), 100, false, 0, cut).is_whole);
        assert!(
            is_cut(&SendOp::Read(remote(0)), 9, cut) && !is_cut(&SendOp::Read(remote(0)), 8, cut)
        );
    }
}

//! Model of one queue pair from one reset to the next: what its program posted, and the expected outcome.

use std::collections::BTreeMap;

use headworks_pacing::PacingConfig;
use headworks_verbs::{Completion, Instant, Opcode, SendFlags, SendOp, Sge, Status};

use crate::scripted_device::{Event, opcode};
use crate::world::Request;

/// Address and key of each byte.
fn places(sges: &[Sge]) -> Vec<(u64, u32)> {
    let each = |sge: &Sge| {
        let (first, lkey) = (sge.addr, sge.lkey);
        (0..u64::from(sge.len)).map(move |at| (first + at, lkey))
    };
    sges.iter().flat_map(each).collect()
}

/// Length of a slice that is not the last: up to the last remote cache line that ends within it.
fn whole_lines(op: &SendOp, done: u64, slice: u64) -> u64 {
    let (SendOp::Write(there) | SendOp::WriteImm(there, _) | SendOp::Read(there)) = op else {
        unreachable!("not cut");
    };
    let first = there.addr + done;
    (first + slice) / 64 * 64 - first
}

/// A slice as the device is expected to get it.
struct Slice {
    op: SendOp,
    flags: SendFlags,
    len: u64,
    is_last: bool,
}

impl Slice {
    /// The next slice after the first `done` bytes.
    fn of(config: &PacingConfig, request: &Request, done: u64) -> Self {
        let (slice, len) = (config.slice_bytes, request.len());
        let cut = match request.op {
            SendOp::Write(_) | SendOp::Read(_) => len > slice,
            SendOp::WriteImm(..) => len > slice && config.slice_imm,
            _ => false,
        };
        let cut = cut && request.payload.is_ok();
        let here = match request.op {
            op if cut && len - done > slice => whole_lines(&op, done, slice),
            _ if cut => len - done,
            _ => len,
        };
        let is_last = done + here == len;
        let op = match request.op {
            op if !cut => op,
            SendOp::Write(to) => SendOp::Write(to.plus(done)),
            SendOp::Read(from) => SendOp::Read(from.plus(done)),
            SendOp::WriteImm(to, imm) if is_last => SendOp::WriteImm(to.plus(done), imm),
            SendOp::WriteImm(to, _) => SendOp::Write(to.plus(done)),
            _ => unreachable!("not cut"),
        };
        let mut flags = SendFlags::SIGNALED;
        for (flag, here) in [
            (SendFlags::FENCE, done == 0),
            (SendFlags::SOLICITED, is_last),
        ] {
            if here && request.flags.contains(flag) {
                flags |= flag;
            }
        }
        Self {
            op,
            flags,
            len: here,
            is_last,
        }
    }
}

/// A queue pair from one reset to the next.
#[derive(Default)]
pub(crate) struct Life {
    pub(crate) qpn: u32,
    pub(crate) signal_all: bool,
    pub(crate) requests: Vec<Request>,
    /// Progress of the posts to the device: whole requests, bytes of the next one, and where those bytes lay.
    posted: (usize, u64, Vec<(u64, u32)>),
    /// Slices that the device has or had: the index of the request, and whether it is its last slice.
    slices: Vec<(usize, bool)>,
    /// Number of slices that are over.
    over: usize,
    fates: BTreeMap<usize, Status>,
    pub(crate) has_failed: bool,
    /// The program has got all completions of requests before this index.
    told: usize,
}

impl Life {
    pub(crate) fn new(qpn: u32, signal_all: bool) -> Self {
        Self {
            qpn,
            signal_all,
            ..Self::default()
        }
    }

    fn is_signaled(&self, index: usize) -> bool {
        self.signal_all || self.requests[index].flags.contains(SendFlags::SIGNALED)
    }

    /// Checks a slice that the device got: it belongs to the right request and has the right bytes.
    pub(crate) fn goes(&mut self, config: &PacingConfig, event: &Event) {
        let Event::Posted {
            op, payload, flags, ..
        } = event
        else {
            return;
        };
        // On the device every request is signaled.
        let flags = &(*flags | SendFlags::SIGNALED);
        let (mut index, mut done, mut seen) = std::mem::take(&mut self.posted);
        if self.has_failed {
            // The waiting requests were flushed without the device, which got a later one.
            let begins = |request: &Request| {
                let slice = Slice::of(config, request, 0);
                let same_bytes = match (&request.payload, payload) {
                    (Ok(all), Ok(found)) => {
                        let (all, found) = (places(all), places(found));
                        found.len() as u64 == slice.len && all.starts_with(&found)
                    }
                    (all, found) => all == found,
                };
                slice.op == *op && slice.flags == *flags && same_bytes
            };
            let from = index + usize::from(done > 0);
            let goes_on = done > 0 && Slice::of(config, &self.requests[index], done).op == *op;
            let found = (from..self.requests.len()).find(|at| begins(&self.requests[*at]));
            if let Some(found) = found.filter(|found| *found > index && !goes_on) {
                (index, done) = (found, 0);
                seen.clear();
            }
        }
        let request = &self.requests[index];
        let slice = Slice::of(config, request, done);
        assert_eq!(*op, slice.op, "request {index} from {done}");
        assert_eq!(*flags, slice.flags);
        let (here, is_last) = (slice.len, slice.is_last);
        match (payload, &request.payload) {
            (Ok(found), Ok(all)) => {
                let found = places(found);
                assert_eq!(found.len() as u64, here);
                seen.extend(found);
                assert!(!is_last || seen == places(all), "its bytes lie elsewhere");
            }
            (Err(found), Err(all)) => assert_eq!(found, all, "inline bytes of posting"),
            _ => panic!("inline and not"),
        }
        self.slices.push((index, is_last));
        self.posted = match is_last {
            true => (index + 1, 0, Vec::new()),
            false => (index, done + here, seen),
        };
    }

    pub(crate) fn ends(&mut self, status: Status) {
        let (index, is_last) = self.slices[self.over];
        self.over += 1;
        self.has_failed |= status != Status::Success;
        if status != Status::Success || is_last {
            self.fates.entry(index).or_insert(status);
        }
    }

    /// Checks a completion that the program got: of the next request that is signaled or that failed.
    pub(crate) fn tells(&mut self, done: &Completion) {
        let index = done.wr_id as u32 as usize;
        assert!(index >= self.told, "request {index} completes again");
        for earlier in self.told..index {
            let fate = self.fates.get(&earlier);
            assert!(
                fate == Some(&Status::Success) && !self.is_signaled(earlier),
                "request {index} is told of, and {earlier} was not: {fate:?}"
            );
        }
        match self.fates.get(&index) {
            Some(fate) => assert_eq!(done.status, *fate, "request {index}"),
            // The device did not get all slices of this request.
            None => {
                assert_eq!(done.status, Status::Flushed, "request {index}");
                assert!(self.has_failed, "flushed for nothing");
            }
        }
        let request = &self.requests[index];
        if done.status == Status::Success {
            assert!(self.is_signaled(index), "nobody asked");
            assert_eq!(done.opcode, opcode(&request.op));
            if done.opcode == Opcode::Read {
                assert_eq!(u64::from(done.byte_len), request.len());
            }
        }
        assert_eq!(done.qpn.raw(), self.qpn);
        assert_eq!(done.timestamp, Instant::ZERO, "nobody asked for one");
        self.told = index + 1;
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.requests.len() - self.told
    }

    /// Whether every request is over and the program got its completions.
    pub(crate) fn is_done(&self) -> bool {
        let mut left = self.told..self.requests.len();
        left.all(|index| {
            self.fates.get(&index) == Some(&Status::Success) && !self.is_signaled(index)
        })
    }
}

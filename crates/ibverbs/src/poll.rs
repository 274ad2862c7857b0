//! The hot path of polling: completions are taken in batches from the device onto the stack and
//! translated from there.

use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};

use headworks_verbs::{Completion, Instant};

use crate::abi;
use crate::convert::{self, CompletionFields};
use crate::raw::{Object, ObjectRef};

/// Completions taken from the device at a time.
const BATCH: usize = 16;

/// What a poll brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PollResult {
    pub(crate) count: usize,
    /// Whether a request failed, of those polled.
    pub(crate) failed: bool,
    /// The device said that the queue is broken.
    pub(crate) broken: bool,
}

/// A CQ's way to its completions.
pub(crate) enum Poller {
    /// The usual one.
    Plain(ObjectRef<abi::Cq>, abi::PollCq),
    /// Of a port that has a LID, as those have that send to it.
    WithLids(ObjectRef<abi::Cq>, abi::PollCq),
    /// With the device's timestamps, of a clock of so many kHz, and with LIDs or without. One thread at a time.
    Stamped(Mutex<Arc<Object<abi::Cq>>>, u64, bool),
}

impl Poller {
    /// Takes completions into `out`; each is given the time `now()`, asked once for a batch that is not
    /// empty, or the device's own.
    #[inline]
    pub(crate) fn poll(&self, out: &mut [Completion], now: impl Fn() -> Instant) -> PollResult {
        match self {
            Self::Plain(cq, poll) => plain::<false>(cq, *poll, out, now),
            _ => self.poll_rarer(out, now),
        }
    }

    /// The same of the others, which the usual one does not pay for.
    #[inline(never)]
    fn poll_rarer(&self, out: &mut [Completion], now: impl Fn() -> Instant) -> PollResult {
        match self {
            Self::Plain(cq, poll) => plain::<false>(cq, *poll, out, now),
            Self::WithLids(cq, poll) => plain::<true>(cq, *poll, out, now),
            Self::Stamped(cq, khz, lids) => stamped(cq, (*khz, *lids), out),
        }
    }
}

#[inline(always)]
fn plain<const LIDS: bool>(
    cq: &ObjectRef<abi::Cq>,
    poll: abi::PollCq,
    out: &mut [Completion],
    now: impl Fn() -> Instant,
) -> PollResult {
    match out.len() {
        ..=BATCH => batch::<LIDS>(cq, poll, out, now),
        _ => batches::<LIDS>(cq, poll, out, now),
    }
}

/// More than one batch, as long as they are full.
#[inline(never)]
fn batches<const LIDS: bool>(
    cq: &ObjectRef<abi::Cq>,
    poll: abi::PollCq,
    out: &mut [Completion],
    now: impl Fn() -> Instant,
) -> PollResult {
    let mut all = PollResult {
        count: 0,
        failed: false,
        broken: false,
    };
    for places in out.chunks_mut(BATCH) {
        let polled = batch::<LIDS>(cq, poll, places, &now);
        all.count += polled.count;
        all.failed |= polled.failed;
        all.broken = polled.broken;
        if polled.count < places.len() {
            break;
        }
    }
    all
}

/// By one call of the device.
#[inline(always)]
fn batch<const LIDS: bool>(
    cq: &ObjectRef<abi::Cq>,
    poll: abi::PollCq,
    places: &mut [Completion],
    now: impl Fn() -> Instant,
) -> PollResult {
    let mut polled = PollResult {
        count: 0,
        failed: false,
        broken: false,
    };
    let asked = places.len().min(BATCH);
    let mut wcs = [const { MaybeUninit::<abi::Wc>::uninit() }; BATCH];
    // SAFETY: a live CQ, and room for as many as are asked for.
    let got = unsafe { poll(cq.as_ptr(), asked as i32, wcs.as_mut_ptr().cast()) };
    if got <= 0 {
        polled.broken = got < 0;
        return polled;
    }
    polled.count = (got as usize).min(asked);
    let at = now();
    for (place, wc) in places[..polled.count].iter_mut().zip(&wcs) {
        // SAFETY: one of the first of which the device wrote these. A reference it is not: other fields may
        // be as they were.
        let (wr_id, status, qp_num) = unsafe {
            let wc = wc.as_ptr();
            ((*wc).wr_id, (*wc).status, (*wc).qp_num)
        };
        if status == 0 {
            let written = PlainCompletion::<LIDS>(wc.as_ptr());
            convert::complete(place, (wr_id, qp_num), &written, at);
        } else {
            polled.failed = true;
            *place = convert::failed(wr_id, status, qp_num, at);
        }
    }
    polled
}

/// A completion of a request that succeeded, as far as the device wrote it: made by [`plain`] only.
struct PlainCompletion<const LIDS: bool>(*const abi::Wc);

impl<const LIDS: bool> CompletionFields for PlainCompletion<LIDS> {
    #[inline(always)]
    fn opcode(&self) -> i32 {
        // SAFETY: a place of the batch; devices write this field of every request that succeeded.
        unsafe { (*self.0).opcode }
    }

    #[inline(always)]
    fn byte_len(&self) -> u32 {
        // SAFETY: as above, of requests that have a length.
        unsafe { (*self.0).byte_len }
    }

    #[inline(always)]
    fn wc_flags(&self) -> u32 {
        // SAFETY: as above, of receives.
        unsafe { (*self.0).wc_flags }
    }

    #[inline(always)]
    fn src_qp(&self) -> u32 {
        // SAFETY: as above, of receives.
        unsafe { (*self.0).src_qp }
    }

    #[inline(always)]
    fn slid(&self) -> u16 {
        match LIDS {
            // SAFETY: as above, of receives of ports that have a LID.
            true => unsafe { (*self.0).slid },
            false => 0,
        }
    }

    #[inline(always)]
    fn imm_data(&self) -> u32 {
        // SAFETY: as above, of receives whose flags say so.
        unsafe { (*self.0).imm_data }
    }
}

/// The same by the extended interface.
#[inline(never)]
fn stamped(
    cq: &Mutex<Arc<Object<abi::Cq>>>,
    (khz, lids): (u64, bool),
    out: &mut [Completion],
) -> PollResult {
    let cq = cq.lock().unwrap_or_else(PoisonError::into_inner);
    let mut polled = PollResult {
        count: 0,
        failed: false,
        broken: false,
    };
    if out.is_empty() {
        return polled;
    }
    let cq = cq.as_ptr().cast::<abi::CqEx>();
    // SAFETY: made by the extended call, with the fields that are read below; none is changed after that.
    let calls = unsafe { ExtendedCqOps::of(cq, lids) };
    let Some(calls) = calls else {
        polled.broken = true;
        return polled;
    };
    let mut attr = abi::PollCqAttr::default();
    // SAFETY: a live CQ that one thread polls at a time.
    let mut said = unsafe { (calls.start_poll)(cq, &mut attr) };
    if said != 0 {
        polled.broken = said != libc::ENOENT;
        return polled;
    }
    loop {
        // SAFETY: between a start that succeeded and the end there is a current completion.
        polled.failed |= unsafe { calls.current(cq, khz, &mut out[polled.count]) };
        polled.count += 1;
        if polled.count == out.len() {
            break;
        }
        // SAFETY: as above.
        said = unsafe { (calls.next_poll)(cq) };
        if said != 0 {
            polled.broken = said != libc::ENOENT;
            break;
        }
    }
    // SAFETY: ends what was started.
    unsafe { (calls.end_poll)(cq) };
    polled
}

/// The calls of an extended CQ.
struct ExtendedCqOps {
    start_poll: unsafe extern "C" fn(*mut abi::CqEx, *mut abi::PollCqAttr) -> i32,
    next_poll: unsafe extern "C" fn(*mut abi::CqEx) -> i32,
    end_poll: unsafe extern "C" fn(*mut abi::CqEx),
    read_opcode: unsafe extern "C" fn(*mut abi::CqEx) -> i32,
    read_byte_len: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    read_imm_data: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    read_qp_num: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    read_src_qp: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    read_wc_flags: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    /// Where that was asked for.
    read_slid: Option<unsafe extern "C" fn(*mut abi::CqEx) -> u32>,
    read_completion_ts: unsafe extern "C" fn(*mut abi::CqEx) -> u64,
}

impl ExtendedCqOps {
    /// # Safety
    ///
    /// `cq` is a live extended CQ.
    unsafe fn of(cq: *mut abi::CqEx, lids: bool) -> Option<Self> {
        // SAFETY: plain fields; none is written after the CQ was made.
        unsafe {
            Some(Self {
                start_poll: (*cq).start_poll?,
                next_poll: (*cq).next_poll?,
                end_poll: (*cq).end_poll?,
                read_opcode: (*cq).read_opcode?,
                read_byte_len: (*cq).read_byte_len?,
                read_imm_data: (*cq).read_imm_data?,
                read_qp_num: (*cq).read_qp_num?,
                read_src_qp: (*cq).read_src_qp?,
                read_wc_flags: (*cq).read_wc_flags?,
                read_slid: (*cq).read_slid.filter(|_| lids),
                read_completion_ts: (*cq).read_completion_ts?,
            })
        }
    }

    /// Writes the current completion to `place`. Whether it is of a request that failed.
    ///
    /// # Safety
    ///
    /// `cq` has a current completion.
    unsafe fn current(&self, cq: *mut abi::CqEx, khz: u64, place: &mut Completion) -> bool {
        // SAFETY: as the caller says. Of a failed one the opcode and what depends on it are not asked for.
        let (at, wr_id, status, qp_num) = unsafe {
            let at = Instant::from_nanos(convert::nanos((self.read_completion_ts)(cq), khz));
            (at, (*cq).wr_id, (*cq).status, (self.read_qp_num)(cq))
        };
        if status != 0 {
            *place = convert::failed(wr_id, status, qp_num, at);
            return true;
        }
        let current = CurrentCompletion { calls: self, cq };
        convert::complete(place, (wr_id, qp_num), &current, at);
        false
    }
}

/// The current completion of an extended CQ, of a request that succeeded: made by [`ExtendedCqOps::current`] only.
struct CurrentCompletion<'a> {
    calls: &'a ExtendedCqOps,
    cq: *mut abi::CqEx,
}

impl CompletionFields for CurrentCompletion<'_> {
    fn opcode(&self) -> i32 {
        // SAFETY: a live CQ with a current completion, which is asked for what it has.
        unsafe { (self.calls.read_opcode)(self.cq) }
    }

    fn byte_len(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (self.calls.read_byte_len)(self.cq) }
    }

    fn wc_flags(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (self.calls.read_wc_flags)(self.cq) }
    }

    fn src_qp(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (self.calls.read_src_qp)(self.cq) }
    }

    fn slid(&self) -> u16 {
        let Some(read) = self.calls.read_slid else {
            return 0;
        };
        // SAFETY: as above.
        u16::try_from(unsafe { read(self.cq) }).unwrap_or(0)
    }

    fn imm_data(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (self.calls.read_imm_data)(self.cq) }
    }
}

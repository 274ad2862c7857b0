//! The hot path of polling: completions are taken from the device onto the stack in batches and converted
//! there.

use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};

use headworks_verbs::{Completion, Instant};

use crate::abi;
use crate::convert::{self, CompletionFields};
use crate::raw::{Object, ObjectRef};

/// Most completions taken from the device with one call.
const BATCH: usize = 16;

/// Result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PollResult {
    /// Completions taken.
    pub(crate) count: u32,
    /// Whether any of the polled completions is of a failed request.
    pub(crate) failed: bool,
    /// Whether the device reported that the queue is broken.
    pub(crate) broken: bool,
}

/// How a CQ's completions are polled.
pub(crate) enum Poller {
    /// Polls without timestamps or LIDs: the usual case.
    Plain(ObjectRef<abi::Cq>, abi::PollCq),
    /// Polls with the sender's LID, because the port has a LID.
    WithLids(ObjectRef<abi::Cq>, abi::PollCq),
    /// Polls with timestamps of the device's clock, with its frequency in kHz, and with or without LIDs. One
    /// thread polls at a time.
    Stamped(Mutex<Arc<Object<abi::Cq>>>, u64, bool),
}

impl Poller {
    /// Takes completions into `out`. Their timestamp is the device's, or `now()`, called once per non-empty
    /// batch.
    #[inline]
    pub(crate) fn poll(&self, out: &mut [Completion], now: impl Fn() -> Instant) -> PollResult {
        match self {
            Self::Plain(cq, poll) => plain::<false>(cq, *poll, out, now),
            _ => self.poll_rarer(out, now),
        }
    }

    /// Polls in the other ways; separate so that the usual way does not pay for them.
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

/// Polls more than one batch, until one is not full.
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
        if (polled.count as usize) < places.len() {
            break;
        }
    }
    all
}

/// Polls one batch with one call of the device.
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
    // SAFETY: the CQ is alive, and `wcs` has room for as many completions as are asked for.
    let got = unsafe { poll(cq.as_ptr(), asked as i32, wcs.as_mut_ptr().cast()) };
    if got <= 0 {
        polled.broken = got < 0;
        return polled;
    }
    let got = (got as usize).min(asked);
    polled.count = got as u32;
    let at = now();
    for (place, wc) in places[..got].iter_mut().zip(&wcs) {
        // SAFETY: the device wrote these fields of the first `polled.count` completions. No reference is
        // made, because other fields may be uninitialised.
        let (wr_id, status, qp_num) = unsafe {
            let wc = wc.as_ptr();
            ((*wc).wr_id, (*wc).status, (*wc).qp_num)
        };
        if status == 0 {
            let written = PlainCompletion::<LIDS>(wc.as_ptr());
            convert::complete(place, (wr_id, qp_num), &written, at);
        } else {
            polled.failed = true;
            // SAFETY: as above.
            let vendor_err = unsafe { (*wc.as_ptr()).vendor_err };
            *place = convert::failed(wr_id, (status, vendor_err), qp_num, at);
        }
    }
    polled
}

/// Completion of a request that succeeded, as far as the device wrote it. Only `batch` makes one.
struct PlainCompletion<const LIDS: bool>(*const abi::Wc);

impl<const LIDS: bool> CompletionFields for PlainCompletion<LIDS> {
    #[inline(always)]
    fn opcode(&self) -> i32 {
        // SAFETY: the pointer is into the batch; devices write this field for every request that succeeded.
        unsafe { (*self.0).opcode }
    }

    #[inline(always)]
    fn byte_len(&self) -> u32 {
        // SAFETY: as above, for requests that have a length.
        unsafe { (*self.0).byte_len }
    }

    #[inline(always)]
    fn wc_flags(&self) -> u32 {
        // SAFETY: as above, for receives.
        unsafe { (*self.0).wc_flags }
    }

    #[inline(always)]
    fn src_qp(&self) -> u32 {
        // SAFETY: as above, for receives.
        unsafe { (*self.0).src_qp }
    }

    #[inline(always)]
    fn slid(&self) -> u16 {
        match LIDS {
            // SAFETY: as above, for receives of ports that have a LID.
            true => unsafe { (*self.0).slid },
            false => 0,
        }
    }

    #[inline(always)]
    fn imm_data(&self) -> u32 {
        // SAFETY: as above, for receives whose flags say so.
        unsafe { (*self.0).imm_data }
    }
}

/// Polls through the extended interface.
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
    // SAFETY: the extended call made the CQ, with the fields that are read below; none changes after that.
    let calls = unsafe { ExtendedCqOps::of(cq, lids) };
    let Some(calls) = calls else {
        polled.broken = true;
        return polled;
    };
    let mut attr = abi::PollCqAttr::default();
    // SAFETY: the CQ is alive, and the lock lets one thread poll at a time.
    let mut said = unsafe { (calls.start_poll)(cq, &mut attr) };
    if said != 0 {
        polled.broken = said != libc::ENOENT;
        return polled;
    }
    loop {
        // SAFETY: between a successful start and the end there is a current completion.
        polled.failed |= unsafe { calls.current(cq, khz, &mut out[polled.count as usize]) };
        polled.count += 1;
        if polled.count as usize == out.len() {
            break;
        }
        // SAFETY: as above.
        said = unsafe { (calls.next_poll)(cq) };
        if said != 0 {
            polled.broken = said != libc::ENOENT;
            break;
        }
    }
    // SAFETY: this ends the poll that was started above.
    unsafe { (calls.end_poll)(cq) };
    polled
}

/// Functions of an extended CQ.
struct ExtendedCqOps {
    start_poll: unsafe extern "C" fn(*mut abi::CqEx, *mut abi::PollCqAttr) -> i32,
    next_poll: unsafe extern "C" fn(*mut abi::CqEx) -> i32,
    end_poll: unsafe extern "C" fn(*mut abi::CqEx),
    read_opcode: unsafe extern "C" fn(*mut abi::CqEx) -> i32,
    read_byte_len: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    read_imm_data: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    read_vendor_err: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    read_qp_num: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    read_src_qp: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    read_wc_flags: unsafe extern "C" fn(*mut abi::CqEx) -> u32,
    /// Present if LIDs were asked for.
    read_slid: Option<unsafe extern "C" fn(*mut abi::CqEx) -> u32>,
    read_completion_ts: unsafe extern "C" fn(*mut abi::CqEx) -> u64,
}

impl ExtendedCqOps {
    /// The functions of `cq`; `None` if one is missing.
    ///
    /// # Safety
    ///
    /// `cq` is a live extended CQ.
    unsafe fn of(cq: *mut abi::CqEx, lids: bool) -> Option<Self> {
        // SAFETY: these are plain fields, and none is written after the CQ was made.
        unsafe {
            Some(Self {
                start_poll: (*cq).start_poll?,
                next_poll: (*cq).next_poll?,
                end_poll: (*cq).end_poll?,
                read_opcode: (*cq).read_opcode?,
                read_byte_len: (*cq).read_byte_len?,
                read_imm_data: (*cq).read_imm_data?,
                read_vendor_err: (*cq).read_vendor_err?,
                read_qp_num: (*cq).read_qp_num?,
                read_src_qp: (*cq).read_src_qp?,
                read_wc_flags: (*cq).read_wc_flags?,
                read_slid: (*cq).read_slid.filter(|_| lids),
                read_completion_ts: (*cq).read_completion_ts?,
            })
        }
    }

    /// Writes the current completion to `place`. Returns whether its request failed.
    ///
    /// # Safety
    ///
    /// `cq` has a current completion.
    unsafe fn current(&self, cq: *mut abi::CqEx, khz: u64, place: &mut Completion) -> bool {
        // SAFETY: as the caller guarantees. For a failed request, neither the opcode nor what depends on it
        // is read.
        let (at, wr_id, status, qp_num) = unsafe {
            let at = Instant::from_nanos(convert::nanos((self.read_completion_ts)(cq), khz));
            (at, (*cq).wr_id, (*cq).status, (self.read_qp_num)(cq))
        };
        if status != 0 {
            // SAFETY: as above. A failed request has this number.
            let vendor_err = unsafe { (self.read_vendor_err)(cq) };
            *place = convert::failed(wr_id, (status, vendor_err), qp_num, at);
            return true;
        }
        let current = CurrentCompletion { calls: self, cq };
        convert::complete(place, (wr_id, qp_num), &current, at);
        false
    }
}

/// Current completion of an extended CQ, of a request that succeeded. Only [`ExtendedCqOps::current`] makes
/// one.
struct CurrentCompletion<'a> {
    calls: &'a ExtendedCqOps,
    cq: *mut abi::CqEx,
}

impl CompletionFields for CurrentCompletion<'_> {
    fn opcode(&self) -> i32 {
        // SAFETY: the CQ is alive and has a current completion, which has this field.
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

//! Memory of the other end's: exporting it, and operations on it that its application has no part in.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;

use headworks_client::{Extent, LendTicket, Op, Operation, Outcomes};
use headworks_shm::ordered_copy::prefetch_object;

use super::shared_memory::SharedMemory;
use super::shared_session::Answer;
use super::stream::Stream;
use super::stream_half::WeakConnection;
use super::{ContractError, Outcome, Refusal, Rights, ServiceError, UNEXPECTED_ANSWER};

/// Operations of a connection that may be under way.
const SLOTS: usize = 256;
/// Bytes of what each says.
const SLOT: u32 = headworks_client::one_sided::RESULT_BYTES;

/// Memory that the other end of a connection may use: see [`Stream::export`]. It may change at any time, so that it is
/// copied from and to. Dropped, it is lost to the application for as long as that is attached.
pub struct Export {
    memory: ManuallyDrop<SharedMemory>,
    window: u32,
    of: WeakConnection,
    /// The request to take it back.
    revoking: Option<u32>,
}

impl Export {
    /// What both ends call it: the other one names it in its operations, once it was told.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.memory.view().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from it, from `at` on.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Operation`]: beyond it.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), ServiceError> {
        let read = self.memory.view().read(at, into);
        read.map_err(|_| ServiceError::Operation(Outcome::OutOfBounds))
    }

    /// Copies bytes to it, from `at` on.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Operation`]: beyond it.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), ServiceError> {
        let written = self.memory.view().write(at, bytes);
        written.map_err(|_| ServiceError::Operation(Outcome::OutOfBounds))
    }

    /// The aligned word at `at`.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Operation`]: beyond it, or not aligned.
    pub fn word(&self, at: usize) -> Result<u64, ServiceError> {
        match self.memory.view().atomic_u64(at) {
            Ok(word) => Ok(word.load(Ordering::Acquire)),
            Err(_) => Err(ServiceError::Operation(Outcome::OutOfBounds)),
        }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Export({}, {} bytes)", self.window, self.len())
    }
}

/// Memory that the other end may use still, for all that is known.
#[derive(Debug, thiserror::Error)]
#[error("memory is not taken back yet: {error}")]
pub struct RevokeError {
    /// The export, which is still in force.
    pub export: Export,
    /// Why it is still in force.
    #[source]
    pub error: ServiceError,
}

/// An operation that is under way: see [`Stream::finish`]. Dropped, its memory is lost to the application for as long
/// as that is attached.
pub struct RemoteOperation {
    memory: Option<ManuallyDrop<SharedMemory>>,
    outcomes: Outcomes,
    lent: LendTicket,
    of: WeakConnection,
    /// Until it is finished.
    slot: Option<u32>,
}

impl RemoteOperation {
    /// Whether it is over; [`Stream::finish`] does not wait then.
    pub fn is_over(&self) -> bool {
        self.slot.is_none() || self.outcomes.get().is_some()
    }

    /// The memory that it used, once it was [finished](Stream::finish): nobody touches it any more. `None` before, and
    /// after it was taken.
    pub fn take_memory(&mut self) -> Option<SharedMemory> {
        let memory = self.memory.take_if(|_| self.slot.is_none());
        memory.map(ManuallyDrop::into_inner)
    }
}

impl fmt::Debug for RemoteOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteOperation({:?})", self.outcomes.get())
    }
}

/// Where it is said what becomes of a connection's operations.
pub(super) struct ResultSlots {
    memory: ManuallyDrop<SharedMemory>,
    extent: Extent,
    free: Vec<u32>,
    /// Operations that nobody waits for any more, until they are over.
    orphans: Vec<RemoteOperation>,
}

impl Drop for ResultSlots {
    fn drop(&mut self) {
        // The daemon writes there until all of them are over.
        if self.free.len() == SLOTS {
            self.memory.give_back();
        }
    }
}

impl Stream {
    /// Lets the other end read, write or change memory, until it is [revoked](Self::revoke) or the connection is over.
    /// What is sent from now on can tell it of the [window](Export::window).
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`]: too many, memory of another service, or none. [`ServiceError::DaemonGone`].
    pub fn export(&mut self, memory: SharedMemory, rights: Rights) -> Result<Export, ServiceError> {
        self.export_from(&mut Some(memory), rights)
    }

    /// [`export`](Self::export), of memory that stays where it is if it cannot be exported.
    ///
    /// # Errors
    ///
    /// As [`Stream::export`], also where there is no memory.
    pub fn export_from(
        &mut self,
        place: &mut Option<SharedMemory>,
        rights: Rights,
    ) -> Result<Export, ServiceError> {
        let handle = self.handle();
        let memory = place.as_ref();
        let memory = memory.filter(|memory| memory.is_of(self.shared()) && !memory.is_empty());
        let Some(extent) = memory.map(SharedMemory::extent) else {
            return Err(ServiceError::Refused(Refusal::Misuse));
        };
        let asked =
            |session: &mut headworks_client::Session| session.export(handle, extent, rights);
        match self.shared().answer(None, asked)? {
            Answer::Exported(window) => Ok(Export {
                memory: ManuallyDrop::new(place.take().expect("seen above")),
                window,
                of: WeakConnection::from(&self.half.connection),
                revoking: None,
            }),
            _ => Err(UNEXPECTED_ANSWER.into()),
        }
    }

    /// Takes memory back, once nothing touches it for the other end: that is for the other host's daemon to say, or for the
    /// connection's end. The other end's operations fail from now on, also where this is not waited for.
    ///
    /// # Errors
    ///
    /// [`RevokeError`] has the export, to go on waiting for, and why that is not over: [`ServiceError::WouldBlock`],
    /// [`ServiceError::Deadline`], [`ServiceError::DaemonGone`]; [`ServiceError::Refused`]: another connection's end has
    /// it.
    pub fn revoke(&mut self, mut export: Export) -> Result<SharedMemory, Box<RevokeError>> {
        match self.revoked(&mut export) {
            Ok(()) => Ok(ManuallyDrop::into_inner(export.memory)),
            Err(error) => Err(Box::new(RevokeError { export, error })),
        }
    }

    fn revoked(&mut self, export: &mut Export) -> Result<(), ServiceError> {
        export.of.check(&self.half.connection)?;
        let (handle, window) = (self.handle(), export.window);
        let request = match export.revoking {
            Some(request) => request,
            None => self
                .shared()
                .request(None, |session| session.revoke(handle, window))?,
        };
        export.revoking = Some(request);
        let answer = match self.half.is_nonblocking {
            true => self.shared().answered(request)?,
            false => Some(self.shared().await_answer(request, self.half.deadline)?),
        };
        match answer {
            Some(Answer::Revoked) => Ok(()),
            Some(_) => Err(UNEXPECTED_ANSWER.into()),
            None => Err(ServiceError::WouldBlock),
        }
    }

    /// Begins to copy bytes of the other end's memory, from `at` in `window` on, to all of `memory`.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`]; and [`ServiceError::Refused`] where too many are under way. The memory is given back.
    pub fn read_start(
        &mut self,
        window: u32,
        at: u64,
        memory: SharedMemory,
    ) -> Result<RemoteOperation, ServiceError> {
        self.read_start_from(window, at, &mut Some(memory))
    }

    /// [`read_start`](Self::read_start), to memory that stays where it is if that cannot begin.
    ///
    /// # Errors
    ///
    /// As [`Stream::read_start`], also where there is no memory.
    pub fn read_start_from(
        &mut self,
        window: u32,
        at: u64,
        place: &mut Option<SharedMemory>,
    ) -> Result<RemoteOperation, ServiceError> {
        self.start(Op::Read, window, at, Some(place), [0; 2])
    }

    /// Begins to copy all of `memory` to the other end's memory, from `at` in `window` on.
    ///
    /// # Errors
    ///
    /// As [`Stream::read_start`].
    pub fn write_start(
        &mut self,
        window: u32,
        at: u64,
        memory: SharedMemory,
    ) -> Result<RemoteOperation, ServiceError> {
        self.write_start_from(window, at, &mut Some(memory))
    }

    /// [`write_start`](Self::write_start), of memory that stays where it is if that cannot begin.
    ///
    /// # Errors
    ///
    /// As [`Stream::read_start`], also where there is no memory.
    pub fn write_start_from(
        &mut self,
        window: u32,
        at: u64,
        place: &mut Option<SharedMemory>,
    ) -> Result<RemoteOperation, ServiceError> {
        self.start(Op::Write, window, at, Some(place), [0; 2])
    }

    /// Begins to add to the aligned word at `at` in `window`, modulo 2⁶⁴. The other end's daemon does that.
    ///
    /// # Errors
    ///
    /// As [`Stream::read_start`].
    pub fn fetch_add_start(
        &mut self,
        window: u32,
        at: u64,
        operand: u64,
    ) -> Result<RemoteOperation, ServiceError> {
        self.start(Op::FetchAdd, window, at, None, [operand, 0])
    }

    /// Begins to replace the aligned word at `at` in `window` by `new`, if it is `expected`.
    ///
    /// # Errors
    ///
    /// As [`Stream::read_start`].
    pub fn compare_swap_start(
        &mut self,
        window: u32,
        at: u64,
        expected: u64,
        new: u64,
    ) -> Result<RemoteOperation, ServiceError> {
        self.start(Op::CompareSwap, window, at, None, [new, expected])
    }

    /// Waits until an operation is over; of an atomic, the word as it was before. Its memory is
    /// [there](RemoteOperation::take_memory) then.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Operation`] says what became of it, where it is over and was not carried out. Else it is not over:
    /// [`ServiceError::WouldBlock`], [`ServiceError::Deadline`], [`ServiceError::Reset`],
    /// [`ServiceError::DaemonGone`]; [`ServiceError::Refused`]: another connection began it.
    pub fn finish(&mut self, operating: &mut RemoteOperation) -> Result<u64, ServiceError> {
        operating.of.check(&self.half.connection)?;
        let (outcomes, lent) = (operating.outcomes.clone(), operating.lent);
        let (outcome, before) = self.half.wait(|sending| {
            // In this order: what became of it is said before it is returned.
            let is_returned = sending.is_returned(lent)?;
            match (outcomes.get(), sending.status().reset) {
                (Some(over), _) => Ok((Some(over), false)),
                (None, _) if is_returned => Ok((Some((Outcome::Lost, 0)), false)),
                (None, Some(why)) => Err(ServiceError::Reset(why)),
                (None, None) => Ok((None, false)),
            }
        })?;
        if let Some(slot) = operating.slot.take() {
            self.free_slot(slot);
        }
        match outcome {
            Outcome::Done => Ok(before),
            outcome => Err(ServiceError::Operation(outcome)),
        }
    }

    /// [`read_start`](Self::read_start), and waits until it is over, also on a stream that blocks nobody.
    ///
    /// # Errors
    ///
    /// As those.
    pub fn read_from(
        &mut self,
        window: u32,
        at: u64,
        memory: SharedMemory,
    ) -> Result<SharedMemory, ServiceError> {
        let operating = self.read_start(window, at, memory)?;
        self.wait_with_memory(operating)
    }

    /// [`write_start`](Self::write_start), and waits until it is over, also on a stream that blocks nobody.
    ///
    /// # Errors
    ///
    /// As those.
    pub fn write_to(
        &mut self,
        window: u32,
        at: u64,
        memory: SharedMemory,
    ) -> Result<SharedMemory, ServiceError> {
        let operating = self.write_start(window, at, memory)?;
        self.wait_with_memory(operating)
    }

    /// [`fetch_add_start`](Self::fetch_add_start), and waits until it is over, also on a stream
    /// that blocks nobody. The word as it was before.
    ///
    /// # Errors
    ///
    /// As those.
    pub fn fetch_add(&mut self, window: u32, at: u64, operand: u64) -> Result<u64, ServiceError> {
        let operating = self.fetch_add_start(window, at, operand)?;
        self.wait_finished(operating).map(|(_, before)| before)
    }

    /// [`compare_swap_start`](Self::compare_swap_start), and waits until it is over, also on a stream
    /// that blocks nobody. The word as it was before.
    ///
    /// # Errors
    ///
    /// As those.
    pub fn compare_swap(
        &mut self,
        window: u32,
        at: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, ServiceError> {
        let operating = self.compare_swap_start(window, at, expected, new)?;
        self.wait_finished(operating).map(|(_, before)| before)
    }

    fn wait_with_memory(
        &mut self,
        operating: RemoteOperation,
    ) -> Result<SharedMemory, ServiceError> {
        let (memory, _) = self.wait_finished(operating)?;
        memory.ok_or_else(|| UNEXPECTED_ANSWER.into())
    }

    /// Waits until an operation is over. One that is not, is looked after until it is.
    fn wait_finished(
        &mut self,
        mut operating: RemoteOperation,
    ) -> Result<(Option<SharedMemory>, u64), ServiceError> {
        let was_nonblocking = self.half.is_nonblocking;
        self.half.is_nonblocking = false;
        let finished = self.finish(&mut operating);
        self.half.is_nonblocking = was_nonblocking;
        let memory = operating.take_memory();
        if operating.slot.is_some()
            && let Some(slots) = &mut self.slots
        {
            slots.orphans.push(operating);
        }
        Ok((memory, finished?))
    }

    /// Has what belonged to operations that nobody waits for, and that are over by now.
    fn reap(&mut self) -> Result<(), ServiceError> {
        let Some(slots) = &mut self.slots else {
            return Ok(());
        };
        let sending = &mut self.half.half;
        for mut orphan in std::mem::take(&mut slots.orphans) {
            // In this order: what became of it is said before it is returned.
            let is_over = sending.is_returned(orphan.lent)? || orphan.outcomes.get().is_some();
            match orphan.slot.take_if(|_| is_over) {
                Some(slot) => {
                    slots.free.push(slot);
                    drop(orphan.take_memory());
                }
                None => slots.orphans.push(orphan),
            }
        }
        Ok(())
    }

    fn start(
        &mut self,
        op: Op,
        window: u32,
        at: u64,
        place: Option<&mut Option<SharedMemory>>,
        [operand, compare]: [u64; 2],
    ) -> Result<RemoteOperation, ServiceError> {
        prefetch_object(self);
        self.half.half.expect();
        let local = match &place {
            None => None,
            Some(Some(memory)) if memory.is_of(self.shared()) && !memory.is_empty() => {
                Some(memory.extent())
            }
            Some(_) => return Err(ServiceError::Refused(Refusal::Misuse)),
        };
        let (result, slot) = self.slot()?;
        let outcomes = Outcomes::at(self.half.half.slabs(), result);
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => {
                self.free_slot(slot);
                return Err(error.into());
            }
        };
        outcomes.clear();
        let operation = Operation {
            op,
            window,
            at,
            local: local.unwrap_or(result),
            operand,
            compare,
            result,
        };
        let asked = self.half.wait(|sending| {
            if let Some(why) = sending.status().reset {
                return Err(ServiceError::Reset(why));
            }
            match sending.operate(&operation)? {
                (Some(lent), wakes) => Ok((Some(lent), wakes)),
                _ if sending.is_ended() => Err(ServiceError::Ended),
                (None, wakes) => Ok((None, wakes)),
            }
        });
        let lent = match asked {
            Ok(lent) => lent,
            Err(error) => {
                self.free_slot(slot);
                return Err(error);
            }
        };
        Ok(RemoteOperation {
            memory: place.and_then(Option::take).map(ManuallyDrop::new),
            outcomes,
            lent,
            of: WeakConnection::from(&self.half.connection),
            slot: Some(slot),
        })
    }

    fn free_slot(&mut self, slot: u32) {
        if let Some(slots) = &mut self.slots {
            slots.free.push(slot);
        }
    }

    /// Where it is said what becomes of the next operation.
    fn slot(&mut self) -> Result<(Extent, u32), ServiceError> {
        self.shared().check()?;
        self.reap()?;
        if self.slots.is_none() {
            let bytes = SLOTS as u32 * SLOT;
            let answer = self.shared().answer(None, |session| session.alloc(bytes))?;
            let Answer::Allocated(extent) = answer else {
                return Err(ContractError::Message("another answer").into());
            };
            let memory = SharedMemory::new(self.shared(), extent, bytes)?;
            self.half.refresh()?;
            self.slots = Some(ResultSlots {
                memory: ManuallyDrop::new(memory),
                extent,
                free: (0..SLOTS as u32).collect(),
                orphans: Vec::new(),
            });
        }
        let slots = self.slots.as_mut().expect("made above");
        let slot = slots.free.pop();
        let slot = slot.ok_or(ServiceError::Refused(Refusal::Limit))?;
        Ok((slots.extent.part(slot * SLOT, SLOT), slot))
    }
}

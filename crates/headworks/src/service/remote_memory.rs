//! One-sided operations: exports memory to the other end, and accesses memory that the other end exported.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;

use headworks_client::connection::Wake;
use headworks_client::{Extent, LendTicket, Op, Operation, Outcomes};
use headworks_shm::ordered_copy::prefetch_object;

use super::shared_memory::SharedMemory;
use super::shared_session::Answer;
use super::stream::{SendSide, Stream};
use super::stream_half::{CallLimits, HalfGuard, WeakConnection};
use super::{ContractError, Outcome, Refusal, Rights, ServiceError, UNEXPECTED_ANSWER};

/// Limit on a connection's operations in flight.
const SLOTS: usize = 256;
/// Bytes of an operation's result.
const SLOT: u32 = headworks_client::one_sided::RESULT_BYTES;

/// Memory that the other end of a connection may use: see [`Stream::export`]. It may change at any time, so
/// it is only copied from and to. If it is dropped, the application loses the memory for as long as it is
/// attached.
pub struct Export {
    memory: ManuallyDrop<SharedMemory>,
    export_id: u32,
    of: WeakConnection,
    /// The request to revoke it, once that was sent.
    revoking: Option<u32>,
}

impl Export {
    /// Returns its number, which the other end names in operations. The application must tell the other end.
    pub fn id(&self) -> u32 {
        self.export_id
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        self.memory.view().len()
    }

    /// Whether its length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from it, starting at `at`.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Operation`] if the bytes are out of bounds.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), ServiceError> {
        let read = self.memory.view().read(at, into);
        read.map_err(|_| ServiceError::Operation(Outcome::OutOfBounds))
    }

    /// Copies bytes to it, starting at `at`.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Operation`] if the bytes are out of bounds.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), ServiceError> {
        let written = self.memory.view().write(at, bytes);
        written.map_err(|_| ServiceError::Operation(Outcome::OutOfBounds))
    }

    /// Returns the aligned word at `at`.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Operation`] if the word is out of bounds or not aligned.
    pub fn word(&self, at: usize) -> Result<u64, ServiceError> {
        match self.memory.view().atomic_u64(at) {
            Ok(word) => Ok(word.load(Ordering::Acquire)),
            Err(_) => Err(ServiceError::Operation(Outcome::OutOfBounds)),
        }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Export({}, {} bytes)", self.export_id, self.len())
    }
}

/// A revocation that is not complete: the other end may still use the memory.
#[derive(Debug, thiserror::Error)]
#[error("the memory is not revoked yet: {error}")]
pub struct RevokeError {
    /// The export, which is still in force.
    pub export: Export,
    /// Reason for which the export is still in force.
    #[source]
    pub error: ServiceError,
}

/// An operation in flight: see [`Stream::finish`]. If it is dropped, the application loses its memory for as
/// long as it is attached.
pub struct RemoteOperation {
    memory: Option<ManuallyDrop<SharedMemory>>,
    outcomes: Outcomes,
    lent: LendTicket,
    of: WeakConnection,
    /// Number of its result slot, until it is finished.
    slot: Option<u32>,
}

impl RemoteOperation {
    /// Whether it is over; then [`Stream::finish`] does not wait.
    pub fn is_over(&self) -> bool {
        self.slot.is_none() || self.outcomes.get().is_some()
    }

    /// Takes the memory that it used, once it was [finished](Stream::finish) and nobody accesses it any more.
    /// `None` before, and after it was taken.
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

/// Memory for the results of a connection's operations.
pub(super) struct ResultSlots {
    memory: ManuallyDrop<SharedMemory>,
    extent: Extent,
    free: Vec<u32>,
    /// Operations that no caller waits for any more, kept until they are over.
    orphans: Vec<RemoteOperation>,
}

impl Drop for ResultSlots {
    fn drop(&mut self) {
        // The daemon writes to the slots until all operations are over.
        if self.free.len() == SLOTS {
            self.memory.give_back();
        }
    }
}

impl Stream {
    /// Lets the other end read, write or change memory, until it is [revoked](Self::revoke) or the connection
    /// is over. Bytes sent from now on can tell the other end of the [export](Export::id).
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`]: too many exports, memory of another service, or empty memory.
    /// [`ServiceError::DaemonGone`].
    pub fn export(&mut self, memory: SharedMemory, rights: Rights) -> Result<Export, ServiceError> {
        self.export_from(&mut Some(memory), rights)
    }

    /// Like [`export`](Self::export), but leaves the memory in `place` if it cannot be exported.
    ///
    /// # Errors
    ///
    /// As [`Stream::export`], also if `place` is empty.
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
            Answer::Exported(export_id) => {
                // The other end's daemon hears of the export before the other end does.
                self.writer.side()?.half.half.divert();
                Ok(Export {
                    memory: ManuallyDrop::new(place.take().expect("seen above")),
                    export_id,
                    of: WeakConnection::from(&self.writer.connection),
                    revoking: None,
                })
            }
            _ => Err(UNEXPECTED_ANSWER.into()),
        }
    }

    /// Takes memory back once nothing accesses it for the other end. The other host's daemon confirms that,
    /// or the connection's end does. The other end's operations fail from this call on, even if the call does
    /// not wait.
    ///
    /// # Errors
    ///
    /// [`RevokeError`] returns the export, to wait for it again, and tells why the revocation is not
    /// complete: [`ServiceError::WouldBlock`], [`ServiceError::Deadline`], [`ServiceError::DaemonGone`], or
    /// [`ServiceError::Refused`] if another connection exported it.
    pub fn revoke(&mut self, mut export: Export) -> Result<SharedMemory, Box<RevokeError>> {
        match self.revoked(&mut export) {
            Ok(()) => Ok(ManuallyDrop::into_inner(export.memory)),
            Err(error) => Err(Box::new(RevokeError { export, error })),
        }
    }

    fn revoked(&mut self, export: &mut Export) -> Result<(), ServiceError> {
        export.of.check(&self.writer.connection)?;
        let (handle, export_id) = (self.handle(), export.export_id);
        let request = match export.revoking {
            Some(request) => request,
            None => self
                .shared()
                .request(None, |session| session.revoke(handle, export_id))?,
        };
        export.revoking = Some(request);
        let limits = &self.writer.limits;
        let answer = match limits.is_nonblocking {
            true => self.shared().answered(request)?,
            false => Some(self.shared().await_answer(request, limits.until())?),
        };
        match answer {
            Some(Answer::Revoked) => Ok(()),
            Some(_) => Err(UNEXPECTED_ANSWER.into()),
            None => Err(ServiceError::WouldBlock),
        }
    }

    /// Starts to copy bytes of the other end's memory, from offset `at` in `export_id`, to all of `memory`.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`]; and [`ServiceError::Refused`] if too many operations are in flight. The memory is
    /// then freed.
    pub fn read_start(
        &mut self,
        export_id: u32,
        at: u64,
        memory: SharedMemory,
    ) -> Result<RemoteOperation, ServiceError> {
        self.read_start_from(export_id, at, &mut Some(memory))
    }

    /// Like [`read_start`](Self::read_start), but leaves the memory in `place` if the operation cannot start.
    ///
    /// # Errors
    ///
    /// As [`Stream::read_start`], also if `place` is empty.
    pub fn read_start_from(
        &mut self,
        export_id: u32,
        at: u64,
        place: &mut Option<SharedMemory>,
    ) -> Result<RemoteOperation, ServiceError> {
        let (limits, mut side) = self.side()?;
        side.start(&limits, Op::Read, export_id, at, Some(place), [0; 2])
    }

    /// Starts to copy all of `memory` to the other end's memory, at offset `at` in `export_id`.
    ///
    /// # Errors
    ///
    /// As [`Stream::read_start`].
    pub fn write_start(
        &mut self,
        export_id: u32,
        at: u64,
        memory: SharedMemory,
    ) -> Result<RemoteOperation, ServiceError> {
        self.write_start_from(export_id, at, &mut Some(memory))
    }

    /// Like [`write_start`](Self::write_start), but leaves the memory in `place` if the operation cannot
    /// start.
    ///
    /// # Errors
    ///
    /// As [`Stream::read_start`], also if `place` is empty.
    pub fn write_start_from(
        &mut self,
        export_id: u32,
        at: u64,
        place: &mut Option<SharedMemory>,
    ) -> Result<RemoteOperation, ServiceError> {
        let (limits, mut side) = self.side()?;
        side.start(&limits, Op::Write, export_id, at, Some(place), [0; 2])
    }

    /// Starts to add to the aligned word at `at` in `export_id`, modulo 2⁶⁴. The other end's daemon executes it.
    ///
    /// # Errors
    ///
    /// As [`Stream::read_start`].
    pub fn fetch_add_start(
        &mut self,
        export_id: u32,
        at: u64,
        operand: u64,
    ) -> Result<RemoteOperation, ServiceError> {
        let (limits, mut side) = self.side()?;
        side.start(&limits, Op::FetchAdd, export_id, at, None, [operand, 0])
    }

    /// Starts to replace the aligned word at `at` in `export_id` by `new`, if it is `expected`.
    ///
    /// # Errors
    ///
    /// As [`Stream::read_start`].
    pub fn compare_swap_start(
        &mut self,
        export_id: u32,
        at: u64,
        expected: u64,
        new: u64,
    ) -> Result<RemoteOperation, ServiceError> {
        let (limits, mut side) = self.side()?;
        side.start(
            &limits,
            Op::CompareSwap,
            export_id,
            at,
            None,
            [new, expected],
        )
    }

    /// Waits until an operation is over. For an atomic, returns the word's previous value. Its memory can be
    /// [taken](RemoteOperation::take_memory) then.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Operation`] if it is over and was not executed. For all other errors it is not over:
    /// [`ServiceError::WouldBlock`], [`ServiceError::Deadline`], [`ServiceError::Reset`],
    /// [`ServiceError::DaemonGone`], or [`ServiceError::Refused`] if another connection started it.
    pub fn finish(&mut self, operating: &mut RemoteOperation) -> Result<u64, ServiceError> {
        let (limits, mut side) = self.side()?;
        side.finish(&limits, operating)
    }

    /// Returns this handle's limits, and borrows the sending half.
    fn side(&mut self) -> Result<(CallLimits, HalfGuard<'_, SendSide>), ServiceError> {
        let limits = self.writer.limits;
        Ok((limits, self.writer.side()?))
    }

    /// Calls [`read_start`](Self::read_start) and waits until the operation is over, even on a nonblocking
    /// stream.
    ///
    /// # Errors
    ///
    /// As [`Stream::read_start`] and [`Stream::finish`].
    pub fn read_from(
        &mut self,
        export_id: u32,
        at: u64,
        memory: SharedMemory,
    ) -> Result<SharedMemory, ServiceError> {
        let operating = self.read_start(export_id, at, memory)?;
        self.wait_with_memory(operating)
    }

    /// Calls [`write_start`](Self::write_start) and waits until the operation is over, even on a nonblocking
    /// stream.
    ///
    /// # Errors
    ///
    /// As [`Stream::write_start`] and [`Stream::finish`].
    pub fn write_to(
        &mut self,
        export_id: u32,
        at: u64,
        memory: SharedMemory,
    ) -> Result<SharedMemory, ServiceError> {
        let operating = self.write_start(export_id, at, memory)?;
        self.wait_with_memory(operating)
    }

    /// Calls [`fetch_add_start`](Self::fetch_add_start) and waits until the operation is over, even on a
    /// nonblocking stream. Returns the word's previous value.
    ///
    /// # Errors
    ///
    /// As [`Stream::fetch_add_start`] and [`Stream::finish`].
    pub fn fetch_add(
        &mut self,
        export_id: u32,
        at: u64,
        operand: u64,
    ) -> Result<u64, ServiceError> {
        let operating = self.fetch_add_start(export_id, at, operand)?;
        self.wait_finished(operating).map(|(_, before)| before)
    }

    /// Calls [`compare_swap_start`](Self::compare_swap_start) and waits until the operation is over, even on
    /// a nonblocking stream. Returns the word's previous value.
    ///
    /// # Errors
    ///
    /// As [`Stream::compare_swap_start`] and [`Stream::finish`].
    pub fn compare_swap(
        &mut self,
        export_id: u32,
        at: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, ServiceError> {
        let operating = self.compare_swap_start(export_id, at, expected, new)?;
        self.wait_finished(operating).map(|(_, before)| before)
    }

    fn wait_with_memory(
        &mut self,
        operating: RemoteOperation,
    ) -> Result<SharedMemory, ServiceError> {
        let (memory, _) = self.wait_finished(operating)?;
        memory.ok_or_else(|| UNEXPECTED_ANSWER.into())
    }

    fn wait_finished(
        &mut self,
        operating: RemoteOperation,
    ) -> Result<(Option<SharedMemory>, u64), ServiceError> {
        let (limits, mut side) = self.side()?;
        side.wait_finished(&limits, operating)
    }
}

impl SendSide {
    fn finish(
        &mut self,
        limits: &CallLimits,
        operating: &mut RemoteOperation,
    ) -> Result<u64, ServiceError> {
        operating.of.check(&self.half.connection)?;
        let (outcomes, lent) = (operating.outcomes.clone(), operating.lent);
        let (outcome, before) = self.half.wait(limits, |sending| {
            // The order matters: the daemon writes the outcome before it returns the record.
            let is_returned = sending.is_returned(lent)?;
            match (outcomes.get(), sending.status().reset) {
                (Some(over), _) => Ok((Some(over), Wake::No)),
                (None, _) if is_returned => Ok((Some((Outcome::Lost, 0)), Wake::No)),
                (None, Some(why)) => Err(ServiceError::Reset(why)),
                (None, None) => Ok((None, Wake::No)),
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

    /// Waits until an operation is over. If the wait fails before that, keeps the operation as an orphan.
    fn wait_finished(
        &mut self,
        limits: &CallLimits,
        mut operating: RemoteOperation,
    ) -> Result<(Option<SharedMemory>, u64), ServiceError> {
        let waits = CallLimits {
            is_nonblocking: false,
            ..*limits
        };
        let finished = self.finish(&waits, &mut operating);
        let memory = operating.take_memory();
        if operating.slot.is_some()
            && let Some(slots) = &mut self.slots
        {
            slots.orphans.push(operating);
        }
        Ok((memory, finished?))
    }

    /// Frees the slots and memory of orphans that are over by now.
    fn reap(&mut self) -> Result<(), ServiceError> {
        let Some(slots) = &mut self.slots else {
            return Ok(());
        };
        let sending = &mut self.half.half;
        for mut orphan in std::mem::take(&mut slots.orphans) {
            // The order matters: the daemon writes the outcome before it returns the record.
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
        limits: &CallLimits,
        op: Op,
        export_id: u32,
        at: u64,
        place: Option<&mut Option<SharedMemory>>,
        [operand, compare]: [u64; 2],
    ) -> Result<RemoteOperation, ServiceError> {
        prefetch_object(self);
        self.half.half.expect();
        let local = match &place {
            None => None,
            Some(Some(memory))
                if memory.is_of(&self.half.connection.shared) && !memory.is_empty() =>
            {
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
            export_id,
            at,
            local: local.unwrap_or(result),
            operand,
            compare,
            result,
        };
        let asked = self.half.wait(limits, |sending| {
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

    /// Takes a result slot for the next operation.
    fn slot(&mut self) -> Result<(Extent, u32), ServiceError> {
        self.half.connection.shared.check()?;
        self.reap()?;
        if self.slots.is_none() {
            let bytes = SLOTS as u32 * SLOT;
            let answer = self
                .half
                .connection
                .shared
                .answer(None, |session| session.alloc(bytes))?;
            let Answer::Allocated(extent) = answer else {
                return Err(ContractError::Message("another answer").into());
            };
            let memory = SharedMemory::new(&self.half.connection.shared, extent, bytes)?;
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

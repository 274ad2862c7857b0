//! One-sided operations that an application requests. This side executes READs and WRITEs, piece by piece;
//! the peer executes atomics.

use headworks_client::{Op, Outcome, Vqpn};
use headworks_verbs::RemoteAddr;

use super::{ATOMICS, EgressHalf, InvalidRecord, PartialOperation, PendingOperation, SendStep};
use crate::frame::{ATOMIC, Atomic, Header, Kind};
use crate::limits::DaemonLimits;
use crate::qp_group::{QpGroup, QpRole};
use crate::send_queue::OnCompletion;
use crate::session_memory::SessionMemory;

impl EgressHalf {
    /// Takes a turn at a one-sided operation.
    pub(super) fn operate(
        &mut self,
        asking: PartialOperation,
        (own, to): (Vqpn, Vqpn),
        memory: &SessionMemory,
        group: &mut QpGroup,
        is_short: bool,
        config: &DaemonLimits,
    ) -> SendStep {
        let PartialOperation { operation, done } = asking;
        let end = self.flights.back().map_or(0, |flight| flight.end);
        let len = if operation.op.is_atomic() {
            8
        } else {
            operation.local.len
        };
        let target = match self.imports.target(&operation, len) {
            Ok(target) => target,
            Err(outcome) => {
                self.fail(outcome);
                return SendStep::Asked(64);
            }
        };
        let is_full = match operation.op.is_atomic() {
            true => self.atomics >= ATOMICS,
            false => self.bulk - self.atomics >= config.bulk_each,
        };
        if is_full {
            // The next completion or answer schedules the connection again.
            return SendStep::Nothing;
        }
        if operation.op.is_atomic() {
            if !group.may_send() {
                return SendStep::Blocked;
            }
            let atomic = Atomic {
                export_id: operation.export_id,
                at: operation.at,
                operand: operation.operand,
                compare: operation.compare,
            };
            let (view, at, _) = group.body();
            let written = view.write(at, &atomic.emit());
            debug_assert_eq!(written, Ok(()));
            let header = Header {
                at: end,
                code: operation.op as u8,
                is_short,
                len: ATOMIC as u32,
                ..Header::of(Kind::Atomic)
            };
            group.send(QpRole::Frames, to, header, ATOMIC, OnCompletion::Nothing);
            self.atomics += 1;
            self.asked(None);
            return SendStep::Asked(64);
        }
        let piece = (len - done).min(config.bulk_max);
        let remote = RemoteAddr {
            addr: target.addr.wrapping_add(done.into()),
            rkey: target.rkey,
        };
        let local = memory.sge(operation.local.part(done, piece));
        match operation.op {
            Op::Read if !group.may_read() => return SendStep::Full,
            Op::Read => {
                group.bulk.read(local, remote, OnCompletion::Got(own, end));
                group.reads += 1;
            }
            _ if group.bulk.room() == 0 => return SendStep::Full,
            _ => group
                .bulk
                .write(local, remote, OnCompletion::Sent(own, end)),
        }
        let done = done + piece;
        self.asked((done < len).then_some(PartialOperation { operation, done }));
        SendStep::Asked(piece)
    }

    /// Counts a piece of the latest operation as issued. `left` is the rest of the operation.
    fn asked(&mut self, left: Option<PartialOperation>) {
        self.bulk += 1;
        self.asking = left;
        if let Some(flight) = self.flights.back_mut() {
            flight.pending += 1;
            flight.is_issued = left.is_none();
        }
    }

    /// Ends the latest operation early. Pieces that were issued before may be in flight.
    fn fail(&mut self, outcome: Outcome) {
        self.asking = None;
        if let Some(flight) = self.flights.back_mut() {
            flight.is_issued = true;
            if let Some(operating) = &mut flight.operation {
                operating.outcome = outcome;
            }
        }
        self.conclude(self.flights.len().saturating_sub(1), 0);
        self.settle();
    }

    /// Stores the outcome of an operation if the operation is done.
    pub(super) fn conclude(&mut self, flight: usize, before: u64) {
        let Some(flight) = self.flights.get_mut(flight) else {
            return;
        };
        let is_over = flight.pending == 0 && flight.is_issued;
        if let Some(operating) = flight.operation.take_if(|_| is_over) {
            operating.outcomes.set(operating.outcome, before);
            self.done += 1;
        }
    }

    /// Handles the peer's answer to an atomic.
    pub(crate) fn answered(
        &mut self,
        end: u64,
        outcome: Outcome,
        before: u64,
    ) -> Result<(), InvalidRecord> {
        let at = self.flights.iter().position(|flight| flight.end == end);
        let flight = at
            .and_then(|at| self.flights.get_mut(at))
            .ok_or(InvalidRecord)?;
        let of = |operating: &&mut PendingOperation| operating.is_atomic;
        let operating = flight.operation.as_mut().filter(of).ok_or(InvalidRecord)?;
        if flight.pending == 0 {
            return Err(InvalidRecord);
        }
        operating.outcome = outcome;
        self.atomics -= 1;
        self.retired(end, before);
        Ok(())
    }

    /// Whether an operation that is not done uses an exported range.
    pub(crate) fn uses(&self, export_id: u32) -> bool {
        let all = self
            .flights
            .iter()
            .filter_map(|flight| flight.operation.as_ref());
        all.into_iter()
            .any(|operating| operating.export_id == export_id)
    }

    /// Total number of operations that are done.
    pub(crate) fn operations_done(&self) -> u64 {
        self.done
    }
}

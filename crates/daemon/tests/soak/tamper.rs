//! One-sided operations beside a stream, on memory that the other end may have exported, and with arbitrary
//! bounds. What they copy is not checked here. The tests check that each operation ends and harms nothing
//! else.

use headworks_client::connection::Connection;
use headworks_client::{Extent, LendTicket, Op, Operation, Outcomes, Rights, Session};

use super::application::mix;

/// Bytes of memory: the exported part, the local part of operations, and the words for outcomes.
pub(crate) const MEMORY: u32 = 8192;
const EXPORTED: u32 = 4096;
const LOCAL: u32 = 2048;
/// Number of operations in all. `UNDER_WAY` is the maximum at a time.
const OPERATIONS: u32 = 48;
const UNDER_WAY: usize = 8;

/// One-sided operations of one connection.
#[derive(Default)]
pub(crate) struct SideTraffic {
    noise: u64,
    pub(crate) has_asked: bool,
    pub(crate) memory: Option<Extent>,
    /// Request that exports the memory.
    pub(crate) exporting: Option<u32>,
    has_revoked: bool,
    pub(crate) export_id: Option<u32>,
    asked: u32,
    under_way: Vec<(u32, Outcomes, LendTicket)>,
    pub(crate) done: u32,
}

impl SideTraffic {
    pub(crate) fn new(noise: u64) -> Self {
        Self {
            noise,
            ..Self::default()
        }
    }

    /// Returns whether it waits for memory.
    pub(crate) fn wants_memory(&self) -> bool {
        self.has_asked && self.memory.is_none()
    }

    /// Returns whether an operation is under way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Does a little and returns whether it did anything.
    pub(crate) fn step(
        &mut self,
        session: &mut Session,
        connection: &mut Connection,
    ) -> Result<bool, String> {
        let Some(memory) = self.memory else {
            return Ok(false);
        };
        let handle = connection.handle();
        if self.exporting.is_none() {
            let request = session.export(handle, memory.part(0, EXPORTED), Rights::ALL);
            self.exporting = Some(request);
        }
        // It revokes the export half-way, whatever the other end does with the memory.
        if let Some(export_id) = self.export_id.filter(|_| self.asked > OPERATIONS / 2)
            && !self.has_revoked
        {
            self.has_revoked = true;
            session.revoke(handle, export_id);
        }
        let before = self.under_way.len();
        self.under_way.retain(|(_, outcomes, lent)| {
            // The daemon stores the outcome before it returns the record, hence this order.
            !connection.sending.is_returned(*lent).unwrap_or(false) && outcomes.get().is_none()
        });
        self.done += (before - self.under_way.len()) as u32;
        let mut did = before != self.under_way.len();
        while self.asked < OPERATIONS && self.under_way.len() < UNDER_WAY {
            match self.ask(session, connection, memory) {
                Ok(true) => did = true,
                Ok(false) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(did)
    }

    fn ask(
        &mut self,
        session: &Session,
        connection: &mut Connection,
        memory: Extent,
    ) -> Result<bool, String> {
        self.noise = mix(self.noise.wrapping_add(0x9e37_79b9));
        let noise = self.noise;
        let ops = [Op::Read, Op::Write, Op::FetchAdd, Op::CompareSwap];
        let len = 1 + (noise >> 8) as u32 % LOCAL;
        let taken = |slot: &u32| self.under_way.iter().any(|(of, _, _)| of == slot);
        let slot = (0..UNDER_WAY as u32).find(|slot| !taken(slot));
        let slot = slot.expect("fewer are under way");
        let result = memory.part(EXPORTED + LOCAL + slot * 16, 16);
        let outcomes = Outcomes::at(session.slabs(), result).map_err(|error| error.to_string())?;
        outcomes.clear();
        let operation = Operation {
            op: ops[noise as usize % 4],
            export_id: 1 + (noise >> 40) as u32 % 2,
            at: (noise >> 24) % 600 * 8 + u64::from(noise >> 60 == 0),
            local: memory.part(EXPORTED, len),
            operand: 1,
            compare: 0,
            result,
        };
        let (asked, _) = connection
            .sending
            .operate(&operation)
            .map_err(|error| error.to_string())?;
        if let Some(lent) = asked {
            self.asked += 1;
            self.under_way.push((slot, outcomes, lent));
        }
        Ok(asked.is_some())
    }
}

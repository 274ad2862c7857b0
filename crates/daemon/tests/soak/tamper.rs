//! One-sided operations beside a stream: on memory that the other end may have exported, with any bounds. What they
//! copy is nobody's business here; that each of them ends, and harms nothing else, is.

use headworks_client::connection::Connection;
use headworks_client::{Extent, LendTicket, Op, Operation, Outcomes, Rights, Session};

use super::application::mix;

/// Bytes of memory: that which is exported, that which is copied from and to, and where outcomes are said.
pub(crate) const MEMORY: u32 = 8192;
const EXPORTED: u32 = 4096;
const LOCAL: u32 = 2048;
/// Operations that are asked for in all, and that are under way at a time.
const OPERATIONS: u32 = 48;
const UNDER_WAY: usize = 8;

/// What a connection's application does beside its stream.
#[derive(Default)]
pub(crate) struct SideTraffic {
    noise: u64,
    pub(crate) has_asked: bool,
    pub(crate) memory: Option<Extent>,
    /// The request by which it was exported.
    pub(crate) exporting: Option<u32>,
    has_revoked: bool,
    pub(crate) window: Option<u32>,
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

    /// Whether it waits for memory.
    pub(crate) fn wants_memory(&self) -> bool {
        self.has_asked && self.memory.is_none()
    }

    /// Whether an operation is under way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Does a little; says whether it did anything.
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
        // Half-way it takes it back, whatever the other end does with it.
        if let Some(window) = self.window.filter(|_| self.asked > OPERATIONS / 2)
            && !self.has_revoked
        {
            self.has_revoked = true;
            session.revoke(handle, window);
        }
        let before = self.under_way.len();
        self.under_way.retain(|(_, outcomes, lent)| {
            // In this order: what became of it is said before.
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
            window: 1 + (noise >> 40) as u32 % 2,
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

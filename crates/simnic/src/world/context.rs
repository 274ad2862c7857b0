//! The context that a step of an actor gets in virtual time.

use std::collections::VecDeque;

use headworks_runtime::{ContextBackend, Mail, MailError};
use headworks_runtime::{MAILBOX_BYTES_MAX, MESSAGE_OVERHEAD};
use headworks_verbs::{Duration, Instant};

use super::SimScenario;
use crate::hardware_units::{NEVER, NS, Ps, ns};

/// An actor's context during one step. It collects the step's mail and reports until the step ends.
pub(super) struct SimContext<'t> {
    pub(super) scenario: &'t SimScenario,
    pub(super) index: usize,
    pub(super) inbox: VecDeque<(Ps, Mail)>,
    pub(super) waiting: usize,
    pub(super) outbox: Vec<(String, Mail)>,
    pub(super) reports: Vec<Vec<u8>>,
}

impl ContextBackend for SimContext<'_> {
    fn role(&self) -> &str {
        &self.scenario.actors[self.index].role
    }

    fn now(&mut self) -> Instant {
        let model = self.scenario.model.lock();
        model.clock_of(self.scenario.actors[self.index].host, model.time())
    }

    fn charge(&mut self, cost: Duration) {
        // A charge of zero is not work: an actor that charges
        // it for each look that finds nothing is spinning.
        if cost > Duration::ZERO {
            self.work(cost.nanos().saturating_mul(NS));
        }
    }

    fn copied(&mut self, bytes: u64) {
        let model = self.scenario.model.lock();
        let nanos = model.preset.copy_ns + bytes as f64 * 8.0 / model.preset.copy_gbps;
        drop(model);
        self.work(ns(nanos));
    }

    fn models_memory(&self) -> bool {
        self.scenario.model.lock().preset.host_cache_kib > 0
    }

    fn accesses(&mut self, begin: *const u8, len: usize, writes: bool) {
        let host = self.scenario.actors[self.index].host;
        let mut model = self.scenario.model.lock();
        let span = (begin.addr() as u64, len as u64);
        let waits = model.access_time(host, span, writes);
        drop(model);
        if waits > 0 {
            self.work(waits);
        }
    }

    fn device_reads(&mut self, begin: *const u8, len: usize) {
        let host = self.scenario.actors[self.index].host;
        let mut model = self.scenario.model.lock();
        model.device_reads(host, (begin.addr() as u64, len as u64));
    }

    fn send(&mut self, to: &str, bytes: &[u8]) -> Result<(), MailError> {
        let actors = &self.scenario.actors;
        let there = actors.iter().position(|scheduled| scheduled.role == to);
        let Some(there) = there else {
            return Err(MailError::NoSuchRole(to.to_owned()));
        };
        let scheduled = &actors[there];
        // Mail to an actor that has ended is dropped.
        if scheduled.is_leaving() && there != self.index {
            return Ok(());
        }
        let sent = self.outbox.iter().filter(|(role, _)| role == to);
        let sent: usize = sent
            .map(|(_, mail)| mail.bytes.len() + MESSAGE_OVERHEAD)
            .sum();
        if scheduled.waiting + sent + bytes.len() + MESSAGE_OVERHEAD > MAILBOX_BYTES_MAX {
            return Err(MailError::Full(to.to_owned()));
        }
        let mail = Mail {
            from: self.role().to_owned(),
            bytes: bytes.to_vec(),
        };
        self.outbox.push((to.to_owned(), mail));
        Ok(())
    }

    fn receive(&mut self) -> Option<Mail> {
        if self.inbox.is_empty() {
            return None;
        }
        let now = self.scenario.model.lock().time();
        if self.inbox.front().is_none_or(|(at, _)| *at > now) {
            return None;
        }
        let (_, mail) = self.inbox.pop_front()?;
        self.waiting -= mail.bytes.len() + MESSAGE_OVERHEAD;
        Some(mail)
    }

    fn report(&mut self, bytes: &[u8]) -> Result<(), MailError> {
        self.reports.push(bytes.to_vec());
        Ok(())
    }

    fn interrupted(&self) -> bool {
        self.scenario.interrupted
    }
}

impl SimContext<'_> {
    /// Advances the actor's time by `cost`, but not beyond [`NEVER`].
    fn work(&self, cost: Ps) {
        let mut model = self.scenario.model.lock();
        let left = NEVER.saturating_sub(model.time());
        model.work(cost.min(left));
    }
}

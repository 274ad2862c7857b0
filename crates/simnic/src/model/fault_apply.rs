//! Applies injected faults; [`crate::faults`] decides them.

use headworks_verbs::{Instant, SendOp};

use super::packet_arrival::{asked, copy_from_sender};
use super::{Event, Model, Piece, QpRef};
use crate::faults::{CombinedVerdict, Facts, FaultPoint, Faults, PacketOutcome, Rules, ps};
use crate::hardware_units::{NEVER, NS, Ps, later};
use crate::registered_memory::{self, Span};

impl Model {
    /// Injects faults by these rules from now on, and keeps a digest of the run.
    pub(crate) fn set_fault_rules(&mut self, rules: Rules) {
        self.faults = Some(Box::new(Faults::new(rules)));
    }

    /// Returns when packets that are due at `arrives` reach a host; `None` if they are lost.
    #[inline]
    pub(super) fn arrival_of_packets(
        &mut self,
        point: FaultPoint,
        from: QpRef,
        to: u32,
        packets: u16,
        arrives: Ps,
    ) -> Option<Ps> {
        match self.faults {
            None => Some(arrives),
            Some(_) => self.arrival_under_rules(point, from, to, packets, arrives),
        }
    }

    #[cold]
    fn arrival_under_rules(
        &mut self,
        point: FaultPoint,
        from: QpRef,
        to: u32,
        packets: u16,
        arrives: Ps,
    ) -> Option<Ps> {
        let host = self.qp(from)?.host;
        let left = arrives.saturating_sub(self.cost.wire);
        let hosts = &self.hosts;
        let faults = self.faults.as_deref_mut()?;
        let facts = Facts {
            host: (host, &hosts[host as usize].name),
            to: &hosts[to as usize].name,
            packets: packets.into(),
            at: left,
            arrives,
        };
        match faults.packet_outcome(point, facts, to) {
            PacketOutcome::Arrives(at) => Some(at),
            PacketOutcome::Lost => None,
            PacketOutcome::Kills => {
                // The failure is an event of its own, because the caller is still sending.
                let at = self.now;
                self.event_queue.put(at, Event::Fails { qp: from });
                None
            }
            PacketOutcome::Overruns => {
                let at = self.now;
                self.event_queue.put(at, Event::Overruns { qp: from });
                None
            }
        }
    }

    /// Whether a rule has a queue pair find no receive, whatever is posted.
    #[inline]
    pub(super) fn is_receive_refused(&mut self, host: u32) -> bool {
        self.faults.is_some() && self.judge(FaultPoint::Receive, host, "", self.now).refuses
    }

    /// Whether a rule loses a notification that leaves a host.
    pub(super) fn is_notification_lost(&mut self, host: u32) -> bool {
        self.faults.is_some()
            && self
                .judge(FaultPoint::Notification, host, "", self.now)
                .refuses
    }

    /// Asks the rules about the antagonist on a new host, now and at all their moments.
    pub(super) fn schedule_antagonist(&mut self, host: u32) {
        let Some(faults) = self.faults.as_deref() else {
            return;
        };
        let later = faults
            .moments()
            .filter(|at| (self.now + 1..NEVER).contains(at));
        for at in later.collect::<Vec<_>>() {
            self.event_queue.put(at, Event::Memory { host });
        }
        self.set_antagonist(host);
    }

    /// Sets the bandwidth that an antagonist uses on a host as the rules say.
    pub(super) fn set_antagonist(&mut self, host: u32) {
        let now = self.now;
        let said = self.judge(FaultPoint::Memory, host, "", now).antagonist;
        if let Some(side) = self.hosts[host as usize].receiving.as_deref_mut() {
            side.set_antagonist(now, said.unwrap_or(0));
        }
    }

    /// Returns the time until which a rule stalls an actor whose step is due `at`.
    pub(crate) fn stall_end(&mut self, host: u32, role: &str, at: Ps) -> Option<Ps> {
        let span = self.judge(FaultPoint::Step, host, role, at).waits?;
        Some(later(at, ps(span).max(NS)))
    }

    /// Whether a rule kills an actor at that time.
    pub(crate) fn is_killed(&mut self, host: u32, role: &str, at: Ps) -> bool {
        self.judge(FaultPoint::Life, host, role, at).kills
    }

    /// Returns the offset of the bytes of a WRITE that are placed when `piece` arrives. If a rule has the
    /// WRITE placed backwards, this is the mirrored part, so every byte is placed once.
    #[inline]
    pub(super) fn offset_of(&mut self, piece: &Piece) -> u32 {
        match self.faults.is_some() {
            true => self.offset_under_rules(piece),
            false => piece.offset,
        }
    }

    #[cold]
    fn offset_under_rules(&mut self, piece: &Piece) -> u32 {
        let offset = piece.offset;
        let Some(faults) = self.faults.as_deref_mut() else {
            return offset;
        };
        let Some((from, wqe)) = asked(&self.qps, piece) else {
            return offset;
        };
        let Some((_, Some(to))) = self.qps.get(piece.to.index as usize) else {
            return offset;
        };
        let is_write = matches!(wqe.op, SendOp::Write(_) | SendOp::WriteImm(..));
        if piece.len == wqe.len || !is_write {
            return offset;
        }
        let facts = Facts {
            host: (to.host, &self.hosts[to.host as usize].name),
            to: &self.hosts[from.host as usize].name,
            packets: 0,
            at: self.now,
            arrives: self.now,
        };
        match faults.is_backwards(facts, piece.from.life.into(), piece.wqe + 1) {
            true => wqe.len - offset - piece.len,
            false => offset,
        }
    }

    /// Adds placed bytes to the digest.
    pub(super) fn note_bytes(&mut self, piece: &Piece, part: (u32, u32)) {
        if self.faults.is_none() {
            return;
        }
        let bytes = vec![0; piece.len as usize].into_boxed_slice();
        let all = Span::of(&bytes);
        if let Some(asked) = asked(&self.qps, piece) {
            let _ = copy_from_sender(&self.regions, asked, part, |done, from| {
                registered_memory::copy(all.part(done, from.len), from);
            });
        }
        if let Some(faults) = &mut self.faults {
            faults.run_digest.placed(&bytes);
        }
    }

    /// Returns what a host's clock reads at that time.
    pub(crate) fn clock_of(&self, host: u32, at: Ps) -> Instant {
        self.hosts[host as usize].clock(at)
    }

    /// Returns the time at which a host's clock reads `reads`.
    pub(crate) fn time_of_clock(&self, host: u32, reads: Instant) -> Ps {
        let reads = reads.nanos().saturating_mul(NS);
        match self.hosts[host as usize].drift {
            0 => reads,
            drift => {
                let parts = (1_000_000 + i128::from(drift)).max(1);
                let at = (i128::from(reads) * 1_000_000 + parts - 1) / parts;
                u64::try_from(at).unwrap_or(Ps::MAX)
            }
        }
    }

    /// Sets the drift of a new host's clock.
    pub(super) fn set_clock(&mut self, host: u32) {
        if let Some(ppm) = self.judge(FaultPoint::Clock, host, "", 0).drift {
            self.hosts[host as usize].drift = ppm;
        }
    }

    fn judge(&mut self, point: FaultPoint, host: u32, to: &str, at: Ps) -> CombinedVerdict {
        let Some(faults) = self.faults.as_deref_mut() else {
            return CombinedVerdict::default();
        };
        let facts = Facts {
            host: (host, &self.hosts[host as usize].name),
            to,
            packets: 0,
            at,
            arrives: at,
        };
        faults.judge(point, facts)
    }

    /// Returns the digest of the run so far and its number of entries.
    /// Both are equal in every run of a seed. `None` without rules.
    pub(crate) fn run_digest(&self) -> Option<(u64, u64)> {
        let run_digest = &self.faults.as_deref()?.run_digest;
        Some((run_digest.digest(), run_digest.len))
    }

    /// Adds an actor's step to the digest.
    pub(crate) fn note_step(&mut self, actor: usize, begin: Ps, end: Ps) {
        if let Some(faults) = self.faults.as_deref_mut() {
            faults.run_digest.stepped(actor, begin, end);
        }
    }
}

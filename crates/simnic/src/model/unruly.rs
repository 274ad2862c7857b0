//! What rules have go wrong, carried out: [`crate::faults`] decides.

use headworks_verbs::{Instant, SendOp};

use super::arrive::{asked, copy_from_sender};
use super::{Event, Model, Piece, QpRef};
use crate::faults::{Facts, Fate, Faults, Point, Rules, Sentence, ps};
use crate::memory::{self, Span};
use crate::units::{NS, Ps, later};

impl Model {
    /// From now on these rules decide what goes wrong, and what happens is noted.
    pub(crate) fn obey(&mut self, rules: Rules) {
        self.faults = Some(Box::new(Faults::new(rules)));
    }

    /// When packets of a queue pair arrive at a host, that would at `arrives`; `None` if they are lost.
    #[inline]
    pub(super) fn passes(
        &mut self,
        point: Point,
        from: QpRef,
        to: u32,
        packets: u16,
        arrives: Ps,
    ) -> Option<Ps> {
        match self.faults {
            None => Some(arrives),
            Some(_) => self.passes_rules(point, from, to, packets, arrives),
        }
    }

    #[cold]
    fn passes_rules(
        &mut self,
        point: Point,
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
        match faults.carry(point, facts, to) {
            Fate::Arrives(at) => Some(at),
            Fate::Lost => None,
            Fate::Kills => {
                // In its own time: whoever sends is in the middle of it.
                let at = self.now;
                self.agenda.put(at, Event::Fails { qp: from });
                None
            }
        }
    }

    /// Whether a queue pair that needs a receive finds none, whatever is posted.
    #[inline]
    pub(super) fn is_denied_receive(&mut self, host: u32) -> bool {
        self.faults.is_some() && self.ask(Point::Receive, host, "", self.now).refuses
    }

    /// Until when an actor is not to be stepped, that would be `at`.
    pub(crate) fn stalled(&mut self, host: u32, role: &str, at: Ps) -> Option<Ps> {
        let span = self.ask(Point::Step, host, role, at).waits?;
        Some(later(at, ps(span).max(NS)))
    }

    /// Whether an actor dies now.
    pub(crate) fn dies(&mut self, host: u32, role: &str, at: Ps) -> bool {
        self.ask(Point::Life, host, role, at).kills
    }

    /// Which part of a WRITE the bytes are that are placed when this part of it comes: another where it is
    /// placed from its end, so that every byte is placed once, however it is cut.
    #[inline]
    pub(super) fn offset_of(&mut self, piece: &Piece) -> u32 {
        match self.faults.is_some() {
            true => self.ruled_offset_of(piece),
            false => piece.offset,
        }
    }

    #[cold]
    fn ruled_offset_of(&mut self, piece: &Piece) -> u32 {
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

    /// Notes bytes that are where they belong.
    pub(super) fn note_bytes(&mut self, piece: &Piece, part: (u32, u32)) {
        if self.faults.is_none() {
            return;
        }
        let bytes = vec![0; piece.len as usize].into_boxed_slice();
        let all = Span::of(&bytes);
        if let Some(asked) = asked(&self.qps, piece) {
            let _ = copy_from_sender(&self.regions, asked, part, |done, from| {
                memory::copy(all.part(done, from.len), from);
            });
        }
        if let Some(faults) = &mut self.faults {
            faults.history.placed(&bytes);
        }
    }

    /// What the clock of a host reads at that time.
    pub(crate) fn clock_of(&self, host: u32, at: Ps) -> Instant {
        self.hosts[host as usize].clock(at)
    }

    /// When the clock of a host reads that.
    pub(crate) fn when(&self, host: u32, reads: Instant) -> Ps {
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

    /// Sets a new host's clock.
    pub(super) fn set_clock(&mut self, host: u32) {
        if let Some(ppm) = self.ask(Point::Clock, host, "", 0).drift {
            self.hosts[host as usize].drift = ppm;
        }
    }

    fn ask(&mut self, point: Point, host: u32, to: &str, at: Ps) -> Sentence {
        let Some(faults) = self.faults.as_deref_mut() else {
            return Sentence::default();
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

    /// What happened so far, and how often something did: the same in every run of a seed. `None` without
    /// rules.
    pub(crate) fn history(&self) -> Option<(u64, u64)> {
        let history = &self.faults.as_deref()?.history;
        Some((history.digest(), history.len))
    }

    /// Notes that an actor was stepped.
    pub(crate) fn note_step(&mut self, actor: usize, begin: Ps, end: Ps) {
        if let Some(faults) = self.faults.as_deref_mut() {
            faults.history.stepped(actor, begin, end);
        }
    }
}

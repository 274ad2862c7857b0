//! The combined verdict of all rules.

use headworks_verbs::Duration;

use super::{FaultPoint, Verdict};

/// Combination of all rules' verdicts on one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CombinedVerdict {
    pub(crate) kills: bool,
    pub(crate) overruns: bool,
    pub(crate) refuses: bool,
    /// Delay that also holds back later packets.
    pub(crate) waits: Option<Duration>,
    /// Delay that does not hold back later packets.
    pub(crate) overtaken: Option<Duration>,
    pub(crate) drift: Option<i32>,
    pub(crate) backwards: bool,
    /// Bandwidth that programs use besides, in GB/s.
    pub(crate) antagonist: Option<u32>,
}

impl CombinedVerdict {
    /// Adds a rule's verdict.
    pub(super) fn add(&mut self, point: FaultPoint, verdict: Verdict) {
        let sum = |so_far: Option<Duration>, more: Duration| {
            let nanos = so_far.map_or(0, Duration::nanos);
            Some(Duration::from_nanos(nanos.saturating_add(more.nanos())))
        };
        match verdict {
            Verdict::Pass => {}
            Verdict::Refuse => self.refuses = true,
            // Each stalls the actor until some time, and the later one counts.
            Verdict::WaitFor(span) if point == FaultPoint::Step => {
                self.waits = self.waits.max(Some(span));
            }
            Verdict::WaitFor(span) => self.waits = sum(self.waits, span),
            Verdict::Overtaken(span) => self.overtaken = sum(self.overtaken, span),
            Verdict::Kill => self.kills = true,
            Verdict::Overrun => self.overruns = true,
            Verdict::Backwards => self.backwards = true,
            Verdict::Antagonist(more) => {
                self.antagonist = Some(self.antagonist.unwrap_or(0).saturating_add(more));
            }
            Verdict::Drift(ppm) => self.drift = Some(self.drift.unwrap_or(0).saturating_add(ppm)),
        }
    }

    /// Adds the kill, the overrun and the loss of a second judgement.
    pub(super) fn unite(&mut self, other: Self) {
        self.kills |= other.kills;
        self.overruns |= other.overruns;
        self.refuses |= other.refuses;
    }

    /// Returns a hash of all fields.
    pub(super) fn digest(&self) -> u64 {
        let span = |span: Option<Duration>| span.map_or(0, |span| span.nanos().saturating_add(1));
        let words = [
            self.antagonist.map_or(0, |rate| u64::from(rate) + 1) << 4
                | u64::from(self.overruns) << 3
                | u64::from(self.backwards) << 2
                | u64::from(self.kills) << 1
                | u64::from(self.refuses),
            span(self.waits),
            span(self.overtaken),
            self.drift.map_or(0, |ppm| u64::from(ppm as u32) + 1),
        ];
        let fold = |digest: u64, word: &u64| (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        words.iter().fold(0, fold)
    }
}

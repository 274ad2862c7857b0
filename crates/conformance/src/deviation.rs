//! What a device is known to do otherwise than the specification has it: data, for the cases to demand
//! what is known instead. What is not known fails. What is known and does not show fails as well where a
//! list is [certain](KnownDeviations::is_certain), so that it stays true; elsewhere it is told of.

use std::collections::BTreeSet;

use headworks_verbs::{Duration, Status};

use crate::Verdict;

/// What is known of the devices of a world.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownDeviations {
    /// Each thing that they do otherwise.
    pub all: &'static [Deviation],
    /// It was found on the same driver of the same kernel: all of it must show. Elsewhere the devices may
    /// do as the specification has it after all.
    pub is_certain: bool,
}

/// One thing that a device does otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Deviation {
    /// The cases that see it.
    pub cases: &'static [&'static str],
    /// With which operations, as the case calls them ([`CaseContext::section`](crate::CaseContext::section)): all, if none
    /// is named.
    pub operations: &'static [&'static str],
    /// What is seen instead.
    pub behaviour: DeviantBehaviour,
    /// The verb and what is asked of it, for the documentation.
    pub verb_and_request: (&'static str, &'static str),
    /// What the specification says, with the section.
    pub demanded: &'static str,
    /// What the device does, and why, where that is known.
    pub observed: &'static str,
}

/// How a case sees a deviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviantBehaviour {
    /// What must complete with the first status completes with the second.
    Completes(Status, Status),
    /// As [`DeviantBehaviour::Completes`], or as it must, as chance has it.
    MayComplete(Status, Status),
    /// What must complete with an error is refused when it is posted, as an error of this kind.
    Refuses(&'static str),
    /// An event that begins with this, and must come, does not.
    Keeps(&'static str),
    /// The case gets no further: it ends with a line that has this in it.
    Ends(&'static str),
    /// As [`DeviantBehaviour::Ends`], of a wait for what never comes, which is given up sooner for that: within
    /// [`DeviantBehaviour::HANG_TIMEOUT`]. It begins with the name of that wait ([`CaseContext::named_wait`](crate::CaseContext::named_wait)), and a
    /// colon.
    Hangs(&'static str),
    /// As [`DeviantBehaviour::Hangs`], or all goes well, as chance has it.
    MayHang(&'static str),
}

impl DeviantBehaviour {
    /// How long anything may take where it is known that something never comes.
    pub const HANG_TIMEOUT: Duration = Duration::from_millis(1_000);
}

/// The deviations that a case may see, and which of them it saw.
#[derive(Debug, Default)]
pub struct DeviationTracker {
    known: Vec<Deviation>,
    is_certain: bool,
    part: Option<&'static str>,
    seen: BTreeSet<(usize, Option<&'static str>)>,
    judged: BTreeSet<&'static str>,
    /// What did not show, where it need not.
    unseen: Vec<String>,
}

impl DeviationTracker {
    /// Those of `all` that the case called `name` may see.
    pub fn for_case(name: &str, known_deviations: KnownDeviations) -> Self {
        let is_here = |known: &&Deviation| known.cases.contains(&name);
        Self {
            known: known_deviations
                .all
                .iter()
                .filter(is_here)
                .copied()
                .collect(),
            is_certain: known_deviations.is_certain,
            ..Self::default()
        }
    }

    /// Those that count now, with their places.
    fn now(&self) -> impl Iterator<Item = (usize, &Deviation)> {
        let part = self.part;
        let counts = move |known: &Deviation| {
            known.operations.is_empty() || part.is_some_and(|part| known.operations.contains(&part))
        };
        let all = self.known.iter().enumerate();
        all.filter(move |(_, known)| counts(known))
    }

    fn find<T>(&mut self, wanted: impl Fn(DeviantBehaviour) -> Option<T>) -> Option<T> {
        let found = self.now().find_map(|(at, known)| {
            let found = wanted(known.behaviour)?;
            // One of all parts is seen if it is in any.
            let part = self.part.filter(|_| !known.operations.is_empty());
            Some(((at, part), found))
        });
        found.map(|(which, found)| {
            self.seen.insert(which);
            found
        })
    }

    /// What a completion that ended with `found` had to end with, where the specification has `demanded`:
    /// that is good if it is `found`.
    pub fn status(&mut self, demanded: Status, found: Status) -> Status {
        let came = |does| match does {
            DeviantBehaviour::Completes(from, to) | DeviantBehaviour::MayComplete(from, to) => {
                ((from, to) == (demanded, found)).then_some(to)
            }
            _ => None,
        };
        if let Some(known) = self.find(came) {
            return known;
        }
        let must = |(_, known): (usize, &Deviation)| match known.behaviour {
            DeviantBehaviour::Completes(from, to) => {
                (from == demanded && self.is_certain).then_some(to)
            }
            _ => None,
        };
        self.now().find_map(must).unwrap_or(demanded)
    }

    /// Whether it is known that a request which must complete with an error is refused with this kind of
    /// one.
    pub fn refuses(&mut self, found: &str) -> bool {
        let refused =
            |does| matches!(does, DeviantBehaviour::Refuses(kind) if kind == found).then_some(());
        self.find(refused).is_some()
    }

    /// Whether an event, written so, does not come that must.
    pub fn keeps(&mut self, event: &str) -> bool {
        let kept = |does| {
            matches!(does, DeviantBehaviour::Keeps(name) if event.starts_with(name)).then_some(())
        };
        self.find(kept).is_some()
    }

    /// Whether what is known not to come may come all the same.
    pub fn is_certain(&self) -> bool {
        self.is_certain
    }

    /// Notes what did not show, where it need not.
    pub fn note(&mut self, unseen: String) {
        self.unseen.push(unseen);
    }

    /// What did not show, where it need not.
    pub fn unseen(&self) -> &[String] {
        &self.unseen
    }

    /// How long the wait called `wait` may take that usually may take `usual`.
    pub fn deadline(&self, wait: Option<&str>, usual: Duration) -> Duration {
        let is_it = |line: &str| {
            let rest = wait.and_then(|wait| line.strip_prefix(wait));
            rest.is_some_and(|rest| rest.starts_with(": "))
        };
        let hangs = |(_, known): (usize, &Deviation)| match known.behaviour {
            DeviantBehaviour::Hangs(line) | DeviantBehaviour::MayHang(line) => is_it(line),
            _ => false,
        };
        match self.now().any(hangs) {
            true => DeviantBehaviour::HANG_TIMEOUT,
            false => usual,
        }
    }

    /// From now on it is about the operation `part`.
    pub fn begin_section(&mut self, part: &'static str) {
        self.part = Some(part);
    }

    /// What is to be made of the verdict on the part that was entered.
    pub fn end_section(&mut self, verdict: Verdict) -> Verdict {
        let part = self.part;
        self.judged.extend(part);
        let judged = self.judge(verdict, |known| !known.operations.is_empty());
        self.part = None;
        judged
    }

    /// What is to be made of the verdict on the whole case.
    pub fn end(&mut self, verdict: Verdict) -> Verdict {
        self.judge(verdict, |known| known.operations.is_empty())?;
        let all = self.known.iter().flat_map(|known| known.operations);
        match all.into_iter().find(|part| !self.judged.contains(*part)) {
            Some(part) => Err(format!("a deviation of {part}, which this case has not")),
            None => Ok(()),
        }
    }

    fn judge(&mut self, verdict: Verdict, of: impl Fn(&Deviation) -> bool) -> Verdict {
        let mut verdict = verdict;
        let mut ended = BTreeSet::new();
        let mut hung = false;
        for (at, known) in self.now().filter(|(_, known)| of(known)) {
            let (DeviantBehaviour::Ends(line)
            | DeviantBehaviour::Hangs(line)
            | DeviantBehaviour::MayHang(line)) = known.behaviour
            else {
                continue;
            };
            if verdict.as_ref().is_err_and(|seen| seen.contains(line)) {
                verdict = Ok(());
                ended.insert(at);
                hung |= matches!(known.behaviour, DeviantBehaviour::MayHang(_));
            }
        }
        verdict?;
        let is_missing = |(at, known): &(usize, &Deviation)| {
            let is_seen = ended.contains(at) || self.seen.contains(&(*at, self.part));
            let by_chance = matches!(
                known.behaviour,
                DeviantBehaviour::MayHang(_) | DeviantBehaviour::MayComplete(..)
            );
            // What chance has ended early has not come to show the rest.
            of(known) && !is_seen && !by_chance && !hung
        };
        let missing = self.now().filter(is_missing);
        let missing: Vec<_> = missing
            .map(|(_, known)| format!("{:?}", known.behaviour))
            .collect();
        match missing.first() {
            Some(first) if self.is_certain => Err(format!("known and not seen: {first}")),
            _ => {
                let part = self.part.map_or(String::new(), |part| format!("{part}: "));
                let missing = missing.into_iter().map(|does| format!("{part}{does}"));
                self.unseen.extend(missing);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! Known deviations of a device from the specification, as data. The cases demand the known behaviour instead
//! of the specified one. An unknown deviation fails the case. If the list is
//! [certain](KnownDeviations::is_certain), a known deviation that does not show fails the case too, so that
//! the list stays true; otherwise it is only reported.

use std::collections::BTreeSet;

use headworks_verbs::{Duration, Status};

use crate::Verdict;

/// Known deviations of the devices of a world.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownDeviations {
    /// All known deviations.
    pub all: &'static [Deviation],
    /// The deviations were found on the same driver of the same kernel, so all of them must show. If
    /// false, the devices may follow the specification instead.
    pub is_certain: bool,
}

/// Deviation of a device from the specification.
#[derive(Clone, Copy, Debug)]
pub struct Deviation {
    /// Names of the cases that observe it.
    pub cases: &'static [&'static str],
    /// Operations for which it is observed, as named by
    /// [`CaseContext::section`](crate::CaseContext::section); all operations if empty.
    pub operations: &'static [&'static str],
    /// Behaviour that the case observes instead.
    pub behaviour: DeviantBehaviour,
    /// Verb and request, for the documentation.
    pub verb_and_request: (&'static str, &'static str),
    /// Demand of the specification, with its section, for the documentation.
    pub demanded: &'static str,
    /// Behaviour of the device and its reason where known, for the documentation.
    pub observed: &'static str,
}

/// Behaviour that a case observes where a device deviates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviantBehaviour {
    /// A request or receive that must complete with the first status completes with the second.
    Completes(Status, Status),
    /// As [`DeviantBehaviour::Completes`], but only sometimes; it may also complete as specified.
    MayComplete(Status, Status),
    /// A request that must complete with an error is refused when posted, with an error of this kind.
    Refuses(&'static str),
    /// A required event whose name begins with this does not come.
    Keeps(&'static str),
    /// The case ends early, with an error line that contains this.
    Ends(&'static str),
    /// As [`DeviantBehaviour::Ends`], but the case waits for something that never comes. The wait is
    /// given up after [`DeviantBehaviour::HANG_TIMEOUT`]. The line begins with the name of the wait
    /// ([`CaseContext::named_wait`](crate::CaseContext::named_wait)) and a colon.
    Hangs(&'static str),
    /// As [`DeviantBehaviour::Hangs`], but only sometimes; the case may also succeed.
    MayHang(&'static str),
}

impl DeviantBehaviour {
    /// Time limit of a wait that is known to hang.
    pub const HANG_TIMEOUT: Duration = Duration::from_millis(1_000);
}

/// Deviations that a case may observe, and which of them it has observed.
#[derive(Debug, Default)]
pub struct DeviationTracker {
    known: Vec<Deviation>,
    is_certain: bool,
    part: Option<&'static str>,
    seen: BTreeSet<(usize, Option<&'static str>)>,
    judged: BTreeSet<&'static str>,
    /// Deviations that did not show, where they need not.
    unseen: Vec<String>,
}

impl DeviationTracker {
    /// Returns a tracker of the deviations that the case `name` may observe.
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

    /// Returns the deviations that apply in the current section, with their indices.
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
            // A deviation of all operations counts as seen if any section sees it.
            let part = self.part.filter(|_| !known.operations.is_empty());
            Some(((at, part), found))
        });
        found.map(|(which, found)| {
            self.seen.insert(which);
            found
        })
    }

    /// Returns the status that a completion must have where the specification demands `demanded` and the
    /// device reported `found`. The completion is good if the two are equal.
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

    /// Returns whether a request that must complete with an error is known to be refused with an error of
    /// the kind `found`.
    pub fn refuses(&mut self, found: &str) -> bool {
        let refused =
            |does| matches!(does, DeviantBehaviour::Refuses(kind) if kind == found).then_some(());
        self.find(refused).is_some()
    }

    /// Returns whether a required event is known not to come. `event` is its debug text.
    pub fn keeps(&mut self, event: &str) -> bool {
        let kept = |does| {
            matches!(does, DeviantBehaviour::Keeps(name) if event.starts_with(name)).then_some(())
        };
        self.find(kept).is_some()
    }

    /// Returns whether every known deviation must show.
    pub fn is_certain(&self) -> bool {
        self.is_certain
    }

    /// Records a deviation that did not show, where it need not.
    pub fn note(&mut self, unseen: String) {
        self.unseen.push(unseen);
    }

    /// Returns the deviations that did not show, where they need not.
    pub fn unseen(&self) -> &[String] {
        &self.unseen
    }

    /// Returns the time limit of the wait called `wait`, whose default is `usual`.
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

    /// Starts the section about the operation `part`.
    pub fn begin_section(&mut self, part: &'static str) {
        self.part = Some(part);
    }

    /// Ends the section and returns its verdict, adjusted for known deviations.
    pub fn end_section(&mut self, verdict: Verdict) -> Verdict {
        let part = self.part;
        self.judged.extend(part);
        let judged = self.judge(verdict, |known| !known.operations.is_empty());
        self.part = None;
        judged
    }

    /// Returns the verdict on the whole case, adjusted for known deviations.
    pub fn end(&mut self, verdict: Verdict) -> Verdict {
        self.judge(verdict, |known| known.operations.is_empty())?;
        let all = self.known.iter().flat_map(|known| known.operations);
        match all.into_iter().find(|part| !self.judged.contains(*part)) {
            Some(part) => Err(format!("a deviation of {part}, which is no section here")),
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
            // A section that ended early by chance did not get to the other deviations.
            of(known) && !is_seen && !by_chance && !hung
        };
        let missing = self.now().filter(is_missing);
        let missing: Vec<_> = missing
            .map(|(_, known)| format!("{:?}", known.behaviour))
            .collect();
        match missing.first() {
            Some(first) if self.is_certain => Err(format!("known deviation did not show: {first}")),
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

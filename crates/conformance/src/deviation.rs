//! What a device is known to do otherwise than the specification has it: data, for the cases to demand
//! what is known instead. What is not known fails, and what is known and does not show fails as well, so
//! a list of [`Deviation`]s stays true.

use std::collections::BTreeSet;

use headworks_verbs::{Duration, Status};

use crate::Verdict;

/// One thing that a device does otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Deviation {
    /// The cases that see it.
    pub cases: &'static [&'static str],
    /// With which operations, as the case calls them ([`Bench::part`](crate::Bench::part)): all, if none
    /// is named.
    pub of: &'static [&'static str],
    /// What is seen instead.
    pub does: Does,
    /// The verb and what is asked of it, for the documentation.
    pub asked: (&'static str, &'static str),
    /// What the specification says, with the section.
    pub demanded: &'static str,
    /// What the device does, and why, where that is known.
    pub seen: &'static str,
}

/// How a case sees a deviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// What must complete with the first status completes with the second.
    Completes(Status, Status),
    /// What must complete with an error is refused when it is posted, as an error of this kind.
    Refuses(&'static str),
    /// An event that begins with this, and must come, does not.
    Keeps(&'static str),
    /// The case gets no further: it ends with a line that has this in it.
    Ends(&'static str),
    /// As [`Does::Ends`], of a wait for what never comes, which is given up sooner for that: within
    /// [`Does::SOON`].
    Hangs(&'static str),
    /// As [`Does::Hangs`], or all goes well, as chance has it.
    MayHang(&'static str),
}

impl Does {
    /// How long anything may take where it is known that something never comes.
    pub const SOON: Duration = Duration::from_millis(1_000);
}

/// The deviations that a case may see, and which of them it saw.
#[derive(Debug, Default)]
pub struct Watch {
    known: Vec<Deviation>,
    part: Option<&'static str>,
    seen: BTreeSet<(usize, Option<&'static str>)>,
    judged: BTreeSet<&'static str>,
}

impl Watch {
    /// Those of `all` that the case called `name` may see.
    pub fn of(name: &str, all: &[Deviation]) -> Self {
        let is_here = |known: &&Deviation| known.cases.contains(&name);
        Self {
            known: all.iter().filter(is_here).copied().collect(),
            ..Self::default()
        }
    }

    /// Those that count now, with their places.
    fn now(&self) -> impl Iterator<Item = (usize, &Deviation)> {
        let part = self.part;
        let counts = move |known: &Deviation| {
            known.of.is_empty() || part.is_some_and(|part| known.of.contains(&part))
        };
        let all = self.known.iter().enumerate();
        all.filter(move |(_, known)| counts(known))
    }

    fn find<T>(&mut self, wanted: impl Fn(Does) -> Option<T>) -> Option<T> {
        let found = self.now().find_map(|(at, known)| {
            let found = wanted(known.does)?;
            // One of all parts is seen if it is in any.
            let part = self.part.filter(|_| !known.of.is_empty());
            Some(((at, part), found))
        });
        found.map(|(which, found)| {
            self.seen.insert(which);
            found
        })
    }

    /// What a completion ends with that must end with `demanded`.
    pub fn status(&mut self, demanded: Status) -> Status {
        let other = |does| match does {
            Does::Completes(from, to) if from == demanded => Some(to),
            _ => None,
        };
        self.find(other).unwrap_or(demanded)
    }

    /// As what a request is refused that must complete with an error.
    pub fn refusal(&mut self) -> Option<&'static str> {
        self.find(|does| match does {
            Does::Refuses(kind) => Some(kind),
            _ => None,
        })
    }

    /// Whether an event, written so, does not come that must.
    pub fn keeps(&mut self, event: &str) -> bool {
        let kept =
            |does| matches!(does, Does::Keeps(name) if event.starts_with(name)).then_some(());
        self.find(kept).is_some()
    }

    /// How long anything may take that usually may take `usual`.
    pub fn deadline(&self, usual: Duration) -> Duration {
        let hangs = |(_, known): (usize, &Deviation)| {
            matches!(known.does, Does::Hangs(_) | Does::MayHang(_))
        };
        match self.now().any(hangs) {
            true => Does::SOON,
            false => usual,
        }
    }

    /// From now on it is about the operation `part`.
    pub fn enter(&mut self, part: &'static str) {
        self.part = Some(part);
    }

    /// What is to be made of the verdict on the part that was entered.
    pub fn leave(&mut self, verdict: Verdict) -> Verdict {
        let part = self.part;
        self.judged.extend(part);
        let judged = self.judge(verdict, |known| !known.of.is_empty());
        self.part = None;
        judged
    }

    /// What is to be made of the verdict on the whole case.
    pub fn end(&mut self, verdict: Verdict) -> Verdict {
        self.judge(verdict, |known| known.of.is_empty())?;
        let all = self.known.iter().flat_map(|known| known.of);
        match all.into_iter().find(|part| !self.judged.contains(*part)) {
            Some(part) => Err(format!("a deviation of {part}, which this case has not")),
            None => Ok(()),
        }
    }

    fn judge(&mut self, verdict: Verdict, of: impl Fn(&Deviation) -> bool) -> Verdict {
        let mut verdict = verdict;
        let mut ended = BTreeSet::new();
        for (at, known) in self.now().filter(|(_, known)| of(known)) {
            let (Does::Ends(line) | Does::Hangs(line) | Does::MayHang(line)) = known.does else {
                continue;
            };
            if verdict.as_ref().is_err_and(|seen| seen.contains(line)) {
                verdict = Ok(());
                ended.insert(at);
            }
        }
        verdict?;
        let is_missing = |(at, known): &(usize, &Deviation)| {
            let is_seen = ended.contains(at) || self.seen.contains(&(*at, self.part));
            of(known) && !is_seen && !matches!(known.does, Does::MayHang(_))
        };
        match self.now().find(is_missing) {
            Some((_, known)) => Err(format!("known and not seen: {:?}", known.does)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Status::{Flushed, LocalProtection, LocalQpOperation};

    const fn known(of: &'static [&'static str], does: Does) -> Deviation {
        Deviation {
            cases: &["a::case"],
            of,
            does,
            asked: ("", ""),
            demanded: "",
            seen: "",
        }
    }

    const OTHER: Does = Does::Completes(LocalProtection, LocalQpOperation);

    fn failed(line: &str) -> Verdict {
        Err(line.to_owned())
    }

    #[test]
    fn where_nothing_is_known_a_verdict_stays_what_it_is() {
        let mut watch = Watch::of("another::case", &[known(&[], OTHER)]);
        assert_eq!(watch.status(LocalProtection), LocalProtection);
        assert_eq!(watch.refusal(), None);
        watch.enter("SEND");
        assert_eq!(watch.leave(failed("bad")), failed("bad"));
        assert_eq!(watch.end(Ok(())), Ok(()));
        let usual = Duration::from_millis(10_000);
        assert_eq!(watch.deadline(usual), usual);
    }

    #[test]
    fn another_status_is_demanded_in_place_of_one_and_must_be_asked_for() {
        let mut watch = Watch::of("a::case", &[known(&[], OTHER)]);
        assert!(watch.end(Ok(())).is_err(), "never asked for");
        assert_eq!(watch.status(Flushed), Flushed);
        assert!(watch.end(Ok(())).is_err(), "another was asked for");
        watch.enter("SEND");
        assert_eq!(watch.status(LocalProtection), LocalQpOperation);
        assert_eq!(watch.leave(Ok(())), Ok(()));
        assert_eq!(watch.end(Ok(())), Ok(()));
        assert_eq!(watch.end(failed("bad")), failed("bad"));
    }

    #[test]
    fn what_is_known_of_some_operations_holds_for_each_of_them_and_no_other() {
        let all = [known(&["SEND", "WRITE"], OTHER)];
        let mut watch = Watch::of("a::case", &all);
        for part in ["SEND", "READ", "WRITE"] {
            watch.enter(part);
            let expected = match part {
                "READ" => LocalProtection,
                _ => LocalQpOperation,
            };
            assert_eq!(watch.status(LocalProtection), expected);
            assert_eq!(watch.leave(Ok(())), Ok(()));
        }
        assert_eq!(watch.end(Ok(())), Ok(()));
        let mut watch = Watch::of("a::case", &all);
        watch.enter("SEND");
        assert!(watch.leave(Ok(())).is_err(), "not asked for with SEND");
        watch.enter("SEND");
        watch.status(LocalProtection);
        assert_eq!(watch.leave(Ok(())), Ok(()));
        assert!(watch.end(Ok(())).is_err(), "WRITE never came");
    }

    #[test]
    fn a_case_that_must_end_early_ends_so_and_not_otherwise() {
        for does in [Does::Ends("no event"), Does::Hangs("no event")] {
            let mut watch = Watch::of("a::case", &[known(&[], does)]);
            assert_eq!(watch.end(failed("no event within 2 s")), Ok(()));
            assert_eq!(watch.end(failed("bad")), failed("bad"));
            assert!(watch.end(Ok(())).is_err(), "it went well");
            let mut watch = Watch::of("a::case", &[known(&["SEND"], does)]);
            watch.enter("SEND");
            assert_eq!(watch.leave(failed("no event within 2 s")), Ok(()));
            watch.enter("WRITE");
            assert_eq!(watch.leave(failed("no event")), failed("no event"));
            assert_eq!(watch.end(failed("no event")), failed("no event"));
            assert_eq!(watch.end(Ok(())), Ok(()));
        }
    }

    #[test]
    fn what_may_hang_may_go_well() {
        let mut watch = Watch::of("a::case", &[known(&["SEND"], Does::MayHang("no event"))]);
        for (verdict, judged) in [
            (Ok(()), Ok(())),
            (failed("no event within 1 s"), Ok(())),
            (failed("bad"), failed("bad")),
        ] {
            watch.enter("SEND");
            let usual = Duration::from_millis(10_000);
            assert_eq!(watch.deadline(usual), Does::SOON);
            assert_eq!(watch.leave(verdict), judged);
        }
        assert_eq!(watch.end(Ok(())), Ok(()));
    }

    #[test]
    fn an_event_may_be_known_not_to_come() {
        let mut watch = Watch::of("a::case", &[known(&[], Does::Keeps("Last"))]);
        assert!(!watch.keeps("Fatal(1)"));
        assert!(watch.end(Ok(())).is_err());
        assert!(watch.keeps("Last(1)"));
        assert_eq!(watch.end(Ok(())), Ok(()));
    }

    #[test]
    fn what_never_comes_is_not_waited_for_as_long() {
        let usual = Duration::from_millis(10_000);
        let mut watch = Watch::of("a::case", &[known(&["SEND"], Does::Hangs("no"))]);
        assert_eq!(watch.deadline(usual), usual);
        watch.enter("SEND");
        assert_eq!(watch.deadline(usual), Does::SOON);
    }
}

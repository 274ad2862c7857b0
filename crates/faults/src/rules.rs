//! Rules, and lists of them.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use headworks_verbs::Instant;

use crate::random::Random;

/// A kind of device that asks rules: what happens on it, and which faults it can show.
pub trait FaultModel: 'static {
    /// An event and its facts.
    type Event<'e>;
    /// The answer of a rule.
    type Verdict;
}

/// A rule that injects faults. It is pure.
pub trait Rule<M: FaultModel>: Send + Sync {
    /// Returns the verdict on an event; `None` if the event does not concern the rule. `random` serves this decision alone.
    fn judge(&self, event: &M::Event<'_>, random: &mut Random) -> Option<M::Verdict>;

    /// Returns the times at which the rule wants to be asked, on devices that have a clock of their own.
    fn moments(&self) -> Vec<Instant> {
        Vec::new()
    }
}

/// A rule made from a function.
struct FnRule<F>(F);

impl<M, F> Rule<M> for FnRule<F>
where
    M: FaultModel,
    F: Fn(&M::Event<'_>, &mut Random) -> Option<M::Verdict> + Send + Sync,
{
    fn judge(&self, event: &M::Event<'_>, random: &mut Random) -> Option<M::Verdict> {
        (self.0)(event, random)
    }
}

/// Makes a rule from a function.
pub fn from_fn<M, F>(judge: F) -> impl Rule<M> + use<M, F>
where
    M: FaultModel,
    F: Fn(&M::Event<'_>, &mut Random) -> Option<M::Verdict> + Send + Sync + 'static,
{
    FnRule(judge)
}

/// An ordered list of rules, and the seed that they draw from.
pub struct RuleList<M> {
    seed: u64,
    /// Each with its rank, which never changes.
    list: Vec<(u64, Arc<dyn Rule<M>>)>,
    model: PhantomData<fn(M)>,
}

impl<M> Clone for RuleList<M> {
    fn clone(&self) -> Self {
        Self {
            seed: self.seed,
            list: self.list.clone(),
            model: PhantomData,
        }
    }
}

impl<M> fmt::Debug for RuleList<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rules from seed {}", self.list.len(), self.seed)
    }
}

impl<M: FaultModel> RuleList<M> {
    /// Makes an empty list.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            list: Vec::new(),
            model: PhantomData,
        }
    }

    /// Returns these rules with `rule` behind them.
    #[must_use]
    pub fn with(mut self, rule: impl Rule<M> + 'static) -> Self {
        let rank = self.list.last().map_or(0, |(last, _)| last.wrapping_add(1));
        self.list.push((rank, Arc::new(rule)));
        self
    }

    /// Returns these rules with `rule` before them.
    #[must_use]
    pub fn first(mut self, rule: impl Rule<M> + 'static) -> Self {
        let rank = self
            .list
            .first()
            .map_or(0, |(first, _)| first.wrapping_sub(1));
        self.list.insert(0, (rank, Arc::new(rule)));
        self
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns all moments at which rules want to be asked, sorted and without duplicates.
    pub fn moments(&self) -> Vec<Instant> {
        let rules = self.list.iter();
        let mut all: Vec<_> = rules.flat_map(|(_, rule)| rule.moments()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the answers of all rules to an event, in order. `key` identifies the event within the run: it selects the
    /// random numbers.
    pub fn answers<'a, const N: usize>(
        &'a self,
        event: &'a M::Event<'a>,
        key: [u64; N],
    ) -> impl Iterator<Item = M::Verdict> + use<'a, M, N> {
        self.list.iter().filter_map(move |(rank, rule)| {
            let mut random = Random::of_words(self.seed, key.into_iter().chain([*rank]));
            rule.judge(event, &mut random)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events are numbers, and verdicts too.
    struct Numbers;

    impl FaultModel for Numbers {
        type Event<'e> = u64;
        type Verdict = u64;
    }

    fn draws() -> impl Rule<Numbers> {
        from_fn(|_: &u64, random: &mut Random| Some(random.bits()))
    }

    #[test]
    fn a_rule_that_is_added_changes_no_draw_of_the_others() {
        let two = RuleList::new(7).with(draws()).with(draws());
        let drawn: Vec<_> = two.answers(&1, [5]).collect();
        assert_ne!(drawn[0], drawn[1]);
        let more = two.clone().with(draws()).first(draws()).first(draws());
        let all: Vec<_> = more.answers(&1, [5]).collect();
        assert_eq!((all.len(), &all[2..4]), (5, &drawn[..]));
        let mut different = all.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), 5);
        assert_ne!(two.answers(&1, [6]).next(), Some(drawn[0]));
        assert_eq!(two.answers(&2, [5]).next(), Some(drawn[0]));
    }

    #[test]
    fn rules_that_do_not_answer_are_passed_over() {
        let odd = from_fn(|event: &u64, _: &mut Random| (event % 2 == 1).then_some(*event));
        let rules: RuleList<Numbers> = RuleList::new(1).with(odd).with(draws());
        assert_eq!(rules.answers(&3, [0]).count(), 2);
        assert_eq!(rules.answers(&4, [0]).count(), 1);
        assert_eq!(format!("{rules:?}"), "2 rules from seed 1");
    }
}

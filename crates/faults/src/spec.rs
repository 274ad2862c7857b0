//! Faults as users write them: `KIND[=RATE][@FILTER,…]`, as in `rnr=1%` and `wr_flush@qp=3,after=1000`.

use std::fmt;
use std::str::FromStr;

use headworks_verbs::Opcode;

use crate::random::Random;

/// A fault: which, how often, and of which requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultSpec {
    /// Name of the fault. The device knows which there are.
    pub kind: String,
    /// How often it occurs where the filters match.
    pub rate: Rate,
    /// Requests that it may concern.
    pub filters: Filters,
}

/// A probability: `of` in `among`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    of: u64,
    among: u64,
}

/// Requests that a fault may concern. All filters must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// Ordinal of the queue pair (for faults of polls: of the completion queue) among those of its device in this process,
    /// from 1.
    pub qp: Option<u64>,
    /// Operation of the request.
    pub op: Option<Opcode>,
    /// The first so many requests of the queue pair are spared.
    pub after: u64,
    /// Ordinal of the last request that is concerned, from 1.
    pub until: Option<u64>,
    /// The fault concerns every N-th request, counted from the first one after [`Filters::after`].
    pub every: Option<u64>,
    /// Smallest length of a request, in bytes.
    pub bytes: u64,
    /// How long a delay takes, in microseconds.
    pub us: Option<u64>,
}

/// A text that describes no fault: one line, with what is legal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadFault(pub String);

/// The names of operations.
const OPS: [(&str, Opcode); 5] = [
    ("send", Opcode::Send),
    ("write", Opcode::Write),
    ("read", Opcode::Read),
    ("cas", Opcode::CompareSwap),
    ("faa", Opcode::FetchAdd),
];

/// Most decimals of a percentage.
const DECIMALS_MAX: u32 = 6;
/// Largest number in a fault.
const NUMBER_MAX: u64 = 1_000_000_000;

/// The legal form of a whole fault.
const FORM: &str = "KIND[=RATE][@FILTER,…], as in rnr=1% or wr_flush@qp=3,after=1000";
const RATES: &str = "P% with P above 0 and at most 100, or 1/N with N from 1 to 1000000000";
const FILTERS: &str =
    "qp=N, op=send|write|read|cas|faa, after=N, until=N, every=N, bytes=N and us=N";

impl Rate {
    /// The probability 1.
    pub const ALWAYS: Self = Self { of: 1, among: 1 };

    /// Draws.
    pub fn hits(self, random: &mut Random) -> bool {
        self == Self::ALWAYS || random.below(self.among) < self.of
    }
}

impl FromStr for Rate {
    type Err = BadFault;

    fn from_str(text: &str) -> Result<Self, BadFault> {
        let read = || -> Option<Self> {
            if let Some(times) = text.strip_prefix("1/") {
                let among = number(times)?;
                return (among > 0).then_some(Self { of: 1, among });
            }
            let percent = text.strip_suffix('%')?;
            let (whole, decimals) = percent.split_once('.').unwrap_or((percent, ""));
            if decimals.len() > DECIMALS_MAX as usize
                || (percent.contains('.') && decimals.is_empty())
            {
                return None;
            }
            let scale = 10u64.pow(decimals.len() as u32);
            let fraction = if decimals.is_empty() {
                0
            } else {
                number(decimals)?
            };
            let of = number(whole)?.checked_mul(scale)?.checked_add(fraction)?;
            let among = 100 * scale;
            (1..=among).contains(&of).then_some(Self { of, among })
        };
        let rate = read()
            .ok_or_else(|| BadFault(format!("{text:?} is no rate of a fault: legal is {RATES}")))?;
        Ok(match rate.of == rate.among {
            true => Self::ALWAYS,
            false => rate,
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of, among } = *self;
        let scale = among / 100;
        // A denominator of 100 needs no decimals. Each further factor of ten needs one.
        let decimals = scale
            .checked_ilog10()
            .filter(|decimals| *decimals <= DECIMALS_MAX && 100 * 10u64.pow(*decimals) == among);
        match decimals {
            _ if *self == Self::ALWAYS => f.write_str("100%"),
            Some(0) => write!(f, "{of}%"),
            Some(decimals) => {
                let width = decimals as usize;
                write!(f, "{}.{:0width$}%", of / scale, of % scale)
            }
            None => write!(f, "1/{among}"),
        }
    }
}

/// Reads a number from 0 to [`NUMBER_MAX`], of digits only.
fn number(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_plain.then(|| text.parse().ok())??;
    (number <= NUMBER_MAX).then_some(number)
}

impl Filters {
    /// Whether a request is concerned: the ordinal of its queue pair, its operation, its ordinal there from 1, and its bytes.
    pub fn match_request(&self, qp: u64, op: Opcode, request: u64, bytes: u64) -> bool {
        self.qp.is_none_or(|only| only == qp)
            && self.op.is_none_or(|only| only == op)
            && self.match_number(request)
            && bytes >= self.bytes
    }

    fn match_number(&self, number: u64) -> bool {
        let Some(behind) = number.checked_sub(self.after).filter(|behind| *behind > 0) else {
            return false;
        };
        self.until.is_none_or(|last| number <= last)
            && self.every.is_none_or(|every| behind % every == 0)
    }

    /// Reads one filter, `key=value`.
    fn read(&mut self, text: &str) -> Result<(), BadFault> {
        let bad = || {
            BadFault(format!(
                "{text:?} is no filter of a fault: legal are {FILTERS}"
            ))
        };
        let (key, value) = text.split_once('=').ok_or_else(bad)?;
        if key == "op" {
            let named = OPS.iter().find(|(name, _)| *name == value);
            self.op = Some(named.ok_or_else(bad)?.1);
            return Ok(());
        }
        let value = number(value).ok_or_else(bad)?;
        let positive = || (value > 0).then_some(value).ok_or_else(bad);
        match key {
            "qp" => self.qp = Some(positive()?),
            "after" => self.after = value,
            "until" => self.until = Some(positive()?),
            "every" => self.every = Some(positive()?),
            "bytes" => self.bytes = value,
            "us" => self.us = Some(positive()?),
            _ => return Err(bad()),
        }
        Ok(())
    }
}

impl FromStr for FaultSpec {
    type Err = BadFault;

    fn from_str(text: &str) -> Result<Self, BadFault> {
        let bad = || BadFault(format!("{text:?} is no fault: legal is {FORM}"));
        let (what, filters) = match text.split_once('@') {
            Some((what, filters)) => (what, Some(filters)),
            None => (text, None),
        };
        let (kind, rate) = match what.split_once('=') {
            Some((kind, rate)) => (kind, rate.parse()?),
            None => (what, Rate::ALWAYS),
        };
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if kind.is_empty() || !kind.chars().all(is_name) {
            return Err(bad());
        }
        let mut all = Filters::default();
        for filter in filters.into_iter().flat_map(|filters| filters.split(',')) {
            all.read(filter)?;
        }
        if all.until.is_some_and(|until| until <= all.after) {
            return Err(BadFault(format!("{text:?}: until must be above after")));
        }
        Ok(Self {
            kind: kind.to_owned(),
            rate,
            filters: all,
        })
    }
}

impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if self.rate != Rate::ALWAYS {
            write!(f, "={}", self.rate)?;
        }
        let Filters {
            qp,
            op,
            after,
            until,
            every,
            bytes,
            us,
        } = self.filters;
        let op = OPS.iter().find(|(_, code)| Some(*code) == op);
        let positive = |number: u64| (number > 0).then_some(number);
        let numbers = [
            ("qp", qp),
            ("after", positive(after)),
            ("until", until),
            ("every", every),
            ("bytes", positive(bytes)),
            ("us", us),
        ];
        let numbers = numbers
            .iter()
            .filter_map(|(key, value)| value.map(|value| format!("{key}={value}")));
        let all: Vec<_> = op
            .map(|(name, _)| format!("op={name}"))
            .into_iter()
            .chain(numbers)
            .collect();
        match all.is_empty() {
            true => Ok(()),
            false => write!(f, "@{}", all.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(text: &str) -> FaultSpec {
        text.parse().expect(text)
    }

    #[test]
    fn faults_are_read_and_written_alike() {
        for text in [
            "rnr",
            "rnr=1%",
            "loss=0.25%",
            "loss=1/3000",
            "loss=1/1000000000",
            "loss=0.000001%",
            "wr_flush@qp=3,after=1000",
            "slow=50%@op=write,after=1,until=9,every=2,bytes=4096,us=500",
        ] {
            assert_eq!(spec(text).to_string(), text);
        }
        assert_eq!(spec("rnr=100%"), spec("rnr"));
        assert_eq!(spec("rnr=1/1"), spec("rnr"));
        assert_eq!(spec("rnr=1/1000"), spec("rnr=0.1%"));
        assert_eq!(spec("rnr=012.50%").to_string(), "rnr=12.50%");
        let flush = spec("wr_flush@qp=3,after=1000");
        assert_eq!((flush.filters.qp, flush.filters.after), (Some(3), 1000));
    }

    #[test]
    fn a_wrong_fault_is_named_with_what_is_legal() {
        for (text, legal) in [
            ("", FORM),
            ("Rnr", FORM),
            ("=1%", FORM),
            ("rnr=", RATES),
            ("rnr=0%", RATES),
            ("rnr=101%", RATES),
            ("rnr=1", RATES),
            ("rnr=1/0", RATES),
            ("rnr=2/3", RATES),
            ("rnr=1.%", RATES),
            ("rnr=0.0000001%", RATES),
            ("rnr=-1%", RATES),
            ("rnr@", FILTERS),
            ("rnr@qp", FILTERS),
            ("rnr@qp=0", FILTERS),
            ("rnr@qp=x", FILTERS),
            ("rnr@op=bind", FILTERS),
            ("rnr@after=1000000001", FILTERS),
            ("rnr@every=0", FILTERS),
            ("rnr@what=1", FILTERS),
            ("rnr@qp=1,,after=2", FILTERS),
            ("rnr@after=5,until=5", "above after"),
        ] {
            let error = text.parse::<FaultSpec>().expect_err(text).to_string();
            assert!(error.contains(legal), "{text}: {error}");
            assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn filters_select_requests() {
        let filters = spec("rnr@qp=2,op=send,after=10,until=20,every=5,bytes=8").filters;
        let matched: Vec<u64> = (0..40)
            .filter(|number| filters.match_request(2, Opcode::Send, *number, 8))
            .collect();
        assert_eq!(matched, [15, 20]);
        assert!(!filters.match_request(1, Opcode::Send, 15, 8));
        assert!(!filters.match_request(2, Opcode::Write, 15, 8));
        assert!(!filters.match_request(2, Opcode::Send, 15, 7));
        assert!(Filters::default().match_request(1, Opcode::Read, 1, 0));
    }

    #[test]
    fn a_rate_is_a_probability() {
        let hits = |text: &str| {
            let rate = spec(text).rate;
            let mut random = Random::new(3);
            (0..10_000).filter(|_| rate.hits(&mut random)).count()
        };
        assert_eq!(hits("rnr"), 10_000);
        assert!((400..600).contains(&hits("rnr=5%")));
        assert!((400..600).contains(&hits("rnr=1/20")));
        assert!((20..90).contains(&hits("rnr=0.5%")));
    }

    proptest! {
        #[test]
        fn every_rate_is_written_as_it_is_read(among in 1u64..=NUMBER_MAX, zeros in 0u32..=9) {
            for among in [among, 10u64.pow(zeros)] {
                let read = spec(&format!("rnr=1/{among}"));
                prop_assert_eq!(spec(&read.to_string()), read);
            }
        }

        #[test]
        fn no_text_panics(text in "[a-z_]{0,4}[=@%/.,0-9a-z]{0,16}|.{0,20}") {
            if let Ok(read) = text.parse::<FaultSpec>() {
                prop_assert_eq!(read.to_string().parse::<FaultSpec>(), Ok(read));
            }
        }
    }
}

//! The options of a soft device's name.

use headworks_verbs::{DeviceName, OpenError, Tuning};

use super::{Rules, rules};
use crate::table::limits::LIMITS;

/// The options that the name of a soft device selects.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) ordered_between_writes: bool,
    pub(crate) atomic_aligned_8: bool,
    /// Whether long WRITEs may use non-temporal stores.
    pub(crate) non_temporal: bool,
    /// Whether a peer's death fails only requests.
    pub(crate) silent_deaths: bool,
    /// How rings use the device.
    pub(crate) tuning: Tuning,
    /// The fault rules, if the device is hostile.
    pub(crate) rules: Option<Rules>,
}

const LEGAL: &str = "hostile, seed=N, kills=N and losses=N with it, ordered_between_writes=yes|no, \
                     atomic_aligned_8=yes|no, non_temporal=yes|no, silent_deaths=yes|no, relaxed_ordering=yes|no, inline_up_to=BYTES, \
                     as in soft:h2,hostile,seed=7";
const BARE: &str = "hostile takes no value; seed=N selects the faults";
const SEED: &str = "seed=N, a number from 0 to 18446744073709551615, with hostile";
const KILLS: &str = "kills=N, one request in N from 1 to 4294967295 kills its queue pair, or kills=no, with hostile";
const LOSSES: &str = "losses=N, one datagram or UC message in N from 1 to 4294967295 is lost, or losses=no, with hostile";
const ORDERED: &str = "ordered_between_writes=yes or ordered_between_writes=no";
const ATOMIC: &str = "atomic_aligned_8=yes or atomic_aligned_8=no";
const NON_TEMPORAL: &str = "non_temporal=yes or non_temporal=no";
const SILENT_DEATHS: &str = "silent_deaths=yes or silent_deaths=no";
const RELAXED: &str = "relaxed_ordering=yes or relaxed_ordering=no";
const INLINE: &str = "inline_up_to=BYTES, a number from 0 to 1024";

impl Options {
    /// Reads the options of a name. An error names the illegal option and what is legal.
    pub(crate) fn of(name: &DeviceName) -> Result<Self, OpenError> {
        let refused = |key: &str, value: Option<&str>, legal| OpenError::BadOption {
            option: value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}")),
            kind: "soft",
            legal,
        };
        let yes = |key: &str, legal| match name.option(key) {
            None | Some(Some("yes")) => Ok(true),
            Some(Some("no")) => Ok(false),
            Some(other) => Err(refused(key, other, legal)),
        };
        let is_set =
            |key: &str, legal| Ok::<_, OpenError>(name.option(key).is_some() && yes(key, legal)?);
        let number = |value: Option<&str>| {
            let digits = value.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            digits.and_then(|text| text.parse::<u64>().ok())
        };
        // A fault occurs once in this many; 0 means never.
        let mean = |key: &str, value: Option<&str>, legal| match (value, number(value)) {
            (Some("no"), _) => Ok(Some(0)),
            (_, Some(mean @ 1..=0xffff_ffff)) => Ok(Some(mean)),
            _ => Err(refused(key, value, legal)),
        };
        let (mut hostile, mut seed) = (false, None);
        let (mut kills, mut losses) = (None, None);
        let mut inline_up_to = 0;
        for (key, value) in name.options() {
            match (key, value) {
                ("hostile", None) => hostile = true,
                ("hostile", _) => return Err(refused(key, value, BARE)),
                ("seed", _) => match number(value) {
                    Some(number) => seed = Some(number),
                    None => return Err(refused(key, value, SEED)),
                },
                ("kills", _) => kills = mean(key, value, KILLS)?,
                ("losses", _) => losses = mean(key, value, LOSSES)?,
                ("inline_up_to", _) => match number(value) {
                    Some(bytes) if bytes <= LIMITS.max_inline.into() => inline_up_to = bytes as u32,
                    _ => return Err(refused(key, value, INLINE)),
                },
                (
                    "ordered_between_writes"
                    | "atomic_aligned_8"
                    | "non_temporal"
                    | "silent_deaths"
                    | "relaxed_ordering",
                    _,
                ) => {}
                _ => return Err(refused(key, value, LEGAL)),
            }
        }
        for (key, number, legal) in [
            ("seed", seed, SEED),
            ("kills", kills, KILLS),
            ("losses", losses, LOSSES),
        ] {
            if !hostile && number.is_some() {
                return Err(refused(key, name.option(key).flatten(), legal));
            }
        }
        let rules = hostile.then(|| {
            let mut all = Rules::all(seed.unwrap_or(1));
            if let Some(mean @ 1..) = kills {
                all = all.first(rules::kills(mean));
            }
            if let Some(mean @ 1..) = losses {
                all = all.first(rules::losses(mean));
            }
            all
        });
        Ok(Self {
            ordered_between_writes: yes("ordered_between_writes", ORDERED)?,
            atomic_aligned_8: yes("atomic_aligned_8", ATOMIC)?,
            non_temporal: yes("non_temporal", NON_TEMPORAL)?,
            silent_deaths: is_set("silent_deaths", SILENT_DEATHS)?,
            tuning: Tuning {
                relaxed_ordering: is_set("relaxed_ordering", RELAXED)?,
                inline_up_to,
            },
            rules,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Result<Options, String> {
        let name = name.parse().unwrap();
        Options::of(&name).map_err(|error| error.to_string())
    }

    #[test]
    fn documented_option_names_have_their_documented_meaning() {
        let plain = of("soft").unwrap();
        assert!(plain.rules.is_none() && plain.ordered_between_writes && plain.atomic_aligned_8);
        assert!(!plain.silent_deaths && of("soft,silent_deaths=yes").unwrap().silent_deaths);
        assert!(!of("soft,silent_deaths=no").unwrap().silent_deaths);
        assert!(plain.non_temporal && !of("soft,non_temporal=no").unwrap().non_temporal);
        assert_eq!(of("soft:h2,hostile").unwrap().rules.unwrap().seed(), 1);
        assert_eq!(of("soft,hostile,seed=7").unwrap().rules.unwrap().seed(), 7);
        let less = of("soft,ordered_between_writes=no").unwrap();
        assert!(less.rules.is_none() && !less.ordered_between_writes && less.atomic_aligned_8);
        let less = of("soft,atomic_aligned_8=no,hostile,kills=no").unwrap();
        assert!(less.rules.is_some() && less.ordered_between_writes && !less.atomic_aligned_8);
        assert!(of("soft,hostile,ordered_between_writes=yes,kills=100").is_ok());
    }

    #[test]
    fn the_seed_and_how_often_is_killed_are_those_of_the_name() {
        use crate::hostile::{FaultEvent, FaultPoint, Verdict};
        use headworks_verbs::{Opcode, Qpn};

        let fates = |name: &str| -> Vec<Verdict> {
            let rules = of(name).unwrap().rules.unwrap();
            let fate = |number| {
                rules.judge(&FaultEvent {
                    point: FaultPoint::Begin,
                    stream: 0,
                    ordinal: 1,
                    qpn: Qpn::default(),
                    op: Opcode::Write,
                    wr_id: 0,
                    len: 8,
                    number,
                    turn: 0,
                })
            };
            (1..=400).map(fate).collect()
        };
        let killed = |name: &str| {
            let fates = fates(name);
            let killed = fates.iter().filter(|fate| matches!(fate, Verdict::Kill(_)));
            killed.count()
        };
        assert_eq!(killed("soft,hostile"), 0);
        assert_eq!(killed("soft,hostile,kills=no"), 0);
        assert!((5..40).contains(&killed("soft,hostile,kills=10")));
        assert_eq!(fates("soft,hostile"), fates("soft,hostile,seed=1"));
        assert_ne!(fates("soft,hostile"), fates("soft,hostile,seed=2"));
    }

    #[test]
    fn a_wrong_option_is_named_with_the_legal_values() {
        let wrong = |option: &str, legal: &str| {
            let error = of(&format!("soft:h1,{option}")).unwrap_err();
            let option = option.rsplit(',').next().unwrap();
            assert!(error.contains(&format!("{option:?}")), "{option}: {error}");
            assert!(error.contains(legal), "{option}: {error}");
            assert!(!error.contains('\n'));
        };
        wrong("hostile=yes", BARE);
        wrong("seed=7", SEED);
        wrong("kills=7", KILLS);
        wrong("losses=7", LOSSES);
        wrong("hostile,losses=0", LOSSES);
        wrong("hostile,losses", LOSSES);
        wrong("hostile,seed=x", SEED);
        wrong("hostile,seed", SEED);
        wrong("hostile,seed=-1", SEED);
        wrong("hostile,seed=+1", SEED);
        wrong("hostile,kills=0", KILLS);
        wrong("hostile,kills=4294967296", KILLS);
        wrong("ordered_between_writes", ORDERED);
        wrong("atomic_aligned_8=maybe", ATOMIC);
        wrong("non_temporal", NON_TEMPORAL);
        wrong("loss=3", LEGAL);
    }
}

//! Pairs of constants that may contradict each other.

use std::fmt;

use super::{Preset, Value};

/// Two constants of which the first must not exceed the second.
#[derive(Debug, PartialEq)]
pub struct OrderedPair {
    /// Key of the constant that must not exceed the other one.
    pub key: &'static str,
    /// Key of the other constant.
    pub limit: &'static str,
    /// Number of units of the first constant in a unit of the second one.
    pub units: f64,
    /// Keys of constants that lift the demand. Each lifts it where its value is 0.
    pub unless: &'static [&'static str],
}

impl OrderedPair {
    const fn of(key: &'static str, limit: &'static str, unless: &'static [&'static str]) -> Self {
        Self {
            key,
            limit,
            units: 1.0,
            unless,
        }
    }
}

/// All pairs that [`Preset::check`] checks.
pub const CONTRADICTIONS: &[OrderedPair] = &[
    OrderedPair::of("cpu.page", "cpu.huge_page", &[]),
    OrderedPair::of("host.dma_cache", "host.cache", &["host.cache"]),
    OrderedPair::of("host.antagonist", "host.memory", &["host.cache"]),
    OrderedPair::of("host.line_time", "host.loaded_line_time", &["host.cache"]),
    OrderedPair::of("nic.rx_pause", "nic.rx_buffer", &["nic.rx_buffer"]),
    OrderedPair::of("nic.rx_resume", "nic.rx_pause", &["nic.rx_pause"]),
    OrderedPair::of("nic.rx_notify", "nic.rx_buffer", &["nic.rx_buffer"]),
    OrderedPair::of("switch.pause", "switch.buffer", &["switch.buffer"]),
    OrderedPair::of("switch.resume", "switch.pause", &["switch.pause"]),
    OrderedPair::of("switch.mark_from", "switch.mark_all", &["switch.mark_all"]),
    OrderedPair::of(
        "switch.mark_from",
        "switch.buffer",
        &["switch.buffer", "switch.mark_all"],
    ),
    OrderedPair {
        // Mbit/s and Gbit/s.
        units: 1000.0,
        ..OrderedPair::of("dcqcn.lowest", "link.rate", &["dcqcn.on"])
    },
];

/// Error: two constants of a preset contradict each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Contradiction {
    /// The pair that they are.
    pub pair: &'static OrderedPair,
    /// Value of the constant that exceeds the other one.
    pub value: Value,
    /// Value of the other constant.
    pub limit: Value,
}

impl std::error::Error for Contradiction {}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pair, value, limit } = self;
        let (key, other) = (pair.key, pair.limit);
        let most = limit.as_f64() * pair.units;
        let unit = Preset::constant(key).map_or("", |constant| constant.unit);
        write!(
            f,
            "{key}={value} contradicts {other}={limit}: {key} is at most {most} {unit}"
        )?;
        match pair.unless {
            [] => Ok(()),
            keys => write!(f, ", unless {} is 0", keys.join(" or ")),
        }
    }
}

impl Preset {
    /// Refuses constants that contradict each other.
    ///
    /// # Errors
    ///
    /// The first pair of [`CONTRADICTIONS`] whose first constant exceeds the second one.
    pub fn check(&self) -> Result<(), Contradiction> {
        let contradicts = |pair: &'static OrderedPair| {
            let is_off = |key: &&str| self.number(key) == 0.0;
            if pair.unless.iter().any(is_off) {
                return None;
            }
            let (value, limit) = (self.value(pair.key)?, self.value(pair.limit)?);
            let exceeds = value.as_f64() > limit.as_f64() * pair.units;
            exceeds.then_some(Contradiction { pair, value, limit })
        };
        match CONTRADICTIONS.iter().find_map(contradicts) {
            Some(contradiction) => Err(contradiction),
            None => Ok(()),
        }
    }

    fn number(&self, key: &str) -> f64 {
        self.value(key).map_or(f64::NAN, Value::as_f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error of a preset with these settings.
    fn refused(name: &str, settings: &[(&str, &str)]) -> Option<String> {
        let mut preset = Preset::named(name).expect("a preset");
        for (key, value) in settings {
            preset.set(key, value).expect("within bounds");
        }
        preset.check().err().map(|why| why.to_string())
    }

    #[test]
    fn no_preset_contradicts_itself_and_every_pair_has_keys_that_exist() {
        for name in Preset::NAMES {
            assert_eq!(refused(name, &[]), None, "{name}");
        }
        for pair in CONTRADICTIONS {
            let keys = [pair.key, pair.limit];
            for key in keys.iter().chain(pair.unless) {
                assert!(Preset::constant(key).is_some(), "{key}");
            }
        }
    }

    /// Settings of one constant that contradict another constant of cx4lx-2x25g, one of each pair.
    const WRONG: [(&str, &str, &str); 12] = [
        ("cpu.page", "4096", "cpu.huge_page=2048"),
        ("host.dma_cache", "20481", "host.cache=20480"),
        ("host.antagonist", "60.5", "host.memory=60"),
        ("host.line_time", "271", "host.loaded_line_time=270"),
        ("nic.rx_pause", "256", "nic.rx_buffer=255.875"),
        ("nic.rx_resume", "245", "nic.rx_pause=244"),
        ("nic.rx_notify", "256", "nic.rx_buffer=255.875"),
        ("switch.pause", "2049", "switch.buffer=2048"),
        ("switch.resume", "1025", "switch.pause=1024"),
        ("switch.mark_from", "401", "switch.mark_all=400"),
        ("switch.mark_from", "2049", "switch.buffer=2048"),
        ("dcqcn.lowest", "25001", "link.rate=25"),
    ];

    #[test]
    fn each_pair_is_checked_and_the_error_names_both_values_and_the_limit() {
        for ((key, value, limit), pair) in WRONG.into_iter().zip(CONTRADICTIONS) {
            assert_eq!(pair.key, key);
            assert!(limit.starts_with(pair.limit), "{limit}");
            let mut settings = vec![(key, value)];
            if (key, pair.limit) == ("switch.mark_from", "switch.buffer") {
                settings.push(("switch.mark_all", "4096"));
                settings.push(("switch.pause", "0"));
            }
            let said = refused("cx4lx-2x25g", &settings).unwrap_or_default();
            let begin = format!("{key}={value} contradicts {limit}: {key} is at most ");
            assert!(said.starts_with(&begin), "{said:?}, not {begin}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
        let said = refused("cx4lx-2x25g", &[("dcqcn.lowest", "30000")]);
        let expected = "dcqcn.lowest=30000 contradicts link.rate=25: dcqcn.lowest is at most 25000 Mbit/s, unless \
                        dcqcn.on is 0";
        assert_eq!(said.as_deref(), Some(expected));
    }

    #[test]
    fn equal_values_are_allowed() {
        for (key, _, limit) in WRONG {
            let (limit, most) = limit.split_once('=').expect("a setting");
            let value = match limit {
                "link.rate" => "25000",
                _ => most,
            };
            let also = [(key, value), ("switch.mark_all", "2048")];
            assert_eq!(
                refused("cx4lx-2x25g", &also),
                None,
                "{key}={value}, {limit}"
            );
        }
    }

    #[test]
    fn a_mechanism_that_is_switched_off_contradicts_nothing() {
        for off in [
            &[("host.cache", "0")][..],
            &[("nic.rx_pause", "0"), ("switch.pause", "0")],
            &[("nic.rx_buffer", "0"), ("switch.buffer", "0")],
            &[("switch.mark_all", "0")],
            &[("dcqcn.on", "0"), ("dcqcn.lowest", "30000")],
        ] {
            assert_eq!(refused("cx4lx-2x25g", off), None, "{off:?}");
        }
    }
}

//! Faults that the devices inject, if the environment asks for them.
//!
//! The environment variable [`FAULTS`] lists faults, separated by semicolons: `rnr=1%;wr_flush@qp=3,after=1000`. [`SEED`] selects what
//! chance decides. All devices of a process have the same rules. Ordinals of queue pairs count anew for each open device.

use std::sync::OnceLock;

use headworks_softnic::hostile::{Rules, plan};

/// The environment variable with the faults.
pub(crate) const FAULTS: &str = "HEADWORKS_VERBS_FAULTS";
/// The environment variable with the seed; 1 without it.
pub(crate) const SEED: &str = "HEADWORKS_VERBS_SEED";

/// The rules of faults that [`FAULTS`] lists, whose value is `faults`, if it lists any. `seed` is the value of [`SEED`].
///
/// # Errors
///
/// One line on what is wrong with a value.
pub(crate) fn rules(faults: Option<&str>, seed: Option<&str>) -> Result<Option<Rules>, String> {
    let Some(faults) = faults.filter(|faults| !faults.is_empty()) else {
        return Ok(None);
    };
    let seed = match seed {
        None | Some("") => 1,
        Some(text) => text.parse().map_err(|_| {
            let most = u64::MAX;
            format!("{SEED} is {text:?}: a number from 0 to {most} is legal")
        })?,
    };
    let rules = plan::rules_of_text(faults, seed);
    rules
        .map(Some)
        .map_err(|error| format!("{FAULTS}: {error}"))
}

/// The rules of this process; `None` without faults.
///
/// # Errors
///
/// One line on what is wrong with the environment, the same at each call.
pub(crate) fn of_process() -> Result<Option<&'static Rules>, &'static str> {
    static RULES: OnceLock<Result<Option<Rules>, String>> = OnceLock::new();
    let rules = RULES.get_or_init(|| {
        let value = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        rules(value(FAULTS).as_deref(), value(SEED).as_deref())
    });
    rules.as_ref().map(Option::as_ref).map_err(String::as_str)
}

/// One line on what the rules did.
pub(crate) fn summary(rules: &Rules) -> String {
    let (count, seed, digest) = (rules.verdicts(), rules.seed(), rules.digest());
    format!("faults injected: {count}, with seed {seed}; digest {digest:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_are_read_or_refused_in_one_line() {
        assert!(rules(None, Some("what")).unwrap().is_none());
        assert!(rules(Some(""), None).unwrap().is_none());
        let two = rules(Some("rnr=1%;wr_flush@qp=3,after=1000"), Some("7"));
        let two = two.unwrap().unwrap();
        assert_eq!(
            summary(&two),
            "faults injected: 0, with seed 7; digest 0000000000000000"
        );
        assert_eq!(rules(Some("rnr"), None).unwrap().unwrap().seed(), 1);
        for (faults, seed, names) in [
            ("what", "1", FAULTS),
            ("rnr=1%;", "1", FAULTS),
            ("rnr", "-1", SEED),
        ] {
            let error = rules(Some(faults), Some(seed)).unwrap_err();
            assert!(error.starts_with(names), "{error}");
        }
    }
}

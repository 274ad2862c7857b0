//! Takes the place of `pace` in a build without the feature `pacing`: refuses names that ask for pacing.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;

use headworks_verbs::{Device, DeviceName, OpenError};

/// Returns the name and no configuration.
///
/// # Errors
///
/// [`OpenError::MissingFeature`] if the name has an option of pacing.
pub(crate) fn split(name: &DeviceName) -> Result<(DeviceName, Option<Infallible>), OpenError> {
    let is_pacing = |key: &str| key == "pace" || key.starts_with("pace_");
    match name.options().find(|(key, _)| is_pacing(key)) {
        Some((key, _)) => Err(OpenError::MissingFeature {
            what: format!("the device option {key}"),
            feature: "pacing",
        }),
        None => Ok((name.clone(), None)),
    }
}

/// Cannot be called, since no configuration exists.
pub(crate) fn paced(
    _: Arc<dyn Device>,
    _: &DeviceName,
    config: Infallible,
) -> Result<Arc<dyn Device>, OpenError> {
    match config {}
}

/// Whether an error is about a constant of pacing; no error is.
pub(crate) fn is_bad_constant(_: &(dyn Error + 'static)) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_asks_for_pacing_is_refused_with_the_feature() {
        for name in ["soft:h1,pace", "soft,pace_window=1"] {
            let error = split(&name.parse().expect("a name")).expect_err("no pacing");
            let said = error.to_string();
            assert!(
                said.contains("pace") && said.contains("\"pacing\""),
                "{said}"
            );
        }
        let plain = "soft:h1,hostile".parse().expect("a name");
        assert_eq!(split(&plain).expect("not paced").0, plain);
    }
}

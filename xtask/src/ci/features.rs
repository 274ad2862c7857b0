//! The step that checks the cargo features of the crate `headworks`: each alone, and none.

use std::collections::BTreeMap;
use std::process::Command;

use serde::Deserialize;

use super::{Ended, Run, finish};

/// The package whose features are checked.
const PACKAGE: &str = "headworks";

/// The part of `cargo metadata`'s output that is used here.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    /// The features, each with what it turns on.
    features: BTreeMap<String, Vec<String>>,
}

/// Checks the library of [`PACKAGE`] with each set of features. All features together are the lints' business.
pub(super) fn run(run: &mut Run) -> Result<Ended, String> {
    let args = ["metadata", "--no-deps", "--format-version", "1", "--locked"];
    for features in sets(&metadata(&mut run.cargo(&args))?)? {
        let mut command = run.cargo(&["clippy", "--quiet", "--locked", "--lib", "--no-deps"]);
        command
            .args(["-p", PACKAGE, "--no-default-features", "--features"])
            .args([features.as_str(), "--", "-D", "warnings"]);
        finish(&mut command)?;
    }
    Ok(Ended::Passed)
}

fn metadata(command: &mut Command) -> Result<Vec<u8>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cargo metadata: {error}");
    let output = command.output().map_err(|error| failed(&error))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(failed(&String::from_utf8_lossy(&output.stderr))),
    }
}

/// Returns the sets of features: the empty one, and each feature of the package alone.
fn sets(metadata: &[u8]) -> Result<Vec<String>, String> {
    let metadata: Metadata =
        serde_json::from_slice(metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let mut packages = metadata.packages.into_iter();
    let package = packages.find(|package| package.name == PACKAGE);
    let features = package
        .ok_or_else(|| format!("no package {PACKAGE}"))?
        .features;
    let alone = features.into_keys().filter(|name| name != "default");
    Ok(std::iter::once(String::new()).chain(alone).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_checked_alone_and_none_is_too() {
        let metadata = br#"{"packages": [
            {"name": "other", "features": {"x": []}},
            {"name": "headworks", "features": {"default": ["a"], "a": [], "b": ["a"]}}
        ]}"#;
        assert_eq!(sets(metadata).expect("sets"), ["", "a", "b"]);
        assert!(sets(b"{\"packages\": []}").is_err());
    }
}

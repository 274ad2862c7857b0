//! Checks which package may depend on which.
//!
//! [`ALLOWED`] is the diagram of `ARCHITECTURE.md` as a table: change both together. A package's normal and
//! build dependencies must be in its row. Its tests may use other packages too, such as a provider, but none
//! that by this table depends on the package itself.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

/// Each package with the packages of the workspace that it may depend on.
pub const ALLOWED: &[(&str, &[&str])] = &[
    ("headworks-wire", &[]),
    ("headworks-constants", &[]),
    ("headworks-verbs", &["headworks-wire"]),
    ("headworks-faults", &["headworks-verbs"]),
    ("headworks-shm", &["headworks-wire"]),
    (
        "headworks-net",
        &["headworks-wire", "headworks-verbs", "headworks-shm"],
    ),
    (
        "headworks-runtime",
        &["headworks-wire", "headworks-net", "headworks-verbs"],
    ),
    (
        "headworks-softnic",
        &["headworks-faults", "headworks-verbs", "headworks-shm"],
    ),
    ("headworks-verbs-abi", &["headworks-verbs"]),
    (
        "headworks-ibverbs",
        &["headworks-verbs", "headworks-verbs-abi", "headworks-shm"],
    ),
    (
        "headworks-libibverbs",
        &[
            "headworks-softnic",
            "headworks-verbs",
            "headworks-verbs-abi",
        ],
    ),
    (
        "headworks-simnic",
        &[
            "headworks-constants",
            "headworks-faults",
            "headworks-verbs",
            "headworks-shm",
            "headworks-net",
            "headworks-runtime",
        ],
    ),
    (
        "headworks-ring",
        &["headworks-wire", "headworks-verbs", "headworks-shm"],
    ),
    (
        "headworks-pacing",
        &["headworks-constants", "headworks-verbs", "headworks-shm"],
    ),
    ("headworks-rxpool", &["headworks-verbs", "headworks-shm"]),
    (
        "headworks-client",
        &["headworks-wire", "headworks-shm", "headworks-verbs"],
    ),
    (
        "headworks-daemon",
        &[
            "headworks-wire",
            "headworks-client",
            "headworks-net",
            "headworks-runtime",
            "headworks-ring",
            "headworks-pacing",
            "headworks-rxpool",
            "headworks-verbs",
            "headworks-shm",
        ],
    ),
    (
        "headworks-baselines",
        &["headworks-ring", "headworks-verbs", "headworks-shm"],
    ),
    (
        "headworks-patterns",
        &["headworks-wire", "headworks-baselines", "headworks-verbs"],
    ),
    (
        "headworks-conformance",
        &["headworks-net", "headworks-runtime", "headworks-verbs"],
    ),
    (
        "headworks",
        &[
            "headworks-verbs",
            "headworks-shm",
            "headworks-net",
            "headworks-runtime",
            "headworks-softnic",
            "headworks-ibverbs",
            "headworks-simnic",
            "headworks-ring",
            "headworks-pacing",
            "headworks-client",
            "headworks-daemon",
        ],
    ),
    (
        "headworks-experiments",
        &[
            "headworks",
            "headworks-baselines",
            "headworks-runtime",
            "headworks-workloads",
        ],
    ),
    (
        "headworks-workloads",
        &[
            "headworks",
            "headworks-wire",
            "headworks-baselines",
            "headworks-net",
            "headworks-patterns",
            "headworks-runtime",
            "headworks-rxpool",
        ],
    ),
    (
        "headworks-cli",
        &[
            "headworks",
            "headworks-experiments",
            "headworks-soak",
            "headworks-workloads",
        ],
    ),
    ("headworks-soak", &["headworks"]),
    ("headworks-capi", &["headworks"]),
    ("headworks-examples", &["headworks"]),
    (
        "headworks-examples-tasks",
        &["headworks", "headworks-examples"],
    ),
    (
        "headworks-fuzz",
        &[
            "headworks-verbs",
            "headworks-shm",
            "headworks-net",
            "headworks-runtime",
            "headworks-softnic",
            "headworks-ring",
            "headworks-client",
            "headworks-daemon",
            "headworks",
            "headworks-baselines",
            "headworks-patterns",
            "headworks-workloads",
        ],
    ),
    ("xtask", &[]),
];

/// The part of `cargo metadata`'s output that is used here.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// The members of the workspace.
    pub packages: Vec<Package>,
}

/// A member of the workspace.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its direct dependencies.
    pub dependencies: Vec<Dependency>,
}

/// A direct dependency.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    /// Its name.
    pub name: String,
    /// `null`, `"build"` or `"dev"`.
    pub kind: Option<String>,
}

/// A dependency that breaks the layering, or a mismatch between the table and the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A package that is not in the table.
    Unknown(String),
    /// A row of the table without a package.
    Missing(&'static str),
    /// A dependency that is not in the table.
    Forbidden {
        /// The package that has the dependency.
        from: String,
        /// The package that it depends on.
        to: String,
    },
    /// Tests that use a package that depends on their own package.
    Upward {
        /// The package of the tests.
        from: String,
        /// The package that the tests use.
        to: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(
                f,
                "{name} has no row in xtask/src/layering.rs: add one with its allowed dependencies, \
                 and add the package to ARCHITECTURE.md"
            ),
            Self::Missing(name) => write!(
                f,
                "xtask/src/layering.rs has a row for {name}, but the workspace has no such package: remove the row"
            ),
            Self::Forbidden { from, to } => {
                let allowed = row(from).unwrap_or_default();
                let allowed = if allowed.is_empty() {
                    "no package of the workspace".to_owned()
                } else {
                    allowed.join(", ")
                };
                write!(
                    f,
                    "{from} must not depend on {to}; it may depend on {allowed}"
                )
            }
            Self::Upward { from, to } => write!(
                f,
                "the tests of {from} depend on {to}, which itself depends on {from}: \
                 move the tests to a higher package, or use a lower one"
            ),
        }
    }
}

/// The workspace at `root`, without its external dependencies.
pub fn metadata(root: &Path) -> Result<Metadata, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata: {said}"));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// All violations in `workspace`.
pub fn check(workspace: &Metadata) -> Vec<Violation> {
    let members: BTreeSet<&str> = workspace.packages.iter().map(|p| &*p.name).collect();
    let mut wrong: Vec<_> = ALLOWED
        .iter()
        .filter(|(name, _)| !members.contains(name))
        .map(|(name, _)| Violation::Missing(name))
        .collect();
    for package in &workspace.packages {
        let from = &package.name;
        let Some(allowed) = row(from) else {
            wrong.push(Violation::Unknown(from.clone()));
            continue;
        };
        let inside = package
            .dependencies
            .iter()
            .filter(|d| members.contains(&*d.name));
        for dependency in inside {
            let to = dependency.name.clone();
            let is_dev = dependency.kind.as_deref() == Some("dev");
            if is_dev && depends_transitively(&to, from) {
                let from = from.clone();
                wrong.push(Violation::Upward { from, to });
            } else if !is_dev && !allowed.contains(&&*to) {
                let from = from.clone();
                wrong.push(Violation::Forbidden { from, to });
            }
        }
    }
    wrong
}

fn row(name: &str) -> Option<&'static [&'static str]> {
    ALLOWED
        .iter()
        .find(|(package, _)| *package == name)
        .map(|(_, allowed)| *allowed)
}

/// Whether the table lets `upper` depend on `lower`, directly or not.
fn depends_transitively(upper: &str, lower: &str) -> bool {
    row(upper)
        .unwrap_or_default()
        .iter()
        .any(|next| *next == lower || depends_transitively(next, lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(from: &str, to: &str, kind: Option<&str>) -> Metadata {
        let mut packages: Vec<_> = ALLOWED
            .iter()
            .map(|(name, _)| Package {
                name: (*name).to_owned(),
                dependencies: Vec::new(),
            })
            .collect();
        let dependency = Dependency {
            name: to.to_owned(),
            kind: kind.map(str::to_owned),
        };
        match packages.iter_mut().find(|p| p.name == from) {
            Some(package) => package.dependencies.push(dependency),
            None => packages.push(Package {
                name: from.to_owned(),
                dependencies: vec![dependency],
            }),
        }
        Metadata { packages }
    }

    #[test]
    fn dependencies_of_the_table_pass() {
        for (from, allowed) in ALLOWED {
            for to in *allowed {
                assert_eq!(check(&workspace(from, to, None)), []);
            }
        }
    }

    #[test]
    fn the_table_has_no_cycle() {
        for (name, _) in ALLOWED {
            assert!(
                !depends_transitively(name, name),
                "{name} depends on itself"
            );
        }
    }

    #[test]
    fn an_illegal_dependency_is_named_with_the_allowed_ones() {
        let wrong = check(&workspace("headworks-ring", "headworks-softnic", None));
        let said: Vec<_> = wrong.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            ["headworks-ring must not depend on headworks-softnic; \
              it may depend on headworks-wire, headworks-verbs, headworks-shm"]
        );
        let build = check(&workspace("headworks-wire", "headworks-shm", Some("build")));
        assert_eq!(build.len(), 1);
        assert!(build[0].to_string().contains("no package of the workspace"));
    }

    #[test]
    fn tests_borrow_providers_but_nothing_from_above() {
        let dev = Some("dev");
        assert_eq!(
            check(&workspace("headworks-ring", "headworks-softnic", dev)),
            []
        );
        let wrong = check(&workspace("headworks-verbs", "headworks", dev));
        let upward = Violation::Upward {
            from: "headworks-verbs".to_owned(),
            to: "headworks".to_owned(),
        };
        assert_eq!(wrong, [upward]);
    }

    #[test]
    fn every_package_has_a_row_and_every_row_a_package() {
        let unknown = check(&workspace("headworks-new", "serde", None));
        assert_eq!(unknown, [Violation::Unknown("headworks-new".to_owned())]);
        let none = Metadata {
            packages: Vec::new(),
        };
        assert_eq!(check(&none).len(), ALLOWED.len());
    }
}

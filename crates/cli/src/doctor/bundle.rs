//! `headworks doctor --bundle FILE`: writes what a bug report needs to an archive.
//!
//! | module | purpose |
//! |---|---|
//! | `collect` | reads the files |
//! | `redact` | replaces names and addresses by placeholders: pure |
//! | `archive` | writes the archive, whole or not at all |

use std::path::Path;

use crate::devices;
use crate::exit_status::{one_line, print};
use archive::Entry;
use collect::OwnFacts;
use redact::Redactor;

mod archive;
mod collect;
mod redact;

/// Refuses a path that the archive cannot be written to.
pub(super) fn check(path: &Path) -> anyhow::Result<()> {
    archive::check(path)
}

/// Writes the archive, whose `findings` are those of the doctor as JSON, and prints what is in it.
pub(super) fn write(path: &Path, findings: String, with_addresses: bool) -> anyhow::Result<()> {
    let own = own_facts(findings);
    let root = Path::new("/");
    let entries = collect::entries(root, &own);
    let bundle = match with_addresses {
        true => Bundle::with_addresses(entries),
        false => Bundle::redacted(entries, Redactor::new(&collect::names(root, &own))),
    };
    archive::write(path, &bundle.entries)?;
    print(&bundle.report(path))
}

fn own_facts(findings: String) -> OwnFacts {
    let system = rustix::system::uname();
    let in_words = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    OwnFacts {
        findings,
        devices: devices::text(true)
            .unwrap_or_else(|error| format!("not listed: {}\n", one_line(&error))),
        versions: format!(
            "headworks/version: {}\nkernel/version: {} {}\nkernel/build: {}\nmachine: {}\n",
            env!("CARGO_PKG_VERSION"),
            in_words(system.sysname()),
            in_words(system.release()),
            in_words(system.version()),
            in_words(system.machine()),
        ),
        host: in_words(system.nodename()),
        user: rustix::process::getuid().as_raw(),
        variables: variables(),
    }
}

/// Returns the environment, sorted by name.
fn variables() -> Vec<(String, String)> {
    let mut variables: Vec<_> = std::env::vars_os()
        .map(|(name, value)| {
            let [name, value] = [name, value].map(|text| text.to_string_lossy().into_owned());
            (name, value)
        })
        .collect();
    variables.sort();
    variables
}

/// The files of an archive.
#[derive(Debug)]
struct Bundle {
    entries: Vec<Entry>,
    /// Summary of the replaced names and addresses.
    replaced: String,
}

impl Bundle {
    /// Replaces names and addresses in the entries, in their paths too.
    fn redacted(entries: Vec<Entry>, mut redactor: Redactor) -> Self {
        let entries = entries.into_iter().map(|entry| Entry {
            path: redactor.text(&entry.path),
            text: redactor.text(&entry.text),
        });
        let entries = entries.collect();
        let replaced = format!(
            "Replaced: {}. Equal ones have the same placeholder.",
            redactor.summary()
        );
        Self::with_contents(entries, replaced)
    }

    /// Leaves the entries as they are.
    fn with_addresses(entries: Vec<Entry>) -> Self {
        let replaced = "Replaced: nothing, as --with-addresses says.".to_owned();
        Self::with_contents(entries, replaced)
    }

    /// Adds the list of the entries as the first one.
    fn with_contents(mut entries: Vec<Entry>, replaced: String) -> Self {
        let mut text = format!(
            "Report of headworks doctor --bundle, version {}.\n{replaced}\n\n",
            env!("CARGO_PKG_VERSION")
        );
        for entry in &entries {
            text.push_str(&format!("{}\n", entry.path));
        }
        let path = "contents.txt".to_owned();
        entries.insert(0, Entry { path, text });
        Self { entries, replaced }
    }

    /// Describes the archive that was written to `path`.
    fn report(&self, path: &Path) -> String {
        let path = path.display();
        let mut text = format!("{path}:\n");
        for entry in &self.entries {
            let (name, bytes) = (&entry.path, entry.text.len());
            text.push_str(&format!("    {name:<32}{bytes:>8} bytes\n"));
        }
        text.push_str(&self.replaced);
        text.push_str(&format!(
            "\nRead it before you send it: tar xOf {path} | less\n"
        ));
        text
    }
}

#[cfg(test)]
mod tests;

//! The section `[ecn]` of the daemon's configuration file: the commands that lower and restore an RNIC's threshold for
//! congestion marks. Pure.
//!
//! A command is a list: the absolute path of a program, and its arguments. No shell reads it. `{device}`, `{netdev}` and
//! `{pci}` stand for names of the daemon's device; `{{` and `}}` are braces.

use std::fmt;

use headworks_verbs::Duration;
use serde::Deserialize;

use crate::ecn::EcnCommand;

/// The section as written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EcnSettings {
    /// Command that lowers the threshold. Required.
    pub lower: Option<Vec<String>>,
    /// Command that restores it. Required.
    pub restore: Option<Vec<String>>,
    /// Milliseconds from the end of a run to the next run at least, 100 to 3,600,000. Default 1,000.
    pub interval: u32,
    /// Milliseconds after which a command is killed, 100 to 60,000. Default 5,000.
    pub time_limit: u32,
}

impl Default for EcnSettings {
    fn default() -> Self {
        Self {
            lower: None,
            restore: None,
            interval: 1000,
            time_limit: 5000,
        }
    }
}

/// Least and greatest value of `interval`, in milliseconds.
const INTERVAL: (u32, u32) = (100, 3_600_000);
/// Least and greatest value of `time_limit`, in milliseconds.
const TIME_LIMIT: (u32, u32) = (100, 60_000);

/// The commands, with checked templates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EcnHook {
    /// Command that lowers the threshold.
    pub lower: CommandTemplate,
    /// Command that restores it.
    pub restore: CommandTemplate,
    /// Least time from the end of a run to the next run.
    pub interval: Duration,
    /// Time after which a command is killed.
    pub time_limit: Duration,
}

impl EcnHook {
    /// Returns the template of a command.
    pub fn template(&self, command: EcnCommand) -> &CommandTemplate {
        match command {
            EcnCommand::Lower => &self.lower,
            EcnCommand::Restore => &self.restore,
        }
    }
}

/// Error in the section.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ecn.{key}: {why}")]
pub struct EcnSettingsError {
    /// Key within the section.
    pub key: &'static str,
    /// Description of the error, and the values that are allowed.
    pub why: String,
}

impl EcnSettings {
    /// Checks the section.
    ///
    /// # Errors
    ///
    /// [`EcnSettingsError`] for the first value that is not allowed.
    pub fn check(&self) -> Result<EcnHook, EcnSettingsError> {
        let template = |key, words: &Option<Vec<String>>| {
            let words = words.as_deref().ok_or(TemplateError::Missing);
            let parsed = words.and_then(CommandTemplate::parse);
            parsed.map_err(|error| EcnSettingsError {
                key,
                why: error.to_string(),
            })
        };
        let time = |key, value: u32, (least, most): (u32, u32)| {
            let is_legal = (least..=most).contains(&value);
            is_legal
                .then(|| Duration::from_millis(value.into()))
                .ok_or_else(|| EcnSettingsError {
                    key,
                    why: format!("{value} is not allowed: {least} to {most} milliseconds"),
                })
        };
        Ok(EcnHook {
            lower: template("lower", &self.lower)?,
            restore: template("restore", &self.restore)?,
            interval: time("interval", self.interval, INTERVAL)?,
            time_limit: time("time_limit", self.time_limit, TIME_LIMIT)?,
        })
    }

    /// Returns the values that a key allows.
    pub(crate) fn allowed(key: &str) -> Option<String> {
        let range = |(least, most): (u32, u32)| Some(format!("{least} to {most} milliseconds"));
        match key {
            "lower" | "restore" => Some(COMMAND.to_owned()),
            "interval" => range(INTERVAL),
            "time_limit" => range(TIME_LIMIT),
            _ => None,
        }
    }
}

const COMMAND: &str = "a list: the absolute path of a program, and its arguments";

/// Something that a template names: a name of the daemon's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// Name of the RDMA device, such as `mlx5_0`.
    Device,
    /// Name of the RDMA device's network device, such as `ens1f0np0`.
    Netdev,
    /// Address of the RDMA device on the PCI bus, such as `0000:04:00.0`.
    Pci,
}

impl Placeholder {
    /// All placeholders.
    pub const ALL: [Self; 3] = [Self::Device, Self::Netdev, Self::Pci];
}

impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "{device}",
            Self::Netdev => "{netdev}",
            Self::Pci => "{pci}",
        })
    }
}

/// Error in a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The section does not have the key.
    #[error("the key is missing: {COMMAND}")]
    Missing,
    /// There is no program.
    #[error("the list is empty: {COMMAND}")]
    Empty,
    /// The program is not named by an absolute path.
    #[error("{0:?} is no absolute path: {COMMAND}")]
    Relative(String),
    /// A placeholder that does not exist.
    #[error("{0:?} is unknown: {{device}}, {{netdev}}, {{pci}}, or {{{{ and }}}} for braces")]
    Unknown(String),
    /// A brace that has no partner.
    #[error("{0:?} has a brace without its partner: write {{{{ or }}}} for a brace")]
    Brace(String),
    /// A character that no argument of a program may have.
    #[error("{0:?} has a zero byte")]
    Zero(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Name(Placeholder),
}

/// Program and arguments of a command, with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandTemplate {
    words: Vec<Vec<Part>>,
}

impl CommandTemplate {
    /// Parses the words of a command.
    ///
    /// # Errors
    ///
    /// [`TemplateError`].
    pub fn parse(words: &[String]) -> Result<Self, TemplateError> {
        let program = words.first().ok_or(TemplateError::Empty)?;
        if !program.starts_with('/') {
            return Err(TemplateError::Relative(program.clone()));
        }
        let words = words.iter().map(|word| parts(word));
        Ok(Self {
            words: words.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the program and its arguments, with the names that `name` returns.
    ///
    /// # Errors
    ///
    /// The error of `name`.
    pub fn fill<E>(
        &self,
        mut name: impl FnMut(Placeholder) -> Result<String, E>,
    ) -> Result<Vec<String>, E> {
        let mut filled = Vec::new();
        for word in &self.words {
            let mut text = String::new();
            for part in word {
                match part {
                    Part::Text(literal) => text.push_str(literal),
                    Part::Name(placeholder) => text.push_str(&name(*placeholder)?),
                }
            }
            filled.push(text);
        }
        Ok(filled)
    }
}

fn parts(word: &str) -> Result<Vec<Part>, TemplateError> {
    if word.contains('\0') {
        return Err(TemplateError::Zero(word.to_owned()));
    }
    let brace = || TemplateError::Brace(word.to_owned());
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, behind) = rest.split_at(at);
        literal.push_str(before);
        if let Some(behind) = behind.strip_prefix("{{") {
            literal.push('{');
            rest = behind;
        } else if let Some(behind) = behind.strip_prefix("}}") {
            literal.push('}');
            rest = behind;
        } else {
            let inside = behind.strip_prefix('{').ok_or_else(brace)?;
            let (name, behind) = inside.split_once('}').ok_or_else(brace)?;
            let written = format!("{{{name}}}");
            let known = Placeholder::ALL
                .into_iter()
                .find(|placeholder| placeholder.to_string() == written);
            parts.push(Part::Text(std::mem::take(&mut literal)));
            parts.push(Part::Name(known.ok_or(TemplateError::Unknown(written))?));
            rest = behind;
        }
    }
    literal.push_str(rest);
    parts.push(Part::Text(literal));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use proptest::prelude::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    fn filled(words: &[String]) -> Result<Vec<String>, TemplateError> {
        let template = CommandTemplate::parse(words)?;
        let name = |placeholder: Placeholder| Ok::<_, Infallible>(format!("<{placeholder:?}>"));
        Ok(template.fill(name).unwrap_or_else(|never| match never {}))
    }

    #[test]
    fn a_template_is_filled() {
        let given = words(&["/bin/set", "{device}-{netdev}", "{{{pci}}}", "", "$HOME *"]);
        let expected = words(&["/bin/set", "<Device>-<Netdev>", "{<Pci>}", "", "$HOME *"]);
        assert_eq!(filled(&given), Ok(expected));
    }

    #[test]
    fn a_bad_section_is_named_in_one_line() {
        let good = EcnSettings {
            lower: Some(words(&["/bin/lower"])),
            restore: Some(words(&["/bin/restore"])),
            ..EcnSettings::default()
        };
        good.check().expect("legal");
        let lower = |list: &[&str]| EcnSettings {
            lower: Some(words(list)),
            ..good.clone()
        };
        let fast = EcnSettings {
            interval: 99,
            ..good.clone()
        };
        let one = EcnSettings {
            restore: None,
            ..good.clone()
        };
        for (settings, says) in [
            (lower(&[]), "ecn.lower: the list is empty"),
            (
                lower(&["lower"]),
                "ecn.lower: \"lower\" is no absolute path",
            ),
            (
                lower(&["/l", "{nic}"]),
                "ecn.lower: \"{nic}\" is unknown: {device}, {netdev}, {pci}, or {{ and }}",
            ),
            (
                lower(&["/l", "a{device"]),
                "ecn.lower: \"a{device\" has a brace",
            ),
            (lower(&["/l", "a}"]), "ecn.lower: \"a}\" has a brace"),
            (lower(&["/l", "\0"]), "ecn.lower: \"\\0\" has a zero byte"),
            (one, "ecn.restore: the key is missing: a list: "),
            (
                fast,
                "ecn.interval: 99 is not allowed: 100 to 3600000 milliseconds",
            ),
        ] {
            let line = settings.check().expect_err("illegal").to_string();
            assert!(line.starts_with(says), "{line}");
            assert_eq!(line.lines().count(), 1, "{line}");
        }
    }

    proptest! {
        #[test]
        fn text_with_doubled_braces_is_taken_as_it_is(text in "[^\\x00]{0,20}") {
            let doubled = text.replace('{', "{{").replace('}', "}}");
            prop_assert_eq!(filled(&["/p".into(), doubled]), Ok(vec!["/p".into(), text]));
        }

        #[test]
        fn any_word_is_taken_or_refused(word in "[{}dev\\x00a-z/]{0,20}") {
            let _ = filled(&["/p".into(), word]);
        }
    }
}

//! Device names: `KIND[:NAME][,key=value…]`, for example `soft`, `soft:h2,hostile,seed=7`,
//! `ibv:mlx5_0`.

use core::fmt;
use core::str::FromStr;

/// Longest NAME part of a device name, in bytes.
pub const NAME_MAX: usize = 64;

/// A parsed device name. The kind selects the provider, which interprets NAME and the options.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceName {
    kind: String,
    name: Option<String>,
    options: Vec<(String, Option<String>)>,
}

/// A text that is not a device name. The message says what was wrong and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The KIND part is empty or has a character outside `a-z0-9`.
    #[error("device kind {0:?} is not legal: lower-case letters and digits, as in soft:h1")]
    Kind(String),
    /// The NAME part is empty, too long or has an illegal character.
    #[error("device name {0:?} is not legal: 1 to {NAME_MAX} of [A-Za-z0-9._-], as in soft:h1")]
    Name(String),
    /// An option is not `key` or `key=value`.
    #[error("device option {0:?} is not legal: key or key=value, keys of [a-z0-9_], neither empty")]
    Option(String),
    /// An option is given twice.
    #[error("device option {0:?} is given twice")]
    Twice(String),
}

impl DeviceName {
    /// The name of a device of `kind` with no NAME and no options.
    pub fn of_kind(kind: &str) -> Result<Self, NameError> {
        kind.parse()
    }

    /// The kind, which selects the provider: `soft`, `ibv`, `sim`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The NAME part, if there is one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The options in the order given; a bare key has no value.
    pub fn options(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.options.iter().map(|(k, v)| (k.as_str(), v.as_deref()))
    }

    /// The value of option `key`: `Some(None)` for a bare key.
    pub fn option(&self, key: &str) -> Option<Option<&str>> {
        self.options().find(|(k, _)| *k == key).map(|(_, v)| v)
    }
}

fn legal_word(text: &str, legal: impl Fn(u8) -> bool) -> bool {
    !text.is_empty() && text.len() <= NAME_MAX && text.bytes().all(legal)
}

impl FromStr for DeviceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let mut parts = text.split(',');
        let head = parts.next().unwrap_or_default();
        let (kind, name) = match head.split_once(':') {
            Some((kind, name)) => (kind, Some(name)),
            None => (head, None),
        };
        if !legal_word(kind, |b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
            return Err(NameError::Kind(kind.to_owned()));
        }
        let legal_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if let Some(name) = name
            && !legal_word(name, legal_name)
        {
            return Err(NameError::Name(name.to_owned()));
        }
        let mut options: Vec<(String, Option<String>)> = Vec::new();
        for part in parts {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (part, None),
            };
            let legal_key = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            if !legal_word(key, legal_key) || value.is_some_and(str::is_empty) {
                return Err(NameError::Option(part.to_owned()));
            }
            if options.iter().any(|(k, _)| k == key) {
                return Err(NameError::Twice(key.to_owned()));
            }
            options.push((key.to_owned(), value.map(str::to_owned)));
        }
        Ok(Self {
            kind: kind.to_owned(),
            name: name.map(str::to_owned),
            options,
        })
    }
}

impl TryFrom<&str> for DeviceName {
    type Error = NameError;

    fn try_from(text: &str) -> Result<Self, NameError> {
        text.parse()
    }
}

impl TryFrom<&String> for DeviceName {
    type Error = NameError;

    fn try_from(text: &String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<&Self> for DeviceName {
    fn from(name: &Self) -> Self {
        name.clone()
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if let Some(name) = &self.name {
            write!(f, ":{name}")?;
        }
        for (key, value) in self.options() {
            match value {
                Some(value) => write!(f, ",{key}={value}")?,
                None => write!(f, ",{key}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_the_documented_forms() {
        let n: DeviceName = "soft:h2,hostile,seed=7".parse().unwrap();
        assert_eq!((n.kind(), n.name()), ("soft", Some("h2")));
        assert_eq!(n.option("hostile"), Some(None));
        assert_eq!(n.option("seed"), Some(Some("7")));
        assert_eq!(n.option("loss"), None);
        assert_eq!("soft".parse::<DeviceName>().unwrap().name(), None);
    }

    #[test]
    fn errors_name_the_part_that_is_wrong() {
        let error = |text: &str| text.parse::<DeviceName>().unwrap_err();
        assert_eq!(error(""), NameError::Kind(String::new()));
        assert_eq!(error("soft:"), NameError::Name(String::new()));
        assert_eq!(error("soft:a/b"), NameError::Name("a/b".into()));
        assert_eq!(error("soft,"), NameError::Option(String::new()));
        assert_eq!(error("soft,seed="), NameError::Option("seed=".into()));
        assert_eq!(error("soft,a,a=1"), NameError::Twice("a".into()));
    }

    proptest! {
        #[test]
        fn never_panics_and_round_trips(text in ".{0,80}") {
            if let Ok(name) = text.parse::<DeviceName>() {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}

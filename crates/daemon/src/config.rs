//! The file that an operator writes for a daemon: TOML. Pure: whoever opens it hands in the text.
//!
//! ```toml
//! address = "10.0.0.1"
//! device = "ibv:mlx5_0"
//! secret = "/etc/headworks/secret"
//!
//! [limits]
//! connections_each = 1024
//! ```

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::limits::{Config, ConfigError};
use crate::server::MetricsAt;

const USERS: &str = "own or all";
const LOGS: &str = "error, warn, info, debug or trace";

/// What is written as a string that is to be parsed.
fn parsed<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: std::fmt::Display>,
{
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// What a file says; `None` where it does not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DaemonConfig {
    /// The device, `KIND[:NAME][,key=value…]`.
    pub device: Option<String>,
    /// The address of this host.
    pub address: Option<IpAddr>,
    /// The port between daemons.
    pub port: Option<u16>,
    /// The socket that applications attach to.
    pub socket: Option<PathBuf>,
    /// Whose applications may attach.
    #[serde(deserialize_with = "parsed")]
    pub users: Option<Users>,
    /// Where metrics can be had.
    #[serde(deserialize_with = "parsed")]
    pub metrics: Option<Metrics>,
    /// The file with the secret that all daemons share.
    pub secret: Option<PathBuf>,
    /// Seconds that connections may go on once the daemon is told to terminate.
    pub drain_seconds: Option<u32>,
    /// How much it says on standard error.
    #[serde(deserialize_with = "parsed")]
    pub log: Option<Log>,
    /// Sizes and limits of the core.
    pub limits: Config,
}

/// Whose applications may attach. Each user's are an isolation domain of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// Those of the daemon's own user.
    Own,
    /// Everybody's.
    All,
}

impl FromStr for Users {
    type Err = NoneSuch;

    fn from_str(text: &str) -> Result<Self, NoneSuch> {
        match text {
            "own" => Ok(Self::Own),
            "all" => Ok(Self::All),
            _ => Err(NoneSuch(USERS)),
        }
    }
}

/// A word that is none of those that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it may be {0}")]
pub struct NoneSuch(&'static str);

/// Where metrics can be had, if anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metrics {
    /// Nowhere.
    Off,
    /// There.
    At(MetricsAt),
}

/// What names no place for metrics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a path (with a slash), nor IP:PORT, nor off")]
pub struct NoPlace(String);

impl FromStr for Metrics {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        match text.parse() {
            _ if text == "off" => Ok(Self::Off),
            Ok(address) => Ok(Self::At(MetricsAt::Address(address))),
            Err(_) if text.contains('/') => Ok(Self::At(MetricsAt::Path(text.into()))),
            Err(_) => Err(NoPlace(text.to_owned())),
        }
    }
}

/// How much a daemon says on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Log {
    /// What keeps it from serving.
    Error,
    /// And what an operator should know.
    Warn,
    /// And who comes and goes.
    Info,
    /// And why.
    Debug,
    /// And everything else.
    Trace,
}

impl FromStr for Log {
    type Err = NoneSuch;

    fn from_str(text: &str) -> Result<Self, NoneSuch> {
        match text {
            "error" => Ok(Self::Error),
            "warn" => Ok(Self::Warn),
            "info" => Ok(Self::Info),
            "debug" => Ok(Self::Debug),
            "trace" => Ok(Self::Trace),
            _ => Err(NoneSuch(LOGS)),
        }
    }
}

impl From<Log> for tracing::Level {
    fn from(log: Log) -> Self {
        match log {
            Log::Error => Self::ERROR,
            Log::Warn => Self::WARN,
            Log::Info => Self::INFO,
            Log::Debug => Self::DEBUG,
            Log::Trace => Self::TRACE,
        }
    }
}

/// A file that says what cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DaemonConfigError {
    /// It is no TOML, or has a key that is none or is not to be so.
    #[error("line {line}: {says}")]
    Text {
        /// Where, from 1 on.
        line: usize,
        /// What is wrong, and what is allowed.
        says: String,
    },
    /// A value that is not legal.
    #[error("line {line}: {key} is {value}: {allowed}")]
    Value {
        /// Where, from 1 on.
        line: usize,
        /// Which key's.
        key: String,
        /// As it is written.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// A limit that is not legal.
    #[error("line {line}: {error}")]
    Limits {
        /// Where, from 1 on.
        line: usize,
        /// Which, and why.
        error: ConfigError,
    },
}

impl DaemonConfig {
    /// What a text says.
    ///
    /// # Errors
    ///
    /// [`DaemonConfigError`]: keys that there are not are refused, as is what they may not be.
    pub fn parse(text: &str) -> Result<Self, DaemonConfigError> {
        let settings: Self = toml::from_str(text).map_err(|error| {
            let span = error.span();
            let wrong = span.as_ref().and_then(|at| value_at(text, at.start));
            wrong.unwrap_or_else(|| DaemonConfigError::Text {
                line: line_at(text, span.map_or(0, |span| span.start)),
                says: error.message().lines().collect::<Vec<_>>().join(" "),
            })
        })?;
        let checked = settings.limits.check();
        checked.map_err(|error| DaemonConfigError::Limits {
            line: line_of(text, error.key).unwrap_or(1),
            error,
        })?;
        Ok(settings)
    }
}

/// The line, from 1 on, on which a text says what a key is: one of its own, or one of its limits.
pub fn line_of(text: &str, key: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut entries = entries(table.get_ref()).into_iter();
    let (found, _) = entries.find(|(name, _)| name.get_ref() == key)?;
    Some(line_at(text, found.span().start))
}

/// The keys of a file and what they are, those of its limits among them.
fn entries<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Entry<'a, 'i>> {
    let mut entries: Vec<Entry> = table.iter().collect();
    if let Some(DeValue::Table(limits)) = table.get("limits").map(Spanned::get_ref) {
        entries.retain(|(key, _)| key.get_ref() != "limits");
        entries.extend(limits);
    }
    entries
}

type Entry<'a, 'i> = (
    &'a Spanned<toml::de::DeString<'i>>,
    &'a Spanned<DeValue<'i>>,
);

/// What is wrong where a value is not what its key may be.
fn value_at(text: &str, at: usize) -> Option<DaemonConfigError> {
    let table = DeTable::parse(text).ok()?;
    let mut entries = entries(table.get_ref()).into_iter();
    let (key, value) = entries.find(|(_, value)| value.span().contains(&at))?;
    let written = text.get(value.span())?;
    Some(DaemonConfigError::Value {
        line: line_at(text, at),
        key: key.get_ref().to_string(),
        value: written.split_whitespace().collect::<Vec<_>>().join(" "),
        allowed: allowed(key.get_ref())?,
    })
}

fn line_at(text: &str, at: usize) -> usize {
    let before = text.as_bytes().iter().take(at);
    1 + before.filter(|byte| **byte == b'\n').count()
}

/// What a key may be.
fn allowed(key: &str) -> Option<String> {
    let allowed = match key {
        "device" => "a device, \"KIND[:NAME][,key=value…]\"",
        "address" => "an IP address, such as \"10.0.0.1\"",
        "port" => "0 to 65535",
        "socket" | "secret" => "a path",
        "users" => USERS,
        "metrics" => "a path (with a slash), IP:PORT, or off",
        "drain_seconds" => "0 to 4294967295",
        "log" => LOGS,
        "limits" => "a table",
        _ => return Config::allowed(key),
    };
    Some(allowed.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_file_says_what_it_says() {
        assert_eq!(DaemonConfig::parse("").unwrap(), DaemonConfig::default());
        let settings = DaemonConfig::parse(
            "address = \"::1\"\nmetrics = \"127.0.0.1:9100\"\nlog = \"debug\"\n\
             [limits]\nbulk = \"by-load\"\nlinks_max = 4\n",
        );
        let settings = settings.unwrap();
        assert_eq!(settings.address, Some("::1".parse().unwrap()));
        let at = MetricsAt::Address("127.0.0.1:9100".parse().unwrap());
        assert_eq!(settings.metrics, Some(Metrics::At(at)));
        assert_eq!(settings.log, Some(Log::Debug));
        assert_eq!(settings.limits.links_max, 4);
        assert_eq!(settings.limits.receives, Config::default().receives);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, says) in [
            ("\nports = 3\n", "line 2: unknown field `ports`"),
            ("port = 70000\n", "line 1: port is 70000: 0 to 65535"),
            ("port = \"x\"\n", "line 1: port is \"x\": 0 to 65535"),
            (
                "\naddress = \"x\"\n",
                "line 2: address is \"x\": an IP address",
            ),
            ("device = [\n1,\n]\n", "line 1: device is [ 1, ]: a device"),
            ("limits = 3\n", "line 1: limits is 3: a table"),
            (
                "[limits]\nframe_bytes = 99999999999\n",
                "line 2: frame_bytes is 99999999999: 256 to 65536",
            ),
            (
                "[limits]\nframe_bytes = 99999999999999999999\n",
                "line 2: frame_bytes is 99999999999999999999: 256 to 65536",
            ),
            ("limits.poison = 3\n", "line 1: poison is 3: true or false"),
            (
                "[limits]\nbulk = \"x\"\n",
                "line 2: bulk is \"x\": by-load, write or read",
            ),
            (
                "port = 1\n[limits]\nlinks = 3\n",
                "line 3: unknown field `links`",
            ),
            (
                "[limits]\nlinks_max = 0\n",
                "line 2: links_max is 0: 1 to 4096",
            ),
            (
                "metrics = \"here\"\n",
                "line 1: metrics is \"here\": a path",
            ),
            ("log = \"loud\"\n", "line 1: log is \"loud\": error, warn"),
            ("address = \n", "line 1: "),
        ] {
            let line = DaemonConfig::parse(text).unwrap_err().to_string();
            assert!(line.starts_with(says), "{text:?}: {line}");
            assert_eq!(line.lines().count(), 1, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(text in ".{0,60}(\\n.{0,40}){0,3}") {
            if let Err(error) = DaemonConfig::parse(&text) {
                prop_assert_eq!(error.to_string().lines().count(), 1);
            }
        }
    }
}

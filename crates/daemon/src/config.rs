//! The daemon's configuration file, in TOML. Pure: the caller reads the file and passes its text.
//!
//! ```toml
//! address = "10.0.0.1"
//! device = "ibv:mlx5_0"
//! secret = "/etc/headworks/secret"
//!
//! [limits]
//! connections_each = 1024
//! ```

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::ecn_settings::{EcnHook, EcnSettings, EcnSettingsError};
use crate::limits::{DaemonLimits, LimitsError};
use crate::resctrl::{ResctrlSettings, ResctrlSettingsError};

/// Address of the metrics endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAt {
    /// A Unix socket, open to the daemon's own user only.
    Path(PathBuf),
    /// A TCP address, open to everyone who can reach it.
    Address(SocketAddr),
}

impl fmt::Display for MetricsAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

const USERS: &str = "own or all";
const LOGS: &str = "error, warn, info, debug or trace";

/// Deserializes a string and parses it as `T`.
fn parsed<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: std::fmt::Display>,
{
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// Deserializes a path, or a list of paths.
fn one_or_more<'de, D>(from: D) -> Result<Vec<PathBuf>, D::Error>
where
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Paths {
        One(PathBuf),
        More(Vec<PathBuf>),
    }
    Ok(match Paths::deserialize(from)? {
        Paths::One(path) => vec![path],
        Paths::More(paths) if paths.is_empty() => {
            return Err(serde::de::Error::custom("no path is named"));
        }
        Paths::More(paths) => paths,
    })
}

/// Contents of a configuration file. A key that the file does not set is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DaemonConfig {
    /// The device, `KIND[:NAME][,key=value…]`.
    pub device: Option<String>,
    /// The address of this host.
    pub address: Option<IpAddr>,
    /// The TCP port on which daemons reach each other.
    pub port: Option<u16>,
    /// Path of the socket that applications attach to, or a list of such paths. Each is an isolation domain of its own.
    #[serde(deserialize_with = "one_or_more")]
    pub socket: Vec<PathBuf>,
    /// Users whose applications may attach.
    #[serde(deserialize_with = "parsed")]
    pub users: Option<AllowedUsers>,
    /// Where metrics are served.
    #[serde(deserialize_with = "parsed")]
    pub metrics: Option<Metrics>,
    /// Path of the file with the secret that all daemons share.
    pub secret: Option<PathBuf>,
    /// Seconds for which connections may continue once the daemon is told to terminate.
    pub drain_seconds: Option<u32>,
    /// NUMA node on which the daemon's threads run.
    #[serde(deserialize_with = "parsed")]
    pub numa: Option<NumaChoice>,
    /// Level of the log on standard error.
    #[serde(deserialize_with = "parsed")]
    pub log: Option<LogLevel>,
    /// Sizes and limits of the core.
    pub limits: DaemonLimits,
    /// Commands that lower and restore the RNIC's threshold for congestion marks.
    pub ecn: Option<EcnSettings>,
    /// The daemon's part of the last-level cache.
    pub resctrl: Option<ResctrlSettings>,
}

/// Users whose applications may attach. Each user's applications are an isolation domain of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedUsers {
    /// Only the daemon's own user.
    Own,
    /// All users.
    All,
}

impl FromStr for AllowedUsers {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        match text {
            "own" => Ok(Self::Own),
            "all" => Ok(Self::All),
            _ => Err(UnknownWord(USERS)),
        }
    }
}

/// Processors on which the daemon's threads run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaChoice {
    /// Those of the device's NUMA node, if the device has one.
    #[default]
    Device,
    /// All that the process may use.
    Any,
    /// Those of this node.
    Node(u32),
}

/// The allowed words for [`NumaChoice`].
const NODES: &str = "device, any, or the number of a NUMA node";

impl FromStr for NumaChoice {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        match text {
            "device" => Ok(Self::Device),
            "any" => Ok(Self::Any),
            number => number
                .parse()
                .map(Self::Node)
                .map_err(|_| UnknownWord(NODES)),
        }
    }
}

/// Error: an unknown word. It holds the allowed words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it must be {0}")]
pub struct UnknownWord(&'static str);

/// Where metrics are served, if at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metrics {
    /// Metrics are not served.
    Off,
    /// Metrics are served at this path or address.
    At(MetricsAt),
}

/// Error: a text that is no place for metrics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a path (with a slash), nor IP:PORT, nor off")]
pub struct InvalidMetricsAddress(String);

impl FromStr for Metrics {
    type Err = InvalidMetricsAddress;

    fn from_str(text: &str) -> Result<Self, InvalidMetricsAddress> {
        match text.parse() {
            _ if text == "off" => Ok(Self::Off),
            Ok(address) => Ok(Self::At(MetricsAt::Address(address))),
            Err(_) if text.contains('/') => Ok(Self::At(MetricsAt::Path(text.into()))),
            Err(_) => Err(InvalidMetricsAddress(text.to_owned())),
        }
    }
}

/// Level of the log on standard error. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Errors that keep the daemon from serving.
    Error,
    /// Warnings for the operator.
    Warn,
    /// Applications and daemons that come and go.
    Info,
    /// The reasons for that.
    Debug,
    /// Everything else.
    Trace,
}

impl FromStr for LogLevel {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        match text {
            "error" => Ok(Self::Error),
            "warn" => Ok(Self::Warn),
            "info" => Ok(Self::Info),
            "debug" => Ok(Self::Debug),
            "trace" => Ok(Self::Trace),
            _ => Err(UnknownWord(LOGS)),
        }
    }
}

impl From<LogLevel> for tracing::Level {
    fn from(log: LogLevel) -> Self {
        match log {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// Error in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DaemonConfigError {
    /// The file is not TOML, or has an unknown key or a value of a wrong type.
    #[error("line {line}: {says}")]
    Text {
        /// Line number, starting at 1.
        line: usize,
        /// Description of the fault.
        says: String,
    },
    /// A value that is not allowed.
    #[error("line {line}: {key} is {value}: {allowed}")]
    Value {
        /// Line number, starting at 1.
        line: usize,
        /// The key.
        key: String,
        /// The value as written.
        value: String,
        /// Values that are allowed.
        allowed: String,
    },
    /// A limit that is not allowed.
    #[error("line {line}: {error}")]
    Limits {
        /// Line number, starting at 1.
        line: usize,
        /// The limit, and why it is not allowed.
        error: LimitsError,
    },
    /// A value of the section `[ecn]` that is not allowed.
    #[error("line {line}: {error}")]
    Ecn {
        /// Line number, starting at 1.
        line: usize,
        /// The key, and why its value is not allowed.
        error: EcnSettingsError,
    },
    /// A value of the section `[resctrl]` that is not allowed.
    #[error("line {line}: {error}")]
    Resctrl {
        /// Line number, starting at 1.
        line: usize,
        /// The key, and why its value is not allowed.
        error: ResctrlSettingsError,
    },
}

impl DaemonConfig {
    /// Parses the text of a configuration file.
    ///
    /// # Errors
    ///
    /// [`DaemonConfigError`]: the text has unknown keys or values that are not allowed.
    pub fn parse(text: &str) -> Result<Self, DaemonConfigError> {
        let mut settings: Self = toml::from_str(text).map_err(|error| {
            let span = error.span();
            let wrong = span.as_ref().and_then(|at| value_at(text, at.start));
            wrong.unwrap_or_else(|| DaemonConfigError::Text {
                line: line_at(text, span.map_or(0, |span| span.start)),
                says: error.message().lines().collect::<Vec<_>>().join(" "),
            })
        })?;
        let is_set = |key| line_of(text, key).is_some();
        let limits = &mut settings.limits;
        limits.complete_pools(is_set("pool_bytes"), is_set("pool_budget"));
        let checked = limits.check();
        checked.map_err(|error| DaemonConfigError::Limits {
            line: line_of(text, error.key).unwrap_or(1),
            error,
        })?;
        let line = |section: &str, key| {
            let at = line_of(text, key).or_else(|| line_of(text, section));
            at.unwrap_or(1)
        };
        settings
            .ecn_hook()
            .map_err(|error| DaemonConfigError::Ecn {
                line: line("ecn", error.key),
                error,
            })?;
        let resctrl = settings.resctrl.as_ref().map(ResctrlSettings::check);
        resctrl
            .transpose()
            .map_err(|error| DaemonConfigError::Resctrl {
                line: line("resctrl", error.key),
                error,
            })?;
        Ok(settings)
    }

    /// Returns the commands of the section `[ecn]`, if there is one.
    ///
    /// # Errors
    ///
    /// [`EcnSettingsError`]. There is none for settings that were parsed from a file.
    pub fn ecn_hook(&self) -> Result<Option<EcnHook>, EcnSettingsError> {
        self.ecn.as_ref().map(EcnSettings::check).transpose()
    }
}

/// Returns the line, starting at 1, that sets a key: one at the top level, or one of a section.
pub fn line_of(text: &str, key: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut entries = entries(table.get_ref()).into_iter();
    if let Some((found, _)) = entries.find(|(name, _)| name.get_ref() == key) {
        return Some(line_at(text, found.span().start));
    }
    let (section, _) = table.get_ref().get_key_value(key)?;
    Some(line_at(text, section.span().start))
}

/// Sections of the file.
const SECTIONS: [&str; 3] = ["limits", "ecn", "resctrl"];

/// Returns the keys and values of a file, including those of its sections. No two sections have a key in common.
fn entries<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Entry<'a, 'i>> {
    let mut entries: Vec<Entry> = table.iter().collect();
    for section in SECTIONS {
        if let Some(DeValue::Table(keys)) = table.get(section).map(Spanned::get_ref) {
            entries.retain(|(key, _)| key.get_ref() != section);
            entries.extend(keys);
        }
    }
    entries
}

type Entry<'a, 'i> = (
    &'a Spanned<toml::de::DeString<'i>>,
    &'a Spanned<DeValue<'i>>,
);

/// Returns the error for the value at byte `at`, if a value of a known key is there.
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

/// Returns the values that a key allows.
fn allowed(key: &str) -> Option<String> {
    let allowed = match key {
        "device" => "a device, \"KIND[:NAME][,key=value…]\"",
        "address" => "an IP address, such as \"10.0.0.1\"",
        "port" => "0 to 65535",
        "socket" => "a path, or a list of at least one path",
        "secret" => "a path",
        "users" => USERS,
        "metrics" => "a path (with a slash), IP:PORT, or off",
        "drain_seconds" => "0 to 4294967295",
        "numa" => NODES,
        "log" => LOGS,
        "limits" | "ecn" | "resctrl" => "a table",
        _ => {
            let sections = EcnSettings::allowed(key).or_else(|| ResctrlSettings::allowed(key));
            return sections.or_else(|| DaemonLimits::allowed(key));
        }
    };
    Some(allowed.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_configuration_file_sets_the_given_values() {
        assert_eq!(DaemonConfig::parse("").unwrap(), DaemonConfig::default());
        let settings = DaemonConfig::parse(
            "address = \"::1\"\nmetrics = \"127.0.0.1:9100\"\nlog = \"debug\"\nnuma = \"1\"\n\
             [limits]\npool_quota = 20\nqp_groups_max = 4\n",
        );
        let settings = settings.unwrap();
        assert_eq!(settings.address, Some("::1".parse().unwrap()));
        let at = MetricsAt::Address("127.0.0.1:9100".parse().unwrap());
        assert_eq!(settings.metrics, Some(Metrics::At(at)));
        assert_eq!(settings.log, Some(LogLevel::Debug));
        assert_eq!(settings.numa, Some(NumaChoice::Node(1)));
        assert_eq!("any".parse(), Ok(NumaChoice::Any));
        assert!(
            "near"
                .parse::<NumaChoice>()
                .unwrap_err()
                .to_string()
                .contains("device, any")
        );
        assert_eq!(settings.limits.pool_quota, 20);
        assert_eq!(settings.limits.qp_groups_max, 4);
        assert_eq!(settings.limits.receives, DaemonLimits::default().receives);
    }

    #[test]
    fn one_size_of_the_pools_alone_is_legal_in_its_whole_range() {
        let pools = |text: &str| {
            let limits = DaemonConfig::parse(&format!("[limits]\n{text}\n")).map(|one| one.limits);
            limits.map(|limits| (limits.pool_bytes, limits.pool_budget))
        };
        for (text, bytes, budget) in [
            ("", 4 << 20, 12 << 20),
            ("pool_bytes = 262144", 256 << 10, 12 << 20),
            ("pool_bytes = 12582912", 12 << 20, 12 << 20),
            ("pool_bytes = 16777216", 16 << 20, 16 << 20),
            ("pool_bytes = 1073741824", 1 << 30, 1 << 30),
            ("pool_budget = 262144", 256 << 10, 256 << 10),
            ("pool_budget = 4194304", 4 << 20, 4 << 20),
            ("pool_budget = 1099511627776", 4 << 20, 1 << 40),
        ] {
            assert_eq!(pools(text), Ok((bytes, budget)), "{text:?}");
        }
        // Both are set, and do not fit each other.
        let line = pools("pool_budget = 262144\npool_bytes = 524288").unwrap_err();
        assert_eq!(
            line.to_string(),
            "line 3: pool_bytes is 524288: at most pool_budget, which is 262144"
        );
    }

    #[test]
    fn a_wrong_setting_is_named_with_its_line() {
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
                "[limits]\npool_bytes = 300000\n",
                "line 2: pool_bytes is 300000: a multiple of 4096 from 262144 to 1073741824",
            ),
            (
                "port = 1\n[limits]\nlinks = 3\n",
                "line 3: unknown field `links`",
            ),
            (
                "[limits]\nqp_groups_max = 0\n",
                "line 2: qp_groups_max is 0: 1 to 4096",
            ),
            (
                "metrics = \"here\"\n",
                "line 1: metrics is \"here\": a path",
            ),
            ("log = \"loud\"\n", "line 1: log is \"loud\": error, warn"),
            ("address = \n", "line 1: "),
            (
                "[limits]\npool_pages = \"large\"\n",
                "line 2: pool_pages is \"large\": ordinary or huge",
            ),
            (
                "[limits]\npool_touch = 10001\n",
                "line 2: pool_touch is 10001: 0 to 10000",
            ),
            (
                "port = 1\n[ecn]\nrestore = [\"/r\"]\n",
                "line 2: ecn.lower: the key is missing: a list: the absolute path",
            ),
            (
                "[ecn]\nrestore = [\"/r\"]\nlower = [\"/l\", \"{nic}\"]\n",
                "line 3: ecn.lower: \"{nic}\" is unknown: {device}, ",
            ),
            (
                "[ecn]\nlower = \"/l\"\n",
                "line 2: lower is \"/l\": a list: the absolute path",
            ),
            (
                "[ecn]\nlower = [\"/l\"]\nrestore = [\"/l\"]\ntime_limit = -1\n",
                "line 4: time_limit is -1: 100 to 60000 milliseconds",
            ),
            (
                "[resctrl]\nl3 = \"xyz\"\n",
                "line 2: resctrl.l3 is \"xyz\": a capacity mask",
            ),
            (
                "[resctrl]\nl3 = 255\n",
                "line 2: l3 is 255: a capacity mask",
            ),
            ("[resctrl]\n", "line 1: resctrl.l3 is \"\": a capacity mask"),
            ("ecn = 1\n", "line 1: ecn is 1: a table"),
            ("[resctrl]\nl2 = \"f\"\n", "line 2: unknown field `l2`"),
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

//! Settings: a constant and a legal value for it.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use crate::{Constant, ConstantSet, Constants, Kind, Value};

/// Reasons why a constant cannot be set.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// The text is not KEY=VALUE.
    #[error("{text:?} is not KEY=VALUE, as in {example}")]
    Form {
        /// The text that was given.
        text: String,
        /// A setting, as an example.
        example: &'static str,
    },
    /// No constant has this key.
    #[error("{} {key:?}: {}", .set.unknown, list(.set))]
    Unknown {
        /// The key that was given.
        key: String,
        /// The constants that there are.
        set: &'static ConstantSet,
    },
    /// The value is of another kind than the constant, or outside of its range.
    #[error("{}={value:?}: {}{}", .constant.key, legal(.constant), unit(.constant))]
    Range {
        /// The constant that was to be set.
        constant: &'static Constant,
        /// The value that was given.
        value: String,
    },
    /// Two constants contradict each other.
    #[error("{0}")]
    Contradiction(&'static str),
}

fn list(set: &ConstantSet) -> String {
    if !set.list.is_empty() {
        return set.list.to_owned();
    }
    let keys: Vec<_> = set.constants.iter().map(|constant| constant.key).collect();
    format!("it has {}", keys.join(", "))
}

/// Describes the legal values.
fn legal(constant: &Constant) -> String {
    let kind = match constant.kind {
        Kind::Bool => return "0 or 1, off or on, false or true".to_owned(),
        Kind::Whole => "a whole number",
        Kind::PowerOfTwo => "a power of two",
        Kind::Number => "a number",
    };
    format!("{kind} from {} to {}", constant.lowest, constant.highest)
}

fn unit(constant: &Constant) -> String {
    match constant.unit {
        "" => String::new(),
        _ if constant.kind == Kind::Bool => String::new(),
        unit => format!(", in {unit}"),
    }
}

/// A constant of the struct `S` and a legal value for it: `KEY=VALUE`.
pub struct Setting<S> {
    constant: &'static Constant,
    value: Value,
    of: PhantomData<fn() -> S>,
}

impl<S: Constants> Setting<S> {
    /// Returns the setting of the constant `key` to `value`.
    ///
    /// # Errors
    ///
    /// [`SetError::Unknown`] and [`SetError::Range`].
    pub fn of(key: &str, value: &str) -> Result<Self, SetError> {
        let unknown = || SetError::Unknown {
            key: key.to_owned(),
            set: S::SET,
        };
        let constant = S::SET.find(key).ok_or_else(unknown)?;
        let value = constant.parse(value).ok_or_else(|| SetError::Range {
            constant,
            value: value.to_owned(),
        })?;
        Ok(Self {
            constant,
            value,
            of: PhantomData,
        })
    }
}

impl<S> Setting<S> {
    /// Returns the constant.
    pub fn constant(&self) -> &'static Constant {
        self.constant
    }

    /// Returns the value.
    pub fn value(&self) -> Value {
        self.value
    }
}

impl<S: Constants> FromStr for Setting<S> {
    type Err = SetError;

    fn from_str(text: &str) -> Result<Self, SetError> {
        let (key, value) = text.split_once('=').ok_or_else(|| SetError::Form {
            text: text.to_owned(),
            example: S::SET.example,
        })?;
        Self::of(key, value)
    }
}

impl<S> fmt::Display for Setting<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.constant.key, self.value)
    }
}

// Derived implementations would ask the same of `S`, which a setting does not contain.
impl<S> Clone for Setting<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Setting<S> {}

impl<S> PartialEq for Setting<S> {
    fn eq(&self, other: &Self) -> bool {
        (self.constant, self.value) == (other.constant, other.value)
    }
}

impl<S> fmt::Debug for Setting<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Setting({self})")
    }
}

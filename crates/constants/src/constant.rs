//! A constant, its kind and its values.

use std::fmt;

/// Type of a constant's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A switch; the field is a `bool`. Its values are written as 0 and 1.
    Bool,
    /// A whole number; the field is a `u64`.
    Whole,
    /// A power of two; the field is a `u64`.
    PowerOfTwo,
    /// Any number; the field is an `f64`.
    Number,
}

impl Kind {
    /// Whether all its values are whole numbers.
    pub const fn is_whole(self) -> bool {
        !matches!(self, Self::Number)
    }

    /// Whether a number is of this kind. Its range is not checked.
    const fn allows(self, number: f64) -> bool {
        // A number that does not fit into a u64 is cut, and so differs from it.
        let whole = number as u64;
        let is_whole = whole as f64 == number;
        match self {
            Self::Bool => number == 0.0 || number == 1.0,
            Self::Whole => is_whole,
            Self::PowerOfTwo => is_whole && whole.is_power_of_two(),
            Self::Number => true,
        }
    }
}

/// Value of a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Value of a [`Kind::Bool`].
    Bool(bool),
    /// Value of a [`Kind::Whole`] or a [`Kind::PowerOfTwo`].
    Whole(u64),
    /// Value of a [`Kind::Number`].
    Number(f64),
}

impl Value {
    /// Returns the value as a number; a switch is 0 or 1.
    pub const fn as_f64(self) -> f64 {
        match self {
            Self::Bool(is_on) => is_on as u8 as f64,
            Self::Whole(whole) => whole as f64,
            Self::Number(number) => number,
        }
    }
}

impl fmt::Display for Value {
    /// Writes the value as [`Setting`](crate::Setting) parses it, padded to the width of the format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(is_on) => u8::from(*is_on).fmt(f),
            Self::Whole(whole) => whole.fmt(f),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// A constant.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Constant {
    /// Name of the constant in settings.
    pub key: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Type of its values.
    pub kind: Kind,
    /// Smallest legal value.
    pub lowest: f64,
    /// Largest legal value. The bounds of whole numbers are at most 2^53, so they are exact.
    pub highest: f64,
    /// Meaning of the constant.
    pub what: &'static str,
    /// Source of its values; empty if the declaration gives none.
    pub source: &'static str,
    /// Its values in the order of the columns; never empty.
    pub values: &'static [Value],
}

impl Constant {
    /// Creates a constant; [`constants!`](crate::constants) calls this.
    ///
    /// # Panics
    ///
    /// Panics, which is an error of compilation, if a value is not legal.
    #[doc(hidden)]
    pub const fn declared(
        key: &'static str,
        unit: &'static str,
        kind: Kind,
        (lowest, highest): (f64, f64),
        what: &'static str,
        source: &'static str,
        values: &'static [Value],
    ) -> Self {
        let constant = Self {
            key,
            unit,
            kind,
            lowest,
            highest,
            what,
            source,
            values,
        };
        const EXACT_MAX: f64 = (1u64 << f64::MANTISSA_DIGITS) as f64;
        assert!(
            !kind.is_whole() || (0.0 <= lowest && highest <= EXACT_MAX),
            "a bound of a whole number is not exact"
        );
        assert!(!values.is_empty(), "a constant has no value");
        let mut column = 0;
        while column < values.len() {
            let number = values[column].as_f64();
            assert!(constant.allows(number), "a value is not legal");
            column += 1;
        }
        constant
    }

    /// Returns the value in the first column: the default, if there is only one column.
    pub const fn default(&self) -> Value {
        self.values[0]
    }

    /// Describes the range, as in `1 to 256, whole`.
    pub fn range(&self) -> String {
        let kind = match self.kind {
            Kind::Bool | Kind::Whole => ", whole",
            Kind::PowerOfTwo => ", 2^n",
            Kind::Number => "",
        };
        format!("{} to {}{kind}", self.lowest, self.highest)
    }

    /// Parses a legal value. Returns `None` if the text is none.
    pub(crate) fn parse(&self, text: &str) -> Option<Value> {
        let number = match (self.kind, text) {
            (Kind::Bool, "on" | "true") => 1.0,
            (Kind::Bool, "off" | "false") => 0.0,
            _ => text.parse().ok()?,
        };
        self.allows(number).then_some(match self.kind {
            Kind::Bool => Value::Bool(number != 0.0),
            Kind::Whole | Kind::PowerOfTwo => Value::Whole(number as u64),
            Kind::Number => Value::Number(number),
        })
    }

    const fn allows(&self, number: f64) -> bool {
        self.kind.allows(number) && self.lowest <= number && number <= self.highest
    }
}

/// The constants of one struct, and how its errors name them.
#[derive(Debug, PartialEq)]
pub struct ConstantSet {
    /// All constants, in the order of their declaration.
    pub constants: &'static [Constant],
    /// Begin of the error about an unknown key; the key follows.
    pub unknown: &'static str,
    /// Command that the error about an unknown key names. If this is empty, the error lists all keys.
    pub list: &'static str,
    /// A setting, as an example.
    pub example: &'static str,
}

impl ConstantSet {
    /// Returns the constant with this key.
    pub fn find(&self, key: &str) -> Option<&'static Constant> {
        self.constants.iter().find(|constant| constant.key == key)
    }
}

/// A struct that [`constants!`](crate::constants) declared.
pub trait Constants: 'static {
    /// Its constants.
    const SET: &'static ConstantSet;
}

/// Type of a field of a struct that [`constants!`](crate::constants) declared.
pub trait FieldType {
    /// Converts a value of a constant of this field's kind.
    fn of(value: Value) -> Self;
    /// Returns the field as a constant's value.
    fn value(self) -> Value;
}

impl FieldType for bool {
    fn of(value: Value) -> Self {
        value.as_f64() != 0.0
    }

    fn value(self) -> Value {
        Value::Bool(self)
    }
}

impl FieldType for u64 {
    fn of(value: Value) -> Self {
        match value {
            Value::Whole(whole) => whole,
            other => other.as_f64() as Self,
        }
    }

    fn value(self) -> Value {
        Value::Whole(self)
    }
}

impl FieldType for f64 {
    fn of(value: Value) -> Self {
        value.as_f64()
    }

    fn value(self) -> Value {
        Value::Number(self)
    }
}

//! The macro that declares constants.

/// Declares a struct with one typed field for each constant, and the table of the constants.
///
/// The head of the struct says how errors name the constants:
///
/// - `unknown:` begins the error about an unknown key;
/// - `list:` (optional) is what that error refers to; without it, the error lists all keys;
/// - `example:` is a setting that the error about a malformed setting shows;
/// - `columns:` is `default`, for one column of values, or the list of the columns' names.
///
/// Each constant is a line:
///
/// ```text
/// FIELD [as "KEY"]: KIND "UNIT" [LOWEST..HIGHEST] [VALUE, …] "WHAT" ["SOURCE"];
/// ```
///
/// The kinds are `bool`, `whole` and `power_of_two` (both `u64`), and `number` (`f64`). All but `bool` have a range.
/// Without a key the constant is named as its field.
///
/// The struct has these methods and constants:
///
/// - `CONSTANTS`, all constants in the order of their declaration;
/// - `constant(key)`, the constant with that key;
/// - `parse(text)`, the [`Setting`](crate::Setting) `KEY=VALUE`;
/// - `apply(&setting)` and `set(key, value)`, which change one field;
/// - `value(key)`, the value of one field, and `values()`, those of all.
///
/// With one column the struct implements `Default`. With several it has the field `name`, `NAMES` and `named(name)`.
#[macro_export]
macro_rules! constants {
    (
        $(#[$meta:meta])* $vis:vis struct $name:ident {
            unknown: $unknown:literal, $(list: $list:literal,)? example: $example:literal,
            columns: default,
        }
        $($constants:tt)*
    ) => {
        $crate::constants! {
            @struct [$(#[$meta])*] [$vis] $name [] [$unknown, concat!($($list)?), $example] $($constants)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self::of_column(0)
            }
        }
    };
    (
        $(#[$meta:meta])* $vis:vis struct $name:ident {
            unknown: $unknown:literal, $(list: $list:literal,)? example: $example:literal,
            columns: [$($column:literal),+ $(,)?],
        }
        $($constants:tt)*
    ) => {
        $crate::constants! {
            @struct [$(#[$meta])*] [$vis] $name [name] [$unknown, concat!($($list)?), $example] $($constants)*
        }

        impl $name {
            /// Names of the columns.
            pub const NAMES: [&'static str; [$($column),+].len()] = [$($column),+];

            /// Returns the values of the column called `name`.
            pub fn named(name: &str) -> Option<Self> {
                let column = Self::NAMES.iter().position(|found| *found == name)?;
                Some(Self::of_column(column))
            }
        }
    };

    (
        @struct [$(#[$meta:meta])*] [$vis:vis] $name:ident [$($named:ident)?]
        [$unknown:expr, $list:expr, $example:expr]
        $(
            $field:ident $(as $key:literal)?: $kind:ident $unit:literal $($low:literal..$high:literal)?
            [$($value:literal),+ $(,)?] $what:literal $($source:literal)?;
        )*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $name {
            $(
                /// Name of the column that the values come from.
                pub $named: &'static str,
            )?
            $(
                #[doc = $what]
                #[doc = ""]
                #[doc = concat!("Unit: ", $unit, ".")]
                pub $field: $crate::constants!(@type $kind),
            )*
        }

        impl $crate::Constants for $name {
            const SET: &'static $crate::ConstantSet = &$crate::ConstantSet {
                constants: Self::CONSTANTS,
                unknown: $unknown,
                list: $list,
                example: $example,
            };
        }

        impl $name {
            /// All constants, in the order of their declaration.
            pub const CONSTANTS: &'static [$crate::Constant] = &[
                $($crate::Constant::declared(
                    $crate::constants!(@key $field $($key)?),
                    $unit,
                    $crate::constants!(@kind $kind),
                    $crate::constants!(@range $($low, $high)?),
                    $what,
                    concat!($($source)?),
                    &[$($crate::constants!(@value $kind $value)),+],
                ),)*
            ];

            const fn of_column(column: usize) -> Self {
                Self {
                    $($named: Self::NAMES[column],)?
                    $($field: [$($value as $crate::constants!(@type $kind)),+][column],)*
                }
            }

            /// Returns the constant with this key.
            pub fn constant(key: &str) -> Option<&'static $crate::Constant> {
                <Self as $crate::Constants>::SET.find(key)
            }

            /// Parses a setting, `KEY=VALUE`.
            ///
            /// # Errors
            ///
            /// An unknown key, and a value that is not legal.
            pub fn parse(text: &str) -> Result<$crate::Setting<Self>, $crate::SetError> {
                text.parse()
            }

            /// Sets one constant.
            pub fn apply(&mut self, setting: &$crate::Setting<Self>) {
                match setting.constant().key {
                    $($crate::constants!(@key $field $($key)?) => {
                        self.$field = $crate::FieldType::of(setting.value());
                    })*
                    key => unreachable!("a setting of {key}, which is no constant"),
                }
            }

            /// Sets the constant `key` to `value`.
            ///
            /// # Errors
            ///
            /// An unknown key, and a value that is not legal; nothing is changed then.
            pub fn set(&mut self, key: &str, value: &str) -> Result<(), $crate::SetError> {
                self.apply(&$crate::Setting::of(key, value)?);
                Ok(())
            }

            /// Returns the value of the constant with this key.
            pub fn value(&self, key: &str) -> Option<$crate::Value> {
                match key {
                    $($crate::constants!(@key $field $($key)?) => {
                        Some($crate::FieldType::value(self.$field))
                    })*
                    _ => None,
                }
            }

            /// Returns all constants with their values, in the order of their declaration.
            pub fn values(&self) -> Vec<(&'static $crate::Constant, $crate::Value)> {
                let values = [$($crate::FieldType::value(self.$field)),*];
                Self::CONSTANTS.iter().zip(values).collect()
            }
        }
    };

    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };

    (@type bool) => { bool };
    (@type whole) => { u64 };
    (@type power_of_two) => { u64 };
    (@type number) => { f64 };

    (@kind bool) => { $crate::Kind::Bool };
    (@kind whole) => { $crate::Kind::Whole };
    (@kind power_of_two) => { $crate::Kind::PowerOfTwo };
    (@kind number) => { $crate::Kind::Number };

    (@range) => { (0.0, 1.0) };
    (@range $low:literal, $high:literal) => { ($low as f64, $high as f64) };

    (@value bool $value:literal) => { $crate::Value::Bool($value) };
    (@value whole $value:literal) => { $crate::Value::Whole($value) };
    (@value power_of_two $value:literal) => { $crate::Value::Whole($value) };
    (@value number $value:literal) => { $crate::Value::Number($value as f64) };
}

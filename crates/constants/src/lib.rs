//! Typed constants that users can set: each has a key, a unit, a range, a description and a source.
//!
//! The macro [`constants!`] declares a struct with one typed field for each constant, and the table of the
//! constants. A constant has one column of values (its default), or several (one for each preset). A value or a
//! default that is outside of its range does not compile.
//!
//! | module | contents |
//! |---|---|
//! | `constant` | [`Constant`], [`Kind`], [`Value`] |
//! | `setting` | [`Setting`]: a constant and a legal value for it, parsed from `KEY=VALUE`; [`SetError`] |
//! | `declare` | the macro [`constants!`] |
//!
//! ```
//! headworks_constants::constants! {
//!     /// A pump.
//!     pub struct Pump {
//!         unknown: "a pump has no constant",
//!         example: "litres=20",
//!         columns: ["small", "large"],
//!     }
//!
//!     litres: whole "l/min" 1..1000 [20, 400] "Rate of flow" "Data sheet";
//!     is_quiet as "quiet": bool "0 or 1" [true, false] "Whether it is quiet" "Assumed";
//! }
//!
//! let mut pump = Pump::named("large").unwrap();
//! assert_eq!((pump.litres, pump.is_quiet), (400, false));
//! pump.set("quiet", "on").unwrap();
//! assert!(pump.is_quiet);
//! let error = pump.set("litres", "2.5").unwrap_err();
//! assert_eq!(error.to_string(), "litres=\"2.5\": a whole number from 1 to 1000, in l/min");
//! ```

mod constant;
mod declare;
mod setting;

pub use constant::{Constant, ConstantSet, Constants, FieldType, Kind, Value};
pub use setting::{SetError, Setting};

//! What every provider of the verbs must do, as cases that run on any two devices.
//!
//! A [`Case`] is a plain function over a [`Bench`]: two devices that can reach each other, or the
//! same one twice. It makes what it needs, checks, and says in one line what it saw instead.
//! [`cases()`] lists them all; a provider's test runs the list.
//!
//! | module | what |
//! |---|---|
//! | [`bench`](mod@bench) | the two devices; sides with buffers; connecting, polling and waiting with a deadline |
//! | [`bytes`] | filling and reading registered memory |
//! | [`cases`](mod@cases) | the table |

pub mod bench;
pub mod bytes;
pub mod cases;

pub use bench::{Bench, Options, Pair, Side};
pub use cases::{Case, cases};

/// What a case ends with: the error is one line on what was seen.
pub type Verdict = Result<(), String>;

/// Ends the case with a line unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($line:tt)+) => {
        if !$condition {
            return Err(format!($($line)+));
        }
    };
}

/// Ends the case unless both are equal.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $what:expr) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    return Err(format!("{}: {left:?} instead of {right:?}", $what));
                }
            }
        }
    };
}

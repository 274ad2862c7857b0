//! Wire formats: how messages, greetings, frames and records are written as bytes and read back. Pure.
//!
//! | item | what |
//! |---|---|
//! | [`Encoder`] | writes fields one after the other, into a `Vec<u8>` or an array of fixed length |
//! | [`Decoder`] | reads the same fields back from any bytes, without a panic |
//! | [`Field`] | a type with an encoding of its own, which both sides use |
//! | [`Malformed`] | what is wrong with bytes that cannot be read |
//!
//! Numbers are little-endian. A field of variable length has its length in front ([`Encoder::bytes`]), or ends the
//! message ([`Encoder::raw`]). [`Decoder::end`] refuses what follows the last field. Readers trust nothing. Each format
//! decides what it begins with: a byte for its kind, a magic or a version.
//!
//! ```
//! use headworks_wire::{Decoder, Encoder, Malformed};
//!
//! let bytes = Encoder::message(7).u32(1000).bytes(b"name").finish();
//! let (kind, mut of) = Decoder::message(&bytes)?;
//! assert_eq!((kind, of.u32()?, of.bytes(64)?), (7, 1000, &b"name"[..]));
//! of.end()?;
//! # Ok::<(), Malformed>(())
//! ```
#![forbid(unsafe_code)]

mod decoder;
mod encoder;

pub use decoder::Decoder;
pub use encoder::{Encoder, Fixed, Output};

/// Bytes that are not what was expected, and what is wrong with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// A type with an encoding of its own.
pub trait Field: Sized {
    /// Appends the value.
    fn encode<O: Output>(&self, to: Encoder<O>) -> Encoder<O>;

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: too few bytes are left, or they are no such value.
    fn decode(of: &mut Decoder<'_>) -> Result<Self, Malformed>;
}

#[cfg(test)]
mod tests;

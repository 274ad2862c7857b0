#![doc = include_str!("ring/guide.md")]

#[doc(inline)]
pub use headworks_ring::*;

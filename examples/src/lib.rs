//! The code of the README, compiled and run as tests of this documentation.
//!
#![doc = include_str!("../../README.md")]

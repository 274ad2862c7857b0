//! `headworks pipe` as real processes.

mod common;
mod death;
mod stream;
mod wrong;

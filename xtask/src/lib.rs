//! What the repository checks about itself.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`layering`] | which package may depend on which: the one table, and the check over `cargo metadata` |
//! | [`module_cycles`] | which modules of a crate use which: no cycle in those that it lists |
//! | [`tidy`] | rules about source text that the compiler does not know |
//! | [`ci`] | the steps of integration with their time budgets |
//! | [`fuzz`] | runs of a fuzz target that are guided by what the inputs reach |
//! | [`install`] | the library for C, below a prefix |
//! | [`rxe`] | a virtual machine with the kernel's software RDMA devices, to run a program in |
//!
//! The first three run as ordinary tests (`cargo test -p xtask`), the fourth as `cargo xtask ci`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

pub mod ci;
pub mod fuzz;
pub mod install;
pub mod layering;
pub mod module_cycles;
pub mod rxe;
pub mod tidy;

/// The root of the workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

//! Checks and development commands of the repository.
//!
//! # Map
//!
//! | module | contents |
//! |---|---|
//! | [`layering`] | which package may depend on which: the table, and a check against `cargo metadata` |
//! | [`module_cycles`] | a check that the modules of the listed crates form no cycle and keep to their layers |
//! | [`tidy`] | rules about source text that the compiler does not check |
//! | [`ci`] | the integration steps with their time budgets |
//! | [`fuzz`] | runs a fuzz target, guided by coverage |
//! | [`install`] | installs the C library below a prefix |
//! | [`rxe`] | runs a program in a virtual machine with the kernel's software RDMA devices |
//! | [`verbs_programs`] | runs programs of others on the drop-in libibverbs, and keeps a table of what works |
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
pub mod verbs_programs;

/// The root folder of the workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

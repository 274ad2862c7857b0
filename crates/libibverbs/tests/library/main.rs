//! Tests of the built library: its names, unmodified programs that are installed, and C programs of this folder.

mod c_programs;
mod names;
mod programs;
mod pyverbs;
mod run;
mod survival;

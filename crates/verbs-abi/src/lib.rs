//! The binary interface of libibverbs: types, numbers and sizes; no code.
//!
//! `headworks-ibverbs` calls a libibverbs that it loads. `headworks-libibverbs` is one: it offers the interface to programs.
//!
//! The types are written from knowledge of the interface, which has been frozen for many years. Types have our names, and their
//! fields the names of the C headers. Each type is declared once, in a table with the size and all offsets of x86-64: the compiler
//! checks the Rust type against the table, and a test compares the table with the C headers where they are installed.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`device`] | devices, contexts and their functions, attributes of devices and ports |
//! | [`objects`] | protection domains, regions, windows, address handles, channels, completion queues, SRQs, queue pairs, events |
//! | [`requests`] | send and receive requests, completions |
//! | [`extended`] | completion queues and queue pairs with functions of their own |
//! | [`numbers`] | constants |
//! | [`gid`] | GIDs in the C representation: conversion |
//! | [`layout`] | sizes and offsets, as data |
#![allow(
    missing_docs,
    reason = "the fields and constants are those of the C headers"
)]

#[macro_use]
pub mod layout;

pub mod device;
pub mod extended;
pub mod gid;
pub mod numbers;
pub mod objects;
pub mod requests;

pub use device::*;
pub use extended::*;
pub use numbers::*;
pub use objects::*;
pub use requests::*;

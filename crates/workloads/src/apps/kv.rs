//! A key-value store (RB² section V-C, case 2) under YCSB's workload C: reads only, of keys whose
//! popularity follows Zipf's law.
//!
//! | module | what |
//! |---|---|
//! | [`zipf`] | which key is asked for |
//! | [`message`] | request and response, 16 and 128 bytes as in the paper |
//! | [`store`] | the table |
//! | [`server`] | receives, looks up, responds |
//! | [`client`] | keeps some requests on their way and checks every response |
//!
//! YCSB: B. Cooper, A. Silberstein, E. Tam, R. Ramakrishnan, R. Sears, "Benchmarking cloud serving
//! systems with YCSB", SoCC 2010.

pub mod client;
pub mod message;
pub mod server;
pub mod store;
pub mod zipf;

pub use client::Client;
pub use message::{REQUEST, RESPONSE, Request};
pub use server::Server;
pub use store::Store;
pub use zipf::Zipf;

/// Records of the table unless somebody says otherwise: 120 MB of values and 34 MB of index.
pub const RECORDS: u64 = 1_000_000;

#[cfg(test)]
mod tests;

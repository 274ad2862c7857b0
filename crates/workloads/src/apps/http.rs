//! A server of small files (RB² section V-C, case 3): HTTP/1.1, one request at a time.
//!
//! | module | what |
//! |---|---|
//! | [`site`] | the files, and what is answered to any bytes |
//! | [`server`] | receives, answers |
//! | [`client`] | asks as a browser does, and checks every response |
//!
//! A message of the channel is a whole request, or a whole response: the channel keeps their
//! borders, so nothing has to be put together again. Requests are parsed with `httparse`; what is
//! legal is said in RFC 9110 and RFC 9112.

pub mod client;
pub mod server;
pub mod site;

pub use client::Client;
pub use server::Server;
pub use site::{Reply, Site};

/// Bytes of a file, as in the paper.
pub const FILE: usize = 1024;
/// Files of a site unless somebody says otherwise: more than one, so that a response to another
/// request is noticed; and no more than ten, so that all requests have one length, and all responses
/// that bring a file have one ([`Client::request_len`], [`Site::response_len`]). So they also go over
/// channels whose messages all have the same length.
pub const FILES: u32 = 8;
/// Bytes of the longest request or response of [`Client`] and [`Server`] with files of [`FILE`] bytes,
/// rounded up to a cache line.
pub const MESSAGE_MAX: usize = 1280;

#[cfg(test)]
mod tests;

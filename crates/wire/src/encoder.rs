//! The writing side.

use std::net::{IpAddr, SocketAddr};

use crate::Field;

/// Where an [`Encoder`] writes.
pub trait Output {
    /// Type of the complete encoding.
    type Done;

    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);

    /// Returns the complete encoding.
    fn done(self) -> Self::Done;
}

impl Output for Vec<u8> {
    type Done = Self;

    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn done(self) -> Self {
        self
    }
}

/// An array of fixed length that is filled from the front.
#[derive(Clone, Copy, Debug)]
pub struct Fixed<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Output for Fixed<N> {
    type Done = [u8; N];

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    #[inline]
    fn done(self) -> [u8; N] {
        debug_assert_eq!(self.len, N, "fields for a part of the array only");
        self.bytes
    }
}

/// Writes fields one after the other. Each method takes the encoder and returns it, so that a whole message is one
/// expression.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "the encoding is what `finish` returns"]
pub struct Encoder<O = Vec<u8>>(O);

impl Encoder {
    /// Starts an encoding without a kind.
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// Starts an encoding behind bytes that were written before.
    pub fn after(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Starts a message of kind `kind`.
    pub fn message(kind: u8) -> Self {
        Self(vec![kind])
    }
}

impl<const N: usize> Encoder<Fixed<N>> {
    /// Starts an encoding of exactly `N` bytes. More panic, and so do fewer in a debug build.
    #[inline]
    pub fn fixed() -> Self {
        Self(Fixed {
            bytes: [0; N],
            len: 0,
        })
    }
}

impl<O: Output> Encoder<O> {
    /// Returns the complete encoding.
    #[inline]
    pub fn finish(self) -> O::Done {
        self.0.done()
    }

    /// Appends bytes whose number both sides know, or that end the message.
    #[inline]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.put(bytes);
        self
    }

    /// Appends one byte.
    #[inline]
    pub fn u8(self, value: u8) -> Self {
        self.raw(&[value])
    }

    /// Appends two bytes.
    #[inline]
    pub fn u16(self, value: u16) -> Self {
        self.raw(&value.to_le_bytes())
    }

    /// Appends four bytes.
    #[inline]
    pub fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    /// Appends eight bytes.
    #[inline]
    pub fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    /// Appends a length in two bytes, and that many bytes. Bytes after the first 65,535 are cut off.
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
        self.u16(bytes.len() as u16).raw(bytes)
    }

    /// Appends an address and a port. An IPv4 address travels as an IPv4-mapped IPv6 address.
    pub fn address(self, address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        self.raw(&ip.octets()).u16(address.port())
    }

    /// Appends a value that has an encoding of its own.
    #[inline]
    pub fn field(self, value: &impl Field) -> Self {
        value.encode(self)
    }
}

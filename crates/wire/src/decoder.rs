//! The reading side.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::{Field, Malformed};

const SHORT: Malformed = Malformed("too short");
const LONG: Malformed = Malformed("too long");

/// Reads fields one after the other. Its methods fail with [`Malformed`] if too few bytes are left.
#[derive(Clone, Debug)]
pub struct Decoder<'b>(&'b [u8]);

impl<'b> Decoder<'b> {
    /// Starts at the front of `bytes`.
    #[inline]
    pub fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// Splits a message into its first byte, the kind, and a decoder of the rest.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: the message is empty.
    pub fn message(message: &'b [u8]) -> Result<(u8, Self), Malformed> {
        let (kind, rest) = message.split_first().ok_or(Malformed("empty"))?;
        Ok((*kind, Self(rest)))
    }

    /// Reads `N` bytes.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: too few bytes are left.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*bytes)
    }

    /// Reads `len` bytes.
    ///
    /// # Errors
    ///
    /// As [`Decoder::array`].
    pub fn raw(&mut self, len: usize) -> Result<&'b [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Reads one byte.
    ///
    /// # Errors
    ///
    /// As [`Decoder::array`].
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Reads two bytes.
    ///
    /// # Errors
    ///
    /// As [`Decoder::array`].
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads four bytes.
    ///
    /// # Errors
    ///
    /// As [`Decoder::array`].
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads eight bytes.
    ///
    /// # Errors
    ///
    /// As [`Decoder::array`].
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a length of two bytes, and that many bytes.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: there are more than `most`, or too few bytes are left.
    pub fn bytes(&mut self, most: usize) -> Result<&'b [u8], Malformed> {
        let len = usize::from(self.u16()?);
        match len <= most {
            true => self.raw(len),
            false => Err(LONG),
        }
    }

    /// Reads a length of two bytes, and a text of that many bytes.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: it exceeds `most` bytes, it is not UTF-8, or too few bytes are left.
    pub fn text(&mut self, most: usize) -> Result<&'b str, Malformed> {
        let text = str::from_utf8(self.bytes(most)?);
        text.map_err(|_| Malformed("not UTF-8"))
    }

    /// Reads an address and a port.
    ///
    /// # Errors
    ///
    /// As [`Decoder::array`].
    pub fn address(&mut self) -> Result<SocketAddr, Malformed> {
        let ip = Ipv6Addr::from(self.array::<16>()?);
        Ok(SocketAddr::new(ip.to_canonical(), self.u16()?))
    }

    /// Reads an address, whose port must be 0.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: there is a port, or too few bytes are left.
    pub fn address_without_port(&mut self) -> Result<IpAddr, Malformed> {
        let address = self.address()?;
        match address.port() {
            0 => Ok(address.ip()),
            _ => Err(Malformed("an address of a host has a port")),
        }
    }

    /// Reads a value that has an encoding of its own.
    ///
    /// # Errors
    ///
    /// As [`Field::decode`].
    #[inline]
    pub fn field<F: Field>(&mut self) -> Result<F, Malformed> {
        F::decode(self)
    }

    /// Reads all bytes that are left.
    pub fn rest(&mut self) -> &'b [u8] {
        std::mem::take(&mut self.0)
    }

    /// Checks that everything was read.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: there are more bytes.
    #[inline]
    pub fn end(self) -> Result<(), Malformed> {
        match self.0 {
            [] => Ok(()),
            _ => Err(LONG),
        }
    }
}

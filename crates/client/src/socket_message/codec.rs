//! Encoding of messages: little-endian, no padding, lengths first. The decoder accepts any bytes without a
//! panic.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::error::ContractError;
use crate::slabs::Extent;

/// Writes a message.
#[derive(Clone, Debug, Default)]
pub struct Encoder(Vec<u8>);

impl Encoder {
    /// Starts a message of kind `kind`.
    pub fn of(kind: u8) -> Self {
        Self(vec![kind])
    }

    /// The complete message.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    /// Appends one byte.
    #[must_use]
    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    /// Appends two bytes.
    #[must_use]
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends four bytes.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends eight bytes.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends bytes and their length. Bytes after the first 65,535 are cut off.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
        let mut with = self.u16(bytes.len() as u16);
        with.0.extend(bytes);
        with
    }

    /// Appends a range of memory.
    #[must_use]
    pub fn extent(self, extent: Extent) -> Self {
        self.u32(extent.slab).u32(extent.len).u64(extent.offset)
    }

    /// Appends an address and a port. An IPv4 address travels as an IPv4-mapped IPv6 address.
    #[must_use]
    pub fn address(mut self, address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        self.0.extend(ip.octets());
        self.u16(address.port())
    }
}

/// Reads a message.
#[derive(Clone, Debug)]
pub struct Decoder<'m>(&'m [u8]);

impl<'m> Decoder<'m> {
    /// Splits a message into its first byte, the kind, and a decoder of the rest.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`]: the message is empty.
    pub fn of(message: &'m [u8]) -> Result<(u8, Self), ContractError> {
        let (kind, rest) = message
            .split_first()
            .ok_or(ContractError::Message("empty"))?;
        Ok((*kind, Self(rest)))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ContractError> {
        let (bytes, rest) = self
            .0
            .split_first_chunk()
            .ok_or(ContractError::Message("too short"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    /// Reads one byte.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`]: the message is too short.
    pub fn u8(&mut self) -> Result<u8, ContractError> {
        Ok(u8::from_le_bytes(self.take()?))
    }

    /// Reads two bytes.
    ///
    /// # Errors
    ///
    /// As [`Decoder::u8`].
    pub fn u16(&mut self) -> Result<u16, ContractError> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    /// Reads four bytes.
    ///
    /// # Errors
    ///
    /// As [`Decoder::u8`].
    pub fn u32(&mut self) -> Result<u32, ContractError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    /// Reads eight bytes.
    ///
    /// # Errors
    ///
    /// As [`Decoder::u8`].
    pub fn u64(&mut self) -> Result<u64, ContractError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// Reads bytes after their length.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`]: there are more than `most`, or the message is too short.
    pub fn bytes(&mut self, most: usize) -> Result<&'m [u8], ContractError> {
        let len = usize::from(self.u16()?);
        if len > most {
            return Err(ContractError::Message("too long"));
        }
        let bytes = self
            .0
            .split_at_checked(len)
            .ok_or(ContractError::Message("too short"))?;
        self.0 = bytes.1;
        Ok(bytes.0)
    }

    /// Reads a text after its length.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`]: it exceeds `most` bytes, it is not UTF-8, or the message is too short.
    pub fn text(&mut self, most: usize) -> Result<String, ContractError> {
        let text = std::str::from_utf8(self.bytes(most)?);
        Ok(text
            .map_err(|_| ContractError::Message("not UTF-8"))?
            .to_owned())
    }

    /// Reads a range of memory. The range is not checked.
    ///
    /// # Errors
    ///
    /// As [`Decoder::u8`].
    pub fn extent(&mut self) -> Result<Extent, ContractError> {
        Ok(Extent {
            slab: self.u32()?,
            len: self.u32()?,
            offset: self.u64()?,
        })
    }

    /// Reads an address and a port.
    ///
    /// # Errors
    ///
    /// As [`Decoder::u8`].
    pub fn address(&mut self) -> Result<SocketAddr, ContractError> {
        let ip = Ipv6Addr::from(self.take::<16>()?);
        Ok(SocketAddr::new(ip.to_canonical(), self.u16()?))
    }

    /// Reads an address, whose port must be 0.
    ///
    /// # Errors
    ///
    /// As [`Decoder::u8`], and [`ContractError::Message`]: there is a port.
    pub fn address_without_port(&mut self) -> Result<IpAddr, ContractError> {
        let address = self.address()?;
        match address.port() {
            0 => Ok(address.ip()),
            _ => Err(ContractError::Message("an address of a host has a port")),
        }
    }

    /// Checks that the whole message was read.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`]: there are more bytes.
    pub fn end(self) -> Result<(), ContractError> {
        match self.0 {
            [] => Ok(()),
            _ => Err(ContractError::Message("too long")),
        }
    }
}

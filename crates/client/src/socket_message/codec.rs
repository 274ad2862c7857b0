//! How messages are written and read: little-endian, no padding, lengths first. What is read may be anything.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::error::ContractError;
use crate::memory::Extent;

/// Writes a message.
#[derive(Clone, Debug, Default)]
pub struct Encoder(Vec<u8>);

impl Encoder {
    /// A message of this kind.
    pub fn of(kind: u8) -> Self {
        Self(vec![kind])
    }

    /// The message.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    /// One byte.
    #[must_use]
    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    /// Two bytes.
    #[must_use]
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Four bytes.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Eight bytes.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Bytes, at most 65,535 of them: what is longer is cut off.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
        let mut with = self.u16(bytes.len() as u16);
        with.0.extend(bytes);
        with
    }

    /// A stretch of memory.
    #[must_use]
    pub fn extent(self, extent: Extent) -> Self {
        self.u32(extent.slab).u32(extent.len).u64(extent.offset)
    }

    /// An address and a port; IPv4 addresses travel as IPv6 ones.
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
    /// Reads what is behind the message's first byte, which is returned as well.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`], as all of its methods: the message is empty.
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

    /// One byte.
    ///
    /// # Errors
    ///
    /// As [`Decoder::of`].
    pub fn u8(&mut self) -> Result<u8, ContractError> {
        Ok(u8::from_le_bytes(self.take()?))
    }

    /// Two bytes.
    ///
    /// # Errors
    ///
    /// As [`Decoder::of`].
    pub fn u16(&mut self) -> Result<u16, ContractError> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    /// Four bytes.
    ///
    /// # Errors
    ///
    /// As [`Decoder::of`].
    pub fn u32(&mut self) -> Result<u32, ContractError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    /// Eight bytes.
    ///
    /// # Errors
    ///
    /// As [`Decoder::of`].
    pub fn u64(&mut self) -> Result<u64, ContractError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// Bytes, of which there are `most` at most.
    ///
    /// # Errors
    ///
    /// As [`Decoder::of`].
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

    /// A text, of `most` bytes at most.
    ///
    /// # Errors
    ///
    /// As [`Decoder::of`].
    pub fn text(&mut self, most: usize) -> Result<String, ContractError> {
        let text = std::str::from_utf8(self.bytes(most)?);
        Ok(text
            .map_err(|_| ContractError::Message("not UTF-8"))?
            .to_owned())
    }

    /// A stretch of memory.
    ///
    /// # Errors
    ///
    /// As [`Decoder::of`].
    pub fn extent(&mut self) -> Result<Extent, ContractError> {
        Ok(Extent {
            slab: self.u32()?,
            len: self.u32()?,
            offset: self.u64()?,
        })
    }

    /// An address and a port.
    ///
    /// # Errors
    ///
    /// As [`Decoder::of`].
    pub fn address(&mut self) -> Result<SocketAddr, ContractError> {
        let ip = Ipv6Addr::from(self.take::<16>()?);
        Ok(SocketAddr::new(ip.to_canonical(), self.u16()?))
    }

    /// That was all.
    ///
    /// # Errors
    ///
    /// As [`Decoder::of`]: there is more.
    pub fn end(self) -> Result<(), ContractError> {
        match self.0 {
            [] => Ok(()),
            _ => Err(ContractError::Message("too long")),
        }
    }
}

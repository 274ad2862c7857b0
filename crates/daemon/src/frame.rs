//! Frames: messages between two daemons on the queue pairs of a group. Each frame is a SEND whose immediate
//! is the number of the receiving end. It has a header of 32 bytes and a body that depends on its kind.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | kind |
//! | 1 | code: meaning depends on the kind; for a reset, the reason |
//! | 2 | 1 while the receive pool of the sending daemon admits no transfer, else 0 |
//! | 3 | 0 |
//! | 4–7 | length: of the body for data, otherwise of the bytes that the frame is about |
//! | 8–15 | total number of receives promised on this group ([`credit`](crate::credit)) |
//! | 16–23 | position in the stream, or depends on the kind |
//! | 24–31 | bytes in line, from the first on, that the peer may send in the other direction, or depends on the kind |
//!
//! All numbers are little-endian. A reader trusts none of them.

use headworks_wire::{Decoder, Encoder, Field, Malformed, Output};

/// Length of a header in bytes.
pub const HEADER: usize = 32;
/// Least buffer length for frames, in bytes. It has room for every frame except data frames.
pub const FRAME_MIN: u32 = 256;
/// Greatest buffer length for frames, in bytes.
pub const FRAME_MAX: u32 = 65_536;
/// Length of the body of [`Kind::Announce`] and [`Kind::Export`] in bytes.
pub const MEMORY: usize = 16;
/// Length of the body of [`Kind::Atomic`] in bytes.
pub const ATOMIC: usize = 32;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing but the number of promised receives.
    Tell = 0,
    /// Bytes of the stream, in the body.
    Data = 1,
    /// Bytes of the stream that the receiver is to READ: a transfer. The body says where they lie.
    Announce = 2,
    /// All transfers up to this position of the stream were READ.
    Fetched = 3,
    /// The peer may send more bytes in line.
    Window = 4,
    /// The stream ends at this position.
    End = 5,
    /// The connection is reset.
    Reset = 6,
    /// The sender sends no more data for this connection, and touches no memory of the other side for it. A
    /// [`Kind::Reset`] may follow.
    Closed = 7,
    /// The sender exports memory to the other end. The body says where it lies, the position is its number,
    /// and the code is the rights to it.
    Export = 8,
    /// The sender wants exported memory back.
    Revoke = 9,
    /// The sender does not use the exported memory any more, and will not.
    Revoked = 10,
    /// An atomic on exported memory, which the receiver executes. The position is the identifier that the
    /// answer repeats, the code is the operation, and the body holds the rest.
    Atomic = 11,
    /// The outcome of an atomic. The window field holds the previous value.
    Answer = 12,
    /// The receive pool of the sender's domain is in danger: the receiver is to send more slowly on this queue-pair group.
    Slow = 13,
}

impl Kind {
    /// Whether the daemon that gets such a frame has to do something for its sender: to take bytes, or to answer.
    pub(crate) fn wants_reaction(self) -> bool {
        match self {
            Self::Data | Self::Announce | Self::Atomic => true,
            Self::Export | Self::Revoke | Self::End => true,
            Self::Tell | Self::Window | Self::Fetched | Self::Revoked | Self::Answer => false,
            Self::Reset | Self::Closed | Self::Slow => false,
        }
    }

    const ALL: [Self; 14] = [
        Self::Tell,
        Self::Data,
        Self::Announce,
        Self::Fetched,
        Self::Window,
        Self::End,
        Self::Reset,
        Self::Closed,
        Self::Export,
        Self::Revoke,
        Self::Revoked,
        Self::Atomic,
        Self::Answer,
        Self::Slow,
    ];
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the frame.
    pub kind: Kind,
    /// Meaning depends on the kind.
    pub code: u8,
    /// Whether the receive pool of the sending daemon admits no transfer now.
    pub is_short: bool,
    /// Length in bytes: of the body for data, otherwise of the bytes that the frame is about.
    pub len: u32,
    /// Total number of receives promised.
    pub promised: u64,
    /// Position in the stream, or depends on the kind.
    pub at: u64,
    /// Bytes in line, from the first on, that the peer may send, or depends on the kind.
    pub window: u64,
}

impl Header {
    /// A header of this kind whose other fields are 0.
    pub const fn of(kind: Kind) -> Self {
        Self {
            kind,
            code: 0,
            is_short: false,
            len: 0,
            promised: 0,
            at: 0,
            window: 0,
        }
    }

    /// Encodes the header.
    #[inline]
    pub fn emit(&self) -> [u8; HEADER] {
        let to = Encoder::fixed().u8(self.kind as u8).u8(self.code);
        let to = to.u8(self.is_short.into()).u8(0).u32(self.len);
        to.u64(self.promised).u64(self.at).u64(self.window).finish()
    }

    /// Decodes the header of a frame of `len` bytes in total.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: the kind is unknown, or the lengths do not match it.
    #[inline]
    pub fn parse(bytes: &[u8; HEADER], len: usize) -> Result<Self, Malformed> {
        let behind = len.checked_sub(HEADER).ok_or(Malformed("too short"))?;
        let mut of = Decoder::new(bytes);
        let kind = of.u8()?;
        let known = Kind::ALL.into_iter().find(|known| *known as u8 == kind);
        let (code, short, zero) = (of.u8()?, of.u8()?, of.u8()?);
        let header = Self {
            kind: known.ok_or(Malformed("unknown kind"))?,
            code,
            is_short: short == 1,
            len: of.u32()?,
            promised: of.u64()?,
            at: of.u64()?,
            window: of.u64()?,
        };
        let fits = match header.kind {
            Kind::Data => behind == header.len as usize && behind > 0,
            Kind::Announce | Kind::Export => behind == MEMORY && header.len > 0,
            Kind::Atomic => behind == header.len as usize && behind == ATOMIC,
            _ => behind == 0,
        };
        if short > 1 {
            return Err(Malformed("its mark of a short pool is neither 0 nor 1"));
        }
        match fits && zero == 0 {
            true => Ok(header),
            false => Err(Malformed("its lengths do not match its kind")),
        }
    }
}

/// An atomic on exported memory: the body of [`Kind::Atomic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// Number of the exported range.
    pub export_id: u32,
    /// Offset of the word in the range, in bytes.
    pub at: u64,
    /// Value to add, or to store.
    pub operand: u64,
    /// Value that a compare-and-swap expects.
    pub compare: u64,
}

impl Atomic {
    /// Encodes the body.
    pub fn emit(&self) -> [u8; ATOMIC] {
        let to = Encoder::fixed().u64(self.export_id.into()).u64(self.at);
        to.u64(self.operand).u64(self.compare).finish()
    }

    /// Decodes the body.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: no export has such a number.
    pub fn parse(bytes: &[u8; ATOMIC]) -> Result<Self, Malformed> {
        let mut of = Decoder::new(bytes);
        let export_id = of.u64()?;
        Ok(Self {
            export_id: export_id
                .try_into()
                .map_err(|_| Malformed("export number"))?,
            at: of.u64()?,
            operand: of.u64()?,
            compare: of.u64()?,
        })
    }
}

/// Memory of the other side: address, key and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Remote {
    /// Address, in the other side's address space.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length in bytes.
    pub len: u32,
}

impl Field for Remote {
    fn encode<O: Output>(&self, to: Encoder<O>) -> Encoder<O> {
        to.u64(self.addr).u32(self.rkey).u32(self.len)
    }

    fn decode(of: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            addr: of.u64()?,
            rkey: of.u32()?,
            len: of.u32()?,
        })
    }
}

impl Remote {
    /// Encodes the body of an announcement or an export. The header holds the length.
    pub fn emit_memory(&self) -> [u8; MEMORY] {
        let without_len = Self { len: 0, ..*self };
        Encoder::fixed().field(&without_len).finish()
    }

    /// Decodes the body of an announcement or an export of `len` bytes.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: the body holds a length too.
    pub fn parse_memory(bytes: &[u8; MEMORY], len: u32) -> Result<Self, Malformed> {
        let offered: Self = Decoder::new(bytes).field()?;
        match offered.len {
            0 => Ok(Self { len, ..offered }),
            _ => Err(Malformed("the body holds a length")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_header_is_refused_or_reads_as_it_is_written(
            mut bytes in any::<[u8; HEADER]>(),
            kind in 0u8..10,
            short in 0u32..40,
            len in 0usize..100,
        ) {
            bytes[0] = kind;
            bytes[3] &= 1;
            if kind % 2 == 0 {
                bytes[4..8].copy_from_slice(&short.to_le_bytes());
            }
            if let Ok(header) = Header::parse(&bytes, len) {
                prop_assert_eq!(header.emit(), bytes);
                if header.kind == Kind::Data {
                    prop_assert_eq!(header.len as usize + HEADER, len);
                }
            }
        }

        #[test]
        fn memory_reads_as_it_is_written(addr: u64, rkey: u32, len: u32) {
            let remote = Remote { addr, rkey, len };
            prop_assert_eq!(Remote::parse_memory(&remote.emit_memory(), len), Ok(remote));
        }
    }

    #[test]
    fn lengths_must_fit() {
        let header = |kind, len| Header {
            len,
            ..Header::of(kind)
        };
        for (kind, len, behind, fits) in [
            (Kind::Data, 5, 5, true),
            (Kind::Data, 5, 4, false),
            (Kind::Data, 0, 0, false),
            (Kind::Announce, 9, MEMORY, true),
            (Kind::Announce, 0, MEMORY, false),
            (Kind::Fetched, 0, 0, true),
            (Kind::Fetched, 9, 9, false),
            (Kind::Window, 0, 0, true),
            (Kind::Window, 0, 9, false),
            (Kind::Closed, 0, 0, true),
            (Kind::Closed, 0, 1, false),
        ] {
            let parsed = Header::parse(&header(kind, len).emit(), HEADER + behind);
            assert_eq!(parsed.is_ok(), fits, "{kind:?} {len} {behind}");
        }
        assert!(Header::parse(&[0; HEADER], HEADER - 1).is_err());
    }
}

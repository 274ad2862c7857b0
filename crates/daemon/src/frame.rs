//! What two daemons say to each other over a link's queue pairs: frames, each a SEND with the receiving end's
//! number as its immediate. A header of 32 bytes, then what the kind says.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | kind |
//! | 1 | a number of the kind's: why, for a reset |
//! | 2 | how busy the sending daemon is, of 255 |
//! | 3 | 0 |
//! | 4–7 | length: of what is behind the header for data, of what is elsewhere otherwise |
//! | 8–15 | receives promised on this link, ever ([`credit`](crate::credit)) |
//! | 16–23 | position in the stream |
//! | 24–31 | position up to which the peer may send the other way; or what the kind says |
//!
//! All numbers little-endian. Whoever reads a frame believes none of it.

/// Bytes of a header.
pub const HEADER: usize = 32;
/// The shortest frame that has room for everything but data, and the longest.
pub const FRAME_MIN: u32 = 256;
/// See [`FRAME_MIN`].
pub const FRAME_MAX: u32 = 65_536;
/// Bytes behind the header of [`Kind::Offer`].
pub const OFFER: usize = 16;
/// Bytes behind the header of [`Kind::Atomic`].
pub const ATOMIC: usize = 32;
/// Bytes behind the header of a [`Kind::Window`] that names a ring.
pub const RING: usize = 24;

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing but how many receives are promised.
    Tell = 0,
    /// Bytes of the stream, behind the header.
    Data = 1,
    /// So many bytes of the stream were WRITTEN to where they belong, by the same queue pair before.
    Wrote = 2,
    /// So many bytes of the stream are to be READ: from where, behind the header.
    Offer = 3,
    /// They were.
    Fetched = 4,
    /// More may be sent; and in which ring the stream goes on, if that is behind the header.
    Window = 5,
    /// The stream ends at this position.
    End = 6,
    /// The connection is no more.
    Reset = 7,
    /// No data is sent for this connection any more, and no memory of the other side is touched for it. A
    /// [`Kind::Reset`] may follow.
    Closed = 8,
    /// Memory of the sender's may be used by the other end: where, behind the header; the position is what it is
    /// called, the number what may be done with it.
    Export = 9,
    /// It may not any more.
    Revoke = 10,
    /// It is not, and will not be.
    Revoked = 11,
    /// An atomic on such memory, which the frame's reader carries out: the rest is behind the header; the position is
    /// what the answer is to name, the number which operation.
    Atomic = 12,
    /// What became of it; in place of a window, what was there before.
    Answer = 13,
}

impl Kind {
    const ALL: [Self; 14] = [
        Self::Tell,
        Self::Data,
        Self::Wrote,
        Self::Offer,
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
    ];
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame says.
    pub kind: Kind,
    /// A number of the kind's.
    pub code: u8,
    /// How busy the sender is.
    pub load: u8,
    /// Of what is behind the header, or elsewhere.
    pub len: u32,
    /// Receives promised, ever.
    pub promised: u64,
    /// Position in the stream.
    pub at: u64,
    /// Position up to which the peer may send.
    pub window: u64,
}

/// Not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a frame: {0}")]
pub struct Malformed(&'static str);

impl Header {
    /// A header of this kind, with nothing else.
    pub const fn of(kind: Kind) -> Self {
        Self {
            kind,
            code: 0,
            load: 0,
            len: 0,
            promised: 0,
            at: 0,
            window: 0,
        }
    }

    /// Its bytes.
    pub fn emit(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.kind as u8;
        bytes[1] = self.code;
        bytes[2] = self.load;
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.promised.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.at.to_le_bytes());
        bytes[24..].copy_from_slice(&self.window.to_le_bytes());
        bytes
    }

    /// The header of a frame of `len` bytes in all.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn parse(bytes: &[u8; HEADER], len: usize) -> Result<Self, Malformed> {
        let behind = len.checked_sub(HEADER).ok_or(Malformed("too short"))?;
        let [kind, code, load, zero, ..] = *bytes;
        let known = Kind::ALL.into_iter().find(|known| *known as u8 == kind);
        let word = |at: usize| {
            let word = bytes[at..at + 8].try_into();
            u64::from_le_bytes(word.expect("eight bytes"))
        };
        let header = Self {
            kind: known.ok_or(Malformed("no such kind"))?,
            code,
            load,
            len: (word(0) >> 32) as u32,
            promised: word(8),
            at: word(16),
            window: word(24),
        };
        let fits = match header.kind {
            Kind::Data => behind == header.len as usize && behind > 0,
            Kind::Offer | Kind::Export => behind == OFFER && header.len > 0,
            Kind::Atomic => behind == header.len as usize && behind == ATOMIC,
            Kind::Wrote | Kind::Fetched => behind == 0 && header.len > 0,
            Kind::Window => behind == header.len as usize && (behind == 0 || behind == RING),
            _ => behind == 0,
        };
        match fits && zero == 0 {
            true => Ok(header),
            false => Err(Malformed("its lengths do not fit")),
        }
    }
}

/// An atomic on exported memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// What the memory is called.
    pub window: u32,
    /// Which byte of it.
    pub at: u64,
    /// What is added, or put there.
    pub operand: u64,
    /// What is expected there.
    pub compare: u64,
}

impl Atomic {
    /// Behind a header.
    pub fn emit(&self) -> [u8; ATOMIC] {
        let words = [self.window.into(), self.at, self.operand, self.compare];
        let mut bytes = [0; ATOMIC];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads it.
    pub fn parse(bytes: &[u8; ATOMIC]) -> Self {
        let [window, at, operand, compare] = [0, 8, 16, 24].map(|at| {
            let word = bytes[at..at + 8].try_into();
            u64::from_le_bytes(word.expect("eight bytes"))
        });
        Self {
            window: window as u32,
            at,
            operand,
            compare,
        }
    }
}

/// Memory of the other side's: where, by which key, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Remote {
    /// Its address there.
    pub addr: u64,
    /// Its key.
    pub rkey: u32,
    /// Bytes.
    pub len: u32,
}

impl Remote {
    /// Behind the header of an offer, where the length is the header's.
    pub fn emit_offer(&self) -> [u8; OFFER] {
        let mut bytes = [0; OFFER];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_le_bytes());
        bytes
    }

    /// Reads an offer of `len` bytes.
    pub fn parse_offer(bytes: &[u8; OFFER], len: u32) -> Self {
        let [addr, key] = [0, 8].map(|at| {
            let word = bytes[at..at + 8].try_into();
            u64::from_le_bytes(word.expect("eight bytes"))
        });
        Self {
            addr,
            rkey: key as u32,
            len,
        }
    }

    /// Behind the header of a window: a ring, in which the stream goes on at position `from`.
    pub fn emit_ring(&self, from: u64) -> [u8; RING] {
        let mut bytes = [0; RING];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..].copy_from_slice(&from.to_le_bytes());
        bytes
    }

    /// Reads a ring, and from which position on it holds the stream.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: its length is none for a ring.
    pub fn parse_ring(bytes: &[u8; RING]) -> Result<(Self, u64), Malformed> {
        let [addr, shape, from] = [0, 8, 16].map(|at| {
            let word = bytes[at..at + 8].try_into();
            u64::from_le_bytes(word.expect("eight bytes"))
        });
        let (rkey, len) = (shape as u32, (shape >> 32) as u32);
        if !len.is_power_of_two() {
            return Err(Malformed("a ring of that length"));
        }
        Ok((Self { addr, rkey, len }, from))
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
        fn memory_reads_as_it_is_written(addr: u64, rkey: u32, log in 0u32..32, len: u32, from: u64) {
            let remote = Remote { addr, rkey, len };
            prop_assert_eq!(Remote::parse_offer(&remote.emit_offer(), len), remote);
            let ring = Remote { len: 1 << log, ..remote };
            prop_assert_eq!(Remote::parse_ring(&ring.emit_ring(from)), Ok((ring, from)));
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
            (Kind::Offer, 9, OFFER, true),
            (Kind::Offer, 0, OFFER, false),
            (Kind::Wrote, 9, 0, true),
            (Kind::Wrote, 9, 9, false),
            (Kind::Window, 0, 0, true),
            (Kind::Window, RING as u32, RING, true),
            (Kind::Window, 0, RING, false),
            (Kind::Window, RING as u32 - 1, RING - 1, false),
            (Kind::Closed, 0, 0, true),
            (Kind::Closed, 0, 1, false),
        ] {
            let parsed = Header::parse(&header(kind, len).emit(), HEADER + behind);
            assert_eq!(parsed.is_ok(), fits, "{kind:?} {len} {behind}");
        }
        assert!(Header::parse(&[0; HEADER], HEADER - 1).is_err());
    }
}

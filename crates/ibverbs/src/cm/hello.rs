//! Private data of a connection's request and answer: pure.
//!
//! It holds only a magic and a version, so that a program of another kind is refused before anything else is
//! sent.

/// Most bytes of private data in a request; an answer is held to the same limit.
pub const GREETING_MAX: usize = 56;

const MAGIC: [u8; 6] = *b"HWcmgr";
const VERSION: u16 = 1;

/// Greeting of one side: magic and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Version of the protocol over the connection.
    pub version: u16,
}

/// Reason for which the peer's greeting is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GreetingError {
    /// The peer is another program.
    #[error("the other side is another program")]
    Foreign,
    /// The peer has another version.
    #[error("the other side uses version {found} of the protocol, this side {VERSION}")]
    Version {
        /// The peer's version.
        found: u16,
    },
}

impl Greeting {
    /// The greeting of this program.
    pub const OURS: Self = Self { version: VERSION };

    /// The greeting as bytes.
    pub fn bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..6].copy_from_slice(&MAGIC);
        bytes[6..].copy_from_slice(&self.version.to_le_bytes());
        bytes
    }

    /// Checks that `bytes` are the greeting of this version; any number of bytes may follow, since the
    /// network pads with zeros.
    pub fn check(bytes: &[u8]) -> Result<(), GreetingError> {
        match bytes {
            [magic @ .., low, high] if magic == MAGIC => match u16::from_le_bytes([*low, *high]) {
                VERSION => Ok(()),
                found => Err(GreetingError::Version { found }),
            },
            [_, _, _, _, _, _, _, _, _, ..] => Self::check(&bytes[..8]),
            _ => Err(GreetingError::Foreign),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_recognised_with_network_padding() {
        let bytes = Greeting::OURS.bytes();
        assert!(bytes.len() <= GREETING_MAX);
        assert_eq!(Greeting::check(&bytes), Ok(()));
        let mut padded = bytes.to_vec();
        padded.resize(196, 0);
        assert_eq!(Greeting::check(&padded), Ok(()));
    }

    #[test]
    fn foreign_bytes_and_other_versions_are_distinguished() {
        for bytes in [
            &b""[..],
            b"HWcmg",
            b"HWcmgr\x01",
            b"\0\0\0\0\0\0\0\0\0",
            b"HWcmgs\x01\0",
        ] {
            assert_eq!(Greeting::check(bytes), Err(GreetingError::Foreign));
        }
        let found = 0x0203;
        let other = Greeting { version: found }.bytes();
        assert_eq!(
            Greeting::check(&other),
            Err(GreetingError::Version { found })
        );
    }
}

//! The few bytes that travel with the question whether to connect, and with the answer: pure.
//!
//! They say only that both sides mean the same, so that a program of another kind is turned away before
//! anything else is said.

/// Bytes that a question can take along; of an answer, too, that is all that is used.
pub const GREETING_MAX: usize = 56;

const MAGIC: [u8; 6] = *b"HWcmgr";
const VERSION: u16 = 1;

/// What a side says of itself: magic and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The version of what is said over the connection.
    pub version: u16,
}

/// The other side is of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GreetingError {
    /// Another program.
    #[error("the other side is another program")]
    Foreign,
    /// Another version.
    #[error("the other side meets in version {found}, this is version {VERSION}")]
    Version {
        /// Its version.
        found: u16,
    },
}

impl Greeting {
    /// This program's.
    pub const OURS: Self = Self { version: VERSION };

    /// As it travels.
    pub fn bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..6].copy_from_slice(&MAGIC);
        bytes[6..].copy_from_slice(&self.version.to_le_bytes());
        bytes
    }

    /// Whether `bytes`, behind which there may be any number of zeros, are the greeting of this version.
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
    fn it_is_known_with_what_the_network_adds() {
        let bytes = Greeting::OURS.bytes();
        assert!(bytes.len() <= GREETING_MAX);
        assert_eq!(Greeting::check(&bytes), Ok(()));
        let mut padded = bytes.to_vec();
        padded.resize(196, 0);
        assert_eq!(Greeting::check(&padded), Ok(()));
    }

    #[test]
    fn others_are_told_from_other_versions() {
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

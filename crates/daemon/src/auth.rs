//! How daemons prove to each other that they have the same secret, without saying it: pure.
//!
//! Who calls sends a nonce, who is called another; then each proves by HMAC-SHA256 under the secret that it has both,
//! who it is, and whom it speaks to. Proofs of the two sides differ, and so do those for different hosts, so that none can
//! be sent back as one's own, or passed on. Who has the secret may say that he is any host. What travels afterwards
//! on the stream between daemons, and by RDMA, is neither encrypted nor authenticated.

use std::net::IpAddr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// A number that is used once.
pub type Nonce = [u8; 16];
/// That somebody has the secret.
pub type Proof = [u8; 32];

/// Fewest bytes of a secret, and most.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 16..=4096;

/// What all daemons that may talk to each other have.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

/// A secret that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret of {0} bytes: it has 16 to 4096")]
pub struct NoSecret(usize);

/// Which side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Who called.
    Calling,
    /// Who was called.
    Called,
}

/// Who proves it, and in which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which side of it.
    pub side: Role,
    /// The address that it serves.
    pub address: IpAddr,
    /// The address of whom it proves it to: what one host was told is of no use at another.
    pub to: IpAddr,
    /// Its life.
    pub life: u64,
    /// The nonce of who called.
    pub calling: Nonce,
    /// And of who was called.
    pub called: Nonce,
}

impl Secret {
    /// A secret as a file has it: without white space around it.
    ///
    /// # Errors
    ///
    /// [`NoSecret`].
    pub fn new(bytes: &[u8]) -> Result<Self, NoSecret> {
        let bytes = bytes.trim_ascii();
        if !SECRET_BYTES.contains(&bytes.len()) {
            return Err(NoSecret(bytes.len()));
        }
        Ok(Self::keyed(bytes))
    }

    fn keyed(key: &[u8]) -> Self {
        Self(Hmac::new_from_slice(key).expect("HMAC takes keys of any length"))
    }

    fn over(&self, claim: &Claim) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(match claim.side {
            Role::Calling => b"headworks daemon, calling",
            Role::Called => b"headworks daemon, called..",
        });
        // All of fixed length.
        for address in [claim.address, claim.to] {
            match address {
                IpAddr::V4(address) => mac.update(&address.to_ipv6_mapped().octets()),
                IpAddr::V6(address) => mac.update(&address.octets()),
            }
        }
        mac.update(&claim.life.to_le_bytes());
        mac.update(&claim.calling);
        mac.update(&claim.called);
        mac
    }

    /// Proves a claim.
    pub fn prove(&self, claim: &Claim) -> Proof {
        self.over(claim).finalize().into_bytes().into()
    }

    /// Whether it is proven; takes as long whatever the answer.
    pub fn is_proven(&self, claim: &Claim, proof: &Proof) -> bool {
        self.over(claim).verify_slice(proof).is_ok()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Nonces that nobody can foresee who does not know the entropy.
#[derive(Clone, Debug)]
pub struct Nonces {
    key: Secret,
    count: u64,
}

impl Nonces {
    /// From so much entropy.
    pub fn new(entropy: [u8; 32]) -> Self {
        Self {
            key: Secret::keyed(&entropy),
            count: 0,
        }
    }

    /// Another one.
    pub fn another(&mut self) -> Nonce {
        self.count += 1;
        let mut mac = self.key.0.clone();
        mac.update(&self.count.to_le_bytes());
        let bytes: Proof = mac.finalize().into_bytes().into();
        std::array::from_fn(|at| bytes[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim {
            side: Role::Calling,
            address: "10.0.0.1".parse().unwrap(),
            to: "10.0.0.3".parse().unwrap(),
            life: 7,
            calling: [1; 16],
            called: [2; 16],
        }
    }

    #[test]
    fn a_proof_is_of_one_claim_under_one_secret() {
        let secret = Secret::new(b"sixteen bytes at least\n").unwrap();
        let proof = secret.prove(&claim());
        assert!(secret.is_proven(&claim(), &proof));
        let same = Secret::new(b"  sixteen bytes at least").unwrap();
        assert!(same.is_proven(&claim(), &proof));
        let other = Secret::new(b"sixteen bytes at last.").unwrap();
        assert!(!other.is_proven(&claim(), &proof));
        for changed in [
            Claim {
                side: Role::Called,
                ..claim()
            },
            Claim {
                address: "10.0.0.2".parse().unwrap(),
                ..claim()
            },
            Claim {
                to: "10.0.0.2".parse().unwrap(),
                ..claim()
            },
            Claim { life: 8, ..claim() },
            Claim {
                calling: [2; 16],
                ..claim()
            },
            Claim {
                called: [1; 16],
                ..claim()
            },
        ] {
            assert!(!secret.is_proven(&changed, &proof), "{changed:?}");
        }
        assert!(!secret.is_proven(&claim(), &[0; 32]));
    }

    #[test]
    fn secrets_are_long_enough_and_are_not_shown() {
        assert_eq!(Secret::new(b"  short  \n").unwrap_err(), NoSecret(5));
        let long = Secret::new(&[b'a'; 5000]).unwrap_err();
        assert_eq!(
            long.to_string(),
            "a secret of 5000 bytes: it has 16 to 4096"
        );
        let secret = Secret::new(&[b'a'; 16]).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn nonces_are_others_each_time() {
        let mut nonces = Nonces::new([7; 32]);
        let all: std::collections::BTreeSet<Nonce> = (0..1000).map(|_| nonces.another()).collect();
        assert_eq!(all.len(), 1000);
        assert_ne!(
            Nonces::new([8; 32]).another(),
            Nonces::new([7; 32]).another()
        );
    }
}

//! Mutual authentication of daemons by a shared secret, without sending the secret: pure.
//!
//! The caller sends a nonce, and the callee sends another. Each side then proves by HMAC-SHA256 under the
//! secret that it knows both nonces, its own address and the address that it speaks to. The two sides' proofs
//! differ, and so do proofs for different hosts. So a proof cannot be sent back to its maker or relayed to
//! another host. A daemon that has the secret can claim to be any host. Nothing that travels afterwards is
//! encrypted or authenticated: neither the stream between daemons nor the data sent by RDMA.

use std::net::IpAddr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Random number that is used once.
pub type Nonce = [u8; 16];
/// Proof that a daemon has the secret: an HMAC over an [`AuthClaim`].
pub type Proof = [u8; 32];

/// Allowed length of a secret in bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 16..=4096;

/// The secret shared by all daemons that may talk to each other.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

/// Error: the secret is too short or too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the secret has {0} bytes: 16 to 4096 are allowed")]
pub struct InvalidSecret(usize);

/// Side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRole {
    /// The daemon that called.
    Calling,
    /// The daemon that was called.
    Called,
}

/// Statement that a daemon proves: its identity, the other daemon's, and the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthClaim {
    /// Side of the call that the daemon is on.
    pub side: CallRole,
    /// The address that the daemon serves.
    pub address: IpAddr,
    /// The address that the proof is meant for, so that a proof given to one host is of no use at another.
    pub to: IpAddr,
    /// The daemon's `life`, a number that differs each time a daemon starts.
    pub life: u64,
    /// The caller's nonce.
    pub calling: Nonce,
    /// The callee's nonce.
    pub called: Nonce,
}

impl Secret {
    /// Takes a secret as read from a file, and trims ASCII white space around it.
    ///
    /// # Errors
    ///
    /// [`InvalidSecret`]: its length is not allowed.
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidSecret> {
        let bytes = bytes.trim_ascii();
        if !SECRET_BYTES.contains(&bytes.len()) {
            return Err(InvalidSecret(bytes.len()));
        }
        Ok(Self::keyed(bytes))
    }

    fn keyed(key: &[u8]) -> Self {
        Self(Hmac::new_from_slice(key).expect("HMAC takes keys of any length"))
    }

    fn over(&self, claim: &AuthClaim) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(match claim.side {
            CallRole::Calling => b"headworks daemon, calling",
            CallRole::Called => b"headworks daemon, called..",
        });
        // All fields have a fixed length, so their concatenation is unambiguous.
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

    /// Returns the proof of a claim.
    pub fn prove(&self, claim: &AuthClaim) -> Proof {
        self.over(claim).finalize().into_bytes().into()
    }

    /// Whether `proof` proves the claim. Takes constant time.
    pub fn is_proven(&self, claim: &AuthClaim, proof: &Proof) -> bool {
        self.over(claim).verify_slice(proof).is_ok()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Generator of nonces that cannot be predicted without the entropy.
#[derive(Clone, Debug)]
pub struct Nonces {
    key: Secret,
    count: u64,
}

impl Nonces {
    /// Creates a generator from entropy, which must be secret.
    pub fn new(entropy: [u8; 32]) -> Self {
        Self {
            key: Secret::keyed(&entropy),
            count: 0,
        }
    }

    /// Returns a new nonce.
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

    fn claim() -> AuthClaim {
        AuthClaim {
            side: CallRole::Calling,
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
            AuthClaim {
                side: CallRole::Called,
                ..claim()
            },
            AuthClaim {
                address: "10.0.0.2".parse().unwrap(),
                ..claim()
            },
            AuthClaim {
                to: "10.0.0.2".parse().unwrap(),
                ..claim()
            },
            AuthClaim { life: 8, ..claim() },
            AuthClaim {
                calling: [2; 16],
                ..claim()
            },
            AuthClaim {
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
        assert_eq!(Secret::new(b"  short  \n").unwrap_err(), InvalidSecret(5));
        let long = Secret::new(&[b'a'; 5000]).unwrap_err();
        assert_eq!(
            long.to_string(),
            "the secret has 5000 bytes: 16 to 4096 are allowed"
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

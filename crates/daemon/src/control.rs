//! What two daemons say to each other on the stream between them: who they are, which links and connections there
//! are to be. Messages are whole; how they are framed is the stream's business.

use std::net::{IpAddr, SocketAddr};

use headworks_client::socket_message::Refusal;
use headworks_client::socket_message::codec::{Decoder, Encoder};
use headworks_client::{ContractError, Vqpn};

use crate::auth::{Nonce, Proof};
use crate::domain::{DomainId, Offer};
use crate::frame::Remote;
use crate::qp_group::QpRole;

/// The version of what daemons say, and the oldest that is still understood: each speaks with those before and after
/// it.
///
/// | version | what it added |
/// |---|---|
/// | 1 | streams |
/// | 2 | memory that is exported, and one-sided operations on it |
pub const VERSION: u16 = 2;
/// See [`VERSION`].
pub const VERSION_OLDEST: u16 = 1;
/// The first that knows of exported memory.
pub const EXPORTS_SINCE: u16 = 2;
/// Longest message in bytes.
pub const MESSAGE_MAX: usize = 4096;
/// Longest piece of a bring-up in bytes.
const BRING_UP_MAX: usize = 2048;

/// The two domains of a link: of who says it, and of who hears it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainPair {
    /// That of the daemon that says it.
    pub from: DomainId,
    /// That of the one that hears it.
    pub to: DomainId,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first, of who called, and the answer to it: which versions it speaks, and which address it serves.
    Hello {
        /// The latest it speaks.
        version: u16,
        /// The oldest it speaks.
        oldest: u16,
        /// The address.
        address: IpAddr,
        /// A number that is another each time a daemon starts.
        life: u64,
        /// Of who called, where it is to be proven who is called.
        nonce: Nonce,
        /// Of who was called, where that was asked for: zeros else.
        proof: Proof,
    },
    /// Before an answer to the first: who called is to prove that it has the secret.
    Challenge {
        /// Of who was called.
        nonce: Nonce,
    },
    /// It does.
    Prove {
        /// See [`auth`](crate::auth).
        proof: Proof,
    },
    /// The last: nothing more is said, and why.
    Goodbye {
        /// Reason of the refusal.
        why: Refusal,
    },
    /// See [`Output::LinkWanted`](crate::domain::Output::LinkWanted).
    LinkWanted {
        /// Which link.
        between: DomainPair,
        /// The last one known.
        known: u32,
    },
    /// See [`Output::BringUp`](crate::domain::Output::BringUp).
    BringUp {
        /// Which link.
        between: DomainPair,
        /// Which of those that there have been.
        instance: u32,
        /// Which of its queue pairs.
        which: QpRole,
        /// Bytes of the message.
        bytes: Vec<u8>,
    },
    /// See [`Output::LinkDown`](crate::domain::Output::LinkDown).
    LinkDown {
        /// Which link.
        between: DomainPair,
        /// Which of those that there have been.
        instance: u32,
    },
    /// An application wants a connection.
    Connect {
        /// Answered under this number.
        token: u32,
        /// Its domain.
        domain: DomainId,
        /// Its address and port.
        from: SocketAddr,
        /// The port it wants.
        port: u16,
    },
    /// There is an end for it.
    Accept {
        /// To that number.
        token: u32,
        /// In this domain.
        domain: DomainId,
        /// The end.
        offer: Offer,
    },
    /// There is none.
    Refuse {
        /// To that number.
        token: u32,
        /// Reason of the refusal.
        why: Refusal,
    },
    /// And there is the other end.
    Confirm {
        /// The domain of the accepted end.
        domain: DomainId,
        /// That end.
        number: Vqpn,
        /// Parameters that the other daemon offers.
        offer: Offer,
    },
    /// The end that was accepted is no more: its link has failed meanwhile.
    Missed {
        /// The domain of the other end.
        domain: DomainId,
        /// That end.
        number: Vqpn,
    },
    /// Or there is not.
    Cancel {
        /// The domain of the accepted end.
        domain: DomainId,
        /// That end.
        number: Vqpn,
    },
}

/// Bytes of which it is known how many there are.
fn exactly<const N: usize>(of: &mut Decoder<'_>) -> Result<[u8; N], ContractError> {
    let bytes = of.bytes(N)?.try_into();
    bytes.map_err(|_| ContractError::Message("a nonce or proof of another length"))
}

impl Message {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let between = |to: Encoder, of: &DomainPair| to.u32(of.from.0).u32(of.to.0);
        let offer = |to: Encoder, of: &Offer| {
            to.u32(of.number.bits())
                .u64(of.ring.addr)
                .u32(of.ring.rkey)
                .u32(of.ring.len)
        };
        match self {
            Self::Hello {
                version,
                oldest,
                address,
                life,
                nonce,
                proof,
            } => Encoder::of(1)
                .u16(*version)
                .u16(*oldest)
                .address(SocketAddr::new(*address, 0))
                .u64(*life)
                .bytes(nonce)
                .bytes(proof),
            Self::Challenge { nonce } => Encoder::of(12).bytes(nonce),
            Self::Prove { proof } => Encoder::of(13).bytes(proof),
            Self::Goodbye { why } => Encoder::of(10).u8(*why as u8),
            Self::LinkWanted { between: of, known } => between(Encoder::of(2), of).u32(*known),
            Self::BringUp {
                between: of,
                instance,
                which,
                bytes,
            } => between(Encoder::of(3), of)
                .u32(*instance)
                .u8(*which as u8)
                .bytes(bytes),
            Self::LinkDown {
                between: of,
                instance,
            } => between(Encoder::of(4), of).u32(*instance),
            Self::Connect {
                token,
                domain,
                from,
                port,
            } => Encoder::of(5)
                .u32(*token)
                .u32(domain.0)
                .address(*from)
                .u16(*port),
            Self::Accept {
                token,
                domain,
                offer: of,
            } => offer(Encoder::of(6).u32(*token).u32(domain.0), of),
            Self::Refuse { token, why } => Encoder::of(7).u32(*token).u8(*why as u8),
            Self::Confirm {
                domain,
                number,
                offer: of,
            } => offer(Encoder::of(8).u32(domain.0).u32(number.bits()), of),
            Self::Cancel { domain, number } => Encoder::of(9).u32(domain.0).u32(number.bits()),
            Self::Missed { domain, number } => Encoder::of(11).u32(domain.0).u32(number.bits()),
        }
        .finish()
    }

    /// Reads what another daemon wrote.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`].
    pub fn decode(message: &[u8]) -> Result<Self, ContractError> {
        let between = |of: &mut Decoder<'_>| -> Result<DomainPair, ContractError> {
            Ok(DomainPair {
                from: DomainId(of.u32()?),
                to: DomainId(of.u32()?),
            })
        };
        let offer = |of: &mut Decoder<'_>| -> Result<Offer, ContractError> {
            let number = Vqpn::from_bits(of.u32()?);
            let ring = Remote {
                addr: of.u64()?,
                rkey: of.u32()?,
                len: of.u32()?,
            };
            match ring.len.is_power_of_two() {
                true => Ok(Offer { number, ring }),
                false => Err(ContractError::Message("a ring of that length")),
            }
        };
        let (kind, mut of) = Decoder::of(message)?;
        let message = match kind {
            1 => Self::Hello {
                version: of.u16()?,
                oldest: of.u16()?,
                address: match of.address()? {
                    address if address.port() == 0 => address.ip(),
                    _ => return Err(ContractError::Message("an address with a port")),
                },
                life: of.u64()?,
                nonce: exactly(&mut of)?,
                proof: exactly(&mut of)?,
            },
            12 => Self::Challenge {
                nonce: exactly(&mut of)?,
            },
            13 => Self::Prove {
                proof: exactly(&mut of)?,
            },
            2 => Self::LinkWanted {
                between: between(&mut of)?,
                known: of.u32()?,
            },
            3 => Self::BringUp {
                between: between(&mut of)?,
                instance: of.u32()?,
                which: QpRole::from_code(of.u8()?)
                    .ok_or(ContractError::Message("no such queue pair"))?,
                bytes: of.bytes(BRING_UP_MAX)?.to_vec(),
            },
            4 => Self::LinkDown {
                between: between(&mut of)?,
                instance: of.u32()?,
            },
            5 => Self::Connect {
                token: of.u32()?,
                domain: DomainId(of.u32()?),
                from: of.address()?,
                port: of.u16()?,
            },
            6 => Self::Accept {
                token: of.u32()?,
                domain: DomainId(of.u32()?),
                offer: offer(&mut of)?,
            },
            7 => Self::Refuse {
                token: of.u32()?,
                why: Refusal::from_code(of.u8()?)?,
            },
            8 => Self::Confirm {
                domain: DomainId(of.u32()?),
                number: Vqpn::from_bits(of.u32()?),
                offer: offer(&mut of)?,
            },
            9 => Self::Cancel {
                domain: DomainId(of.u32()?),
                number: Vqpn::from_bits(of.u32()?),
            },
            11 => Self::Missed {
                domain: DomainId(of.u32()?),
                number: Vqpn::from_bits(of.u32()?),
            },
            10 => Self::Goodbye {
                why: Refusal::from_code(of.u8()?)?,
            },
            _ => return Err(ContractError::Message("no such message")),
        };
        of.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let between = DomainPair {
            from: DomainId(7),
            to: DomainId(u32::MAX),
        };
        let offer = Offer {
            number: Vqpn::from_bits(77),
            ring: Remote {
                addr: u64::MAX - 4,
                rkey: 5,
                len: 4096,
            },
        };
        let domain = DomainId(1000);
        let (number, token) = (Vqpn::new(3, 4), 9);
        let instance = 2;
        let all = [
            Message::Hello {
                version: 3,
                oldest: 2,
                address: "10.0.0.1".parse().unwrap(),
                life: 12,
                nonce: [1; 16],
                proof: [2; 32],
            },
            Message::Challenge { nonce: [3; 16] },
            Message::Prove { proof: [4; 32] },
            Message::Goodbye {
                why: Refusal::Version,
            },
            Message::LinkWanted { between, known: 8 },
            Message::BringUp {
                between,
                instance,
                which: QpRole::Bulk,
                bytes: vec![1, 2, 3],
            },
            Message::LinkDown { between, instance },
            Message::Connect {
                token,
                domain,
                from: "[fe80::1]:99".parse().unwrap(),
                port: 80,
            },
            Message::Accept {
                token,
                domain,
                offer,
            },
            Message::Refuse {
                token,
                why: Refusal::Limit,
            },
            Message::Confirm {
                domain,
                number,
                offer,
            },
            Message::Cancel { domain, number },
            Message::Missed { domain, number },
        ];
        for message in all {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Ok(message));
            for short in 0..bytes.len() {
                assert!(Message::decode(&bytes[..short]).is_err());
            }
            assert!(Message::decode(&[bytes, vec![0]].concat()).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }
}

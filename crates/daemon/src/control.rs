//! Messages on the stream between two daemons: who they are, and which queue-pair groups and connections to
//! make. This module encodes whole messages; the stream frames them.

use std::net::{IpAddr, SocketAddr};

use headworks_client::direct::DirectPlace;
use headworks_client::socket_message::Refusal;
use headworks_client::{ContractError, Vqpn};
use headworks_wire::{Decoder, Encoder, Field, Malformed, Output};

use crate::auth::{Nonce, Proof};
use crate::ids::DomainId;
use crate::qp_group::QpRole;

/// Newest protocol version that this daemon speaks.
///
/// | version | what it added |
/// |---|---|
/// | 1 | streams |
/// | 2 | memory that is exported, and one-sided operations on it |
/// | 3 | questions whether the other daemon still runs |
/// | 4 | long pieces of streams are READ into the receiver's pool; none are WRITTEN. Older versions are refused |
/// | 5 | direct connections between applications of one machine |
/// | 6 | a third ring of a direct connection before its receiver has left the first |
pub const VERSION: u16 = 6;
/// The version from which on two daemons make direct connections.
pub const DIRECT_VERSION: u16 = 6;
/// Oldest protocol version that this daemon still understands: see [`VERSION`].
pub const VERSION_OLDEST: u16 = 4;
/// Length of the longest message in bytes.
pub const MESSAGE_MAX: usize = 4096;
/// Length of the longest piece of a bring-up in bytes.
const BRING_UP_MAX: usize = 2048;

/// Description of a connection's end that its daemon sends to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Number of the end.
    pub number: Vqpn,
    /// Bytes that the peer may send in line at first.
    pub window: u32,
}

/// The two sessions of a pair, as the sender of the message sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairEnds {
    /// Session at the daemon that sends the message.
    pub from: u64,
    /// Session at the daemon that receives it.
    pub to: u64,
}

/// A place in the memory of a pair, and which of its uses is meant. A place is used again once a connection has ended. Its
/// generation differs then, so that a late message about an earlier use has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceId {
    /// Number of the connection in that memory.
    pub number: u32,
    /// Generation of the place.
    pub generation: u32,
}

/// A place that a daemon has taken for a direct connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenPlace {
    /// Where the connection lies.
    pub place: DirectPlace,
    /// Generation of the place.
    pub generation: u32,
}

impl TakenPlace {
    /// The use that this place was taken for.
    pub fn id(&self) -> PlaceId {
        PlaceId {
            number: self.place.number,
            generation: self.generation,
        }
    }
}

/// The sender's end of a direct connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectOffer {
    /// Session at the daemon that sends the message.
    pub session: u64,
    /// Where that session sends.
    pub taken: TakenPlace,
}

/// The two domains that a queue-pair group connects, as the sender of the message sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainPair {
    /// Domain of the daemon that sends the message.
    pub from: DomainId,
    /// Domain of the daemon that receives it.
    pub to: DomainId,
}

/// Message between two daemons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The caller's first message, and the callee's answer to it: the sender's versions and address.
    Hello {
        /// Newest version that the sender speaks.
        version: u16,
        /// Oldest version that the sender speaks.
        oldest: u16,
        /// The address that the sender serves.
        address: IpAddr,
        /// Number that differs each time a daemon starts.
        life: u64,
        /// The sender's nonce. A callee that has a secret uses the caller's; otherwise it is ignored.
        nonce: Nonce,
        /// In the callee's answer, its proof if the caller requested one; otherwise zeros.
        proof: Proof,
    },
    /// The callee's request that the caller prove that it has the secret. It precedes the answer to the
    /// hello.
    Challenge {
        /// The callee's nonce.
        nonce: Nonce,
    },
    /// The caller's answer to the challenge.
    Prove {
        /// The caller's proof: see [`auth`](crate::auth).
        proof: Proof,
    },
    /// The last message of a stream, with the reason.
    Goodbye {
        /// Reason for which the sender ends the stream.
        why: Refusal,
    },
    /// See [`Output::QpGroupWanted`](crate::domain::Output::QpGroupWanted).
    QpGroupWanted {
        /// The domains that the group connects.
        between: DomainPair,
        /// Last instance of the group that the sender knew; 0 for none.
        known: u32,
    },
    /// See [`Output::BringUp`](crate::domain::Output::BringUp).
    BringUp {
        /// The domains that the group connects.
        between: DomainPair,
        /// Instance of the group.
        instance: u32,
        /// Queue pair of the group.
        qp_role: QpRole,
        /// Bytes of the bring-up.
        bytes: Vec<u8>,
    },
    /// See [`Output::QpGroupDown`](crate::domain::Output::QpGroupDown).
    QpGroupDown {
        /// The domains that the group connects.
        between: DomainPair,
        /// Instance of the group.
        instance: u32,
    },
    /// Request for a connection, on behalf of an application.
    Connect {
        /// Number that the answer repeats.
        token: u32,
        /// Domain of the application.
        domain: DomainId,
        /// Address and port of the application's end.
        from: SocketAddr,
        /// Port to connect to.
        port: u16,
        /// The application's session, if the connection may be direct.
        direct: Option<u64>,
    },
    /// Answer to [`Message::Connect`]: the listening side has made an end.
    Accept {
        /// Number of the request.
        token: u32,
        /// Domain of the listening application.
        domain: DomainId,
        /// The end that was made.
        offer: Offer,
        /// The end of the direct connection, if it is one.
        direct: Option<DirectOffer>,
    },
    /// Answer to [`Message::Connect`]: the listening side has no end.
    Refuse {
        /// Number of the request.
        token: u32,
        /// Reason for the refusal.
        why: Refusal,
    },
    /// Answer to [`Message::Accept`]: the connecting side has made its end.
    Confirm {
        /// Domain of the accepted end.
        domain: DomainId,
        /// Number of the accepted end.
        number: Vqpn,
        /// The connecting side's end.
        offer: Offer,
        /// The end of the direct connection, if it is one.
        direct: Option<DirectOffer>,
    },
    /// Memory in which a session sends to another; its file comes with the message.
    PairMemory {
        /// The sessions.
        ends: PairEnds,
    },
    /// The receiving side's end of the socket of a pair, which comes with the message.
    PairSocket {
        /// The sessions.
        ends: PairEnds,
    },
    /// The sender's session uses a connection in the receiver's memory no more.
    DirectOver {
        /// The sessions.
        ends: PairEnds,
        /// The connection in that memory.
        place: PlaceId,
    },
    /// The sender's session has ended.
    PairOver {
        /// The sessions.
        ends: PairEnds,
    },
    /// Answer to [`Message::Confirm`]: the accepted end is gone, since its queue-pair group has failed
    /// meanwhile.
    Missed {
        /// Domain of the connecting end.
        domain: DomainId,
        /// Number of the connecting end.
        number: Vqpn,
    },
    /// Question whether the other daemon still runs.
    Ping,
    /// Answer to [`Message::Ping`].
    Pong,
    /// Answer to [`Message::Accept`]: the connecting side has no end.
    Cancel {
        /// Domain of the accepted end.
        domain: DomainId,
        /// Number of the accepted end.
        number: Vqpn,
    },
}

impl Field for DomainPair {
    fn encode<O: Output>(&self, to: Encoder<O>) -> Encoder<O> {
        to.u32(self.from.0).u32(self.to.0)
    }

    fn decode(of: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            from: DomainId(of.u32()?),
            to: DomainId(of.u32()?),
        })
    }
}

impl Field for PairEnds {
    fn encode<O: Output>(&self, to: Encoder<O>) -> Encoder<O> {
        to.u64(self.from).u64(self.to)
    }

    fn decode(of: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            from: of.u64()?,
            to: of.u64()?,
        })
    }
}

impl Field for DirectOffer {
    fn encode<O: Output>(&self, to: Encoder<O>) -> Encoder<O> {
        let TakenPlace { place, generation } = &self.taken;
        to.u64(self.session).field(place).u32(*generation)
    }

    fn decode(of: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            session: of.u64()?,
            taken: TakenPlace {
                place: of.field()?,
                generation: of.u32()?,
            },
        })
    }
}

impl Field for PlaceId {
    fn encode<O: Output>(&self, to: Encoder<O>) -> Encoder<O> {
        to.u32(self.number).u32(self.generation)
    }

    fn decode(of: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            number: of.u32()?,
            generation: of.u32()?,
        })
    }
}

impl Field for Offer {
    fn encode<O: Output>(&self, to: Encoder<O>) -> Encoder<O> {
        to.u32(self.number.bits()).u32(self.window)
    }

    fn decode(of: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            number: Vqpn::from_bits(of.u32()?),
            window: of.u32()?,
        })
    }
}

/// Reads a nonce or proof of `N` bytes, after its length.
fn exactly<const N: usize>(of: &mut Decoder<'_>) -> Result<[u8; N], Malformed> {
    let bytes = of.bytes(N)?.try_into();
    bytes.map_err(|_| Malformed("a nonce or proof has the wrong length"))
}

impl Message {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello {
                version,
                oldest,
                address,
                life,
                nonce,
                proof,
            } => Encoder::message(1)
                .u16(*version)
                .u16(*oldest)
                .address(SocketAddr::new(*address, 0))
                .u64(*life)
                .bytes(nonce)
                .bytes(proof),
            Self::Challenge { nonce } => Encoder::message(12).bytes(nonce),
            Self::Prove { proof } => Encoder::message(13).bytes(proof),
            Self::Goodbye { why } => Encoder::message(10).u8(*why as u8),
            Self::QpGroupWanted { between: of, known } => Encoder::message(2).field(of).u32(*known),
            Self::BringUp {
                between: of,
                instance,
                qp_role,
                bytes,
            } => Encoder::message(3)
                .field(of)
                .u32(*instance)
                .u8(*qp_role as u8)
                .bytes(bytes),
            Self::QpGroupDown {
                between: of,
                instance,
            } => Encoder::message(4).field(of).u32(*instance),
            Self::Connect {
                token,
                domain,
                from,
                port,
                direct,
            } => {
                let message = Encoder::message(if direct.is_some() { 16 } else { 5 })
                    .u32(*token)
                    .u32(domain.0)
                    .address(*from)
                    .u16(*port);
                match direct {
                    Some(session) => message.u64(*session),
                    None => message,
                }
            }
            Self::Accept {
                token,
                domain,
                offer: of,
                direct,
            } => {
                let message = Encoder::message(if direct.is_some() { 17 } else { 6 })
                    .u32(*token)
                    .u32(domain.0)
                    .field(of);
                match direct {
                    Some(direct) => message.field(direct),
                    None => message,
                }
            }
            Self::Refuse { token, why } => Encoder::message(7).u32(*token).u8(*why as u8),
            Self::Confirm {
                domain,
                number,
                offer: of,
                direct,
            } => {
                let message = Encoder::message(if direct.is_some() { 18 } else { 8 })
                    .u32(domain.0)
                    .u32(number.bits())
                    .field(of);
                match direct {
                    Some(direct) => message.field(direct),
                    None => message,
                }
            }
            Self::PairMemory { ends } => Encoder::message(19).field(ends),
            Self::PairSocket { ends } => Encoder::message(20).field(ends),
            Self::DirectOver { ends, place } => Encoder::message(21).field(ends).field(place),
            Self::PairOver { ends } => Encoder::message(22).field(ends),
            Self::Cancel { domain, number } => Encoder::message(9).u32(domain.0).u32(number.bits()),
            Self::Missed { domain, number } => {
                Encoder::message(11).u32(domain.0).u32(number.bits())
            }
            Self::Ping => Encoder::message(14),
            Self::Pong => Encoder::message(15),
        }
        .finish()
    }

    /// Whether a file comes with an encoded message.
    pub fn carries_file(message: &[u8]) -> bool {
        matches!(message.first(), Some(19 | 20))
    }

    /// Decodes a message of another daemon.
    ///
    /// # Errors
    ///
    /// [`ContractError::Message`]: the message is malformed.
    pub fn decode(message: &[u8]) -> Result<Self, ContractError> {
        let (kind, mut of) = Decoder::message(message)?;
        let message = match kind {
            1 => Self::Hello {
                version: of.u16()?,
                oldest: of.u16()?,
                address: of.address_without_port()?,
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
            2 => Self::QpGroupWanted {
                between: of.field()?,
                known: of.u32()?,
            },
            3 => Self::BringUp {
                between: of.field()?,
                instance: of.u32()?,
                qp_role: QpRole::from_code(of.u8()?)
                    .ok_or(ContractError::Message("unknown queue pair"))?,
                bytes: of.bytes(BRING_UP_MAX)?.to_vec(),
            },
            4 => Self::QpGroupDown {
                between: of.field()?,
                instance: of.u32()?,
            },
            5 | 16 => Self::Connect {
                token: of.u32()?,
                domain: DomainId(of.u32()?),
                from: of.address()?,
                port: of.u16()?,
                direct: if kind == 16 { Some(of.u64()?) } else { None },
            },
            6 | 17 => Self::Accept {
                token: of.u32()?,
                domain: DomainId(of.u32()?),
                offer: of.field()?,
                direct: if kind == 17 { Some(of.field()?) } else { None },
            },
            7 => Self::Refuse {
                token: of.u32()?,
                why: Refusal::from_code(of.u8()?)?,
            },
            8 | 18 => Self::Confirm {
                domain: DomainId(of.u32()?),
                number: Vqpn::from_bits(of.u32()?),
                offer: of.field()?,
                direct: if kind == 18 { Some(of.field()?) } else { None },
            },
            19 => Self::PairMemory { ends: of.field()? },
            20 => Self::PairSocket { ends: of.field()? },
            21 => Self::DirectOver {
                ends: of.field()?,
                place: of.field()?,
            },
            22 => Self::PairOver { ends: of.field()? },
            9 => Self::Cancel {
                domain: DomainId(of.u32()?),
                number: Vqpn::from_bits(of.u32()?),
            },
            11 => Self::Missed {
                domain: DomainId(of.u32()?),
                number: Vqpn::from_bits(of.u32()?),
            },
            14 => Self::Ping,
            15 => Self::Pong,
            10 => Self::Goodbye {
                why: Refusal::from_code(of.u8()?)?,
            },
            _ => return Err(ContractError::Message("unknown kind")),
        };
        of.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_client::Extent;
    use proptest::prelude::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let between = DomainPair {
            from: DomainId(7),
            to: DomainId(u32::MAX),
        };
        let offer = Offer {
            number: Vqpn::from_bits(77),
            window: 4096,
        };
        let domain = DomainId(1000);
        let (number, token) = (Vqpn::new(3, 4), 9);
        let instance = 2;
        let ends = PairEnds { from: 5, to: 6 };
        let extent = |offset| Extent {
            slab: 0,
            len: 1024,
            offset,
        };
        let direct = Some(DirectOffer {
            session: 9,
            taken: TakenPlace {
                place: DirectPlace {
                    number: 11,
                    block: extent(1024),
                    ring: extent(4096),
                },
                generation: u32::MAX,
            },
        });
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
            Message::QpGroupWanted { between, known: 8 },
            Message::BringUp {
                between,
                instance,
                qp_role: QpRole::Bulk,
                bytes: vec![1, 2, 3],
            },
            Message::QpGroupDown { between, instance },
            Message::Connect {
                token,
                domain,
                from: "[fe80::1]:99".parse().unwrap(),
                port: 80,
                direct: None,
            },
            Message::Connect {
                token,
                domain,
                from: "10.0.0.1:99".parse().unwrap(),
                port: 80,
                direct: Some(u64::MAX),
            },
            Message::Accept {
                token,
                domain,
                offer,
                direct: None,
            },
            Message::Accept {
                token,
                domain,
                offer,
                direct,
            },
            Message::PairMemory { ends },
            Message::PairSocket { ends },
            Message::DirectOver {
                ends,
                place: PlaceId {
                    number: 3,
                    generation: 7,
                },
            },
            Message::PairOver { ends },
            Message::Refuse {
                token,
                why: Refusal::Limit,
            },
            Message::Confirm {
                domain,
                number,
                offer,
                direct: None,
            },
            Message::Confirm {
                domain,
                number,
                offer,
                direct,
            },
            Message::Cancel { domain, number },
            Message::Missed { domain, number },
            Message::Ping,
            Message::Pong,
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

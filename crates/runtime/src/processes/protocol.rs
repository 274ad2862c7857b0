//! The protocol between the coordinator and an actor's process. Either side treats the other's bytes as
//! hostile: everything is bounded, and illegal bytes yield a [`FrameError`].

use headworks_verbs::DeviceName;
use headworks_wire::{Decoder, Encoder, Malformed};

use crate::actor::{MAIL_MAX, Mail};
use crate::scenario::{ACTORS_MAX, ActorSpec, is_valid_name};
use headworks_net::framing::{FrameError, encode_frame};

/// Maximum length of a message in bytes: the longest mail or arguments, and 256 KiB for the other fields.
pub(crate) const MESSAGE_MAX: usize = MAIL_MAX + (256 << 10);
/// Maximum length in bytes of the text of a failure; a longer text is cut off.
const REASON_MAX: usize = 4096;

/// A message from the coordinator.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ToChild {
    /// The first message: the actor to run, and all roles.
    Start {
        spec: ActorSpec,
        roles: Vec<String>,
    },
    Mail(Mail),
    Interrupt,
    /// End the actor: it gets no further step.
    Cancel,
}

/// A message to the coordinator.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FromChild {
    Mail {
        to: String,
        bytes: Vec<u8>,
    },
    Report(Vec<u8>),
    /// The last message. Holds the reason of a failure, or `None` for success.
    Ended(Option<String>),
}

impl ToChild {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        match self {
            Self::Start { spec, roles } => {
                let device = spec.device.as_ref().map(DeviceName::to_string);
                let device = device.unwrap_or_default();
                let head = short(Encoder::message(b'S'), &spec.role)?;
                let head = short(short(head, &spec.actor)?, &device)?;
                let cpu = spec.cpu.map_or(u64::MAX, |cpu| cpu as u64);
                let head = head.u64(cpu).u16(roles.len() as u16);
                let head = roles
                    .iter()
                    .try_fold(head, |head, role| short(head, role))?;
                encode_frame(out, &[&head.finish(), &spec.args], MESSAGE_MAX)
            }
            Self::Mail(mail) => {
                let head = short(Encoder::message(b'M'), &mail.from)?.finish();
                encode_frame(out, &[&head, &mail.bytes], MESSAGE_MAX)
            }
            Self::Interrupt => encode_frame(out, &[b"I"], MESSAGE_MAX),
            Self::Cancel => encode_frame(out, &[b"C"], MESSAGE_MAX),
        }
    }

    pub(crate) fn parse(message: &[u8]) -> Result<Self, FrameError> {
        let (kind, mut of) = Decoder::message(message)?;
        match kind {
            b'S' => {
                let (role, actor) = (name(&mut of)?, name(&mut of)?);
                let device = match text(&mut of)? {
                    "" => None,
                    text => Some(text.parse().map_err(|_| FrameError::Malformed("device"))?),
                };
                let cpu = of.u64()?;
                let count = usize::from(of.u16()?);
                if count > ACTORS_MAX {
                    return Err(FrameError::Malformed("number of roles"));
                }
                let roles = (0..count)
                    .map(|_| name(&mut of))
                    .collect::<Result<_, _>>()?;
                let cpu = usize::try_from(cpu).ok().filter(|&cpu| cpu != usize::MAX);
                let spec = ActorSpec {
                    role,
                    actor,
                    device,
                    cpu,
                    args: of.rest().to_vec(),
                };
                Ok(Self::Start { spec, roles })
            }
            b'M' => Ok(Self::Mail(Mail {
                from: name(&mut of)?,
                bytes: of.rest().to_vec(),
            })),
            b'I' => Ok(Self::Interrupt),
            b'C' => Ok(Self::Cancel),
            _ => Err(FrameError::Malformed("kind")),
        }
    }
}

impl FromChild {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        match self {
            Self::Mail { to, bytes } => mail_to(out, to, bytes),
            Self::Report(bytes) => report(out, bytes),
            Self::Ended(None) => encode_frame(out, &[b"D"], MESSAGE_MAX),
            Self::Ended(Some(why)) => {
                let reason = why.as_bytes();
                encode_frame(
                    out,
                    &[b"F", &reason[..reason.len().min(REASON_MAX)]],
                    MESSAGE_MAX,
                )
            }
        }
    }

    pub(crate) fn parse(message: &[u8]) -> Result<Self, FrameError> {
        let (kind, mut of) = Decoder::message(message)?;
        let message = match kind {
            b'M' => Self::Mail {
                to: name(&mut of)?,
                bytes: of.rest().to_vec(),
            },
            b'R' => Self::Report(of.rest().to_vec()),
            b'D' => Self::Ended(None),
            b'F' => Self::Ended(Some(String::from_utf8_lossy(of.rest()).into_owned())),
            _ => return Err(FrameError::Malformed("kind")),
        };
        match &message {
            Self::Mail { bytes, .. } | Self::Report(bytes) if bytes.len() > MAIL_MAX => {
                Err(FrameError::TooLong {
                    len: bytes.len(),
                    max: MAIL_MAX,
                })
            }
            _ => Ok(message),
        }
    }
}

/// Encodes [`FromChild::Mail`] without a copy of the bytes.
pub(crate) fn mail_to(out: &mut Vec<u8>, to: &str, bytes: &[u8]) -> Result<(), FrameError> {
    let head = short(Encoder::message(b'M'), to)?.finish();
    encode_frame(out, &[&head, bytes], MESSAGE_MAX)
}

/// Encodes [`FromChild::Report`] without a copy of the bytes.
pub(crate) fn report(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), FrameError> {
    encode_frame(out, &[b"R", bytes], MESSAGE_MAX)
}

/// Appends a text, which must not be too long for its length's field.
fn short(to: Encoder, text: &str) -> Result<Encoder, FrameError> {
    let (len, max) = (text.len(), usize::from(u16::MAX));
    match len <= max {
        true => Ok(to.bytes(text.as_bytes())),
        false => Err(FrameError::TooLong { len, max }),
    }
}

/// Reads a text.
fn text<'m>(of: &mut Decoder<'m>) -> Result<&'m str, Malformed> {
    of.text(usize::from(u16::MAX))
}

/// Reads a name.
fn name(of: &mut Decoder<'_>) -> Result<String, FrameError> {
    match text(of)? {
        name if is_valid_name(name) => Ok(name.to_owned()),
        _ => Err(FrameError::Malformed("name")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_net::framing::HEADER;
    use proptest::prelude::*;

    fn names() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(b"abcXYZ09._-".as_slice()), 1..=64)
            .prop_map(|bytes| String::from_utf8(bytes).expect("ASCII"))
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..200)
    }

    fn specs() -> impl Strategy<Value = ActorSpec> {
        let device = prop::option::of(Just("soft:h2,hostile,seed=7".parse().expect("legal")));
        (
            names(),
            names(),
            device,
            bytes(),
            prop::option::of(0usize..4096),
        )
            .prop_map(|(role, actor, device, args, cpu)| ActorSpec {
                role,
                actor,
                device,
                args,
                cpu,
            })
    }

    fn to_child() -> impl Strategy<Value = ToChild> {
        prop_oneof![
            (specs(), prop::collection::vec(names(), 0..20))
                .prop_map(|(spec, roles)| ToChild::Start { spec, roles }),
            (names(), bytes()).prop_map(|(from, bytes)| ToChild::Mail(Mail { from, bytes })),
            Just(()).prop_map(|()| ToChild::Interrupt),
        ]
    }

    fn from_child() -> impl Strategy<Value = FromChild> {
        prop_oneof![
            (names(), bytes()).prop_map(|(to, bytes)| FromChild::Mail { to, bytes }),
            bytes().prop_map(FromChild::Report),
            prop::option::of(".{0,40}").prop_map(FromChild::Ended),
        ]
    }

    proptest! {
        #[test]
        fn messages_survive(to in to_child(), from in from_child()) {
            let mut out = Vec::new();
            to.encode(&mut out).unwrap();
            prop_assert_eq!(ToChild::parse(&out[HEADER..]).unwrap(), to);
            out.clear();
            from.encode(&mut out).unwrap();
            prop_assert_eq!(FromChild::parse(&out[HEADER..]).unwrap(), from);
        }

        #[test]
        fn any_bytes_never_panic(kind in prop::sample::select(b"SMIRDFx".as_slice()), mut rest in bytes()) {
            rest.insert(0, kind);
            let _ = ToChild::parse(&rest);
            let _ = FromChild::parse(&rest);
            let _ = FromChild::parse(&rest[1..]);
        }

        #[test]
        fn damaged_messages_never_panic(to in to_child(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut out = Vec::new();
            to.encode(&mut out).unwrap();
            let message = &mut out[HEADER..];
            let at = at.index(message.len());
            message[at] = byte;
            let _ = ToChild::parse(message);
            let _ = ToChild::parse(&message[..at]);
        }
    }
}

//! Designs: two verbs, the connections, and the flag of mailboxes. Each becomes a set of types.

use std::fmt;
use std::str::FromStr;

use headworks_patterns::verb::{
    DenseWrite, InMessage, OwnReceives, SecondWrite, Send, SharedReceives, Verb, Write,
};
use serde::{Deserialize, Serialize};

/// Verb that carries a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MessageVerb {
    /// WRITE into a mailbox.
    Write,
    /// SEND into a tagged receive.
    Send,
}

/// Connections between requesters and responders (section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Connections {
    /// Each requester connects to each responder.
    Private,
    /// The dispatcher of a server connects to each responder, for all requesters of the server.
    Dispatcher,
}

/// Position of a mailbox's flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MailboxFlag {
    /// The last byte of the message, which the device must place last.
    InMessage,
    /// A word behind the message, by a second WRITE.
    SecondWrite,
    /// A byte of a dense area, by a second WRITE, for requests; responses have it behind the message.
    Dense,
}

/// A design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Design {
    /// Verb of requests.
    pub request: MessageVerb,
    /// Verb of responses.
    pub response: MessageVerb,
    /// Connections.
    pub connections: Connections,
    /// Flag of mailboxes.
    pub flag: MailboxFlag,
}

impl Design {
    /// The four pairs of verbs over private connections, as the paper names them, with the flag in the message.
    pub const PAIRS: [Self; 4] = [
        Self::of(MessageVerb::Write, MessageVerb::Write),
        Self::of(MessageVerb::Send, MessageVerb::Send),
        Self::of(MessageVerb::Write, MessageVerb::Send),
        Self::of(MessageVerb::Send, MessageVerb::Write),
    ];

    /// Makes a design of two verbs, over private connections, with the flag in the message.
    pub const fn of(request: MessageVerb, response: MessageVerb) -> Self {
        Self {
            request,
            response,
            connections: Connections::Private,
            flag: MailboxFlag::InMessage,
        }
    }

    /// Returns the same design with another flag.
    pub const fn with_flag(self, flag: MailboxFlag) -> Self {
        Self { flag, ..self }
    }

    /// Returns the same design with dispatchers.
    pub const fn dispatched(self) -> Self {
        Self {
            connections: Connections::Dispatcher,
            ..self
        }
    }

    /// Returns whether messages arrive in mailboxes in either direction, so that the flag matters.
    pub const fn has_mailboxes(self) -> bool {
        matches!(self.request, MessageVerb::Write) || matches!(self.response, MessageVerb::Write)
    }
}

impl fmt::Display for Design {
    /// Writes the paper's name, such as `WriteSend`, and what differs from a private connection and a flag in the
    /// message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{:?}", self.request, self.response)?;
        match self.flag {
            MailboxFlag::InMessage => {}
            _ if !self.has_mailboxes() => {}
            MailboxFlag::SecondWrite => f.write_str("+flag")?,
            MailboxFlag::Dense => f.write_str("+dense")?,
        }
        match self.connections {
            Connections::Private => Ok(()),
            Connections::Dispatcher => f.write_str("+dispatcher"),
        }
    }
}

/// A text is not the name of a design.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a design: use WriteWrite, SendSend, WriteSend or SendWrite, then +flag or +dense (where a Write is), \
     then +dispatcher"
)]
pub struct DesignError(String);

impl FromStr for Design {
    type Err = DesignError;

    fn from_str(text: &str) -> Result<Self, DesignError> {
        let wrong = || DesignError(text.to_owned());
        let mut words = text.split('+');
        let pair = words.next().unwrap_or_default();
        let mut design = *Self::PAIRS
            .iter()
            .find(|design| design.to_string().eq_ignore_ascii_case(pair))
            .ok_or_else(wrong)?;
        let mut last = 0;
        for word in words {
            let (rank, next) = match word {
                "flag" => (1, design.with_flag(MailboxFlag::SecondWrite)),
                "dense" => (1, design.with_flag(MailboxFlag::Dense)),
                "dispatcher" => (2, design.dispatched()),
                _ => return Err(wrong()),
            };
            if rank <= last {
                return Err(wrong());
            }
            (last, design) = (rank, next);
        }
        match design.has_mailboxes() || design.flag == MailboxFlag::InMessage {
            true => Ok(design),
            false => Err(wrong()),
        }
    }
}

/// A function that is generic over the verbs of a design. `INLINE`: requests travel inline.
pub(super) trait WithVerbs {
    type Output;

    fn with<Request: Verb, Response: Verb, const INLINE: bool>(self) -> Self::Output;
}

/// Calls `f` with the types of `design`. This is the only place where a design is tested at run time.
pub(super) fn with_verbs<F: WithVerbs>(design: Design, inline: bool, f: F) -> F::Output {
    type Receives = Send<OwnReceives>;
    type Shared = Send<SharedReceives>;
    macro_rules! call {
        ($request:ty, $response:ty) => {
            match inline {
                true => f.with::<$request, $response, true>(),
                false => f.with::<$request, $response, false>(),
            }
        };
    }
    use MailboxFlag::{Dense, InMessage as In, SecondWrite as Second};
    use MessageVerb::{Send as S, Write as W};
    match (design.request, design.response, design.flag) {
        (W, W, In) => call!(Write<InMessage>, Write<InMessage>),
        (W, W, Second) => call!(Write<SecondWrite>, Write<SecondWrite>),
        (W, W, Dense) => call!(DenseWrite, Write<SecondWrite>),
        (W, S, In) => call!(Write<InMessage>, Receives),
        (W, S, Second) => call!(Write<SecondWrite>, Receives),
        (W, S, Dense) => call!(DenseWrite, Receives),
        (S, W, In) => call!(Shared, Write<InMessage>),
        (S, W, Second | Dense) => call!(Shared, Write<SecondWrite>),
        (S, S, _) => call!(Shared, Receives),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn designs_are_parsed_as_they_are_printed() {
        for pair in Design::PAIRS {
            for design in [pair, pair.dispatched()] {
                assert_eq!(design.to_string().parse(), Ok(design));
            }
        }
        let dense = Design::PAIRS[0].with_flag(MailboxFlag::Dense).dispatched();
        assert_eq!(dense.to_string(), "WriteWrite+dense+dispatcher");
        assert_eq!("writewrite+dense+dispatcher".parse(), Ok(dense));
        for wrong in [
            "",
            "ReadWrite",
            "WriteWrite+",
            "WriteWrite+dispatcher+flag",
            "SendSend+flag",
            "SendSend+dense+dispatcher",
        ] {
            let error = wrong.parse::<Design>().unwrap_err().to_string();
            assert!(error.contains("SendSend"), "{error}");
        }
    }
}

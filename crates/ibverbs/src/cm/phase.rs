//! State machine of a connection: pure.

use std::io;

use super::CmError;
use super::abi::event;

/// InfiniBand's reason "invalid service ID": no program listens there.
const NO_SUCH_SERVICE: i32 = 8;

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The address is being resolved.
    Address,
    /// The address is resolved, and the route is being resolved.
    ResolvedRoute,
    /// The route is known, and the program has to ask; or a request has come, and the program has to answer.
    Ready,
    /// The request was sent.
    Asked,
    /// The request was accepted, and the peer has to confirm.
    Answered,
    /// Both sides can send.
    Up,
    /// The connection is over.
    Ended,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Address => "resolving the address",
            Self::ResolvedRoute => "resolving the route",
            Self::Ready => "ready to connect",
            Self::Asked => "connecting",
            Self::Answered => "answering",
            Self::Up => "connected",
            Self::Ended => "disconnected",
        }
    }
}

/// The action that an event requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextAction {
    /// No action.
    Nothing,
    /// Resolve the route.
    FindWay,
    /// Move the queue pair to RTS and confirm to the peer.
    StepUp,
}

/// The system's error for an event's status, which is negative if it comes from the kernel unchanged.
fn system(status: i32) -> io::Error {
    io::Error::from_raw_os_error(status.saturating_abs())
}

/// The phase that an event leads to, and the action that it requires. `said` is the event's private data.
pub(crate) fn next(
    phase: Phase,
    event: i32,
    status: i32,
    said: &[u8],
) -> Result<(Phase, NextAction), CmError> {
    match (phase, event) {
        // These are late events, or events that are ignored in any phase.
        (Phase::Ended, _) | (_, event::FIRST_OF_OTHERS..) => Ok((phase, NextAction::Nothing)),
        (_, event::DEVICE_REMOVAL) => match phase {
            Phase::Up => Ok((Phase::Ended, NextAction::Nothing)),
            _ => Err(CmError::Removed),
        },
        (Phase::Address, event::ADDR_RESOLVED) => Ok((Phase::ResolvedRoute, NextAction::FindWay)),
        (Phase::ResolvedRoute, event::ROUTE_RESOLVED) => Ok((Phase::Ready, NextAction::Nothing)),
        (Phase::Address | Phase::ResolvedRoute, event::ADDR_ERROR | event::ROUTE_ERROR) => {
            let source = system(status);
            Err(CmError::NoWay { source })
        }
        (Phase::Asked, event::CONNECT_RESPONSE) => Ok((Phase::Up, NextAction::StepUp)),
        (Phase::Answered, event::ESTABLISHED) => Ok((Phase::Up, NextAction::Nothing)),
        (_, event::REJECTED) if status == NO_SUCH_SERVICE => Err(CmError::NobodyListens),
        (_, event::REJECTED) => Err(CmError::Refused {
            reason: status,
            greeting: said.to_vec(),
        }),
        // The connecting side may be gone before the answer arrives.
        (Phase::Asked | Phase::Answered, event::UNREACHABLE | event::CONNECT_ERROR) => {
            let source = system(status);
            Err(CmError::NoAnswer { source })
        }
        (Phase::Ready | Phase::Asked | Phase::Answered, event::DISCONNECTED) => {
            let source = io::ErrorKind::ConnectionReset.into();
            Err(CmError::NoAnswer { source })
        }
        (Phase::Up, event::ESTABLISHED) => Ok((phase, NextAction::Nothing)),
        // All of these events end a connection.
        (Phase::Up, event::DISCONNECTED | event::CONNECT_ERROR | event::UNREACHABLE) => {
            Ok((Phase::Ended, NextAction::Nothing))
        }
        (phase, event) => Err(CmError::Unexpected {
            event,
            phase: phase.name(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quietly(phase: Phase, event: i32) -> Option<(Phase, NextAction)> {
        next(phase, event, 0, b"").ok()
    }

    #[test]
    fn a_call_goes_up_in_order() {
        use Phase::{Address, Asked, Ended, Ready, ResolvedRoute, Up};
        assert_eq!(
            quietly(Address, event::ADDR_RESOLVED),
            Some((ResolvedRoute, NextAction::FindWay))
        );
        assert_eq!(
            quietly(ResolvedRoute, event::ROUTE_RESOLVED),
            Some((Ready, NextAction::Nothing))
        );
        assert_eq!(
            quietly(Asked, event::CONNECT_RESPONSE),
            Some((Up, NextAction::StepUp))
        );
        assert_eq!(
            quietly(Up, event::DISCONNECTED),
            Some((Ended, NextAction::Nothing))
        );
        for event in 0..20 {
            assert_eq!(quietly(Ended, event), Some((Ended, NextAction::Nothing)));
        }
    }

    #[test]
    fn an_accepted_connection_is_up_once_established() {
        let up = (Phase::Up, NextAction::Nothing);
        assert_eq!(quietly(Phase::Answered, event::ESTABLISHED), Some(up));
        let gone = next(Phase::Answered, event::DISCONNECTED, 0, b"").unwrap_err();
        assert!(matches!(gone, CmError::NoAnswer { .. }), "{gone}");
    }

    #[test]
    fn every_failure_has_its_own_words() {
        let error = |phase, event, status| next(phase, event, status, b"no").unwrap_err();
        let timed_out = -libc::ETIMEDOUT;
        let no_way = error(Phase::Address, event::ADDR_ERROR, -libc::ENODEV);
        assert!(no_way.to_string().contains("No such device"), "{no_way}");
        let silent = error(Phase::Asked, event::UNREACHABLE, timed_out);
        assert!(silent.to_string().contains("timed out"), "{silent}");
        let nobody = error(Phase::Asked, event::REJECTED, 8);
        assert!(matches!(nobody, CmError::NobodyListens), "{nobody}");
        let CmError::Refused { reason, greeting } = error(Phase::Asked, event::REJECTED, 28) else {
            panic!("no refusal");
        };
        assert_eq!((reason, &*greeting), (28, &b"no"[..]));
        let removed = error(Phase::Ready, event::DEVICE_REMOVAL, 0);
        assert!(matches!(removed, CmError::Removed), "{removed}");
        let early = error(Phase::Address, event::ESTABLISHED, 0);
        assert!(
            matches!(early, CmError::Unexpected { event: 9, .. }),
            "{early}"
        );
    }

    proptest! {
        #[test]
        fn no_event_sequence_brings_up_an_unrequested_connection(
            events in proptest::collection::vec((any::<i32>(), any::<i32>()), 0..40),
            small in proptest::collection::vec((0i32..18, -130i32..40), 0..40),
        ) {
            let mut phase = Phase::Address;
            for (event, status) in small.into_iter().chain(events) {
                let Ok((to, next_action)) = next(phase, event, status, b"") else { break };
                prop_assert_ne!(to, Phase::Up);
                prop_assert_ne!(next_action, NextAction::StepUp);
                phase = to;
            }
        }
    }
}

//! Known deviations of devices from the specification. Each was found by running the cases on the device.

use headworks_verbs::Status::{
    LocalAccess, LocalLength, LocalProtection, LocalQpOperation, RemoteAccess,
    RemoteInvalidRequest, RemoteOperation,
};

use crate::deviation::DeviantBehaviour::{
    Completes, Ends, Hangs, Keeps, MayComplete, MayHang, Refuses,
};
use crate::deviation::{Deviation, KnownDeviations};

/// Returns the known deviations of a driver ([`DeviceInfo::driver`]) on a kernel release, as printed by
/// `uname -r`.
///
/// [`DeviceInfo::driver`]: headworks_verbs::DeviceInfo::driver
pub fn of_driver(driver: Option<&str>, release: &str) -> KnownDeviations {
    match driver {
        Some("rxe") => KnownDeviations {
            all: RXE,
            is_certain: is_kernel_release(release, RXE_KERNEL),
        },
        _ => KnownDeviations::default(),
    }
}

/// Returns whether a kernel release is of this version.
fn is_kernel_release(release: &str, version: &str) -> bool {
    let rest = release.strip_prefix(version);
    rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
}

/// Linux version on which [`RXE`] was found.
pub const RXE_KERNEL: &str = "6.1";

/// Deviations of the kernel's rxe, as of Linux 6.1.
pub const RXE: &[Deviation] = &[
    Deviation {
        cases: &[
            "matrix::local_bad_key",
            "matrix::local_domain",
            "matrix::local_deregistered",
            "matrix::local_second_piece",
        ],
        operations: &["SEND", "SEND_IMM", "WRITE", "WRITE_IMM"],
        behaviour: Completes(LocalProtection, LocalQpOperation),
        verb_and_request: (
            "post_send",
            "SEND, WRITE, with or without immediate, from memory whose key is not valid here",
        ),
        demanded: "LocalProtection (11.6.2)",
        observed: "LocalQpOperation: only bounds count as protection. READ and atomics end as demanded",
    },
    Deviation {
        cases: &["datagrams::stops_at_a_bad_key"],
        operations: &[],
        behaviour: Completes(LocalProtection, LocalQpOperation),
        verb_and_request: (
            "post_send",
            "a datagram from memory whose key is not valid here",
        ),
        demanded: "LocalProtection (11.6.2)",
        observed: "LocalQpOperation",
    },
    Deviation {
        cases: &["memory::sent_and_deregistered"],
        operations: &[],
        behaviour: MayComplete(LocalProtection, LocalQpOperation),
        verb_and_request: ("deregister", "the source of a WRITE under way"),
        demanded: "LocalProtection, or Success (11.6.2)",
        observed: "LocalQpOperation, or Success",
    },
    Deviation {
        cases: &[
            "matrix::recv_bad_key",
            "matrix::recv_end",
            "matrix::recv_start",
            "matrix::recv_wrap",
            "matrix::recv_far",
            "matrix::recv_domain",
            "matrix::recv_deregistered",
            "matrix::recv_second_piece",
            "matrix::recv_access",
            "matrix::srq_recv_bad_key",
            "matrix::srq_recv_end",
            "matrix::srq_recv_start",
            "matrix::srq_recv_wrap",
            "matrix::srq_recv_far",
            "matrix::srq_recv_domain",
            "matrix::srq_recv_deregistered",
            "matrix::srq_recv_second_piece",
            "matrix::srq_recv_access",
            "datagrams::recv_bad_key",
            "datagrams::recv_end",
            "datagrams::recv_start",
            "datagrams::recv_wrap",
            "datagrams::recv_far",
            "datagrams::recv_domain",
            "datagrams::recv_deregistered",
            "datagrams::recv_second_piece",
            "datagrams::recv_access",
            "datagrams::srq_recv_bad_key",
            "datagrams::srq_recv_end",
            "datagrams::srq_recv_start",
            "datagrams::srq_recv_wrap",
            "datagrams::srq_recv_far",
            "datagrams::srq_recv_domain",
            "datagrams::srq_recv_deregistered",
            "datagrams::srq_recv_second_piece",
            "datagrams::srq_recv_access",
            "datagrams::deregistered_under_a_stream",
        ],
        operations: &[],
        behaviour: Completes(LocalProtection, LocalQpOperation),
        verb_and_request: (
            "post_recv, post_srq_recv",
            "into memory that may not be received into",
        ),
        demanded: "LocalProtection (11.6.2)",
        observed: "LocalQpOperation",
    },
    Deviation {
        cases: &["matrix::recv_short", "matrix::srq_recv_short"],
        operations: &[],
        behaviour: Completes(LocalLength, LocalQpOperation),
        verb_and_request: ("post_recv, post_srq_recv", "shorter than the SEND"),
        demanded: "LocalLength (11.6.2)",
        observed: "LocalQpOperation: it is found out only when the bytes do not fit",
    },
    Deviation {
        cases: &["matrix::recv_short", "matrix::srq_recv_short"],
        operations: &[],
        behaviour: Completes(RemoteInvalidRequest, RemoteOperation),
        verb_and_request: ("post_send", "SEND, longer than the peer's receive"),
        demanded: "RemoteInvalidRequest (table of 9.9.3)",
        observed: "RemoteOperation",
    },
    Deviation {
        cases: &[
            "matrix::remote_bad_key",
            "matrix::remote_end",
            "matrix::remote_start",
            "matrix::remote_wrap",
            "matrix::remote_far",
            "matrix::remote_domain",
            "matrix::remote_deregistered",
            "matrix::remote_access",
        ],
        operations: &["WRITE_IMM"],
        behaviour: Completes(LocalAccess, RemoteAccess),
        verb_and_request: (
            "post_recv",
            "taken by a WRITE_IMM whose key, bounds or access are refused",
        ),
        demanded: "LocalAccess, or not taken (11.6.2)",
        observed: "RemoteAccess, which is a status of requests",
    },
    Deviation {
        cases: &["matrix::misaligned"],
        operations: &["CMP_SWAP", "FETCH_ADD"],
        behaviour: Refuses("Operation"),
        verb_and_request: (
            "post_send",
            "CMP_SWAP, FETCH_ADD at an address that is no multiple of 8",
        ),
        demanded: "RemoteInvalidRequest: the responder finds it (table of 9.9.3)",
        observed: "refused when posted (Operation), by its library; both queue pairs go on",
    },
    Deviation {
        cases: &["datagrams::lost", "datagrams::recv_short"],
        operations: &[],
        behaviour: Ends(
            "too long for the receive: another receive completed: Done { wr_id: 1, status: LocalQpOperation",
        ),
        verb_and_request: ("post_recv", "shorter than the datagram"),
        demanded: "the datagram is lost, the receive stays (class D of 9.9.3)",
        observed: "the receive ends with LocalQpOperation, and the queue pair with it",
    },
    Deviation {
        cases: &["datagrams::srq_recv_short"],
        operations: &[],
        behaviour: Ends("with LocalQpOperation instead of 1 with LocalLength"),
        verb_and_request: ("post_srq_recv", "shorter than the datagram"),
        demanded: "LocalLength, and the queue pair receives on (class E of 9.9.3)",
        observed: "LocalQpOperation, and the queue pair is in error",
    },
    Deviation {
        cases: &["datagrams::stops_at_a_bad_key"],
        operations: &[],
        behaviour: Ends("state of the sender: Error instead of Sqe"),
        verb_and_request: ("post_send", "a datagram that cannot be sent"),
        demanded: "SQE: receives go on, and it can be brought back (10.3.1)",
        observed: "ERR, from which only RESET leads",
    },
    Deviation {
        cases: &[
            "matrix::srq_recv_bad_key",
            "matrix::srq_recv_end",
            "matrix::srq_recv_start",
            "matrix::srq_recv_wrap",
            "matrix::srq_recv_far",
            "matrix::srq_recv_domain",
            "matrix::srq_recv_deregistered",
            "matrix::srq_recv_second_piece",
            "matrix::srq_recv_access",
            "matrix::srq_recv_short",
            "datagrams::srq_recv_bad_key",
            "datagrams::srq_recv_end",
            "datagrams::srq_recv_start",
            "datagrams::srq_recv_wrap",
            "datagrams::srq_recv_far",
            "datagrams::srq_recv_domain",
            "datagrams::srq_recv_deregistered",
            "datagrams::srq_recv_second_piece",
            "datagrams::srq_recv_access",
        ],
        operations: &[],
        behaviour: Keeps("QpLastWqe"),
        verb_and_request: (
            "next_async_event",
            "when a queue pair over an SRQ has failed",
        ),
        demanded: "QpLastWqe tells that it has taken its last receive (11.6.3.1)",
        observed: "no such event, ever",
    },
    Deviation {
        cases: &["datagrams::own_qkey"],
        operations: &[],
        behaviour: Hangs("with the queue pair's own: no completion"),
        verb_and_request: (
            "post_send",
            "a datagram whose Q_Key has the highest bit set",
        ),
        demanded: "the queue pair's own Q_Key is sent (10.2.5)",
        observed: "the request's is sent, and the datagram is lost",
    },
    Deviation {
        cases: &["states::error_flushes_in_order"],
        operations: &[],
        behaviour: Hangs("a later receive: no completion"),
        verb_and_request: ("post_recv", "in ERR"),
        demanded: "Flushed (10.3.1)",
        observed: "nothing, until something else has the kernel look at the queue: its library posts by storing to memory",
    },
    Deviation {
        cases: &["matrix::fenced_and_unanswered"],
        operations: &["READ", "CMP_SWAP", "FETCH_ADD"],
        behaviour: Hangs("behind a fence: no completion"),
        verb_and_request: (
            "post_send",
            "READ, CMP_SWAP, FETCH_ADD behind a fence, which the peer does not answer",
        ),
        demanded: "RetryExceeded (11.6.2)",
        observed: "nothing, ever: it is not sent again, since its fence waits for all READs and atomics, itself among them",
    },
    Deviation {
        cases: &["matrix::fenced_and_sent_again"],
        operations: &["SEND", "SEND_IMM", "WRITE_IMM"],
        behaviour: Hangs("behind a fence: no completion"),
        verb_and_request: (
            "post_send",
            "SEND, SEND_IMM, WRITE_IMM behind a fence, with a READ behind it, before there is a receive",
        ),
        demanded: "it is sent again, and both succeed (9.7.5.2.8)",
        observed: "nothing, ever, for the same reason: its fence waits for the READ behind it",
    },
    Deviation {
        cases: &["matrix::wrong_behind_what_is_unanswered"],
        operations: &["SEND", "SEND_IMM", "WRITE", "WRITE_IMM"],
        behaviour: Hangs("before a mistake: no completion"),
        verb_and_request: (
            "post_send",
            "memory whose key is not valid here, behind a request that the peer does not answer",
        ),
        demanded: "RetryExceeded of that request, then Flushed (10.3.1)",
        observed: "nothing, ever: nothing is sent again once the queue has stopped at the mistake",
    },
    Deviation {
        cases: &[
            "matrix::local_bad_key",
            "matrix::local_end",
            "matrix::local_start",
            "matrix::local_wrap",
            "matrix::local_far",
            "matrix::local_domain",
            "matrix::local_deregistered",
            "matrix::local_second_piece",
        ],
        operations: &["SEND", "SEND_IMM", "WRITE", "WRITE_IMM"],
        behaviour: MayHang("at a mistake: no completion"),
        verb_and_request: (
            "post_send",
            "memory that is not valid here, behind a request that the peer is about to acknowledge",
        ),
        demanded: "that request succeeds, and the mistake's status (10.3.1)",
        observed: "sometimes nothing, ever: an acknowledgement that comes when the queue has stopped at the mistake already is dropped, and nothing is sent again",
    },
    Deviation {
        cases: &["matrix::drained"],
        operations: &[
            "SEND",
            "SEND_IMM",
            "WRITE",
            "WRITE_IMM",
            "READ",
            "CMP_SWAP",
            "FETCH_ADD",
        ],
        behaviour: Hangs("in RTS again: no completion"),
        verb_and_request: ("modify", "SQD to RTS, with requests posted"),
        demanded: "they are executed (10.3.1)",
        observed: "nothing, until the next is posted",
    },
    Deviation {
        cases: &["matrix::draining"],
        operations: &["SEND", "WRITE", "READ"],
        behaviour: MayHang("in SQD: no completion"),
        verb_and_request: ("modify", "to SQD in the middle of a request"),
        demanded: "it is executed to its end (10.3.1)",
        observed: "sometimes it stops: if a packet has to be sent again, nothing is sent any more until it is in RTS and the next is posted; and while it drains so, only ERR and RESET lead away",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_on_one_kernel_is_certain_there_alone() {
        for release in ["6.1", "6.1.0-37-amd64", "6.1.140", "6.1-rc4"] {
            assert!(of_driver(Some("rxe"), release).is_certain, "{release}");
        }
        for release in ["6.10.3", "6.12.0", "16.1.0", "", "5.6.1"] {
            let known_deviations = of_driver(Some("rxe"), release);
            assert!(
                !known_deviations.is_certain && !known_deviations.all.is_empty(),
                "{release}"
            );
        }
        for driver in [None, Some("mlx5_core"), Some("rxe2")] {
            assert!(of_driver(driver, "6.1.0").all.is_empty(), "{driver:?}");
        }
    }
}

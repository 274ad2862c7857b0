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
            "SEND, SEND_IMM, WRITE or WRITE_IMM from memory whose lkey is not valid",
        ),
        demanded: "LocalProtection (11.6.2)",
        observed: "LocalQpOperation: rxe reports LocalProtection only for bounds. READ and atomics end as specified",
    },
    Deviation {
        cases: &[
            "datagrams::stops_at_a_bad_key",
            "unreliable_connections::stops_at_a_bad_key",
        ],
        operations: &[],
        behaviour: Completes(LocalProtection, LocalQpOperation),
        verb_and_request: (
            "post_send",
            "a datagram or a SEND over UC from memory whose lkey is not valid",
        ),
        demanded: "LocalProtection (11.6.2)",
        observed: "LocalQpOperation",
    },
    Deviation {
        cases: &["memory::sent_and_deregistered"],
        operations: &[],
        behaviour: MayComplete(LocalProtection, LocalQpOperation),
        verb_and_request: ("deregister", "the source of a WRITE in progress"),
        demanded: "LocalProtection or Success (11.6.2)",
        observed: "LocalQpOperation or Success",
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
            "unreliable_connections::bad_receive",
        ],
        operations: &[],
        behaviour: Completes(LocalProtection, LocalQpOperation),
        verb_and_request: (
            "post_recv, post_srq_recv",
            "a receive into memory that does not allow it",
        ),
        demanded: "LocalProtection (11.6.2)",
        observed: "LocalQpOperation",
    },
    Deviation {
        cases: &["matrix::recv_short", "matrix::srq_recv_short"],
        operations: &[],
        behaviour: Completes(LocalLength, LocalQpOperation),
        verb_and_request: (
            "post_recv, post_srq_recv",
            "a receive shorter than the SEND",
        ),
        demanded: "LocalLength (11.6.2)",
        observed: "LocalQpOperation: rxe finds the fault only when the bytes do not fit",
    },
    Deviation {
        cases: &["matrix::recv_short", "matrix::srq_recv_short"],
        operations: &[],
        behaviour: Completes(RemoteInvalidRequest, RemoteOperation),
        verb_and_request: ("post_send", "SEND longer than the peer's receive"),
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
            "a receive for a WRITE_IMM whose key, bounds or access are refused",
        ),
        demanded: "LocalAccess, or not consumed (11.6.2)",
        observed: "RemoteAccess, which is a status of requests",
    },
    Deviation {
        cases: &["matrix::misaligned"],
        operations: &["CMP_SWAP", "FETCH_ADD"],
        behaviour: Refuses("Operation"),
        verb_and_request: (
            "post_send",
            "CMP_SWAP or FETCH_ADD at an address that is not a multiple of 8",
        ),
        demanded: "RemoteInvalidRequest: the responder finds the fault (table of 9.9.3)",
        observed: "refused when posted (Operation) by rxe's library; both queue pairs stay in RTS",
    },
    Deviation {
        cases: &[
            "datagrams::lost",
            "datagrams::recv_short",
            "unreliable_connections::recv_short",
        ],
        operations: &[],
        behaviour: Ends(
            "too long for the receive: another receive completed: Done { wr_id: 1, status: LocalQpOperation",
        ),
        verb_and_request: (
            "post_recv",
            "a receive shorter than the datagram, or than the SEND over UC",
        ),
        demanded: "the message is lost, the receive stays posted (class D of 9.9.3)",
        observed: "the receive ends with LocalQpOperation, and the queue pair is in ERR",
    },
    Deviation {
        cases: &[
            "datagrams::srq_recv_short",
            "unreliable_connections::srq_recv_short",
        ],
        operations: &[],
        behaviour: Ends("with LocalQpOperation instead of 1 with LocalLength"),
        verb_and_request: (
            "post_srq_recv",
            "a receive shorter than the datagram, or than the SEND over UC",
        ),
        demanded: "LocalLength, and the queue pair still receives (class E of 9.9.3)",
        observed: "LocalQpOperation, and the queue pair is in ERR",
    },
    Deviation {
        cases: &[
            "datagrams::stops_at_a_bad_key",
            "unreliable_connections::stops_at_a_bad_key",
        ],
        operations: &[],
        behaviour: Ends("state of the sender: Error instead of Sqe"),
        verb_and_request: (
            "post_send",
            "a datagram, or a SEND over UC, that cannot be sent",
        ),
        demanded: "SQE: the queue pair still receives and can return to RTS (10.3.1)",
        observed: "ERR, which only a RESET leaves",
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
            "after a queue pair with an SRQ has failed",
        ),
        demanded: "QpLastWqe reports that the queue pair has consumed its last receive (11.6.3.1)",
        observed: "no such event",
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
        observed: "the request's Q_Key is sent, and the datagram is lost",
    },
    Deviation {
        cases: &["states::error_flushes_in_order"],
        operations: &[],
        behaviour: Hangs("a later receive: no completion"),
        verb_and_request: ("post_recv", "in ERR"),
        demanded: "Flushed (10.3.1)",
        observed: "no completion until something else makes the kernel look at the queue: rxe's library posts by a store to memory",
    },
    Deviation {
        cases: &["matrix::fenced_and_unanswered"],
        operations: &["READ", "CMP_SWAP", "FETCH_ADD"],
        behaviour: Hangs("behind a fence: no completion"),
        verb_and_request: (
            "post_send",
            "READ, CMP_SWAP or FETCH_ADD with a fence, which the peer does not answer",
        ),
        demanded: "RetryExceeded (11.6.2)",
        observed: "no completion: the request is not sent again, because its fence waits for all READs and atomics, including itself",
    },
    Deviation {
        cases: &["matrix::fenced_behind_an_atomic"],
        operations: &["READ"],
        behaviour: MayHang("behind an atomic: no completion"),
        verb_and_request: ("post_send", "READ with a fence, behind an atomic"),
        demanded: "the request is executed once the atomic is done (9.4.4)",
        observed: "on Debian's 6.1.0-56 sometimes no completion: between two devices, one such READ in 20 to 60 waits without end. Atomics were all executed. 6.1.0-55 executed all",
    },
    Deviation {
        cases: &["matrix::fenced_and_sent_again"],
        operations: &["SEND", "SEND_IMM", "WRITE_IMM"],
        behaviour: Hangs("behind a fence: no completion"),
        verb_and_request: (
            "post_send",
            "SEND, SEND_IMM or WRITE_IMM with a fence, followed by a READ, before a receive is posted",
        ),
        demanded: "the request is sent again, and both succeed (9.7.5.2.8)",
        observed: "no completion: its fence waits for the READ behind it",
    },
    Deviation {
        cases: &["matrix::wrong_behind_what_is_unanswered"],
        operations: &["SEND", "SEND_IMM", "WRITE", "WRITE_IMM"],
        behaviour: Hangs("before a fault: no completion"),
        verb_and_request: (
            "post_send",
            "a request with an invalid lkey, behind a request that the peer does not answer",
        ),
        demanded: "RetryExceeded of the earlier request, then Flushed (10.3.1)",
        observed: "no completion: rxe sends nothing again once the queue has stopped at the faulty request",
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
        behaviour: MayHang("at a fault: no completion"),
        verb_and_request: (
            "post_send",
            "a request with a local memory fault, behind a request that the peer is about to acknowledge",
        ),
        demanded: "the earlier request succeeds, and the faulty one ends with its status (10.3.1)",
        observed: "sometimes no completion: rxe drops an acknowledgement that arrives after the queue has stopped at the faulty request, and sends nothing again",
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
        behaviour: MayHang("in RTS again: no completion"),
        verb_and_request: ("modify", "SQD to RTS, with requests posted"),
        demanded: "the requests are executed (10.3.1)",
        observed: "the requests nearly always wait until another is posted: only the work of an earlier verb that is still due, on a busy machine, begins them",
    },
    Deviation {
        cases: &["matrix::draining"],
        operations: &["SEND", "WRITE", "READ"],
        behaviour: MayHang("in SQD: no completion"),
        verb_and_request: ("modify", "to SQD during the execution of a request"),
        demanded: "the request is executed to its end (10.3.1)",
        observed: "sometimes the request stops: if a packet has to be sent again, nothing more is sent until the queue pair is in RTS and another request is posted; while the queue pair drains like this, only ERR and RESET can follow",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deviation_is_certain_only_on_its_kernel() {
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

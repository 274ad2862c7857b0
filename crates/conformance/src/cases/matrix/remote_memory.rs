//! Remote memory that the peer refuses: bad keys, bounds, access, domains.

use headworks_verbs::{Access, Status};

use super::{ErrorTrial, FirstReceiveEnd, OpKind, case, kinds, small_queue_options};
use crate::cases::memory_fault::MemoryFault;
use crate::{Case, QpOptions};

pub(super) fn cases() -> Vec<Case> {
    let one_sided = kinds(OpKind::is_one_sided);
    let outcome = "RemoteAccess; both queue pairs in ERR; nothing written, no receive consumed";
    let remote = |name: &str, wrong: &str, fault: fn(OpKind) -> MemoryFault| {
        case(
            &format!("remote_{name}"),
            "post_send",
            &one_sided,
            &format!("remote memory: {wrong}"),
            outcome,
            move |cx, kind| trial(kind, fault(kind)).run(cx),
        )
    };
    let faults: [fn(OpKind) -> MemoryFault; 8] = [
        |_| MemoryFault::Key,
        |_| MemoryFault::End,
        |_| MemoryFault::Start,
        |_| MemoryFault::Wrap,
        |_| MemoryFault::Far,
        |_| MemoryFault::Domain,
        |_| MemoryFault::Deregistered,
        |kind| MemoryFault::Access(without(kind)),
    ];
    let name = |fault: fn(OpKind) -> MemoryFault| fault(OpKind::Write);
    let mut cases: Vec<_> = faults
        .into_iter()
        .map(|fault| remote(name(fault).name(), name(fault).wrong(), fault))
        .collect();
    cases.push(case(
        "qp_access",
        "post_send",
        &one_sided,
        "the peer's queue pair does not allow the access",
        "RemoteInvalidRequest; both queue pairs in ERR; nothing written, no receive consumed",
        move |cx, kind| {
            let of_b = QpOptions {
                access: without(kind),
                ..small_queue_options()
            };
            // The queue pair does not support the function (table of 9.9.3): a NAK, invalid request.
            ErrorTrial {
                of_b,
                ..ErrorTrial::refused(kind, Status::RemoteInvalidRequest)
            }
            .run(cx)
        },
    ));
    cases.push(case(
        "misaligned",
        "post_send",
        &kinds(OpKind::is_atomic),
        "remote address misaligned by 1 to 7 B",
        "RemoteInvalidRequest; both queue pairs in ERR; nothing written",
        |cx, kind| {
            (1..8).try_for_each(|aside| {
                ErrorTrial {
                    aside,
                    ..ErrorTrial::refused(kind, Status::RemoteInvalidRequest)
                }
                .run(cx)
            })
        },
    ));
    cases
}

/// Returns all access except what the operation needs.
fn without(kind: OpKind) -> Access {
    let needed = match kind {
        OpKind::Write | OpKind::WriteImm => Access::REMOTE_WRITE,
        OpKind::Read => Access::REMOTE_READ,
        _ => Access::REMOTE_ATOMIC,
    };
    Access::from_bits_truncate(Access::ALL.bits() & !needed.bits())
}

fn trial(kind: OpKind, there: MemoryFault) -> ErrorTrial {
    ErrorTrial {
        there: Some(there),
        // Section 11.6.2 has a status for a receive whose WRITE with immediate was refused, but does not
        // say that the receive must have been taken.
        taken: match kind {
            OpKind::WriteImm => FirstReceiveEnd::Perhaps(Status::LocalAccess),
            _ => FirstReceiveEnd::Not,
        },
        ..ErrorTrial::refused(kind, Status::RemoteAccess)
    }
}

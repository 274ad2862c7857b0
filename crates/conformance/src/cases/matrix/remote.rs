//! What the peer refuses of memory: keys, bounds, access, domains.

use headworks_verbs::{Access, Status};

use super::{Kind, Taken, Trial, case, kinds, small};
use crate::cases::fault::Fault;
use crate::{Case, Options};

pub(super) fn cases() -> Vec<Case> {
    let one_sided = kinds(Kind::is_one_sided);
    let outcome = "RemoteAccess; both in error; nothing written, no receive taken";
    let remote = |name: &str, wrong: &str, fault: fn(Kind) -> Fault| {
        case(
            &format!("remote_{name}"),
            "post_send",
            &one_sided,
            &format!("the peer's bytes: {wrong}"),
            outcome,
            move |bench, kind| trial(kind, fault(kind)).run(bench),
        )
    };
    let faults: [fn(Kind) -> Fault; 8] = [
        |_| Fault::Key,
        |_| Fault::End,
        |_| Fault::Start,
        |_| Fault::Wrap,
        |_| Fault::Far,
        |_| Fault::Domain,
        |_| Fault::Deregistered,
        |kind| Fault::Access(without(kind)),
    ];
    let name = |fault: fn(Kind) -> Fault| fault(Kind::Write);
    let mut cases: Vec<_> = faults
        .into_iter()
        .map(|fault| remote(name(fault).name(), name(fault).wrong(), fault))
        .collect();
    cases.push(case(
        "qp_access",
        "post_send",
        &one_sided,
        "the peer's queue pair forbids it",
        "RemoteInvalidRequest; both in error; nothing written, no receive taken",
        move |bench, kind| {
            let of_b = Options {
                access: without(kind),
                ..small()
            };
            // A function that the queue pair does not support (table of 9.9.3): a NAK, invalid request.
            Trial {
                of_b,
                ..Trial::refused(kind, Status::RemoteInvalidRequest)
            }
            .run(bench)
        },
    ));
    cases.push(case(
        "misaligned",
        "post_send",
        &kinds(Kind::is_atomic),
        "misaligned by 1 to 7",
        "RemoteInvalidRequest; both in error; nothing written",
        |bench, kind| {
            (1..8).try_for_each(|aside| {
                Trial {
                    aside,
                    ..Trial::refused(kind, Status::RemoteInvalidRequest)
                }
                .run(bench)
            })
        },
    ));
    cases
}

/// Everything but what the operation needs.
fn without(kind: Kind) -> Access {
    let needed = match kind {
        Kind::Write | Kind::WriteImm => Access::REMOTE_WRITE,
        Kind::Read => Access::REMOTE_READ,
        _ => Access::REMOTE_ATOMIC,
    };
    Access::from_bits_truncate(Access::ALL.bits() & !needed.bits())
}

fn trial(kind: Kind, there: Fault) -> Trial {
    Trial {
        there: Some(there),
        // Section 11.6.2 has a status for a receive whose WRITE with immediate was refused, and does
        // not say that it must have been taken.
        taken: match kind {
            Kind::WriteImm => Taken::Perhaps(Status::LocalAccess),
            _ => Taken::Not,
        },
        ..Trial::refused(kind, Status::RemoteAccess)
    }
}

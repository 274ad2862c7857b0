//! Faults of the initiator's own memory.

use headworks_verbs::{Access, Status};

use super::{ErrorTrial, OpKind, case, kinds};
use crate::Case;
use crate::cases::memory_fault::MemoryFault;

pub(super) fn cases() -> Vec<Case> {
    let outcome = "LocalProtection; the peer stays in RTS; nothing written, no receive consumed";
    let everywhere = MemoryFault::COMMON
        .into_iter()
        .chain([MemoryFault::SecondPiece]);
    let mut tries: Vec<_> = everywhere.map(|fault| (fault, kinds(|_| true))).collect();
    // Only operations that write local memory need write access to it.
    let unwritable = MemoryFault::Access(Access::REMOTE_READ);
    tries.push((unwritable, kinds(OpKind::writes_here)));
    let case_of = |(fault, kinds): (MemoryFault, Vec<OpKind>)| {
        case(
            &format!("local_{}", fault.name()),
            "post_send",
            &kinds,
            &format!("local memory: {}", fault.wrong()),
            outcome,
            move |cx, kind| {
                ErrorTrial {
                    here: Some(fault),
                    peer_fails: false,
                    ..ErrorTrial::refused(kind, Status::LocalProtection)
                }
                .run(cx)
            },
        )
    };
    tries.into_iter().map(case_of).collect()
}

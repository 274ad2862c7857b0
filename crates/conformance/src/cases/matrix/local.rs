//! What is wrong with the initiator's own memory.

use headworks_verbs::{Access, Status};

use super::{Kind, Trial, case, kinds};
use crate::Case;
use crate::cases::fault::Fault;

pub(super) fn cases() -> Vec<Case> {
    let outcome = "LocalProtection; the peer stays in RTS; nothing written, no receive taken";
    let everywhere = Fault::COMMON.into_iter().chain([Fault::SecondPiece]);
    let mut tries: Vec<_> = everywhere.map(|fault| (fault, kinds(|_| true))).collect();
    // What the operation writes there.
    let unwritable = Fault::Access(Access::REMOTE_READ);
    tries.push((unwritable, kinds(Kind::writes_here)));
    let case_of = |(fault, kinds): (Fault, Vec<Kind>)| {
        case(
            &format!("local_{}", fault.name()),
            "post_send",
            &kinds,
            &format!("its own bytes: {}", fault.wrong()),
            outcome,
            move |bench, kind| {
                Trial {
                    here: Some(fault),
                    peer_fails: false,
                    ..Trial::refused(kind, Status::LocalProtection)
                }
                .run(bench)
            },
        )
    };
    tries.into_iter().map(case_of).collect()
}

//! What is wrong with the initiator's own memory.

use headworks_verbs::{Access, Status};

use super::{Bad, Kind, LEN, Trial, case, kinds, small};
use crate::bench::piece;
use crate::call::{Call, Twist};
use crate::{Case, Options, Side};

pub(super) fn cases() -> Vec<Case> {
    let outcome = "LocalProtection; the peer stays in RTS; nothing written, no receive taken";
    let tries: [(&str, &str, Bad); 7] = [
        ("bad_lkey", "bad lkey", |_, kind, a, b| {
            Ok((vec![a.sge(0, kind.len()).twisted(Twist::KEY)], b.at(0)))
        }),
        (
            "local_end",
            "one past the end of the local region",
            |_, kind, a, b| {
                let last = LEN as i64 - i64::from(kind.len()) + 1;
                Ok((vec![a.sge(last, kind.len())], b.at(0)))
            },
        ),
        (
            "local_start",
            "before the start of the local region",
            |_, kind, a, b| Ok((vec![a.sge(-1, kind.len())], b.at(0))),
        ),
        (
            "local_wrap",
            "local bytes around the end of the address space",
            |_, kind, a, b| {
                let top = Twist::absolute(u64::MAX - 7);
                Ok((vec![a.sge(0, kind.len()).twisted(top)], b.at(0)))
            },
        ),
        (
            "local_domain",
            "local bytes of another protection domain",
            |bench, kind, a, b| {
                let device = a.host.device;
                let (pd, region) = (bench.id(), bench.id());
                bench.done(a.host.id, Call::AllocPd { pd, device })?;
                bench.done(a.host.id, register(region, pd, a))?;
                Ok((vec![piece(region, 0, kind.len())], b.at(0)))
            },
        ),
        (
            "local_deregistered",
            "local bytes deregistered",
            |bench, kind, a, b| {
                let region = bench.id();
                bench.done(a.host.id, register(region, a.pd, a))?;
                bench.destroy(a.host, region)?;
                Ok((vec![piece(region, 0, kind.len())], b.at(0)))
            },
        ),
        (
            "second_piece",
            "bad lkey in the second of two pieces",
            |_, kind, a, b| {
                let half = kind.len() / 2;
                let bad = a.sge(64, half).twisted(Twist::KEY);
                Ok((vec![a.sge(0, half), bad], b.at(0)))
            },
        ),
    ];
    let mut cases = Vec::new();
    for (name, wrong, bad) in tries {
        cases.push(case(
            name,
            "post_send",
            &Kind::ALL,
            wrong,
            outcome,
            move |bench, kind| trial(kind, bad).run(bench),
        ));
    }
    cases.push(case(
        "local_access",
        "post_send",
        &kinds(Kind::writes_here),
        "the local region forbids writing",
        outcome,
        |bench, kind| {
            let of_a = Options {
                region: Access::REMOTE_READ,
                ..small()
            };
            let bad: Bad = |_, kind, a, b| Ok((vec![a.sge(0, kind.len())], b.at(0)));
            Trial {
                of_a,
                ..trial(kind, bad)
            }
            .run(bench)
        },
    ));
    cases
}

fn register(region: u32, pd: u32, side: Side) -> Call {
    Call::Register {
        region,
        pd,
        buffer: side.buffer,
        access: Access::ALL,
    }
}

fn trial(kind: Kind, bad: Bad) -> Trial {
    Trial {
        bad,
        peer_fails: false,
        ..Trial::refused(kind, Status::LocalProtection)
    }
}

//! What the peer refuses of memory: keys, bounds, access, domains.

use headworks_verbs::{Access, Status};

use super::{Bad, Kind, LEN, Taken, Trial, case, kinds, small};
use crate::call::{Call, Piece, Twist};
use crate::{Case, Options, Side};

pub(super) fn cases() -> Vec<Case> {
    let one_sided = kinds(Kind::is_one_sided);
    let atomics = kinds(Kind::is_atomic);
    let outcome = "RemoteAccess; both in error; nothing written, no receive taken";
    let tries: [(&str, &str, Bad); 8] = [
        ("bad_rkey", "bad rkey", |_, kind, a, b| {
            Ok((here(kind, a), b.at(0).twisted(Twist::KEY)))
        }),
        ("rkey_of_nothing", "rkey of nothing", |bench, kind, a, b| {
            let key = bench.book().rkey(b.host.id, b.region).unwrap_or_default();
            let twist = Twist {
                key_xor: !key,
                ..Twist::default()
            };
            Ok((here(kind, a), b.at(0).twisted(twist)))
        }),
        ("remote_end", "one past the end", |_, kind, a, b| {
            let over = if kind.is_atomic() {
                0
            } else {
                kind.len() as i64 - 1
            };
            Ok((here(kind, a), b.at(LEN as i64 - over)))
        }),
        ("remote_start", "before the start", |_, kind, a, b| {
            let before = if kind.is_atomic() { 8 } else { 1 };
            Ok((here(kind, a), b.at(-before)))
        }),
        (
            "remote_wrap",
            "around the end of the address space",
            |_, kind, a, b| {
                let top = Twist::absolute(u64::MAX - 7);
                Ok((here(kind, a), b.at(0).twisted(top)))
            },
        ),
        ("remote_far", "nowhere", |_, kind, a, b| {
            Ok((here(kind, a), b.at(0).twisted(Twist::absolute(8))))
        }),
        (
            "remote_domain",
            "a region of another protection domain",
            |bench, kind, a, b| {
                let device = b.host.device;
                let (pd, region) = (bench.id(), bench.id());
                bench.done(b.host.id, Call::AllocPd { pd, device })?;
                bench.done(b.host.id, register(region, pd, b))?;
                Ok((here(kind, a), b.region_at(region, 0)))
            },
        ),
        (
            "remote_deregistered",
            "a region deregistered",
            |bench, kind, a, b| {
                let region = bench.id();
                bench.done(b.host.id, register(region, b.pd, b))?;
                bench.destroy(b.host, region)?;
                Ok((here(kind, a), b.region_at(region, 0)))
            },
        ),
    ];
    let mut cases = Vec::new();
    for (name, wrong, bad) in tries {
        cases.push(case(
            name,
            "post_send",
            &one_sided,
            wrong,
            outcome,
            move |bench, kind| trial(kind, bad).run(bench),
        ));
    }
    let needed = |kind| match kind {
        Kind::Write | Kind::WriteImm => Access::REMOTE_WRITE,
        Kind::Read => Access::REMOTE_READ,
        _ => Access::REMOTE_ATOMIC,
    };
    // Everything but what the operation needs.
    let without = move |kind| Access::from_bits_truncate(Access::ALL.bits() & !needed(kind).bits());
    let usual: Bad = |_, kind, a, b| Ok((here(kind, a), b.at(0)));
    cases.push(case(
        "region_access",
        "post_send",
        &one_sided,
        "the region forbids it",
        outcome,
        move |bench, kind| {
            let of_b = Options {
                region: without(kind),
                ..small()
            };
            Trial {
                of_b,
                ..trial(kind, usual)
            }
            .run(bench)
        },
    ));
    cases.push(case(
        "qp_access",
        "post_send",
        &one_sided,
        "the queue pair forbids it",
        outcome,
        move |bench, kind| {
            let of_b = Options {
                access: without(kind),
                ..small()
            };
            Trial {
                of_b,
                ..trial(kind, usual)
            }
            .run(bench)
        },
    ));
    cases.push(case(
        "misaligned",
        "post_send",
        &atomics,
        "misaligned by 1 to 7",
        "RemoteInvalidRequest; both in error; nothing written",
        |bench, kind| {
            let bad: [Bad; 3] = [
                |_, kind, a, b| Ok((here(kind, a), b.at(1))),
                |_, kind, a, b| Ok((here(kind, a), b.at(4))),
                |_, kind, a, b| Ok((here(kind, a), b.at(63))),
            ];
            for bad in bad {
                let ours = Status::RemoteInvalidRequest;
                Trial {
                    ours,
                    ..trial(kind, bad)
                }
                .run(bench)?;
            }
            Ok(())
        },
    ));
    cases
}

fn here(kind: Kind, a: Side) -> Vec<Piece> {
    vec![a.sge(0, kind.len())]
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
        // Section 11.6.2 has a status for a receive whose WRITE with immediate was refused, and does
        // not say that it must have been taken.
        taken: match kind {
            Kind::WriteImm => Taken::Perhaps(Status::LocalAccess),
            _ => Taken::Not,
        },
        ..Trial::refused(kind, Status::RemoteAccess)
    }
}

//! What is wrong with the peer's receives, its own or shared.

use headworks_verbs::{Access, QpState, Status};

use super::{BEFORE, Kind, LEN, Taken, Trial, case, kinds, small};
use crate::bench::piece;
use crate::call::{Call, Id, Op, Send, Twist};
use crate::cases::shared_receives;
use crate::{Bench, Case, Options, Side, Verdict, ensure, ensure_eq};

type Post = fn(&mut Bench<'_>, Side) -> Verdict;

const SENDS: [Kind; 2] = [Kind::Send, Kind::SendImm];

/// Ways for a receive to be bad: what is wrong, how it ends, how the SEND ends.
const BAD: [(&str, &str, Post, Status, Status); 6] = [
    (
        "recv_bad_lkey",
        "bad lkey",
        |bench, b| post(bench, b, b.sge(0, 64).twisted(Twist::KEY)),
        Status::LocalProtection,
        Status::RemoteOperation,
    ),
    (
        "recv_end",
        "one past the end",
        |bench, b| post(bench, b, b.sge(LEN as i64 - 63, 64)),
        Status::LocalProtection,
        Status::RemoteOperation,
    ),
    (
        "recv_start",
        "before the start",
        |bench, b| post(bench, b, b.sge(-1, 64)),
        Status::LocalProtection,
        Status::RemoteOperation,
    ),
    (
        "recv_domain",
        "a region of another protection domain",
        |bench, b| {
            let region = in_another_domain(bench, b)?;
            post(bench, b, piece(region, 0, 64))
        },
        Status::LocalProtection,
        Status::RemoteOperation,
    ),
    (
        "recv_access",
        "its region forbids writing",
        |bench, b| {
            let region = bench.id();
            let call = Call::Register {
                region,
                pd: b.pd,
                buffer: b.buffer,
                access: Access::REMOTE_READ,
            };
            bench.done(b.host.id, call)?;
            post(bench, b, piece(region, 0, 64))
        },
        Status::LocalProtection,
        Status::RemoteOperation,
    ),
    (
        "recv_short",
        "a byte too short",
        |bench, b| post(bench, b, b.sge(0, 63)),
        Status::LocalLength,
        Status::RemoteInvalidRequest,
    ),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, wrong, receives, theirs, ours) in BAD {
        let outcome = format!("{theirs:?}, the sender's {ours:?}; both in error; nothing written");
        let trial = move |kind| Trial {
            receives: Some(receives),
            taken: Taken::With(theirs),
            ..Trial::refused(kind, ours)
        };
        let run = move |bench: &mut Bench<'_>, kind| trial(kind).run(bench);
        cases.push(
            case(
                name,
                "post_send",
                &SENDS,
                &format!("its receive: {wrong}"),
                &outcome,
                run,
            )
            .row("post_recv", "RECV", wrong, outcome.clone()),
        );
        cases.push(
            Case::new(format!("matrix::srq_{name}"), move |bench| {
                shared(bench, receives, theirs, ours)
            })
            .row(
                "post_srq_recv",
                "SRQ RECV",
                wrong,
                format!("{outcome}; others' receives stay"),
            ),
        );
    }
    cases.push(case(
        "no_receive",
        "post_send",
        &kinds(Kind::takes_receive),
        "no receive, RNR retries exhausted",
        "RnrRetryExceeded; the peer stays in RTS; nothing written",
        |bench, kind| {
            Trial {
                receives: Some(|_, _| Ok(())),
                peer_fails: false,
                ..Trial::refused(kind, Status::RnrRetryExceeded)
            }
            .run(bench)
        },
    ));
    cases.push(
        Case::new("matrix::srq_empty", |bench| {
            kinds(Kind::takes_receive)
                .into_iter()
                .try_for_each(|kind| empty(bench, kind))
        })
        .row(
            "post_send",
            "SEND, SEND_IMM, WRITE_IMM",
            "the SRQ is empty",
            "RnrRetryExceeded; the peer stays in RTS",
        ),
    );
    cases.push(
        Case::new(
            "matrix::immediate_ignores_the_pieces",
            immediate_ignores_the_pieces,
        )
        .row(
            "post_recv",
            "RECV of a WRITE_IMM",
            "bad lkey",
            "Success: its pieces are not used",
        ),
    );
    cases
}

fn in_another_domain(bench: &mut Bench<'_>, b: Side) -> Result<Id, String> {
    let device = b.host.device;
    let (pd, region) = (bench.id(), bench.id());
    bench.done(b.host.id, Call::AllocPd { pd, device })?;
    let (buffer, access) = (b.buffer, Access::ALL);
    bench.done(
        b.host.id,
        Call::Register {
            region,
            pd,
            buffer,
            access,
        },
    )?;
    Ok(region)
}

/// A bad receive, then a good one.
fn post(bench: &mut Bench<'_>, b: Side, bad: crate::call::Piece) -> Verdict {
    bench.receive(b, 70, &[bad])?;
    bench.receive(b, 71, &[b.sge(0, 64)])
}

/// Two queue pairs of an SRQ; the first gets the bad receive, the second goes on.
fn with_srq(bench: &mut Bench<'_>, options: &Options) -> Result<[(Side, Side); 2], String> {
    let (first, second) = (bench.first()?, bench.second()?);
    let (pd, srq) = shared_receives::srq(bench, second, 4, 0)?;
    let mut pair = || {
        let a = bench.side(first, options)?;
        let b = bench.side_within(second, pd, Some(srq), options)?;
        bench.connect(a, options, b, options)?;
        Ok::<_, String>((a, b))
    };
    Ok([pair()?, pair()?])
}

fn shared(bench: &mut Bench<'_>, receives: Post, theirs: Status, ours: Status) -> Verdict {
    for op in [Op::Send, Op::SendImm(5)] {
        let [(a, b), (c, d)] = with_srq(bench, &small())?;
        bench.fill(b, 0, LEN, 1)?;
        receives(bench, b)?;
        bench.post(a, 1, op, &[a.sge(0, 64)])?;
        bench.post(a, 2, op, &[a.sge(0, 64)])?;
        bench.expect_sent(a, 1, ours)?;
        bench.expect_sent(a, 2, Status::Flushed)?;
        bench.expect_received(b, 70, theirs)?;
        bench.expect_state(b, QpState::Error, "the receiver")?;
        bench.expect_fatal(a)?;
        bench.expect_fatal(b)?;
        bench.expect_event(b.host, crate::call::Event::QpLastWqe(Some(b.qp)))?;
        ensure!(bench.holds(b, 0, LEN, 1)?, "{op:?} wrote");
        // The other one takes the next.
        bench.expect_state(d, QpState::Rts, "the one beside it")?;
        bench.put(c, 0, &[9; 16])?;
        bench.post(c, 3, op, &[c.sge(0, 16)])?;
        bench
            .expect_sent(c, 3, Status::Success)
            .map_err(|seen| format!("beside it: {seen}"))?;
        let got = bench.expect_received(d, 71, Status::Success)?;
        ensure_eq!((got.qp, got.byte_len), (Some(d.qp), 16), "whose");
        bench.expect_nothing_more(b)?;
        bench.expect_nothing_more(d)?;
    }
    Ok(())
}

fn empty(bench: &mut Bench<'_>, kind: Kind) -> Verdict {
    let [(a, b), _] = with_srq(bench, &small())?;
    bench.post(a, 1, kind.op(b.at(0)), &[a.sge(0, 8)])?;
    bench.expect_sent(a, 1, Status::RnrRetryExceeded)?;
    bench.expect_fatal(a)?;
    bench.expect_state(b, QpState::Rts, "the peer")?;
    bench.expect_nothing_more(b)
}

fn immediate_ignores_the_pieces(bench: &mut Bench<'_>) -> Verdict {
    let (a, b) = bench.pair_of(&small(), &small())?;
    bench.receive(b, 1, &[b.sge(0, 1).twisted(Twist::KEY)])?;
    let there = Op::WriteImm(b.at(BEFORE as i64), 3);
    bench.post_one(a, Send::inline(2, there, b"whole"))?;
    bench.expect_sent(a, 2, Status::Success)?;
    let got = bench.expect_received(b, 1, Status::Success)?;
    ensure_eq!((got.byte_len, got.imm), (5, Some(3)), "the receive");
    ensure_eq!(bench.get(b, BEFORE, 5)?, b"whole", "bytes");
    Ok(())
}

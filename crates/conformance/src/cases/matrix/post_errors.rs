//! Requests that are refused when posted: wrong states, sizes and combinations.

use headworks_verbs::{PostErrorKind, QpState, Status};

use super::{LEN, OpKind, case, kinds, short_timeout_options, small_queue_options};
use crate::buffer_access::pattern;
use crate::call::{Data, Op, Receive, Refusal, Send};
use crate::{Case, CaseContext, QpFixture, Verdict, ensure, ensure_eq};

/// Reason for skipping cases about inline payloads.
const NOTHING_INLINE: &str = "this device takes no payload inline";

fn takes_nothing_inline(cx: &mut CaseContext<'_>) -> Result<bool, String> {
    let host = cx.first_host()?;
    Ok(cx.facts(host)?.limits.max_inline == 0)
}

pub(super) fn cases() -> Vec<Case> {
    let inline = kinds(OpKind::may_be_inline);
    let not_inline = kinds(OpKind::writes_here);
    let atomics = kinds(OpKind::is_atomic);
    let refused = "at its index; earlier requests of the chain are executed, later ones are not";
    vec![
        case(
            "state",
            "post_send",
            &OpKind::ALL,
            "in RESET, INIT, RTR",
            "State; nothing posted",
            state,
        ),
        case(
            "error_state",
            "post_send",
            &OpKind::ALL,
            "in ERR",
            "Flushed, in order, signalled or not",
            in_error,
        ),
        case(
            "peer_state",
            "post_send",
            &OpKind::ALL,
            "the peer is in RESET, INIT, ERR",
            "RetryExceeded; nothing written",
            peer_state,
        ),
        case(
            "many_pieces",
            "post_send",
            &OpKind::ALL,
            "one SGE too many",
            &format!("TooManySges {refused}"),
            |cx, kind| {
                refuse(cx, kind, |a| {
                    let most = a.caps.max_send_sge;
                    let pieces = vec![a.sge(0, 1); most as usize + 1];
                    (Data::Gather(pieces), PostErrorKind::TooManySges(most))
                })
            },
        ),
        case(
            "inline",
            "post_send",
            &inline,
            "-",
            "Success, data intact, with an inline payload of 0 B to max_inline",
            inline_whole,
        ),
        case(
            "inline_too_long",
            "post_send",
            &inline,
            "inline payload too long",
            &format!("InlineTooLong {refused}"),
            |cx, kind| {
                if takes_nothing_inline(cx)? {
                    return cx.skip(NOTHING_INLINE);
                }
                refuse(cx, kind, |a| {
                    let most = a.caps.max_inline;
                    (
                        Data::Inline(vec![7; most as usize + 1]),
                        PostErrorKind::InlineTooLong(most),
                    )
                })
            },
        ),
        case(
            "inline_illegal",
            "post_send",
            &not_inline,
            "inline payload",
            &format!("Operation {refused}"),
            |cx, kind| {
                if takes_nothing_inline(cx)? {
                    return cx.skip(NOTHING_INLINE);
                }
                refuse(cx, kind, |_| {
                    (Data::Inline(vec![7; 8]), PostErrorKind::Operation)
                })
            },
        ),
        case(
            "message_too_long",
            "post_send",
            &kinds(|kind| !kind.is_atomic()),
            "message longer than the device's limit",
            &format!("MessageTooLong {refused}"),
            too_long,
        ),
        case(
            "atomic_length",
            "post_send",
            &atomics,
            "length of 0, 4, 7, 9 or 16 B",
            &format!("Operation {refused}"),
            |cx, kind| {
                let of: [fn(&QpFixture) -> Vec<crate::call::Piece>; 5] = [
                    |_| Vec::new(),
                    |a| vec![a.sge(0, 4)],
                    |a| vec![a.sge(0, 7)],
                    |a| vec![a.sge(0, 9)],
                    |a| vec![a.sge(0, 8), a.sge(8, 8)],
                ];
                of.into_iter().try_for_each(|pieces| {
                    refuse(cx, kind, |a| {
                        (Data::Gather(pieces(a)), PostErrorKind::Operation)
                    })
                })
            },
        ),
        Case::new("matrix::recv_many_pieces", receive_pieces)
            .row(
                "post_recv",
                "RECV",
                "one SGE too many",
                "TooManySges at its index",
            )
            .row(
                "post_srq_recv",
                "SRQ RECV",
                "one SGE too many",
                "TooManySges at its index",
            ),
    ]
}

fn all_of(kind: OpKind, a: QpFixture, b: QpFixture) -> Send {
    Send::new(2, kind.op(b.at(0)), &[a.sge(0, kind.len())])
}

fn state(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (a, b) = (
        cx.new_qp(first, &small_queue_options())?,
        cx.new_qp(second, &small_queue_options())?,
    );
    cx.fill_buffer(b, 0, LEN, 1)?;
    for expected in [QpState::Reset, QpState::Init, QpState::Rtr] {
        let refused = cx.post_chain(a, vec![all_of(kind, a, b)]);
        let expected = Refusal::from(PostErrorKind::State(expected).at(0));
        ensure_eq!(refused, Err(expected), kind.name());
        match cx.state(a)? {
            QpState::Reset => cx.to_init(a, &small_queue_options())?,
            QpState::Init => cx.to_rtr(a, &small_queue_options(), b)?,
            _ => {}
        }
    }
    cx.expect_nothing_more(a)?;
    ensure!(cx.buffer_matches(b, 0, LEN, 1)?, "{} wrote", kind.name());
    Ok(())
}

fn in_error(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    let (a, b) = cx.connected_pair_with(&small_queue_options(), &small_queue_options())?;
    cx.fill_buffer(b, 0, LEN, 1)?;
    cx.receive(b, 1, &[b.sge(0, 64)])?;
    cx.to_error(a)?;
    for id in 0..4 {
        let request = Send {
            wr_id: id,
            ..all_of(kind, a, b)
        };
        let request = if id % 2 == 0 {
            request.quiet()
        } else {
            request
        };
        cx.post_one(a, request)?;
    }
    for id in 0..4 {
        cx.expect_sent(a, id, Status::Flushed)?;
    }
    cx.expect_nothing_more(a)?;
    cx.expect_nothing_more(b)?;
    cx.expect_state(b, QpState::Rts, "the peer")?;
    ensure!(cx.buffer_matches(b, 0, LEN, 1)?, "{} wrote", kind.name());
    Ok(())
}

fn peer_state(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    for state in [QpState::Reset, QpState::Init, QpState::Error] {
        let (a, b) = cx.connected_pair_with(&short_timeout_options(), &small_queue_options())?;
        cx.fill_buffer(b, 0, LEN, 1)?;
        match state {
            QpState::Error => cx.to_error(b)?,
            _ => cx.to_reset(b)?,
        }
        if state == QpState::Init {
            cx.to_init(b, &small_queue_options())?;
            cx.receive(b, 1, &[b.sge(0, 64)])?;
        }
        cx.post_one(a, all_of(kind, a, b).quiet())?;
        cx.post(a, 3, Op::Write(b.at(0)), &[a.sge(0, 8)])?;
        let what = || format!("{} to a peer in {state}", kind.name());
        cx.expect_sent(a, 2, Status::RetryExceeded)
            .map_err(|seen| format!("{}: {seen}", what()))?;
        cx.expect_sent(a, 3, Status::Flushed)?;
        cx.expect_failed(a)?;
        cx.expect_state(a, QpState::Error, "the initiator")?;
        cx.expect_state(b, state, "the peer")?;
        cx.expect_nothing_more(b)?;
        ensure!(cx.buffer_matches(b, 0, LEN, 1)?, "{} wrote", what());
    }
    Ok(())
}

fn inline_whole(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    let (a, b) = cx.connected_pair_with(&small_queue_options(), &small_queue_options())?;
    for len in [0, 1, a.caps.max_inline] {
        let (seed, bytes) = (u64::from(len) + 5, len as usize);
        cx.fill_buffer(b, 0, LEN, 1)?;
        cx.receive(b, 70, &[b.sge(0, LEN as u32)])?;
        let request = Send::inline(1, kind.op(b.at(0)), &pattern(seed, bytes));
        cx.post_one(a, request)?;
        cx.expect_sent(a, 1, Status::Success)?;
        if kind.takes_receive() {
            let got = cx.expect_received(b, 70, Status::Success)?;
            ensure_eq!(got.byte_len, len, "length");
        }
        let whole = cx.buffer_matches(b, 0, bytes, seed)?;
        ensure!(whole, "{} of {len} B differs", kind.name());
        let old = pattern(1, LEN);
        ensure_eq!(
            cx.read_buffer(b, bytes, 64)?,
            old[bytes..bytes + 64],
            "behind it"
        );
    }
    Ok(())
}

/// Posts a chain of a good request, one that is refused, and another: only the first is executed.
fn refuse(
    cx: &mut CaseContext<'_>,
    kind: OpKind,
    bad: impl Fn(&QpFixture) -> (Data, PostErrorKind),
) -> Verdict {
    let (a, b) = cx.connected_pair_with(&small_queue_options(), &small_queue_options())?;
    refuse_on(cx, kind, a, b, bad)
}

fn refuse_on(
    cx: &mut CaseContext<'_>,
    kind: OpKind,
    a: QpFixture,
    b: QpFixture,
    bad: impl Fn(&QpFixture) -> (Data, PostErrorKind),
) -> Verdict {
    cx.fill_buffer(b, 0, LEN, 1)?;
    cx.write_buffer(b, 4096, &[0; 8])?;
    cx.receive(b, 70, &[b.sge(0, 64)])?;
    let (data, error) = bad(&a);
    let good = |id, byte| Send::inline(id, Op::Write(b.at(4096)), &[byte; 8]);
    let chain = vec![
        good(1, 0xee),
        Send {
            data,
            ..all_of(kind, a, b)
        },
        good(3, 0xbb),
    ];
    let refused = cx.post_chain(a, chain);
    ensure_eq!(refused, Err(Refusal::from(error.at(1))), kind.name());
    cx.expect_sent(a, 1, Status::Success)?;
    cx.expect_nothing_more(a)?;
    cx.expect_nothing_more(b)?;
    ensure_eq!(cx.read_buffer(b, 4096, 8)?, [0xee; 8], "the one before");
    ensure!(cx.buffer_matches(b, 0, 4096, 1)?, "{} wrote", kind.name());
    // The queue pair is unharmed.
    cx.expect_state(a, QpState::Rts, "the initiator")?;
    cx.post_one(a, good(4, 0xcc))?;
    cx.expect_sent(a, 4, Status::Success)?;
    cx.expect_no_fatal(a)
}

fn too_long(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    let (a, b) = cx.connected_pair_with(&small_queue_options(), &small_queue_options())?;
    let most = cx.facts(a.host)?.limits.max_message;
    refuse_on(cx, kind, a, b, |a| {
        let pieces = vec![a.sge(0, most), a.sge(0, 1)];
        (Data::Gather(pieces), PostErrorKind::MessageTooLong(most))
    })
}

fn receive_pieces(cx: &mut CaseContext<'_>) -> Verdict {
    let (_, b) = cx.connected_pair_with(&small_queue_options(), &small_queue_options())?;
    let second = cx.second_host()?;
    let (pd, srq) = crate::cases::shared_receives::srq(cx, second, 4, 0)?;
    let shared = cx.new_qp_in_pd(second, pd, Some(srq), &small_queue_options())?;
    for (side, most) in [(b, b.caps.max_recv_sge), (shared, 2)] {
        let many = vec![side.sge(0, 1); most as usize + 1];
        let chain = vec![
            Receive::new(1, &[]),
            Receive::new(2, &many),
            Receive::new(3, &[]),
        ];
        let refused = cx.receive_chain(side, chain);
        let expected = Refusal::from(PostErrorKind::TooManySges(most).at(1));
        ensure_eq!(refused, Err(expected), format!("SRQ: {:?}", side.srq));
    }
    Ok(())
}

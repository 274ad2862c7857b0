//! Every operation with every error, and what each leaves behind.
//!
//! An [`ErrorTrial`] defines the fault and the required outcome. [`ErrorTrial::run`] checks it for an
//! operation, signalled and unsignalled:
//!
//! - Requests posted before the faulty one are executed, the faulty one fails as required, and those posted
//!   after it are flushed in order.
//! - Both queue pairs are in the state that the specification demands.
//! - The device reports each failed queue pair as often as it must.
//! - Nothing else was written or consumed.

use headworks_verbs::{QpState, Status};

use super::memory_fault::MemoryFault;
use crate::call::{Event, Op, Remote, Send};
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

mod draining;
pub(super) mod full_queues;
mod local_memory;
mod ordering;
mod post_errors;
mod receive_errors;
mod remote_memory;

pub(super) fn cases() -> Vec<Case> {
    [
        remote_memory::cases(),
        local_memory::cases(),
        receive_errors::cases(),
        post_errors::cases(),
        draining::cases(),
        full_queues::cases(),
        ordering::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Operations of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpKind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CmpSwap,
    FetchAdd,
}

impl OpKind {
    const ALL: [Self; 7] = [
        Self::Send,
        Self::SendImm,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::CmpSwap,
        Self::FetchAdd,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND_IMM",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE_IMM",
            Self::Read => "READ",
            Self::CmpSwap => "CMP_SWAP",
            Self::FetchAdd => "FETCH_ADD",
        }
    }

    const fn op(self, remote: Remote) -> Op {
        match self {
            Self::Send => Op::Send,
            Self::SendImm => Op::SendImm(0x5eed),
            Self::Write => Op::Write(remote),
            Self::WriteImm => Op::WriteImm(remote, 0x5eed),
            Self::Read => Op::Read(remote),
            Self::CmpSwap => Op::CompareSwap {
                remote,
                expect: 0,
                swap: 1,
            },
            Self::FetchAdd => Op::FetchAdd { remote, add: 1 },
        }
    }

    /// Returns the number of bytes that a trial of it moves.
    const fn len(self) -> u32 {
        if self.is_atomic() { 8 } else { 64 }
    }

    const fn is_atomic(self) -> bool {
        matches!(self, Self::CmpSwap | Self::FetchAdd)
    }

    /// Returns whether it names memory of the peer.
    const fn is_one_sided(self) -> bool {
        !matches!(self, Self::Send | Self::SendImm)
    }

    /// Returns whether it takes a receive of the peer.
    const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    /// Returns whether it writes the initiator's memory.
    const fn writes_here(self) -> bool {
        matches!(self, Self::Read | Self::CmpSwap | Self::FetchAdd)
    }

    /// Returns whether it may have an inline payload.
    const fn may_be_inline(self) -> bool {
        !self.writes_here()
    }
}

/// Length of each buffer in a trial, in bytes.
const LEN: usize = 8192;
/// Offset of the word that a good WRITE before the faulty request writes.
const BEFORE: usize = 4096;

fn small_queue_options() -> QpOptions {
    QpOptions {
        len: LEN,
        // An answer always comes, but may be late on a busy machine.
        timeout: 14,
        retry_count: 7,
        // The shortest RNR delay of the specification, so that trials do not wait long.
        rnr_retry: 1,
        min_rnr_timer: headworks_verbs::RnrTimer::new(1).unwrap_or_default(),
        ..QpOptions::default()
    }
}

/// Returns options with the shortest timeout of the specification, for requests that get no answer.
fn short_timeout_options() -> QpOptions {
    QpOptions {
        timeout: 1,
        retry_count: 1,
        ..small_queue_options()
    }
}

/// End of the first of the peer's receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstReceiveEnd {
    /// Like the others: flushed if the peer's queue pair fails, otherwise still posted.
    Not,
    /// With this status, or like the others: the specification leaves open whether it is taken.
    Perhaps(Status),
    /// With this status.
    With(Status),
}

/// Receives of the peer: two of 64 bytes, unless one has a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerReceives {
    Good,
    /// The peer posts no receive.
    None,
    /// The memory of the first one has this fault.
    Bad(MemoryFault),
    /// The first one is one byte too short.
    Short,
}

impl PeerReceives {
    /// Posts them with the `wr_id`s 70 and 71.
    fn post(self, cx: &mut CaseContext<'_>, b: QpFixture) -> Verdict {
        let first = match self {
            Self::None => return Ok(()),
            Self::Good => vec![b.sge(0, 64)],
            Self::Short => vec![b.sge(0, 63)],
            Self::Bad(fault) => fault.apply(cx, b, 64, 1)?.pieces(),
        };
        cx.receive(b, 70, &first)?;
        cx.receive(b, 71, &[b.sge(0, 64)])
    }

    /// Returns whether one of them ends with an error of its own.
    const fn fail(self) -> bool {
        matches!(self, Self::Bad(_) | Self::Short)
    }
}

/// Trial of a request that must fail.
struct ErrorTrial {
    kind: OpKind,
    of_a: QpOptions,
    of_b: QpOptions,
    /// Fault of the local memory.
    here: Option<MemoryFault>,
    /// Fault of the remote memory.
    there: Option<MemoryFault>,
    /// Offset of the remote memory from where it should be.
    aside: i64,
    receives: PeerReceives,
    ours: Status,
    peer_fails: bool,
    taken: FirstReceiveEnd,
}

impl ErrorTrial {
    /// Returns a trial of a request that the peer refuses with the status `ours`.
    fn refused(kind: OpKind, ours: Status) -> Self {
        Self {
            kind,
            of_a: small_queue_options(),
            of_b: small_queue_options(),
            here: None,
            there: None,
            aside: 0,
            receives: PeerReceives::Good,
            ours,
            peer_fails: true,
            taken: FirstReceiveEnd::Not,
        }
    }

    fn request(
        &self,
        cx: &mut CaseContext<'_>,
        a: QpFixture,
        b: QpFixture,
    ) -> Result<Send, String> {
        let len = self.kind.len();
        let align = if self.kind.is_atomic() { 8 } else { 1 };
        let pieces = match self.here {
            None => vec![a.sge(0, len)],
            Some(fault) => fault.apply(cx, a, len, 1)?.pieces(),
        };
        let remote = match self.there {
            None => b.at(self.aside),
            Some(fault) => fault.apply(cx, b, len, align)?.remote(),
        };
        Ok(Send::new(2, self.kind.op(remote), &pieces))
    }

    /// Returns whether the failed request must have written nothing at its destination.
    fn leaves_no_trace(&self, cx: &CaseContext<'_>) -> bool {
        cx.behaviour().checks_before_copying || !(self.kind.writes_here() || self.receives.fail())
    }

    /// Runs the trial signalled, unsignalled, and in ordinary memory.
    fn run(&self, cx: &mut CaseContext<'_>) -> Verdict {
        for (signaled, heap) in [(true, false), (false, false), (true, true)] {
            self.run_once(cx, signaled, heap).map_err(|seen| {
                let how = if signaled { "" } else { ", unsignalled" };
                let whose = if heap { ", ordinary memory" } else { "" };
                format!("{}{how}{whose}: {seen}", self.kind.name())
            })?;
        }
        Ok(())
    }

    fn run_once(&self, cx: &mut CaseContext<'_>, signaled: bool, heap: bool) -> Verdict {
        let of = |options: &QpOptions| QpOptions {
            heap,
            ..options.clone()
        };
        let (a, b) = cx.connected_pair_with(&of(&self.of_a), &of(&self.of_b))?;
        for side in [a, b] {
            cx.fill_buffer(side, 0, BEFORE, 1)?;
            cx.write_buffer(side, BEFORE, &[0; 8])?;
            cx.fill_buffer(side, BEFORE + 8, LEN - BEFORE - 8, 2)?;
        }
        self.receives.post(cx, b)?;
        cx.receive(a, 80, &[])?;
        let bad = self.request(cx, a, b)?;
        let good = Op::Write(b.at(BEFORE as i64));
        // The first WRITE would be refused itself if the peer allows no WRITEs.
        let before_is_good = writable(&self.of_b);
        let behind = cx.following_requests(bad.op, b.at(BEFORE as i64))?;
        let mut chain = vec![
            Send::inline(1, good, &[0xee; 8]).quiet(),
            if signaled { bad } else { bad.quiet() },
        ];
        chain.push(behind.inline(3, &[0xbb; 8]).quiet());
        chain.push(behind.inline(4, &[0xbb; 8]));
        if !before_is_good {
            chain.remove(0);
        }
        let index = chain.iter().position(|request| request.wr_id == 2);
        let posted = cx.post_chain(a, chain);
        if cx.is_known_refusal(&posted) {
            let at = posted.map_err(|refusal| refusal.index);
            ensure_eq!(at, Err(index), "refused");
            return self.refused_at_once(cx, (a, b));
        }
        posted.map_err(crate::case_context::error_line)?;
        cx.named_wait("at a fault", |cx| cx.expect_sent(a, 2, self.ours))?;
        cx.expect_sent(a, 3, Status::Flushed)?;
        cx.expect_sent(a, 4, Status::Flushed)?;
        cx.expect_received(a, 80, Status::Flushed)?;
        cx.expect_state(a, QpState::Error, "the initiator")?;
        cx.expect_failed(a)?;
        self.check_peer(cx, b)?;
        cx.expect_nothing_more(a)?;
        cx.expect_one_failure_report(a)?;
        cx.expect_one_failure_report(b)?;
        // Nothing else was written, local or remote.
        for (side, whose) in [(a, "our"), (b, "the peer's")] {
            let beginning = cx.buffer_matches(side, 0, BEFORE, 1)?;
            ensure!(
                beginning || !self.leaves_no_trace(cx),
                "{whose} memory was written"
            );
            let behind = cx.buffer_matches(side, BEFORE + 8, LEN - BEFORE - 8, 2)?;
            ensure!(behind, "{whose} memory was written at the end");
        }
        let word = if before_is_good { [0xee; 8] } else { [0; 8] };
        ensure_eq!(
            cx.read_buffer(b, BEFORE, 8)?,
            word,
            "what was posted before"
        );
        cx.destroy_qp_fixture(a)?;
        cx.destroy_qp_fixture(b)
    }

    /// Checks a device that refuses the faulty request when it is posted: the request before it is executed,
    /// nothing else is, and both queue pairs go on.
    fn refused_at_once(&self, cx: &mut CaseContext<'_>, (a, b): (QpFixture, QpFixture)) -> Verdict {
        let last = Op::Write(b.at(BEFORE as i64 + 8));
        cx.post_one(a, Send::inline(5, last, &[0xdd; 8]))?;
        cx.expect_sent(a, 5, Status::Success)?;
        let words = [[0xee; 8], [0xdd; 8]].concat();
        ensure_eq!(
            cx.read_buffer(b, BEFORE, 16)?,
            words,
            "what was posted else"
        );
        for side in [a, b] {
            cx.expect_state(side, QpState::Rts, "one of them")?;
            cx.expect_nothing_more(side)?;
            cx.expect_no_fatal(side)?;
            let untouched = cx.buffer_matches(side, 0, BEFORE, 1)?;
            ensure!(untouched, "memory was written");
        }
        cx.destroy_qp_fixture(a)?;
        cx.destroy_qp_fixture(b)
    }

    fn check_peer(&self, cx: &mut CaseContext<'_>, b: QpFixture) -> Verdict {
        let host = b.host;
        if !self.peer_fails {
            cx.expect_state(b, QpState::Rts, "the peer")?;
            cx.expect_no_fatal(b)?;
            return cx.expect_nothing_more(b);
        }
        cx.wait("failure of the peer", |cx| {
            Ok((cx.state(b)? == QpState::Error).then_some(()))
        })?;
        match self.receives.fail() {
            true => cx.expect_failed(b)?,
            false => cx.expect_fatal(b)?,
        }
        let own = b.srq.is_none();
        let first = match self.taken {
            FirstReceiveEnd::Not if own => cx.expect_received(b, 70, Status::Flushed).map(drop),
            FirstReceiveEnd::Not => Ok(()),
            FirstReceiveEnd::With(status) => cx.expect_received(b, 70, status).map(drop),
            FirstReceiveEnd::Perhaps(status) => {
                let found = cx.next_recv_completion(b)?;
                let status = cx.expected_status(status, found.status);
                ensure!(
                    found.wr_id == 70 && [status, Status::Flushed].contains(&found.status),
                    "the first receive: {found:?}"
                );
                Ok(())
            }
        };
        first.map_err(|seen| format!("the peer's first receive: {seen}"))?;
        // Receives of an SRQ stay posted for other queue pairs.
        if own {
            cx.expect_received(b, 71, Status::Flushed)?;
        } else {
            cx.expect_event(host, Event::QpLastWqe(Some(b.qp)))?;
        }
        cx.expect_nothing_more(b)
    }
}

/// Returns whether a peer with these options allows WRITEs.
fn writable(options: &QpOptions) -> bool {
    let write = headworks_verbs::Access::REMOTE_WRITE;
    options.region.contains(write) && options.access.contains(write)
}

/// Returns a case that checks one error with several operations.
fn case(
    name: &str,
    verb: &'static str,
    kinds: &[OpKind],
    wrong: &str,
    outcome: &str,
    run: impl Fn(&mut CaseContext<'_>, OpKind) -> Verdict + std::marker::Send + Sync + 'static,
) -> Case {
    let all = kinds.to_vec();
    let each = move |cx: &mut CaseContext<'_>| {
        for kind in &all {
            cx.section(kind.name(), |cx| run(cx, *kind))?;
        }
        Ok(())
    };
    let mut case = Case::new(format!("matrix::{name}"), each);
    for kind in kinds {
        case = case.row(verb, kind.name(), wrong, outcome);
    }
    case
}

fn kinds(wanted: impl Fn(OpKind) -> bool) -> Vec<OpKind> {
    OpKind::ALL
        .into_iter()
        .filter(|kind| wanted(*kind))
        .collect()
}

//! Generates random programs.

use headworks_verbs::{Access, QpState, QpType};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::program::{
    DATAGRAM_MAX, INLINE_MAX, LocalData, Op, PIECE_MAX, PIECES_MAX, Program, ProgramStep, QpConfig,
    QpPair, RegionSpec, Request, Slice, SliceFault,
};

/// Maximum number of steps of a program.
const STEPS_MAX: usize = 12;

/// Returns the program of a seed.
pub fn program_of_seed(seed: u64) -> Program {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    match program(STEPS_MAX).new_tree(&mut runner) {
        Ok(tree) => tree.current(),
        Err(reason) => unreachable!("nothing is ever rejected: {reason}"),
    }
}

/// Generates a program of at most this many steps.
fn program(steps: usize) -> impl Strategy<Value = Program> {
    let memory = || vec(memory(), 1..4);
    let lines = || prop_oneof![4 => vec(line(), 1..2), 1 => vec(line(), 2..3)];
    (
        memory(),
        memory(),
        lines(),
        vec(step(), 1..=steps),
        any::<u64>(),
    )
        .prop_map(|(first, second, lines, steps, teardown_seed)| Program {
            memory: [first, second],
            steps: steps
                .into_iter()
                .map(|step| fitting(step, &lines))
                .collect(),
            lines,
            teardown_seed,
        })
}

/// Adapts most operations of a step to the transport of its line.
fn fitting(step: ProgramStep, lines: &[QpPair]) -> ProgramStep {
    let transport = |line: u8| lines[usize::from(line) % lines.len()].qp_type;
    match step {
        ProgramStep::Send {
            line,
            end,
            anew,
            receives,
            chain,
        } => ProgramStep::Send {
            line,
            end,
            anew,
            receives,
            chain: match transport(line) {
                QpType::Ud => chain.into_iter().map(datagram).collect(),
                QpType::Uc => chain.into_iter().map(unreliable).collect(),
                _ => chain,
            },
        },
        other => other,
    }
}

/// Turns a request that UC does not have into one that it has, except for some atomics.
fn unreliable(request: Request) -> Request {
    let op = match request.op {
        Op::Read => Op::Send,
        Op::CompareSwap { .. } => Op::Write,
        op => op,
    };
    // A refused WRITE with immediate may have taken a receive or not (9.9.3).
    let remote = match op {
        Op::WriteImm(_) => Slice {
            wrong: SliceFault::Not,
            ..request.remote
        },
        _ => request.remote,
    };
    Request {
        op,
        remote,
        ..request
    }
}

/// Turns a request into a datagram. An atomic becomes a WRITE, an operation that UD does not have.
fn datagram(request: Request) -> Request {
    let op = match request.op {
        Op::Send | Op::Read => None,
        Op::SendImm(imm) | Op::WriteImm(imm) => Some(imm),
        Op::Write => Some(1),
        Op::CompareSwap { .. } | Op::FetchAdd { .. } | Op::SendTo { .. } => {
            return Request {
                op: Op::Write,
                ..request
            };
        }
    };
    let good_qkey = request.remote.wrong == SliceFault::Not;
    let short = |slice: Slice| Slice {
        len: slice.len % (DATAGRAM_MAX / PIECES_MAX as u16),
        ..slice
    };
    Request {
        op: Op::SendTo { imm: op, good_qkey },
        local: match request.local {
            LocalData::Gather(slices) => LocalData::Gather(slices.into_iter().map(short).collect()),
            LocalData::TooMany(slice) => LocalData::TooMany(short(slice)),
            other => other,
        },
        ..request
    }
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![
        40 => Just(Access::ALL),
        1 => Just(Access::LOCAL_WRITE),
        1 => Just(Access::REMOTE_READ),
        1 => Just(Access::LOCAL_WRITE | Access::REMOTE_WRITE),
        1 => Just(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC),
        1 => Just(Access::NONE),
    ]
}

fn rarely(one_in: u32) -> impl Strategy<Value = bool> {
    prop_oneof![one_in - 1 => Just(false), 1 => Just(true)]
}

fn memory() -> impl Strategy<Value = RegionSpec> {
    (access(), rarely(4), rarely(24)).prop_map(|(access, heap, foreign)| RegionSpec {
        access,
        heap,
        foreign,
    })
}

fn line() -> impl Strategy<Value = QpPair> {
    let ending = || {
        (rarely(4), any::<bool>(), rarely(6), access()).prop_map(
            |(shared, one_cq, signal_all, access)| QpConfig {
                shared,
                one_cq,
                signal_all,
                access,
            },
        )
    };
    let transport = prop_oneof![
        4 => Just(QpType::Rc),
        1 => Just(QpType::Ud),
        1 => Just(QpType::Uc),
    ];
    (transport, ending(), ending()).prop_map(|(qp_type, first, second)| QpPair {
        qp_type,
        ends: [first, second],
    })
}

fn wrong() -> impl Strategy<Value = SliceFault> {
    prop_oneof![
        240 => Just(SliceFault::Not),
        1 => Just(SliceFault::Key),
        1 => Just(SliceFault::End),
        1 => Just(SliceFault::Start),
        1 => Just(SliceFault::Far),
        1 => Just(SliceFault::Gone),
        1 => Just(SliceFault::Aside),
    ]
}

fn len() -> impl Strategy<Value = u16> {
    prop_oneof![
        1 => Just(0),
        2 => Just(8),
        8 => 1u16..=256,
        2 => 257u16..=PIECE_MAX,
    ]
}

fn slice_of(len: impl Strategy<Value = u16>) -> impl Strategy<Value = Slice> {
    (any::<u8>(), any::<u16>(), len, wrong()).prop_map(|(memory, at, len, wrong)| Slice {
        memory,
        at,
        len,
        wrong,
    })
}

fn op() -> impl Strategy<Value = Op> {
    // Small numbers make some comparisons find the value that they expect.
    let word = || prop_oneof![0u64..4, any::<u64>()];
    prop_oneof![
        4 => Just(Op::Send),
        2 => any::<u32>().prop_map(Op::SendImm),
        5 => Just(Op::Write),
        2 => any::<u32>().prop_map(Op::WriteImm),
        4 => Just(Op::Read),
        2 => (word(), word()).prop_map(|(expect, swap)| Op::CompareSwap { expect, swap }),
        2 => word().prop_map(|add| Op::FetchAdd { add }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let bytes = (
        vec(slice_of(len()), 0..=PIECES_MAX as usize),
        slice_of(Just(8)),
        0..=INLINE_MAX as u8,
        0u8..120,
    );
    let rest = (slice_of(Just(0)), any::<bool>(), rarely(5));
    (op(), bytes, rest).prop_map(
        |(op, (pieces, word, inline, choice), (remote, signaled, fence))| Request {
            op,
            local: match choice {
                119 => LocalData::TooMany(word),
                118 => LocalData::InlineTooLong,
                117 => LocalData::Inline(inline),
                116 => LocalData::Gather(pieces),
                _ if op.is_atomic() => LocalData::Gather(vec![word]),
                80.. if !op.brings() => LocalData::Inline(inline),
                _ => LocalData::Gather(pieces),
            },
            remote,
            signaled,
            fence,
        },
    )
}

fn receives() -> impl Strategy<Value = Vec<Vec<Slice>>> {
    let piece = || slice_of(prop_oneof![1 => len(), 6 => 300u16..=PIECE_MAX]);
    let pieces = || {
        prop_oneof![
            1 => Just(vec![]),
            30 => vec(piece(), 1..=PIECES_MAX as usize),
            1 => vec(piece(), (PIECES_MAX as usize + 1)..=(PIECES_MAX as usize + 2)),
        ]
    };
    vec(pieces(), 1..6)
}

fn state() -> impl Strategy<Value = QpState> {
    prop_oneof![
        3 => Just(QpState::Error),
        3 => Just(QpState::Reset),
        1 => Just(QpState::Init),
        1 => Just(QpState::Rtr),
        1 => Just(QpState::Rts),
    ]
}

fn sometimes() -> impl Strategy<Value = Vec<Vec<Slice>>> {
    prop_oneof![1 => Just(vec![]), 5 => receives()]
}

fn step() -> impl Strategy<Value = ProgramStep> {
    let place = || (0u8..2, 0u8..2);
    prop_oneof![
        6 => (place(), receives(), rarely(24)).prop_map(|((line, end), chain, astray)| {
            ProgramStep::Receive { line, end, chain, astray }
        }),
        20 => (place(), rarely(4), sometimes(), vec(request(), 1..6)).prop_map(
            |((line, end), stays, receives, chain)| {
                ProgramStep::Send { line, end, anew: !stays, receives, chain }
            }
        ),
        1 => (place(), state()).prop_map(|((line, end), to)| ProgramStep::Modify { line, end, to }),
        3 => (0u8..2).prop_map(|line| ProgramStep::Reconnect { line }),
        1 => (0u8..2, memory()).prop_map(|(end, memory)| ProgramStep::Register { end, memory }),
        1 => (0u8..2, any::<u8>()).prop_map(|(end, which)| ProgramStep::Deregister { end, which }),
        // A destroyed peer does not answer, and each wait for it takes the full timeout, so it is rare.
        1 => (place(), rarely(3)).prop_map(|((line, end), is_destroyed)| match is_destroyed {
            true => ProgramStep::Destroy { line, end },
            false => ProgramStep::Reconnect { line },
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_program() {
        assert_eq!(program_of_seed(7), program_of_seed(7));
        assert_ne!(program_of_seed(7), program_of_seed(8));
    }
}

//! Generates programs that are smaller than a given one. Numbers in a program are taken modulo what exists,
//! so any part can be removed.

use headworks_verbs::Access;

use super::program::{LocalData, Program, ProgramStep, Request, Slice, SliceFault};

/// Returns all programs that are a little smaller, the much smaller ones first.
pub(super) fn smaller_programs(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    let steps = program.steps.len();
    for size in [steps / 2, steps / 4, 1] {
        for at in (0..steps).step_by(size.max(1)).filter(|_| size > 0) {
            let mut less = program.clone();
            less.steps.drain(at..(at + size).min(steps));
            all.push(less);
        }
    }
    for line in 0..program.lines.len() {
        let mut less = program.clone();
        less.lines.remove(line);
        if !less.lines.is_empty() {
            all.push(less);
        }
    }
    for end in 0..2 {
        for memory in 0..program.memory[end].len() {
            let mut less = program.clone();
            less.memory[end].remove(memory);
            if !less.memory[end].is_empty() {
                all.push(less);
            }
            let mut plain = program.clone();
            plain.memory[end][memory].access = Access::ALL;
            plain.memory[end][memory].heap = false;
            all.push(plain);
        }
    }
    for (at, step) in program.steps.iter().enumerate() {
        for step in smaller_steps(step) {
            let mut less = program.clone();
            less.steps[at] = step;
            all.push(less);
        }
    }
    for line in 0..program.lines.len() {
        for end in 0..2 {
            let mut plain = program.clone();
            let ending = &mut plain.lines[line].ends[end];
            ending.access = Access::ALL;
            ending.shared = false;
            ending.signal_all = false;
            ending.one_cq = false;
            all.push(plain);
        }
    }
    all.retain(|less| less != program);
    all
}

fn smaller_steps(step: &ProgramStep) -> Vec<ProgramStep> {
    match step {
        ProgramStep::Send {
            line,
            end,
            anew,
            receives,
            chain,
        } => {
            let with = |receives: &[Vec<Slice>], chain: &[Request]| ProgramStep::Send {
                line: *line,
                end: *end,
                anew: *anew,
                receives: receives.to_vec(),
                chain: chain.to_vec(),
            };
            let mut all = vec![with(&[], chain)];
            let fewer = smaller_chains(chain, smaller_requests);
            all.extend(fewer.iter().map(|chain| with(receives, chain)));
            let fewer = smaller_chains(receives, |slices| smaller_slices(slices, 0));
            all.extend(fewer.iter().map(|receives| with(receives, chain)));
            all
        }
        ProgramStep::Receive {
            line,
            end,
            chain,
            astray,
        } => {
            let with = |chain| ProgramStep::Receive {
                line: *line,
                end: *end,
                chain,
                astray: *astray,
            };
            let fewer = smaller_chains(chain, |slices| smaller_slices(slices, 0));
            fewer.into_iter().map(with).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the chains that lack one element, or have a smaller one.
fn smaller_chains<T: Clone>(chain: &[T], less: impl Fn(&T) -> Vec<T>) -> Vec<Vec<T>> {
    let mut all = Vec::new();
    for at in 0..chain.len() {
        if chain.len() > 1 {
            let mut without = chain.to_vec();
            without.remove(at);
            all.push(without);
        }
        for one in less(&chain[at]) {
            let mut other = chain.to_vec();
            other[at] = one;
            all.push(other);
        }
    }
    all
}

fn smaller_requests(request: &Request) -> Vec<Request> {
    let mut all = Vec::new();
    if let LocalData::Gather(slices) = &request.local {
        let least = usize::from(request.op.brings());
        all.extend(
            smaller_slices(slices, least)
                .into_iter()
                .map(|slices| Request {
                    local: LocalData::Gather(slices),
                    ..request.clone()
                }),
        );
    }
    let remote = Slice {
        at: 0,
        memory: 0,
        wrong: SliceFault::Not,
        ..request.remote
    };
    all.push(Request {
        remote,
        ..request.clone()
    });
    all.push(Request {
        signaled: true,
        fence: false,
        ..request.clone()
    });
    all
}

/// Returns the lists that lack one slice, with at least `least` left, or have a simpler one.
fn smaller_slices(slices: &[Slice], least: usize) -> Vec<Vec<Slice>> {
    let mut all = Vec::new();
    for at in 0..slices.len() {
        let mut without = slices.to_vec();
        without.remove(at);
        if without.len() >= least {
            all.push(without);
        }
        let mut plain = slices.to_vec();
        plain[at] = Slice {
            at: 0,
            memory: 0,
            wrong: SliceFault::Not,
            ..slices[at]
        };
        all.push(plain);
    }
    all
}

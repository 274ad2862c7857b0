//! Figures 3 and 4: one requester and one responder, a thread each (section 5).

use super::*;

/// Bytes of responses, up to the limit of bandwidth.
const SIZES: [u64; 9] = [64, 256, 1024, 4096, 16384, 65536, 262_144, 1 << 20, 4 << 20];

fn at(design: Design, size: u64, quantity: Quantity) -> Expr<Arm> {
    Expr::At(Arm::of(design).size(size).at(size), quantity)
}

fn points(sizes: &[u64]) -> Vec<Point<Arm>> {
    let of = |size: &u64| DESIGNS.map(|design| Arm::of(design).size(*size).at(*size));
    sizes.iter().flat_map(of).collect()
}

/// Figure 3.
pub static FIG3: Case<Arm> = Case {
    about: about(
        "patterns-fig3",
        "Figure 3",
        "Bandwidth and latency of one requester and one responder by every pair of verbs, over the size of responses.",
        "Payload of responses per second, and latencies of requests, of one requester with one request outstanding and one \
         responder: requests of 64 B by WRITE or SEND, responses of 64 B to 4 MiB by WRITE or SEND.",
    ),
    table: || {
        let mut t = rows();
        let axes = |y| (Axis::log("response [B]"), Axis::log(y));
        t.lines(
            "bandwidth.svg",
            "One requester, one responder",
            axes("[B/s]"),
            |p| Expr::At(*p, BYTES),
        );
        t.lines(
            "latency.svg",
            "One requester, one responder",
            axes("[ns]"),
            |p| Expr::At(*p, P50),
        );
        let over = |size| at(WW, size, RATE) / at(SS, size, RATE);
        for size in [64, 256] {
            let more = over(size) - Expr::Is(1.0);
            t.metric(format!("write_write_more_than_send_send_{size}"), more)
                .paper(Claim::About(0.4), "5: around 40 %");
        }
        t.metric("write_write_over_send_send_4m", over(4 << 20))
            .paper(Claim::Between(0.95, 1.05), "5: the gap closes");
        let more = at(WW, 16384, BYTES) - at(SS, 16384, BYTES);
        t.metric("write_write_minus_send_send_16k_mb_per_s", more / 1e6)
            .paper(Claim::About(700.0), "5");
        for (design, most) in [(WW, 3.0), (SW, 3.0), (WS, 4.0), (SS, 4.0)] {
            for size in [64, 256] {
                t.metric(
                    format!("{}_{size}_us", key(design)),
                    at(design, size, P50) / 1e3,
                )
                .paper(Claim::Below(most), "5");
            }
        }
        let by_send = Expr::Highest(vec![at(SS, 16384, P50), at(WS, 16384, P50)]);
        let by_write = Expr::Lowest(vec![at(SW, 16384, P50), at(WW, 16384, P50)]);
        t.metric(
            "responses_by_send_over_write_16k_us",
            (by_send - by_write) / 1e3,
        )
        .paper(Claim::About(2.0), "5: almost");
        for (by, request) in [("write", [WW, WS]), ("send", [SW, SS])] {
            let ratio = at(request[0], 4096, BYTES) / at(request[1], 4096, BYTES);
            t.metric(
                format!("requests_by_{by}_responses_write_over_send_4k"),
                ratio,
            )
            .paper(Claim::More(1.0), "5: responses by WRITE outperform SEND");
        }
        t
    },
    measure: |bench, t, outcome| {
        let sizes = if bench.options.quick {
            &SIZES[..5]
        } else {
            &SIZES
        };
        measure(bench, t, outcome, points(sizes))
    },
};

/// Instructions of a side for each request, by where they are; and those of the loop that is written by hand.
const PROGRAM: Quantity = "program";
const DEVICE: Quantity = "device";
const OTHER: Quantity = "other";
const TOTAL: Quantity = "instructions";
const BY_HAND: Quantity = "by hand";
/// Rate of the loop that is written by hand, in one thread, and of the building blocks there.
const HAND_RATE: Quantity = "rate by hand";
const REQUESTER: &str = "requester";
const RESPONDER: &str = "responder";
const COUNTED_SIZES: [u64; 4] = [64, 1024, 4096, 16384];
/// Requests that are timed in one thread.
const TIMED: u64 = 100_000;

fn side(load: &'static str, design: Design, size: u64, quantity: Quantity) -> Expr<Arm> {
    Expr::At(Point::of(load, Arm::of(design).size(size), size), quantity)
}

/// Both sides' quantity, with responses of 64 B.
fn both_sides(design: Design, quantity: Quantity) -> Expr<Arm> {
    let of = |load| Box::new(side(load, design, 64, quantity));
    Expr::Pair(of(REQUESTER), |a, b| a + b, of(RESPONDER))
}

/// Note on the instructions that the paper counts, and on those that this experiment counts.
const COUNTED_NOTE: &str = "The paper counts up to 800 instructions for each byte received and 450 on the requester (5), by \
    hardware counters and with the time that its threads spend polling. Here a thread does not poll in vain, and the \
    software RNIC's own instructions, the copies among them, are part of the count: the columns tell them apart.";

fn counted_points(sizes: &[u64]) -> Vec<Point<Arm>> {
    let arms = Design::PAIRS.map(Arm::of);
    let of = |load| {
        let all = grid(load, &arms, sizes).into_iter();
        all.map(|point| Point {
            arm: point.arm.size(point.x),
            ..point
        })
    };
    of(REQUESTER).chain(of(RESPONDER)).collect()
}

/// Figure 4.
pub static FIG4: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Real("callgrind counts instructions of programs on the software RNIC"),
        ..about(
            "patterns-fig4",
            "Figure 4",
            "Instructions of requester and responder for each byte of a response, by every pair of verbs, beside loops \
             written by hand.",
            "Instructions under callgrind of each side for a request, on the software RNIC, by where they are; of the \
             building blocks and of a loop of the same verbs that is written by hand for one requester. The rates of both \
             in one thread. Responses of 64 B to 16 KiB.",
        )
    },
    table: || {
        let mut t = Table::new(Design::PAIRS.map(|design| Arm::of(design).note()).to_vec());
        t.arm()
            .cell("side", |point| point.load.into())
            .x("response [B]");
        let each = |quantity| move |point: &Point<Arm>| Expr::At(*point, quantity);
        t.median("program [1/request]", each(PROGRAM))
            .median("device [1/request]", each(DEVICE));
        t.median("other [1/request]", each(OTHER))
            .median("by hand [1/request]", each(BY_HAND));
        t.median("instructions [1/B]", |point| {
            Expr::At(*point, TOTAL) / point.x as f64
        });
        let axes = (Axis::log("response [B]"), Axis::log("[instructions/B]"));
        t.chart(
            "instructions.svg",
            "Instructions for each byte of a response",
            axes,
            |point| {
                let total = Expr::At(*point, TOTAL) / point.x as f64;
                Some((
                    format!("{}, {}", point.arm, point.load),
                    point.x as f64,
                    total,
                ))
            },
        );
        for design in Design::PAIRS {
            for of in [REQUESTER, RESPONDER] {
                t.metric(
                    format!("{}_{of}_64_per_byte", key(design)),
                    side(of, design, 64, TOTAL) / 64.0,
                );
            }
            t.metric(
                format!("{}_over_hand_written_instructions", key(design)),
                both_sides(design, TOTAL) / both_sides(design, BY_HAND),
            );
            let rate = side(REQUESTER, design, 64, RATE) / side(REQUESTER, design, 64, HAND_RATE);
            t.metric(format!("{}_over_hand_written_rate", key(design)), rate);
        }
        t.note(COUNTED_NOTE);
        t
    },
    measure: |bench, _, outcome| {
        outcome.pinning = "one thread, requester and responder in turns".to_owned();
        let sizes = if bench.options.quick {
            &COUNTED_SIZES[..1]
        } else {
            &COUNTED_SIZES
        };
        let points = counted_points(sizes);
        bench.measure(
            points,
            Sweep::over("B", Wall::ZERO, Wall::ZERO),
            |bench, point, _| instructions(bench, point).map(Some),
        )
    },
};

/// Counts the instructions of one side, and times both programs.
fn instructions(bench: &Bench<'_>, point: &Point<Arm>) -> Result<Sample, WorkloadError> {
    use crate::patterns::hand_written::HandWritten;
    use crate::patterns::instructions::{CountedProgram, CountedSide, count, devices};
    use crate::patterns::one_thread::OneThread;

    let (design, size) = (point.arm.design, point.arm.response as usize);
    let side = if point.load == REQUESTER {
        CountedSide::Requester
    } else {
        CountedSide::Responder
    };
    let counted = |program| count(program, design, size, side, bench.stop());
    let (blocks, by_hand) = (
        counted(CountedProgram::Blocks)?,
        counted(CountedProgram::HandWritten)?,
    );
    let opener = headworks::opener();
    let mut ends = OneThread::open(&point.arm.task(false), devices(&opener)?)?;
    let mut loops = HandWritten::open(design, size, devices(&opener)?)?;
    // Alternating parts: both see the same neighbours of this machine.
    let (mut ours, mut theirs) = (0.0, 0.0);
    for _ in 0..10 {
        ours += ends.run(TIMED / 10, 1)?;
        theirs += loops.time(TIMED / 10)?;
    }
    Ok(Sample::of([
        (PROGRAM, blocks.program),
        (DEVICE, blocks.device),
        (OTHER, blocks.other),
        (TOTAL, blocks.total()),
        (BY_HAND, by_hand.total()),
        (RATE, 10e9 / ours),
        (HAND_RATE, 10e9 / theirs),
    ]))
}

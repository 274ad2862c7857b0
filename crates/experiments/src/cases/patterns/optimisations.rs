//! The optimisations of section 8, each on and off: selective signalling, inlining, huge pages and dense flags; and
//! requests outstanding, of which the paper has one.

use super::*;

/// Requests outstanding.
const OUTSTANDING: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const SIZE: u64 = 256;
const PAGE: u64 = 4096;
/// Items of a region of 64 MiB: 16,384 ordinary pages.
const MANY_ITEMS: u64 = 16384;
/// Requesters of the arms with many mailboxes.
const REQUESTERS: u64 = 40;

fn outstanding(design: Design, outstanding: u32) -> Point<Arm> {
    let arm = Arm::of(design).size(SIZE);
    Arm { outstanding, ..arm }.at(outstanding.into())
}

fn large(is_huge: bool) -> Point<Arm> {
    let arm = Arm::of(WW).size(PAGE).between(REQUESTERS, 1);
    let items = MANY_ITEMS;
    Arm {
        items,
        is_huge,
        ..arm
    }
    .at(1)
}

/// Name of an optimisation, the point with it, and the point without it.
fn switches() -> Vec<(&'static str, Point<Arm>, Point<Arm>)> {
    let one = Arm::of(WW).size(SIZE);
    let dense = |flag| {
        Arm::of(WW.with_flag(flag))
            .size(SIZE)
            .between(REQUESTERS, 1)
            .at(1)
    };
    let signalled = Arm {
        signal_every: 1,
        ..one
    };
    let many = |arm: Arm| arm.between(REQUESTERS, 1).at(1);
    vec![
        ("selective_signalling", many(one), many(signalled)),
        (
            "inlining",
            one.at(1),
            Arm {
                is_inline: false,
                ..one
            }
            .at(1),
        ),
        ("huge_pages", large(true), large(false)),
        (
            "dense_flags",
            dense(MailboxFlag::Dense),
            dense(MailboxFlag::SecondWrite),
        ),
    ]
}

/// The optimisations.
pub static OPTIMISATIONS: Case<Arm> = Case {
    about: about(
        "patterns-optimisations",
        "Section 8",
        "Signalling, inlining, huge pages and dense flags, each on and off; and 1 to 64 requests outstanding.",
        "Rate and latency of WriteWrite with and without each optimisation: selective signalling and dense flags with 40 \
         requesters and responses of 256 B; inlining with one; huge pages with 40, from 64 MiB of items of 4 KiB. Every pair \
         of verbs with 1 to 64 requests outstanding, of which the paper has one.",
    ),
    table: || {
        let mut t = rows();
        t.cell("outstanding", |point| {
            f64::from(point.arm.outstanding).into()
        });
        let axes = (Axis::log("requests outstanding"), Axis::log("[1/s]"));
        t.chart(
            "outstanding.svg",
            "Rate over requests outstanding",
            axes,
            |point| {
                let line = Arm {
                    outstanding: 1,
                    ..point.arm
                }
                .to_string();
                let is_drawn =
                    point.arm.response == SIZE && point.arm.requesters == 1 && point.arm.is_inline;
                is_drawn.then_some((line, point.x as f64, Expr::At(*point, RATE)))
            },
        );
        for (name, with, without) in switches() {
            t.metric(
                format!("{name}_rate"),
                Expr::At(with, RATE) / Expr::At(without, RATE),
            );
            t.metric(
                format!("{name}_latency"),
                Expr::At(with, P50) / Expr::At(without, P50),
            );
        }
        for design in Design::PAIRS {
            let rate = |count| Expr::At(outstanding(design, count), RATE);
            t.metric(
                format!("{}_64_over_1_outstanding", key(design)),
                rate(64) / rate(1),
            );
        }
        t.note("More than one request outstanding is ours: the paper's requesters have one.");
        t
    },
    measure: |bench, t, outcome| {
        let mut points: Vec<_> = switches()
            .into_iter()
            .flat_map(|(_, with, without)| [with, without])
            .collect();
        for count in OUTSTANDING {
            points.extend(Design::PAIRS.map(|design| outstanding(design, count)));
        }
        measure(bench, t, outcome, points)
    },
};

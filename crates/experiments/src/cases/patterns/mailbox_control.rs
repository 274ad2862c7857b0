//! A control that the paper lacks: the same load beside a growing number of idle mailboxes. How much of the drop in
//! Figure 9(b) is scanning, and how much is less load?

use super::*;
use crate::patterns::instructions::devices;
use crate::patterns::one_thread::OneThread;

/// Requesters, which are always busy.
const BUSY: u64 = 10;
/// Idle mailboxes.
const IDLE: [u64; 8] = [0, 10, 40, 80, 160, 320, 640, 1000];
const SIZES: [u64; 3] = [64, 256, 4096];
const DENSE: Design = WW.with_flag(MailboxFlag::Dense);
/// Plain mailboxes whose flags are second WRITEs too, so that only the scan differs.
const PLAIN: Design = WW.with_flag(MailboxFlag::SecondWrite);
/// Requests of each requester in one thread.
const COUNT: u64 = 20_000;

fn point(design: Design, size: u64, idle: u64) -> Point<Arm> {
    let arm = Arm::of(design).size(size).between(BUSY, 1);
    Arm {
        idle_mailboxes: idle,
        ..arm
    }
    .at(idle)
}

fn rate(design: Design, size: u64, idle: u64) -> Expr<Arm> {
    Expr::At(point(design, size, idle), RATE)
}

/// The control.
pub static MAILBOX_CONTROL: Case<Arm> = Case {
    about: about(
        "mailbox-control",
        "Figure 9(b)",
        "Ten busy requesters beside 0 to 1,000 idle mailboxes: what scanning costs while the load stays the same.",
        "Responses per second to ten requesters with one request outstanding each, while the responder also polls 0 to \
         1,000 mailboxes that no requester uses; flags behind each mailbox, and dense. On a real device requesters and \
         responder take turns in one thread, so that waiting hides nothing.",
    ),
    table: || {
        let mut t = rows();
        t.x("idle mailboxes");
        let axes = (Axis::linear("idle mailboxes"), Axis::linear("[1/s]"));
        lines(
            &mut t,
            "rate.svg",
            "Ten requesters beside idle mailboxes",
            axes,
            RATE,
        );
        for (name, design) in [("plain", PLAIN), ("dense", DENSE)] {
            for size in SIZES {
                for idle in [80, 1000] {
                    let share = rate(design, size, idle) / rate(design, size, 0);
                    t.metric(format!("{name}_{}_{idle}_over_0_idle", short(size)), share);
                }
            }
            // The time of a request grows by the scan of the idle mailboxes, which ten requests share in a busy round.
            let time = |idle| Expr::Is(1e9) / rate(design, 64, idle);
            t.metric(
                format!("{name}_ns_per_idle_mailbox"),
                (time(1000) - time(0)) / 1000.0,
            );
        }
        t
    },
    measure: |bench, t, outcome| {
        let mut points = Vec::new();
        for size in SIZES {
            points.extend(
                IDLE.iter()
                    .flat_map(|idle| [PLAIN, DENSE].map(|design| point(design, size, *idle))),
            );
        }
        if bench.testbed.is_simulated() {
            return measure(bench, t, outcome, points);
        }
        t.arms
            .extend([PLAIN, DENSE].map(|design| Arm::of(design).note()));
        notes(bench, t, outcome);
        let sweep = Sweep::over("idle", Wall::ZERO, Wall::ZERO);
        bench.measure(points, sweep, |bench, point, _| {
            let opener = headworks::opener();
            let mut ends = OneThread::open(&point.arm.task(false), devices(&opener)?)?;
            let count = if bench.options.quick {
                COUNT / 10
            } else {
                COUNT
            };
            ends.run(count / 10, BUSY as usize)?;
            let nanos = ends.run(count, BUSY as usize)?;
            let rate = 1e9 / nanos;
            Ok(Some(Sample::of([
                (RATE, rate),
                (BYTES, rate * point.arm.response as f64),
            ])))
        })
    },
};

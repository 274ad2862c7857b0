//! Figures 5 to 7 and Table 1: up to five servers of eight requesters each, and one responder thread (section 6).

use super::*;

/// Requesters: one to five servers of eight.
const REQUESTERS: [u64; 5] = [8, 16, 24, 32, 40];
const QUICK_REQUESTERS: [u64; 3] = [8, 16, 40];
const SIZES: [u64; 5] = [64, 256, 1024, 4096, 16384];
const QUICK_SIZES: [u64; 3] = [256, 4096, 16384];
/// A bandwidth from this share of the line rate on is the line rate.
const FULL: f64 = 0.95;

fn at(design: Design, size: u64, requesters: u64, quantity: Quantity) -> Expr<Arm> {
    let arm = Arm::of(design).size(size).between(requesters, 1);
    Expr::At(arm.at(requesters), quantity)
}

fn points(designs: &[Design], sizes: &[u64], requesters: &[u64]) -> Vec<Point<Arm>> {
    let mut points = Vec::new();
    for size in sizes {
        for count in requesters {
            let arm = |design: &Design| Arm::of(*design).size(*size).between(*count, 1).at(*count);
            points.extend(designs.iter().map(arm));
        }
    }
    points
}

/// Bandwidth over that of a full link.
fn over_line(design: Design, size: u64, requesters: u64) -> Expr<Arm> {
    let preset = Preset::named("cx5-100g").expect("a preset");
    at(design, size, requesters, BYTES) / line_rate(&preset, size as f64)
}

fn bandwidth_table(title: &str) -> Table<Arm> {
    let mut t = rows();
    let axes = (Axis::linear("requesters"), Axis::log("[B/s]"));
    lines(&mut t, "bandwidth.svg", title, axes, BYTES);
    t
}

/// Adds bandwidths over a full link, with the paper's claim about each.
fn over_line_metrics(
    t: &mut Table<Arm>,
    of: fn(Design) -> Design,
    claims: &[(Design, u64, u64, Claim)],
    section: &'static str,
) {
    for (design, size, requesters, claim) in claims {
        let metric = format!("{}_{}_{requesters}_over_line", key(*design), short(*size));
        t.metric(metric, over_line(of(*design), *size, *requesters))
            .paper(*claim, section);
    }
}

/// Figure 5.
pub static FIG5: Case<Arm> = Case {
    about: about(
        "patterns-fig5",
        "Figure 5",
        "Bandwidth of one responder over 8 to 40 requesters with a private connection each, by every pair of verbs.",
        "Payload of responses per second from one responder thread to 8 to 40 requester threads on one to five servers, \
         each with a connection of its own and one request outstanding; responses of 64 B to 16 KiB.",
    ),
    table: || {
        let mut t = bandwidth_table("N requesters, one responder, private connections");
        for size in [64, 256] {
            for (design, gb) in [(SS, 0.5), (WW, 1.2)] {
                t.metric(
                    format!("{}_{size}_16_gb_per_s", key(design)),
                    at(design, size, 16, BYTES) / 1e9,
                )
                .paper(Claim::About(gb), "6");
            }
        }
        let full = Claim::Above(FULL);
        let claims = [
            (WW, 4096, 16, full),
            (WS, 4096, 16, full),
            (SW, 16384, 16, full),
            (SS, 16384, 40, full),
            (SS, 16384, 16, Claim::Below(FULL)),
        ];
        over_line_metrics(&mut t, |design| design, &claims, "6");
        for (design, count) in [(SS, 16), (SS, 40), (SW, 16), (SW, 40)] {
            t.metric(
                format!("{}_4k_{count}_gb_per_s", key(design)),
                at(design, 4096, count, BYTES) / 1e9,
            )
            .paper(Claim::Between(8.0, 9.5), "6");
        }
        let same = WW.with_flag(MailboxFlag::SecondWrite);
        t.metric(
            "write_write_flag_over_write_write_256_40",
            at(same, 256, 40, BYTES) / at(WW, 256, 40, BYTES),
        );
        t
    },
    measure: |bench, t, outcome| {
        let (sizes, counts): (&[u64], &[u64]) = match bench.options.quick {
            true => (&QUICK_SIZES, &QUICK_REQUESTERS),
            false => (&SIZES, &REQUESTERS),
        };
        let points = points(&DESIGNS, sizes, counts);
        measure(bench, t, outcome, points)
    },
};

/// Figure 6.
pub static FIG6: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Simulated,
        ..about(
            "patterns-fig6",
            "Figure 6",
            "Bandwidth of one responder over 8 to 40 requesters behind dispatchers, by every pair of verbs.",
            "As patterns-fig5, but the eight requesters of a server hand their requests to a dispatcher, which has the \
             server's only connection to the responder.",
        )
    },
    table: || {
        let mut t = bandwidth_table("N requesters behind dispatchers, one responder");
        let (full, below) = (Claim::Above(FULL), Claim::Below(FULL));
        let claims = [
            (WW, 4096, 40, full),
            (WS, 4096, 40, full),
            (WW, 4096, 16, below),
            (WS, 4096, 16, below),
        ];
        over_line_metrics(
            &mut t,
            Design::dispatched,
            &claims,
            "6: 40 requesters, instead of 16",
        );
        for design in [SS, SW] {
            let gb = at(design.dispatched(), 4096, 40, BYTES) / 1e9;
            t.metric(format!("{}_4k_40_gb_per_s", key(design)), gb)
                .paper(Claim::Between(8.0, 9.5), "derived: still the decline (6)");
        }
        t.metric("queue_pairs_40", at(WW.dispatched(), 4096, 40, QUEUE_PAIRS))
            .paper(Claim::Exactly(5.0), "6");
        t
    },
    measure: |bench, t, outcome| {
        let (sizes, counts): (&[u64], &[u64]) = match bench.options.quick {
            true => (&QUICK_SIZES, &QUICK_REQUESTERS),
            false => (&SIZES, &REQUESTERS),
        };
        let designs = Design::PAIRS.map(Design::dispatched);
        let points = points(&designs, sizes, counts);
        measure(bench, t, outcome, points)
    },
};

/// Figure 7.
pub static FIG7: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Simulated,
        ..about(
            "patterns-fig7",
            "Figure 7",
            "Cycles of the responder for each message, over 8 to 40 requesters, responses of 4 KiB.",
            "Processor cycles of one responder thread for each response of 4 KiB, polling included, with 8 to 40 requesters.",
        )
    },
    table: || {
        let mut t = rows();
        let axes = (Axis::linear("requesters"), Axis::linear("[cycles]"));
        t.lines(
            "cycles.svg",
            "Cycles of the responder for each message",
            axes,
            |p| Expr::At(*p, CYCLES),
        );
        let cycles = |design, count| at(design, 4096, count, CYCLES);
        for design in Design::PAIRS {
            t.metric(format!("{}_16_cycles", key(design)), cycles(design, 16))
                .paper(Claim::About(1700.0), "6");
        }
        for design in [WW, WS] {
            t.metric(format!("{}_40_cycles", key(design)), cycles(design, 40))
                .paper(Claim::About(1100.0), "6");
            t.metric(
                format!("{}_8_over_16", key(design)),
                cycles(design, 8) / cycles(design, 16),
            )
            .paper(
                Claim::More(1.0),
                "derived: a high overhead with 8 requesters (6)",
            );
        }
        for design in [SS, SW] {
            let input = "calibrated: cpu.srq_lock is fitted to SendSend at 40 requesters (6)";
            t.metric(format!("{}_40_cycles", key(design)), cycles(design, 40))
                .paper(Claim::About(1700.0), input);
        }
        t
    },
    measure: |bench, t, outcome| {
        let points = points(&Design::PAIRS, &[4096], &REQUESTERS);
        measure(bench, t, outcome, points)
    },
};

/// Share of the responder's time in the lock of its shared receive queue, and in taking completions.
const LOCK: &str = "send_send_lock_share";
const POLL: &str = "send_send_poll_share";

/// Table 1.
pub static TABLE1: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Simulated,
        ..about(
            "patterns-table1",
            "Table 1",
            "Where the responder's time goes by SendSend with 40 requesters: an input of the model, not a prediction.",
            "Shares of the responder's processor time for responses of 4 KiB to 40 requesters by SendSend: the lock of the \
             shared receive queue, and taking completions. The lock's price is fitted, so the table is an input.",
        )
    },
    table: || {
        let mut t = rows();
        t.declare([LOCK, POLL]);
        let input = "calibrated: cpu.srq_lock is an input (Table 1)";
        t.of(LOCK).paper(Claim::About(0.61), input);
        t.of(POLL).paper(Claim::About(0.17), input);
        t
    },
    measure: |bench, t, outcome| {
        let points = points(&[SS], &[4096], &[40]);
        let measured = measure(bench, t, outcome, points)?;
        if let (Some(rate), Ok(Some((preset, _)))) =
            (at(SS, 4096, 40, RATE).median(&measured), machine(bench))
        {
            // Each message takes the lock for its completion and for the receive that is posted again.
            let share = |nanos: f64| Spread::single(nanos * 1e-9 * rate);
            outcome.measured_or(LOCK, Some(share(2.0 * preset.srq_lock_ns)), "");
            outcome.measured_or(POLL, Some(share(preset.poll_cqe_ns)), "");
        }
        Ok(measured)
    },
};

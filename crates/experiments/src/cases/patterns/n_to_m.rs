//! Figures 8 to 10 and Table 2: 90 requesters on nine NUMA nodes, and 1 to 18 responder threads on six (section 7). Each
//! request goes to a random responder.

use super::*;

/// Responder threads: one, two and three on each of six NUMA nodes.
const RESPONDERS: [u64; 3] = [6, 12, 18];
const SIZES: [u64; 5] = [64, 256, 1024, 4096, 16384];
const QUICK_SIZES: [u64; 3] = [256, 4096, 16384];
/// Percentages of empty mailboxes (Fig. 9b).
const EMPTY_PERCENT: [u64; 10] = [0, 10, 20, 30, 40, 50, 60, 70, 80, 90];
/// Bytes of a response of 4 KiB.
const PAGE: u64 = 4096;
/// Time of a wait in place of a request, in seconds.
const WAIT: f64 = 8e-6;

fn arm_at(design: Design, size: u64, responders: u64) -> Point<Arm> {
    Arm::of(design)
        .size(size)
        .between(MANY, responders)
        .at(responders)
}

fn at(design: Design, size: u64, responders: u64, quantity: Quantity) -> Expr<Arm> {
    Expr::At(arm_at(design, size, responders), quantity)
}

fn points(designs: &[Design], sizes: &[u64], responders: &[u64]) -> Vec<Point<Arm>> {
    let mut points = Vec::new();
    for size in sizes {
        for count in responders {
            points.extend(designs.iter().map(|design| arm_at(*design, *size, *count)));
        }
    }
    points
}

fn sizes(bench: &Bench<'_>) -> &'static [u64] {
    if bench.options.quick {
        &QUICK_SIZES
    } else {
        &SIZES
    }
}

/// Measures `points`, and adds to each what Little's law gives: the requesters over the latency of one requester alone
/// and the waits, at most the line rate of all links.
fn with_littles_law(
    bench: &mut Bench<'_>,
    t: &mut Table<Arm>,
    outcome: &mut Outcome,
    points: Vec<Point<Arm>>,
) -> Result<Measured<Arm>, RunError> {
    let alone = |point: &Point<Arm>| {
        let arm = Arm::of(point.arm.design).size(point.arm.response);
        arm.between(1, 1).at(1)
    };
    let mut all = points.clone();
    for point in points.iter().map(alone) {
        if !all.contains(&point) {
            all.push(point);
        }
    }
    let mut measured = measure(bench, t, outcome, all)?;
    let line = machine(bench).ok().flatten();
    for point in &points {
        let latency = Expr::At(alone(point), MEAN).median(&measured);
        if let (Some(nanos), Some((preset, _))) = (latency, &line) {
            let share = f64::from(point.arm.idle_percent) / 100.0;
            let turn = nanos * 1e-9 + share / (1.0 - share) * WAIT;
            let links = point.arm.responders.min(RESPONDER_RNICS as u64) as f64;
            let size = point.arm.response as f64;
            let most = links * line_rate(preset, size);
            let value = (point.arm.requesters as f64 * size / turn).min(most);
            measured.extend(*point, LITTLE, value);
        }
    }
    Ok(measured.without_rows(|point| point.arm.requesters == 1))
}

fn bandwidth_table(title: &str) -> Table<Arm> {
    let mut t = rows();
    t.value("mailboxes without a request [1]", EMPTY);
    t.value("what Little's law gives [B/s]", LITTLE);
    let axes = (Axis::linear("responders"), Axis::log("[B/s]"));
    lines(&mut t, "bandwidth.svg", title, axes, BYTES);
    t.note(
        "Little's law: 90 requesters over the latency of one requester alone, and at most the line rate of the responders' \
         links. It knows nothing of processors and mailboxes.",
    );
    t
}

/// Figure 8.
pub static FIG8: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Simulated,
        ..about(
            "patterns-fig8",
            "Figure 8",
            "Aggregated bandwidth of 6 to 18 responders for 90 requesters with private connections, by every pair of verbs.",
            "Payload of responses per second from 6, 12 and 18 responder threads on six NUMA nodes, each with an RNIC, to 90 \
             requester threads on nine: every requester is connected to every responder, and each request goes to a random \
             one.",
        )
    },
    table: || {
        let mut t = bandwidth_table("90 requesters, M responders, private connections");
        for design in Design::PAIRS {
            for size in [256, PAGE] {
                let grows = at(design, size, 18, BYTES) / at(design, size, 6, BYTES);
                let metric = t.metric(format!("{}_{}_18_over_6", key(design), short(size)), grows);
                if size == 256 {
                    metric.paper(Claim::More(1.0), "7: up to 1 KB the bandwidth rises");
                }
            }
            let gb = at(design, PAGE, 18, BYTES) / 1e9;
            t.metric(format!("{}_4k_18_gb_per_s", key(design)), gb);
            let grows = at(design, PAGE, 18, BYTES) / at(design, PAGE, 12, BYTES);
            t.metric(format!("{}_4k_18_over_12", key(design)), grows);
        }
        t.of("send_write_4k_18_gb_per_s")
            .paper(Claim::Above(40.0), "7: well over");
        t.of("write_write_4k_18_gb_per_s")
            .paper(Claim::Below(60.0), "derived: far from 66 GB/s (7)");
        for pair in ["write_write", "write_send"] {
            t.of(&format!("{pair}_4k_18_over_12"))
                .paper(Claim::Below(0.98), "7: drops after 12");
        }
        t.of("send_write_4k_18_over_12")
            .paper(Claim::More(1.0), "7: inclines after 12");
        t.metric(
            "send_write_over_write_send_4k_18",
            at(SW, PAGE, 18, BYTES) / at(WS, PAGE, 18, BYTES),
        )
        .paper(Claim::More(1.0), "7");
        t
    },
    measure: |bench, t, outcome| {
        let points = points(&Design::PAIRS, sizes(bench), &RESPONDERS);
        with_littles_law(bench, t, outcome, points)
    },
};

/// Figure 9(a).
pub static FIG9A: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Simulated,
        ..about(
            "patterns-fig9a",
            "Figure 9(a)",
            "Bandwidth of one responder for 90 requesters, responses of 4 KiB, by every pair of verbs.",
            "Payload of responses of 4 KiB per second from one responder thread to 90 requester threads.",
        )
    },
    table: || {
        let mut t = bandwidth_table("90 requesters, one responder");
        let preset = Preset::named("cx5-100g").expect("a preset");
        for (design, claim) in [
            (WW, Claim::Above(0.95)),
            (WS, Claim::Above(0.95)),
            (SW, Claim::Below(0.95)),
            (SS, Claim::Below(0.95)),
        ] {
            let over = at(design, PAGE, 1, BYTES) / line_rate(&preset, PAGE as f64);
            t.metric(format!("{}_over_line", key(design)), over)
                .paper(claim, "7");
        }
        t
    },
    measure: |bench, t, outcome| {
        with_littles_law(bench, t, outcome, points(&Design::PAIRS, &[PAGE], &[1]))
    },
};

fn idle(design: Design, percent: u64) -> Point<Arm> {
    let arm = Arm::of(design).size(PAGE).between(MANY, 1);
    let idle_percent = percent as u32;
    Arm {
        idle_percent,
        ..arm
    }
    .at(percent)
}

/// Figure 9(b).
pub static FIG9B: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Simulated,
        ..about(
            "patterns-fig9b",
            "Figure 9(b)",
            "Bandwidth of one responder for 90 requesters of which a share waits 8 µs in place of a request.",
            "Payload of responses of 4 KiB per second from one responder thread to 90 requester threads. In 0 to 90 % of its \
             turns a requester waits for 8 µs, the time of a request elsewhere, so its mailbox is empty.",
        )
    },
    table: || {
        let mut t = rows();
        t.value("mailboxes without a request [1]", EMPTY);
        t.value("what Little's law gives [B/s]", LITTLE);
        let axes = (
            Axis::linear("turns without a request [%]"),
            Axis::linear("[B/s]"),
        );
        t.lines(
            "bandwidth.svg",
            "90 requesters, some of which wait",
            axes,
            |p| Expr::At(*p, BYTES),
        );
        let gb = |percent| Expr::At(idle(WW, percent), BYTES) / 1e9;
        t.metric("write_write_70_over_0", gb(70) / gb(0))
            .paper(Claim::About(1.0), "7: stable until 70 %");
        for (percent, stated) in [(80, 8.0), (90, 4.0)] {
            t.metric(format!("write_write_{percent}_gb_per_s"), gb(percent))
                .paper(Claim::About(stated), "7");
            let law = Expr::At(idle(WW, percent), LITTLE) / 1e9;
            t.metric(format!("littles_law_{percent}_gb_per_s"), law);
            t.metric(
                format!("write_write_{percent}_over_littles_law"),
                gb(percent) / (Expr::At(idle(WW, percent), LITTLE) / 1e9),
            );
        }
        t
    },
    measure: |bench, t, outcome| {
        let designs = [WW, WS, WW.with_flag(MailboxFlag::Dense)];
        let points = EMPTY_PERCENT
            .iter()
            .flat_map(|percent| designs.map(|design| idle(design, *percent)));
        with_littles_law(bench, t, outcome, points.collect())
    },
};

/// Figure 10.
pub static FIG10: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Simulated,
        ..about(
            "patterns-fig10",
            "Figure 10",
            "Aggregated bandwidth of 6 to 18 responders for 90 requesters behind dispatchers, by every pair of verbs.",
            "As patterns-fig8, but the ten requesters of a node hand their requests to a dispatcher; 4 and 16 KiB, beside \
             private connections.",
        )
    },
    table: || {
        let mut t = bandwidth_table("90 requesters behind dispatchers, M responders");
        for (design, claim, says) in [
            (WS, Claim::Between(1.0, 5.75), "7: up to 5 GB/s more"),
            (SS, Claim::Between(1.0, 5.75), "7: up to 5 GB/s more"),
            (SW, Claim::Below(1.0), "7: equally well"),
            (WW, Claim::Below(1.0), "7: equally well"),
        ] {
            let more = |count| {
                at(design.dispatched(), 16384, count, BYTES) - at(design, 16384, count, BYTES)
            };
            let most = Expr::Highest(RESPONDERS.map(more).to_vec()) / 1e9;
            t.metric(
                format!("{}_16k_dispatcher_minus_private_gb_per_s", key(design)),
                most,
            )
            .paper(claim, says);
            let over = at(design, PAGE, 18, BYTES) / at(design.dispatched(), PAGE, 18, BYTES);
            t.metric(
                format!("{}_4k_18_private_over_dispatcher", key(design)),
                over,
            )
            .paper(
                Claim::More(1.0),
                "7: private connections outperform up to 4 KB",
            );
        }
        t
    },
    measure: |bench, t, outcome| {
        let designs: Vec<_> = Design::PAIRS
            .iter()
            .flat_map(|design| [*design, design.dispatched()])
            .collect();
        with_littles_law(
            bench,
            t,
            outcome,
            points(&designs, &[PAGE, 16384], &RESPONDERS),
        )
    },
};

/// Table 2.
pub static TABLE2: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Simulated,
        ..about(
            "patterns-table2",
            "Table 2",
            "Requesters for each responder, and empty mailboxes, with 90 requesters and 6 to 18 responders.",
            "Mean number of requesters with a request at a responder, and the share of its 90 mailboxes without one: from the \
             rate and the latency of requests, with responses of 4 KiB by WriteWrite.",
        )
    },
    table: || {
        let mut t = rows();
        t.value("mailboxes without a request [1]", EMPTY);
        for (responders, requesters, percent) in [(6, 15.0, 83.3), (12, 7.5, 91.6), (18, 5.0, 94.4)]
        {
            let empty = || at(WW, PAGE, responders, EMPTY);
            t.metric(format!("empty_{responders}_percent"), empty() * 100.0)
                .paper(Claim::Exactly(percent), "Table 2");
            let busy = (Expr::Is(1.0) - empty()) * MANY as f64;
            t.metric(format!("requesters_each_{responders}"), busy)
                .paper(Claim::Exactly(requesters), "Table 2");
        }
        t
    },
    measure: |bench, t, outcome| measure(bench, t, outcome, points(&[WW], &[PAGE], &RESPONDERS)),
};

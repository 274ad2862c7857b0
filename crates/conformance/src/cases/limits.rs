//! Sizes outside the device's limits, objects of other devices.

use headworks_verbs::{Access, QpCaps, QpType};

use crate::call::{Call, QpPlan, Refusal};
use crate::{Bench, Case, End, Host, Options, Verdict, ensure};

pub(super) fn cases() -> Vec<Case> {
    let outcome = "one line that names it and the limit";
    vec![
        Case::new("limits::errors_name_the_limit", errors_name_the_limit)
            .row("create_cq", "CQ", "depth 0, too deep", outcome)
            .row("create_srq", "SRQ", "too deep", outcome)
            .row(
                "create_qp",
                "queue pair",
                "queues, pieces, inline payload too large",
                outcome,
            )
            .row(
                "alloc",
                "buffer",
                "0 B, odd alignment, more than there is",
                outcome,
            )
            .row("register", "region", "remote write without local", outcome),
        Case::new("limits::foreign_objects", foreign_objects).row(
            "create_qp",
            "queue pair",
            "another device's CQs",
            "belongs to another device",
        ),
    ]
}

fn names(what: &str, words: [&str; 2], made: Result<(), Refusal>) -> Verdict {
    match made {
        Ok(()) => Err(format!("{what} was made")),
        Err(Refusal { text, .. }) => {
            let one_line = !text.contains('\n');
            let said = words.iter().all(|word| text.contains(word));
            ensure!(one_line && said, "{what}: {text:?} does not say {words:?}");
            Ok(())
        }
    }
}

fn make(bench: &mut Bench<'_>, host: Host, call: Call) -> Result<(), Refusal> {
    bench.tried(host.id, call).map(drop)
}

fn errors_name_the_limit(bench: &mut Bench<'_>) -> Verdict {
    let host = bench.first()?;
    let device = host.device;
    let limits = bench.facts(host)?.limits;
    let text = |n: u32| n.to_string();
    for (depth, limit) in [(limits.max_cqe + 1, limits.max_cqe), (0, 0)] {
        let cq = bench.id();
        let call = Call::CreateCq {
            cq,
            device,
            depth,
            channel: None,
            timestamps: false,
        };
        names("CQ", ["CQ", &text(limit)], make(bench, host, call))?;
    }
    let (pd, srq) = (bench.id(), bench.id());
    bench.done(host.id, Call::AllocPd { pd, device })?;
    let call = Call::CreateSrq {
        srq,
        pd,
        max_wr: limits.max_srq_wr + 1,
        max_sge: 1,
        limit: 0,
    };
    let words = ["SRQ", &text(limits.max_srq_wr)];
    names("SRQ", words, make(bench, host, call))?;
    let base = Options::default().caps;
    let (wr, sge, inline) = (limits.max_qp_wr, limits.max_sge, limits.max_inline);
    let of = |max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline| QpCaps {
        max_send_wr,
        max_recv_wr,
        max_send_sge,
        max_recv_sge,
        max_inline,
    };
    let tries = [
        ("send queue", wr, of(wr + 1, 1, 1, 1, 0)),
        ("receive queue", wr, of(1, wr + 1, 1, 1, 0)),
        ("gather", sge, of(1, 1, sge + 1, 1, 0)),
        ("gather", sge, of(1, 1, 1, sge + 1, 0)),
        (
            "inline",
            inline,
            QpCaps {
                max_inline: inline + 1,
                ..base
            },
        ),
    ];
    for (word, limit, caps) in tries {
        let options = Options {
            caps,
            ..Options::default()
        };
        let made = bench.try_side(host, pd, None, &options).map(drop);
        names("queue pair", [word, &text(limit)], made)?;
    }
    for (len, align, words) in [
        (0, 64, ["buffer", "0"]),
        (8, 3, ["alignment", "3"]),
        (1 << 46, 64, ["bytes", "enough"]),
    ] {
        let buffer = bench.id();
        let call = Call::Alloc {
            buffer,
            device,
            len,
            align,
        };
        names("buffer", words, make(bench, host, call))?;
    }
    let (buffer, region) = (bench.id(), bench.id());
    let (len, align) = (64, 64);
    let call = Call::Alloc {
        buffer,
        device,
        len,
        align,
    };
    bench.done(host.id, call)?;
    let call = Call::Register {
        region,
        pd,
        buffer,
        access: Access::REMOTE_WRITE,
    };
    let words = ["local write", "remote"];
    names("region", words, make(bench, host, call))
}

/// Objects of a device and of the same one, opened once more.
fn foreign_objects(bench: &mut Bench<'_>) -> Verdict {
    let host = bench.first()?;
    let device = bench.id();
    let end = End::First;
    bench.done(host.id, Call::Open { device, end })?;
    let foreign = Host { device, ..host };
    let ours = bench.side(host, &Options::default())?;
    let theirs = bench.side(foreign, &Options::default())?;
    let call = Call::CreateQp(QpPlan {
        qp: bench.id(),
        pd: ours.pd,
        qp_type: QpType::Rc,
        send_cq: theirs.send_cq,
        recv_cq: theirs.recv_cq,
        srq: None,
        caps: Options::default().caps,
        signal_all: false,
    });
    let words = ["queue", "another device"];
    names("queue pair", words, make(bench, host, call))
}

//! Sizes outside the device's limits, objects of other devices.

use headworks_verbs::{Access, AllocRequest, CqInit, QpCaps, SrqInit};

use crate::bench::line;
use crate::{Bench, Options, Side, Verdict, ensure};

fn names<T>(what: &str, words: [&str; 2], made: Result<T, String>) -> Verdict {
    match made {
        Ok(_) => Err(format!("{what} was made")),
        Err(text) => {
            let one_line = !text.contains('\n');
            let said = words.iter().all(|word| text.contains(word));
            ensure!(one_line && said, "{what}: {text:?} does not say {words:?}");
            Ok(())
        }
    }
}

pub(super) fn errors_name_the_limit(bench: &Bench) -> Verdict {
    let device = &bench.a;
    let limits = device.info().limits;
    let text = |n: u32| n.to_string();
    let cq = |depth| {
        device
            .create_cq(&CqInit {
                depth,
                ..CqInit::default()
            })
            .map_err(line)
    };
    names("CQ", ["CQ", &text(limits.max_cqe)], cq(limits.max_cqe + 1))?;
    names("CQ", ["CQ", "0"], cq(0))?;
    let pd = device.alloc_pd().map_err(line)?;
    let srq = |max_wr| {
        let init = SrqInit {
            max_wr,
            max_sge: 1,
            limit: 0,
        };
        pd.create_srq(&init).map_err(line)
    };
    names(
        "SRQ",
        ["SRQ", &text(limits.max_srq_wr)],
        srq(limits.max_srq_wr + 1),
    )?;
    let base = Options::default().caps;
    let tries = [
        (
            "send queue",
            limits.max_qp_wr,
            QpCaps {
                max_send_wr: limits.max_qp_wr + 1,
                ..base
            },
        ),
        (
            "receive queue",
            limits.max_qp_wr,
            QpCaps {
                max_recv_wr: limits.max_qp_wr + 1,
                ..base
            },
        ),
        (
            "gather",
            limits.max_sge,
            QpCaps {
                max_send_sge: limits.max_sge + 1,
                ..base
            },
        ),
        (
            "gather",
            limits.max_sge,
            QpCaps {
                max_recv_sge: limits.max_sge + 1,
                ..base
            },
        ),
        (
            "inline",
            limits.max_inline,
            QpCaps {
                max_inline: limits.max_inline + 1,
                ..base
            },
        ),
    ];
    for (word, limit, caps) in tries {
        let options = Options {
            caps,
            ..Options::default()
        };
        names(
            "queue pair",
            [word, &text(limit)],
            Side::new(device, &options),
        )?;
    }
    let alloc = |request| device.alloc(&request).map_err(line);
    names("buffer", ["buffer", "0"], alloc(AllocRequest::of(0)))?;
    let skewed = AllocRequest {
        align: 3,
        ..AllocRequest::of(8)
    };
    names("buffer", ["alignment", "3"], alloc(skewed))?;
    let huge = AllocRequest::of(1 << 46);
    names("buffer", ["bytes", "enough"], alloc(huge))?;
    let buffer = device.alloc(&AllocRequest::of(64)).map_err(line)?;
    let inconsistent = pd.register(&buffer, Access::REMOTE_WRITE).map_err(line);
    names("region", ["local write", "remote"], inconsistent)
}

pub(super) fn foreign_objects(bench: &Bench) -> Verdict {
    if std::ptr::addr_eq(
        std::sync::Arc::as_ptr(&bench.a),
        std::sync::Arc::as_ptr(&bench.b),
    ) {
        return Ok(());
    }
    let pd = bench.a.alloc_pd().map_err(line)?;
    let buffer = bench.b.alloc(&AllocRequest::of(64)).map_err(line)?;
    let region = pd.register(&buffer, Access::ALL).map_err(line);
    names("region", ["buffer", "another device"], region)?;
    let channel = bench.b.create_channel().map_err(line)?;
    let _ = channel;
    let other = Side::new(&bench.b, &Options::default())?;
    let init = headworks_verbs::QpInit {
        qp_type: headworks_verbs::QpType::Rc,
        send_cq: other.send_cq.clone(),
        recv_cq: other.recv_cq.clone(),
        srq: None,
        caps: Options::default().caps,
        signal_all: false,
    };
    let qp = pd.create_qp(&init).map_err(line);
    names("queue pair", ["queue", "another device"], qp)
}

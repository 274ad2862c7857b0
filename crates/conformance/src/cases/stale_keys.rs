//! Stale keys and destroyed queue pairs: requests that must not be executed.

use std::collections::BTreeSet;

use headworks_verbs::{Access, Status};

use crate::call::{Call, Op, Reply};
use crate::{Case, CaseContext, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("stale_keys::dropped_region", dropped_region).row(
            "deregister",
            "a region in use",
            "-",
            "later WRITEs end with RemoteAccess",
        ),
        Case::new("stale_keys::keys_are_not_reused", keys_are_not_reused).row(
            "register",
            "1,000 times",
            "-",
            "no key is reused",
        ),
        Case::new("stale_keys::late_requests_miss", late_requests_miss).row(
            "destroy_qp",
            "the peer's queue pair, then a new one is created",
            "-",
            "RetryExceeded; nothing written; the new queue pair is undisturbed",
        ),
    ]
}

fn dropped_region(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair()?;
    let (buffer, region) = (cx.new_id(), cx.new_id());
    let calls = vec![
        Call::Alloc {
            buffer,
            device: b.host.device,
            len: 4096,
            align: 64,
        },
        Call::Register {
            region,
            pd: b.pd,
            buffer,
            access: Access::ALL,
        },
    ];
    cx.call_ok(b.host.id, Call::Each(calls))?;
    let there = Op::Write(b.region_at(region, 0));
    cx.post(a, 1, there, &[a.sge(0, 8)])?;
    cx.expect_sent(a, 1, Status::Success)?;
    cx.destroy(b.host, region)?;
    cx.post(a, 2, there, &[a.sge(0, 8)])?;
    cx.expect_sent(a, 2, Status::RemoteAccess)?;
    Ok(())
}

fn keys_are_not_reused(cx: &mut CaseContext<'_>) -> Verdict {
    let host = cx.first_host()?;
    let side = cx.new_qp(host, &QpOptions::default())?;
    let mut seen = BTreeSet::new();
    for round in 0..20 {
        let mut calls = Vec::new();
        for _ in 0..50 {
            let region = cx.new_id();
            calls.push(Call::Register {
                region,
                pd: side.pd,
                buffer: side.buffer,
                access: Access::ALL,
            });
            calls.push(Call::Destroy { object: region });
        }
        let Reply::Each(replies) = cx.call_ok(host.id, Call::Each(calls))? else {
            return Err("unexpected reply".to_owned());
        };
        for reply in replies {
            if let Reply::Keys { rkey, .. } = reply {
                ensure!(
                    seen.insert(rkey),
                    "key {rkey:#x} came back in round {round}"
                );
            }
        }
    }
    ensure_eq!(seen.len(), 1000, "keys");
    Ok(())
}

/// The peer's queue pair was destroyed, and another took its place.
fn late_requests_miss(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair()?;
    cx.post(a, 1, Op::Write(b.at(0)), &[a.sge(0, 8)])?;
    cx.expect_sent(a, 1, Status::Success)?;
    cx.destroy(b.host, b.qp)?;
    let (_, other) = cx.connected_pair()?;
    cx.write_buffer(a, 0, &[9; 8])?;
    cx.write_buffer(b, 0, &[3; 8])?;
    cx.post(a, 2, Op::Write(b.at(0)), &[a.sge(0, 8)])?;
    cx.expect_sent(a, 2, Status::RetryExceeded)?;
    ensure_eq!(
        cx.read_buffer(b, 0, 8)?,
        vec![3; 8],
        "written through a dead queue pair"
    );
    cx.expect_none(other.host, other.send_cq, "elsewhere")
}

//! Sizes beyond the device's limits, more objects than the device has, objects of other devices.

use headworks_verbs::{Access, QpCaps, QpType};

use crate::call::{Call, Id, Port, QpCreateCall, Refusal, Reply};
use crate::{Case, CaseContext, Host, HostRole, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    let limit = "Limit, with a one-line message that states the limit";
    let mut cases = vec![
        Case::new("limits::errors_name_the_limit", errors_name_the_limit)
            .row("create_cq", "CQ", "depth 0, too deep", limit)
            .row(
                "create_srq",
                "SRQ",
                "too deep, too many SGEs, limit above the size",
                limit,
            )
            .row(
                "create_qp",
                "queue pair",
                "queue depth, number of SGEs or inline payload too large",
                limit,
            )
            .row("alloc", "buffer", "0 B, odd alignment", limit)
            .row("alloc", "buffer", "larger than available memory", "NoSpace")
            .row(
                "register",
                "region",
                "remote write without local write",
                "Access",
            ),
        Case::new("limits::foreign_objects", foreign_objects)
            .row(
                "create_qp",
                "queue pair",
                "another device's CQs, SRQ",
                "Foreign",
            )
            .row("create_cq", "CQ", "another device's channel", "Foreign"),
    ];
    for kind in KINDS {
        let name = format!("limits::exhausted_{}", kind.name());
        let run = move |cx: &mut CaseContext<'_>| exhausted(cx, kind);
        cases.push(Case::new(name, run).row(
            kind.verb(),
            kind.name(),
            "one more than the device supports",
            "Exhausted, with a one-line message that states the limit; one more after another is destroyed",
        ));
    }
    cases
}

/// Checks that a call was refused with an error of `kind`, in one line that contains `number`.
fn refused(what: &str, made: Result<(), Refusal>, kind: &str, number: Option<u32>) -> Verdict {
    let Err(refusal) = made else {
        return Err(format!("{what} was made"));
    };
    ensure_eq!(refusal.kind, kind, format!("{what}: {}", refusal.text));
    let number = number.map(|number| number.to_string());
    let says = number.is_none_or(|number| refusal.text.contains(&number));
    ensure!(
        says && !refusal.text.contains('\n'),
        "{what}: {:?} does not say the limit in one line",
        refusal.text
    );
    Ok(())
}

fn make(cx: &mut CaseContext<'_>, host: Host, call: Call) -> Result<(), Refusal> {
    cx.try_call(host.id, call).map(drop)
}

fn errors_name_the_limit(cx: &mut CaseContext<'_>) -> Verdict {
    let host = cx.first_host()?;
    cqs_and_srqs(cx, host)?;
    queue_pairs(cx, host)?;
    memory(cx, host)
}

/// Returns a number above the limit, if there is one.
fn above(limit: u32) -> impl Iterator<Item = u32> {
    limit.checked_add(1).into_iter()
}

fn cqs_and_srqs(cx: &mut CaseContext<'_>, host: Host) -> Verdict {
    let device = host.device;
    let limits = cx.facts(host)?.limits;
    let depths = above(limits.max_cqe).map(|depth| (depth, Some(limits.max_cqe)));
    for (depth, limit) in depths.chain([(0, None)]) {
        let call = Call::CreateCq {
            cq: cx.new_id(),
            device,
            depth,
            channel: None,
            timestamps: false,
        };
        refused("a CQ", make(cx, host, call), "Limit", limit)?;
    }
    let pd = cx.new_pd(host)?;
    let (wr, sge) = (limits.max_srq_wr, limits.max_sge);
    let deep = above(wr).map(|max_wr| ((max_wr, 1, 0), wr));
    let wide = above(sge).map(|max_sge| ((1, max_sge, 0), sge));
    for ((max_wr, max_sge, limit), highest) in deep.chain(wide).chain([((4, 1, 5), 4)]) {
        let call = Call::CreateSrq {
            srq: cx.new_id(),
            pd,
            max_wr,
            max_sge,
            limit,
        };
        refused("an SRQ", make(cx, host, call), "Limit", Some(highest))?;
    }
    Ok(())
}

fn queue_pairs(cx: &mut CaseContext<'_>, host: Host) -> Verdict {
    let limits = cx.facts(host)?.limits;
    let pd = cx.new_pd(host)?;
    let base = QpCaps {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
    };
    let (wr, sge, inline) = (limits.max_qp_wr, limits.max_sge, limits.max_inline);
    type Field = fn(&mut QpCaps) -> &mut u32;
    let set: [(u32, Field); 5] = [
        (wr, |caps| &mut caps.max_send_wr),
        (wr, |caps| &mut caps.max_recv_wr),
        (sge, |caps| &mut caps.max_send_sge),
        (sge, |caps| &mut caps.max_recv_sge),
        (inline, |caps| &mut caps.max_inline),
    ];
    for (limit, field) in set {
        for more in above(limit) {
            let mut caps = base;
            *field(&mut caps) = more;
            let options = QpOptions {
                caps,
                ..QpOptions::default()
            };
            let made = cx.try_new_qp(host, pd, None, &options).map(drop);
            refused("a queue pair", made, "Limit", Some(limit))?;
        }
    }
    Ok(())
}

fn memory(cx: &mut CaseContext<'_>, host: Host) -> Verdict {
    let device = host.device;
    for (len, align, kind) in [
        (0, 64, "Limit"),
        (8, 3, "Limit"),
        // More than any machine has.
        (1 << 46, 64, "NoSpace"),
    ] {
        let call = Call::Alloc {
            buffer: cx.new_id(),
            device,
            len,
            align,
        };
        refused("a buffer", make(cx, host, call), kind, None)?;
    }
    let side = cx.new_qp(host, &QpOptions::default())?;
    let call = Call::Register {
        region: cx.new_id(),
        pd: side.pd,
        buffer: side.buffer,
        access: Access::REMOTE_WRITE,
    };
    refused("a region", make(cx, host, call), "Access", None)
}

/// Uses objects of a device with those of a second opening of it.
fn foreign_objects(cx: &mut CaseContext<'_>) -> Verdict {
    let host = cx.first_host()?;
    let device = cx.new_id();
    let end = HostRole::First;
    cx.call_ok(host.id, Call::Open { device, end })?;
    let foreign = Host { device, ..host };
    let ours = cx.new_qp(host, &QpOptions::default())?;
    let theirs = cx.new_qp(foreign, &QpOptions::default())?;
    let (_, srq) = super::shared_receives::srq(cx, foreign, 4, 0)?;
    for (cqs, srq) in [(theirs, None), (ours, Some(srq))] {
        let call = Call::CreateQp(QpCreateCall {
            qp: cx.new_id(),
            pd: ours.pd,
            qp_type: QpType::Rc,
            send_cq: cqs.send_cq,
            recv_cq: cqs.recv_cq,
            srq,
            caps: QpOptions::default().caps,
            signal_all: false,
        });
        refused("a queue pair", make(cx, host, call), "Foreign", None)?;
    }
    let call = Call::CreateCq {
        cq: cx.new_id(),
        device: host.device,
        depth: 4,
        channel: Some(theirs.channel),
        timestamps: false,
    };
    refused("a CQ", make(cx, host, call), "Foreign", None)
}

/// Kind of object of which a device has a limited number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectKind {
    Qp,
    Cq,
    Srq,
    Region,
    Handle,
}

const KINDS: [ObjectKind; 5] = [
    ObjectKind::Qp,
    ObjectKind::Cq,
    ObjectKind::Srq,
    ObjectKind::Region,
    ObjectKind::Handle,
];

/// Number of objects created by one call.
const AT_ONCE: u32 = 1024;

impl ObjectKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Qp => "queue_pairs",
            Self::Cq => "cqs",
            Self::Srq => "srqs",
            Self::Region => "regions",
            Self::Handle => "address_handles",
        }
    }

    const fn verb(self) -> &'static str {
        match self {
            Self::Qp => "create_qp",
            Self::Cq => "create_cq",
            Self::Srq => "create_srq",
            Self::Region => "register",
            Self::Handle => "create_ah",
        }
    }

    fn limit(self, cx: &CaseContext<'_>, host: Host) -> Result<u32, String> {
        let limits = cx.facts(host)?.limits;
        Ok(match self {
            Self::Qp => limits.max_qp,
            Self::Cq => limits.max_cq,
            Self::Srq => limits.max_srq,
            Self::Region => limits.max_mr,
            Self::Handle => limits.max_ah,
        })
    }

    fn create(self, side: crate::QpFixture, id: Id) -> Call {
        let pd = side.pd;
        match self {
            Self::Qp => Call::CreateQp(QpCreateCall {
                qp: id,
                pd,
                qp_type: QpType::Rc,
                send_cq: side.send_cq,
                recv_cq: side.recv_cq,
                srq: None,
                caps: QpCaps {
                    max_send_wr: 1,
                    max_recv_wr: 1,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline: 0,
                },
                signal_all: false,
            }),
            Self::Cq => Call::CreateCq {
                cq: id,
                device: side.host.device,
                depth: 1,
                channel: None,
                timestamps: false,
            },
            Self::Srq => Call::CreateSrq {
                srq: id,
                pd,
                max_wr: 1,
                max_sge: 1,
                limit: 0,
            },
            Self::Region => Call::Register {
                region: id,
                pd,
                buffer: side.buffer,
                access: Access::ALL,
            },
            Self::Handle => Call::CreateAh {
                ah: id,
                pd,
                to: Port::Of { host: side.host.id },
            },
        }
    }
}

fn exhausted(cx: &mut CaseContext<'_>, kind: ObjectKind) -> Verdict {
    let host = cx.first_host()?;
    let limit = kind.limit(cx, host)?;
    if limit > cx.behaviour().objects_max {
        return cx.skip(format!("{limit} {} are too many to make here", kind.name()));
    }
    let side = cx.new_qp(host, &QpOptions::default())?;
    let mut made: Vec<Id> = Vec::new();
    let refusal = loop {
        let ids: Vec<Id> = (0..AT_ONCE).map(|_| cx.new_id()).collect();
        let calls = ids.iter().map(|id| kind.create(side, *id)).collect();
        // The objects before the refused one were created.
        let Reply::Each(mut replies) = cx.call(host.id, Call::Each(calls)) else {
            return Err("unexpected reply".to_owned());
        };
        let last = replies.pop();
        made.extend(&ids[..replies.len()]);
        match last {
            Some(Reply::No(refusal)) => break refusal,
            _ => made.push(ids[replies.len()]),
        }
        ensure!(made.len() <= limit as usize, "more than {limit} were made");
    };
    ensure!(made.len() <= limit as usize, "{} were made", made.len());
    refused("one more", Err(refusal), "Exhausted", Some(limit))?;
    let spare = made.pop().ok_or("not even one was made")?;
    cx.destroy(host, spare)?;
    let another = cx.new_id();
    cx.call_ok(host.id, kind.create(side, another))?;
    made.push(another);
    for some in made.chunks(AT_ONCE as usize) {
        let destroy = |object: &Id| Call::Destroy { object: *object };
        let calls = some.iter().map(destroy).collect();
        cx.call_ok(host.id, Call::Each(calls))?;
    }
    Ok(())
}

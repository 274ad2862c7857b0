//! Tests of the provider on a stub of libibverbs.

use std::sync::Arc;

use headworks_verbs::{
    Access, CompletionQueue, CqInit, Device, Gid, Mtu, ProtectionDomain, Provider, Psn, QpAttr,
    QpCaps, QpInit, QpState, QpType, Qpn, QueuePair, RnrTimer,
};

use crate::IbvProvider;

mod allocations;
mod drivers;
mod infiniband;
mod inline_limit;
mod meeting;
mod objects;
mod polling;
mod posting;
mod stub;

use stub::Shared;

/// A device of the stub, with a protection domain and a CQ.
struct Bench {
    stub: Shared,
    device: Arc<dyn Device>,
    pd: Arc<dyn ProtectionDomain>,
    cq: Arc<dyn CompletionQueue>,
}

impl Bench {
    fn new() -> Self {
        Self::with("", |_| {})
    }

    /// Opens the device with these options; `prepare` sets up the stub before.
    fn with(options: &str, prepare: impl FnOnce(&mut stub::State)) -> Self {
        let stub = stub::plug_in("stub0");
        prepare(&mut stub.lock().unwrap());
        let name = format!("ibv:stub0{options}").parse().unwrap();
        let device = IbvProvider::with(stub::api()).open(&name).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(&CqInit {
            depth: 100,
            ..CqInit::default()
        });
        let cq = cq.unwrap();
        {
            let mut stub = stub.lock().unwrap();
            stub.log.clear();
            stub.registered.clear();
        }
        Self {
            stub,
            device,
            pd,
            cq,
        }
    }

    fn init(&self, qp_type: QpType) -> QpInit {
        QpInit {
            qp_type,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: None,
            caps: QpCaps {
                max_send_sge: 3,
                max_recv_sge: 2,
                ..QpCaps::default()
            },
            signal_all: false,
        }
    }

    /// Creates a queue pair in RTS.
    fn ready(&self, qp_type: QpType) -> Box<dyn QueuePair> {
        let mut qp = self.pd.create_qp(&self.init(qp_type)).unwrap();
        ready(&mut *qp, qp_type);
        qp
    }
}

/// Repeats `is_so` until it holds, for conditions that are checked only now and then. The limit makes a hang
/// fail.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed().as_secs() < 60, "{what} does not come");
        std::thread::yield_now();
    }
}

/// The attributes that lead a connection from RESET to RTS.
fn steps() -> [QpAttr; 3] {
    [
        QpAttr {
            access: Some(Access::ALL),
            ..QpAttr::to_state(QpState::Init)
        },
        QpAttr {
            dest_gid: Some(Gid([1; 16])),
            dest_qpn: Qpn::new(9),
            rq_psn: Some(Psn::truncated(1)),
            path_mtu: Some(Mtu::B1024),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(RnrTimer::default()),
            ..QpAttr::to_state(QpState::Rtr)
        },
        QpAttr {
            sq_psn: Some(Psn::truncated(1)),
            timeout: Some(14),
            retry_count: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..QpAttr::to_state(QpState::Rts)
        },
    ]
}

/// Moves a queue pair from RESET to RTS.
fn ready(qp: &mut dyn QueuePair, qp_type: QpType) {
    if qp_type == QpType::Ud {
        headworks_verbs::bringup::bring_up_ud(qp, 7, 1).unwrap();
        return;
    }
    for step in steps() {
        qp.modify(&step).unwrap();
    }
}

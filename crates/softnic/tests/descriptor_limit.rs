//! A process that may open no further descriptor. Alone in its file, because the limit is per process.

use std::sync::Arc;

use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::{
    Access, CqInit, Device, ModifyError, Mtu, Provider, Psn, QpAttr, QpCaps, QpInit, QpState,
    QpType, QueuePair, RnrTimer,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn queue_pair(device: &Arc<dyn Device>) -> Box<dyn QueuePair> {
    let init = CqInit {
        depth: 4,
        channel: None,
        timestamps: false,
    };
    let cq = device.create_cq(&init).expect("CQ");
    let init = QpInit {
        qp_type: QpType::Rc,
        send_cq: Arc::clone(&cq),
        recv_cq: cq,
        srq: None,
        caps: QpCaps::default(),
        signal_all: false,
    };
    let domain = device.alloc_pd().expect("domain");
    domain.create_qp(&init).expect("queue pair")
}

#[test]
fn a_peer_that_no_descriptor_is_left_for_refuses_the_connection() {
    let folder = tempfile::tempdir().expect("folder");
    let provider =
        SoftProvider::on(Registry::open_at(folder.path().join("fabric")).expect("fabric"));
    let [here, there] = ["soft:h1", "soft:h2"].map(|name| {
        let name = name.parse().expect("name");
        provider.open(&name).expect("opens")
    });
    let (mut ours, theirs) = (queue_pair(&here), queue_pair(&there));
    let to_init = QpAttr {
        access: Some(Access::ALL),
        ..QpAttr::to_state(QpState::Init)
    };
    ours.modify(&to_init).expect("INIT");
    let to_rtr = QpAttr {
        dest_gid: Some(there.info().gid),
        dest_qpn: Some(theirs.qpn()),
        rq_psn: Some(Psn::truncated(1)),
        path_mtu: Some(Mtu::B4096),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(RnrTimer::default()),
        ..QpAttr::to_state(QpState::Rtr)
    };
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(3),
        ..before
    };
    setrlimit(Resource::Nofile, none).expect("limit");
    let refused = ours.modify(&to_rtr);
    setrlimit(Resource::Nofile, before).expect("limit");
    let refused = refused.expect_err("refused");
    let is_said = matches!(refused, ModifyError::PeerUnreachable { .. });
    assert!(is_said, "{refused}");
    assert_eq!(ours.state(), QpState::Init);
    ours.modify(&to_rtr).expect("now it can");
    // Devices are dropped last.
    drop((ours, theirs));
    drop((here, there));
}

//! A process that may start no further thread. Alone in its file, because the limit is per process.

use std::sync::Arc;

use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::{CqInit, Provider, QpCaps, QpInit, QpType, ResourceError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_progress_thread_that_cannot_start_refuses_the_queue_pair() {
    let folder = tempfile::tempdir().expect("folder");
    let provider =
        SoftProvider::on(Registry::open_at(folder.path().join("fabric")).expect("fabric"));
    let device = provider
        .open(&"soft".parse().expect("name"))
        .expect("opens");
    let pd = device.alloc_pd().expect("domain");
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
    // Without address space there is no stack for another thread.
    let before = getrlimit(Resource::As);
    let none = Rlimit {
        current: Some(0),
        ..before
    };
    setrlimit(Resource::As, none).expect("limit");
    let refused = pd.create_qp(&init).err();
    setrlimit(Resource::As, before).expect("limit");
    let refused = refused.expect("refused");
    let is_said = matches!(&refused, ResourceError::System { what, .. } if what.contains("thread"));
    assert!(is_said, "{refused}");
    pd.create_qp(&init).expect("now it can");
}

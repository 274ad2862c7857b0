//! An interposed device accepts and refuses what every device does.

use std::sync::Arc;

use headworks_simnic::SimProvider;
use headworks_verbs::interpose::{InterposedDevice, Interposer};
use headworks_verbs::{
    CompletionQueue, CqInit, Device, Provider, QpCaps, QpInit, QpType, ResourceError,
};

struct Unwatched;

impl Interposer for Unwatched {}

/// Opens a device on a network of its own, and wraps it in an interposed one.
fn device() -> (Arc<dyn Device>, Arc<dyn Device>) {
    let name = "sim:cx5-100g,host=a".parse().expect("a name");
    let inner = SimProvider::new().open(&name).expect("opens");
    let outer = Arc::new(InterposedDevice::new(inner.clone(), Arc::new(Unwatched)));
    (inner, outer)
}

fn queue(device: &Arc<dyn Device>) -> Arc<dyn CompletionQueue> {
    let init = CqInit {
        depth: 16,
        channel: None,
        timestamps: false,
    };
    device.create_cq(&init).expect("a queue")
}

/// Whether a queue pair can be made on a device with these queues.
fn takes(
    device: &Arc<dyn Device>,
    send_cq: &Arc<dyn CompletionQueue>,
    recv_cq: &Arc<dyn CompletionQueue>,
) -> bool {
    let caps = QpCaps {
        max_send_wr: 8,
        max_recv_wr: 8,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
    };
    let made = device.alloc_pd().expect("a domain").create_qp(&QpInit {
        qp_type: QpType::Rc,
        send_cq: send_cq.clone(),
        recv_cq: recv_cq.clone(),
        srq: None,
        caps,
        signal_all: true,
    });
    match made {
        Ok(_) => true,
        Err(ResourceError::Foreign(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn completion_queues_of_other_devices_are_refused_whatever_their_number() {
    let ((inner, one), (_, two)) = (device(), device());
    let [own, other, bare] = [&one, &two, &inner].map(queue);
    assert_eq!(own.id(), other.id());
    assert!(takes(&one, &own, &own));
    // A second queue of its own is accepted.
    assert!(takes(&one, &own, &queue(&one)));
    for (send, receive) in [(&other, &own), (&own, &other), (&bare, &own)] {
        assert!(!takes(&one, send, receive));
    }
    assert!(!takes(&inner, &own, &bare) && takes(&inner, &bare, &bare));
    // The next queue gets the same number, and foreign queues are still refused.
    drop(own);
    let next = queue(&one);
    assert!(takes(&one, &next, &next) && !takes(&one, &other, &next));
}

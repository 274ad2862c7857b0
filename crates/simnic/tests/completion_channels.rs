//! Events of completion channels.

use std::sync::Arc;

use headworks_simnic::SimProvider;
use headworks_verbs::{
    Completion, CompletionChannel, CompletionQueue, CqInit, Device, Duration, Provider, QpAttr,
    QpCaps, QpInit, QpState, QpType, QueuePair, RecvWr,
};

/// A completion queue, its channel, and a queue pair that completes there.
struct ChannelSetup {
    qp: Box<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    channel: Arc<dyn CompletionChannel>,
}

impl ChannelSetup {
    fn new(device: &Arc<dyn Device>) -> Self {
        let channel = device.create_channel().expect("a channel");
        let cq = device.create_cq(&CqInit {
            depth: 16,
            channel: Some(channel.clone()),
            timestamps: false,
        });
        let cq = cq.expect("a queue");
        let qp = device.alloc_pd().expect("a domain").create_qp(&QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps: QpCaps {
                max_send_wr: 8,
                max_recv_wr: 8,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signal_all: true,
        });
        let qp = qp.expect("a queue pair");
        Self { qp, cq, channel }
    }

    /// Posts a receive to a queue pair in the error state, which flushes the receive. The channel gets its event
    /// a moment later.
    fn complete_a_receive(&mut self) {
        let error = QpAttr {
            state: Some(QpState::Error),
            ..QpAttr::default()
        };
        self.qp.modify(&error).expect("fails");
        self.cq.arm(false);
        let receive = RecvWr {
            wr_id: 1,
            sges: &[],
        };
        self.qp.post_recv(&[receive]).expect("posts");
    }

    fn has_event(&self) -> bool {
        let event = self.channel.next_event().expect("no error");
        event.inspect(|id| assert_eq!(*id, self.cq.id())).is_some()
    }
}

#[test]
fn an_event_of_a_destroyed_queue_reaches_no_successor() {
    let provider = SimProvider::new();
    let name = "sim:cx5-100g,host=a".parse().expect("a name");
    let device = provider.open(&name).expect("opens");
    let mut first = ChannelSetup::new(&device);
    first.complete_a_receive();
    provider.advance(Duration::from_micros(1));
    assert!(first.has_event());
    first
        .cq
        .poll(&mut [Completion::default(); 4])
        .expect("polls");
    first.cq.arm(false);
    first
        .qp
        .post_recv(&[RecvWr {
            wr_id: 2,
            sges: &[],
        }])
        .expect("posts");
    let id = first.cq.id();
    drop(first);
    let mut next = ChannelSetup::new(&device);
    assert_eq!(next.cq.id(), id);
    provider.advance(Duration::from_micros(1));
    assert!(!next.has_event(), "an event of the first queue");
    next.complete_a_receive();
    provider.advance(Duration::from_micros(1));
    assert!(next.has_event());
}

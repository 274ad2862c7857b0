//! Depth of a completion queue, and completions that are discarded.

use std::sync::Arc;

use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{
    BringUp, Completion, CompletionQueue, CqInit, Device, Payload, PollError, Provider, QpCaps,
    QpInit, QpType, QueuePair, RecvWr, SendFlags, SendOp, SendWr,
};

/// A device with one completion queue of 64 entries, and pairs of queue pairs on it.
struct OneQueue {
    device: Arc<dyn Device>,
    cq: Arc<dyn CompletionQueue>,
    _folder: tempfile::TempDir,
}

type Pair = [Box<dyn QueuePair>; 2];

impl OneQueue {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open_at(folder.path().join("fabric")).unwrap();
        let device = SoftProvider::on(registry).open(&"soft:h1".parse().unwrap());
        let device = device.unwrap();
        let cq = device.create_cq(&CqInit {
            depth: 64,
            ..CqInit::default()
        });
        Self {
            device,
            cq: cq.unwrap(),
            _folder: folder,
        }
    }

    fn pair(&self) -> Pair {
        let pd = self.device.alloc_pd().unwrap();
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: None,
            caps: QpCaps::default(),
            signal_all: true,
        };
        let [mut a, mut b] = [(); 2].map(|()| pd.create_qp(&init).unwrap());
        let start = |qp: &mut dyn QueuePair, psn| {
            let params = ConnectionParams::default();
            BringUp::start(self.device.info(), qp, params, psn, Vec::new()).unwrap()
        };
        let (mut up, mut down) = (start(&mut *a, 1), start(&mut *b, 2));
        up.connect_both(&mut *a, &mut down, &mut *b).unwrap();
        [a, b]
    }

    fn poll(&self) -> Result<Vec<Completion>, PollError> {
        let mut out = [Completion::default(); 128];
        self.cq.poll(&mut out).map(|count| out[..count].to_vec())
    }
}

/// Sends an empty message from one queue pair of the pair to the other.
fn send([from, to]: &mut Pair, wr_id: u64) {
    let receive = RecvWr {
        wr_id: 100 + wr_id,
        sges: &[],
    };
    to.post_recv(&[receive]).unwrap();
    let wr = SendWr {
        wr_id,
        op: SendOp::Send,
        payload: Payload::Inline(&[]),
        flags: SendFlags::default(),
    };
    from.post_send(&[wr]).unwrap();
}

#[test]
fn only_the_selected_completions_are_discarded() {
    let one = OneQueue::new();
    let [mut gone, mut stays] = [one.pair(), one.pair()];
    for wr_id in 0..5 {
        send(&mut gone, wr_id);
        send(&mut stays, wr_id);
    }
    let numbers = |pair: &Pair| [pair[0].qpn(), pair[1].qpn()];
    let lost = numbers(&gone);
    one.cq.discard(&|done| lost.contains(&done.qpn));
    let unpolled = one.cq.counters().map(|counters| counters.unpolled);
    assert_eq!(unpolled, Some(10));
    // Later completions come behind those that were kept.
    send(&mut stays, 5);
    let left = one.poll().unwrap();
    let [sender, receiver] = numbers(&stays);
    for (qpn, first) in [(sender, 0), (receiver, 100)] {
        let of_qp = left.iter().filter(|done| done.qpn == qpn);
        let ids: Vec<_> = of_qp.map(|done| done.wr_id).collect();
        assert_eq!(ids, (first..first + 6).collect::<Vec<_>>());
    }
    assert_eq!((left.len(), one.poll()), (12, Ok(Vec::new())));
}

#[test]
fn a_smaller_queue_overruns_earlier_and_can_be_enlarged_again() {
    let one = OneQueue::new();
    one.cq.resize(7).unwrap();
    assert_eq!(one.cq.depth(), 8);
    assert!(one.cq.resize(65).is_err() && one.cq.resize(0).is_err());
    let mut pair = one.pair();
    for wr_id in 0..8 {
        send(&mut pair, wr_id);
    }
    // Sixteen wait: eight of sends and eight of receives, which have a place each of this depth.
    assert!(one.cq.resize(4).is_err());
    one.cq.resize(64).unwrap();
    assert_eq!(one.cq.depth(), 64);
    send(&mut pair, 8);
    assert_eq!(one.poll().map(|all| all.len()), Ok(18));

    one.cq.resize(2).unwrap();
    for wr_id in 0..3 {
        send(&mut pair, wr_id);
    }
    let mut polls = std::iter::repeat_with(|| one.poll());
    let end = polls.find(|found| !matches!(found, Ok(some) if !some.is_empty()));
    assert_eq!(end, Some(Err(PollError::Overrun)));
}

//! Datagrams of a hostile device: they are refused, delayed, and lost if a rule says so, but never reordered.

use std::sync::Arc;

use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_softnic::hostile::Rules;
use headworks_softnic::hostile::rules::losses;
use headworks_verbs::bringup::bring_up_ud;
use headworks_verbs::{
    Access, AhInit, AllocRequest, Completion, CompletionQueue, CqInit, Destination, GRH_BYTES,
    Payload, PostErrorKind, Provider, QpCaps, QpInit, QpType, RecvWr, Region, SendFlags, SendOp,
    SendWr, Status,
};

use crate::pair::until;

const QKEY: u32 = 0x55;
const COUNT: u64 = 300;
const SLOT: usize = GRH_BYTES + 8;

/// Sends numbered datagrams, with one receive for each. Returns the numbers that arrived, in order.
fn arrived(rules: Rules) -> Vec<u64> {
    let folder = tempfile::tempdir().unwrap();
    let fabric = Registry::open_at(folder.path().join("fabric")).unwrap();
    let plain = SoftProvider::on(fabric.clone());
    let hostile = SoftProvider::on(fabric).with_rules(rules);
    let open = |provider: &SoftProvider, name: &str| provider.open(&name.parse().unwrap()).unwrap();
    let devices = [open(&hostile, "soft:h1,hostile"), open(&plain, "soft:h2")];
    let pds = [0, 1].map(|at: usize| devices[at].alloc_pd().unwrap());
    let make = |at: usize| {
        let cq: Arc<dyn CompletionQueue> = devices[at]
            .create_cq(&CqInit {
                depth: 2 * COUNT as u32,
                channel: None,
                timestamps: false,
            })
            .unwrap();
        let init = QpInit {
            qp_type: QpType::Ud,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps: QpCaps {
                max_recv_wr: COUNT as u32,
                ..QpCaps::default()
            },
            signal_all: true,
        };
        let mut qp = pds[at].create_qp(&init).unwrap();
        bring_up_ud(&mut *qp, QKEY, 1).unwrap();
        (qp, cq)
    };
    let ((mut from, from_cq), (mut to, to_cq)) = (make(0), make(1));
    let room = AllocRequest::of(SLOT * COUNT as usize);
    let buffer = devices[1].alloc(&room).unwrap();
    let region: Region = pds[1].register(&buffer, Access::LOCAL_WRITE).unwrap();
    for wr_id in 0..COUNT {
        let sges = [region.sge(wr_id as usize * SLOT, SLOT as u32)];
        to.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }
    let ah = pds[0]
        .create_ah(&AhInit::to(devices[1].info().gid))
        .unwrap();
    let destination = Destination {
        ah: ah.key(),
        qpn: to.qpn(),
        qkey: QKEY,
    };
    let mut ended = Vec::new();
    let mut look = || {
        let mut out = [Completion::default(); 16];
        let got = from_cq.poll(&mut out).unwrap();
        ended.extend_from_slice(&out[..got]);
        ended.len() as u64
    };
    for number in 0..COUNT {
        let wr = SendWr {
            wr_id: number,
            op: SendOp::SendToImm(destination, number as u32),
            payload: Payload::Inline(&[7; 8]),
            flags: SendFlags::default(),
        };
        until("room", || {
            look();
            match from.post_send(&[wr]) {
                Ok(()) => true,
                Err(error) => {
                    assert_eq!(error.kind, PostErrorKind::QueueFull);
                    false
                }
            }
        });
    }
    until("all sent", || look() == COUNT);
    for (number, sent) in ended.iter().enumerate() {
        assert_eq!((sent.wr_id, sent.status), (number as u64, Status::Success));
    }
    // A completed send has been delivered or lost, so nothing more can arrive.
    let mut got = vec![Completion::default(); COUNT as usize];
    let count = to_cq.poll(&mut got).unwrap();
    let all = got[..count].iter().enumerate().map(|(at, one)| {
        assert_eq!((one.wr_id, one.status), (at as u64, Status::Success));
        u64::from(one.imm.unwrap())
    });
    all.collect()
}

#[test]
fn datagrams_are_refused_and_late_and_still_all_come_in_order() {
    for seed in 1..=8 {
        let all: Vec<_> = (0..COUNT).collect();
        assert_eq!(arrived(Rules::all(seed)), all, "seed {seed}");
    }
}

#[test]
fn the_seed_says_which_datagrams_are_lost() {
    let lossy = |seed| arrived(Rules::all(seed).first(losses(10)));
    for seed in 1..=4 {
        let got = lossy(seed);
        assert!(got.is_sorted(), "{got:?}");
        let lost = COUNT - got.len() as u64;
        assert!((10..70).contains(&lost), "{lost} with seed {seed}");
        assert_eq!(got, lossy(seed), "seed {seed}, once more");
    }
    assert_ne!(lossy(1), lossy(2));
}

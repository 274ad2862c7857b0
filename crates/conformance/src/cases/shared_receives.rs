//! Shared receive queues.

use headworks_verbs::{AsyncEvent, SendOp, SrqInit, Status};

use crate::bench::{connect, line};
use crate::bytes::{get, put};
use crate::{Bench, Options, Side, Verdict, ensure, ensure_eq};

pub(super) fn two_queue_pairs(bench: &Bench) -> Verdict {
    let options = Options::default();
    let pd = bench.b.alloc_pd().map_err(line)?;
    let init = SrqInit {
        max_wr: 8,
        max_sge: 2,
        limit: 0,
    };
    let srq = pd.create_srq(&init).map_err(line)?;
    let mut senders = [
        Side::new(&bench.a, &options)?,
        Side::new(&bench.a, &options)?,
    ];
    let mut receivers = [
        Side::within(&bench.b, &pd, Some(srq.clone()), &options)?,
        Side::within(&bench.b, &pd, Some(srq), &options)?,
    ];
    for (a, b) in senders.iter_mut().zip(&mut receivers) {
        connect(a, b)?;
    }
    for id in 0..8 {
        let into = receivers[0].region.sge(id as usize * 64, 64);
        receivers[0].receive(id, &[into])?;
    }
    let more = receivers[0].receive(9, &[]);
    ensure!(more.is_err(), "a ninth receive was taken");
    for id in 0..8usize {
        let side = &mut senders[id % 2];
        put(&side.region, 0, &[id as u8; 10]);
        let from = side.region.sge(0, 10);
        side.post(id as u64, SendOp::Send, &[from])?;
        side.expect_sent(id as u64, Status::Success)?;
        let side = &receivers[id % 2];
        let got = side.expect_received(id as u64, Status::Success)?;
        ensure_eq!((got.qpn, got.byte_len), (side.qp.qpn(), 10), "whose");
        let seen = get(&receivers[0].region, id * 64, 10);
        ensure_eq!(seen, vec![id as u8; 10], "bytes");
    }
    let [first, _] = &mut receivers;
    ensure!(
        first
            .qp
            .post_recv(&[headworks_verbs::RecvWr {
                wr_id: 0,
                sges: &[]
            }])
            .is_err(),
        "a queue pair with an SRQ took a receive"
    );
    Ok(())
}

pub(super) fn limit_event(bench: &Bench) -> Verdict {
    let options = Options::default();
    let pd = bench.b.alloc_pd().map_err(line)?;
    let init = SrqInit {
        max_wr: 8,
        max_sge: 1,
        limit: 3,
    };
    let srq = pd.create_srq(&init).map_err(line)?;
    let mut a = Side::new(&bench.a, &options)?;
    let mut b = Side::within(&bench.b, &pd, Some(srq.clone()), &options)?;
    connect(&mut a, &mut b)?;
    for round in 0..2u64 {
        for id in 0..4 {
            let into = b.region.sge(0, 64);
            b.receive(id, &[into])?;
        }
        if round == 1 {
            srq.set_limit(2).map_err(line)?;
        }
        for id in 0..4 {
            a.post(id, SendOp::Send, &[])?;
            a.expect_sent(id, Status::Success)?;
            b.expect_received(id, Status::Success)?;
        }
        let mut limits = 0;
        crate::bench::wait("limit event", || {
            while let Some(event) = bench.b.next_async_event() {
                limits += u32::from(matches!(event, AsyncEvent::SrqLimit(_)));
            }
            Ok((limits > 0).then_some(()))
        })?;
        ensure_eq!(limits, 1, "limit events");
    }
    ensure!(
        srq.set_limit(9).is_err(),
        "a limit above the size was taken"
    );
    Ok(())
}

//! The path of the last short WRITE is left as soon as it no longer holds.

use super::*;

/// Posts a WRITE of `len` bytes of `byte` to `target` that generates no completion.
fn write_silently(end: &mut TestQp, target: &Region, len: u32, byte: u8) {
    fill(end.region.buffer(), byte);
    let sges = [end.region.sge(0, len)];
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Write(target.remote(0)),
        payload: Payload::Gather(&sges),
        flags: SendFlags::NONE,
    };
    end.qp.post_send(&[wr]).unwrap();
}

/// Posts a WRITE of 64 bytes, and returns the status with which it ends.
fn signalled_write(end: &mut TestQp, target: RemoteAddr) -> Status {
    let sges = [end.region.sge(0, 64)];
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Write(target),
        payload: Payload::Gather(&sges),
        flags: SendFlags::SIGNALED,
    };
    end.qp.post_send(&[wr]).unwrap();
    end.completed().status
}

/// Makes a pair of connected queue pairs that complete only what is signalled.
fn silent_pair(device: &SoftDevice) -> [TestQp; 2] {
    let mut ends = [(); 2].map(|()| {
        let cq = device.create_cq(&cq_init(64)).unwrap();
        let init = QpInit {
            signal_all: false,
            ..qp_init(&cq, None)
        };
        TestQp {
            qp: device.create_qp(PD, &init).unwrap(),
            region: region(device, PD),
            cq,
            device: device.again(),
        }
    });
    connect(&mut ends);
    ends
}

#[allow(unsafe_code)]
fn bytes(region: &Region, len: usize) -> Vec<u8> {
    // SAFETY: the region is longer, and nothing writes it now.
    unsafe { std::slice::from_raw_parts(region.buffer().as_ptr(), len) }.to_vec()
}

#[test]
fn writes_of_any_length_arrive_on_it() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let [mut a, b] = silent_pair(&device);
    for (round, len) in [64, 64, 8, 0, 1, 16, 256, 257, 48, 4096, 64]
        .into_iter()
        .enumerate()
    {
        fill(b.region.buffer(), 0xee);
        write_silently(&mut a, &b.region, len, round as u8);
        let found = bytes(&b.region, 4096);
        let len = len as usize;
        assert!(
            found[..len].iter().all(|byte| *byte == round as u8),
            "{len}"
        );
        assert!(found[len..].iter().all(|byte| *byte == 0xee), "{len}");
    }
}

#[test]
fn a_queue_pair_that_is_connected_anew_writes_to_its_new_peer_alone() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let [mut a, b] = silent_pair(&device);
    for _ in 0..3 {
        write_silently(&mut a, &b.region, 64, 1);
    }
    a.qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
    let mut c = TestQp::new(device.again(), None, 64);
    let gid = device.info().gid;
    join(&mut a.qp, gid, c.qp.qpn());
    join(&mut c.qp, gid, a.qp.qpn());
    fill(b.region.buffer(), CANARY);
    for _ in 0..3 {
        write_silently(&mut a, &c.region, 64, 2);
    }
    assert_eq!(bytes(&c.region, 64), [2; 64]);
    // The old region is still registered, in the same domain, so the new connection reaches it by its key.
    assert!(holds(b.region.buffer(), CANARY));
}

#[test]
fn a_region_that_is_deregistered_is_not_written() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let [mut a, b] = silent_pair(&device);
    let target = region(&device, PD);
    for _ in 0..3 {
        write_silently(&mut a, &target, 64, 1);
    }
    let gone = target.remote(0);
    drop(target);
    let next = region(&device, PD);
    fill(next.buffer(), CANARY);
    assert_eq!(signalled_write(&mut a, gone), Status::RemoteAccess);
    assert!(holds(next.buffer(), CANARY));
    assert_eq!(b.qp.state(), QpState::Error);
}

#[test]
fn a_write_does_not_overtake_a_send_that_waits() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let [mut a, mut b] = silent_pair(&device);
    for _ in 0..3 {
        write_silently(&mut a, &b.region, 64, 1);
    }
    fill(b.region.buffer(), CANARY);
    let sges = [a.region.sge(0, 8)];
    let send = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        payload: Payload::Gather(&sges),
        flags: SendFlags::SIGNALED,
    };
    a.qp.post_send(&[send]).unwrap();
    write_silently(&mut a, &b.region, 64, 3);
    assert!(
        holds(b.region.buffer(), CANARY),
        "the SEND has no receive yet"
    );
    let wr = RecvWr {
        wr_id: 3,
        sges: &[],
    };
    let empty = RecvWr {
        sges: &[b.region.sge(2048, 8)],
        ..wr
    };
    b.qp.post_recv(&[empty]).unwrap();
    assert_eq!(a.completed().status, Status::Success);
    until("the WRITE behind it", || bytes(&b.region, 64) == [3; 64]);
    // Nothing waits any more, so the path serves again.
    write_silently(&mut a, &b.region, 64, 4);
    assert_eq!(bytes(&b.region, 64), [4; 64]);
}

#[test]
fn access_that_the_peer_takes_back_is_refused() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let [mut a, mut b] = silent_pair(&device);
    for _ in 0..3 {
        write_silently(&mut a, &b.region, 64, 1);
    }
    let closed = QpAttr {
        access: Some(Access::NONE),
        ..QpAttr::to_state(QpState::Rts)
    };
    b.qp.modify(&closed).unwrap();
    fill(b.region.buffer(), CANARY);
    let target = b.region.remote(0);
    assert_eq!(
        signalled_write(&mut a, target),
        Status::RemoteInvalidRequest
    );
    assert!(holds(b.region.buffer(), CANARY));
}

//! The path of the last short WRITE is left as soon as it no longer holds.

use headworks_verbs::{PostError, PostErrorKind};

use super::*;
use crate::datapath::qp::TWICE_TAKEN;

/// How a WRITE is posted.
#[derive(Clone, Copy, Debug)]
enum Chain {
    Alone,
    /// Before a WRITE of a word to [`WORD`], as a ring does.
    BeforeWord,
}

const CHAINS: [Chain; 2] = [Chain::Alone, Chain::BeforeWord];

/// Where the word goes.
const WORD: usize = 4088;

/// Posts a WRITE of `len` bytes of `byte` to `target`. The word is of eight such bytes. The last request has `flags`.
fn write(
    end: &mut TestQp,
    chain: Chain,
    (target, len, byte): (RemoteAddr, u32, u8),
    flags: SendFlags,
) -> Result<(), PostError> {
    fill(end.region.buffer(), byte);
    let sges = [end.region.sge(0, len)];
    let word = [byte; 8];
    let bytes = SendWr {
        wr_id: 1,
        op: SendOp::Write(target),
        payload: Payload::Gather(&sges),
        flags: match chain {
            Chain::Alone => flags,
            Chain::BeforeWord => SendFlags::NONE,
        },
    };
    let last = SendWr {
        wr_id: 2,
        op: SendOp::Write(target.plus(WORD as u64)),
        payload: Payload::Inline(&word),
        flags,
    };
    match chain {
        Chain::Alone => end.qp.post_send(&[bytes]),
        Chain::BeforeWord => end.qp.post_send(&[bytes, last]),
    }
}

/// Returns how many chains of two took the short path while `posts` ran.
fn taken(posts: impl FnOnce()) -> u32 {
    let before = TWICE_TAKEN.get();
    posts();
    TWICE_TAKEN.get() - before
}

/// Posts a WRITE that generates no completion.
fn write_silently(end: &mut TestQp, chain: Chain, target: &Region, len: u32, byte: u8) {
    write(end, chain, (target.remote(0), len, byte), SendFlags::NONE).unwrap();
}

/// Posts a WRITE of 64 bytes, and returns the status of the first completion.
fn signalled_write(end: &mut TestQp, chain: Chain, target: RemoteAddr) -> Status {
    write(end, chain, (target, 64, 9), SendFlags::SIGNALED).unwrap();
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

/// Makes such a pair on a fabric of its own, whose first queue pair has posted WRITEs that open the short path.
fn with_open_path(chain: Chain) -> (Fabric, SoftDevice, [TestQp; 2]) {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let [mut a, b] = silent_pair(&device);
    for _ in 0..3 {
        write_silently(&mut a, chain, &b.region, 64, 1);
    }
    (fabric, device, [a, b])
}

#[allow(unsafe_code)]
fn bytes(region: &Region, len: usize) -> Vec<u8> {
    // SAFETY: the region is longer, and nothing writes it now.
    unsafe { std::slice::from_raw_parts(region.buffer().as_ptr(), len) }.to_vec()
}

#[test]
fn writes_of_any_length_arrive_on_it() {
    for chain in CHAINS {
        let fabric = Fabric::new();
        let device = fabric.open("soft:h1");
        let [mut a, b] = silent_pair(&device);
        for (round, len) in [64, 64, 8, 0, 1, 16, 256, 257, 48, 4096, 64]
            .into_iter()
            .enumerate()
        {
            fill(b.region.buffer(), 0xee);
            write_silently(&mut a, chain, &b.region, len, round as u8);
            let found = bytes(&b.region, 4096);
            let len = len as usize;
            assert!(
                found[..len].iter().all(|byte| *byte == round as u8),
                "{len}"
            );
            let (between, word) = found.split_at(WORD);
            let mut between = between.iter().skip(len);
            assert!(between.all(|byte| *byte == 0xee), "{len}");
            let is_written = matches!(chain, Chain::BeforeWord) || len > WORD;
            let word_byte = if is_written { round as u8 } else { 0xee };
            assert_eq!(word, [word_byte; 8], "{len}");
        }
    }
}

#[test]
fn a_full_send_queue_takes_as_many_as_it_has_room_for() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let [mut a, b] = silent_pair(&device);
    let depth = a.qp.caps().max_send_wr;
    let target = b.region.remote(0);
    let post = |a: &mut TestQp, chain, byte, flags| write(a, chain, (target, 64, byte), flags);
    post(&mut a, Chain::Alone, 0, SendFlags::NONE).unwrap();
    for number in 0..(depth - 2) / 2 {
        post(&mut a, Chain::BeforeWord, number as u8, SendFlags::NONE).unwrap();
    }
    assert_eq!(depth % 2, 0);
    // One request fits, and then none.
    for (left, written) in [(1, 77), (0, CANARY)] {
        fill(b.region.buffer(), CANARY);
        let refused = post(&mut a, Chain::BeforeWord, 77, SendFlags::SIGNALED);
        assert_eq!(refused, Err(PostErrorKind::QueueFull.at(left)));
        assert_eq!(bytes(&b.region, 64), [written; 64]);
        assert_eq!(bytes(&b.region, WORD + 8)[WORD..], [CANARY; 8]);
    }
}

#[test]
fn the_last_of_two_completes_for_both() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let [mut a, b] = silent_pair(&device);
    let depth = a.qp.caps().max_send_wr;
    // Far more than the send queue holds at a time.
    let count = 4 * depth;
    let taken = taken(|| {
        for round in 0..count {
            let what = (b.region.remote(0), 64, round as u8);
            write(&mut a, Chain::BeforeWord, what, SendFlags::SIGNALED).unwrap();
            let completion = a.completed();
            assert_eq!((completion.wr_id, completion.status), (2, Status::Success));
            assert_eq!(a.cq.poll(&mut [Completion::default()]), Ok(0));
        }
    });
    assert_eq!(
        taken,
        count - 2,
        "the first finds the peer, the second opens the path"
    );
}

#[test]
fn each_of_two_that_are_signalled_completes() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let [mut a, b] = silent_pair(&device);
    for _ in 0..3 {
        write_silently(&mut a, Chain::BeforeWord, &b.region, 64, 1);
        let sges = [a.region.sge(0, 64)];
        let wrs = [5, 6].map(|wr_id| SendWr {
            wr_id,
            op: SendOp::Write(b.region.remote(0)),
            payload: Payload::Gather(&sges),
            flags: SendFlags::SIGNALED,
        });
        a.qp.post_send(&wrs).unwrap();
        assert_eq!([a.completed().wr_id, a.completed().wr_id], [5, 6]);
    }
}

#[test]
fn two_writes_to_different_regions_arrive() {
    let fabric = Fabric::new();
    let device = fabric.open("soft:h1");
    let [mut a, b] = silent_pair(&device);
    let other = region(&device, PD);
    for round in 1..5u8 {
        write_silently(&mut a, Chain::BeforeWord, &b.region, 64, round);
        let sges = [a.region.sge(0, 64)];
        let to = |region: &Region| SendWr {
            wr_id: 1,
            op: SendOp::Write(region.remote(0)),
            payload: Payload::Gather(&sges),
            flags: SendFlags::NONE,
        };
        fill(a.region.buffer(), round + 100);
        let taken = taken(|| a.qp.post_send(&[to(&b.region), to(&other)]).unwrap());
        assert_eq!(taken, 0);
        for region in [&b.region, &other] {
            assert_eq!(bytes(region, 64), [round + 100; 64]);
        }
    }
}

#[test]
fn a_queue_pair_that_is_connected_anew_writes_to_its_new_peer_alone() {
    for chain in CHAINS {
        let (_fabric, device, [mut a, b]) = with_open_path(chain);
        a.qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
        let mut c = TestQp::new(device.again(), None, 64);
        let gid = device.info().gid;
        join(&mut a.qp, gid, c.qp.qpn());
        join(&mut c.qp, gid, a.qp.qpn());
        fill(b.region.buffer(), CANARY);
        for _ in 0..3 {
            write_silently(&mut a, chain, &c.region, 64, 2);
        }
        assert_eq!(bytes(&c.region, 64), [2; 64]);
        // The old region is still registered, in the same domain, so the new connection reaches it by its key.
        assert!(holds(b.region.buffer(), CANARY));
    }
}

#[test]
fn a_region_that_is_deregistered_is_not_written() {
    for chain in CHAINS {
        let fabric = Fabric::new();
        let device = fabric.open("soft:h1");
        let [mut a, b] = silent_pair(&device);
        let target = region(&device, PD);
        for _ in 0..3 {
            write_silently(&mut a, chain, &target, 64, 1);
        }
        let gone = target.remote(0);
        drop(target);
        let next = region(&device, PD);
        fill(next.buffer(), CANARY);
        assert_eq!(signalled_write(&mut a, chain, gone), Status::RemoteAccess);
        assert!(holds(next.buffer(), CANARY));
        assert_eq!(b.qp.state(), QpState::Error);
    }
}

#[test]
fn a_write_does_not_overtake_a_send_that_waits() {
    for chain in CHAINS {
        let (_fabric, _device, [mut a, mut b]) = with_open_path(chain);
        fill(b.region.buffer(), CANARY);
        let sges = [a.region.sge(0, 8)];
        let send = SendWr {
            wr_id: 2,
            op: SendOp::Send,
            payload: Payload::Gather(&sges),
            flags: SendFlags::SIGNALED,
        };
        a.qp.post_send(&[send]).unwrap();
        write_silently(&mut a, chain, &b.region, 64, 3);
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
        write_silently(&mut a, chain, &b.region, 64, 4);
        assert_eq!(bytes(&b.region, 64), [4; 64]);
    }
}

#[test]
fn access_that_the_peer_takes_back_is_refused() {
    for chain in CHAINS {
        let (_fabric, _device, [mut a, mut b]) = with_open_path(chain);
        let closed = QpAttr {
            access: Some(Access::NONE),
            ..QpAttr::to_state(QpState::Rts)
        };
        b.qp.modify(&closed).unwrap();
        fill(b.region.buffer(), CANARY);
        let target = b.region.remote(0);
        assert_eq!(
            signalled_write(&mut a, chain, target),
            Status::RemoteInvalidRequest
        );
        assert!(holds(b.region.buffer(), CANARY));
    }
}

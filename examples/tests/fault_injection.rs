//! A receiver that polls the last byte of an RDMA WRITE relies on bytes that arrive in order.
use std::sync::Arc;

use headworks::testing::{Fabric, each_seed, read_region};
use headworks::verbs::bringup::ConnectionParams;
use headworks::verbs::{
    Access, AllocRequest, BringUp, Completion, CompletionQueue, CqInit, Device, Payload,
    ProtectionDomain, QpCaps, QpInit, QpType, QueuePair, RecvWr, Region, SendFlags, SendOp, SendWr,
    Status,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const LEN: usize = 64;

/// One side: a queue pair with its completion queue, and registered memory that the other side may write.
struct ExampleProcess {
    device: Arc<dyn Device>,
    cq: Arc<dyn CompletionQueue>,
    qp: Box<dyn QueuePair>,
    memory: Region,
    _pd: Arc<dyn ProtectionDomain>,
}

impl ExampleProcess {
    fn open(fabric: &Fabric, name: &str) -> Outcome<Self> {
        let device = fabric.open(name)?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(&CqInit {
            depth: 64,
            channel: None,
            timestamps: false,
        })?;
        let qp = pd.create_qp(&QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps: QpCaps::default(),
            signal_all: true,
        })?;
        let memory = pd.register(&device.alloc(&AllocRequest::of(LEN))?, Access::ALL)?;
        Ok(Self {
            device,
            cq,
            qp,
            memory,
            _pd: pd,
        })
    }

    /// Opens two connected sides. The seed determines every fault.
    fn pair(fabric: &Fabric, seed: u64) -> Outcome<(Self, Self)> {
        let mut a = Self::open(fabric, &format!("soft:h1,hostile,seed={seed}"))?;
        let mut b = Self::open(fabric, &format!("soft:h2,hostile,seed={seed}"))?;
        let params = ConnectionParams::default();
        let mut up = BringUp::start(a.device.info(), &mut *a.qp, params, 1, Vec::new())?;
        let mut other = BringUp::start(b.device.info(), &mut *b.qp, params, 2, Vec::new())?;
        up.connect_both(&mut *a.qp, &mut other, &mut *b.qp)?;
        Ok((a, b))
    }

    fn byte(&self, at: usize) -> u8 {
        let mut byte = [0];
        read_region(&self.memory, at, &mut byte);
        byte[0]
    }

    /// Polls the completion queue once, for up to 8 completions.
    fn completions(&self) -> Outcome<Vec<Completion>> {
        let mut found = [Completion::default(); 8];
        let count = self.cq.poll(&mut found)?;
        Ok(found[..count].to_vec())
    }
}

/// Bytes of the message that had not arrived when its last byte was seen.
fn missing_when_the_last_byte_is_seen(seed: u64) -> Outcome<usize> {
    let fabric = Fabric::new(std::env::temp_dir())?;
    let (mut from, to) = ExampleProcess::pair(&fabric, seed)?;
    let op = SendOp::Write(to.memory.remote(0));
    let payload = Payload::Inline(&[7; LEN]);
    from.qp.post_send(&[SendWr {
        wr_id: 1,
        op,
        payload,
        flags: SendFlags::default(),
    }])?;
    while to.byte(LEN - 1) != 7 {
        from.completions()?; // Polling lets the initiator make progress.
    }
    Ok((0..LEN).filter(|&at| to.byte(at) != 7).count())
}

/// Bytes of the message that had not arrived when the receiver polled the completion of the immediate.
fn missing_at_the_completion(seed: u64) -> Outcome<usize> {
    let fabric = Fabric::new(std::env::temp_dir())?;
    let (mut from, mut to) = ExampleProcess::pair(&fabric, seed)?;
    while to
        .qp
        .post_recv(&[RecvWr {
            wr_id: 2,
            sges: &[],
        }])
        .is_err()
    {}
    let op = SendOp::WriteImm(to.memory.remote(0), 1);
    let payload = Payload::Inline(&[7; LEN]);
    while from
        .qp
        .post_send(&[SendWr {
            wr_id: 1,
            op,
            payload,
            flags: SendFlags::default(),
        }])
        .is_err()
    {}
    loop {
        from.completions()?;
        if let Some(done) = to.completions()?.first() {
            assert_eq!(done.status, Status::Success);
            return Ok((0..LEN).filter(|&at| to.byte(at) != 7).count());
        }
    }
}

#[test]
fn the_last_byte_says_nothing_of_the_others() {
    // The gap also depends on timing: about one seed in thirty shows it to the receiver.
    assert!((1..=1000).any(|seed| missing_when_the_last_byte_is_seen(seed).unwrap() > 0));
}

#[test]
fn a_completion_follows_all_bytes() {
    each_seed(1..=50, |seed| {
        assert_eq!(missing_at_the_completion(seed).unwrap(), 0)
    });
}

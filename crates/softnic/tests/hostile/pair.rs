//! Two connected queue pairs, the first of them on a hostile device.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_softnic::hostile::{FaultEvent, Random, Rule, Rules, SoftFaults, Verdict};
use headworks_verbs::bringup::{BringUp, ConnectionParams};
use headworks_verbs::{
    Access, AllocRequest, Completion, CompletionChannel, CompletionQueue, CqInit, Device, Payload,
    PostError, Provider, Psn, QpAttr, QpCaps, QpInit, QpState, QpType, QueuePair, RecvWr, Region,
    SendFlags, SendOp, SendWr, Status,
};

/// Far longer than anything in a correct run takes.
const LIMIT: Duration = Duration::from_secs(60);
/// Size of each end's region in bytes.
pub(crate) const LEN: usize = 4096;

pub(crate) struct TestQp {
    // Dropped in this order.
    pub(crate) qp: Box<dyn QueuePair>,
    pub(crate) region: Region,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    pub(crate) channel: Arc<dyn CompletionChannel>,
    pub(crate) device: Arc<dyn Device>,
}

pub(crate) struct TestPair {
    pub(crate) a: TestQp,
    pub(crate) b: TestQp,
    _folder: tempfile::TempDir,
}

/// Runs `run` with every seed up to `seeds`. If it panics, prints the seed.
pub(crate) fn each_seed(seeds: u64, mut run: impl FnMut(u64)) {
    for seed in 1..=seeds {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        if let Err(panic) = ran {
            eprintln!("with seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Runs seed after seed until `run` has returned five times that it saw the effect. No single seed is sure to
/// show it, because the device's own thread may take all steps before this thread looks.
pub(crate) fn until_seen(what: &str, mut run: impl FnMut(u64) -> bool) {
    let mut seen = 0;
    each_seed(2000, |seed| {
        if seen < 5 {
            seen += u32::from(run(seed));
        }
    });
    assert!(seen >= 5, "{what} was seen {seen} times");
}

impl TestQp {
    fn new(device: Arc<dyn Device>, qp_type: QpType) -> Self {
        let channel = device.create_channel().unwrap();
        let init = CqInit {
            depth: 256,
            channel: Some(channel.clone()),
            timestamps: false,
        };
        let cq = device.create_cq(&init).unwrap();
        let pd = device.alloc_pd().unwrap();
        let init = QpInit {
            qp_type,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps: QpCaps {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline: 64,
            },
            signal_all: false,
        };
        let mut qp = pd.create_qp(&init).unwrap();
        let buffer = device.alloc(&AllocRequest::of(LEN)).unwrap();
        let region = pd.register(&buffer, Access::ALL).unwrap();
        qp.modify(&QpAttr {
            access: Some(Access::ALL),
            ..QpAttr::to_state(QpState::Init)
        })
        .unwrap();
        Self {
            qp,
            region,
            cq,
            channel,
            device,
        }
    }

    pub(crate) fn poll(&self) -> Vec<Completion> {
        let mut out = [Completion::default(); 32];
        let count = self.cq.poll(&mut out).unwrap();
        out[..count].to_vec()
    }

    /// Returns the next `count` completions.
    pub(crate) fn completed(&self, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        until("completions", || {
            all.extend(self.poll());
            all.len() >= count
        });
        assert_eq!(all.len(), count, "more completions than requests");
        all
    }

    /// Posts one signalled request, up to four times if there is no room for it.
    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp, at: usize, len: usize) {
        self.post_with(wr_id, op, (at, len), SendFlags::SIGNALED);
    }

    pub(crate) fn post_with(
        &mut self,
        wr_id: u64,
        op: SendOp,
        (at, len): (usize, usize),
        flags: SendFlags,
    ) {
        let sges = [self.region.sge(at, len as u32)];
        let wr = SendWr {
            wr_id,
            op,
            payload: Payload::Gather(&sges),
            flags,
        };
        for _ in 0..4 {
            if self.qp.post_send(&[wr]).is_ok() {
                return;
            }
        }
        panic!("refused four times");
    }

    pub(crate) fn try_receive(&mut self, wr_id: u64, at: usize, len: u32) -> Result<(), PostError> {
        let sges = [self.region.sge(at, len)];
        self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }])
    }

    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= LEN);
        let start = self.region.buffer().as_ptr().wrapping_add(at);
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: inside the buffer, which lives as long as the region. The device may access it.
            unsafe { start.wrapping_add(index).write_volatile(*byte) };
        }
    }

    pub(crate) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= LEN);
        let start = self.region.buffer().as_ptr().wrapping_add(at);
        let words = start.cast::<u64>();
        if at.is_multiple_of(8) && len.is_multiple_of(8) {
            // Words are read whole, since the device may be placing them meanwhile.
            // SAFETY: as in `put`; buffers are aligned to more than a word.
            let read = |index| unsafe { words.wrapping_add(index).read_volatile() };
            return (0..len / 8).flat_map(|at| read(at).to_ne_bytes()).collect();
        }
        // SAFETY: as in `put`.
        let read = |index| unsafe { start.wrapping_add(index).read_volatile() };
        (0..len).map(read).collect()
    }
}

impl TestPair {
    /// Makes a pair whose first end follows `rules`; `options` are part of its device's name.
    pub(crate) fn by(rules: Rules, options: &str) -> Self {
        Self::new(|hostile| hostile.with_rules(rules), options, QpType::Rc)
    }

    /// Makes a pair on an unreliable connection whose first end follows `rules`.
    pub(crate) fn unreliable(rules: Rules) -> Self {
        Self::new(|hostile| hostile.with_rules(rules), "", QpType::Uc)
    }

    /// Makes a pair whose first end has `options` in its device's name, and the rules that they imply.
    pub(crate) fn named(options: &str) -> Self {
        Self::new(|provider| provider, options, QpType::Rc)
    }

    fn new(
        hostile: impl FnOnce(SoftProvider) -> SoftProvider,
        options: &str,
        qp_type: QpType,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fabric = Registry::open_at(folder.path().join("fabric")).unwrap();
        let plain = SoftProvider::on(fabric.clone());
        let hostile = hostile(SoftProvider::on(fabric));
        let open = |provider: &SoftProvider, name: &str| {
            TestQp::new(provider.open(&name.parse().unwrap()).unwrap(), qp_type)
        };
        let mut a = open(&hostile, &format!("soft:h1{options}"));
        let mut b = open(&plain, "soft:h2");
        match qp_type.is_reliable() {
            true => raise(&mut a, &mut b, ConnectionParams::default()),
            false => {
                raise_unreliable(&mut a, &b);
                raise_unreliable(&mut b, &a);
            }
        }
        Self {
            a,
            b,
            _folder: folder,
        }
    }
}

/// Connects the two ends, for the first time or after a RESET.
pub(crate) fn raise(a: &mut TestQp, b: &mut TestQp, tuning: ConnectionParams) {
    let mut up = BringUp::start(a.device.info(), &mut *a.qp, tuning, 1, Vec::new()).unwrap();
    let mut down = BringUp::start(b.device.info(), &mut *b.qp, tuning, 2, Vec::new()).unwrap();
    up.connect_both(&mut *a.qp, &mut down, &mut *b.qp).unwrap();
}

/// Connects one end of an unreliable connection.
fn raise_unreliable(own: &mut TestQp, peer: &TestQp) {
    let to = peer.device.info();
    let rtr = QpAttr {
        dest_gid: Some(to.gid),
        dest_lid: to.lid,
        dest_qpn: Some(peer.qp.qpn()),
        rq_psn: Some(Psn::truncated(0)),
        path_mtu: Some(to.mtu),
        ..QpAttr::to_state(QpState::Rtr)
    };
    let rts = QpAttr {
        sq_psn: Some(Psn::truncated(0)),
        ..QpAttr::to_state(QpState::Rts)
    };
    own.qp.modify(&rtr).unwrap();
    own.qp.modify(&rts).unwrap();
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "waited for {what} in vain");
        std::thread::yield_now();
    }
}

pub(crate) fn all_well(completions: &[Completion]) {
    for (at, completion) in completions.iter().enumerate() {
        assert_eq!(completion.status, Status::Success, "completion {at}");
        assert_eq!(completion.wr_id, at as u64, "order of completions");
    }
}

/// A rule that records the verdicts of another one.
#[derive(Clone)]
pub(crate) struct RecordingRule {
    rule: Arc<dyn Rule<SoftFaults>>,
    pub(crate) seen: Arc<Mutex<Vec<(FaultEvent, Verdict)>>>,
}

impl RecordingRule {
    pub(crate) fn new(rule: impl Rule<SoftFaults> + 'static) -> Self {
        Self {
            rule: Arc::new(rule),
            seen: Arc::default(),
        }
    }
}

impl Rule<SoftFaults> for RecordingRule {
    fn judge(&self, event: &FaultEvent, random: &mut Random) -> Option<Verdict> {
        let verdict = self.rule.judge(event, random)?;
        self.seen.lock().unwrap().push((*event, verdict));
        Some(verdict)
    }
}

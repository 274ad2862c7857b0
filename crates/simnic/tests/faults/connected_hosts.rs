//! Two simulated hosts with connected queue pairs, outside of a world.

use std::sync::Arc;

use headworks_simnic::faults::Rules;
use headworks_simnic::{HostCounters, Preset, SimProvider};
use headworks_verbs::bringup::ConnectionParams;
use headworks_verbs::{
    Access, AllocRequest, AsyncEvent, BringUp, Completion, CompletionQueue, CqInit, Device,
    Duration, Instant, Payload, Provider, QpCaps, QpInit, QpType, QueuePair, RecvWr, Region,
    SendFlags, SendOp, SendWr,
};

/// Size of a host's memory, in bytes.
const MEMORY: usize = 4 << 20;
/// Timeout for acknowledgements, as an attribute and as a duration.
const CODE: u8 = 8;
pub(crate) const TIMEOUT: Duration = Duration::from_nanos(4_096 << CODE);

/// One of the two hosts.
pub(crate) struct PairHost {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) qp: Box<dyn QueuePair>,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    region: Region,
    done: Vec<Completion>,
}

/// Two hosts of one network, with connected queue pairs.
pub(crate) struct ConnectedHosts {
    provider: SimProvider,
    pub(crate) here: PairHost,
    pub(crate) there: PairHost,
}

impl PairHost {
    fn new(provider: &SimProvider, host: &str, qp_type: QpType) -> Self {
        let name = format!("sim:cx5-100g,host={host}");
        let device = provider
            .open(&name.parse().expect("a name"))
            .expect("opens");
        let pd = device.alloc_pd().expect("a domain");
        let init = CqInit {
            depth: 1024,
            channel: None,
            timestamps: true,
        };
        let cq = device.create_cq(&init).expect("a queue");
        let caps = QpCaps {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let qp = pd.create_qp(&QpInit {
            qp_type,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps,
            signal_all: true,
        });
        let buffer = device.alloc(&AllocRequest::of(MEMORY)).expect("memory");
        let region = pd.register(&buffer, Access::ALL).expect("registers");
        Self {
            device,
            qp: qp.expect("a queue pair"),
            cq,
            region,
            done: Vec::new(),
        }
    }

    fn poll(&mut self) -> usize {
        let mut found = [Completion::default(); 16];
        let count = self.cq.poll(&mut found).expect("polls");
        self.done.extend_from_slice(&found[..count]);
        count
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= MEMORY);
        let start = self.region.buffer().as_ptr().wrapping_add(offset);
        #[allow(unsafe_code, reason = "registered memory is reached by address")]
        // SAFETY: the range is within the buffer. No other thread writes the buffer: there is one thread, and
        // the device writes only during calls.
        unsafe { std::slice::from_raw_parts(start, len) }.to_vec()
    }

    pub(crate) fn word(&self, offset: usize) -> u64 {
        let bytes = self.bytes(offset, 8);
        u64::from_ne_bytes(bytes.try_into().expect("eight"))
    }

    pub(crate) fn fill(&mut self, offset: usize, len: usize, byte: u8) {
        assert!(offset + len <= MEMORY);
        let start = self.region.buffer().as_ptr().wrapping_add(offset);
        #[allow(unsafe_code, reason = "registered memory is reached by address")]
        // SAFETY: as above.
        unsafe {
            std::ptr::write_bytes(start, byte, len);
        }
    }

    pub(crate) fn has_fatal_event(&self) -> bool {
        let all = std::iter::from_fn(|| self.device.next_async_event());
        let ours = AsyncEvent::QpFatal(self.qp.qpn());
        all.into_iter().any(|event| event == ours)
    }
}

impl ConnectedHosts {
    /// Connects two hosts whose network has faults by these rules.
    pub(crate) fn new(rules: Rules, retry_count: u8, rnr_retry: u8) -> Self {
        let provider = SimProvider::new().with_rules(rules);
        Self::of(provider, QpType::Rc, retry_count, rnr_retry)
    }

    /// Connects two hosts by an unreliable connection.
    pub(crate) fn unreliable(rules: Rules) -> Self {
        let provider = SimProvider::new().with_rules(rules);
        Self::of(provider, QpType::Uc, 0, 0)
    }

    /// Connects two hosts whose memory is modelled, with these changed constants.
    pub(crate) fn with_memory(rules: Rules, constants: &[(&str, &str)]) -> Self {
        let mut machine = Preset::named("cx6dx-2x100g").expect("a preset");
        for (key, value) in constants {
            machine.set(key, value).expect("legal");
        }
        Self::of(SimProvider::of(machine).with_rules(rules), QpType::Rc, 7, 7)
    }

    fn of(provider: SimProvider, qp_type: QpType, retry_count: u8, rnr_retry: u8) -> Self {
        let side = |host| PairHost::new(&provider, host, qp_type);
        let (mut here, mut there) = (side("a"), side("b"));
        let tuning = ConnectionParams {
            qp_type,
            timeout: Some(CODE),
            retry_count,
            rnr_retry,
            ..ConnectionParams::default()
        };
        let begin = |side: &mut PairHost, seed| {
            BringUp::start(side.device.info(), &mut *side.qp, tuning, seed, Vec::new())
        };
        let mut one = begin(&mut here, 7).expect("begins");
        let mut two = begin(&mut there, 9).expect("begins");
        one.connect_both(&mut *here.qp, &mut two, &mut *there.qp)
            .expect("connects");
        Self {
            provider,
            here,
            there,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.provider.now()
    }

    /// Lets time pass.
    pub(crate) fn rest(&self, span: Duration) {
        self.provider.advance(span);
    }

    pub(crate) fn run_digests(&self) -> Vec<(u64, u64)> {
        self.provider.run_digests()
    }

    pub(crate) fn sent_again(&self) -> u64 {
        let all = self.provider.counters();
        all.iter().map(|(_, counters)| counters.sent_again).sum()
    }

    /// Returns the counters of the receiving host's memory and of congestion.
    pub(crate) fn memory(&self) -> HostCounters {
        let all = self.provider.host_counters();
        let there = all.into_iter().find(|(host, _)| host == "b");
        there.expect("is modelled").1
    }

    fn post(&mut self, wr_id: u64, op: SendOp, offset: usize, len: u32) {
        let sge = self.here.region.sge(offset, len);
        let wr = SendWr {
            wr_id,
            op,
            payload: Payload::Gather(std::slice::from_ref(&sge)),
            flags: SendFlags::NONE,
        };
        self.here.qp.post_send(&[wr]).expect("posts");
    }

    /// Writes bytes to the start of the peer's memory, from a source of their own.
    pub(crate) fn write(&mut self, number: u64, len: u32, byte: u8) {
        let offset = (1 << 20) + number as usize * 50_000;
        self.here.fill(offset, len as usize, byte);
        let to = self.there.region.remote(0);
        self.post(number, SendOp::Write(to), offset, len);
    }

    /// Writes to an address behind the peer's memory.
    pub(crate) fn write_outside(&mut self, number: u64, len: u32) {
        let mut to = self.there.region.remote(0);
        to.addr += MEMORY as u64;
        self.post(number, SendOp::Write(to), 1 << 20, len);
    }

    pub(crate) fn send(&mut self, number: u64, len: u32, byte: u8) {
        let offset = (1 << 20) + number as usize * 50_000;
        self.here.fill(offset, len as usize, byte);
        self.post(number, SendOp::Send, offset, len);
    }

    /// Reads from the start of the peer's memory to the start of the local memory.
    pub(crate) fn read(&mut self, number: u64, len: u32) {
        let from = self.there.region.remote(0);
        self.post(number, SendOp::Read(from), 0, len);
    }

    /// Adds to the first word of the peer's memory. The old value goes to the local word `number`.
    pub(crate) fn add(&mut self, number: u64, add: u64) {
        let remote = self.there.region.remote(0);
        let op = SendOp::FetchAdd { remote, add };
        self.post(number, op, 8 * number as usize, 8);
    }

    pub(crate) fn receive(&mut self, wr_id: u64, len: u32) {
        let sges = [self.there.region.sge(2 << 20, len)];
        let wr = RecvWr { wr_id, sges: &sges };
        self.there.qp.post_recv(&[wr]).expect("posts");
    }

    /// Waits for `count` completions of sends.
    pub(crate) fn sends(&mut self, count: usize) -> Vec<Completion> {
        let limit = self.now() + Duration::from_secs(20);
        while self.here.done.len() < count {
            if self.here.poll() == 0 {
                assert!(self.now() < limit, "{:?}", self.here.done);
            }
        }
        std::mem::take(&mut self.here.done)
    }

    /// Waits for `count` completions of receives. Also returns any beyond those.
    pub(crate) fn receives(&mut self, count: usize) -> Vec<Completion> {
        let limit = self.now() + Duration::from_secs(20);
        while self.there.poll() > 0 || self.there.done.len() < count {
            assert!(self.now() < limit, "{:?}", self.there.done);
        }
        std::mem::take(&mut self.there.done)
    }
}

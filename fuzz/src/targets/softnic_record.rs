//! A fake context in the registry. Its record leads to any file, and its table was never a table.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use headworks_shm::{
    ContextRecord, HostKey, HugePages, ProcessId, SegmentRequest, SharedSegment, View, WakePipe,
};
use headworks_verbs::{
    Access, AllocRequest, Completion, CompletionQueue, CqInit, Device, Gid, Mtu, Payload, Psn,
    QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, QueuePair, Region, RemoteAddr, RnrTimer,
    SendFlags, SendOp, SendWr,
};

use super::fixtures::{open, registry};
use crate::input::Input;

pub(super) const HOST: HostKey = HostKey(0x5eed);
const LINE: usize = 64;

pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let fabric = registry();
    let victim = open("soft:victim");
    let (mut qp, cq, memory) = end(&victim);
    let things = FakeContext::new(&mut input, &fabric);
    let record = things.record(&mut input);
    let claim = fabric.claim_context(HOST, &record).expect("a free index");
    assert_eq!(claim.index, 0);
    let dest = u32::from(input.u16());
    connect(&mut *qp, dest);
    let payload = [memory.sge(0, 64)];
    while !input.is_over() {
        match input.byte() % 4 {
            0 => {
                let remote = RemoteAddr {
                    addr: input.u64(),
                    rkey: input.u16().into(),
                };
                let op = input.pick(&[SendOp::Send, SendOp::Write(remote), SendOp::Read(remote)]);
                let wr = SendWr {
                    wr_id: 1,
                    op,
                    payload: Payload::Gather(&payload),
                    flags: SendFlags::SIGNALED,
                };
                let _ = qp.post_send(&[wr]);
            }
            1 => drop(cq.poll(&mut [Completion::default(); 4])),
            _ => things.scribble(&mut input),
        }
    }
    let _ = qp.modify(&QpAttr::to_state(QpState::Error));
    drop((qp, memory));
    drop(claim);
    // The registry still finds the honest context.
    let other = open("soft:other");
    assert_eq!(other.info().name.name(), Some("other"));
}

/// The files that the record of a fake context can lead to.
pub(super) struct FakeContext {
    /// A segment that is as long as a table. Zero at first, or a copy of a real table.
    table: Arc<SharedSegment>,
    /// Offsets of the table's cache lines that are not zero at first.
    lines: Vec<usize>,
    short: SharedSegment,
    pipe: WakePipe,
    socket: OwnedFd,
    file: std::fs::File,
}

impl FakeContext {
    pub(super) fn new(input: &mut Input<'_>, fabric: &Arc<headworks_shm::Registry>) -> Self {
        let listed = fabric.list_contexts().expect("the registry");
        let (_, _, real) = listed.first().expect("the victim's");
        let fd = real.process.open_fd(real.segment_fd).expect("our own");
        let real = View::from(Arc::new(SharedSegment::attach(fd).expect("a table")));
        let segment = |len| {
            let request = SegmentRequest {
                name: "fuzz",
                len,
                huge_pages: HugePages::No,
                numa_node: None,
            };
            SharedSegment::create(&request).expect("memory")
        };
        let table = Arc::new(segment(real.len()));
        let mut lines = Vec::new();
        // Half of the tables start as a copy of a table that is in use.
        if input.byte().is_multiple_of(2) {
            let mut bytes = vec![0; real.len()];
            real.read(0, &mut bytes).expect("all of it");
            View::from(table.clone()).write(0, &bytes).expect("as long");
            let held = |(at, line): (usize, &[u8])| (line != [0; LINE]).then_some(at * LINE);
            lines = bytes
                .chunks_exact(LINE)
                .enumerate()
                .filter_map(held)
                .collect();
        }
        let (socket, _) = std::os::unix::net::UnixStream::pair().expect("sockets");
        Self {
            table,
            lines,
            short: segment(4096),
            pipe: WakePipe::new().expect("a pipe"),
            socket: socket.into(),
            file: tempfile::tempfile().expect("a file"),
        }
    }

    pub(super) fn record(&self, input: &mut Input<'_>) -> ContextRecord {
        let us = ProcessId::current().expect("this process");
        let pipe = self.pipe.write_fd_number();
        let table = self.table.fd().as_raw_fd();
        let others = [
            self.short.fd().as_raw_fd(),
            self.socket.as_raw_fd(),
            self.file.as_raw_fd(),
            i32::MAX,
            0,
        ];
        let process = match input.byte() {
            0..8 => ProcessId {
                pid: 1,
                start_time: 0,
            },
            8..16 => ProcessId {
                pid: input.u64() as u32,
                start_time: us.start_time,
            },
            _ => us,
        };
        let segment_fd = match input.byte() {
            0..40 => input.pick(&others),
            40..48 => pipe,
            _ => table,
        };
        let wake_fd = match input.byte() {
            0..40 => input.pick(&others),
            40..48 => table,
            _ => pipe,
        };
        ContextRecord {
            process,
            layout_version: input.byte().into(),
            segment_fd,
            wake_fd,
            incarnation: input.byte().into(),
            host_name: "none".to_owned(),
        }
    }

    /// Stores up to 11 words near each other, in a row that is in use if there is one.
    pub(super) fn scribble(&self, input: &mut Input<'_>) {
        let line = self.line(input);
        self.store(input, line, 0, 12);
    }

    /// Stores one word, in a row that is in use if there is one. Leaves the other words of the row as they are.
    pub(super) fn scribble_one(&self, input: &mut Input<'_>) {
        let line = self.line(input);
        let at = input.below(LINE / 8);
        self.store(input, line + at * 8, 1, 1);
    }

    fn line(&self, input: &mut Input<'_>) -> usize {
        let any = [input.below(self.table.len() / LINE) * LINE];
        let lines = match self.lines.is_empty() {
            true => &any[..],
            false => &self.lines,
        };
        lines[input.below(lines.len())]
    }

    /// Stores from `least` to `least + more - 1` words, the first at the beginning of `line`.
    fn store(&self, input: &mut Input<'_>, line: usize, least: usize, more: usize) {
        let view = View::from(self.table.clone());
        for at in 0..least + input.below(more) {
            if let Ok(word) = view.atomic_u64(line + at * 8) {
                let now = word.load(Ordering::Relaxed);
                word.store(input.word(now), Ordering::Relaxed);
            }
        }
    }
}

pub(super) type LocalQp = (Box<dyn QueuePair>, Arc<dyn CompletionQueue>, Region);

/// Creates a queue pair, its completion queue, and registered memory.
pub(super) fn end(device: &Arc<dyn Device>) -> LocalQp {
    let init = CqInit {
        depth: 16,
        ..CqInit::default()
    };
    let cq = device.create_cq(&init).expect("a CQ");
    let pd = device.alloc_pd().expect("a domain");
    let buffer = device.alloc(&AllocRequest::of(4096)).expect("memory");
    let memory = pd.register(&buffer, Access::ALL).expect("a region");
    let qp = pd.create_qp(&QpInit {
        qp_type: QpType::Rc,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        caps: QpCaps::default(),
        signal_all: false,
    });
    (qp.expect("a queue pair"), cq, memory)
}

/// Connects to queue pair `dest` of the fake context, as far as the device accepts it.
fn connect(qp: &mut dyn QueuePair, dest: u32) {
    let mut gid = Gid::default();
    gid.0[8..].copy_from_slice(&HOST.0.to_le_bytes());
    let steps = [
        QpAttr {
            access: Some(Access::ALL),
            ..QpAttr::to_state(QpState::Init)
        },
        QpAttr {
            dest_gid: Some(gid),
            dest_qpn: Qpn::new(dest),
            rq_psn: Some(Psn::truncated(0)),
            path_mtu: Some(Mtu::B4096),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(RnrTimer::default()),
            ..QpAttr::to_state(QpState::Rtr)
        },
        QpAttr {
            sq_psn: Some(Psn::truncated(0)),
            timeout: Some(4),
            retry_count: Some(1),
            rnr_retry: Some(1),
            max_rd_atomic: Some(1),
            ..QpAttr::to_state(QpState::Rts)
        },
    ];
    let _ = steps.iter().try_for_each(|step| qp.modify(step));
}

//! A fake context in the registry. It hands out any files, and its table was never a table.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use headworks_shm::{
    ContextClaim, ContextRecord, DescriptorClient, DescriptorRequest, DescriptorSource, HostKey,
    HugePages, Member, ProcessId, Registry, SegmentRequest, SharedSegment, View, WakePipe,
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
    let claim = things.claim(&record);
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

/// A context that is none: what its process hands out under the record's incarnation may be any files.
pub(super) struct FakeContext {
    member: Arc<Member>,
    files: Arc<FakeFiles>,
    incarnation: u64,
    /// Offsets of the table's cache lines that are not zero at first.
    lines: Vec<usize>,
}

/// The files that a fake context hands out.
struct FakeFiles {
    /// A segment that is as long as a table. Zero at first, or a copy of a real table.
    table: Arc<SharedSegment>,
    short: SharedSegment,
    pipe: WakePipe,
    socket: OwnedFd,
    file: std::fs::File,
    /// What is handed out for a table, and for everything else: an index of a file, or of what is right.
    choices: [u8; 4],
}

impl FakeFiles {
    fn any(&self, choice: u8, right: OwnedFd) -> io::Result<OwnedFd> {
        match choice {
            0..16 => self.short.fd().try_clone_to_owned(),
            16..24 => self.socket.try_clone(),
            24..32 => Ok(self.file.try_clone()?.into()),
            32..48 => self.table.fd().try_clone_to_owned(),
            48..56 => Ok(self.pipe.descriptors()?.remove(0)),
            _ => Ok(right),
        }
    }
}

impl DescriptorSource for FakeFiles {
    fn descriptors(&self, request: DescriptorRequest) -> io::Result<Option<Vec<OwnedFd>>> {
        let [table, reader, writer, others] = self.choices;
        let mut pipe = self.pipe.descriptors()?;
        match request.kind {
            0 => {
                let mut all = vec![self.any(table, self.table.fd().try_clone_to_owned()?)?];
                all.push(self.any(reader, pipe.remove(0))?);
                all.push(self.any(writer, pipe.remove(0))?);
                all.truncate(usize::from(table % 64).max(1));
                Ok(Some(all))
            }
            1 if others < 128 => Ok(Some(vec![
                self.any(others, self.table.fd().try_clone_to_owned()?)?,
            ])),
            2 if others < 192 => Ok(Some(pipe)),
            _ => Ok(None),
        }
    }
}

impl FakeContext {
    pub(super) fn new(input: &mut Input<'_>, fabric: &Arc<Registry>) -> Self {
        let listed = fabric.list_contexts().expect("the registry");
        let (_, real) = listed.entries.first().expect("the victim's");
        let mut client = DescriptorClient::connect(fabric, real.process)
            .expect("the registry")
            .expect("it lives");
        let found = client.descriptors(real.incarnation, DescriptorRequest::default());
        let fd = found.expect("an answer").expect("a table").swap_remove(0);
        let real = View::from(Arc::new(SharedSegment::attach(fd).expect("a table")));
        let segment = |len| {
            let request = SegmentRequest {
                name: "fuzz",
                len,
                huge_pages: HugePages::No,
                numa_node: None,
                is_sealed: false,
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
        let files = Arc::new(FakeFiles {
            table,
            short: segment(4096),
            pipe: WakePipe::new().expect("a pipe"),
            socket: socket.into(),
            file: tempfile::tempfile().expect("a file"),
            choices: [input.byte(), input.byte(), input.byte(), input.byte()],
        });
        // A process of its own, as far as the registry is concerned.
        let member = Registry::open_at(fabric.path()).and_then(|registry| registry.join());
        let member = member.expect("a member");
        let incarnation = 1 + u64::from(input.byte());
        let source: Weak<FakeFiles> = Arc::downgrade(&files);
        member.serve(incarnation, source).expect("a socket");
        Self {
            member,
            files,
            incarnation,
            lines,
        }
    }

    /// Claims the first index of the fake context's host.
    pub(super) fn claim(&self, record: &ContextRecord) -> ContextClaim {
        let registry = self.member.registry();
        let claim = registry.claim_context(HOST, &self.member, record);
        claim.expect("a free index")
    }

    pub(super) fn record(&self, input: &mut Input<'_>) -> ContextRecord {
        let us = self.member.id();
        let process = match input.byte() {
            0..8 => ProcessId {
                slot: 1,
                generation: 0,
            },
            8..16 => ProcessId {
                slot: input.u64() as u32,
                generation: us.generation,
            },
            _ => us,
        };
        ContextRecord {
            process,
            layout_version: input.byte().into(),
            incarnation: match input.byte() {
                0..16 => input.byte().into(),
                _ => self.incarnation,
            },
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
        let any = [input.below(self.files.table.len() / LINE) * LINE];
        let lines = match self.lines.is_empty() {
            true => &any[..],
            false => &self.lines,
        };
        lines[input.below(lines.len())]
    }

    /// Stores from `least` to `least + more - 1` words, the first at the beginning of `line`.
    fn store(&self, input: &mut Input<'_>, line: usize, least: usize, more: usize) {
        let view = View::from(self.files.table.clone());
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

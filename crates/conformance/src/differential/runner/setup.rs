//! Creates the objects of a program.

use std::collections::BTreeMap;

use headworks_verbs::{QpState, QpType, RnrTimer};

use super::{ProgramRunner, Region, RunningQp};
use crate::CaseContext;
use crate::call::{Call, Id, Port, QpCreateCall, Reply};
use crate::case_context::{Host, QpFixture, QpOptions};
use crate::differential::observation::CallOutcome;
use crate::differential::outstanding::OutstandingWork;
use crate::differential::program::{
    DEPTH, INLINE_MAX, LEN, PIECES_MAX, Program, QpConfig, RegionSpec,
};
use crate::world::HostRole;

impl<'b, 'w> ProgramRunner<'b, 'w> {
    /// Creates the initial objects of a program and connects all lines.
    pub(in crate::differential) fn new(
        cx: &'b mut CaseContext<'w>,
        device: usize,
        program: &Program,
    ) -> Result<Self, String> {
        let hosts = [cx.host(HostRole::First)?, cx.host(HostRole::Second)?];
        let mut stand = Self {
            cx,
            hosts,
            pds: [[0; 2]; 2],
            regions: [Vec::new(), Vec::new()],
            lines: Vec::new(),
            next_wr: 1,
            scattered: BTreeMap::new(),
            faulty_receives: BTreeMap::new(),
            reach: BTreeMap::new(),
            named: BTreeMap::new(),
            fetched: BTreeMap::new(),
            causes: BTreeMap::new(),
            places: BTreeMap::new(),
            objects: Vec::new(),
            keeps_last: false,
            receives_in_error: true,
            hangs: Vec::new(),
            device,
            told: Vec::new(),
        };
        for (end, host) in hosts.into_iter().enumerate() {
            for which in 0..2 {
                let pd = stand.object(host);
                let device = host.device;
                stand.call_ok(end, Call::AllocPd { pd, device })?;
                stand.pds[end][which] = pd;
            }
            for memory in &program.memory[end] {
                let outcome = stand.register(end, *memory)?;
                crate::ensure!(
                    outcome == CallOutcome::Done,
                    "memory was refused: {outcome:?}"
                );
            }
        }
        for line in &program.lines {
            let first = stand.tail(0, line.qp_type, &line.ends[0])?;
            let second = stand.tail(1, line.qp_type, &line.ends[1])?;
            stand.lines.push([first, second]);
            stand.bring_up(stand.lines.len() - 1)?;
        }
        Ok(stand)
    }

    pub(super) fn object(&mut self, host: Host) -> Id {
        let id = self.cx.new_id();
        self.objects.push((host, id));
        id
    }

    /// Allocates and registers memory. If the registration is refused, there is no new memory.
    pub(super) fn register(
        &mut self,
        end: usize,
        memory: RegionSpec,
    ) -> Result<CallOutcome, String> {
        let host = self.hosts[end];
        let (buffer, region) = (self.object(host), self.cx.new_id());
        let (device, len) = (host.device, LEN);
        let make = match memory.heap {
            true => Call::Heap { buffer, len },
            false => Call::Alloc {
                buffer,
                device,
                len,
                align: 64,
            },
        };
        self.call_ok(end, make)?;
        let seed = fill_seed(end, self.regions[end].len());
        let fill = Call::Fill {
            buffer,
            offset: 0,
            len,
            seed,
        };
        self.call_ok(end, fill)?;
        let call = Call::Register {
            region,
            pd: self.pds[end][usize::from(memory.foreign)],
            buffer,
            access: memory.access,
        };
        let outcome = self.try_call(end, call);
        if outcome == CallOutcome::Done {
            self.objects.push((host, region));
            self.regions[end].push(Region {
                id: region,
                buffer,
                memory,
                is_live: true,
            });
        }
        Ok(outcome)
    }

    pub(super) fn tail(
        &mut self,
        end: usize,
        qp_type: QpType,
        ending: &QpConfig,
    ) -> Result<RunningQp, String> {
        let host = self.hosts[end];
        let (device, pd) = (host.device, self.pds[end][0]);
        let options = options(qp_type, ending);
        let depth = 4 * DEPTH;
        let send_cq = self.object(host);
        let cq = |cq| Call::CreateCq {
            cq,
            device,
            depth,
            channel: None,
            timestamps: false,
        };
        self.call_ok(end, cq(send_cq))?;
        let recv_cq = match ending.one_cq {
            true => send_cq,
            false => {
                let recv_cq = self.object(host);
                self.call_ok(end, cq(recv_cq))?;
                recv_cq
            }
        };
        let srq = match ending.shared {
            false => None,
            true => {
                let srq = self.object(host);
                let call = Call::CreateSrq {
                    srq,
                    pd,
                    max_wr: DEPTH,
                    max_sge: PIECES_MAX,
                    limit: 0,
                };
                self.call_ok(end, call)?;
                Some(srq)
            }
        };
        let qp = self.object(host);
        let plan = QpCreateCall {
            qp,
            pd,
            qp_type,
            send_cq,
            recv_cq,
            srq,
            caps: options.caps,
            signal_all: options.signal_all,
        };
        let Reply::Queue { caps, .. } = self.call_ok(end, Call::CreateQp(plan))? else {
            return Err("unexpected reply to the creation of a queue pair".to_owned());
        };
        let ah = match qp_type {
            QpType::Ud => {
                let ah = self.object(host);
                let to = Port::Of {
                    host: self.hosts[1 - end].id,
                };
                self.call_ok(end, Call::CreateAh { ah, pd, to })?;
                Some(ah)
            }
            _ => None,
        };
        let side = QpFixture {
            host,
            pd,
            // These are not used.
            channel: 0,
            buffer: 0,
            region: 0,
            len: 0,
            send_cq,
            recv_cq,
            srq,
            qp,
            caps,
            depth,
        };
        Ok(RunningQp {
            side,
            options,
            is_gone: false,
            state: QpState::Reset,
            outstanding: OutstandingWork::default(),
            shared: Vec::new(),
            ah,
            failures: 0,
            errors: 0,
        })
    }
}

fn options(qp_type: QpType, ending: &QpConfig) -> QpOptions {
    let mut options = QpOptions {
        qp_type,
        access: ending.access,
        signal_all: ending.signal_all,
        timeout: 12,
        // On some devices a retry count of 7 means forever, as it does for RNR retries.
        retry_count: 6,
        rnr_retry: 1,
        min_rnr_timer: RnrTimer::new(1).unwrap_or_default(),
        ..QpOptions::default()
    };
    options.caps.max_send_wr = DEPTH;
    options.caps.max_recv_wr = DEPTH;
    options.caps.max_send_sge = PIECES_MAX;
    options.caps.max_recv_sge = PIECES_MAX;
    options.caps.max_inline = INLINE_MAX;
    options
}

/// Returns the seed of the initial contents of a memory.
fn fill_seed(end: usize, number: usize) -> u64 {
    (end as u64 + 1) << 32 | number as u64
}

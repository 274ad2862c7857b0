//! Posts 64-byte WRITEs, one by one, from one queue pair to another of the same device.

use std::sync::Arc;

use headworks::verbs::bringup::ConnectionParams;
use headworks::verbs::{
    Access, AllocRequest, BringUp, Completion, CompletionQueue, CqInit, Device, DeviceName,
    Payload, ProtectionDomain, QpCaps, QpInit, QpType, QueuePair, SendFlags, SendOp, SendWr,
    Status,
};
use headworks_runtime::DeviceOpener;

use crate::error::WorkloadError;

/// Bytes of a WRITE.
const SIZE: u32 = 64;
/// One of this many WRITEs is signalled, and its completion polled.
const SIGNAL_EVERY: u64 = 32;

struct End {
    qp: Box<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
}

/// Posts `count` WRITEs and polls their completions.
pub(super) fn post(
    name: &DeviceName,
    count: u64,
    open: &DeviceOpener,
) -> Result<(), WorkloadError> {
    let device = open(name).map_err(|e| WorkloadError::at("device", e))?;
    let pd = device
        .alloc_pd()
        .map_err(|e| WorkloadError::at("protection domain", e))?;
    let (mut here, mut there) = (end(&*device, &*pd)?, end(&*device, &*pd)?);
    connect(&*device, &mut *here.qp, &mut *there.qp)?;
    let memory = || {
        let buffer = device
            .alloc(&AllocRequest::of(4096))
            .map_err(|e| WorkloadError::at("memory", e))?;
        pd.register(&buffer, Access::ALL)
            .map_err(|e| WorkloadError::at("registering", e))
    };
    let (from, to) = (memory()?, memory()?);
    let sges = [from.sge(0, SIZE)];
    for index in 1..=count {
        let signalled = index.is_multiple_of(SIGNAL_EVERY) || index == count;
        let flags = if signalled {
            SendFlags::SIGNALED
        } else {
            SendFlags::NONE
        };
        let op = SendOp::Write(to.remote((index as usize % 64) * 64));
        let wr = SendWr {
            wr_id: index,
            op,
            payload: Payload::Gather(&sges),
            flags,
        };
        here.qp
            .post_send(&[wr])
            .map_err(|e| WorkloadError::at("posting", e))?;
        if signalled {
            completed(&*here.cq, index)?;
        }
    }
    Ok(())
}

fn completed(cq: &dyn CompletionQueue, index: u64) -> Result<(), WorkloadError> {
    let mut found = [Completion::default()];
    while cq
        .poll(&mut found)
        .map_err(|e| WorkloadError::at("polling", e))?
        == 0
    {
        std::hint::spin_loop();
    }
    if found[0].status != Status::Success || found[0].wr_id != index {
        return Err(WorkloadError(format!(
            "WRITE {index} completed as {:?}",
            found[0]
        )));
    }
    Ok(())
}

fn end(device: &dyn Device, pd: &dyn ProtectionDomain) -> Result<End, WorkloadError> {
    let cq = device
        .create_cq(&CqInit {
            depth: 128,
            ..CqInit::default()
        })
        .map_err(|e| WorkloadError::at("completion queue", e))?;
    let qp = pd
        .create_qp(&QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            caps: QpCaps::default(),
            signal_all: false,
        })
        .map_err(|e| WorkloadError::at("queue pair", e))?;
    Ok(End { qp, cq })
}

fn connect(
    device: &dyn Device,
    here: &mut dyn QueuePair,
    there: &mut dyn QueuePair,
) -> Result<(), WorkloadError> {
    let failed = |e| WorkloadError::at("connecting", e);
    let start = |qp: &mut dyn QueuePair, psn| {
        BringUp::start(
            device.info(),
            qp,
            ConnectionParams::default(),
            psn,
            Vec::new(),
        )
        .map_err(failed)
    };
    let (mut a, mut b) = (start(here, 1)?, start(there, 2)?);
    a.connect_both(here, &mut b, there).map_err(failed)
}

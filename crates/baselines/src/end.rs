//! A device's objects at one end of what is compared: queue pairs, their queues and memory.

use std::sync::Arc;

use headworks_verbs::{
    Access, AllocRequest, CompletionChannel, CompletionQueue, CqInit, Device, ProtectionDomain,
    QpCaps, QpInit, QpType, QueuePair, ResourceError, SharedReceiveQueue, SrqInit,
};

use crate::Memory;

/// What an end is made of.
#[derive(Clone, Copy, Debug)]
pub struct EndSizes {
    /// How many queue pairs.
    pub queue_pairs: usize,
    /// Their sizes.
    pub caps: QpCaps,
    /// Completions that the queue of all their sends, and that of all their receives, holds.
    pub cq_depth: u32,
    /// Receives of the SRQ that all of them have; 0 for receive queues of their own.
    pub shared_receives: u32,
    /// Whether receives complete on a channel.
    pub channel: bool,
}

/// The device could not give an end one of its objects.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct EndError {
    /// The call or object that failed, as in "opening the device".
    pub what: &'static str,
    /// What the device answered.
    pub source: ResourceError,
}

fn no(what: &'static str) -> impl Fn(ResourceError) -> EndError {
    move |source| EndError { what, source }
}

/// The objects of one end. Dropped in this order.
pub struct End {
    /// The queue pairs.
    pub queue_pairs: Vec<Box<dyn QueuePair>>,
    /// What they receive from, if they share that.
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
    /// Where all sends complete.
    pub send_cq: Arc<dyn CompletionQueue>,
    /// Where all receives complete.
    pub recv_cq: Arc<dyn CompletionQueue>,
    /// Where `recv_cq` raises its events, if asked for.
    pub channel: Option<Arc<dyn CompletionChannel>>,
    /// The domain of all of it.
    pub pd: Arc<dyn ProtectionDomain>,
    /// The device.
    pub device: Arc<dyn Device>,
}

impl End {
    /// Everything but the queue pairs.
    pub fn open(device: Arc<dyn Device>, shape: &EndSizes) -> Result<Self, EndError> {
        let pd = device.alloc_pd().map_err(no("protection domain"))?;
        let channel = match shape.channel {
            false => None,
            true => Some(device.create_channel().map_err(no("completion channel"))?),
        };
        let cq = |channel| {
            let init = CqInit {
                depth: shape.cq_depth,
                channel,
                timestamps: false,
            };
            device.create_cq(&init).map_err(no("completion queue"))
        };
        let (send_cq, recv_cq) = (cq(None)?, cq(channel.clone())?);
        let srq = match shape.shared_receives {
            0 => None,
            max_wr => {
                let init = SrqInit {
                    max_wr,
                    max_sge: 1,
                    limit: 0,
                };
                Some(pd.create_srq(&init).map_err(no("shared receive queue"))?)
            }
        };
        Ok(Self {
            queue_pairs: Vec::with_capacity(shape.queue_pairs),
            srq,
            send_cq,
            recv_cq,
            channel,
            pd,
            device,
        })
    }

    /// Makes the queue pairs.
    pub fn populate(&mut self, shape: &EndSizes) -> Result<(), EndError> {
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: self.send_cq.clone(),
            recv_cq: self.recv_cq.clone(),
            srq: self.srq.clone(),
            caps: shape.caps,
            signal_all: false,
        };
        for _ in 0..shape.queue_pairs {
            let made = self.pd.create_qp(&init).map_err(no("queue pair"))?;
            self.queue_pairs.push(made);
        }
        Ok(())
    }

    /// `len` bytes of the device's memory, for everything.
    pub fn memory(&self, len: usize) -> Result<Memory, EndError> {
        self.memory_as(&AllocRequest::of(len))
    }

    /// The device's memory as asked for, for everything.
    pub fn memory_as(&self, request: &AllocRequest) -> Result<Memory, EndError> {
        let buffer = self.device.alloc(request).map_err(no("memory"))?;
        let region = self.pd.register(&buffer, Access::ALL);
        Ok(Memory::over(region.map_err(no("registering"))?))
    }
}

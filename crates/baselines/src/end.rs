//! One end's device objects: queue pairs, completion queues and memory.

use std::sync::Arc;

use headworks_verbs::{
    Access, AllocRequest, CompletionChannel, CompletionQueue, CqInit, Device, ProtectionDomain,
    QpCaps, QpInit, QpType, QueuePair, ResourceError, SharedReceiveQueue, SrqInit,
};

use crate::WordMemory;

/// Number and sizes of an end's objects.
#[derive(Clone, Copy, Debug)]
pub struct EndSizes {
    /// Number of queue pairs.
    pub queue_pairs: usize,
    /// Capacities of each queue pair.
    pub caps: QpCaps,
    /// Depth of each of the two completion queues: one for all sends, one for all receives.
    pub cq_depth: u32,
    /// Receives that the shared receive queue holds; 0 gives each queue pair its own receive queue.
    pub shared_receives: u32,
    /// Whether the receive completion queue has a completion channel.
    pub channel: bool,
}

/// The device failed to create one of an end's objects.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct EndError {
    /// The call or object that failed, as in "opening the device".
    pub what: &'static str,
    /// The device's error.
    pub source: ResourceError,
}

fn no(what: &'static str) -> impl Fn(ResourceError) -> EndError {
    move |source| EndError { what, source }
}

/// The device objects of one end. Fields are dropped in declaration order.
pub struct End {
    /// The queue pairs.
    pub queue_pairs: Vec<Box<dyn QueuePair>>,
    /// Shared receive queue of all queue pairs, if they share one.
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
    /// Completion queue of all sends.
    pub send_cq: Arc<dyn CompletionQueue>,
    /// Completion queue of all receives.
    pub recv_cq: Arc<dyn CompletionQueue>,
    /// Channel on which `recv_cq` raises its events, if requested.
    pub channel: Option<Arc<dyn CompletionChannel>>,
    /// Protection domain of all these objects.
    pub pd: Arc<dyn ProtectionDomain>,
    /// The device.
    pub device: Arc<dyn Device>,
}

impl End {
    /// Creates all objects except the queue pairs.
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

    /// Creates the queue pairs, of type RC.
    pub fn populate(&mut self, shape: &EndSizes) -> Result<(), EndError> {
        self.populate_with(shape, QpType::Rc)
    }

    /// Creates the queue pairs.
    pub fn populate_with(&mut self, shape: &EndSizes, qp_type: QpType) -> Result<(), EndError> {
        let init = QpInit {
            qp_type,
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

    /// Allocates `len` bytes of the device's memory and registers them with all access rights.
    pub fn memory(&self, len: usize) -> Result<WordMemory, EndError> {
        self.memory_as(&AllocRequest::of(len))
    }

    /// Allocates device memory as `request` says and registers it with all access rights.
    pub fn memory_as(&self, request: &AllocRequest) -> Result<WordMemory, EndError> {
        let buffer = self.device.alloc(request).map_err(no("memory"))?;
        let region = self.pd.register(&buffer, Access::ALL);
        Ok(WordMemory::over(region.map_err(no("registering"))?))
    }
}

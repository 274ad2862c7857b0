//! The daemon's side of an application's session.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use headworks_client::socket_message::{ADDRESS_SINCE, Refusal, Reply};
use headworks_client::{Doorbell, Vqpn};
use headworks_verbs::{Device, ProtectionDomain};
use slab::Slab;

use crate::limits::DaemonLimits;
use crate::session_memory::SessionMemory;
use crate::snapshot::Traffic;

/// Session of an application.
pub(crate) struct Session {
    /// Name that the application chose.
    pub(crate) name: String,
    pub(crate) memory: SessionMemory,
    pub(crate) doorbell: Doorbell,
    /// Connections by handle.
    pub(crate) handles: Slab<Vqpn>,
    handles_max: usize,
    /// Replies that the application is to be sent.
    pub(crate) replies: VecDeque<Reply>,
    pub(crate) traffic: Traffic,
    /// The application is gone. The daemon finishes what is left without it.
    pub(crate) is_gone: bool,
}

impl Session {
    /// Creates the session of an application that attached as `name` to the daemon that serves `address`.
    ///
    /// # Errors
    ///
    /// [`Refusal::Limit`], [`Refusal::Memory`].
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        pd: &Arc<dyn ProtectionDomain>,
        config: &DaemonLimits,
        name: String,
        version: u16,
        address: IpAddr,
    ) -> Result<Self, Refusal> {
        let mut memory = SessionMemory::new(device, pd, config);
        let handles = config.connections_each as usize;
        let extent = memory.take(Doorbell::bytes(handles) as u32)?;
        let doorbell = Doorbell::at(memory.slabs(), extent, handles);
        let doorbell = doorbell.map_err(|_| Refusal::Memory)?;
        let attached = Reply::Attached {
            version,
            doorbell: extent,
            handles: config.connections_each,
            address: Some(address).filter(|_| version >= ADDRESS_SINCE),
        };
        Ok(Self {
            name,
            memory,
            doorbell,
            handles: Slab::new(),
            handles_max: handles,
            replies: VecDeque::from([attached]),
            traffic: Traffic::default(),
            is_gone: false,
        })
    }

    /// Whether the session may have another connection.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_gone && self.handles.len() < self.handles_max
    }
}

//! An opened device as the application holds it: `verbs::Device`, and creation of the objects.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use headworks_verbs::{
    Access, AddressHandle, AhInit, AllocRequest, AsyncEvent, Buffer, CompletionChannel,
    CompletionQueue, CqInit, Device, DeviceInfo, Instant, ProtectionDomain, QpInit, QueuePair,
    Region, ResourceError, SharedReceiveQueue, SrqInit,
};

use crate::control::address_handle::SoftAh;
use crate::control::buffer::{Registrar, SoftBuffer};
use crate::control::objects::Objects;
use crate::control::progress_thread;
use crate::datapath::completion_channel::SoftChannel;
use crate::datapath::context::{Context, ContextRelease};
use crate::datapath::qp::{QpParts, SoftCq, SoftQp, checked_caps};
use crate::datapath::srq::SoftSrq;
use crate::table::clock;

/// The device as the application holds it.
pub(crate) struct SoftDevice {
    pub(crate) context: Arc<Context>,
    pub(crate) objects: Arc<Objects>,
    _release: ContextRelease,
}

impl SoftDevice {
    /// Makes the device of a context that was just opened.
    pub(crate) fn over(context: Arc<Context>) -> Self {
        Self {
            _release: ContextRelease::of(&context),
            context,
            objects: Arc::default(),
        }
    }

    /// Makes another handle of the same device.
    pub(crate) fn again(&self) -> Self {
        Self {
            _release: ContextRelease::of(&self.context),
            context: self.context.clone(),
            objects: self.objects.clone(),
        }
    }

    fn usable(&self) -> Result<&Arc<Context>, ResourceError> {
        if self.context.is_foreign() {
            Err(ResourceError::Forked)
        } else {
            Ok(&self.context)
        }
    }

    /// Registers all of `buffer` in protection domain `pd`.
    pub(crate) fn register(
        &self,
        pd: u32,
        buffer: &Arc<dyn Buffer>,
        access: Access,
    ) -> Result<Region, ResourceError> {
        self.registrar(pd)?.register(buffer, access)
    }

    fn registrar(&self, pd: u32) -> Result<Registrar<'_>, ResourceError> {
        Ok(Registrar {
            context: self.usable()?,
            buffers: &self.objects.buffers,
            queue_pairs: &self.objects.queue_pairs,
            pd,
        })
    }

    /// Creates a shared receive queue in protection domain `pd`.
    pub(crate) fn create_srq(
        &self,
        pd: u32,
        init: &SrqInit,
    ) -> Result<Arc<SoftSrq>, ResourceError> {
        let srq = Arc::new(SoftSrq::create(self.usable()?, pd, init)?);
        self.objects.enter_srq(&srq);
        Ok(srq)
    }

    /// Creates a queue pair in protection domain `pd`.
    pub(crate) fn create_qp(&self, pd: u32, init: &QpInit) -> Result<SoftQp, ResourceError> {
        let context = self.usable()?;
        let caps = checked_caps(context, init)?;
        progress_thread::start(context, &self.objects)?;
        let parts = QpParts {
            pd,
            caps,
            send_cq: self.objects.own_cq(&init.send_cq)?,
            recv_cq: self.objects.own_cq(&init.recv_cq)?,
            srq: match &init.srq {
                None => None,
                Some(srq) => Some(self.objects.own_srq(srq)?),
            },
        };
        SoftQp::create(context, &self.objects.queue_pairs, parts, init)
    }
}

impl Device for SoftDevice {
    fn info(&self) -> &DeviceInfo {
        &self.context.info
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        self.usable()?;
        Ok(Arc::new(SoftPd {
            device: self.again(),
            number: self.objects.next_pd(),
        }))
    }

    fn alloc(&self, request: &AllocRequest) -> Result<Arc<dyn Buffer>, ResourceError> {
        Ok(SoftBuffer::alloc(
            self.usable()?,
            &self.objects.buffers,
            request,
        )?)
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, ResourceError> {
        let context = self.usable()?;
        let number = self.objects.next_channel();
        let of = context.own.incarnation;
        let channel = SoftChannel::new(number, of)?;
        context.descriptors().add_channel(number, channel.pipe());
        Ok(Arc::new(channel))
    }

    fn create_cq(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, ResourceError> {
        let cq = Arc::new(SoftCq::create(self.usable()?, init)?);
        self.objects.enter_cq(&cq);
        Ok(cq)
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        self.context.events.fd()
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        if self.context.is_foreign() {
            None
        } else {
            self.context.events.next()
        }
    }

    fn now(&self) -> Instant {
        clock::now()
    }
}

/// A protection domain.
struct SoftPd {
    /// A handle of its own.
    device: SoftDevice,
    number: u32,
}

impl ProtectionDomain for SoftPd {
    fn register(&self, buffer: &Arc<dyn Buffer>, access: Access) -> Result<Region, ResourceError> {
        self.device.register(self.number, buffer, access)
    }

    fn register_again(
        &self,
        region: Region,
        buffer: &Arc<dyn Buffer>,
        access: Access,
    ) -> Result<Region, (ResourceError, Region)> {
        match self.device.registrar(self.number) {
            Ok(registrar) => registrar.register_again(region, buffer, access),
            Err(error) => Err((error, region)),
        }
    }

    fn create_ah(&self, init: &AhInit) -> Result<Arc<dyn AddressHandle>, ResourceError> {
        let context = self.device.usable()?;
        Ok(Arc::new(SoftAh::create(context, self.number, init)?))
    }

    fn create_srq(&self, init: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, ResourceError> {
        Ok(self.device.create_srq(self.number, init)?)
    }

    fn create_qp(&self, init: &QpInit) -> Result<Box<dyn QueuePair>, ResourceError> {
        Ok(Box::new(self.device.create_qp(self.number, init)?))
    }
}

//! A device that promises more than its kind does, or less.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use headworks::verbs::{
    AllocRequest, AsyncEvent, Buffer, CompletionChannel, CompletionQueue, CqInit, Device,
    DeviceInfo, Instant, Promises, ProtectionDomain, ResourceError,
};

/// Another device but for what it promises.
struct Promised {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
}

/// `inner` with these promises.
pub(super) fn promised(inner: Arc<dyn Device>, promises: Promises) -> Arc<dyn Device> {
    let mut info = inner.info().clone();
    info.promises = promises;
    Arc::new(Promised { inner, info })
}

impl Device for Promised {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, ResourceError> {
        self.inner.alloc_pd()
    }

    fn alloc(&self, request: &AllocRequest) -> Result<Arc<dyn Buffer>, ResourceError> {
        self.inner.alloc(request)
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, ResourceError> {
        self.inner.create_channel()
    }

    fn create_cq(&self, init: &CqInit) -> Result<Arc<dyn CompletionQueue>, ResourceError> {
        self.inner.create_cq(init)
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        self.inner.async_fd()
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        self.inner.next_async_event()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }
}

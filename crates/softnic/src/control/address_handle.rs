//! An address handle as the application holds it.

use std::sync::Arc;

use headworks_verbs::{AddressHandle, AhInit, AhKey, ResourceError};

use crate::datapath::context::{Context, ContextRelease};

/// An address handle of this process.
pub(crate) struct SoftAh {
    context: Arc<Context>,
    key: AhKey,
    _release: ContextRelease,
}

impl SoftAh {
    pub(crate) fn create(
        context: &Arc<Context>,
        pd: u32,
        init: &AhInit,
    ) -> Result<Self, ResourceError> {
        ResourceError::check("flow label", init.flow_label, 0..=(1 << 20) - 1)?;
        ResourceError::check("service level", init.service_level.into(), 0..=15)?;
        let limit = context.info.limits.max_ah;
        let key = context.handles.enter(pd, init, limit)?;
        let context = context.clone();
        let _release = ContextRelease::of(&context);
        Ok(Self {
            context,
            key,
            _release,
        })
    }
}

impl AddressHandle for SoftAh {
    fn key(&self) -> AhKey {
        self.key
    }
}

impl Drop for SoftAh {
    fn drop(&mut self) {
        if !self.context.is_foreign() {
            self.context.handles.leave(self.key);
        }
    }
}

//! Completion channels.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use headworks_verbs::{CompletionChannel, CqId, ResourceError};

use crate::abi;
use crate::device::{Context, refused};
use crate::raw::Object;

/// A completion channel of libibverbs, whose descriptor does not block.
pub(crate) struct IbvChannel {
    pub(crate) channel: Object<abi::CompChannel>,
    pub(crate) context: Arc<Context>,
}

impl IbvChannel {
    pub(crate) fn create(context: &Arc<Context>) -> Result<Self, ResourceError> {
        let made = context.raw.create_channel();
        Ok(Self {
            channel: made.map_err(|error| refused("making a completion channel", error))?,
            context: context.clone(),
        })
    }
}

impl CompletionChannel for IbvChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    fn next_event(&self) -> Result<Option<CqId>, ResourceError> {
        self.context.usable()?;
        let event = self.channel.next_event();
        event.map_err(|error| refused("reading a completion channel", error))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

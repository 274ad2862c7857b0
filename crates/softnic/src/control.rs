//! The highest layer: opening devices, creating objects, and the progress thread, which looks after all objects of
//! a context.

pub(crate) mod address_handle;
pub(crate) mod bounce_service;
pub(crate) mod buffer;
pub(crate) mod device;
pub(crate) mod objects;
pub(crate) mod progress_thread;
pub mod provider;

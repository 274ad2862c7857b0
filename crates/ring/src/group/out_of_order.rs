//! Access to a ring of a group for taking messages out of order.

use std::ops::Deref;

use crate::error::RingError;
use crate::receiver::{HeldMessage, Receiver};

/// A receiving ring of a group, lent by [`Group::receiver`](super::Group::receiver). It can be queried like
/// a [`Receiver`], and messages can be taken from it. The receiver cannot be moved out: the group's other
/// records of it (its word of the tail array, its queue pair) refer to this receiver and to no other.
pub struct OutOfOrder<'g>(pub(super) &'g mut Receiver);

impl OutOfOrder<'_> {
    /// [`Receiver::try_take`].
    pub fn try_take(&mut self) -> Result<Option<HeldMessage>, RingError> {
        self.0.try_take()
    }

    /// [`Receiver::release`].
    ///
    /// # Panics
    /// If another receiver handed it out.
    pub fn release(&mut self, held: HeldMessage) -> Result<(), RingError> {
        self.0.release(held)
    }

    /// [`Receiver::arm`], for a ring that was made elsewhere and has a descriptor ([`Receiver::fd`]) of its
    /// own. A ring of the tail array has none: [`Group::arm`](super::Group::arm) arms it with the group.
    pub fn arm(&mut self) {
        self.0.arm();
    }

    /// [`Receiver::drain_events`], for a ring that was armed here.
    pub fn drain_events(&mut self) {
        self.0.drain_events();
    }

    /// [`Receiver::push_head`].
    pub fn push_head(&mut self) -> Result<bool, RingError> {
        self.0.push_head()
    }
}

impl Deref for OutOfOrder<'_> {
    type Target = Receiver;

    fn deref(&self) -> &Receiver {
        self.0
    }
}

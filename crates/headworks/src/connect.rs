//! The ends of a ring, made and connected over a [`Line`] in one call each.
//!
//! Both sides call at about the same time, one for the [`sender`], the other for the [`receiver`].
//! Who must not wait takes the same steps one by one, with [`SenderSetup`] and [`ReceiverSetup`].

use std::sync::Arc;

use headworks_ring::{Receiver, ReceiverSetup, RingConfig, Sender, SenderSetup, SetupError};
use headworks_stage::{ExchangeError, Line, Until};
use headworks_verbs::Device;

/// An end of a ring could not be made or connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// It could not be made, or the other side's does not match it.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The other side did not do its part.
    #[error(transparent)]
    Line(#[from] ExchangeError),
}

/// The sending end; the other side of the line makes the [`receiver`]. Waits for it.
pub fn sender<'u>(
    device: &Arc<dyn Device>,
    config: &RingConfig,
    line: &mut Line,
    until: impl Into<Until<'u>>,
) -> Result<Sender, ConnectError> {
    let mut setup = SenderSetup::new(device, config)?;
    let (tuning, ours) = (setup.tuning(), setup.greeting());
    let theirs = line.bring_up(device.info(), setup.queue_pair(), tuning, ours, until)?;
    Ok(setup.finish(&theirs.payload)?)
}

/// The receiving end; the other side of the line makes the [`sender`]. Waits for it.
pub fn receiver<'u>(
    device: &Arc<dyn Device>,
    config: &RingConfig,
    line: &mut Line,
    until: impl Into<Until<'u>>,
) -> Result<Receiver, ConnectError> {
    let mut setup = ReceiverSetup::new(device, config)?;
    let (tuning, ours) = (setup.tuning(), setup.greeting());
    let theirs = line.bring_up(device.info(), setup.queue_pair(), tuning, ours, until)?;
    Ok(setup.finish(&theirs.payload)?)
}

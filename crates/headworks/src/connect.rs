//! Makes each end of a ring and connects it over a [`ControlStream`] in one call.
//!
//! Both sides call at about the same time: one calls [`sender`], the other [`receiver`]. A caller that must
//! not wait performs the same steps one by one, with [`SenderSetup`] and [`ReceiverSetup`]. A caller that has
//! both ends connects them with [`pair`]. Ends that wait are connected by
//! [`BlockingSender::connect`](crate::blocking::BlockingSender::connect) and
//! [`BlockingReceiver::connect`](crate::blocking::BlockingReceiver::connect).
//!
//! Every call takes a limit: an [`Instant`](headworks_verbs::Instant), a [`std::time::Duration`] from now on, or a
//! [`WaitLimit`] with an interrupt.

use std::sync::Arc;

use headworks_net::{ControlStream, NetError, WaitLimit};
use headworks_ring::message_channel::meet;
use headworks_ring::{
    Group, Receiver, ReceiverSetup, RingConfig, RingId, Sender, SenderSetup, SetupError,
};
use headworks_verbs::Device;
use rustix::rand::{GetRandomFlags, getrandom};

/// An end of a ring could not be made or connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// This end could not be made, or the other end does not match it.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The control stream failed, or the bring-up with the other side did not complete.
    #[error(transparent)]
    ControlStream(#[from] NetError),
}

/// Makes the sending end and waits for the other side of the control stream, which makes the [`receiver`].
pub fn sender<'u>(
    device: &Arc<dyn Device>,
    config: &RingConfig,
    control: &mut ControlStream,
    until: impl Into<WaitLimit<'u>>,
) -> Result<Sender, ConnectError> {
    let mut setup = SenderSetup::new(device, config)?;
    let (tuning, ours) = (setup.connection_params(), setup.greeting());
    let theirs = control.bring_up(device.info(), setup.queue_pair(), tuning, ours, until)?;
    Ok(setup.finish(&theirs.payload)?)
}

/// Makes the receiving end and waits for the other side of the control stream, which makes the [`sender`].
pub fn receiver<'u>(
    device: &Arc<dyn Device>,
    config: &RingConfig,
    control: &mut ControlStream,
    until: impl Into<WaitLimit<'u>>,
) -> Result<Receiver, ConnectError> {
    let mut setup = ReceiverSetup::new(device, config)?;
    let (tuning, ours) = (setup.connection_params(), setup.greeting());
    let theirs = control.bring_up(device.info(), setup.queue_pair(), tuning, ours, until)?;
    Ok(setup.finish(&theirs.payload)?)
}

/// Makes and connects both ends in one process, for a test or for two threads. Does not wait.
pub fn pair(
    near: &Arc<dyn Device>,
    far: &Arc<dyn Device>,
    config: &RingConfig,
) -> Result<(Sender, Receiver), ConnectError> {
    let mut sender = SenderSetup::new(near, config)?;
    let mut receiver = ReceiverSetup::new(far, config)?;
    let (ours, theirs) = (sender.greeting(), receiver.greeting());
    let ends = ((near.info(), &mut sender), (far.info(), &mut receiver));
    meet(ends.0, ends.1, [random_psn()?, random_psn()?]).map_err(NetError::from)?;
    Ok((sender.finish(&theirs)?, receiver.finish(&ours)?))
}

fn random_psn() -> Result<u32, NetError> {
    let mut bytes = [0; 4];
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| NetError::System {
        what: "random numbers",
        source: error.into(),
    })?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Adds a ring to `group`, which was made on `device`, and waits for the other side of the control stream, which makes
/// the [`sender`].
///
/// ```
/// use headworks::connect;
/// use headworks::ring::{AfterStep, Group, GroupConfig, RingConfig};
/// use headworks::net::ControlStream;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let registry = headworks_shm::Registry::open_at(dir.path().join("registry"))?;
/// # let provider = headworks_softnic::SoftProvider::on(registry);
/// # let open = |name: &str| headworks::verbs::Provider::open(&provider, &name.parse().unwrap());
/// # let (device, theirs) = (open("soft:h1")?, open("soft:h2")?);
/// let config = RingConfig::fixed(128, 64);
/// let limit = Duration::from_secs(5);
/// let mut group = Group::receiving(&device, &GroupConfig::new(config.clone(), 1000))?;
///
// Each sender has a control of its own and is added when it connects.
/// let (mut control, mut there) = ControlStream::pair()?;
/// let sending = std::thread::spawn(move || {
///     let mut sender = connect::sender(&theirs, &config, &mut there, limit).unwrap();
///     sender.try_send(&[7; 64]).unwrap();
///     sender.flush().unwrap();
///     sender
/// });
/// let ring = connect::into_group(&device, &mut group, &mut control, limit)?;
///
/// loop {
///     if let Some((from, message)) = group.try_recv()? {
///         assert_eq!((from, message[0]), (ring, 7));
///         break;
///     }
///     group.step(AfterStep::Poll)?;
/// }
/// # sending.join().unwrap();
/// # Ok(())
/// # }
/// ```
pub fn into_group<'u>(
    device: &Arc<dyn Device>,
    group: &mut Group,
    control: &mut ControlStream,
    until: impl Into<WaitLimit<'u>>,
) -> Result<RingId, ConnectError> {
    let mut seat = group.seat()?;
    let (tuning, ours) = (seat.connection_params(), seat.greeting());
    let theirs = control.bring_up(device.info(), seat.queue_pair(), tuning, ours, until)?;
    Ok(group.admit(seat, &theirs.payload)?)
}

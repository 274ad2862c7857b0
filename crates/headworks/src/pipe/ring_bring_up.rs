//! Makes and connects the ring of a listener, in steps that never block.

use std::ops::ControlFlow;
use std::sync::Arc;

use headworks_net::{BringUpOverStream, ControlStream};
use headworks_ring::{Receiver, ReceiverSetup, Sender, SenderSetup};
use headworks_verbs::Device;

use super::{PipeError, ring};

/// One end of a connected ring.
pub(super) enum RingEnd {
    Sender(Sender),
    Receiver(Receiver),
}

/// An end of a ring that is not connected yet.
enum RingSetup {
    Sender(Box<SenderSetup>),
    Receiver(Box<ReceiverSetup>),
}

/// A ring that is being connected over a control stream.
pub(super) struct RingBringUp {
    setup: RingSetup,
    bring_up: BringUpOverStream,
}

impl RingBringUp {
    /// Makes this side's end of the ring on `device`: the sender if `sends`.
    pub(super) fn start(device: &Arc<dyn Device>, sends: bool) -> Result<Self, PipeError> {
        let (info, config) = (device.info(), ring());
        if sends {
            let mut setup = SenderSetup::new(device, &config)?;
            let (tuning, greeting) = (setup.connection_params(), setup.greeting());
            let qp = setup.queue_pair();
            let bring_up = BringUpOverStream::start(info, qp, tuning, greeting)?;
            let setup = RingSetup::Sender(Box::new(setup));
            return Ok(Self { setup, bring_up });
        }
        let mut setup = ReceiverSetup::new(device, &config)?;
        let (tuning, greeting) = (setup.connection_params(), setup.greeting());
        let qp = setup.queue_pair();
        let bring_up = BringUpOverStream::start(info, qp, tuning, greeting)?;
        let setup = RingSetup::Receiver(Box::new(setup));
        Ok(Self { setup, bring_up })
    }

    /// Does what can be done now. Breaks with the end once the ring is connected, else continues.
    pub(super) fn step(
        mut self,
        control: &mut ControlStream,
    ) -> Result<ControlFlow<RingEnd, Self>, PipeError> {
        let qp = match &mut self.setup {
            RingSetup::Sender(setup) => setup.queue_pair(),
            RingSetup::Receiver(setup) => setup.queue_pair(),
        };
        let Some(theirs) = self.bring_up.step(control, qp)? else {
            return Ok(ControlFlow::Continue(self));
        };
        Ok(ControlFlow::Break(match self.setup {
            RingSetup::Sender(setup) => RingEnd::Sender(setup.finish(&theirs.payload)?),
            RingSetup::Receiver(setup) => RingEnd::Receiver(setup.finish(&theirs.payload)?),
        }))
    }
}

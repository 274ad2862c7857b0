//! Connects all queue pairs of an actor by mail.

use std::sync::Arc;

use headworks::ring::Unconnected;
use headworks::verbs::{BringUp, Device};
use headworks_runtime::ActorContext;
use headworks_wire::{Decoder, Encoder};

use crate::actor_pair::PairMail;
use crate::connecting_actor::Connect;
use crate::error::{Result, WorkloadError};
use crate::seeds::bring_up_seed;

/// Ends that connect by mail and then become an arm. Each mail carries the bring-up of all ends, so both
/// actors must list theirs in the same order.
pub struct MailBringUp<S, F> {
    ends: Vec<(S, BringUp)>,
    finish: Option<F>,
    /// Keeps the device of the ends open.
    _device: Arc<dyn Device>,
}

fn failed(why: impl std::fmt::Display) -> WorkloadError {
    WorkloadError::at("connecting", why)
}

impl<S: Unconnected, F> MailBringUp<S, F> {
    /// Starts to connect `ends` on `device`. `finish` makes an arm of the ends and their peers' greetings.
    pub fn start<A>(device: Arc<dyn Device>, ends: Vec<S>, finish: F) -> Result<Self>
    where
        F: FnOnce(Vec<(S, Vec<u8>)>) -> Result<A>,
    {
        let seed = bring_up_seed(device.info());
        let ends = ends.into_iter().map(|mut end| {
            let (greeting, tuning) = (end.greeting(), end.connection_params());
            let up = BringUp::start(device.info(), end.queue_pair(), tuning, seed, greeting);
            Ok((end, up.map_err(failed)?))
        });
        Ok(Self {
            ends: ends.collect::<Result<_>>()?,
            finish: Some(finish),
            _device: device,
        })
    }

    fn on_mail(&mut self, mail: &[u8]) -> Result<()> {
        let mut of = Decoder::new(mail);
        for (end, up) in &mut self.ends {
            let len = of.u32().map_err(failed)?;
            let bytes = of.raw(len as usize).map_err(failed)?;
            if up.input(end.queue_pair(), bytes).map_err(failed)? != bytes.len() {
                return Err(failed("a mail is too long"));
            }
        }
        of.end().map_err(failed)
    }
}

impl<S, F, A> Connect for MailBringUp<S, F>
where
    S: Unconnected + Send,
    F: FnOnce(Vec<(S, Vec<u8>)>) -> Result<A> + Send,
    A: Send,
{
    type Connected = A;

    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Option<A>> {
        loop {
            let mut mail = Encoder::new();
            let mut is_silent = true;
            for (_, up) in &mut self.ends {
                let bytes = up.output();
                is_silent &= bytes.is_empty();
                mail = mail.u32(bytes.len() as u32).raw(&bytes);
            }
            if !is_silent {
                cx.send_mail(&mail.finish())?;
            }
            // Once all are connected, no more mail is read: it is meant for the workload.
            if self.ends.iter().all(|(_, up)| up.is_connected()) {
                break;
            }
            let Some(mail) = cx.receive_mail() else {
                return Ok(None);
            };
            self.on_mail(&mail)?;
        }
        let ends = std::mem::take(&mut self.ends).into_iter();
        let ends = ends.map(|(end, up)| {
            let peer = up.peer().ok_or_else(|| failed("an end has no greeting"))?;
            Ok((end, peer.payload.clone()))
        });
        let ends = ends.collect::<Result<_>>()?;
        let finish = self.finish.take();
        finish.ok_or_else(|| failed("the ends met before"))?(ends).map(Some)
    }
}

//! Connects all queue pairs of an actor by mail. Each mail to another actor carries the bring-up of all queue pairs
//! between the two, so both list them in the same order.

use headworks::runtime::ActorContext;
use headworks_patterns::{Area, PeerBringUps, Ports};
use headworks_wire::{Decoder, Encoder};

use crate::error::{Result, WorkloadError};

/// The queue pairs between this actor and another one.
struct RemoteActor {
    role: String,
    /// Each queue pair: the index of its [`Ports`] and its index there.
    queue_pairs: Vec<(usize, usize)>,
}

/// The bring-up of an actor's queue pairs.
pub(super) struct MailConnect {
    sides: Vec<PeerBringUps>,
    remote: Vec<RemoteActor>,
}

fn failed(why: impl std::fmt::Display) -> WorkloadError {
    WorkloadError::at("connecting", why)
}

impl MailConnect {
    /// Makes the bring-up of an actor without queue pairs.
    pub(super) fn new() -> Self {
        Self {
            sides: Vec::new(),
            remote: Vec::new(),
        }
    }

    /// Starts the bring-up of the queue pairs of `ports`. `area` is the area that each peer is given.
    pub(super) fn add_side(
        &mut self,
        ports: &mut Ports,
        seed: u32,
        area: impl Fn(usize) -> Area,
    ) -> Result<()> {
        let side = PeerBringUps::start(ports, seed, area).map_err(failed)?;
        self.sides.push(side);
        Ok(())
    }

    /// Adds the queue pairs to the actor called `role`: for each the index of its side, and its index there.
    pub(super) fn add_remote(&mut self, role: String, queue_pairs: Vec<(usize, usize)>) {
        self.remote.push(RemoteActor { role, queue_pairs });
    }

    /// Sends and takes mail. Returns whether all queue pairs are connected; then each side of `ports` knows the areas
    /// of its peers, and no more mail is read.
    pub(super) fn step(
        &mut self,
        ports: &mut [&mut Ports],
        cx: &mut ActorContext<'_>,
    ) -> Result<bool> {
        loop {
            self.send(cx)?;
            if self.sides.iter().all(PeerBringUps::is_connected) {
                break;
            }
            let Some(mail) = cx.receive() else {
                return Ok(false);
            };
            let from = self
                .remote
                .iter()
                .position(|remote| remote.role == mail.from);
            let from = from.ok_or_else(|| failed(format!("mail from {}", mail.from)))?;
            self.take(from, &mail.bytes, ports)?;
        }
        for (side, ports) in std::mem::take(&mut self.sides).into_iter().zip(ports) {
            side.finish(ports).map_err(failed)?;
        }
        Ok(true)
    }

    /// Mails what each remote actor is to get.
    fn send(&mut self, cx: &mut ActorContext<'_>) -> Result<()> {
        for remote in &mut self.remote {
            let mut mail = Encoder::new();
            let mut is_silent = true;
            for &(side, peer) in &remote.queue_pairs {
                let bytes = self.sides[side].output(peer);
                is_silent &= bytes.is_empty();
                mail = mail.u32(bytes.len() as u32).raw(&bytes);
            }
            if !is_silent {
                cx.send(&remote.role, &mail.finish()).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, from: usize, mail: &[u8], ports: &mut [&mut Ports]) -> Result<()> {
        let mut of = Decoder::new(mail);
        for &(side, peer) in &self.remote[from].queue_pairs {
            let len = of.u32().map_err(failed)?;
            let bytes = of.raw(len as usize).map_err(failed)?;
            self.sides[side]
                .input(ports[side], peer, bytes)
                .map_err(failed)?;
        }
        of.end().map_err(failed)
    }
}

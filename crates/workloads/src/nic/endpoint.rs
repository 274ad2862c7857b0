//! Opens one end of the measured queue pairs, and connects it to the other end by mail.

use headworks::ring::Unconnected;
use headworks::verbs::bringup::ConnectionParams;
use headworks::verbs::{QpType, QueuePair, RemoteAddr};
pub use headworks_baselines::{End, EndSizes};

use super::requester::Requester;
use super::{Made, Setup};
use crate::actor_pair::{PairContext, wait};
use crate::connecting_actor::Connect;
use crate::error::{Result, WorkloadError};
use crate::mail_bring_up::MailBringUp;
use headworks_runtime::{Actor, ActorContext, ActorError, Step};
use headworks_wire::{Decoder, Encoder};

/// Opens everything except the queue pairs, on the actor's device, which is paced if its name says so.
pub fn open(pair: &PairContext, shape: &EndSizes) -> Result<End> {
    Ok(End::open(pair.clone().paced().open_device()?, shape)?)
}

/// A queue pair that is not connected, and its greeting to the other end.
struct EndpointBringUp {
    qp: Box<dyn QueuePair>,
    qp_type: QpType,
    greeting: Vec<u8>,
}

impl Unconnected for EndpointBringUp {
    fn greeting(&self) -> Vec<u8> {
        self.greeting.clone()
    }

    fn queue_pair(&mut self) -> &mut dyn QueuePair {
        &mut *self.qp
    }

    fn connection_params(&self) -> ConnectionParams {
        ConnectionParams {
            qp_type: self.qp_type,
            ..ConnectionParams::default()
        }
    }
}

/// Encodes a memory address as a greeting.
pub fn emit(at: RemoteAddr) -> Vec<u8> {
    Encoder::new().field(&at).finish()
}

/// Decodes the memory address of a greeting.
pub fn parse(payload: &[u8]) -> Result<RemoteAddr> {
    let mut of = Decoder::new(payload);
    let address = of.field().and_then(|address| of.end().map(|()| address));
    address.map_err(|_| WorkloadError("connecting: no address in the greeting".into()))
}

impl Setup<'_> {
    /// Makes an end that posts `load`, with `len` bytes of memory. It is not connected.
    pub(super) fn source(
        &self,
        load: super::VerbLoad,
        shape: &EndSizes,
        len: usize,
    ) -> Result<Requester> {
        let mut end = open(self.pair, shape)?;
        end.populate_with(shape, load.qp_type())?;
        let memory = end.memory(len)?;
        Ok(Requester::new(load, end, memory))
    }
}

impl Requester {
    /// Makes the actor that connects this end, and then continues as the actor that `run` makes of it. Each
    /// end tells the other the address of memory that the other may access.
    pub(super) fn connect<F>(mut self, offered: RemoteAddr, run: F) -> Made
    where
        F: FnOnce(Self) -> Made + Send + 'static,
    {
        let mut greeting = emit(offered);
        let queue_pairs = self.end.queue_pairs.drain(..);
        // The first queue pair's greeting is for all.
        let qp_type = self.load.qp_type();
        let apart = queue_pairs.map(|qp| EndpointBringUp {
            qp,
            qp_type,
            greeting: std::mem::take(&mut greeting),
        });
        let apart = apart.collect();
        let mut meet = MailBringUp::start(self.end.device.clone(), apart, |met| {
            for (at, (apart, theirs)) in met.into_iter().enumerate() {
                if at == 0 {
                    self.target = parse(&theirs)?;
                }
                self.end.queue_pairs.push(apart.qp);
            }
            run(self)
        })?;
        started(move |cx| meet.step(cx))
    }

    /// Returns the remote address of this end's memory at `offset`.
    pub(super) fn offer(&self, offset: usize) -> RemoteAddr {
        self.memory.region().remote(offset)
    }
}

/// Makes an actor that calls `start` until it returns an actor, and then continues as that actor.
pub(super) fn started<F>(mut start: F) -> Made
where
    F: FnMut(&mut ActorContext<'_>) -> Result<Option<Box<dyn Actor>>> + Send + 'static,
{
    let mut playing: Option<Box<dyn Actor>> = None;
    acting(move |cx| {
        if let Some(playing) = &mut playing {
            return playing.step(cx);
        }
        playing = start(cx)?;
        Ok(playing.as_ref().map_or_else(wait, |_| Step::Again))
    })
}

/// Makes an actor whose step is a closure. The closure has captured the actor's state.
pub(super) fn acting<F>(step: F) -> Made
where
    F: FnMut(&mut ActorContext<'_>) -> Result<Step, ActorError> + Send + 'static,
{
    Ok(Box::new(Acting(step)))
}

struct Acting<F>(F);

impl<F> Actor for Acting<F>
where
    F: FnMut(&mut ActorContext<'_>) -> Result<Step, ActorError> + Send,
{
    #[inline]
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        (self.0)(cx)
    }
}

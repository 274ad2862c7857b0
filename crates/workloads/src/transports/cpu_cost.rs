//! Processor time, other than that of verbs calls, that an actor is charged where time is virtual. Elsewhere
//! the actor spends real time, and nothing here runs.
//!
//! Work is charged where it is done: a message before it is posted, its copy before its slot is freed. So it
//! delays what follows as it would on a machine.

use std::cell::RefCell;

use headworks::ring::{MessageReceiver, MessageSender, RingError, SendError};
use headworks::verbs::{Duration, Instant};

use super::job::{Channel, PaperBaseline, RingMode, Variant};
use super::{MessageSink, MessageSource, MessageTransport, TakeResult};
pub use crate::cpu_prices::CpuPrices;
use crate::error::Result;
use headworks_runtime::ActorContext;

/// Approximate length of a busy step in virtual time. An actor sees in its next step what others did
/// meanwhile.
const STEP: Duration = Duration::from_nanos(60);

/// Cost of one message to one of its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Time that does not depend on the length.
    pub each: Duration,
    /// Number of times that the bytes are copied.
    pub copies: u32,
    /// Whether the bytes are zeroed. That stores but does not load, so it costs half a copy.
    pub clears: bool,
}

impl Cost {
    fn charge(self, len: usize, cx: &mut ActorContext<'_>) {
        cx.charge(self.each);
        for _ in 0..self.copies {
            cx.copied(len as u64);
        }
        if self.clears {
            cx.copied(len as u64 / 2);
        }
    }
}

/// Cost of a message to both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageCost {
    /// Cost to the sending end.
    pub send: Cost,
    /// Cost to the receiving end.
    pub take: Cost,
}

impl MessageCost {
    /// Returns the cost of a message of `size` bytes on `channel`.
    pub fn of(channel: Channel, size: usize, prices: CpuPrices) -> Self {
        let [sender, receiver] = match channel {
            Channel::Baseline(PaperBaseline::Farm) => [0, 1],
            Channel::Baseline(
                PaperBaseline::SocksDirect | PaperBaseline::L5 | PaperBaseline::FarmAsPublished,
            )
            | Channel::Ring(RingMode::Paper(Variant::Copies))
            | Channel::Stream(..) => [1, 1],
            Channel::Baseline(PaperBaseline::Raw | PaperBaseline::SyncVariant(_)) => [0, 0],
            Channel::Ring(_) | Channel::Bare => [u32::from(!channel.in_place(size)), 0],
        };
        let is_raw = channel == Channel::Baseline(PaperBaseline::Raw);
        Self {
            send: Cost {
                each: if is_raw { prices.bench } else { prices.message },
                copies: sender,
                clears: false,
            },
            take: Cost {
                each: prices.message,
                copies: receiver,
                clears: matches!(
                    channel,
                    Channel::Baseline(PaperBaseline::Farm | PaperBaseline::FarmAsPublished)
                ),
            },
        }
    }

    /// Adds the time for which an application computes for each message that it sends, and for each that it
    /// takes.
    #[must_use]
    pub fn with_work(mut self, [send, take]: [Duration; 2]) -> Self {
        self.send.each = self.send.each + send;
        self.take.each = self.take.each + take;
        self
    }
}

/// Returns whether a step that began at `began` has taken as long as it should.
pub(crate) fn is_long(began: Instant, cx: &mut ActorContext<'_>) -> bool {
    cx.now().since(began) >= STEP
}

/// Charges the cost of each message that passes through it.
struct Charged<'a, 'c, T: ?Sized> {
    inner: &'a mut T,
    cx: &'a mut ActorContext<'c>,
    cost: Cost,
}

impl MessageSource for Charged<'_, '_, dyn MessageSource + '_> {
    fn fill(&mut self, message: &mut [u8]) {
        self.inner.fill(message);
        self.cost.charge(message.len(), self.cx);
    }

    fn again(&mut self) {
        self.inner.again();
    }
}

impl MessageSink for Charged<'_, '_, dyn MessageSink + '_> {
    fn take(&mut self, message: &[u8]) {
        self.cost.charge(message.len(), self.cx);
        self.inner.take(message);
    }
}

/// Does [`MessageTransport::offer`] and charges it.
#[inline]
pub(super) fn offer<A: MessageTransport, F: MessageSource>(
    arm: &mut A,
    n: usize,
    fill: &mut F,
    cx: &mut ActorContext<'_>,
) -> Result<usize> {
    match arm.price() {
        None => arm.offer(n, fill),
        Some(price) => offer_charged(arm, n, fill, cx, price.send),
    }
}

/// One instance for all sources, so that there is less to compile.
#[inline(never)]
fn offer_charged<A: MessageTransport>(
    arm: &mut A,
    n: usize,
    fill: &mut dyn MessageSource,
    cx: &mut ActorContext<'_>,
    cost: Cost,
) -> Result<usize> {
    let (began, mut accepted) = (cx.now(), 0);
    while accepted < n && (accepted == 0 || !is_long(began, cx)) {
        let inner = &mut *fill;
        if arm.offer(1, &mut Charged { inner, cx, cost })? == 0 {
            break;
        }
        accepted += 1;
    }
    Ok(accepted)
}

/// Does [`MessageTransport::take`] and charges it.
#[inline]
pub(super) fn take<A: MessageTransport, S: MessageSink>(
    arm: &mut A,
    max: usize,
    sink: &mut S,
    cx: &mut ActorContext<'_>,
) -> Result<TakeResult> {
    match arm.price() {
        None => arm.take(max, sink),
        Some(price) => take_charged(arm, max, sink, cx, price.take),
    }
}

/// One instance for all sinks, so that there is less to compile.
#[inline(never)]
fn take_charged<A: MessageTransport>(
    arm: &mut A,
    max: usize,
    sink: &mut dyn MessageSink,
    cx: &mut ActorContext<'_>,
    cost: Cost,
) -> Result<TakeResult> {
    let (began, mut taken) = (cx.now(), 0);
    while taken < max && (taken == 0 || !is_long(began, cx)) {
        let inner = &mut *sink;
        match arm.take(1, &mut Charged { inner, cx, cost })? {
            TakeResult::Messages(0) => break,
            TakeResult::Messages(n) => taken += n,
            TakeResult::Ended if taken == 0 => return Ok(TakeResult::Ended),
            TakeResult::Ended => break,
        }
    }
    Ok(TakeResult::Messages(taken))
}

/// Charges the messages of an application's channels to its actor.
pub struct CostMeter<'e, 'c> {
    cx: RefCell<&'e mut ActorContext<'c>>,
    price: MessageCost,
}

impl<'e, 'c> CostMeter<'e, 'c> {
    /// Makes a meter that charges `price` for each message.
    pub fn new(cx: &'e mut ActorContext<'c>, price: MessageCost) -> Self {
        let cx = RefCell::new(cx);
        Self { cx, price }
    }

    fn charge(&self, cost: Cost, len: usize) {
        cost.charge(len, &mut self.cx.borrow_mut());
    }

    /// Wraps a channel's end so that its messages are charged.
    pub fn at<'a, E>(&'a self, end: &'a mut E) -> ChargedEnd<'a, 'e, 'c, E> {
        ChargedEnd {
            end,
            cost_meter: self,
        }
    }
}

/// An end of a channel whose messages are charged.
pub struct ChargedEnd<'a, 'e, 'c, E> {
    end: &'a mut E,
    cost_meter: &'a CostMeter<'e, 'c>,
}

impl<S: MessageSender> MessageSender for ChargedEnd<'_, '_, '_, S> {
    fn try_send(&mut self, message: &[u8]) -> Result<(), SendError> {
        self.try_send_with(message.len(), |place| place.copy_from_slice(message))
    }

    fn try_send_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SendError> {
        let cost_meter = self.cost_meter;
        self.end.try_send_with(len, |place| {
            fill(place);
            cost_meter.charge(cost_meter.price.send, len);
        })
    }

    fn flush(&mut self) -> Result<bool, RingError> {
        self.end.flush()
    }

    fn step(&mut self) -> Result<bool, RingError> {
        self.end.step()
    }

    fn max_message(&self) -> usize {
        self.end.max_message()
    }

    fn sent(&self) -> u64 {
        self.end.sent()
    }

    fn published(&self) -> u64 {
        self.end.published()
    }

    fn consumed(&self) -> u64 {
        self.end.consumed()
    }
}

impl<R: MessageReceiver> MessageReceiver for ChargedEnd<'_, '_, '_, R> {
    fn try_recv_with<T>(&mut self, look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, RingError> {
        let cost_meter = self.cost_meter;
        self.end.try_recv_with(|message| {
            cost_meter.charge(cost_meter.price.take, message.len());
            look(message)
        })
    }

    fn step(&mut self) -> Result<bool, RingError> {
        self.end.step()
    }

    fn push_head(&mut self) -> Result<bool, RingError> {
        self.end.push_head()
    }

    fn consumed(&self) -> u64 {
        self.end.consumed()
    }
}

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::actor_pair::testing::MockContext;
use crate::cpu_prices::Stragglers;
use crate::transports::job::{Buffering, StreamKind, Waiting};
use crate::transports::message_contents::{MessageChecker, MessageWriter};
use crate::transports::mock_channel::MockChannel;

const PRICES: CpuPrices = CpuPrices {
    bench: Duration::from_nanos(100),
    message: Duration::from_nanos(15),
    stragglers: Stragglers::NONE,
};

fn baseline(baseline: PaperBaseline) -> Channel {
    Channel::Baseline(baseline)
}

fn ring(variant: Variant) -> Channel {
    Channel::Ring(RingMode::Paper(variant))
}

#[test]
fn designs_pay_for_the_copies_that_they_make_and_the_work_that_they_do() {
    let tcp = Channel::Stream(StreamKind::Tcp, Waiting::Spinning, Buffering::None);
    let default = Channel::Ring(RingMode::Default);
    let CpuPrices { bench, message, .. } = PRICES;
    for (channel, size, copies, each, clears) in [
        (ring(Variant::Full), 64, [0, 0], message, false),
        (ring(Variant::Copies), 64, [1, 1], message, false),
        // By default a ring copies short messages in, and has long ones written in place.
        (default, 64, [1, 0], message, false),
        (default, 1 << 20, [0, 0], message, false),
        // Only FaRM clears memory.
        (baseline(PaperBaseline::Farm), 64, [0, 1], message, true),
        (
            baseline(PaperBaseline::FarmAsPublished),
            64,
            [1, 1],
            message,
            true,
        ),
        (
            baseline(PaperBaseline::SocksDirect),
            64,
            [1, 1],
            message,
            false,
        ),
        (baseline(PaperBaseline::L5), 64, [1, 1], message, false),
        // Only raw WRITEs are charged perftest's work.
        (baseline(PaperBaseline::Raw), 64, [0, 0], bench, false),
        (tcp, 64, [1, 1], message, false),
    ] {
        let MessageCost { send, take } = MessageCost::of(channel, size, PRICES);
        assert_eq!([send.copies, take.copies], copies, "{channel}");
        assert_eq!([send.each, take.each], [each, message], "{channel}");
        assert_eq!([send.clears, take.clears], [false, clears], "{channel}");
    }
}

#[test]
fn an_applications_work_is_on_top() {
    let work = [Duration::from_nanos(7), Duration::from_nanos(30)];
    let price = MessageCost::of(baseline(PaperBaseline::L5), 64, PRICES);
    let worked = price.with_work(work);
    assert_eq!(worked.send.each, PRICES.message + work[0]);
    assert_eq!(worked.take.each, PRICES.message + work[1]);
    assert_eq!(worked.take.copies, price.take.copies);
}

/// Log of what was done, in order.
type Log = Rc<RefCell<Vec<String>>>;

/// A transport that has room for, or holds, `left` messages of `size` bytes.
struct Slots {
    log: Log,
    left: usize,
    size: usize,
    ended: bool,
    price: Option<MessageCost>,
}

impl MessageTransport for Slots {
    fn price(&self) -> Option<MessageCost> {
        self.price
    }

    fn offer<F: MessageSource>(&mut self, n: usize, fill: &mut F) -> Result<usize> {
        let accepted = n.min(self.left);
        for _ in 0..accepted {
            fill.fill(&mut vec![0; self.size]);
            self.log.borrow_mut().push("posted".into());
        }
        self.left -= accepted;
        Ok(accepted)
    }

    fn take<S: MessageSink>(&mut self, max: usize, sink: &mut S) -> Result<TakeResult> {
        let taken = max.min(self.left);
        if taken == 0 && self.ended {
            return Ok(TakeResult::Ended);
        }
        for _ in 0..taken {
            sink.take(&vec![0; self.size]);
            self.log.borrow_mut().push("freed".into());
        }
        self.left -= taken;
        Ok(TakeResult::Messages(taken))
    }

    fn flush(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Each message costs 20 ns and a copy at either end; the receiving end also clears it.
fn price() -> MessageCost {
    let cost = |clears| Cost {
        each: Duration::from_nanos(20),
        copies: 1,
        clears,
    };
    MessageCost {
        send: cost(false),
        take: cost(true),
    }
}

/// A transport that charges, in a world of its own.
struct ChargedTransport {
    world: MockContext,
    slots: Slots,
}

impl ChargedTransport {
    fn new(left: usize, size: usize) -> Self {
        let world = MockContext::default();
        let slots = Slots {
            log: world.log.clone(),
            left,
            size,
            ended: false,
            price: Some(price()),
        };
        Self { world, slots }
    }

    fn offer(&mut self, n: usize) -> usize {
        let fill = &mut MessageWriter::default();
        offer(
            &mut self.slots,
            n,
            fill,
            &mut ActorContext::new(&mut self.world),
        )
        .unwrap()
    }

    fn take(&mut self, n: usize) -> TakeResult {
        let sink = &mut MessageChecker::default();
        take(
            &mut self.slots,
            n,
            sink,
            &mut ActorContext::new(&mut self.world),
        )
        .unwrap()
    }

    fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.world.log.borrow_mut())
    }
}

#[test]
fn a_message_is_paid_for_before_it_is_posted_and_before_its_slot_is_freed() {
    let mut end = ChargedTransport::new(1, 8);
    assert_eq!(end.offer(5), 1);
    assert_eq!(end.said(), ["charged 20", "copied 8", "posted"]);
    end.slots.left = 1;
    assert_eq!(end.take(5), TakeResult::Messages(1));
    // Clearing stores but does not load: half a copy.
    let wanted = ["charged 20", "copied 8", "copied 4", "freed"];
    assert_eq!(end.said(), wanted);
}

#[test]
fn failed_sends_and_receives_cost_nothing() {
    let mut end = ChargedTransport::new(0, 8);
    assert_eq!((end.offer(5), end.take(5)), (0, TakeResult::Messages(0)));
    end.slots.ended = true;
    assert_eq!(end.take(5), TakeResult::Ended);
    assert!(end.said().is_empty() && end.world.now == 0);
}

#[test]
fn a_step_in_virtual_time_is_short_and_one_elsewhere_takes_all() {
    let mut end = ChargedTransport::new(1000, 8);
    // 28 ns each: the third begins before 60 ns have passed.
    assert_eq!((end.offer(100), end.world.now), (3, 84));
    // 32 ns each: the second ends after 60 ns have passed.
    assert_eq!(
        (end.take(100), end.world.now),
        (TakeResult::Messages(2), 148)
    );
    // A message that takes longer than a step is handled all the same.
    end.slots.size = 4096;
    assert_eq!(end.offer(100), 1);
    let before = end.world.now;
    end.slots.price = None;
    assert_eq!(
        (end.offer(100), end.take(100)),
        (100, TakeResult::Messages(100))
    );
    assert_eq!(end.world.now, before);
}

#[test]
fn applications_pay_only_for_transferred_messages() {
    let mut world = MockContext::default();
    let log = world.log.clone();
    let said = || std::mem::take(&mut *log.borrow_mut());
    let mut cx = ActorContext::new(&mut world);
    let cost_meter = CostMeter::new(&mut cx, price());
    // There is room for one message.
    let mut queue = MockChannel::of(1);
    assert!(cost_meter.at(&mut queue).try_send(&[9; 40]).is_ok());
    assert_eq!(said(), ["charged 20", "copied 40"]);
    assert!(cost_meter.at(&mut queue).try_send(&[9; 40]).is_err());
    assert!(said().is_empty());
    let mut end = cost_meter.at(&mut queue);
    assert_eq!(end.try_recv_with(<[u8]>::len), Ok(Some(40)));
    assert_eq!(said(), ["charged 20", "copied 40", "copied 20"]);
    assert_eq!(end.try_recv_with(<[u8]>::len), Ok(None));
    assert!(said().is_empty());
    assert_eq!((end.max_message(), MessageSender::consumed(&end)), (77, 1));
}

mod virtual_time;

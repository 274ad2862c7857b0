use std::cell::{Cell, RefCell};
use std::rc::Rc;

use headworks::verbs::Instant;
use headworks_stage::{CxBackend, Mail, MailError};

use super::*;
use crate::transports::job::{Buffering, Transport, Waiting};
use crate::transports::message::{Mark, Marks};

const PRICES: Prices = Prices {
    bench: Duration::from_nanos(100),
    message: Duration::from_nanos(15),
};

fn rival(rival: Rival) -> Channel {
    Channel::Rival(rival)
}

fn ring(variant: Variant) -> Channel {
    Channel::Ring(RingMode::Paper(variant))
}

/// What a message of 64 B costs the sender and the receiver.
fn costs(channel: Channel) -> [Cost; 2] {
    let Price { send, take } = Price::of(channel, 64, PRICES);
    [send, take]
}

#[test]
fn designs_pay_for_the_copies_that_they_make() {
    let copies = |channel| costs(channel).map(|cost| cost.copies);
    assert_eq!(copies(ring(Variant::Full)), [0, 0]);
    assert_eq!(copies(ring(Variant::Copies)), [1, 1]);
    assert_eq!(copies(rival(Rival::Farm)), [0, 1]);
    assert_eq!(copies(rival(Rival::FarmAsPublished)), [1, 1]);
    assert_eq!(copies(rival(Rival::SocksDirect)), [1, 1]);
    assert_eq!(copies(rival(Rival::L5)), [1, 1]);
    assert_eq!(copies(rival(Rival::Raw)), [0, 0]);
    let tcp = Channel::Stream(Transport::Tcp, Waiting::Spinning, Buffering::None);
    assert_eq!(copies(tcp), [1, 1]);
    // A ring's default copies short messages into it, and has long ones written in place.
    let default = Channel::Ring(RingMode::Default);
    let long = Price::of(default, 1 << 20, PRICES);
    assert_eq!((copies(default), long.send.copies), ([1, 0], 0));
}

#[test]
fn only_farm_clears_and_only_raw_writes_have_perftests_work() {
    let all = [
        ring(Variant::Full),
        rival(Rival::L5),
        rival(Rival::SocksDirect),
        rival(Rival::Farm),
        rival(Rival::Raw),
    ];
    let clears: Vec<_> = all
        .iter()
        .filter(|&&channel| costs(channel)[1].clears)
        .collect();
    assert_eq!(clears, [&rival(Rival::Farm)]);
    assert!(all.iter().all(|&channel| !costs(channel)[0].clears));
    let sent = all.map(|channel| costs(channel)[0].each);
    assert_eq!(sent[..4], [PRICES.message; 4]);
    assert_eq!(sent[4], PRICES.bench);
    assert!(
        all.iter()
            .all(|&channel| costs(channel)[1].each == PRICES.message)
    );
}

#[test]
fn an_applications_work_is_on_top() {
    let work = [Duration::from_nanos(7), Duration::from_nanos(30)];
    let price = Price::of(rival(Rival::L5), 64, PRICES);
    let worked = price.with_work(work);
    assert_eq!(worked.send.each, PRICES.message + work[0]);
    assert_eq!(worked.take.each, PRICES.message + work[1]);
    assert_eq!(worked.take.copies, price.take.copies);
}

/// What was done, in order.
type Log = Rc<RefCell<Vec<String>>>;

/// Time passes as it is charged; a copied byte takes a nanosecond.
struct Clock {
    log: Log,
    now: Rc<Cell<u64>>,
}

impl Clock {
    fn new() -> Self {
        Self {
            log: Log::default(),
            now: Rc::default(),
        }
    }

    fn pass(&self, nanos: u64) {
        self.now.set(self.now.get() + nanos);
    }

    fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.log.borrow_mut())
    }
}

impl CxBackend for Clock {
    fn role(&self) -> &str {
        "sender"
    }
    fn now(&mut self) -> Instant {
        Instant::from_nanos(self.now.get())
    }
    fn send(&mut self, _: &str, _: &[u8]) -> Result<(), MailError> {
        Ok(())
    }
    fn receive(&mut self) -> Option<Mail> {
        None
    }
    fn report(&mut self, _: &[u8]) -> Result<(), MailError> {
        Ok(())
    }
    fn interrupted(&self) -> bool {
        false
    }
    fn charge(&mut self, cost: Duration) {
        self.log
            .borrow_mut()
            .push(format!("charged {}", cost.nanos()));
        self.pass(cost.nanos());
    }
    fn copied(&mut self, bytes: u64) {
        self.log.borrow_mut().push(format!("copied {bytes}"));
        self.pass(bytes);
    }
}

/// An end with room for so many messages, or with so many, of so many bytes.
struct Slots {
    log: Log,
    left: usize,
    size: usize,
    ended: bool,
}

impl Slots {
    fn new(clock: &Clock, left: usize, size: usize) -> Self {
        Self {
            log: clock.log.clone(),
            left,
            size,
            ended: false,
        }
    }
}

impl Arm for Slots {
    fn offer<F: Fill>(&mut self, n: usize, fill: &mut F) -> Result<usize, WorkloadError> {
        let accepted = n.min(self.left);
        for _ in 0..accepted {
            fill.fill(&mut vec![0; self.size]);
            self.log.borrow_mut().push("posted".into());
        }
        self.left -= accepted;
        Ok(accepted)
    }

    fn take<S: Sink>(&mut self, max: usize, sink: &mut S) -> Result<Taken, WorkloadError> {
        let taken = max.min(self.left);
        if taken == 0 && self.ended {
            return Ok(Taken::Ended);
        }
        for _ in 0..taken {
            sink.take(&vec![0; self.size]);
            self.log.borrow_mut().push("freed".into());
        }
        self.left -= taken;
        Ok(Taken::Messages(taken))
    }

    fn flush(&mut self) -> Result<bool, WorkloadError> {
        Ok(true)
    }

    fn finish(&mut self) -> Result<(), WorkloadError> {
        Ok(())
    }
}

/// Each message costs 20 ns and a copy at either end, and the receiver's is cleared.
fn price() -> Price {
    let cost = |clears| Cost {
        each: Duration::from_nanos(20),
        copies: 1,
        clears,
    };
    Price {
        send: cost(false),
        take: cost(true),
    }
}

#[test]
fn a_message_is_paid_for_before_it_is_posted_and_before_its_slot_is_freed() {
    let mut clock = Clock::new();
    let mut slots = Slots::new(&clock, 1, 8);
    let sent = offer(
        &mut slots,
        5,
        &mut Mark::default(),
        Some(price()),
        &mut Cx::new(&mut clock),
    )
    .unwrap();
    assert_eq!(sent, 1);
    assert_eq!(clock.said(), ["charged 20", "copied 8", "posted"]);
    slots.left = 1;
    let taken = take(
        &mut slots,
        5,
        &mut Marks::default(),
        Some(price()),
        &mut Cx::new(&mut clock),
    )
    .unwrap();
    assert_eq!(taken, Taken::Messages(1));
    // Clearing stores and does not load: half a copy.
    let wanted = ["charged 20", "copied 8", "copied 4", "freed"];
    assert_eq!(clock.said(), wanted);
}

#[test]
fn what_found_no_room_or_no_message_costs_nothing() {
    let mut clock = Clock::new();
    let mut slots = Slots::new(&clock, 0, 8);
    let sent = offer(
        &mut slots,
        5,
        &mut Mark::default(),
        Some(price()),
        &mut Cx::new(&mut clock),
    )
    .unwrap();
    let taken = take(
        &mut slots,
        5,
        &mut Marks::default(),
        Some(price()),
        &mut Cx::new(&mut clock),
    )
    .unwrap();
    assert_eq!((sent, taken), (0, Taken::Messages(0)));
    slots.ended = true;
    let taken = take(
        &mut slots,
        5,
        &mut Marks::default(),
        Some(price()),
        &mut Cx::new(&mut clock),
    )
    .unwrap();
    assert_eq!(taken, Taken::Ended);
    assert!(clock.said().is_empty() && clock.now.get() == 0);
}

#[test]
fn a_step_in_virtual_time_is_short_and_one_elsewhere_takes_all() {
    let mut clock = Clock::new();
    let mut slots = Slots::new(&clock, 1000, 8);
    // 28 ns each: the third is begun before 60 ns have passed.
    let sent = offer(
        &mut slots,
        100,
        &mut Mark::default(),
        Some(price()),
        &mut Cx::new(&mut clock),
    )
    .unwrap();
    assert_eq!((sent, clock.now.get()), (3, 84));
    // 32 ns each.
    let taken = take(
        &mut slots,
        100,
        &mut Marks::default(),
        Some(price()),
        &mut Cx::new(&mut clock),
    )
    .unwrap();
    assert_eq!((taken, clock.now.get()), (Taken::Messages(2), 148));
    // One of which takes longer than a step is handled all the same.
    let mut long = Slots::new(&clock, 1000, 4096);
    let sent = offer(
        &mut long,
        100,
        &mut Mark::default(),
        Some(price()),
        &mut Cx::new(&mut clock),
    )
    .unwrap();
    assert_eq!(sent, 1);
    let before = clock.now.get();
    let sent = offer(
        &mut slots,
        100,
        &mut Mark::default(),
        None,
        &mut Cx::new(&mut clock),
    )
    .unwrap();
    let taken = take(
        &mut slots,
        100,
        &mut Marks::default(),
        None,
        &mut Cx::new(&mut clock),
    )
    .unwrap();
    assert_eq!((sent, taken), (100, Taken::Messages(100)));
    assert_eq!(clock.now.get(), before);
}

/// An end of a channel that refuses every other message, and has one, then none.
#[derive(Default)]
struct Moody {
    calls: u64,
}

impl MessageSender for Moody {
    fn try_send(&mut self, _: &[u8]) -> Result<(), SendError> {
        unreachable!("it is filled in place")
    }
    fn try_send_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SendError> {
        self.calls += 1;
        if self.calls.is_multiple_of(2) {
            return Err(SendError::Full);
        }
        fill(&mut vec![0; len]);
        Ok(())
    }
    fn flush(&mut self) -> Result<bool, RingError> {
        Ok(true)
    }
    fn step(&mut self) -> Result<bool, RingError> {
        Ok(true)
    }
    fn max_message(&self) -> usize {
        77
    }
    fn sent(&self) -> u64 {
        self.calls
    }
    fn published(&self) -> u64 {
        0
    }
    fn consumed(&self) -> u64 {
        0
    }
}

impl MessageReceiver for Moody {
    fn try_recv_with<T>(&mut self, look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, RingError> {
        self.calls += 1;
        Ok((!self.calls.is_multiple_of(2)).then(|| look(&[1; 40])))
    }
    fn step(&mut self) -> Result<bool, RingError> {
        Ok(true)
    }
    fn push_head(&mut self) -> Result<bool, RingError> {
        Ok(true)
    }
    fn consumed(&self) -> u64 {
        self.calls
    }
}

#[test]
fn an_applications_ends_pay_for_what_goes_through_and_for_nothing_else() {
    let mut clock = Clock::new();
    let log = clock.log.clone();
    let said = || std::mem::take(&mut *log.borrow_mut());
    let mut cx = Cx::new(&mut clock);
    let till = Till::new(&mut cx, price());
    let (mut out, mut from) = (Moody::default(), Moody::default());
    assert!(till.at(&mut out).try_send(&[9; 16]).is_ok());
    assert_eq!(said(), ["charged 20", "copied 16"]);
    assert!(till.at(&mut out).try_send(&[9; 16]).is_err());
    assert!(said().is_empty());
    let mut end = till.at(&mut from);
    let len = |end: &mut PaidEnd<'_, '_, '_, Moody>| end.try_recv_with(<[u8]>::len).unwrap();
    assert_eq!(len(&mut end), Some(40));
    assert_eq!(said(), ["charged 20", "copied 40", "copied 20"]);
    assert_eq!(len(&mut end), None);
    assert!(said().is_empty());
    assert_eq!(
        (till.at(&mut out).max_message(), till.at(&mut out).sent()),
        (77, 2)
    );
}

mod played;

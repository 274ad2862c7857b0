//! Rings between two processes over hostile devices. One process places bytes in pieces, late and in any
//! order; the other must see messages whole and in order.

use std::sync::Arc;

use headworks_ring::RingError;
use headworks_runtime::{Actor, ActorContext, ActorError, ActorInit, Step, WakeCondition};
use headworks_verbs::Device;

use crate::between_processes::{ConnectingEnd, End, Setup, meet, open, report};
use crate::hostile_devices::{
    DECLARED, agreed, is_of_a_death, receive, receive_some, send, send_some, shapes,
};

/// Number of messages: every ring of these tests wraps many times.
const COUNT: u64 = 400;

/// Parameters of a ring that both processes know.
struct Ring {
    /// Whether our process sends.
    we_send: bool,
    shape: usize,
    /// Number of messages.
    count: u64,
    /// Options of the devices' names, besides the host.
    options: String,
    fabric: String,
}

impl Ring {
    fn args(&self) -> String {
        let Self {
            we_send,
            shape,
            count,
            options,
            fabric,
        } = self;
        format!("{we_send} {shape} {count} {options} {fabric}")
    }

    fn parse(args: &str) -> Option<Self> {
        let mut words = args.splitn(5, ' ');
        let mut next = || words.next();
        Some(Self {
            we_send: next()?.parse().ok()?,
            shape: next()?.parse().ok()?,
            count: next()?.parse().ok()?,
            options: next()?.to_owned(),
            fabric: next()?.to_owned(),
        })
    }

    fn open(&self, host: &str) -> Arc<dyn Device> {
        open(
            self.fabric.as_ref(),
            &format!("soft:{host},hostile,{}", self.options),
        )
    }
}

/// Result of an end that is done or broken.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    broke: bool,
    /// Messages sent or received.
    count: u64,
    /// Slots published as far as a sender knows; 0 at a receiver.
    published: u64,
    /// Slots consumed.
    consumed: u64,
}

impl Verdict {
    fn of(end: &End, count: u64, error: Option<RingError>) -> Self {
        if let Some(error) = error {
            assert!(is_of_a_death(&error), "{error}");
        }
        let (published, consumed) = match end {
            End::Sends(tx) => (tx.published(), tx.consumed()),
            End::Receives(rx) => (0, rx.consumed()),
        };
        Self {
            broke: error.is_some(),
            count,
            published,
            consumed,
        }
    }

    fn to_text(&self) -> String {
        let Self {
            broke,
            count,
            published,
            consumed,
        } = self;
        format!("{broke} {count} {published} {consumed}")
    }

    fn parse(text: &str) -> Self {
        let mut words = text.split(' ');
        let mut next = || words.next().unwrap();
        Self {
            broke: next().parse().unwrap(),
            count: next().parse().unwrap(),
            published: next().parse().unwrap(),
            consumed: next().parse().unwrap(),
        }
    }
}

/// The other process's end.
pub(crate) struct Far {
    state: State,
    /// Messages to send or receive.
    messages: u64,
    /// Whether it has reported its result. It then stays until it is stopped: an early exit looks like a
    /// death.
    told: bool,
    _device: Arc<dyn Device>,
}

enum State {
    ConnectingEnd(Box<ConnectingEnd>),
    /// Connected, with the number of messages sent or received.
    Up(Box<End>, u64),
    Gone,
}

impl Far {
    pub(crate) fn new(part: &ActorInit) -> Result<Self, ActorError> {
        let args = String::from_utf8_lossy(&part.args);
        let ring = Ring::parse(&args).ok_or("arguments")?;
        let device = ring.open("h2");
        let setup = Setup::new(!ring.we_send, &device, &shapes()[ring.shape])?;
        Ok(Self {
            state: State::ConnectingEnd(ConnectingEnd::new(&device, setup)?.into()),
            messages: ring.count,
            told: false,
            _device: device,
        })
    }
}

impl Actor for Far {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if self.told {
            return Ok(Step::Wait(WakeCondition::mail()));
        }
        let (end, count) = match &mut self.state {
            State::ConnectingEnd(rising) => {
                if !rising.step(cx)? {
                    return Ok(Step::Wait(WakeCondition::mail()));
                }
                if let State::ConnectingEnd(up) = std::mem::replace(&mut self.state, State::Gone) {
                    self.state = State::Up(up.finish(cx)?.into(), 0);
                }
                return Ok(Step::Again);
            }
            State::Up(end, count) => (end, count),
            State::Gone => return Err("gone".into()),
        };
        let done = match &mut **end {
            End::Sends(tx) => send_some(tx, count, self.messages),
            End::Receives(rx) => receive_some(rx, count, self.messages),
        };
        if done != Ok(false) {
            let verdict = Verdict::of(end, *count, done.err());
            cx.report(verdict.to_text().as_bytes())?;
            self.told = true;
        }
        Ok(Step::Again)
    }
}

/// Runs a ring and returns the sender's and the receiver's result.
fn scenario(we_send: bool, shape: usize, messages: u64, options: &str) -> (Verdict, Verdict) {
    let dir = tempfile::tempdir().unwrap();
    let ring = Ring {
        we_send,
        shape,
        count: messages,
        options: options.to_owned(),
        fabric: dir.path().join("fabric").display().to_string(),
    };
    println!("{} {:?}", ring.args(), shapes()[shape]);
    let device = ring.open("h1");
    let setup = Setup::new(we_send, &device, &shapes()[shape]).unwrap();
    let (mut running, mut end) = meet("unruly-peer", ring.args(), &device, setup);
    let less = DECLARED.iter().rev().find(|less| options.contains(**less));
    let mode = agreed(shapes()[shape].mode, less.unwrap());
    let ((count, error), agreed) = match &mut end {
        End::Sends(tx) => match send(tx, messages) {
            Ok(sent) => ((sent, None), tx.ring().mode),
            Err(error) => ((0, Some(error)), tx.ring().mode),
        },
        End::Receives(rx) => (receive(rx, messages), rx.ring().mode),
    };
    assert_eq!(agreed, mode);
    let theirs = report(running.as_mut());
    let theirs = Verdict::parse(&String::from_utf8_lossy(&theirs));
    let ours = Verdict::of(&end, count, error);
    match we_send {
        true => (ours, theirs),
        false => (theirs, ours),
    }
}

/// Runs a ring in both directions, in several modes, over a hostile device without the promises in `less`.
fn all_arrive(less: &str) {
    for (number, shape) in [0, 1, 4, 8].into_iter().enumerate() {
        for we_send in [true, false] {
            let seed = 2 * number + usize::from(we_send) + 300;
            let options = format!("seed={seed}{less}");
            let (sender, receiver) = scenario(we_send, shape, COUNT, &options);
            for end in [&sender, &receiver] {
                assert_eq!((end.broke, end.count), (false, COUNT), "{end:?}");
            }
            assert_eq!(sender.consumed, sender.published);
            assert_eq!(sender.consumed, receiver.consumed);
        }
    }
}

#[test]
fn a_ring_between_two_processes_over_a_hostile_device() {
    all_arrive("");
}

#[test]
fn a_ring_between_two_processes_where_writes_overtake_each_other() {
    all_arrive(DECLARED[1]);
}

#[test]
fn a_ring_between_two_processes_where_words_are_torn() {
    all_arrive(DECLARED[2]);
}

#[test]
fn a_ring_between_two_processes_where_nothing_is_declared() {
    all_arrive(DECLARED[3]);
}

#[test]
fn processes_know_deliveries_after_their_queue_pair_is_killed() {
    let mut died = [0, 0];
    for seed in 0..24 {
        let (shape, less) = (seed % shapes().len(), DECLARED[seed / 2 % DECLARED.len()]);
        let options = format!("seed={seed},kills=150{less}");
        let (sender, receiver) = scenario(seed % 2 == 0, shape, COUNT, &options);
        // Slots that the sender knows to be consumed were consumed, and consumed slots had been published.
        assert!(
            sender.consumed <= receiver.consumed,
            "{sender:?} {receiver:?}"
        );
        assert!(
            receiver.consumed <= sender.published,
            "{sender:?} {receiver:?}"
        );
        if !sender.broke {
            assert_eq!(receiver.count, COUNT, "{sender:?} {receiver:?}");
        }
        died[0] += u32::from(sender.broke);
        died[1] += u32::from(receiver.broke);
    }
    assert!(
        died.iter().all(|died| *died > 0),
        "only {died:?} ends saw it"
    );
}

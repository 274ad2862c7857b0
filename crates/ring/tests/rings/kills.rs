//! The other end's process is killed while this end sleeps.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headworks_ring::{Framing, Mode, Receiver, RingConfig, RingError, SendError};
use headworks_runtime::{
    Actor, ActorContext, ActorError, ActorInit, RunningScenario, Step, WakeCondition,
};
use headworks_verbs::Device;

use crate::between_processes::{ConnectingEnd, End, Setup, meet, open, report};
use crate::pair::{config, fill, holds};
use crate::sleeping_ends::{await_message, sleep};

const LIMIT: Duration = Duration::from_secs(10);
pub(crate) const LEN: usize = 48;

pub(crate) fn ring(mode: Mode) -> RingConfig {
    config(16, Framing::Fixed(LEN), mode)
}

/// The other process's end. It sends or receives `count` numbered messages, and then waits to be killed.
pub(crate) struct Peer {
    state: State,
    /// Messages to send or receive.
    count: u64,
    _device: Arc<dyn Device>,
}

enum State {
    ConnectingEnd(Box<ConnectingEnd>),
    /// Connected, with the number of messages sent or received.
    Up(Box<End>, u64),
    Gone,
}

impl Peer {
    pub(crate) fn new(part: &ActorInit) -> Result<Self, ActorError> {
        let (sends, count) = (part.args[0] != 0, part.args[1]);
        let path = PathBuf::from(String::from_utf8_lossy(&part.args[2..]).into_owned());
        let device = open(&path, "soft:h2");
        let mode = match part.args[0] {
            2 => Mode::Poll,
            _ => Mode::Notify,
        };
        let rising = ConnectingEnd::new(&device, Setup::new(sends, &device, &ring(mode))?)?;
        Ok(Self {
            state: State::ConnectingEnd(rising.into()),
            count: count.into(),
            _device: device,
        })
    }
}

impl Actor for Peer {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        match &mut self.state {
            State::ConnectingEnd(rising) => {
                if !rising.step(cx)? {
                    return Ok(Step::Wait(WakeCondition::mail()));
                }
                if let State::ConnectingEnd(up) = std::mem::replace(&mut self.state, State::Gone) {
                    self.state = State::Up(up.finish(cx)?.into(), 0);
                }
            }
            State::Up(end, count) => match &mut **end {
                End::Sends(tx) => {
                    while *count < self.count {
                        let mut message = [0; LEN];
                        fill(*count, &mut message);
                        match tx.try_send(&message) {
                            Ok(()) => *count += 1,
                            Err(SendError::Full) => return Ok(Step::Again),
                            Err(error) => return Err(error.into()),
                        }
                    }
                    tx.flush()?;
                    cx.report(b"done")?;
                    return Ok(Step::Wait(WakeCondition::mail()));
                }
                End::Receives(rx) => {
                    while *count < self.count {
                        match rx.try_recv()? {
                            Some(_) => *count += 1,
                            None => return Ok(Step::Again),
                        }
                    }
                    rx.push_head()?;
                    cx.report(b"done")?;
                    return Ok(Step::Wait(WakeCondition::mail()));
                }
            },
            State::Gone => return Err("gone".into()),
        }
        Ok(Step::Again)
    }
}

/// Starts the peer, which sends or receives `count` messages, and connects our end.
fn join(
    fabric: &Path,
    count: u8,
    device: &Arc<dyn Device>,
    ours: Setup,
) -> (Box<dyn RunningScenario>, End) {
    let sends = matches!(ours, Setup::Receives(_));
    let mut args = vec![sends.into(), count];
    args.extend(fabric.to_string_lossy().as_bytes());
    meet("ring-peer", args, device, ours)
}

/// Calls `look` until it returns the ring's error. `look` sleeps on what it armed.
fn error_of<E>(end: &mut E, mut look: impl FnMut(&mut E) -> Option<RingError>) -> RingError {
    let killed = Instant::now();
    loop {
        if let Some(error) = look(end) {
            println!("error after {} us: {error}", killed.elapsed().as_micros());
            return error;
        }
        assert!(killed.elapsed() < LIMIT, "no error reported");
    }
}

#[test]
fn a_receiver_asleep_reads_the_rest_and_learns_that_the_sender_was_killed() {
    // In the late cases nothing is polled until the device has reported the death: messages that came before
    // it are then polled in one batch with what it left.
    for (count, late) in [
        (0, false),
        (1, false),
        (1, true),
        (15, false),
        (15, true),
        (40, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let fabric = dir.path().join("fabric");
        let device = open(&fabric, "soft:h1");
        let setup = Setup::new(false, &device, &ring(Mode::Notify)).unwrap();
        let (mut running, End::Receives(mut rx)) = join(&fabric, count, &device, setup) else {
            unreachable!("it receives")
        };
        let count = u64::from(count);
        // Messages beyond what fits are read before the kill.
        let mut read = 0;
        let mut next = |rx: &mut Receiver| {
            match rx.try_recv() {
                Ok(Some(message)) => {
                    assert!(holds(read, &message), "contents of message {read}");
                    read += 1;
                    return None;
                }
                Ok(None) => {}
                Err(error) => return Some(error),
            }
            await_message(rx).err()
        };
        while rx.consumed() + 8 < count {
            assert_eq!(next(&mut rx), None);
        }
        assert_eq!(report(running.as_mut()), b"done");
        running.kill("peer").unwrap();
        let killed = Instant::now();
        while late && device.next_async_event().is_none() {
            assert!(killed.elapsed() < LIMIT, "the device never tells");
            std::thread::yield_now();
        }
        let error = error_of(&mut rx, next);
        assert!(error.is_peer_gone(), "{error}");
        assert_eq!(read, count, "what was published was lost");
        assert_eq!(rx.consumed(), count);
        assert_eq!(rx.try_recv().map(drop), Err(error));
    }
}

#[test]
fn a_sender_asleep_learns_that_the_receiver_was_killed_and_how_far_it_read() {
    for read in [0, 1, 7, 15] {
        let dir = tempfile::tempdir().unwrap();
        let fabric = dir.path().join("fabric");
        let device = open(&fabric, "soft:h1");
        let setup = Setup::new(true, &device, &ring(Mode::Notify)).unwrap();
        let (mut running, End::Sends(mut tx)) = join(&fabric, read, &device, setup) else {
            unreachable!("it sends")
        };
        for _ in 0..read {
            tx.try_send(&[1; LEN]).unwrap();
        }
        tx.flush().unwrap();
        assert_eq!(report(running.as_mut()), b"done");
        while tx.try_send(&[1; LEN]).is_ok() {}
        running.kill("peer").unwrap();
        let error = error_of(&mut tx, |tx| {
            tx.arm();
            if let Err(error) = tx.step() {
                return Some(error);
            }
            if tx.is_full() {
                sleep(tx.fd().unwrap());
            }
            tx.drain_events();
            None
        });
        assert!(error.is_peer_gone(), "{error}");
        let read = u64::from(read);
        assert_eq!((tx.consumed(), tx.published()), (read, read + 15));
        assert_eq!(tx.try_send(&[1; LEN]), Err(SendError::Broken(error)));
    }
}

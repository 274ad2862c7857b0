//! The side that asks.

use std::collections::VecDeque;

use headworks::ring::{MessageReceiver, MessageSender};

use super::message::Response;
use super::store::{is_value_of, key_of};
use super::{REQUEST, Request, Zipf};
use crate::apps::looks::Looks;
use crate::apps::{AppError, Progress, room};

/// Requests sent, and responses taken, in one step, at most, unless somebody says otherwise.
const BATCH: usize = 32;
/// Keys drawn beforehand, at most; longer runs ask for them again from the first one on.
const DRAWN: u64 = 1 << 20;

/// Asks for keys, with up to a window of requests on their way, and checks every response: that it
/// is the next one due, and that it holds the value of the key that was asked for.
#[derive(Clone, Debug)]
pub struct Client {
    keys: Vec<u64>,
    requests: u64,
    window: usize,
    /// Keys of the requests on their way, the oldest first.
    outstanding: VecDeque<u64>,
    answered: u64,
    batch: usize,
    looks: Looks,
}

impl Client {
    /// Sends `requests` requests for keys that are drawn here, `window` (at least 1) of them at a time.
    pub fn new(mut zipf: Zipf, requests: u64, window: usize) -> Self {
        let window = window.max(1);
        let draws = requests.clamp(1, DRAWN);
        Self {
            keys: (0..draws).map(|_| key_of(zipf.record())).collect(),
            requests,
            window,
            outstanding: VecDeque::with_capacity(window),
            answered: 0,
            batch: BATCH,
            looks: Looks::default(),
        }
    }

    /// Sends, and takes, so many messages in a step at most, and one at least.
    pub fn step_by(&mut self, batch: usize) {
        self.batch = batch.max(1);
    }

    /// Sends what there is room for, and takes what is there. [`Progress::Done`] once every request was
    /// answered.
    #[inline]
    pub fn step(
        &mut self,
        out: &mut impl MessageSender,
        from: &mut impl MessageReceiver,
    ) -> Result<Progress, AppError> {
        let sent = self.send(out, from)?;
        let received = self.receive(out, from)?;
        if self.answered == self.requests {
            return Ok(Progress::Done);
        }
        Ok(match sent + received {
            0 => Progress::Idle,
            _ => Progress::Worked,
        })
    }

    fn send(
        &mut self,
        out: &mut impl MessageSender,
        from: &mut impl MessageReceiver,
    ) -> Result<usize, AppError> {
        for sent in 0..self.batch {
            let number = self.answered + self.outstanding.len() as u64;
            if self.outstanding.len() == self.window || number == self.requests {
                return Ok(sent);
            }
            let key = self.keys[(number % self.keys.len() as u64) as usize];
            let ask = |place: &mut [u8]| {
                if let Ok(place) = place.try_into() {
                    Request { number, key }.emit(place);
                }
            };
            if !room(out.try_send_with(REQUEST, ask))? {
                self.looks.full(out, from)?;
                return Ok(sent);
            }
            self.outstanding.push_back(key);
        }
        Ok(self.batch)
    }

    fn receive(
        &mut self,
        out: &mut impl MessageSender,
        from: &mut impl MessageReceiver,
    ) -> Result<usize, AppError> {
        for received in 0..self.batch {
            // With nothing to wait for, the next message would answer nothing.
            let Some(&key) = self.outstanding.front() else {
                return Ok(received);
            };
            let due = self.answered;
            let Some(checked) = from.try_recv_with(|message| check(due, key, message))? else {
                self.looks.empty(out, from)?;
                return Ok(received);
            };
            checked?;
            self.looks.found();
            self.outstanding.pop_front();
            self.answered += 1;
        }
        Ok(self.batch)
    }

    /// Responses that came, and were right.
    pub fn answered(&self) -> u64 {
        self.answered
    }
}

/// Whether `message` answers request `due`, which asked for `key`.
#[inline]
fn check(due: u64, key: u64, message: &[u8]) -> Result<(), AppError> {
    let Some(response) = Response::parse(message) else {
        return Err(AppError::Malformed {
            what: "response with a value",
            len: message.len(),
        });
    };
    if response.number != due {
        return Err(AppError::Order {
            what: "response",
            found: response.number,
            expected: due,
        });
    }
    let what = match response.value {
        Some(value) if is_value_of(value, key) => return Ok(()),
        Some(_) => "another key's value",
        None => "no such key",
    };
    Err(AppError::Answer { number: due, what })
}

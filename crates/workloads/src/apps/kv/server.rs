//! The side that has the table.

use headworks::ring::{MessageReceiver, MessageSender};

use super::message::Response;
use super::{RESPONSE, Request, Store};
use crate::apps::looks::Looks;
use crate::apps::{AppError, Progress, room};

/// Requests answered in one step, at most, unless somebody says otherwise.
const BATCH: usize = 32;

/// Answers requests in the order in which they come, until nobody asks any more.
#[derive(Clone, Debug)]
pub struct Server {
    store: Store,
    /// Received, and not answered for lack of room: at most one, so the others wait in their channel.
    waiting: Option<Request>,
    answered: u64,
    batch: usize,
    looks: Looks,
}

impl Server {
    /// Of this table.
    pub fn new(store: Store) -> Self {
        Self {
            store,
            waiting: None,
            answered: 0,
            batch: BATCH,
            looks: Looks::default(),
        }
    }

    /// Answers so many requests in a step at most, and one at least.
    pub fn step_by(&mut self, batch: usize) {
        self.batch = batch.max(1);
    }

    /// Answers what is there, as far as there is room. Never [`Progress::Done`]: only the client
    /// knows whether it will ask again.
    #[inline]
    pub fn step(
        &mut self,
        out: &mut impl MessageSender,
        from: &mut impl MessageReceiver,
    ) -> Result<Progress, AppError> {
        for answered in 0..self.batch {
            let so_far = match answered {
                0 => Progress::Idle,
                _ => Progress::Worked,
            };
            if self.waiting.is_none() {
                self.waiting = receive(from)?;
            }
            let Some(request) = self.waiting else {
                self.looks.empty(out, from)?;
                return Ok(so_far);
            };
            let store = &self.store;
            let respond = |place: &mut [u8]| {
                let response = Response {
                    number: request.number,
                    value: store.get(request.key),
                };
                if let Ok(place) = place.try_into() {
                    response.emit(place);
                }
            };
            if !room(out.try_send_with(RESPONSE, respond))? {
                self.looks.full(out, from)?;
                return Ok(so_far);
            }
            self.looks.found();
            self.waiting = None;
            self.answered += 1;
        }
        Ok(Progress::Worked)
    }

    /// Requests answered so far.
    pub fn answered(&self) -> u64 {
        self.answered
    }
}

/// The next request, if one is there.
#[inline]
fn receive(from: &mut impl MessageReceiver) -> Result<Option<Request>, AppError> {
    let read = |message: &[u8]| Request::parse(message).ok_or(message.len());
    match from.try_recv_with(read)? {
        None => Ok(None),
        Some(Ok(request)) => Ok(Some(request)),
        Some(Err(len)) => Err(AppError::Malformed {
            what: "request for a key",
            len,
        }),
    }
}

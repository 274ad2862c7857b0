//! A channel in one thread, for tests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use headworks::ring::{MessageReceiver, MessageSender, RingError, SendError};
use headworks::verbs::QpState;

/// An end of a channel whose messages come out in order.
#[derive(Clone)]
pub(crate) struct MockChannel(Arc<Mutex<State>>);

#[derive(Default)]
pub(crate) struct State {
    room: usize,
    messages: VecDeque<Vec<u8>>,
    taken: u64,
    pub(crate) is_published: bool,
    /// Whether publishing fails.
    pub(crate) is_broken: bool,
    /// Number of calls of the sending end's `step`.
    pub(crate) looks: usize,
}

impl MockChannel {
    /// Makes a channel with room for `room` messages.
    pub(crate) fn of(room: usize) -> Self {
        let state = State {
            room,
            ..State::default()
        };
        Self(Arc::new(Mutex::new(state)))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl MessageSender for MockChannel {
    fn try_send(&mut self, message: &[u8]) -> Result<(), SendError> {
        self.try_send_with(message.len(), |place| place.copy_from_slice(message))
    }
    fn try_send_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SendError> {
        let mut state = self.state();
        if state.messages.len() == state.room {
            return Err(SendError::Full);
        }
        let mut message = vec![0; len];
        fill(&mut message);
        state.messages.push_back(message);
        state.is_published = false;
        Ok(())
    }
    fn flush(&mut self) -> Result<bool, RingError> {
        let mut state = self.state();
        state.is_published = true;
        match state.is_broken {
            true => Err(RingError::QueuePair(QpState::Error)),
            false => Ok(true),
        }
    }
    fn step(&mut self) -> Result<bool, RingError> {
        self.state().looks += 1;
        Ok(true)
    }
    fn max_message(&self) -> usize {
        77
    }
    fn sent(&self) -> u64 {
        let state = self.state();
        state.taken + state.messages.len() as u64
    }
    fn published(&self) -> u64 {
        MessageSender::sent(self)
    }
    fn consumed(&self) -> u64 {
        self.state().taken
    }
}

impl MessageReceiver for MockChannel {
    fn try_recv_with<R>(&mut self, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, RingError> {
        let message = self.state().messages.pop_front();
        self.state().taken += u64::from(message.is_some());
        Ok(message.map(|message| look(&message)))
    }
    fn step(&mut self) -> Result<bool, RingError> {
        Ok(true)
    }
    fn push_head(&mut self) -> Result<bool, RingError> {
        Ok(true)
    }
    fn consumed(&self) -> u64 {
        self.state().taken
    }
}

//! Wake-ups of one actor's thread: mail, an interruption, its end.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::actor::{Mail, MailError};
use crate::scenario_events::{MAILBOX_BYTES_MAX, MESSAGE_OVERHEAD, lock};
use headworks_net::EventFd;

/// A mailbox. Other threads fill it; one actor's thread empties it.
pub(crate) struct Mailbox {
    role: String,
    mail: Mutex<Waiting>,
    room: Condvar,
    /// Number of messages that wait. An empty mailbox thus costs one load.
    count: AtomicUsize,
    interrupted: AtomicBool,
    cancelled: AtomicBool,
    /// Whether something other than mail wants a step.
    poked: AtomicBool,
    /// Whether the actor's thread sleeps or is about to.
    asleep: AtomicBool,
    alarm: EventFd,
}

#[derive(Default)]
struct Waiting {
    mail: VecDeque<Mail>,
    bytes: usize,
    /// Whether the actor has ended. Then mail is discarded.
    closed: bool,
}

fn cost(mail: &Mail) -> usize {
    mail.bytes.len() + MESSAGE_OVERHEAD
}

impl Mailbox {
    pub(crate) fn new(role: &str) -> io::Result<Self> {
        Ok(Self {
            role: role.to_owned(),
            mail: Mutex::default(),
            room: Condvar::new(),
            count: AtomicUsize::new(0),
            interrupted: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            poked: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            alarm: EventFd::new()?,
        })
    }

    pub(crate) fn put(&self, mail: Mail) -> Result<(), MailError> {
        let waiting = lock(&self.mail);
        if waiting.bytes + cost(&mail) > MAILBOX_BYTES_MAX && !waiting.closed {
            return Err(MailError::Full(self.role.clone()));
        }
        self.push(waiting, mail);
        Ok(())
    }

    /// Adds mail, waiting until there is room.
    pub(crate) fn put_blocking(&self, mail: Mail) {
        let full = |waiting: &mut Waiting| {
            waiting.bytes + cost(&mail) > MAILBOX_BYTES_MAX && !waiting.closed
        };
        let waiting = self
            .room
            .wait_while(lock(&self.mail), full)
            .unwrap_or_else(PoisonError::into_inner);
        self.push(waiting, mail);
    }

    fn push(&self, mut waiting: std::sync::MutexGuard<'_, Waiting>, mail: Mail) {
        if waiting.closed {
            return;
        }
        waiting.bytes += cost(&mail);
        waiting.mail.push_back(mail);
        // SeqCst, as in `about_to_sleep`: either the sleeper sees the count, or this thread sees it asleep.
        self.count.store(waiting.mail.len(), SeqCst);
        drop(waiting);
        self.wake();
    }

    pub(crate) fn take(&self) -> Option<Mail> {
        if !self.has_mail() {
            return None;
        }
        let mut waiting = lock(&self.mail);
        let mail = waiting.mail.pop_front()?;
        waiting.bytes -= cost(&mail);
        self.count.store(waiting.mail.len(), SeqCst);
        self.room.notify_one();
        Some(mail)
    }

    /// Whether there is mail.
    pub(crate) fn has_mail(&self) -> bool {
        self.count.load(SeqCst) > 0
    }

    /// Whether something other than mail has happened since the last call that returned true.
    pub(crate) fn take_poke(&self) -> bool {
        self.poked.load(SeqCst) && self.poked.swap(false, SeqCst)
    }

    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, SeqCst);
        self.poke();
    }

    pub(crate) fn interrupted(&self) -> bool {
        self.interrupted.load(Relaxed)
    }

    /// Ends the actor: it gets no further step.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, SeqCst);
        self.interrupt();
    }

    pub(crate) fn cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    /// Marks the actor as ended and discards its mail.
    pub(crate) fn close(&self) {
        let mut waiting = lock(&self.mail);
        *waiting = Waiting {
            closed: true,
            ..Waiting::default()
        };
        self.count.store(0, SeqCst);
        self.room.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.mail).closed
    }

    /// From here until [`Mailbox::awake`], every event makes the descriptor readable.
    pub(crate) fn about_to_sleep(&self) {
        self.asleep.store(true, SeqCst);
    }

    /// Ends the wait. `rung` says that a descriptor was readable: it may be ours, from a wake-up that came
    /// too late for the wait before.
    pub(crate) fn awake(&self, rung: bool) {
        if self.asleep.swap(false, SeqCst) || rung {
            self.alarm.clear();
        }
    }

    fn poke(&self) {
        self.poked.store(true, SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if self.asleep.load(SeqCst) {
            self.alarm.signal();
        }
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }
}

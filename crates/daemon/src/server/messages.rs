//! Messages from other threads to the event loop of the server.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use super::daemons::Dialed;

/// A message from another thread to the event loop.
pub(super) enum ServerMessage {
    /// A dial to another daemon has ended.
    Dialed(Box<Dialed>),
    /// A client of the metrics endpoint wants the current text.
    Look(mpsc::Sender<String>),
    /// The thread of a worker has ended, and the daemon ends.
    WorkerFailed(io::Error),
}

/// Sends messages from other threads to the event loop, and wakes it.
#[derive(Clone)]
pub(super) struct ServerSender {
    pub(super) told: mpsc::Sender<ServerMessage>,
    pub(super) wake: Arc<OwnedFd>,
}

impl ServerSender {
    /// Sends a message. Returns whether the event loop still exists.
    pub(super) fn tell(&self, what: ServerMessage) -> bool {
        let is_there = self.told.send(what).is_ok();
        self.wake();
        is_there
    }

    /// Wakes the event loop.
    pub(super) fn wake(&self) {
        // If the pipe is full, the event loop is woken already.
        let _ = rustix::io::write(&*self.wake, &[0]);
    }
}

/// Reads the metrics of a [`DaemonServer`](super::DaemonServer) that another thread runs.
#[derive(Clone)]
pub struct MetricsReader(pub(super) ServerSender);

impl MetricsReader {
    /// Returns the metrics in Prometheus's text format, and waits until the event loop has written them. `None`: the
    /// daemon has ended. A daemon that sleeps wakes up for this, and sleeps again.
    pub fn text(&self) -> Option<String> {
        let (to, text) = mpsc::channel();
        self.0.tell(ServerMessage::Look(to));
        text.recv().ok()
    }
}

//! Descriptors of direct connections, for callers that poll.
//!
//! The peer of a direct connection wakes this process through the socket of their pair, which all their connections share.
//! So a thread of the session ([`run`]) waits with a [`Poller`] for those direct connections whose descriptors were asked
//! for, and makes each descriptor ready. The first descriptor starts the thread. It ends when the last of these connections
//! is closed.
//!
//! A descriptor is one end of a pair of sockets, as for connections through the daemon; the thread has the other end. It
//! writes a byte when something arrived, reads everything when there is room, and closes its end when the connection is
//! reset.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_client::connection::ConnectionShared;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use slab::Slab;

use super::poller::{Interest, PollEvent, PollState, PollWaker, Poller};
use super::shared_session::SharedSession;
use super::stream_half::ServiceConnection;
use super::{ServiceError, system};

/// A direct connection whose descriptor the thread makes ready.
struct Watched {
    /// The connection as the daemon announced it.
    known: Arc<ConnectionShared>,
    /// State that the connection's calls share with the thread.
    state: Arc<PollState>,
    /// The thread's end of the pair of sockets.
    socket: OwnedFd,
}

/// A session's thread for descriptors, and the connections that wait for it.
#[derive(Default)]
pub(super) struct DescriptorThread(Mutex<ThreadState>);

#[derive(Default)]
struct ThreadState {
    /// Connections that the thread has not taken yet.
    added: Vec<Watched>,
    /// Wakes the thread; `None` while there is no thread.
    waker: Option<PollWaker>,
}

impl DescriptorThread {
    fn lock(&self) -> MutexGuard<'_, ThreadState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread look at its connections: one was closed, or its descriptor is to be made writable.
    pub(super) fn wake(&self) {
        if let Some(waker) = &self.lock().waker {
            waker.wake();
        }
    }

    /// Takes the connections that were added. Ends the thread if there are none and it has none.
    fn take(&self, is_idle: bool) -> Option<Vec<Watched>> {
        let mut state = self.lock();
        if is_idle && state.added.is_empty() {
            state.waker = None;
            return None;
        }
        Some(std::mem::take(&mut state.added))
    }
}

/// Has the session's thread make the descriptor of a direct connection ready. `socket` is the thread's end of the pair of
/// sockets. Starts the thread if there is none.
///
/// # Errors
///
/// [`ServiceError::InPoller`]; [`ServiceError::System`] if there can be no thread or poller.
pub(super) fn watch(
    connection: &ServiceConnection,
    known: Arc<ConnectionShared>,
    socket: OwnedFd,
) -> Result<(), ServiceError> {
    let shared = &connection.shared;
    let mut thread = shared.descriptor_thread.lock();
    if thread.waker.is_none() {
        let mut poller = Poller::of(shared.clone())?;
        // It would keep a core from the threads that use the descriptors.
        poller.never_polls();
        let waker = poller.waker();
        let of = shared.clone();
        let builder = std::thread::Builder::new().name("hw-descriptors".to_owned());
        let started = builder.spawn(move || run(&of, poller));
        started.map_err(system("a thread for descriptors"))?;
        thread.waker = Some(waker);
    }
    let state = connection.polled.enter_for_descriptor()?;
    thread.added.push(Watched {
        known,
        state,
        socket,
    });
    thread.waker.iter().for_each(PollWaker::wake);
    Ok(())
}

/// Makes descriptors ready until there are none.
fn run(shared: &SharedSession, mut poller: Poller) {
    let mut all: Slab<(OwnedFd, Arc<PollState>)> = Slab::new();
    let mut events = Vec::new();
    loop {
        all.retain(|_, (_, state)| state.is_active());
        let Some(added) = shared.descriptor_thread.take(all.is_empty()) else {
            return;
        };
        for Watched {
            known,
            state,
            socket,
        } in added
        {
            let place = all.vacant_entry();
            let key = place.key() as u64;
            let interest = Interest::BOTH.edge_triggered();
            match poller.add_known(known, state.clone(), key, interest) {
                Ok(()) => drop(place.insert((socket, state))),
                Err(_) => state.leave(),
            }
        }
        for (_, (socket, state)) in &all {
            if state.wants_room.swap(false, Ordering::Acquire) {
                empty(socket);
            }
            if state.wants_bytes.swap(false, Ordering::Acquire) {
                fill(socket);
            }
        }
        // Without the poller no descriptor can be made ready: all are hung up, and their calls wait in other ways.
        if poller.wait(&mut events, None).is_err() {
            all.drain().for_each(|(_, state)| state.leave());
        }
        for event in &events {
            let key = event.key as usize;
            let Some((socket, state)) = all.get(key) else {
                continue;
            };
            show(socket, event);
            if event.is_hung_up {
                state.leave();
                all.remove(key);
            }
        }
    }
}

/// Makes a descriptor ready as a report says.
fn show(socket: &OwnedFd, event: &PollEvent) {
    if event.is_readable {
        fill(socket);
    }
    if event.is_writable {
        empty(socket);
    }
}

/// Makes a descriptor readable.
fn fill(socket: &OwnedFd) {
    // A full socket is readable already. A failed one belongs to a connection that is closed.
    let _ = send(socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Makes a descriptor writable.
fn empty(socket: &OwnedFd) {
    let mut bytes = [0; 4096];
    loop {
        match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

//! The descriptors by which applications are told of what they poll for: the daemon's ends of pairs of stream sockets.
//!
//! A byte that was written and not read makes the other end readable, what was written there and not read makes it
//! unwritable, and closing hangs it up. Nothing is ever waited for here: what an application handed over that is none
//! of that, and whatever lies in it, is closed by [others](super::closer).

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use headworks_stage::packets::recv_with_files;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketType, send, shutdown};

use super::closer::Closer;
use crate::daemon::{SessionId, Signal, WatchId};

/// Reads in a row, and bytes of each, of what makes a descriptor unwritable: an honest application fills a small
/// buffer once.
const READS: usize = 16;
const READ: usize = 4096;

/// Descriptors, and whose they are.
#[derive(Default)]
pub(super) struct Watches {
    all: HashMap<WatchId, (SessionId, OwnedFd)>,
    last: u64,
    closer: Closer,
}

impl Watches {
    /// Keeps the descriptor that came with a packet, if there is one that can be used.
    pub(super) fn take(&mut self, session: SessionId, files: Vec<OwnedFd>) -> Option<WatchId> {
        let mut watch = None;
        for file in files {
            match watch.is_none() && is_stream(&file) {
                true => {
                    self.last += 1;
                    self.all.insert(WatchId(self.last), (session, file));
                    watch = Some(WatchId(self.last));
                }
                false => self.closer.close(file),
            }
        }
        watch
    }

    /// Hangs up a socket that an application has the other end of.
    pub(super) fn close(&mut self, socket: OwnedFd) {
        // Seen at once, whenever it is closed.
        let _ = shutdown(&socket, Shutdown::Both);
        self.closer.close(socket);
    }

    /// Has something be seen at the other end.
    pub(super) fn signal(&mut self, watch: WatchId, signal: Signal) {
        let Some((_, file)) = self.all.get(&watch) else {
            return;
        };
        match signal {
            Signal::Readable => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                // One that is full is readable; one that is none, or is gone, is the application's own affair.
                let _ = send(file, &[0], flags);
            }
            Signal::Writable => {
                let mut bytes = [0; READ];
                for _ in 0..READS {
                    match recv_with_files(file, &mut bytes) {
                        Ok((read, files, _)) if read > 0 => {
                            files.into_iter().for_each(|file| self.closer.close(file));
                        }
                        _ => break,
                    }
                }
            }
            Signal::HungUp => self.hang_up(watch),
        }
    }

    fn hang_up(&mut self, watch: WatchId) {
        if let Some((_, file)) = self.all.remove(&watch) {
            self.close(file);
        }
    }

    /// An application is gone.
    pub(super) fn drop_all(&mut self, session: SessionId) {
        let of = self.all.iter().filter(|(_, (of, _))| *of == session);
        let of: Vec<WatchId> = of.map(|(watch, _)| *watch).collect();
        of.into_iter().for_each(|watch| self.hang_up(watch));
    }
}

/// Whether it is a socket of the kind that a pair is made of.
fn is_stream(file: &OwnedFd) -> bool {
    socket_domain(file) == Ok(AddressFamily::UNIX) && socket_type(file) == Ok(SocketType::STREAM)
}

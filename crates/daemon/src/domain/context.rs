//! A connection and everything of its domain that serving it needs, borrowed at once.

use std::collections::VecDeque;

use headworks_client::socket_message::Reply;
use headworks_client::{Extent, Reset, Vqpn};
use headworks_shm::WakeBy;
use headworks_verbs::Instant;

use super::{Domain, Output, QpGroupEntry};
use crate::connection::Connection;
use crate::copy_log::CopyLog;
use crate::ids::Signal;
use crate::pool::DomainPool;
use crate::session::Session;

/// A queue-pair group, and the list of groups that have something to do.
pub(super) struct GroupContext<'d> {
    at: usize,
    pub(super) entry: &'d mut QpGroupEntry,
    active: &'d mut Vec<usize>,
}

impl GroupContext<'_> {
    /// Notes that the group has something to do.
    pub(super) fn activate(&mut self) {
        if !std::mem::replace(&mut self.entry.is_active, true) {
            self.active.push(self.at);
        }
    }

    /// Schedules a connection that may have data to send.
    pub(super) fn schedule(&mut self, number: Vqpn) {
        self.entry.group.drr.call(number.place() as u32);
        self.activate();
    }
}

/// A connection, its session and its queue-pair group.
pub(super) struct ConnectionContext<'d> {
    pub(super) connection: &'d mut Connection,
    pub(super) session: &'d mut Session,
    /// `None` once the group has failed.
    pub(super) group: Option<GroupContext<'d>>,
    pub(super) outputs: &'d mut VecDeque<Output>,
    /// The receive pool of this part of the domain.
    pub(super) pool: &'d mut DomainPool,
    pub(super) now: Instant,
    pub(super) copies: &'d mut CopyLog,
}

impl Domain {
    /// Returns a group with the list that it activates itself in.
    pub(super) fn group_context(&mut self, at: usize) -> Option<GroupContext<'_>> {
        let entry = self.groups.get_mut(at)?;
        let active = &mut self.active;
        Some(GroupContext { at, entry, active })
    }

    /// Returns a connection with its session and group; `None` if it is gone.
    pub(super) fn context(&mut self, number: Vqpn) -> Option<ConnectionContext<'_>> {
        let connection = self.connections.get_mut(number)?;
        // A session stays as long as it has connections.
        let session = self.sessions.get_mut(connection.place.session)?;
        let group = connection.place.group.and_then(|at| {
            let entry = self.groups.get_mut(at)?;
            let active = &mut self.active;
            Some(GroupContext { at, entry, active })
        });
        Some(ConnectionContext {
            connection,
            session,
            group,
            outputs: &mut self.outputs,
            pool: &mut self.pool,
            now: self.now,
            copies: &mut self.copies,
        })
    }

    /// Brings a connection up to date after a change: queues control frames, wakes a sleeping application,
    /// and removes the connection if it is over.
    pub(super) fn attend(&mut self, number: Vqpn) {
        let Some(mut context) = self.context(number) else {
            return;
        };
        context.update();
        if context.connection.is_over() {
            self.forget(number);
        }
    }
}

impl ConnectionContext<'_> {
    /// Schedules the connection: it may have data to send.
    pub(super) fn schedule(&mut self) {
        if let Some(group) = &mut self.group {
            group.schedule(self.connection.number);
        }
    }

    /// Does what [`Domain::attend`] says, except that the connection is not removed.
    fn update(&mut self) {
        self.connection.settle();
        if !self.connection.is_alive() {
            self.connection.ingress.give_up();
        }
        if self.connection.is_refused() {
            self.connection.cut(Reset::ByPeer);
            self.group = None;
        }
        self.collect();
        if self.connection.is_untouched() {
            for (extent, request) in self.connection.exports.end() {
                self.unexport(extent, request);
            }
        }
        if let Some(group) = &mut self.group {
            self.connection.queue(&mut group.entry.group);
            group.activate();
        }
        self.notify();
        if !self.connection.is_alive() {
            self.hang_up();
        }
        if self.connection.note_reset() {
            self.session.traffic.reset += 1;
        }
    }

    /// Frees memory that the application no longer uses.
    pub(super) fn collect(&mut self) {
        let (number, app) = (self.connection.number, self.session.app);
        let memory = &mut self.session.memory;
        let ingress = &mut self.connection.ingress;
        ingress.collect(number, (self.pool, app), memory, Some(self.now));
    }

    /// Wakes the application, if it waits for what has changed.
    fn notify(&mut self) {
        let (session, handle) = (self.connection.place.session, self.connection.place.handle);
        if !self.session.is_gone && self.session.memory.has_new_slabs() {
            self.outputs.push_back(Output::Slabs { session });
        }
        let (more, room) = self.connection.ring_doorbells();
        let mut is_rung = false;
        for (woken, signal) in [(more, Signal::Readable), (room, Signal::Writable)] {
            match (woken, self.connection.watch) {
                (None, _) => {}
                (Some(WakeBy::Word), _) => {
                    let for_room = signal == Signal::Writable;
                    let event_count = self.connection.event_count(for_room);
                    self.outputs.push_back(Output::WakeThread(event_count));
                }
                (Some(WakeBy::Set), _) => {
                    let ready = self.session.doorbell.ready();
                    is_rung |= ready.is_some_and(|ready| ready.touch(handle));
                }
                (Some(WakeBy::Message), Some(watch)) => {
                    self.outputs.push_back(Output::Signal { watch, signal });
                }
                (Some(WakeBy::Message), None) => is_rung = true,
            }
        }
        if is_rung {
            self.outputs.push_back(Output::Wake { session, handle });
        }
    }

    /// Hangs up the descriptor of the connection, if it has one.
    pub(super) fn hang_up(&mut self) {
        if let Some(watch) = self.connection.watch.take() {
            let signal = Signal::HungUp;
            self.outputs.push_back(Output::Signal { watch, signal });
        }
    }

    /// Unpins exported memory that the other end does not use any more, and answers the revocation, if there
    /// was one.
    pub(super) fn unexport(&mut self, extent: Extent, request: Option<u32>) {
        self.session.memory.unpin(extent);
        if let Some(request) = request.filter(|_| !self.session.is_gone) {
            let session = self.connection.place.session;
            let reply = Reply::Revoked { request };
            self.outputs.push_back(Output::Reply { session, reply });
        }
    }
}

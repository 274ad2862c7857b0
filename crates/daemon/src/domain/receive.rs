//! Handling of frames that another daemon sent. Their content is not trusted.

use std::sync::atomic::Ordering;

use headworks_client::{Op, Outcome, Reset, Rights, Vqpn};
use headworks_shm::View;
use headworks_verbs::{Completion, Opcode};

use super::Domain;
use super::context::ConnectionContext;
use crate::frame::{ATOMIC, Atomic, HEADER, Header, Kind, MEMORY, Remote};

/// Maximum number of answers of a connection that wait to be sent. A correct peer has fewer atomics under
/// way.
const ANSWERS_MAX: usize = 256;

impl Domain {
    /// Handles a receive completion of a group.
    pub(super) fn receive(&mut self, at: usize, receive: u32, completion: &Completion) {
        let Some((memory, offset)) = self.receives.memory(receive) else {
            return;
        };
        let mut bytes = [0; HEADER];
        // A WRITE with immediate consumes a receive too, and leaves the old bytes in its buffer.
        let is_frame = completion.opcode == Opcode::Recv
            && completion.byte_len as usize <= self.receives.frame_bytes();
        let header = match memory.read(offset, &mut bytes) {
            Ok(()) if is_frame => Header::parse(&bytes, completion.byte_len as usize).ok(),
            _ => None,
        };
        let Some(entry) = self.groups.get_mut(at) else {
            return;
        };
        let group = &mut entry.group;
        let counted = header.map(|header| group.credit.come(header.promised));
        let (Some(header), Some(Ok(()))) = (header, counted) else {
            tracing::warn!("a queue-pair group has failed: another daemon sent an illegal frame");
            self.fail(at, Reset::Protocol);
            return;
        };
        let more = self.receive_shares.used(group.receives_held());
        if self.receives.srq().is_some() {
            // The step posts the used receive again before it sends anything.
            group.credit.promise(more);
        } else if group.own_receives.owe(more) {
            // They are promised once they are posted.
            self.refill.push(at);
        }
        group.is_peer_short = header.is_short;
        group.awaits_peer = false;
        self.prove(at);
        self.activate(at);
        match header.kind {
            Kind::Tell => return,
            Kind::Slow => {
                self.slow_down(at);
                return;
            }
            _ => {}
        }
        let number = Vqpn::from_bits(completion.imm.unwrap_or(u32::MAX));
        let connection = self.connections.get(number);
        // Ignores late frames of connections that are gone, and frames for connections of another group.
        if connection.is_some_and(|one| one.place.group == Some(at)) {
            self.receive_frame(number, header, (&memory, offset + HEADER));
        }
    }

    fn receive_frame(&mut self, number: Vqpn, header: Header, body: (&View, usize)) {
        let ring_max = self.config.ingress_max;
        let Some(mut context) = self.context(number) else {
            return;
        };
        context.receive(header, body, ring_max);
        self.attend(number);
    }

    /// Handles the completion of a READ of a piece of a transfer.
    pub(super) fn fetched(&mut self, at: usize, number: Vqpn) {
        if let Some(entry) = self.groups.get_mut(at) {
            entry.group.reads = entry.group.reads.saturating_sub(1);
        }
        let Some(mut context) = self.context(number) else {
            debug_assert!(false, "a connection stays while something is READ for it");
            return;
        };
        let is_over = !context.connection.is_alive();
        let now = context.now;
        let session = &mut *context.session;
        let ingress = &mut context.connection.ingress;
        let bytes = ingress.read_done(
            is_over,
            (context.pool, session.app),
            &mut session.memory,
            now,
        );
        session.traffic.received += u64::from(bytes);
        context.connection.came();
        context.want_memory();
        self.attend(number);
    }
}

impl ConnectionContext<'_> {
    /// Handles a frame for the connection.
    fn receive(&mut self, header: Header, body: (&View, usize), ring_max: u32) {
        let is_data = matches!(header.kind, Kind::Data | Kind::Announce);
        let connection = &mut *self.connection;
        let is_left = connection.is_left();
        if is_data && (is_left || !connection.is_alive()) {
            connection.comes_late();
            if !connection.is_alive() || connection.is_all_delivered() {
                return;
            }
        }
        let widens = matches!(header.kind, Kind::Data | Kind::Window);
        if widens && connection.egress.widen(header.window) {
            self.schedule();
        }
        let is_legal = match header.kind {
            Kind::Tell | Kind::Slow | Kind::Window => true,
            Kind::Data => self.data(header, body),
            Kind::Announce => self.announce(header, body),
            Kind::Fetched => self.transfers_read(header),
            Kind::Export => self.export(header, body),
            Kind::Revoke => {
                let export_id = u32::try_from(header.at);
                let imports = &mut self.connection.egress.imports;
                export_id.is_ok_and(|export_id| imports.want(export_id))
            }
            Kind::Revoked => self.revoked(header.at),
            Kind::Atomic => self.atomic(header, body),
            Kind::Answer => self.answered(header),
            Kind::End => self.connection.ended(header.at),
            Kind::Reset => {
                let why = match Reset::from_code(header.code) {
                    // A peer's daemon reports a broken rule of its application as a reset by the peer.
                    Some(Reset::Misuse | Reset::Kept) => Reset::ByPeer,
                    why => why.unwrap_or(Reset::Protocol),
                };
                self.connection.reset(why, true);
                true
            }
            Kind::Closed => {
                self.connection.closed();
                true
            }
        };
        let connection = &mut *self.connection;
        if !is_legal {
            let peer = connection.place.peer;
            tracing::warn!(
                "the daemon of {peer} sent an illegal frame for a connection, which is reset"
            );
            connection.reset(Reset::Protocol, false);
        }
        if is_data {
            if is_legal && header.kind == Kind::Data {
                self.session.traffic.received += u64::from(header.len);
            }
            let most = if is_left { 0 } else { ring_max };
            connection.ingress.grow(&mut self.session.memory, most);
        }
    }

    /// Handles bytes of the stream. Returns whether they are legal.
    fn data(&mut self, header: Header, body: (&View, usize)) -> bool {
        let connection = &mut *self.connection;
        let memory = &self.session.memory;
        let came = connection
            .ingress
            .data(header.at, header.len, memory, body, self.copies);
        connection.came();
        came.is_ok()
    }

    /// Handles the announcement of a transfer. Returns whether it is legal.
    fn announce(&mut self, header: Header, body: (&View, usize)) -> bool {
        let mut bytes = [0; MEMORY];
        let from = body.0.read(body.1, &mut bytes).ok();
        let from = from.and_then(|()| Remote::parse_memory(&bytes, header.len).ok());
        let ingress = &mut self.connection.ingress;
        let announced = from.map(|from| ingress.announce(header.at, from));
        if !matches!(announced, Some(Ok(()))) {
            return false;
        }
        self.pool.announced();
        if self.connection.is_left() {
            // Nobody reads these bytes: they are counted as READ.
            self.connection.ingress.give_up();
            self.connection.came();
            return true;
        }
        self.want_memory();
        true
    }

    /// Handles the news that the peer has READ transfers. Returns whether there were any.
    fn transfers_read(&mut self, header: Header) -> bool {
        let fetched = self.connection.egress.fetched(header.at);
        // There may be room for another transfer.
        self.schedule();
        fetched.is_ok() || !self.connection.is_alive()
    }

    /// Handles an export of the peer. Returns whether it is legal.
    fn export(&mut self, header: Header, body: (&View, usize)) -> bool {
        let mut bytes = [0; MEMORY];
        let memory = body.0.read(body.1, &mut bytes).ok();
        let memory = memory.and_then(|()| Remote::parse_memory(&bytes, header.len).ok());
        let (Some(memory), Ok(export_id)) = (memory, u32::try_from(header.at)) else {
            return false;
        };
        let rights = Rights::from_bits_truncate(header.code);
        let imports = &mut self.connection.egress.imports;
        imports.add(export_id, memory, rights)
    }

    /// Handles the return of an export by the peer. Returns whether it is legal.
    fn revoked(&mut self, export_id: u64) -> bool {
        let export_id = u32::try_from(export_id).ok();
        let revoked = export_id.and_then(|export_id| self.connection.exports.revoked(export_id));
        if let Some((extent, request)) = revoked {
            self.unexport(extent, Some(request));
        }
        revoked.is_some() || self.may_be_late()
    }

    /// Executes an atomic for the peer. Returns whether the request is legal. It is answered even if the
    /// application has closed the connection.
    fn atomic(&mut self, header: Header, body: (&View, usize)) -> bool {
        let connection = &mut *self.connection;
        let mut bytes = [0; ATOMIC];
        let asked = body.0.read(body.1, &mut bytes).ok();
        let asked = asked.and_then(|()| Atomic::parse(&bytes).ok());
        let op = Op::from_code(header.code).filter(|op| op.is_atomic());
        let (Some(op), Some(asked)) = (op, asked) else {
            return false;
        };
        if connection.answers.len() >= ANSWERS_MAX {
            return false;
        }
        let Atomic {
            export_id,
            at,
            operand,
            compare,
        } = asked;
        let word = connection.exports.word(export_id, at);
        let word = word.and_then(|extent| {
            let slab = self.session.memory.slab(extent.slab);
            let slab = slab.ok_or(Outcome::NoExport)?;
            let word = slab.atomic_u64(extent.offset as usize);
            word.map_err(|_| Outcome::OutOfBounds)
        });
        let done = word.map(|word| match op {
            Op::CompareSwap => {
                let swapped =
                    word.compare_exchange(compare, operand, Ordering::AcqRel, Ordering::Acquire);
                swapped.unwrap_or_else(|found| found)
            }
            _ => word.fetch_add(operand, Ordering::AcqRel),
        });
        let (outcome, before) = match done {
            Ok(before) => (Outcome::Done, before),
            Err(outcome) => (outcome, 0),
        };
        connection.answers.push_back((header.at, outcome, before));
        true
    }

    /// Handles the outcome of an atomic that the application requested. Returns whether it is legal.
    fn answered(&mut self, header: Header) -> bool {
        let outcome = Outcome::from_code(header.code);
        let egress = &mut self.connection.egress;
        let answered = egress.answered(header.at, outcome, header.window);
        self.schedule();
        answered.is_ok() || self.may_be_late()
    }

    /// Returns whether a frame may be late: the connection was reset, or the other end has sent its `Closed`
    /// frame, which answers may cross.
    fn may_be_late(&self) -> bool {
        !self.connection.is_alive() || self.connection.is_untouched()
    }
}

//! Handling of frames that another daemon sent. Their content is not trusted.

use std::sync::atomic::Ordering;

use headworks_client::{Op, Outcome, Reset, Rights, Vqpn};
use headworks_shm::View;
use headworks_verbs::{Completion, Opcode};

use super::Domain;
use crate::frame::{ATOMIC, Atomic, HEADER, Header, Kind, OFFER, RING, Remote};
use crate::ingress::FETCHING_MAX;
use crate::qp_group::Fetch;

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
        let more = self.receive_shares.used(group.credit.outstanding());
        group.credit.promise(more);
        group.peer_load = header.load;
        self.prove(at);
        self.activate(at);
        if header.kind == Kind::Tell {
            return;
        }
        let number = Vqpn::from_bits(completion.imm.unwrap_or(u32::MAX));
        let connection = self.connections.get(number);
        // Ignores late frames of connections that are gone, and frames for connections of another group.
        if connection.is_some_and(|one| one.place.group == Some(at)) {
            self.receive_frame(at, number, header, (&memory, offset + HEADER));
        }
    }

    fn receive_frame(&mut self, at: usize, number: Vqpn, header: Header, body: (&View, usize)) {
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        let is_data = matches!(header.kind, Kind::Data | Kind::Wrote | Kind::Offer);
        let is_left = connection.is_left();
        if is_data && (is_left || !connection.is_alive()) {
            connection.comes_late();
            if !connection.is_alive() || connection.is_all_delivered() {
                self.attend(number);
                return;
            }
        }
        connection.egress.meet();
        let widens = matches!(header.kind, Kind::Data | Kind::Window);
        if widens && connection.egress.widen(header.window) {
            self.call(at, number);
        }
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        let Some(session) = self.sessions.get(connection.place.session) else {
            return;
        };
        let (position, len) = (header.at, header.len);
        let is_legal = match header.kind {
            Kind::Tell => true,
            // Nobody reads these bytes: they are counted and discarded.
            Kind::Data | Kind::Wrote if is_left => connection.ingress.wrote(position, len).is_ok(),
            Kind::Offer if is_left => {
                let is_legal = connection.fetched.len() < FETCHING_MAX
                    && connection.ingress.wrote(position, len).is_ok();
                if is_legal {
                    connection.fetched.push_back((position, len));
                }
                is_legal
            }
            Kind::Data => {
                self.copied += u64::from(len);
                let came = connection
                    .ingress
                    .data(position, len, &session.memory, body);
                connection.came();
                came.is_ok()
            }
            Kind::Wrote => {
                let came = connection.ingress.wrote(position, len);
                connection.came();
                came.is_ok()
            }
            Kind::Offer => {
                let mut bytes = [0; OFFER];
                let from = body.0.read(body.1, &mut bytes);
                let from = from.map(|()| Remote::parse_offer(&bytes, len));
                let to = connection.ingress.fetch(position, len);
                match (from, to, self.groups.get_mut(at)) {
                    (Ok(from), Ok(to), Some(entry)) => {
                        entry.group.fetches.push_back(Fetch {
                            number,
                            at: position,
                            from,
                            to,
                        });
                        true
                    }
                    _ => false,
                }
            }
            Kind::Fetched => {
                let fetched = connection.egress.fetched(position, len);
                fetched.is_ok() || !connection.is_alive()
            }
            Kind::Window => self.window(number, header, body),
            Kind::Export => {
                let mut bytes = [0; OFFER];
                let memory = body.0.read(body.1, &mut bytes);
                let memory = memory.map(|()| Remote::parse_offer(&bytes, len));
                let rights = Rights::from_bits(header.code);
                let export_id = u32::try_from(position);
                match (memory, export_id) {
                    (Ok(memory), Ok(export_id)) => {
                        connection.egress.imports.add(export_id, memory, rights)
                    }
                    _ => false,
                }
            }
            Kind::Revoke => {
                let export_id = u32::try_from(position);
                export_id.is_ok_and(|export_id| connection.egress.imports.want(export_id))
            }
            Kind::Revoked => self.revoked(number, position),
            Kind::Atomic => self.atomic(number, header, body),
            Kind::Answer => {
                let outcome = Outcome::from_code(header.code);
                let answered = connection.egress.answered(position, outcome, header.window);
                self.call(at, number);
                answered.is_ok() || self.is_over(number)
            }
            Kind::End => connection.ended(position),
            Kind::Reset => {
                let why = match Reset::from_code(header.code) {
                    // Misuse is between the peer and its application. Here it is a reset by the peer.
                    Some(Reset::Misuse) => Reset::ByPeer,
                    why => why.unwrap_or(Reset::Protocol),
                };
                connection.reset(why, true);
                true
            }
            Kind::Closed => {
                connection.closed();
                true
            }
        };
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        if !is_legal {
            let peer = connection.place.peer;
            tracing::warn!(
                "the daemon of {peer} sent an illegal frame for a connection, which is reset"
            );
            connection.reset(Reset::Protocol, false);
        }
        if is_data && let Some(session) = self.sessions.get_mut(connection.place.session) {
            if is_legal && header.kind != Kind::Offer {
                session.traffic.received += u64::from(len);
            }
            let most = if is_left { 0 } else { self.config.ring_max };
            connection.ingress.grow(&mut session.memory, most);
        }
        if header.kind == Kind::Fetched {
            // There may be room for another transfer.
            self.call(at, number);
        }
        self.attend(number);
    }

    /// Returns whether a frame for a connection may be late: the connection was reset, or the other end has
    /// sent its `Closed` frame, which answers may cross.
    fn is_over(&self, number: Vqpn) -> bool {
        let connection = self.connections.get(number);
        connection.is_none_or(|connection| !connection.is_alive() || connection.is_untouched())
    }

    /// Handles the return of an export by the peer. Returns whether it is legal.
    fn revoked(&mut self, number: Vqpn, export_id: u64) -> bool {
        let Some(connection) = self.connections.get_mut(number) else {
            return true;
        };
        let export_id = u32::try_from(export_id).ok();
        let revoked = export_id.and_then(|export_id| connection.exports.revoked(export_id));
        let session = connection.place.session;
        if let Some((extent, request)) = revoked {
            self.unexport(session, extent, Some(request));
        }
        revoked.is_some() || self.is_over(number)
    }

    /// Executes an atomic for the peer. Returns whether the request is legal. It is answered even if the
    /// application has closed the connection.
    fn atomic(&mut self, number: Vqpn, header: Header, body: (&View, usize)) -> bool {
        let Some(connection) = self.connections.get_mut(number) else {
            return true;
        };
        let mut bytes = [0; ATOMIC];
        let read = body.0.read(body.1, &mut bytes);
        let op = Op::from_code(header.code).filter(|op| op.is_atomic());
        let (Some(op), Ok(())) = (op, read) else {
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
        } = Atomic::parse(&bytes);
        let session = self.sessions.get(connection.place.session);
        let word = connection.exports.word(export_id, at);
        let word = word.and_then(|extent| {
            let slab = session.and_then(|session| session.memory.slab(extent.slab));
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

    /// Handles a window update of the peer, which may announce a new ring. Returns whether it is legal.
    fn window(&mut self, number: Vqpn, header: Header, body: (&View, usize)) -> bool {
        let Some(connection) = self.connections.get_mut(number) else {
            return true;
        };
        if header.len == 0 {
            return true;
        }
        let mut bytes = [0; RING];
        let ring = body.0.read(body.1, &mut bytes).ok();
        let ring = ring.and_then(|()| Remote::parse_ring(&bytes).ok());
        let ring = ring.map(|(ring, from)| connection.egress.retarget(ring, from));
        matches!(ring, Some(Ok(()))) || !connection.is_alive()
    }

    /// Handles the completion of a READ of a piece.
    pub(super) fn fetched(&mut self, at: usize, number: Vqpn, position: u64, bytes: u32) {
        if let Some(entry) = self.groups.get_mut(at) {
            entry.group.reads = entry.group.reads.saturating_sub(1);
        }
        self.fetched_or_not(number, position, bytes);
    }

    /// Counts a piece of a transfer as READ: it was READ, or the READ was skipped because the application has
    /// closed the connection. Once all pieces are counted, the transfer is reported to the peer as done.
    pub(super) fn fetched_or_not(&mut self, number: Vqpn, position: u64, bytes: u32) {
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        match connection.ingress.fetched(position, bytes) {
            Ok(None) => {}
            Ok(Some((len, _))) => {
                connection.came();
                connection.fetched.push_back((position, len));
                if let Some(session) = self.sessions.get_mut(connection.place.session) {
                    session.traffic.received += u64::from(len);
                }
            }
            Err(_) => connection.reset(Reset::Protocol, false),
        }
        self.attend(number);
    }
}

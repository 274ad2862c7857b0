//! Hearing: what a frame of another daemon's does. None of it is believed.

use headworks_client::{Reset, Vqpn};
use headworks_shm::View;
use headworks_verbs::{Completion, Opcode};

use super::Domain;
use crate::frame::{HEADER, Header, Kind, OFFER, RING, Remote};
use crate::link::Fetch;

impl Domain {
    /// A frame came over a link.
    pub(super) fn receive(&mut self, at: usize, receive: u32, completion: &Completion) {
        let Some((memory, offset)) = self.receives.memory(receive) else {
            return;
        };
        let mut bytes = [0; HEADER];
        // A WRITE with immediate takes a receive too, and leaves in it what was there before.
        let is_frame = completion.opcode == Opcode::Recv
            && completion.byte_len as usize <= self.receives.frame_bytes();
        let header = match memory.read(offset, &mut bytes) {
            Ok(()) if is_frame => Header::parse(&bytes, completion.byte_len as usize).ok(),
            _ => None,
        };
        let Some(linked) = self.links.get_mut(at) else {
            return;
        };
        let link = &mut linked.link;
        let counted = header.map(|header| link.credit.come(header.promised));
        let (Some(header), Some(Ok(()))) = (header, counted) else {
            tracing::warn!("a link has failed: another daemon said what cannot be");
            self.fail(at, Reset::Protocol);
            return;
        };
        let more = self.grants.used(link.credit.outstanding());
        link.credit.promise(more);
        link.peer_load = header.load;
        self.activate(at);
        if header.kind == Kind::Tell {
            return;
        }
        let number = Vqpn::from_bits(completion.imm.unwrap_or(u32::MAX));
        let connection = self.connections.get(number);
        // Late, for a connection that is no more; or of another link, which is none of this one's business.
        if connection.is_some_and(|one| one.place.link == Some(at)) {
            self.hear(at, number, header, (&memory, offset + HEADER));
        }
    }

    fn hear(&mut self, at: usize, number: Vqpn, header: Header, body: (&View, usize)) {
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        let is_data = matches!(header.kind, Kind::Data | Kind::Wrote | Kind::Offer);
        if is_data && (!connection.is_alive() || connection.is_left()) {
            // Nobody reads it any more: the peer is told when what was written here has gone.
            connection.comes_late();
            self.attend(number);
            return;
        }
        connection.outlet.meet();
        let widens = matches!(header.kind, Kind::Data | Kind::Window);
        if widens && connection.outlet.widen(header.window) {
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
            Kind::Data => {
                self.copied += u64::from(len);
                let came = connection.inlet.data(position, len, &session.memory, body);
                connection.came();
                came.is_ok()
            }
            Kind::Wrote => {
                let came = connection.inlet.wrote(position, len);
                connection.came();
                came.is_ok()
            }
            Kind::Offer => {
                let mut bytes = [0; OFFER];
                let from = body.0.read(body.1, &mut bytes);
                let from = from.map(|()| Remote::parse_offer(&bytes, len));
                let to = connection.inlet.fetch(position, len);
                match (from, to, self.links.get_mut(at)) {
                    (Ok(from), Ok(to), Some(linked)) => {
                        linked.link.fetches.push_back(Fetch {
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
                let fetched = connection.outlet.fetched(position, len);
                fetched.is_ok() || !connection.is_alive()
            }
            Kind::Window => self.window(number, header, body),
            Kind::End => connection.ended(position),
            Kind::Reset => {
                let why = match Reset::from_code(header.code) {
                    // That is between the peer and its application.
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
                "the daemon of {peer} said what cannot be of a connection, which is reset"
            );
            connection.reset(Reset::Protocol, false);
        }
        if is_data && let Some(session) = self.sessions.get_mut(connection.place.session) {
            connection
                .inlet
                .grow(&mut session.memory, self.config.ring_max);
        }
        if header.kind == Kind::Fetched {
            // There may be room for another transfer.
            self.call(at, number);
        }
        self.attend(number);
    }

    /// The peer told of its window; says whether that can be.
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
        let ring = ring.map(|(ring, from)| connection.outlet.retarget(ring, from));
        matches!(ring, Some(Ok(()))) || !connection.is_alive()
    }

    /// A piece of what was READ has come.
    pub(super) fn fetched(&mut self, at: usize, number: Vqpn, position: u64) {
        if let Some(linked) = self.links.get_mut(at) {
            linked.link.reads = linked.link.reads.saturating_sub(1);
        }
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        match connection.inlet.fetched(position) {
            Ok(None) => {}
            Ok(Some((len, _))) => {
                connection.came();
                connection.fetched.push_back((position, len));
            }
            Err(_) => connection.reset(Reset::Protocol, false),
        }
        self.attend(number);
    }
}

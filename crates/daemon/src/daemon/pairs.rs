//! Pairs: two sessions of this machine with [direct connections](headworks_client::direct).
//!
//! Each daemon allocates the memory in which its own session sends, and hands the file to the other daemon, over the Unix
//! socket between them. The daemon of the listening side also makes the socket of the pair. Both daemons hand everything to
//! their applications before the first connection of the pair. A daemon at which both sessions are attached talks to itself.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use headworks_client::direct::{DirectEnd, DirectPlace};
use headworks_client::socket_message::Reply;

use super::{Daemon, Output, OutputFile, PeerId, SessionId};
use crate::control::{DIRECT_VERSION, Message, PairEnds, PlaceId, TakenPlace};
use crate::pair_memory::PairMemory;

/// A pair: this daemon's session, the stream to the daemon of the other session, and that session's number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PairKey {
    pub(super) own: SessionId,
    pub(super) peer: PeerId,
    pub(super) other: u64,
}

/// State of a pair.
pub(super) struct Pair {
    /// Number of the pair in the session.
    number: u32,
    /// Memory in which this side sends.
    memory: Arc<PairMemory>,
    /// File of the memory in which the other side sends, until the application has it.
    incoming: Option<Arc<OwnedFd>>,
    /// The application's end of the socket, until it has it.
    socket: Option<Arc<OwnedFd>>,
    /// Whether the application has the pair.
    is_told: bool,
    /// Whether the other session has ended.
    is_other_gone: bool,
    /// Whether a file of the pair was lost. New connections go through the daemons then.
    is_unusable: bool,
}

/// The direct path of a connection of this daemon's session.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectOf {
    pub(super) pair: PairKey,
    /// Places of the connection in the direction of this side, and in the other one.
    own: PlaceId,
    theirs: PlaceId,
}

/// All pairs of a daemon.
#[derive(Default)]
pub(super) struct Pairs {
    all: BTreeMap<PairKey, Pair>,
    /// Direct connections, by session and handle.
    pub(super) connections: BTreeMap<(SessionId, u32), DirectOf>,
}

impl Pairs {
    /// The pairs of a session.
    fn of(&self, session: SessionId) -> impl Iterator<Item = (&PairKey, &Pair)> {
        let first = PairKey {
            own: session,
            peer: PeerId(0),
            other: 0,
        };
        let from_first = self.all.range(first..);
        from_first.take_while(move |(key, _)| key.own == session)
    }

    /// Number of a session's direct connections.
    pub(super) fn connections_of(&self, session: SessionId) -> usize {
        self.connections.range(handles_of(session)).count()
    }
}

/// The keys of a session's direct connections.
fn handles_of(session: SessionId) -> RangeInclusive<(SessionId, u32)> {
    (session, 0)..=(session, u32::MAX)
}

/// Makes the two ends of a socket pair; `None` if the system has none.
pub type MakeSocketPair = Box<dyn FnMut() -> Option<(OwnedFd, OwnedFd)> + Send>;

impl Daemon {
    /// Lets connections take the [direct path](headworks_client::direct) from now on, if the [configuration](crate::limits)
    /// allows it. `make` makes the sockets of pairs.
    pub fn enable_direct_path(&mut self, make: MakeSocketPair) {
        self.make_socket_pair = Some(make).filter(|_| self.config.direct);
    }

    /// Records that the stream to another daemon is a Unix socket, over which files can be passed.
    pub fn peer_is_local(&mut self, peer: PeerId) {
        if let Some(of) = self.peers.get_mut(&peer) {
            of.is_local = true;
        }
    }

    /// Number of a session towards another daemon, if connections between them may be direct.
    pub(super) fn direct_session(&self, session: SessionId, peer: PeerId) -> Option<u64> {
        let of = self.peers.get(&peer)?;
        let client = self.clients.get(&session)?;
        let may = self.make_socket_pair.is_some()
            && of.is_local
            && of.version >= DIRECT_VERSION
            && client.session.as_ref()?.takes_direct;
        may.then_some(session.0)
    }

    /// Makes room for a direct connection in this side's direction of a pair, and the pair if there is none. Returns `None`
    /// if there is no room: the connection goes through the daemons.
    pub(super) fn open_direct(&mut self, key: PairKey, is_listening: bool) -> Option<TakenPlace> {
        if !self.pairs.all.contains_key(&key) {
            self.make_pair(key, is_listening)?;
        }
        let pair = self.pairs.all.get(&key)?;
        match pair.is_unusable {
            true => None,
            false => pair.memory.open(),
        }
    }

    /// Whether this daemon makes the sockets of a pair. The two daemons agree on that also if applications of both connect to
    /// each other at the same time: the lower address makes them, and at one daemon the lower session. A session with itself
    /// is connected in one way only, so there the listening side can make them.
    fn makes_socket(&self, key: PairKey, is_listening: bool) -> bool {
        let peer = self.peers.get(&key.peer).and_then(|of| of.known);
        let own = (Some(self.identity.address), key.own.0);
        match own.cmp(&(peer.map(|(address, _)| address), key.other)) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Greater => false,
            std::cmp::Ordering::Equal => is_listening,
        }
    }

    fn make_pair(&mut self, key: PairKey, is_listening: bool) -> Option<()> {
        let makes_socket = self.makes_socket(key, is_listening);
        let (bytes, most) = (self.config.direct_bytes, self.config.pairs_each);
        let count = self.pairs.of(key.own).count();
        let session = self.clients.get_mut(&key.own)?.session.as_mut()?;
        if count >= most as usize {
            if !std::mem::replace(&mut session.is_pair_limit_logged, true) {
                let name = &session.name;
                tracing::warn!(
                    "application {name:?} is connected directly with {most} others, and reaches more through the daemons: raise \
                     pairs_each for more"
                );
            }
            return None;
        }
        let quota = session.memory.quota().clone();
        let memory = PairMemory::new(&*self.device, bytes, quota, &session.name).ok()?;
        let number = session.last_pair + 1;
        session.last_pair = number;
        let (file, ends) = (
            OutputFile::Memory(memory.buffer().clone()),
            PairEnds {
                from: key.own.0,
                to: key.other,
            },
        );
        let mut pair = Pair {
            number,
            memory,
            incoming: None,
            socket: None,
            is_told: false,
            is_other_gone: false,
            is_unusable: false,
        };
        let mut theirs = None;
        if makes_socket {
            let (own, other) = self.make_socket_pair.as_mut()?()?;
            pair.socket = Some(Arc::new(own));
            theirs = Some(Arc::new(other));
        }
        self.pairs.all.insert(key, pair);
        self.say_with_file(key.peer, &Message::PairMemory { ends }, file);
        if let Some(theirs) = theirs {
            let file = OutputFile::File(theirs);
            self.say_with_file(key.peer, &Message::PairSocket { ends }, file);
        }
        Some(())
    }

    fn say_with_file(&mut self, peer: PeerId, message: &Message, file: OutputFile) {
        let message = message.encode();
        self.outputs.push_back(Output::FileToPeer {
            peer,
            message,
            file,
        });
    }

    /// Handles that a file could not be passed to another daemon with this message.
    pub fn file_not_passed(&mut self, peer: PeerId, message: &[u8]) {
        if let Ok(Message::PairMemory { ends } | Message::PairSocket { ends }) =
            Message::decode(message)
        {
            self.spoil_pair(PairKey {
                own: SessionId(ends.from),
                peer,
                other: ends.to,
            });
        }
    }

    /// Handles a message of another daemon whose file was lost on the way.
    pub fn file_not_received(&mut self, peer: PeerId, message: &[u8]) {
        if let Ok(Message::PairMemory { ends } | Message::PairSocket { ends }) =
            Message::decode(message)
        {
            self.spoil_pair(PairKey {
                own: SessionId(ends.to),
                peer,
                other: ends.from,
            });
        }
    }

    /// Has new connections of a pair go through the daemons from now on. Those that are direct stay so.
    fn spoil_pair(&mut self, key: PairKey) {
        if let Some(pair) = self.pairs.all.get_mut(&key) {
            pair.is_unusable = true;
        }
    }

    /// Handles a message of another daemon that came with a file.
    pub fn peer_file(&mut self, peer: PeerId, message: &[u8], file: OwnedFd) {
        let is_known = self.peers.get(&peer).is_some_and(|of| of.known.is_some());
        let message = Message::decode(message).ok().filter(|_| is_known);
        let (ends, is_memory) = match message {
            Some(Message::PairMemory { ends }) => (ends, true),
            Some(Message::PairSocket { ends }) => (ends, false),
            _ => return,
        };
        let key = PairKey {
            own: SessionId(ends.to),
            peer,
            other: ends.from,
        };
        // The connecting side hears of the pair by this message. The session may be gone, and has not told the end of this pair.
        if self.direct_session(key.own, peer).is_none() {
            let ends = PairEnds {
                from: key.own.0,
                to: key.other,
            };
            return self.say(peer, &Message::PairOver { ends });
        }
        if !self.pairs.all.contains_key(&key) && self.make_pair(key, false).is_none() {
            return;
        }
        if let Some(pair) = self.pairs.all.get_mut(&key) {
            let place = match is_memory {
                true => &mut pair.incoming,
                false => &mut pair.socket,
            };
            *place = Some(Arc::new(file));
        }
    }

    /// Hands a pair to its application, unless it has it, and returns the description of a connection of it. Returns `None` if
    /// a file of the pair is missing. It was lost then, because the other daemon passes it before it names a place.
    pub(super) fn direct_end(
        &mut self,
        key: PairKey,
        outgoing: DirectPlace,
        incoming: DirectPlace,
    ) -> Option<DirectEnd> {
        let pair = self.pairs.all.get_mut(&key)?;
        let number = pair.number;
        if let (Some(incoming), Some(socket)) = (&pair.incoming, &pair.socket) {
            let memory = |is_outgoing| Reply::PairMemory {
                pair: number,
                is_outgoing,
            };
            let files = [
                (
                    memory(true),
                    OutputFile::Memory(pair.memory.buffer().clone()),
                ),
                (memory(false), OutputFile::File(incoming.clone())),
                (
                    Reply::PairSocket { pair: number },
                    OutputFile::File(socket.clone()),
                ),
            ];
            (pair.incoming, pair.socket) = (None, None);
            pair.is_told = true;
            for (reply, file) in files {
                self.outputs.push_back(Output::FileToSession {
                    session: key.own,
                    packet: reply.encode(),
                    file,
                });
            }
        }
        if !self.pairs.all.get(&key)?.is_told {
            self.spoil_pair(key);
            return None;
        }
        Some(DirectEnd {
            pair: number,
            outgoing,
            incoming,
        })
    }

    /// Returns the memory in which this side of a pair sends.
    pub(super) fn pair_memory(&self, key: PairKey) -> Option<Arc<PairMemory>> {
        Some(self.pairs.all.get(&key)?.memory.clone())
    }

    /// Records that a connection of a session is direct. Its application has been told so, or will be.
    pub(super) fn note_direct(
        &mut self,
        handle: u32,
        pair: PairKey,
        own: PlaceId,
        theirs: PlaceId,
    ) {
        let of = DirectOf { pair, own, theirs };
        self.pairs.connections.insert((pair.own, handle), of);
        let client = self.clients.get_mut(&pair.own);
        if let Some(session) = client.and_then(|client| client.session.as_mut()) {
            session.opened_direct += 1;
        }
    }

    /// Gives back the room of a connection that neither application was told of.
    pub(super) fn drop_direct(&mut self, key: PairKey, own: PlaceId) {
        self.leave_direct(key, own);
        self.not_taken_at(key, own);
    }

    /// Records that this side's application will not use a place that the other daemon was told of. The place is free once the
    /// other daemon says that its application does not use it.
    pub(super) fn leave_direct(&self, key: PairKey, own: PlaceId) {
        if let Some(pair) = self.pairs.all.get(&key) {
            pair.memory.leave(own);
        }
    }

    /// Records that the other daemon has said that its application does not use the place that it was told of.
    pub(super) fn not_taken(&self, direct: Option<(PairKey, TakenPlace)>) {
        if let Some((key, own)) = direct {
            self.not_taken_at(key, own.id());
        }
    }

    fn not_taken_at(&self, key: PairKey, own: PlaceId) {
        if let Some(pair) = self.pairs.all.get(&key) {
            pair.memory.peer_left(own);
        }
    }

    /// Tells the other daemon that this side's application does not use the place that it was told of.
    pub(super) fn decline_direct(&mut self, key: PairKey, theirs: PlaceId) {
        let ends = PairEnds {
            from: key.own.0,
            to: key.other,
        };
        if self.peers.contains_key(&key.peer) {
            let place = theirs;
            self.say(key.peer, &Message::DirectOver { ends, place });
        }
    }

    /// Records that a connection of a session is over, and tells the other daemon that the session uses its memory no more.
    pub(super) fn direct_over(&mut self, session: SessionId, handle: u32) {
        let Some(of) = self.pairs.connections.remove(&(session, handle)) else {
            return;
        };
        let Some(pair) = self.pairs.all.get(&of.pair) else {
            return;
        };
        pair.memory.leave(of.own);
        self.decline_direct(of.pair, of.theirs);
        self.forget_pair_if_over(of.pair);
    }

    /// Handles that the other session uses a connection of this side's memory no more.
    pub(super) fn peer_direct_over(&mut self, peer: PeerId, ends: PairEnds, place: PlaceId) {
        let key = PairKey {
            own: SessionId(ends.to),
            peer,
            other: ends.from,
        };
        if let Some(pair) = self.pairs.all.get(&key) {
            pair.memory.peer_left(place);
        }
        self.forget_pair_if_over(key);
    }

    /// Handles the end of the other session of a pair.
    pub(super) fn pair_over(&mut self, peer: PeerId, ends: PairEnds) {
        let key = PairKey {
            own: SessionId(ends.to),
            peer,
            other: ends.from,
        };
        if let Some(pair) = self.pairs.all.get_mut(&key) {
            pair.is_other_gone = true;
        }
        self.forget_pair_if_over(key);
    }

    /// Drops a pair whose other session has ended, once this one uses it no more. The session keeps what the pair has carried.
    fn forget_pair_if_over(&mut self, key: PairKey) {
        let pair = self.pairs.all.get(&key);
        let is_other_gone = pair.is_some_and(|pair| pair.is_other_gone);
        let mut of_session = self.pairs.connections.range(handles_of(key.own));
        if !is_other_gone || of_session.any(|(_, of)| of.pair == key) {
            return;
        }
        if let Some(pair) = self.pairs.all.remove(&key)
            && let Some(client) = self.clients.get_mut(&key.own)
            && let Some(session) = &mut client.session
        {
            session.ended_pairs += pair.memory.traffic();
        }
    }

    /// Drops the pairs of a session that has ended, and tells the other daemons.
    pub(super) fn drop_pairs(&mut self, session: SessionId) {
        let of: Vec<PairKey> = self.pairs.of(session).map(|(key, _)| *key).collect();
        for key in of {
            self.pairs.all.remove(&key);
            let ends = PairEnds {
                from: session.0,
                to: key.other,
            };
            if self.peers.contains_key(&key.peer) {
                self.say(key.peer, &Message::PairOver { ends });
            }
        }
        let connections = &mut self.pairs.connections;
        let of_session: Vec<_> = connections
            .range(handles_of(session))
            .map(|(key, _)| *key)
            .collect();
        for key in of_session {
            connections.remove(&key);
        }
    }

    /// Records that the stream to another daemon has ended: nothing more is heard of its sessions.
    pub(super) fn lose_pairs(&mut self, peer: PeerId) {
        let of = self.pairs.all.keys().filter(|key| key.peer == peer);
        let of: Vec<PairKey> = of.copied().collect();
        for key in of {
            if let Some(pair) = self.pairs.all.get_mut(&key) {
                pair.is_other_gone = true;
            }
            self.forget_pair_if_over(key);
        }
    }

    /// The memories of a session's pairs.
    pub(super) fn pairs_of(&self, session: SessionId) -> impl Iterator<Item = &Arc<PairMemory>> {
        self.pairs.of(session).map(|(_, pair)| &pair.memory)
    }
}

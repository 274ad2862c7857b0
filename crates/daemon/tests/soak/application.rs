//! An application that checks every byte.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use headworks_client::connection::{Connection, Received};
use headworks_client::control_block::Transfer;
use headworks_client::session::Event;
use headworks_client::{Extent, LendTicket, Session};
use headworks_verbs::{Duration, Instant};

use super::tamper::{MEMORY, SideTraffic};

/// Behaviour of an application.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    /// User that it runs as.
    pub(crate) user: u32,
    /// Name under which the ledger has what it received; none by default.
    pub(crate) name: Option<&'static str>,
    /// How its bytes are carried, if not in all ways.
    pub(crate) way: Option<Transfer>,
    /// Port that it listens at.
    pub(crate) listens: Option<u16>,
    /// Connections that it makes, with their traffic.
    pub(crate) connects: Vec<(SocketAddr, Flow)>,
    /// Pause between two rounds of reading.
    pub(crate) rests: Option<Duration>,
    /// Time at which it dies.
    pub(crate) dies: Option<Instant>,
    /// Time from which it writes random words into the memory that it shares with its daemon.
    pub(crate) scribbles: Option<Instant>,
    /// Whether received bytes are not checked, since its peer scribbles.
    pub(crate) trusts: bool,
    /// Number of received bytes after which it aborts each connection.
    pub(crate) gives_up: Option<u64>,
}

/// Traffic of a connection in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flow {
    /// Bytes from the end that connects.
    pub(crate) there: u64,
    /// Bytes in the other direction.
    pub(crate) back: u64,
    /// Bytes written at a time.
    pub(crate) chunk: usize,
    /// Whether the bytes are lent from the application's memory.
    pub(crate) lends: bool,
}

/// Bytes of the head of each stream: a magic number, the bytes that follow, the bytes to be sent back, and
/// the chunk size with the flag for lending.
const HEAD: u64 = 32;
const MAGIC: u64 = 0x6865_6164_776f_726b;

/// Result of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything was sent and received.
    Whole,
    /// The stream was reset or aborted.
    Broken,
}

/// One connection and the state of its traffic.
struct Stream {
    connection: Box<Connection>,
    out_key: u64,
    in_key: u64,
    /// Bytes to send after the head, once known. `sent` counts the head as well.
    to_send: Option<u64>,
    back: u64,
    sent: u64,
    is_ended: bool,
    to_get: Option<u64>,
    got: u64,
    flow: Flow,
    head: Vec<u8>,
    lent: Option<LendTicket>,
    lend_from: Option<Extent>,
    has_asked: bool,
    meddler: SideTraffic,
}

impl Stream {
    /// Returns whether it waits for room, or for memory that it has lent.
    fn has_to_send(&self) -> bool {
        !self.is_ended || self.lent.is_some() || self.meddler.is_busy()
    }
}

/// An application that follows a script.
pub(crate) struct Application {
    pub(crate) script: Script,
    pub(crate) session: Session,
    name: String,
    /// Handles of connections, by the request that their descriptor went with.
    told: BTreeMap<u32, u32>,
    /// Handles of connections for whose side traffic memory was requested, by request.
    meddles: BTreeMap<u32, u32>,
    asked: BTreeMap<u32, Flow>,
    memory_for: BTreeMap<u32, u32>,
    streams: BTreeMap<u32, Stream>,
    listener: Option<u32>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) refused: usize,
    /// One-sided operations that have completed.
    pub(crate) operations: u64,
    /// How often connections were reset or refused, by reason.
    pub(crate) resets: BTreeMap<String, usize>,
    pub(crate) errors: Vec<String>,
    /// Bytes received, and when the last ones came.
    pub(crate) got: u64,
    pub(crate) got_at: Instant,
    next_read: Instant,
    is_attached: bool,
    /// Connections that may have something to do. All others have armed their event counts.
    hot: BTreeSet<u32>,
    noise: u64,
}

pub(crate) fn mix(mut word: u64) -> u64 {
    word ^= word >> 31;
    word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ word >> 29
}

/// Returns a key that makes the bytes of a stream between two addresses unlike those of any other.
fn key(from: SocketAddr, to: SocketAddr) -> u64 {
    let of = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => u64::from(u32::from(*v4.ip())) << 16 | u64::from(v4.port()),
        SocketAddr::V6(_) => unreachable!("none here"),
    };
    mix(of(from)).wrapping_add(mix(mix(of(to))))
}

fn byte(key: u64, at: u64) -> u8 {
    (mix(key ^ (at >> 3)) >> (at % 8 * 8)) as u8
}

fn bytes(key: u64, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|at| byte(key, at)).collect()
}

impl Application {
    pub(crate) fn new(name: String, script: Script) -> Self {
        Self {
            session: Session::new(&name),
            script,
            name,
            asked: BTreeMap::new(),
            told: BTreeMap::new(),
            meddles: BTreeMap::new(),
            memory_for: BTreeMap::new(),
            streams: BTreeMap::new(),
            listener: None,
            outcomes: Vec::new(),
            refused: 0,
            operations: 0,
            resets: BTreeMap::new(),
            errors: Vec::new(),
            got: 0,
            got_at: Instant::ZERO,
            next_read: Instant::ZERO,
            is_attached: false,
            hot: BTreeSet::new(),
            noise: 1,
        }
    }

    /// Records an error. One that corrupts its own memory, and its peer, may see anything.
    pub(crate) fn wrong(&mut self, what: String) {
        if self.script.trusts || self.script.scribbles.is_some() {
            return;
        }
        if self.errors.len() < 5 {
            self.errors.push(format!("{}: {what}", self.name));
        }
    }

    /// Returns whether the script is finished. Listening does not count as unfinished.
    pub(crate) fn is_done(&self) -> bool {
        self.is_attached
            && self.streams.is_empty()
            && self.asked.is_empty()
            && self.script.connects.is_empty()
    }

    /// Returns whether others may connect.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_attached && (self.script.listens.is_none() || self.listener.is_some())
    }

    /// Returns the number of open streams.
    pub(crate) fn open(&self) -> usize {
        self.streams.len()
    }

    /// Does a little of everything and returns whether it did something.
    pub(crate) fn step(&mut self, now: Instant, may_connect: bool) -> bool {
        let mut did = false;
        while let Some(event) = self.session.event() {
            did = true;
            self.learn(event);
        }
        if may_connect && self.is_attached {
            for (to, flow) in std::mem::take(&mut self.script.connects) {
                did = true;
                // Half of the connections get events by a descriptor, the others by packets.
                let request = match flow.there % 2 {
                    0 => self.session.connect_watched(to),
                    _ => self.session.connect(to),
                };
                self.asked.insert(request, flow);
            }
        }
        if self.script.scribbles.is_some_and(|at| now >= at) {
            self.scribble();
        }
        if now < self.next_read {
            return did;
        }
        if let Some(rest) = self.script.rests {
            self.next_read = now + rest;
        }
        let got = self.got;
        for handle in std::mem::take(&mut self.hot) {
            let is_open = self.drive(handle);
            did |= is_open;
            let Some(stream) = self.streams.get(&handle) else {
                continue;
            };
            if !is_open {
                // Look once more after arming, for what arrived meanwhile.
                stream.connection.block().event_count().arm(false);
                if stream.has_to_send() {
                    stream.connection.block().room_event_count().arm(false);
                }
                if !self.drive(handle) {
                    continue;
                }
                did = true;
            }
            self.hot.insert(handle);
        }
        if self.got > got {
            self.got_at = now;
        }
        did
    }

    /// Notes that something happened at the descriptor that went with a request.
    pub(crate) fn signal(&mut self, request: u32) {
        if let Some(handle) = self.told.get(&request) {
            self.hot.insert(*handle);
        }
    }

    /// Notes that the daemon woke this application for a connection.
    pub(crate) fn wake(&mut self, handle: u32) {
        self.hot.insert(handle);
    }

    /// Writes a few random words into shared memory.
    fn scribble(&mut self) {
        for _ in 0..8 {
            self.noise = mix(self.noise.wrapping_add(0x1234_5678_9abc_def1));
            let slabs = self.session.slabs();
            let Some(slab) = slabs.slab(self.noise as u32 % 3) else {
                continue;
            };
            let at = (self.noise >> 8) as usize % (slab.len() / 8).min(4096) * 8;
            let word = match self.noise >> 60 {
                0..4 => self.noise >> 20 & 0xff,
                4..8 => self.noise >> 20 & 0xffff,
                _ => mix(self.noise),
            };
            slab.write(at, &word.to_le_bytes()).expect("in the slab");
        }
    }

    /// Returns when it must be stepped again without an event.
    pub(crate) fn wakes(&self) -> Option<Instant> {
        (self.script.rests.is_some() && !self.hot.is_empty()).then_some(self.next_read)
    }

    fn learn(&mut self, event: Event) {
        match event {
            Event::Attached => {
                self.is_attached = true;
                if let Some(port) = self.script.listens {
                    self.session.listen(port, 1 << 20);
                }
            }
            Event::Listening { listener, .. } => self.listener = Some(listener),
            Event::Connected {
                request,
                connection,
            } => match self.asked.remove(&request) {
                Some(flow) => {
                    self.told.insert(request, connection.handle());
                    self.start(connection, flow, Some(flow.there));
                }
                None => self.wrong(format!("connected without asking: {request}")),
            },
            Event::Incoming {
                listener,
                connection,
            } => {
                self.session.took(listener);
                if connection.handle() % 2 == 0 {
                    let request = self.session.watch(connection.handle());
                    self.told.insert(request, connection.handle());
                }
                self.start(connection, Flow::default(), None);
            }
            Event::Refused { request, why } => {
                *self.resets.entry(format!("refused: {why}")).or_default() += 1;
                let asked_to_export = |stream: &Stream| stream.meddler.exporting == Some(request);
                if self.streams.values().any(asked_to_export) {
                    return;
                }
                if self.memory_for.remove(&request).is_none() {
                    self.asked.remove(&request);
                    self.refused += 1;
                }
            }
            Event::Allocated { request, extent } if self.meddles.contains_key(&request) => {
                let handle = self.meddles.remove(&request);
                match handle.and_then(|handle| self.streams.get_mut(&handle)) {
                    Some(stream) if stream.meddler.wants_memory() => {
                        stream.meddler.memory = Some(extent);
                        self.hot.extend(handle);
                    }
                    // The connection is gone. Another one may have its handle by now.
                    _ => self.session.free(extent),
                }
            }
            Event::Allocated { request, extent } => {
                let handle = self.memory_for.remove(&request);
                match handle.and_then(|handle| self.streams.get_mut(&handle)) {
                    Some(stream) => {
                        stream.lend_from = Some(extent);
                        self.hot.extend(handle);
                    }
                    None => self.session.free(extent),
                }
            }
            Event::Rang { handle } => self.wake(handle),
            Event::Exported { request, export_id } => {
                let exporting = |stream: &&mut Stream| stream.meddler.exporting == Some(request);
                if let Some(stream) = self.streams.values_mut().find(exporting) {
                    stream.meddler.export_id = Some(export_id);
                }
            }
            Event::Watched { .. } | Event::Revoked { .. } => {}
            Event::Over(why) => self.wrong(format!("turned away: {why}")),
        }
    }

    fn start(&mut self, connection: Box<Connection>, flow: Flow, to_send: Option<u64>) {
        let (local, peer) = (connection.local(), connection.peer());
        let stream = Stream {
            out_key: key(local, peer),
            in_key: key(peer, local),
            to_send,
            back: flow.back,
            sent: 0,
            is_ended: false,
            to_get: None,
            got: 0,
            flow,
            head: Vec::new(),
            lent: None,
            lend_from: None,
            meddler: SideTraffic::new(key(local, peer)),
            has_asked: false,
            connection,
        };
        // Every transfer mode is used beside the others.
        let ways = [Transfer::Any, Transfer::Any, Transfer::Send, Transfer::Read];
        let way = ways[(stream.out_key % ways.len() as u64) as usize];
        let way = self.script.way.unwrap_or(way);
        stream.connection.sending.set_transfer(way);
        let handle = stream.connection.handle();
        self.hot.insert(handle);
        if self.streams.insert(handle, stream).is_some() {
            self.wrong(format!("handle {handle} twice"));
        }
    }

    fn drive(&mut self, handle: u32) -> bool {
        let Some(mut stream) = self.streams.remove(&handle) else {
            return false;
        };
        stream.connection.refresh(self.session.slabs());
        let mut did = match self.send(&mut stream) {
            Ok(did) => did,
            Err(what) => {
                self.wrong(what);
                false
            }
        };
        match self.meddle(&mut stream) {
            Ok(more) => did |= more,
            Err(what) => self.wrong(what),
        }
        let is_over = match self.receive(&mut stream) {
            Ok((more, is_over)) => {
                did |= more;
                is_over
            }
            Err(what) => {
                self.wrong(what);
                stream.is_ended = true;
                true
            }
        };
        let gives_up = self.script.gives_up.is_some_and(|most| stream.got >= most);
        let is_reset = stream.connection.status().reset.is_some();
        let is_idle = stream.lent.is_none() && !stream.meddler.is_busy();
        let is_whole = is_over && stream.is_ended && is_idle;
        let is_free = !stream.meddler.is_busy();
        if is_whole || (is_free && (gives_up || (is_reset && (is_over || !did)))) {
            self.finish(stream, is_whole && !is_reset && !gives_up, gives_up);
            return true;
        }
        self.streams.insert(handle, stream);
        did
    }

    /// Drives one-sided operations on every third connection.
    fn meddle(&mut self, stream: &mut Stream) -> Result<bool, String> {
        let handle = stream.connection.handle();
        if !stream.out_key.is_multiple_of(3) || (stream.is_ended && !stream.meddler.is_busy()) {
            return Ok(false);
        }
        if !stream.meddler.has_asked {
            stream.meddler.has_asked = true;
            let request = self.session.alloc(MEMORY);
            self.meddles.insert(request, handle);
        }
        stream
            .meddler
            .step(&mut self.session, &mut stream.connection)
    }

    fn finish(&mut self, stream: Stream, is_whole: bool, gives_up: bool) {
        if let Some(extent) = stream.lend_from {
            // Memory that is still lent belongs to the daemon until the connection is gone.
            if stream.lent.is_none() {
                self.session.free(extent);
            }
        }
        let outcome = if is_whole {
            Outcome::Whole
        } else {
            Outcome::Broken
        };
        self.outcomes.push(outcome);
        self.operations += u64::from(stream.meddler.done);
        // The daemon reuses exported memory only after the other end has stopped using it.
        stream
            .meddler
            .memory
            .into_iter()
            .for_each(|extent| self.session.free(extent));
        if let Some(why) = stream.connection.status().reset {
            *self.resets.entry(why.to_string()).or_default() += 1;
        }
        match gives_up {
            true => self.session.abort(stream.connection.handle()),
            false => self.session.close(stream.connection.handle()),
        }
    }

    fn send(&mut self, stream: &mut Stream) -> Result<bool, String> {
        let wrong = |error| format!("{error}");
        let Some(body) = stream.to_send else {
            return Ok(false);
        };
        let total = HEAD + body;
        if stream.flow.lends && !stream.has_asked {
            stream.has_asked = true;
            let request = self.session.alloc(stream.flow.chunk.max(1) as u32);
            self.memory_for.insert(request, stream.connection.handle());
        }
        if let Some(lent) = stream.lent {
            if !stream.connection.sending.is_returned(lent).map_err(wrong)? {
                return Ok(false);
            }
            stream.lent = None;
        }
        if stream.sent == total {
            if !stream.is_ended {
                let (ended, _) = stream.connection.sending.end().map_err(wrong)?;
                stream.is_ended = ended;
                return Ok(ended);
            }
            return Ok(false);
        }
        if stream.sent < HEAD {
            let chunk = stream.flow.chunk as u64 | u64::from(stream.flow.lends) << 63;
            let words = [MAGIC, body, stream.back, chunk];
            let head: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            let left = &head[stream.sent as usize..];
            let (sent, _) = stream.connection.sending.send(left).map_err(wrong)?;
            stream.sent += sent as u64;
            return Ok(sent > 0);
        }
        let at = stream.sent - HEAD;
        let len = (total - stream.sent).min(stream.flow.chunk.max(1) as u64) as usize;
        let content = bytes(stream.out_key, at, len);
        if let Some(memory) = stream.lend_from {
            let extent = memory.part(0, len as u32);
            let view = self.session.slabs().view(extent).map_err(wrong)?;
            view.write(0, &content).map_err(|error| error.to_string())?;
            let (lent, _) = stream.connection.sending.lend(extent).map_err(wrong)?;
            stream.lent = lent;
            if lent.is_some() {
                stream.sent += len as u64;
            }
            return Ok(lent.is_some());
        }
        let (sent, _) = stream.connection.sending.send(&content).map_err(wrong)?;
        stream.sent += sent as u64;
        Ok(sent > 0)
    }

    /// Receives and checks bytes. Returns whether something arrived, and whether the stream is over.
    fn receive(&mut self, stream: &mut Stream) -> Result<(bool, bool), String> {
        let mut buffer = [0; 16 << 10];
        let received = stream.connection.receiving.recv(&mut buffer);
        let (received, _) = received.map_err(|error| error.to_string())?;
        let len = match received {
            Received::Nothing => {
                let is_reset = stream.connection.status().reset.is_some();
                return Ok((false, is_reset));
            }
            Received::Ended => {
                let wanted = stream.to_get.map(|body| body.wrapping_add(HEAD));
                if wanted != Some(stream.got) {
                    return Err(format!("ended after {} of {wanted:?} bytes", stream.got));
                }
                return Ok((false, true));
            }
            Received::Bytes(len) => len,
        };
        self.got += len as u64;
        let mut body = &buffer[..len];
        if stream.got < HEAD {
            let (head, rest) = body.split_at(body.len().min((HEAD - stream.got) as usize));
            stream.head.extend(head);
            stream.got += head.len() as u64;
            body = rest;
            if stream.got == HEAD {
                let words: Vec<u64> = stream
                    .head
                    .chunks(8)
                    .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
                    .collect();
                let [magic, to_get, back, chunk] = words[..] else {
                    return Err("a head of another length".to_owned());
                };
                if magic != MAGIC {
                    return Err(format!("the head begins with {magic:#x}"));
                }
                stream.to_get = Some(to_get);
                if stream.to_send.is_none() {
                    stream.to_send = Some(back);
                    stream.flow.chunk = (chunk & ((1 << 48) - 1)) as usize;
                    stream.flow.lends = chunk >> 63 == 1;
                }
            }
        }
        let at = stream.got.saturating_sub(HEAD);
        let wanted = bytes(stream.in_key, at, body.len());
        let checks = !self.script.trusts && self.script.scribbles.is_none();
        if checks
            && let Some(off) = wanted
                .iter()
                .zip(body)
                .position(|(one, other)| one != other)
        {
            return Err(format!(
                "byte {} of {:?} from {} is wrong",
                at + off as u64,
                stream.to_get,
                stream.connection.peer()
            ));
        }
        stream.got += body.len() as u64;
        Ok((true, false))
    }

    /// Describes what the application waits for.
    pub(crate) fn state(&self) -> String {
        let streams: Vec<String> = self
            .streams
            .values()
            .take(3)
            .map(|one| {
                format!(
                    "{}->{}: sent {}/{:?} got {}/{:?} ended {} lent {:?} {:?}",
                    one.connection.local(),
                    one.connection.peer(),
                    one.sent,
                    one.to_send,
                    one.got,
                    one.to_get,
                    one.is_ended,
                    one.lent,
                    one.connection.status()
                )
            })
            .collect();
        format!(
            "{}: {} streams {streams:?}, {} asked",
            self.name,
            self.streams.len(),
            self.asked.len()
        )
    }
}

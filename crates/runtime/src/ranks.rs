//! A world of processes that something else started, such as `mpirun`: rank 0 coordinates, and every rank runs one actor
//! of each scenario. The ranks reach rank 0 over TCP.
//!
//! Rank 0 calls [`Ranks::listen`] and every rank, rank 0 included, calls [`serve_rank`] in a thread or as its main work.
//! A rank whose process dies, or whose connection breaks, ends its actor with an error, and takes part in no further
//! scenario. Actors cannot be killed or stopped here.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration as Wall, Instant as WallInstant};

use headworks_net::clock;
use headworks_net::framing::FrameDecoder;
use headworks_verbs::{Duration, Instant};

use crate::actor::{COORDINATOR, Mail, MailError, check_len};
use crate::context::{MailTransport, RealTimeContext};
use crate::mailbox::Mailbox;
use crate::processes::protocol::{self, FromChild, MESSAGE_MAX, ToChild};
use crate::scenario_events::{EventReceiver, ScenarioEvents, lock};
use crate::step_loop::run_actor;
use crate::world::{ActorOutcome, RunningScenario, ScenarioError, ScenarioEvent, World};
use crate::{ActorInit, ActorRegistry, ActorSpec, DeviceOpener, Scenario};

/// Bytes that begin a rank's connection, before its number: so that another program's connection is told apart.
const GREETING: [u8; 8] = *b"hwrank01";
/// How long the ranks of a scenario that is given up have to end their actors.
const GRACE: Duration = Duration::from_secs(10);
/// How long a connection has to say which rank it is.
const GREETING_TIME: Wall = Wall::from_secs(5);
/// Pause between two attempts to reach rank 0.
const RETRY: Wall = Wall::from_millis(20);

/// The ranks cannot be brought together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// Rank 0 cannot listen.
    #[error("cannot listen at {address} for ranks: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error.
        source: io::Error,
    },
    /// Some ranks did not come in time.
    #[error("rank {missing} did not come within {seconds} s: {came} of {ranks} ranks are here")]
    Missing {
        /// The first rank that is missing.
        missing: usize,
        /// The number of ranks that came.
        came: usize,
        /// The number of all ranks.
        ranks: usize,
        /// How long was waited.
        seconds: u64,
    },
    /// Rank 0 cannot be reached.
    #[error("rank 0 cannot be reached at {address}: {source}")]
    Unreachable {
        /// The address.
        address: SocketAddr,
        /// The error.
        source: io::Error,
    },
    /// The connection to rank 0 broke, so the run has ended.
    #[error("the connection to rank 0 broke: {0}")]
    Broken(String),
    /// The system refused a thread or a descriptor.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Runs scenarios on the ranks of a job. At most one scenario runs at a time.
pub struct Ranks {
    members: Arc<Vec<Member>>,
}

/// A rank as rank 0 sees it.
struct Member {
    /// The connection, for writing; `None` once it has broken.
    stream: Mutex<Option<TcpStream>>,
    /// The part that the rank runs now.
    part: Mutex<Option<RunningPart>>,
}

/// The actor that a rank runs.
struct RunningPart {
    role: String,
    events: Arc<ScenarioEvents>,
    /// The rank of each role.
    ranks: Arc<BTreeMap<String, usize>>,
}

impl Member {
    /// Sends a message. Returns false if the connection has broken.
    fn send(&self, message: &ToChild) -> bool {
        write(&mut lock(&self.stream), message)
    }

    /// Ends the actor that the rank runs, if it runs one.
    fn end(&self, outcome: ActorOutcome) {
        if let Some(part) = lock(&self.part).take() {
            part.events.ended(&part.role, outcome);
        }
    }
}

/// Writes a message. Returns false if the connection has broken.
fn write(connection: &mut Option<TcpStream>, message: &ToChild) -> bool {
    let mut bytes = Vec::new();
    // The length of mail was checked before, and other messages are short.
    if message.encode(&mut bytes).is_err() {
        return false;
    }
    let sent = connection
        .as_mut()
        .is_some_and(|stream| stream.write_all(&bytes).is_ok());
    if !sent {
        *connection = None;
    }
    sent
}

impl Ranks {
    /// Waits at `address` until `ranks` ranks have come, for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`RanksError::Listen`], [`RanksError::Missing`].
    pub fn listen(address: SocketAddr, ranks: usize, limit: Wall) -> Result<Self, RanksError> {
        let refused = |source| RanksError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(refused)?;
        Self::on(&listener, ranks, limit)
    }

    /// As [`Ranks::listen`], on a socket that listens already.
    ///
    /// # Errors
    ///
    /// [`RanksError::Missing`].
    pub fn on(listener: &TcpListener, ranks: usize, limit: Wall) -> Result<Self, RanksError> {
        let deadline = WallInstant::now() + limit;
        listener.set_nonblocking(true)?;
        let mut streams: Vec<Option<TcpStream>> = (0..ranks).map(|_| None).collect();
        while let Some(missing) = streams.iter().position(Option::is_none) {
            match listener.accept() {
                Ok((stream, _)) => {
                    // Something else that connects is hung up.
                    if let Some(rank) = greeted(&stream)
                        && let Some(place) = streams.get_mut(rank)
                        && place.is_none()
                    {
                        *place = Some(stream);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if WallInstant::now() >= deadline {
                        return Err(RanksError::Missing {
                            missing,
                            came: streams.iter().flatten().count(),
                            ranks,
                            seconds: limit.as_secs(),
                        });
                    }
                    std::thread::sleep(RETRY);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let mut members = Vec::new();
        let mut readers = Vec::new();
        for stream in streams.into_iter().flatten() {
            readers.push(stream.try_clone()?);
            members.push(Member {
                stream: Mutex::new(Some(stream)),
                part: Mutex::new(None),
            });
        }
        let members = Arc::new(members);
        for (rank, stream) in readers.into_iter().enumerate() {
            let members = Arc::clone(&members);
            std::thread::Builder::new()
                .name(format!("rank {rank}"))
                .spawn(move || read_rank(&members, rank, stream))?;
        }
        Ok(Self { members })
    }

    /// Number of ranks.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are no ranks.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        // The ranks see the end of the stream and end; their readers here do too.
        for member in self.members.iter() {
            if let Some(stream) = lock(&member.stream).take() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

/// Reads which rank a connection is of.
fn greeted(stream: &TcpStream) -> Option<usize> {
    stream.set_nonblocking(false).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(GREETING_TIME)).ok()?;
    let mut bytes = [0; 16];
    (&mut &*stream).read_exact(&mut bytes).ok()?;
    stream.set_read_timeout(None).ok()?;
    let (greeting, rank) = bytes.split_at(8);
    let rank = u64::from_le_bytes(rank.try_into().ok()?);
    (greeting == GREETING).then_some(rank as usize)
}

/// Takes the messages of a rank until its connection ends.
fn read_rank(members: &[Member], rank: usize, stream: TcpStream) {
    let mut messages = Messages::new(stream);
    let why = loop {
        match messages.next() {
            Ok(Some(bytes)) => match FromChild::parse(&bytes) {
                Ok(message) => route(members, rank, message),
                Err(error) => break error.to_string(),
            },
            Ok(None) => break "its connection ended".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    *lock(&members[rank].stream) = None;
    members[rank].end(ActorOutcome::Failed(format!("rank {rank} is gone: {why}")));
}

fn route(members: &[Member], rank: usize, message: FromChild) {
    let member = &members[rank];
    match message {
        FromChild::Report(bytes) => {
            if let Some(part) = &*lock(&member.part) {
                part.events.report(&part.role, &bytes, true);
            }
        }
        FromChild::Ended(why) => {
            member.end(why.map_or(ActorOutcome::Done, ActorOutcome::Failed));
        }
        FromChild::Mail { to, bytes } => {
            let receiver = {
                let part = lock(&member.part);
                let part = part.as_ref();
                part.and_then(|part| Some((*part.ranks.get(&to)?, part.role.clone())))
            };
            if let Some((receiver, from)) = receiver {
                members[receiver].send(&ToChild::Mail(Mail { from, bytes }));
            }
        }
    }
}

impl World for Ranks {
    fn start(&self, scenario: &Scenario) -> Result<Box<dyn RunningScenario>, ScenarioError> {
        let roles = scenario.check()?;
        if roles.len() > self.members.len() {
            return Err(ScenarioError::TooFewRanks {
                actors: roles.len(),
                ranks: self.members.len(),
            });
        }
        let events = Arc::new(ScenarioEvents::new(roles.len(), None));
        let numbered = roles.iter().cloned().enumerate();
        let ranks: Arc<BTreeMap<_, _>> =
            Arc::new(numbered.map(|(rank, role)| (role, rank)).collect());
        for (member, spec) in self.members.iter().zip(&scenario.actors) {
            *lock(&member.part) = Some(RunningPart {
                role: spec.role.clone(),
                events: Arc::clone(&events),
                ranks: Arc::clone(&ranks),
            });
        }
        // No actor's mail overtakes the start of its receiver: all connections are held until every actor has started.
        let actors = self.members.iter().zip(&scenario.actors);
        let mut held: Vec<_> = actors
            .map(|(member, spec)| (member, spec, lock(&member.stream)))
            .collect();
        for (rank, (member, spec, connection)) in held.iter_mut().enumerate() {
            let start = ToChild::Start {
                spec: spec.clone(),
                roles: roles.clone(),
            };
            if !write(connection, &start) {
                member.end(ActorOutcome::Failed(format!("rank {rank} is gone")));
            }
        }
        drop(held);
        Ok(Box::new(RunningRanks {
            audience: EventReceiver::new(roles, events),
            members: Arc::clone(&self.members),
            ranks,
        }))
    }

    fn can_kill(&self) -> bool {
        false
    }
}

struct RunningRanks {
    audience: EventReceiver,
    members: Arc<Vec<Member>>,
    ranks: Arc<BTreeMap<String, usize>>,
}

impl RunningScenario for RunningRanks {
    fn roles(&self) -> &[String] {
        &self.audience.roles
    }

    fn now(&self) -> Instant {
        clock::now()
    }

    fn poll(&mut self, timeout: Duration) -> Option<ScenarioEvent> {
        self.audience.poll(timeout)
    }

    fn send(&mut self, role: &str, bytes: &[u8]) -> Result<(), ScenarioError> {
        check_len(bytes)?;
        let rank = self.ranks.get(role);
        let rank = *rank.ok_or_else(|| MailError::NoSuchRole(role.to_owned()))?;
        let mail = Mail {
            from: COORDINATOR.to_owned(),
            bytes: bytes.to_vec(),
        };
        match self.members[rank].send(&ToChild::Mail(mail)) {
            true => Ok(()),
            false => Err(ScenarioError::Ended(role.to_owned())),
        }
    }

    fn interrupt(&mut self) {
        for rank in self.ranks.values() {
            self.members[*rank].send(&ToChild::Interrupt);
        }
    }

    fn outcome(&self, role: &str) -> Option<ActorOutcome> {
        self.audience.outcome(role)
    }
}

impl Drop for RunningRanks {
    /// Ends the actors that still run, so that the next scenario finds every rank free.
    fn drop(&mut self) {
        let is_running = |all: &Self| {
            let mut roles = all.audience.roles.iter();
            roles.any(|role| all.audience.outcome(role).is_none())
        };
        if !is_running(self) {
            return;
        }
        for rank in self.ranks.values() {
            self.members[*rank].send(&ToChild::Cancel);
        }
        let deadline = clock::now() + GRACE;
        while is_running(self) && clock::now() < deadline {
            self.audience.poll(Duration::from_millis(10));
        }
    }
}

/// Runs the actors that rank 0 assigns to rank `rank`, until rank 0 ends the job. Rank 0 is at `address`; for at most
/// `limit` it need not listen yet.
///
/// # Errors
///
/// [`RanksError::Unreachable`]; [`RanksError::Broken`]: rank 0 died in the middle of a scenario.
pub fn serve_rank(
    address: SocketAddr,
    rank: usize,
    actors: &ActorRegistry,
    opener: &DeviceOpener,
    limit: Wall,
) -> Result<(), RanksError> {
    let deadline = WallInstant::now() + limit;
    let mut stream = loop {
        match TcpStream::connect(address) {
            // A connection to itself: the port was free, and the kernel chose it for this end too.
            Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => drop(stream),
            Ok(stream) => break stream,
            Err(source) if WallInstant::now() >= deadline => {
                return Err(RanksError::Unreachable { address, source });
            }
            Err(_) => {}
        }
        std::thread::sleep(RETRY);
    };
    stream.set_nodelay(true)?;
    stream.write_all(&[&GREETING[..], &(rank as u64).to_le_bytes()].concat())?;
    let (starts, started) = mpsc::channel();
    let reading = stream.try_clone()?;
    std::thread::Builder::new()
        .name("mail".into())
        .spawn(move || read_coordinator(reading, &starts))?;
    while let Ok(part) = started.recv() {
        let StartedPart {
            spec,
            roles,
            mailbox,
        } = part;
        let parts = roles.len();
        let mut context = RealTimeContext {
            role: spec.role.clone(),
            mailbox,
            post: StreamTransport {
                stream: stream.try_clone()?,
                roles,
            },
        };
        let opener = Arc::clone(opener);
        let outcome = run_actor(actors, &ActorInit { spec, opener }, parts, &mut context);
        context.mailbox.close();
        let why = match outcome {
            ActorOutcome::Done => None,
            failed => Some(failed.to_string()),
        };
        let ended = FromChild::Ended(why);
        context
            .post
            .write(|out| ended.encode(out))
            .map_err(|why| RanksError::Broken(why.to_string()))?;
    }
    Ok(())
}

/// An actor that rank 0 has started.
struct StartedPart {
    spec: ActorSpec,
    roles: Vec<String>,
    mailbox: Arc<Mailbox>,
}

/// Takes the messages of rank 0 until its connection ends; then the actor that runs is ended.
fn read_coordinator(stream: TcpStream, starts: &mpsc::Sender<StartedPart>) {
    let mut messages = Messages::new(stream);
    let mut current: Option<Arc<Mailbox>> = None;
    while let Ok(Some(bytes)) = messages.next() {
        match (ToChild::parse(&bytes), &current) {
            (Ok(ToChild::Start { spec, roles }), _) => {
                let Ok(mailbox) = Mailbox::new(&spec.role) else {
                    break;
                };
                let mailbox = Arc::new(mailbox);
                current = Some(Arc::clone(&mailbox));
                let part = StartedPart {
                    spec,
                    roles,
                    mailbox,
                };
                if starts.send(part).is_err() {
                    break;
                }
            }
            (Ok(ToChild::Mail(mail)), Some(mailbox)) => mailbox.put_blocking(mail),
            (Ok(ToChild::Interrupt), Some(mailbox)) => mailbox.interrupt(),
            (Ok(ToChild::Cancel), Some(mailbox)) => mailbox.cancel(),
            (Ok(_), None) => {}
            (Err(_), _) => break,
        }
    }
    if let Some(mailbox) = current {
        mailbox.cancel();
    }
}

/// Sends an actor's mail and reports to rank 0.
struct StreamTransport {
    stream: TcpStream,
    roles: Vec<String>,
}

impl StreamTransport {
    fn write(
        &mut self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), headworks_net::framing::FrameError>,
    ) -> Result<(), MailError> {
        let mut bytes = Vec::new();
        encode(&mut bytes).map_err(|_| MailError::TooLong(crate::MAIL_MAX))?;
        let written = self.stream.write_all(&bytes);
        written.map_err(|_| MailError::NoCoordinator)
    }
}

impl MailTransport for StreamTransport {
    fn send(&mut self, _from: &str, to: &str, bytes: &[u8]) -> Result<(), MailError> {
        if !self.roles.iter().any(|role| role == to) {
            return Err(MailError::NoSuchRole(to.to_owned()));
        }
        self.write(|out| protocol::mail_to(out, to, bytes))
    }

    fn report(&mut self, _role: &str, bytes: &[u8]) -> Result<(), MailError> {
        self.write(|out| protocol::report(out, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn unwritten(&self) -> Option<BorrowedFd<'_>> {
        // Writing blocks until everything is written.
        None
    }
}

/// Frames of a stream.
struct Messages {
    stream: TcpStream,
    decoder: FrameDecoder,
    bytes: Vec<u8>,
}

impl Messages {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            decoder: FrameDecoder::new(MESSAGE_MAX),
            bytes: vec![0; 64 << 10],
        }
    }

    /// Waits for the next message; `None` at the end of the stream.
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(message) = self.decoder.next_message().map_err(io::Error::other)? {
                return Ok(Some(message.to_vec()));
            }
            match self.stream.read(&mut self.bytes) {
                Ok(0) => return Ok(None),
                Ok(got) => self.decoder.feed(&self.bytes[..got]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests;

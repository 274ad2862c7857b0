//! Applications in virtual time that send each other messages by turns.

use headworks::client::connection::Connection;
use headworks::client::session::Event;
use headworks::stage::{Actor, ActorError, Cast, Cx, Part, PartSpec, Step};
use headworks::verbs::{Duration, Instant};

use super::host::{Shared, listens_at};
use super::programs::PORT;
use super::work::{Scene, Work, locked};
use super::{Load, Machine};
use crate::transports::ArmError;

/// Bytes that are copied at a time: as many as a record carries.
const PIECE: usize = 64 << 10;
/// A look at what one waits for, in shared memory.
const LOOK: Duration = Duration::from_nanos(20);
/// How soon somebody looks again who is being connected.
const SOON: Duration = Duration::from_micros(1);

/// Parts of the applications: one that begins, and one on the other host that answers with as many bytes.
pub(super) fn parts(
    cast: &mut Cast,
    scene: &Scene,
    machine: &Machine,
    load: Load,
    bytes: usize,
    [callers, servers]: [Vec<Shared>; 2],
) -> Result<Vec<PartSpec>, ArmError> {
    let nanos = |nanos: f64| Duration::from_nanos(nanos as u64);
    let costs = [machine.preset.message_ns, machine.preset.line_ns].map(nanos);
    let desks = callers.into_iter().take(1).chain(servers).enumerate();
    let mut parts = Vec::new();
    for (host, desk) in desks.take(2) {
        let name = format!("m{host}");
        let scene = scene.clone();
        cast.register(&name, move |_: &Part| {
            let work = (host == 0).then(|| Work::new(&scene, 0));
            Ok(Box::new(Talker {
                scene: scene.clone(),
                work,
                desk: desk.clone(),
                connection: None,
                costs,
                message: vec![0; bytes],
                expected: vec![0; bytes],
                number: 0,
                phase: if host == 0 { Phase::Rests } else { Phase::GETS },
                prepaid: 0,
            }))
        });
        parts.push(PartSpec::new(name.clone(), name).on(machine.device(host)?));
    }
    debug_assert!(load.callers == 1 && load.connections == 1 && load.outstanding == 1);
    Ok(parts)
}

/// How far somebody is with a message.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// It is not begun.
    Rests,
    /// So many bytes were handed over.
    Sends(usize),
    /// So many have come, and so many more are seen from then on.
    Gets(usize, Option<(usize, Instant)>),
    /// So many have come, and so many more were copied.
    Copied(usize, usize),
}

impl Phase {
    const GETS: Self = Self::Gets(0, None);
}

/// Either application.
struct Talker {
    scene: Scene,
    /// Of the one that begins.
    work: Option<Work>,
    desk: Shared,
    connection: Option<Box<Connection>>,
    /// What a message takes beside copies; and a line that the daemon wrote last.
    costs: [Duration; 2],
    message: Vec<u8>,
    expected: Vec<u8>,
    /// Messages that have come.
    number: u8,
    phase: Phase,
    /// Bytes that it has spent the time for to copy, and that there was no room for.
    prepaid: usize,
}

/// The bytes of a message.
fn fill(message: &mut [u8], number: u8) {
    for (at, byte) in message.iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(31).wrapping_add(number);
    }
}

impl Talker {
    fn hear(&mut self) -> Result<(), ActorError> {
        let mut desk = locked(&self.desk);
        while let Some(event) = desk.session.event() {
            match event {
                Event::Attached if self.work.is_some() => {
                    desk.session.connect(listens_at(1));
                }
                Event::Attached => {
                    desk.session.listen(PORT, 1);
                }
                Event::Connected { connection, .. } | Event::Incoming { connection, .. } => {
                    self.connection = Some(connection);
                }
                Event::Refused { why, .. } | Event::Over(why) => {
                    return Err(ActorError::new(format!("refused: {why}")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Hands over what it has spent the time for.
    fn send(&mut self, sent: usize) -> Result<Phase, ActorError> {
        let Some(connection) = &mut self.connection else {
            return Ok(self.phase);
        };
        let mut desk = locked(&self.desk);
        connection.refresh(desk.session.slabs());
        let piece = &self.message[sent..sent + self.prepaid];
        let (count, _) = connection.sending.send(piece)?;
        self.prepaid -= count;
        desk.written += u64::from(count > 0);
        desk.touched.insert(connection.handle());
        if count == 0 {
            // Whoever polls has the daemon look whether there is room.
            let _: bool = connection.nudge();
        }
        Ok(match sent + count == self.message.len() {
            true => Phase::GETS,
            false => Phase::Sends(sent + count),
        })
    }

    /// Where the next bytes are, and when they may be seen: what the daemon's latest step did, not before it is over.
    fn look(&mut self, now: Instant) -> Result<Option<(usize, Instant)>, ActorError> {
        let Some(connection) = &mut self.connection else {
            return Ok(None);
        };
        let desk = locked(&self.desk);
        connection.refresh(desk.session.slabs());
        let len = connection.receiving.peek()?.len as usize;
        Ok((len > 0).then_some((len, now.max(desk.seen_at))))
    }

    /// Takes bytes that were copied, and looks at them.
    fn take(&mut self, got: usize, len: usize) -> Result<(), ActorError> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        let mut desk = locked(&self.desk);
        let extent = connection.receiving.peek()?.part(0, len as u32);
        let into = &mut self.message[got..got + len];
        desk.session.slabs().read(extent, into)?;
        let _: bool = connection.receiving.consume(len as u64);
        desk.touched.insert(connection.handle());
        if *into != self.expected[got..got + len] {
            return Err(ActorError::new("bytes of a message are wrong"));
        }
        Ok(())
    }
}

impl Actor for Talker {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        if self.connection.is_none() {
            self.hear()?;
            return Ok(Step::At(now + SOON));
        }
        if let Some(work) = &mut self.work {
            match work.begins(now) {
                None => return Ok(Step::At(now + SOON)),
                Some(begin) if begin > now => return Ok(Step::At(begin)),
                Some(_) => {}
            }
        } else if self.scene.is_over() {
            return Ok(Step::Done);
        }
        let [each, line] = self.costs;
        match self.phase {
            Phase::Rests => {
                if let Some(work) = &mut self.work {
                    if work.is_over(now) {
                        work.finish();
                        return Ok(Step::Done);
                    }
                    work.next(now);
                }
                fill(&mut self.message, self.number);
                fill(&mut self.expected, self.number);
                cx.charge(each);
                self.phase = Phase::Sends(0);
            }
            Phase::Sends(sent) => {
                let piece = PIECE.min(self.message.len() - sent);
                match piece - self.prepaid.min(piece) {
                    0 => {
                        self.phase = self.send(sent)?;
                        cx.charge(LOOK);
                    }
                    more => {
                        cx.copied(more as u64);
                        self.prepaid = piece;
                    }
                }
            }
            Phase::Gets(got, None) => {
                cx.charge(LOOK);
                let seen = self.look(now)?;
                self.phase = Phase::Gets(got, seen);
            }
            Phase::Gets(_, Some((_, at))) if at > now => return Ok(Step::At(at)),
            Phase::Gets(got, Some((len, _))) => {
                let len = len.min(PIECE).min(self.message.len() - got);
                cx.charge(if got == 0 { each + line } else { line });
                cx.copied(len as u64);
                self.phase = Phase::Copied(got, len);
            }
            Phase::Copied(got, len) => {
                if self.work.is_none() && got == 0 {
                    fill(&mut self.expected, self.number);
                }
                self.take(got, len)?;
                cx.charge(LOOK);
                self.phase = match got + len == self.message.len() {
                    false => Phase::Gets(got + len, None),
                    true => {
                        self.number = self.number.wrapping_add(1);
                        match &mut self.work {
                            None => Phase::Sends(0),
                            Some(work) => {
                                work.came(0, now, |_| {})?;
                                Phase::Rests
                            }
                        }
                    }
                };
            }
        }
        Ok(Step::Again)
    }
}

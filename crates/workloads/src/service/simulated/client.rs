//! An application's end of the service in virtual time: its session with the daemon, its memory and its connections.

use std::sync::atomic::Ordering;

use headworks::client::connection::{Connection, Received};
use headworks::client::session::Event;
use headworks::client::{Extent, Rights};
use headworks::stage::ActorError;

use super::host::{Shared, listens_at};
use super::scene::locked;
use crate::service::requests::What;

/// The port of the application that is asked.
pub(super) const PORT: u16 = 7000;
/// Bytes by which an application tells the other what it calls its memory.
const WINDOW: usize = 4;

pub(super) fn wrong(what: &str) -> ActorError {
    ActorError::new(what.to_owned())
}

/// A connection, and what the other end calls its memory, once it has said so.
pub(super) struct End {
    pub(super) connection: Box<Connection>,
    heard: Vec<u8>,
    pub(super) window: Option<u32>,
}

/// What a client does first.
#[derive(Clone)]
pub(super) enum Opening {
    /// It connects to the applications of those hosts.
    Connects(Vec<usize>),
    /// It listens. Its memory, if it has some, is filled for such requests, and exported to whoever connects.
    Listens(What),
}

pub(super) struct Client {
    pub(super) desk: Shared,
    opening: Opening,
    /// Bytes of memory that it allocates; 0: none.
    alloc: usize,
    pub(super) memory: Option<Extent>,
    pub(super) ends: Vec<End>,
    /// Which connection each request to export was for.
    exporting: Vec<(u32, u32)>,
}

impl Client {
    pub(super) fn new(desk: &Shared, opening: &Opening, alloc: usize) -> Self {
        Self {
            desk: desk.clone(),
            opening: opening.clone(),
            alloc,
            memory: None,
            ends: Vec::new(),
            exporting: Vec::new(),
        }
    }

    /// Does what the daemon's packets ask for.
    pub(super) fn hear(&mut self) -> Result<(), ActorError> {
        let shared = self.desk.clone();
        let desk = &mut *locked(&shared);
        while let Some(event) = desk.session.event() {
            match (event, &self.opening) {
                (Event::Attached, opening) => {
                    if self.alloc > 0 {
                        desk.session.alloc(self.alloc as u32);
                    }
                    match opening {
                        Opening::Connects(hosts) => hosts.iter().for_each(|host| {
                            desk.session.connect(listens_at(*host));
                        }),
                        Opening::Listens(_) if self.alloc == 0 => {
                            desk.session.listen(PORT, 1);
                        }
                        Opening::Listens(_) => {}
                    }
                }
                (Event::Allocated { extent, .. }, opening) => {
                    self.memory = Some(extent);
                    let Opening::Listens(what) = *opening else {
                        continue;
                    };
                    let view = desk.session.slabs().view(extent)?;
                    what.fill(|at, bytes| {
                        let filled = view.write(at, bytes);
                        debug_assert!(filled.is_ok());
                    });
                    let word = |at| view.word_ref(at).map_err(|_| wrong("a word outside"));
                    let words: Result<Vec<_>, ActorError> = what.words().map(word).collect();
                    let words = words?;
                    let sum = move || words.iter().map(|word| word.load(Ordering::Relaxed)).sum();
                    desk.counters = Box::new(sum);
                    desk.session.listen(PORT, 1 << 16);
                }
                (Event::Connected { connection, .. }, _) => self.push(connection),
                (
                    Event::Incoming {
                        connection,
                        listener,
                    },
                    _,
                ) => {
                    if let Some(memory) = self.memory {
                        desk.session.took(listener);
                        let handle = connection.handle();
                        let request = desk.session.export(handle, memory, Rights::ALL);
                        self.exporting.push((request, handle));
                    }
                    self.push(connection);
                }
                (Event::Exported { request, window }, _) => {
                    let of = self.exporting.iter().find(|(asked, _)| *asked == request);
                    let of = of.map(|(_, handle)| *handle);
                    let mut all = self.ends.iter_mut().map(|end| &mut end.connection);
                    let connection = all.find(|one| Some(one.handle()) == of);
                    let connection = connection.ok_or_else(|| wrong("no such connection"))?;
                    connection.refresh(desk.session.slabs());
                    let (sent, _) = connection.sending.send(&window.to_le_bytes())?;
                    if sent != WINDOW {
                        return Err(wrong("no room for a few bytes"));
                    }
                }
                (Event::Refused { why, .. } | Event::Over(why), _) => {
                    return Err(ActorError::new(format!("refused: {why}")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn push(&mut self, connection: Box<Connection>) {
        self.ends.push(End {
            connection,
            heard: Vec::new(),
            window: None,
        });
    }

    /// Hears what the other ends call their memory; answers whether so many have said it.
    pub(super) fn hear_windows(&mut self, count: usize) -> Result<bool, ActorError> {
        let desk = locked(&self.desk);
        for end in self.ends.iter_mut().filter(|end| end.window.is_none()) {
            end.connection.refresh(desk.session.slabs());
            let mut bytes = [0; WINDOW];
            let missing = WINDOW - end.heard.len();
            let (received, _) = end.connection.receiving.recv(&mut bytes[..missing])?;
            if let Received::Bytes(count) = received {
                end.heard.extend(&bytes[..count]);
            }
            let window = end.heard.first_chunk();
            end.window = window.map(|bytes| u32::from_le_bytes(*bytes));
        }
        let have = self.ends.iter().filter(|end| end.window.is_some());
        Ok(self.memory.is_some() && have.count() == count)
    }
}

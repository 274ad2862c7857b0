//! A world in this process: a thread for each part, pinned where the part says so.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use headworks_verbs::{Duration, Instant};

use crate::actor::{DIRECTOR, Mail, MailError, check_len};
use crate::cast::{Cast, Opener, Part, Play};
use crate::clock;
use crate::desk::{Desk, Post};
use crate::mailbox::Mailbox;
use crate::queue::{Audience, Events};
use crate::runner::perform;
use crate::world::{Event, Outcome, Running, StageError, World};

/// Runs plays on threads of this process. Nothing can be killed here.
#[derive(Clone)]
pub struct InProcess {
    cast: Cast,
    opener: Opener,
}

impl InProcess {
    /// A world of these actors and devices.
    pub fn new(cast: Cast, opener: Opener) -> Self {
        Self { cast, opener }
    }
}

impl World for InProcess {
    fn start(&self, play: &Play) -> Result<Box<dyn Running>, StageError> {
        let roles = play.check()?;
        let mailbox = |role: &String| Ok((role.clone(), Arc::new(Mailbox::new(role)?)));
        let mailboxes: io::Result<BTreeMap<_, _>> = roles.iter().map(mailbox).collect();
        let mailboxes = mailboxes.map_err(|error| StageError::system("mailbox", error))?;
        let mailboxes = Arc::new(mailboxes);
        let events = Arc::new(Events::new(roles.len(), None));
        let audience = Audience::new(roles, Arc::clone(&events));
        // Dropped on the way out if a thread cannot be had, it ends those that were.
        let mut running = Threads {
            audience,
            mailboxes,
            threads: Vec::new(),
        };
        for spec in &play.parts {
            let part = Part {
                spec: spec.clone(),
                opener: Arc::clone(&self.opener),
            };
            let thread = running
                .start(part, self.cast.clone(), play.parts.len())
                .map_err(|error| StageError::system("starting a thread", error))?;
            running.threads.push(thread);
        }
        Ok(Box::new(running))
    }

    fn can_kill(&self) -> bool {
        false
    }
}

type Mailboxes = Arc<BTreeMap<String, Arc<Mailbox>>>;

struct Threads {
    audience: Audience,
    mailboxes: Mailboxes,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    fn start(&self, part: Part, cast: Cast, parts: usize) -> io::Result<JoinHandle<()>> {
        let role = part.role.clone();
        let mailbox = Arc::clone(&self.mailboxes[&role]);
        let events = Arc::clone(&self.audience.events);
        let post = Directory {
            mailboxes: Arc::clone(&self.mailboxes),
            events,
        };
        let mut desk = Desk {
            role,
            mailbox,
            post,
        };
        std::thread::Builder::new()
            .name(part.role.clone())
            .spawn(move || {
                let outcome = perform(&cast, &part, parts, &mut desk);
                desk.mailbox.close();
                desk.post.events.ended(&desk.role, outcome);
            })
    }

    fn mailbox(&self, role: &str) -> Result<&Mailbox, StageError> {
        match self.mailboxes.get(role) {
            None => Err(MailError::NoSuchRole(role.to_owned()).into()),
            Some(mailbox) if mailbox.is_closed() => Err(StageError::Ended(role.to_owned())),
            Some(mailbox) => Ok(mailbox),
        }
    }
}

impl Running for Threads {
    fn roles(&self) -> &[String] {
        &self.audience.roles
    }

    fn now(&self) -> Instant {
        clock::now()
    }

    fn poll(&mut self, timeout: Duration) -> Option<Event> {
        self.audience.poll(timeout)
    }

    fn send(&mut self, role: &str, bytes: &[u8]) -> Result<(), StageError> {
        check_len(bytes)?;
        let mail = Mail {
            from: DIRECTOR.to_owned(),
            bytes: bytes.to_vec(),
        };
        Ok(self.mailbox(role)?.put(mail)?)
    }

    fn interrupt(&mut self) {
        self.mailboxes
            .values()
            .for_each(|mailbox| mailbox.interrupt());
    }

    fn kill(&mut self, _role: &str) -> Result<(), StageError> {
        Err(StageError::NeedsProcesses("killing a part"))
    }

    fn stop(&mut self, _role: &str) -> Result<(), StageError> {
        Err(StageError::NeedsProcesses("stopping a part"))
    }

    fn cont(&mut self, _role: &str) -> Result<(), StageError> {
        Err(StageError::NeedsProcesses("continuing a part"))
    }

    fn pid(&self, _role: &str) -> Option<u32> {
        None
    }

    fn outcome(&self, role: &str) -> Option<Outcome> {
        self.audience.outcome(role)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.mailboxes
            .values()
            .for_each(|mailbox| mailbox.abandon());
        for thread in self.threads.drain(..) {
            // A part's panic was caught and is its outcome.
            let _ = thread.join();
        }
    }
}

/// Mail by hand: straight into the other's box.
struct Directory {
    mailboxes: Mailboxes,
    events: Arc<Events>,
}

impl Post for Directory {
    fn send(&mut self, from: &str, to: &str, bytes: &[u8]) -> Result<(), MailError> {
        let mailbox = self
            .mailboxes
            .get(to)
            .ok_or_else(|| MailError::NoSuchRole(to.to_owned()))?;
        mailbox.put(Mail {
            from: from.to_owned(),
            bytes: bytes.to_vec(),
        })
    }

    fn report(&mut self, role: &str, bytes: &[u8]) -> Result<(), MailError> {
        if self.events.report(role, bytes, false) {
            Ok(())
        } else {
            Err(MailError::Full(DIRECTOR.to_owned()))
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn unwritten(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

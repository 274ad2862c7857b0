//! A world in this process: a thread for each actor, pinned if its specification says so.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use headworks_verbs::{Duration, Instant};

use crate::actor::{COORDINATOR, Mail, MailError, check_len};
use crate::context::{MailTransport, RealTimeContext};
use crate::mailbox::Mailbox;
use crate::scenario_events::{EventReceiver, ScenarioEvents};
use crate::step_loop::run_actor;
use crate::world::{ActorOutcome, RunningScenario, ScenarioError, ScenarioEvent, World};
use crate::{ActorInit, ActorRegistry, DeviceOpener, Scenario};
use headworks_net::clock;

/// Runs scenarios on threads of this process. Actors cannot be killed here.
#[derive(Clone)]
pub struct InProcess {
    actors: ActorRegistry,
    opener: DeviceOpener,
}

impl InProcess {
    /// Creates a world with these actors and devices.
    pub fn new(actors: ActorRegistry, opener: DeviceOpener) -> Self {
        Self { actors, opener }
    }
}

impl World for InProcess {
    fn start(&self, scenario: &Scenario) -> Result<Box<dyn RunningScenario>, ScenarioError> {
        let roles = scenario.check()?;
        let mailbox = |role: &String| Ok((role.clone(), Arc::new(Mailbox::new(role)?)));
        let mailboxes: io::Result<BTreeMap<_, _>> = roles.iter().map(mailbox).collect();
        let mailboxes = mailboxes.map_err(|error| ScenarioError::system("mailbox", error))?;
        let mailboxes = Arc::new(mailboxes);
        let events = Arc::new(ScenarioEvents::new(roles.len(), None));
        let audience = EventReceiver::new(roles, Arc::clone(&events));
        // If a thread cannot be started, dropping this ends those that were.
        let mut running = RunningThreads {
            audience,
            mailboxes,
            threads: Vec::new(),
        };
        for spec in &scenario.actors {
            let part = ActorInit {
                spec: spec.clone(),
                opener: Arc::clone(&self.opener),
            };
            let thread = running
                .start(part, self.actors.clone(), scenario.actors.len())
                .map_err(|error| ScenarioError::system("starting a thread", error))?;
            running.threads.push(thread);
        }
        Ok(Box::new(running))
    }

    fn can_kill(&self) -> bool {
        false
    }
}

type Mailboxes = Arc<BTreeMap<String, Arc<Mailbox>>>;

struct RunningThreads {
    audience: EventReceiver,
    mailboxes: Mailboxes,
    threads: Vec<JoinHandle<()>>,
}

impl RunningThreads {
    fn start(
        &self,
        part: ActorInit,
        actors: ActorRegistry,
        parts: usize,
    ) -> io::Result<JoinHandle<()>> {
        let role = part.role.clone();
        let mailbox = Arc::clone(&self.mailboxes[&role]);
        let events = Arc::clone(&self.audience.events);
        let post = MailboxTransport {
            mailboxes: Arc::clone(&self.mailboxes),
            events,
        };
        let mut context = RealTimeContext {
            role,
            mailbox,
            post,
        };
        std::thread::Builder::new()
            .name(part.role.clone())
            .spawn(move || {
                let outcome = run_actor(&actors, &part, parts, &mut context);
                context.mailbox.close();
                context.post.events.ended(&context.role, outcome);
            })
    }

    fn mailbox(&self, role: &str) -> Result<&Mailbox, ScenarioError> {
        match self.mailboxes.get(role) {
            None => Err(MailError::NoSuchRole(role.to_owned()).into()),
            Some(mailbox) if mailbox.is_closed() => Err(ScenarioError::Ended(role.to_owned())),
            Some(mailbox) => Ok(mailbox),
        }
    }
}

impl RunningScenario for RunningThreads {
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
        let mail = Mail {
            from: COORDINATOR.to_owned(),
            bytes: bytes.to_vec(),
        };
        Ok(self.mailbox(role)?.put(mail)?)
    }

    fn interrupt(&mut self) {
        self.mailboxes
            .values()
            .for_each(|mailbox| mailbox.interrupt());
    }

    fn outcome(&self, role: &str) -> Option<ActorOutcome> {
        self.audience.outcome(role)
    }
}

impl Drop for RunningThreads {
    fn drop(&mut self) {
        self.mailboxes.values().for_each(|mailbox| mailbox.cancel());
        for thread in self.threads.drain(..) {
            // An actor's panic was caught and is its outcome.
            let _ = thread.join();
        }
    }
}

/// Puts mail directly into the receiver's mailbox.
struct MailboxTransport {
    mailboxes: Mailboxes,
    events: Arc<ScenarioEvents>,
}

impl MailTransport for MailboxTransport {
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
            Err(MailError::Full(COORDINATOR.to_owned()))
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn unwritten(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

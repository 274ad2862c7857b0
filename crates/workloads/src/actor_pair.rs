//! The two actors of a pair: their roles, how one is made, and how it mails and reports through its
//! [`ActorContext`].

use std::sync::Arc;

use headworks::verbs::Device;
use headworks_runtime::{ActorContext, ActorError, ActorInit, Step, WakeCondition};

use crate::cpu_prices::CpuPrices;
use crate::error::{Result, WorkloadError};
use crate::report::Report;

/// Mail by which the coordinator tells the senders of several pairs to begin together.
pub const BEGIN: &[u8] = b"begin";

/// Role of an actor within its pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends, or measures the round trip; runs on the first processor.
    Sender,
    /// Receives, or sends back; runs on the second processor.
    Receiver,
}

impl Role {
    /// Both roles, in the order in which a pair is listed.
    pub const BOTH: [Self; 2] = [Self::Sender, Self::Receiver];

    /// Returns the actor's name in a scenario of one pair.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        }
    }

    /// Returns the actor's name in pair `pair` of a scenario: `sender`, or `sender.3`.
    pub(crate) fn name_in(self, pair: usize) -> String {
        match pair {
            0 => self.name().to_owned(),
            _ => format!("{}.{pair}", self.name()),
        }
    }
}

/// Returns the role of the actor called `name`, and the name of its peer.
fn role_and_peer(name: &str) -> (Role, String) {
    let (role, pair) = name.split_at(name.find('.').unwrap_or(name.len()));
    let [role, peer] = match role {
        "sender" => [Role::Sender, Role::Receiver],
        _ => [Role::Receiver, Role::Sender],
    };
    (role, format!("{}{pair}", peer.name()))
}

/// Everything that an actor of a pair is made from.
#[derive(Clone)]
pub struct PairContext {
    /// The actor's role.
    pub role: Role,
    /// Processor prices of the program's own work where time is virtual; `None` where time is real.
    pub prices: Option<CpuPrices>,
    part: ActorInit,
}

impl PairContext {
    /// Context of an actor of a scenario. The actor's name determines its role.
    pub fn new(part: &ActorInit, prices: Option<CpuPrices>) -> Self {
        let (role, _) = role_and_peer(&part.role);
        Self {
            role,
            prices,
            part: part.clone(),
        }
    }

    /// Returns the actor's name in its scenario.
    pub fn name(&self) -> &str {
        &self.part.role
    }

    /// Makes the same context whose device is paced if the device's name asks for pacing.
    #[must_use]
    pub fn paced(mut self) -> Self {
        self.part.opener = headworks::pace::opener(self.part.opener);
        self
    }

    /// Opens the actor's device.
    pub fn open_device(&self) -> Result<Arc<dyn Device>> {
        let device = self.part.open_device();
        device.map_err(|e| WorkloadError::at("device", e))
    }
}

/// Mail and reports of an actor of a pair.
pub trait PairMail {
    /// Mails the other actor of the pair.
    fn send_mail(&mut self, bytes: &[u8]) -> Result<()>;

    /// Takes the oldest unread mail; `None` if there is none.
    fn receive_mail(&mut self) -> Option<Vec<u8>>;

    /// Reports, and asks for another step at once.
    fn report_and_go_on(&mut self, report: &Report) -> Result<Step, ActorError>;

    /// Reports, and ends.
    fn done(&mut self, report: &Report) -> Result<Step, ActorError>;
}

impl PairMail for ActorContext<'_> {
    fn send_mail(&mut self, bytes: &[u8]) -> Result<()> {
        let (_, peer) = role_and_peer(self.role());
        let sent = self.send(&peer, bytes);
        sent.map_err(|e| WorkloadError::at("mail", e))
    }

    fn receive_mail(&mut self) -> Option<Vec<u8>> {
        self.receive().map(|mail| mail.bytes)
    }

    fn report_and_go_on(&mut self, report: &Report) -> Result<Step, ActorError> {
        self.report(&report.to_bytes())?;
        Ok(Step::Again)
    }

    fn done(&mut self, report: &Report) -> Result<Step, ActorError> {
        self.report(&report.to_bytes())?;
        Ok(Step::Done)
    }
}

/// Waits until the other actor sends mail or writes memory.
pub fn wait() -> Step {
    Step::Wait(WakeCondition::mail().or_memory())
}

/// Sleeps until mail comes. Until then the actor uses no time of its processor, nor of a processor that
/// shares its core.
pub fn sleep() -> Step {
    Step::Wait(WakeCondition::mail())
}

#[cfg(test)]
pub(crate) mod testing {
    //! Both actors of a pair in one process, each on a thread.

    use headworks::verbs::{Duration, Instant};
    use headworks_runtime::{
        Actor, ActorOutcome, ActorRegistry, ActorSpec, ContextBackend, InProcess, Mail, MailError,
        Scenario, World,
    };

    use super::*;

    /// A world of one actor: its mail, its reports, and a log of what it is charged. Charges advance the
    /// clock; a copied byte takes a nanosecond.
    #[derive(Default)]
    pub(crate) struct MockContext {
        pub(crate) mail: std::collections::VecDeque<&'static [u8]>,
        pub(crate) reports: Vec<Report>,
        pub(crate) log: std::rc::Rc<std::cell::RefCell<Vec<String>>>,
        pub(crate) now: u64,
    }

    impl ContextBackend for MockContext {
        fn role(&self) -> &str {
            "sender"
        }
        fn now(&mut self) -> Instant {
            Instant::from_nanos(self.now)
        }
        fn send(&mut self, _: &str, _: &[u8]) -> Result<(), MailError> {
            Ok(())
        }
        fn receive(&mut self) -> Option<Mail> {
            let bytes = self.mail.pop_front()?.to_vec();
            let from = "coordinator".to_owned();
            Some(Mail { from, bytes })
        }
        fn report(&mut self, bytes: &[u8]) -> Result<(), MailError> {
            self.reports.push(Report::from_bytes(bytes).unwrap());
            Ok(())
        }
        fn interrupted(&self) -> bool {
            false
        }
        fn charge(&mut self, cost: Duration) {
            let charged = format!("charged {}", cost.nanos());
            self.log.borrow_mut().push(charged);
            self.now += cost.nanos();
        }
        fn copied(&mut self, bytes: u64) {
            self.log.borrow_mut().push(format!("copied {bytes}"));
            self.now += bytes;
        }
    }

    /// Time limit of a run, far longer than any correct run takes.
    const LIMIT: Duration = Duration::from_secs(60);

    /// Runs the two actors that `make` makes on software RNICs with these `options` in their names, and
    /// returns their reports.
    pub(crate) fn run_both<F>(make: F, options: &str) -> [Report; 2]
    where
        F: Fn(&PairContext) -> Result<Box<dyn Actor>> + Send + Sync + 'static,
    {
        let mut actors = ActorRegistry::new();
        actors.register("pair", move |part| Ok(make(&PairContext::new(part, None))?));
        let specs = Role::BOTH.iter().zip(["h1", "h2"]).map(|(role, host)| {
            let device = format!("soft:{host}{options}").parse().unwrap();
            ActorSpec::new(role.name(), "pair").on(device)
        });
        let world = InProcess::new(actors, headworks::opener());
        let running = world.start(&Scenario::of(specs)).unwrap();
        let deadline = running.now() + LIMIT;
        let endings = running.finish(deadline);
        let reports = endings.iter().map(|ending| {
            assert_eq!(ending.outcome, ActorOutcome::Done, "{}", ending.role);
            Report::from_bytes(ending.reports.last().unwrap()).unwrap()
        });
        reports.collect::<Vec<_>>().try_into().unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actors_name_tells_its_role_and_its_peer() {
        for pair in [0, 3] {
            let [sender, receiver] = Role::BOTH.map(|role| role.name_in(pair));
            assert_eq!(role_and_peer(&sender), (Role::Sender, receiver.clone()));
            assert_eq!(role_and_peer(&receiver), (Role::Receiver, sender));
        }
    }
}

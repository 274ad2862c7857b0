//! Connects a ring whose other end is in a process of its own.

use std::path::Path;
use std::sync::Arc;

use headworks_ring::{Receiver, ReceiverSetup, RingConfig, Sender, SenderSetup, SetupError};
use headworks_runtime::{
    ActorContext, ActorError, ActorSpec, Processes, RunningScenario, Scenario, ScenarioEvent, World,
};
use headworks_shm::Registry;
use headworks_softnic::SoftProvider;
use headworks_verbs::bringup::{ConnectionParams, Hello};
use headworks_verbs::{BringUp, Device, Provider, QueuePair};

/// Name of the other process's actor, and the test that its process runs.
pub(crate) const PEER: &str = "peer";
pub(crate) const ENTRY: &str = "child_process_entry";

pub(crate) fn open(fabric: &Path, name: &str) -> Arc<dyn Device> {
    let provider = SoftProvider::on(Registry::open_at(fabric).unwrap());
    provider.open(&name.parse().unwrap()).unwrap()
}

/// One end of a ring.
pub(crate) enum End {
    Sends(Sender),
    Receives(Receiver),
}

/// One end before it is connected.
pub(crate) enum Setup {
    Sends(SenderSetup),
    Receives(ReceiverSetup),
}

impl Setup {
    pub(crate) fn new(
        sends: bool,
        device: &Arc<dyn Device>,
        config: &RingConfig,
    ) -> Result<Self, SetupError> {
        Ok(match sends {
            true => Self::Sends(SenderSetup::new(device, config)?),
            false => Self::Receives(ReceiverSetup::new(device, config)?),
        })
    }

    fn greeting(&self) -> Vec<u8> {
        match self {
            Self::Sends(setup) => setup.greeting(),
            Self::Receives(setup) => setup.greeting(),
        }
    }

    fn queue_pair(&mut self) -> &mut dyn QueuePair {
        match self {
            Self::Sends(setup) => setup.queue_pair(),
            Self::Receives(setup) => setup.queue_pair(),
        }
    }

    fn finish(self, hello: &Hello) -> Result<End, SetupError> {
        Ok(match self {
            Self::Sends(setup) => End::Sends(setup.finish(&hello.payload)?),
            Self::Receives(setup) => End::Receives(setup.finish(&hello.payload)?),
        })
    }
}

/// The other process's end while it is being connected, by mail.
pub(crate) struct ConnectingEnd {
    up: BringUp,
    setup: Setup,
    greeted: bool,
}

impl ConnectingEnd {
    pub(crate) fn new(device: &Arc<dyn Device>, mut setup: Setup) -> Result<Self, ActorError> {
        let (hello, tuning) = (setup.greeting(), Default::default());
        let up = BringUp::start(device.info(), setup.queue_pair(), tuning, 2, hello)?;
        let greeted = false;
        Ok(Self { up, setup, greeted })
    }

    /// Exchanges bring-up messages. Returns whether the end is connected.
    pub(crate) fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<bool, ActorError> {
        if !std::mem::replace(&mut self.greeted, true) {
            cx.report(&self.up.output())?;
        }
        while let Some(mail) = cx.receive() {
            self.up.input(self.setup.queue_pair(), &mail.bytes)?;
        }
        let answer = self.up.output();
        if !answer.is_empty() {
            cx.report(&answer)?;
        }
        Ok(self.up.is_connected())
    }

    /// Completes the setup and reports it. The end must be connected.
    pub(crate) fn finish(self, cx: &mut ActorContext<'_>) -> Result<End, ActorError> {
        let hello = self.up.peer().ok_or("no peer")?;
        let end = self.setup.finish(hello)?;
        cx.report(b"connected")?;
        Ok(end)
    }
}

/// Starts the other process with the actor `part`, and connects our end.
pub(crate) fn meet(
    part: &str,
    args: impl Into<Vec<u8>>,
    device: &Arc<dyn Device>,
    mut setup: Setup,
) -> (Box<dyn RunningScenario>, End) {
    let (hello, tuning) = (setup.greeting(), Default::default());
    let ours = (setup.queue_pair(), tuning, hello);
    let (running, peer) = introduce(part, args, device, ours);
    (running, setup.finish(&peer).unwrap())
}

/// Starts the other process with the actor `part`, and connects our queue pair. Returns the peer's hello.
pub(crate) fn introduce(
    part: &str,
    args: impl Into<Vec<u8>>,
    device: &Arc<dyn Device>,
    (qp, tuning, greeting): (&mut dyn QueuePair, ConnectionParams, Vec<u8>),
) -> (Box<dyn RunningScenario>, Hello) {
    let scenario = Scenario::of([ActorSpec::new(PEER, part).with_args(args.into())]);
    let mut running = Processes::of_this_test(ENTRY).start(&scenario).unwrap();
    let mut up = BringUp::start(device.info(), qp, tuning, 1, greeting).unwrap();
    running.send(PEER, &up.output()).unwrap();
    loop {
        let bytes = report(running.as_mut());
        if bytes == b"connected" {
            return (running, up.peer().unwrap().clone());
        }
        up.input(qp, &bytes).unwrap();
        let answer = up.output();
        if !answer.is_empty() {
            running.send(PEER, &answer).unwrap();
        }
    }
}

/// Waits for the other process's next report.
pub(crate) fn report(running: &mut dyn RunningScenario) -> Vec<u8> {
    match running.poll(headworks_verbs::Duration::from_millis(60_000)) {
        Some(ScenarioEvent::Report { bytes, .. }) => bytes,
        other => panic!("{other:?}"),
    }
}

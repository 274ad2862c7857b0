//! Two daemons, applications that receive at the second one, and an application of the first that sends to all of them.

use std::net::Ipv4Addr;
use std::sync::atomic::AtomicBool;

use headworks::daemon::metrics;
use rustix::process::Pid;

use crate::cases::prelude::*;
use crate::service::Role;
use crate::service::control::ControlledChild;
use crate::service::daemon_hosts::{DaemonHosts, DaemonOptions};
use crate::service::streaming::{
    StreamingApp, StreamingCommand, StreamingCount, StreamingReply, StreamingSide,
};

/// Reason why these experiments do not run in virtual time.
pub(super) const PROCESSES: RunsOn = RunsOn::Real(
    "its daemons and applications are processes of this machine, measured by the wall clock",
);
/// Port of the first receiving application. The others follow.
const PORT: u16 = 7000;
/// How long a step may take before a process counts as hung.
const LIMIT: Wall = Wall::from_secs(60);

/// An application that receives.
pub(super) struct Receiver<'n> {
    /// Name under which it attaches.
    pub(super) name: &'n str,
    /// Number of its streams.
    pub(super) streams: u32,
}

/// The processes of a measurement. They are killed when this is dropped, the applications first.
pub(super) struct StreamingHosts {
    sender: ControlledChild,
    receivers: Vec<ControlledChild>,
    pub(super) daemons: DaemonHosts,
}

impl StreamingHosts {
    /// Starts all processes as [`start`](Self::start) does, with an application that receives. The streams are TCP
    /// connections: the daemons have nothing to do.
    pub(super) fn start_tcp(
        bench: &Bench<'_>,
        receiver: Receiver<'_>,
        message: u32,
    ) -> Result<Self, WorkloadError> {
        let Testbed { devices, cpus, .. } = &bench.testbed;
        let daemons = DaemonHosts::start(devices, cpus, bench.stop())?;
        let start = |host: usize, name: &str, side| {
            let app = StreamingApp {
                socket: None,
                name: name.to_owned(),
                message,
                side,
            };
            let mut child = daemons.spawn_child(&Role::Streaming(app), cpus[host])?;
            match child.receive(LIMIT, bench.stop())? {
                StreamingReply::Ready(port) => Ok((child, port)),
                other => Err(WorkloadError(format!("a process began with {other:?}"))),
            }
        };
        let Receiver { name, streams } = receiver;
        let (receiving, port) = start(1, name, StreamingSide::Receives { port: 0, streams })?;
        let to = vec![(Ipv4Addr::LOCALHOST, port).into()];
        let (sender, _) = start(0, "sender", StreamingSide::Sends { to, streams })?;
        Ok(Self {
            sender,
            receivers: vec![receiving],
            daemons,
        })
    }

    /// Starts all processes, and waits until the applications have attached. The sender and its daemon run on the first
    /// processor of `cpus`, the receivers and their daemon on the second.
    pub(super) fn start(
        bench: &Bench<'_>,
        cpus: [usize; 2],
        options: &[DaemonOptions; 2],
        receivers: &[Receiver<'_>],
        message: u32,
    ) -> Result<Self, WorkloadError> {
        let devices = &bench.testbed.devices;
        let daemons = DaemonHosts::start_with(devices, &cpus, options, bench.stop())?;
        let start = |host: usize, name: &str, side: StreamingSide| {
            let app = StreamingApp {
                socket: Some(daemons.socket(host)),
                name: name.to_owned(),
                message,
                side: side.clone(),
            };
            let mut child = daemons.spawn_child(&Role::Streaming(app), cpus[host])?;
            let port = match side {
                StreamingSide::Receives { port, .. } => port,
                StreamingSide::Sends { .. } => 0,
            };
            child.expect_reply(StreamingReply::Ready(port), LIMIT, bench.stop())?;
            Ok::<_, WorkloadError>(child)
        };
        let ports = (PORT..).take(receivers.len());
        let started = ports.clone().zip(receivers).map(|(port, receiver)| {
            let streams = receiver.streams;
            start(1, receiver.name, StreamingSide::Receives { port, streams })
        });
        let started = started.collect::<Result<_, _>>()?;
        let to = ports.map(|port| daemons.at(1, port)).collect();
        let streams = receivers.first().map_or(0, |receiver| receiver.streams);
        Ok(Self {
            sender: start(0, "sender", StreamingSide::Sends { to, streams })?,
            receivers: started,
            daemons,
        })
    }

    /// Opens the streams.
    pub(super) fn connect(&mut self, stop: &AtomicBool) -> Result<(), WorkloadError> {
        for app in self.receivers.iter_mut().chain([&mut self.sender]) {
            app.send(&StreamingCommand::Connect)?;
        }
        for app in self.receivers.iter_mut().chain([&mut self.sender]) {
            app.expect_reply(StreamingReply::Connected, LIMIT, stop)?;
        }
        Ok(())
    }

    /// Has the sender send at a rate: bytes per second to each receiver.
    pub(super) fn send(&mut self, rate: u64, stop: &AtomicBool) -> Result<(), WorkloadError> {
        self.sender.send(&StreamingCommand::Send(rate))?;
        self.sender
            .expect_reply(StreamingReply::Ordered, LIMIT, stop)
    }

    /// Has a receiver read, or stop to read.
    pub(super) fn read(
        &mut self,
        receiver: usize,
        reads: bool,
        stop: &AtomicBool,
    ) -> Result<(), WorkloadError> {
        let receiver = &mut self.receivers[receiver];
        receiver.send(&StreamingCommand::Read(reads))?;
        receiver.expect_reply(StreamingReply::Ordered, LIMIT, stop)
    }

    /// Returns how much a receiver has read.
    pub(super) fn count(
        &mut self,
        receiver: usize,
        stop: &AtomicBool,
    ) -> Result<StreamingCount, WorkloadError> {
        let receiver = &mut self.receivers[receiver];
        receiver.send(&StreamingCommand::Count)?;
        match receiver.receive(LIMIT, stop)? {
            StreamingReply::Count(count) => Ok(count),
            other => Err(WorkloadError(format!(
                "a process replied {other:?} to a count"
            ))),
        }
    }

    /// Returns the metrics of the receivers' daemon.
    pub(super) fn metrics(&self) -> Result<DaemonMetrics, WorkloadError> {
        self.daemons.metrics(1).map(DaemonMetrics)
    }

    /// Returns the process id of the sender.
    pub(super) fn sender(&self) -> Pid {
        self.sender.pid()
    }

    /// Returns the process id of a receiver.
    pub(super) fn receiver(&self, receiver: usize) -> Pid {
        self.receivers[receiver].pid()
    }
}

/// Metrics of a daemon at one time.
pub(super) struct DaemonMetrics(Vec<metrics::Sample>);

/// State of a daemon's receive pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolLevel {
    /// Bytes that are free.
    pub(super) free: f64,
    /// Bytes of late extents that other memory replaces.
    pub(super) replaced: f64,
}

impl DaemonMetrics {
    /// Returns a metric of an application, without the words with which every such name begins.
    pub(super) fn of_application(&self, application: &str, name: &str) -> f64 {
        let name = format!("{}application_{name}", metrics::PREFIX);
        let all = self.0.iter().filter(|one| one.name == name);
        let all = all.filter(|one| one.label("name") == application);
        all.map(|one| one.value).sum()
    }

    /// Returns the state of the receive pool.
    pub(super) fn pool(&self) -> PoolLevel {
        let of = |name: &str| {
            let name = format!("{}pool_{name}_bytes", metrics::PREFIX);
            let all = self.0.iter().filter(|one| one.name == name);
            all.map(|one| one.value).sum()
        };
        PoolLevel {
            free: of("free"),
            replaced: of("replaced"),
        }
    }
}

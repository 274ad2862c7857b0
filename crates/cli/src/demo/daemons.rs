//! Two daemons for the demonstration, each standing for a host.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use headworks::daemon::Identity;
use headworks::daemon::limits::DaemonLimits;
use headworks::daemon::metrics;
use headworks::daemon::server::{DaemonServer, MetricsAt, ServerConfig};
use headworks::net::Interrupt;
use headworks::service::metrics_of;
use headworks::verbs::{DeviceName, Duration};
use rustix::process::{Signal, getpid, kill_process};
use tempfile::TempDir;

use super::{Demo, PeerProcess};
use crate::top;

/// Both daemons, and the directory of their sockets.
pub(super) struct Daemons {
    daemons: [PeerProcess; 2],
    /// Declared after the daemons, so that it is removed after they have ended.
    directory: TempDir,
}

impl Daemons {
    /// Starts both. Their applications use the direct path if `is_direct`: then both hosts count as one machine.
    pub(super) fn start(demo: &Demo, is_direct: bool) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("the daemons' directory")?;
        let start = |host: usize, port: u16| {
            let at = SocketAddr::new(address(host), port).to_string();
            let socket = socket(directory.path(), host);
            let role = if is_direct { "direct-daemon" } else { "daemon" };
            let args = [role, &socket.to_string_lossy(), "--address", &at];
            let mut daemon = demo.spawn_on(&device(demo, host)?, &args)?;
            let port = demo.read_number(&mut daemon, "starting a daemon")?;
            anyhow::Ok((daemon, port))
        };
        // The first daemon takes any port that is free at its address. The second needs the same port at its
        // own.
        let (first, port) = start(0, 0)?;
        let (second, _) = start(1, port)?;
        Ok(Self {
            daemons: [first, second],
            directory,
        })
    }

    /// Returns the socket that applications attach to.
    pub(super) fn socket(&self, host: usize) -> PathBuf {
        socket(self.directory.path(), host)
    }

    /// Returns the number of queue pairs of a host, from its daemon's metrics.
    pub(super) fn queue_pairs(&self, demo: &Demo, host: usize) -> anyhow::Result<u64> {
        let at = MetricsAt::Path(metrics_of(&self.socket(host)));
        let said = top::scrape(&at, &demo.interrupt)?;
        let samples = metrics::parse(&said).context("the daemon's metrics")?;
        let name = format!("{}queue_pairs", metrics::PREFIX);
        let own = samples.iter().filter(|sample| sample.name == name);
        Ok(own.map(|sample| sample.value as u64).sum())
    }

    /// Stops both daemons in order.
    pub(super) fn end(self, demo: &Demo) -> anyhow::Result<()> {
        for daemon in self.daemons {
            demo.finish(daemon, "stopping a daemon")?;
        }
        Ok(())
    }
}

fn socket(directory: &Path, host: usize) -> PathBuf {
    directory.join(format!("{host}.sock"))
}

pub(super) fn address(host: usize) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, host as u8 + 1).into()
}

/// Returns the device of a host. A `soft` device without a name gets one, so that the two hosts differ.
fn device(demo: &Demo, host: usize) -> anyhow::Result<DeviceName> {
    let device = [&demo.device, &demo.peer][host];
    let text = device.to_string();
    match (device.name(), text.strip_prefix("soft")) {
        (None, Some(options)) => Ok(format!("soft:h{}{options}", host + 1).parse()?),
        _ => Ok(device.clone()),
    }
}

/// Runs a daemon in this process until the process that started it closes its standard input.
pub(super) fn run_daemon(
    socket: &str,
    at: SocketAddr,
    device: &DeviceName,
    is_direct: bool,
) -> anyhow::Result<()> {
    let interrupt = Interrupt::install().context("catching signals")?;
    let name = "starter".to_owned();
    let ends_with_starter = || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        kill_process(getpid(), Signal::TERM)
    };
    let spawned = std::thread::Builder::new().name(name);
    spawned.spawn(ends_with_starter).context("a thread")?;
    let socket = PathBuf::from(socket);
    let metrics = metrics_of(&socket);
    let config = ServerConfig {
        identity: Identity::open(at.ip(), u64::from(std::process::id())),
        port: at.port(),
        sockets: vec![socket],
        is_for_all: false,
        metrics: Some(MetricsAt::Path(metrics)),
        registry: Some(headworks::registry()?),
        ecn: None,
        resctrl: None,
        numa: Default::default(),
        drain: Duration::ZERO,
        daemon: DaemonLimits {
            direct: is_direct,
            ..DaemonLimits::default()
        },
    };
    let mut shell = DaemonServer::open(headworks::open(device)?, &config)?;
    print_number(shell.port())?;
    // The starter asked it to end, whatever the result, and reports the reason.
    shell.run(&interrupt, |_| {})?;
    Ok(())
}

/// Prints the line that [`Demo::read_number`] reads.
pub(super) fn print_number(number: u16) -> anyhow::Result<()> {
    let line = format!("{number}\n");
    std::io::stdout()
        .write_all(line.as_bytes())
        .context("answering")
}

impl Demo {
    /// Waits until another process prints a number on a line of its own, and returns it. `step` names the wait in the
    /// error.
    pub(super) fn read_number(&self, other: &mut PeerProcess, step: &str) -> anyhow::Result<u16> {
        let out = other.0.stdout.as_mut();
        let out = out.ok_or_else(|| anyhow!("the other process has no pipes"))?;
        let mut line = String::new();
        while !line.ends_with('\n') {
            self.await_readable(out, step)?;
            let mut byte = [0];
            if out.read(&mut byte).context("the other process")? == 0 {
                return Err(anyhow!("the other process ended before it was ready"));
            }
            line.push(byte[0].into());
        }
        line.trim_end().parse().context("the other process")
    }
}

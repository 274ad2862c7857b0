//! The other application of the many connections: it sends back what it receives.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::Context;
use headworks::net::{Waiter, clock};
use headworks::service::Service;
use headworks_workloads::service::echo::echo_all;

use super::PATIENCE;
use super::daemons::print_number;

/// Echoes over `connections` connections of the service, and, when those have ended, over as many of TCP if `has_tcp`.
pub(super) fn run(socket: &str, connections: usize, has_tcp: bool) -> anyhow::Result<()> {
    let service = Service::attach(Path::new(socket), "demo-echo")?;
    let listener = service.listen(0, connections as u32)?;
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("TCP")?;
    print_number(listener.port())?;
    print_number(tcp.local_addr().context("TCP")?.port())?;
    // The wait is limited: the process that is to connect, or its daemon, may be gone.
    let until = || clock::now() + PATIENCE;
    let streams = (0..connections).map(|_| Ok(listener.accept_by(Some(until()))?));
    echo_all(&service, streams.collect::<anyhow::Result<Vec<_>>>()?)?;
    if !has_tcp {
        return Ok(());
    }
    let accept = |_| {
        let stdin = std::io::stdin();
        let fds = [tcp.as_fd(), stdin.as_fd()];
        let woken = Waiter::default().wait(&fds, Some(until()), |_| false);
        woken.context("waiting for a connection")?;
        tcp.set_nonblocking(true).context("TCP")?;
        let accepted = tcp.accept();
        Ok(accepted.context("nobody connects")?.0)
    };
    let sockets = (0..connections).map(accept);
    Ok(echo_all(&(), sockets.collect::<anyhow::Result<Vec<_>>>()?)?)
}

//! `headworks daemon`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use headworks::daemon::Config;
use headworks::daemon::shell::{Shell, ShellConfig, ShellError};
use headworks::stage::Interrupt;
use headworks::verbs::DeviceName;

use crate::fail;

/// The port between daemons where none is named.
const PORT: u16 = 7471;

/// What a daemon is.
#[derive(Args)]
pub(crate) struct Daemon {
    /// The device that carries everything. Daemons on one machine that stand for several hosts have a soft host each.
    #[arg(long, default_value = headworks::DEFAULT_DEVICE, value_name = "DEVICE")]
    device: DeviceName,
    /// The address of this host, which applications of others connect to. Daemons on one machine have one each:
    /// 127.0.0.1, 127.0.0.2 and so on.
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    address: IpAddr,
    /// The TCP port between daemons, the same on all hosts.
    #[arg(long, default_value_t = PORT, value_name = "PORT")]
    port: u16,
    /// The socket that applications attach to [default: headworks-ADDRESS.sock in $XDG_RUNTIME_DIR or /tmp]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub(crate) fn run(command: &Daemon) -> anyhow::Result<()> {
    fail::check_shared(&command.device)?;
    if !command.address.is_loopback() {
        return Err(fail::bad_input(format_args!(
            "--address {}: daemons do not authenticate each other yet, so that they serve loopback addresses only",
            command.address
        )));
    }
    // Early, so that no signal ends it half-way.
    let interrupt = Interrupt::install()?;
    let socket = command.socket.clone().unwrap_or_else(|| {
        let directory = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let directory = directory.unwrap_or_else(std::env::temp_dir);
        directory.join(format!("headworks-{}.sock", command.address))
    });
    let device = headworks::open(&command.device)?;
    let config = ShellConfig {
        address: command.address,
        port: command.port,
        socket,
        daemon: Config::default(),
    };
    let mut shell = Shell::open(device.clone(), &config, life()).map_err(|error| match error {
        // Another address, port or path is what helps.
        ShellError::Socket { .. } | ShellError::Listen(_) | ShellError::Config(_) => {
            fail::bad_input(error)
        }
        error => error.into(),
    })?;
    eprintln!(
        "serving {} on {}: applications attach at {}",
        command.address,
        command.device,
        shell.socket().display()
    );
    let ended = shell.run(&interrupt);
    drop(shell);
    // After everything that was made from it, so that nothing of it is left in the registry.
    drop(device);
    Ok(ended?)
}

/// Another number each time.
fn life() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_nanos() as u64 ^ u64::from(std::process::id()) << 48
}

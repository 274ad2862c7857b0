//! `headworks daemon`.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use headworks::daemon::Identity;
use headworks::daemon::auth::Secret;
use headworks::daemon::config::{self, AllowedUsers, DaemonConfig, LogLevel, Metrics, NumaChoice};
use headworks::daemon::server::notify::Notify;
use headworks::daemon::server::{DaemonExit, DaemonServer, MetricsAt, ServerConfig};
use headworks::net::Interrupt;
use headworks::service;
use headworks::verbs::{Device, DeviceName, Duration};

use crate::args::device;
use crate::exit_status;
use crate::stderr_log::StderrLog;

/// Default address of the host.
const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// Default port between daemons.
const PORT: u16 = 7471;
/// Default number of seconds that a daemon drains for.
const DRAIN_SECONDS: u32 = 30;

/// Options of `headworks daemon`. An option that is not given is taken from the configuration file.
#[derive(Args)]
pub(crate) struct Daemon {
    /// Configuration file in TOML, with these same settings, and limits such as the number of workers (section
    /// [limits]; docs/daemon.md lists all keys) [default: headworks/daemon.toml in
    /// $XDG_CONFIG_HOME or ~/.config, else /etc/headworks/daemon.toml, else none]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Device that carries all traffic; if several daemons on one machine stand for several hosts, each needs
    /// a soft host of its own [default: soft]
    #[arg(long, value_parser = device)]
    device: Option<DeviceName>,
    /// Address of this host, which applications on other hosts connect to; daemons on one machine have one
    /// each: 127.0.0.1,
    /// 127.0.0.2 and so on [default: 127.0.0.1]
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// TCP port between daemons, the same on all hosts [default: 7471]
    #[arg(long)]
    port: Option<u16>,
    /// Socket that applications attach to; given several times, the applications at one socket share nothing but
    /// ports with those at another, as if they were of another user [default: headworks-ADDRESS.sock in $XDG_RUNTIME_DIR or
    /// /tmp]
    #[arg(long = "socket", value_name = "PATH")]
    sockets: Vec<PathBuf>,
    /// Users whose applications may attach: own (the daemon's own user) or all; users share nothing with each
    /// other [default: own]
    #[arg(long, value_name = "WHOSE")]
    users: Option<AllowedUsers>,
    /// Where to serve metrics in Prometheus's text format: the path of a Unix socket, IP:PORT, or off
    /// [default: SOCKET.metrics, of the first socket]
    #[arg(long, value_name = "WHERE")]
    metrics: Option<Metrics>,
    /// File with the secret that all daemons that talk to each other share: 16 to 4,096 bytes, readable by
    /// nobody else. Without it, the daemon serves loopback addresses only.
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
    /// Seconds that connections may continue after SIGTERM [default: 30]
    #[arg(long, value_name = "SECS")]
    drain: Option<u32>,
    /// NUMA node on whose processors the threads run: device (that of the device, if it has one), any, or a number
    /// [default: device]
    #[arg(long, value_name = "NODE")]
    numa: Option<NumaChoice>,
    /// Log level on standard error: error, warn, info, debug or trace; -v and -vv can raise it [default:
    /// warn]
    #[arg(long, value_name = "LEVEL")]
    log: Option<LogLevel>,
    /// Check that the configuration is legal and the device opens, then exit.
    #[arg(long)]
    check: bool,
}

/// Effective configuration: the command line, completed from the configuration file and the defaults.
struct DaemonDevice {
    device: DeviceName,
    shell: ServerConfig,
    level: tracing::Level,
    file: ConfigFile,
    /// Place in the configuration file that names the device, if the device comes from there.
    device_at: Option<String>,
}

impl DaemonDevice {
    /// Opens the device.
    fn open(&self) -> anyhow::Result<Arc<dyn Device>> {
        headworks::open(&self.device).map_err(|error| match &self.device_at {
            Some(at) => exit_status::bad_input(format_args!("{at}: {error}")),
            None => exit_status::bad_input(error),
        })
    }
}

/// Path, text and settings of the configuration file, if there is one.
#[derive(Default)]
struct ConfigFile {
    file: Option<(PathBuf, String)>,
    settings: DaemonConfig,
}

impl ConfigFile {
    /// Returns where the file sets `key`, for an error message: path, line and key.
    fn at(&self, key: &str) -> String {
        let Some((path, text)) = &self.file else {
            return key.to_owned();
        };
        match config::line_of(text, key) {
            Some(line) => format!("{}: line {line}: {key}", path.display()),
            None => format!("{}: {key}", path.display()),
        }
    }
}

pub(crate) fn run(command: &Daemon, verbose: u8) -> anyhow::Result<()> {
    let mut chosen = resolve_options(command)?;
    let journal = StderrLog::of_stderr();
    crate::log(chosen.level.max(crate::level(verbose)), journal.clone());
    if command.check {
        let device = chosen.open()?;
        let legal = DaemonServer::check_config(&*device, &chosen.shell);
        legal.map_err(exit_status::bad_input)?;
        let read = match &chosen.file.file {
            Some((path, _)) => format!("{} was read", path.display()),
            None => "no file was read".to_owned(),
        };
        return exit_status::print(&format!("the configuration is legal: {read}\n"));
    }
    // Installed early, so that a signal never ends the daemon half-way.
    let interrupt = Interrupt::install().map_err(exit_status::bad_input)?;
    let notify = Notify::from_env().unwrap_or_else(|error| {
        // Perhaps inherited from a shell that a service manager started.
        tracing::warn!(
            "NOTIFY_SOCKET: {error}: no service manager listens there; readiness is not reported"
        );
        None
    });
    // Every failure to serve is bad input: a higher limit or another address, port or path remedies it.
    let device = chosen.open()?;
    chosen.shell.registry = match (headworks::registry(), chosen.device.kind()) {
        (Ok(registry), _) => Some(registry),
        (Err(error), "soft") => return Err(exit_status::bad_input(error)),
        (Err(error), _) if std::env::var_os("HEADWORKS_FABRIC").is_some() => {
            return Err(exit_status::bad_input(error));
        }
        // A NIC needs no registry.
        (Err(error), _) => {
            tracing::warn!("daemons of this machine meet over the network only: {error}");
            None
        }
    };
    let shell = DaemonServer::open(device.clone(), &chosen.shell);
    let mut shell = shell.map_err(exit_status::bad_input)?;
    let port = match shell.port() {
        PORT => String::new(),
        port => format!(" port {port}"),
    };
    let paths = shell.sockets().map(|path| path.display().to_string());
    let paths: Vec<String> = paths.collect();
    let serves = format!(
        "serving {}{port} on {}: applications attach at {}",
        chosen.shell.identity.address,
        chosen.device,
        paths.join(" and ")
    );
    journal.write_line(&serves);
    if let Some(notify) = &notify {
        notify.ready(&serves);
    }
    let ended = shell.run(&interrupt, |left| {
        let ends: usize = left
            .domains
            .iter()
            .map(|of| of.object_counts.connections)
            .sum();
        let seconds = chosen.shell.drain.as_secs_f64();
        let waits = match ends {
            0 => "stopping: there are no connections".to_owned(),
            1 => format!("stopping: 1 end of a connection may continue for {seconds} s"),
            ends => format!("stopping: {ends} ends of connections may continue for {seconds} s"),
        };
        journal.write_line(&waits);
        if let Some(notify) = &notify {
            notify.stopping(&waits);
        }
    });
    drop(shell);
    // Dropped after everything that was made from the device, so that the registry keeps no entry of it.
    drop(device);
    match ended? {
        DaemonExit::Drained => Ok(()),
        DaemonExit::Cut(ends) => {
            journal.write_line(format_args!("{ends} connection ends were reset"));
            Ok(())
        }
        DaemonExit::Interrupted => Err(exit_status::interrupted()),
    }
}

fn resolve_options(command: &Daemon) -> anyhow::Result<DaemonDevice> {
    let file = read_config_file(command.config.as_deref())?;
    let settings = file.settings.clone();
    let in_file = settings
        .device
        .as_ref()
        .filter(|_| command.device.is_none());
    let device_at = in_file.map(|_| file.at("device"));
    let device = match (&command.device, in_file) {
        (Some(device), _) => device.clone(),
        (None, Some(name)) => device(name)
            .map_err(|why| exit_status::bad_input(format_args!("{}: {why}", file.at("device"))))?,
        (None, None) => device(headworks::DEFAULT_DEVICE).map_err(exit_status::bad_input)?,
    };
    exit_status::check_not_simulated(&device)?;
    let address = command.address.or(settings.address).unwrap_or(ADDRESS);
    let says = |is_named: bool, flag: &str, key: &str| match is_named {
        true => flag.to_owned(),
        false => file.at(key),
    };
    let address = address.to_canonical();
    let canonical = address;
    if canonical.is_unspecified() || canonical.is_multicast() {
        return Err(exit_status::bad_input(format_args!(
            "{} {address}: it must be an address at which other hosts reach this one, neither unspecified nor multicast",
            says(command.address.is_some(), "--address", "address"),
        )));
    }
    let secret = match (&command.secret, &settings.secret) {
        (Some(path), _) => Some(read_secret("secret", path)?),
        (None, Some(path)) => Some(read_secret(&file.at("secret"), path)?),
        (None, None) => None,
    };
    if !address.is_loopback() && secret.is_none() {
        return Err(exit_status::bad_input(format_args!(
            "address {address}: without a secret a daemon serves loopback addresses only (name one with --secret FILE)",
        )));
    }
    let sockets = match (&command.sockets[..], &settings.socket[..]) {
        ([], []) => vec![service::socket_of(address)],
        ([], named) | (named, _) => named.to_vec(),
    };
    let socket_at = says(!command.sockets.is_empty(), "--socket", "socket");
    check_sockets(&socket_at, &sockets)?;
    let ecn = settings.ecn_hook().map_err(exit_status::bad_input)?;
    let metrics = command.metrics.clone().or(settings.metrics);
    let metrics_at = says(command.metrics.is_some(), "--metrics", "metrics");
    let metrics = match metrics {
        None => Some(MetricsAt::Path(service::metrics_of(&sockets[0]))),
        Some(Metrics::Off) => None,
        Some(Metrics::At(at)) => Some(at),
    };
    if let Some(MetricsAt::Path(path)) = &metrics {
        check_path(&metrics_at, path)?;
        if sockets.contains(path) {
            return Err(exit_status::bad_input(format_args!(
                "{metrics_at} {}: applications attach at that path ({socket_at}); name another path, IP:PORT, or off",
                path.display()
            )));
        }
    }
    let users = command.users.or(settings.users);
    let drain = command.drain.or(settings.drain_seconds);
    let log = command.log.or(settings.log).unwrap_or(LogLevel::Warn);
    Ok(DaemonDevice {
        device,
        shell: ServerConfig {
            identity: Identity {
                secret,
                entropy: entropy()?,
                ..Identity::open(address, start_time_nanos())
            },
            port: command.port.or(settings.port).unwrap_or(PORT),
            sockets,
            is_for_all: users == Some(AllowedUsers::All),
            metrics,
            registry: None,
            ecn,
            resctrl: settings.resctrl,
            numa: command.numa.or(settings.numa).unwrap_or_default(),
            drain: Duration::from_secs(drain.unwrap_or(DRAIN_SECONDS).into()),
            daemon: settings.limits,
        },
        level: log.into(),
        device_at,
        file,
    })
}

/// Longest path of a Unix socket, in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// Maximum number of sockets that applications attach to.
const SOCKETS_MAX: usize = 1024;

/// Refuses paths of sockets that are illegal or named twice. `at` names the setting in the error.
fn check_sockets(at: &str, sockets: &[PathBuf]) -> anyhow::Result<()> {
    if sockets.len() > SOCKETS_MAX {
        return Err(exit_status::bad_input(format_args!(
            "{at}: {} sockets are named, and {SOCKETS_MAX} are allowed",
            sockets.len()
        )));
    }
    for (number, path) in sockets.iter().enumerate() {
        check_path(at, path)?;
        let is_same =
            |other: &PathBuf| std::path::absolute(other).ok() == std::path::absolute(path).ok();
        if sockets[..number].iter().any(is_same) {
            return Err(exit_status::bad_input(format_args!(
                "{at} {}: it is named twice; name each socket once",
                path.display()
            )));
        }
    }
    Ok(())
}

/// Refuses a path that is too short or too long for a socket. `at` names the setting in the error.
fn check_path(at: &str, path: &Path) -> anyhow::Result<()> {
    match path.as_os_str().len() {
        1..=SOCKET_PATH_MAX => Ok(()),
        len => Err(exit_status::bad_input(format_args!(
            "{at} {path:?} has {len} bytes: name a path of 1 to {SOCKET_PATH_MAX} bytes"
        ))),
    }
}

/// Longest configuration file, in bytes.
const CONFIG_MAX: u64 = 1 << 20;

/// Reads a configuration file.
fn read_config(path: &Path) -> anyhow::Result<String> {
    let failed = |why: &dyn std::fmt::Display| {
        exit_status::bad_input(format_args!("{}: {why}", path.display()))
    };
    let file = File::open(path).map_err(|error| failed(&error))?;
    let mut text = String::new();
    let read = file.take(CONFIG_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| failed(&error))?;
    match text.len() as u64 > CONFIG_MAX {
        true => Err(failed(&format_args!(
            "it is longer than {CONFIG_MAX} bytes"
        ))),
        false => Ok(text),
    }
}

/// Returns the first configuration file in the default places. A file that is there and cannot be reached is an
/// error: the daemon must not serve with other settings.
fn default_config_file() -> anyhow::Result<Option<PathBuf>> {
    for path in config_file_paths() {
        match std::fs::symlink_metadata(&path) {
            Ok(_) => return Ok(Some(path)),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => {
                return Err(exit_status::bad_input(format_args!(
                    "{}: {error}: the daemon looks there because of HOME or XDG_CONFIG_HOME; change them, or name a \
                     file with --config",
                    path.display()
                )));
            }
        }
    }
    Ok(None)
}

/// Reads the named configuration file, or the first that exists in the default places.
fn read_config_file(named: Option<&Path>) -> anyhow::Result<ConfigFile> {
    let path = match named {
        Some(path) => Some(path.to_owned()),
        None => default_config_file()?,
    };
    let Some(path) = path else {
        return Ok(ConfigFile::default());
    };
    let text = read_config(&path)?;
    let settings = DaemonConfig::parse(&text);
    let settings = settings
        .map_err(|error| exit_status::bad_input(format_args!("{}: {error}", path.display())))?;
    Ok(ConfigFile {
        file: Some((path, text)),
        settings,
    })
}

fn config_file_paths() -> Vec<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    let is_absolute = |path: &PathBuf| path.is_absolute();
    let own = set("XDG_CONFIG_HOME").filter(is_absolute);
    let own = own.or_else(|| Some(set("HOME").filter(is_absolute)?.join(".config")));
    let all = own.into_iter().map(|own| own.join("headworks"));
    let all = all.chain([PathBuf::from("/etc/headworks")]);
    all.map(|place| place.join("daemon.toml")).collect()
}

/// Reads a secret, and refuses a file that others can access. `at` names the setting in the error.
fn read_secret(at: &str, path: &Path) -> anyhow::Result<Secret> {
    let wrong =
        |why: String| exit_status::bad_input(format_args!("{at} {}: {why}", path.display()));
    let mut file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mode = file.metadata().map_err(|error| wrong(error.to_string()))?;
    if mode.permissions().mode() & 0o077 != 0 {
        return Err(wrong("others may read or write it (chmod 600)".to_owned()));
    }
    let mut bytes = Vec::new();
    // More than a secret may have, so that a longer one is refused and not cut off.
    let read = file.by_ref().take(4200).read_to_end(&mut bytes);
    read.map_err(|error| wrong(error.to_string()))?;
    Secret::new(&bytes).map_err(|error| wrong(error.to_string()))
}

fn entropy() -> anyhow::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let mut random = File::open("/dev/urandom").context("/dev/urandom")?;
    random.read_exact(&mut bytes).context("/dev/urandom")?;
    Ok(bytes)
}

/// Returns a number that differs between starts: nanoseconds since 1970, mixed with the process id.
fn start_time_nanos() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_nanos() as u64 ^ u64::from(std::process::id()) << 48
}

//! State and code that all calls share.

use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};

use headworks::service::Service;

use crate::error::{Error, remember};
use crate::handle::locked;
use crate::raw;

/// Daemons that this process is attached to.
static ATTACHED: Mutex<AttachedService> = Mutex::new(AttachedService {
    current: None,
    known: Vec::new(),
});

struct AttachedService {
    /// The service that new connections use, and the name of this program there.
    current: Option<(Service, String)>,
    /// All services that are not gone, so that attaching to a daemon again finds its service.
    known: Vec<Service>,
}

impl AttachedService {
    /// Makes `service` the one that new connections use.
    fn use_from_now_on(&mut self, service: Service, name: &str) -> Service {
        let is_known = |known: &Service| known.socket() == service.socket();
        if !self.known.iter().any(is_known) {
            self.known.push(service.clone());
        }
        self.current = Some((service.clone(), name.to_owned()));
        service
    }

    /// Drops services whose daemon is gone.
    fn forget_the_gone(&mut self) {
        self.known.retain(|service| !service.is_gone());
    }
}

/// Whether this process was forked from one that had used a daemon.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Runs the body of an exported function. On an error or a panic, sets `errno` and the text of
/// `hw_strerror`, and returns `failed`.
pub(crate) fn call<T>(failed: T, body: impl FnOnce() -> Result<T, Error>) -> T {
    let guarded = catch_unwind(AssertUnwindSafe(|| {
        // In a forked child nothing here may be touched. Another thread may have been changing it during the
        // fork, and the daemon would take the child's messages for the parent's.
        if IS_FORKED.load(Ordering::Relaxed) {
            return Err(Error::Forked);
        }
        body()
    }));
    match guarded.unwrap_or(Err(Error::Bug)) {
        Ok(done) => done,
        Err(error) => {
            remember(&error);
            raw::set_errno(error.errno());
            failed
        }
    }
}

extern "C" fn is_forked() {
    IS_FORKED.store(true, Ordering::Relaxed);
}

/// Attaches to the daemon at `path`, for new connections. A daemon that is already attached is not attached
/// again, so that memory and connections made before and after belong together.
pub(crate) fn attach(path: &Path, name: &str) -> Result<(), Error> {
    watch_forks();
    let mut attached = locked(&ATTACHED);
    attached.forget_the_gone();
    let mut known = attached.known.iter();
    let service = match known.find(|service| service.socket() == path) {
        Some(service) => service.clone(),
        None => Service::attach(path, name)?,
    };
    attached.use_from_now_on(service, name);
    Ok(())
}

/// The service for new connections. Attaches if no daemon is attached, and again if the daemon is gone,
/// because it may have restarted.
pub(crate) fn service() -> Result<Service, Error> {
    let mut attached = locked(&ATTACHED);
    let (opened, name) = match &attached.current {
        Some((service, _)) if !service.is_gone() => return Ok(service.clone()),
        Some((gone, name)) => (Service::attach(gone.socket(), name)?, name.clone()),
        None => {
            watch_forks();
            let name = name();
            (Service::open(&name)?, name)
        }
    };
    attached.forget_the_gone();
    Ok(attached.use_from_now_on(opened, &name))
}

/// Returns the address at which the daemon's listeners are reached, if `at` means it: the unspecified address, or
/// the daemon's own. That of a daemon that does not tell its address stays unspecified.
pub(crate) fn own_address(service: &Service, at: SocketAddr) -> Result<IpAddr, Error> {
    let own = service.address()?;
    let at = at.ip().to_canonical();
    match at.is_unspecified() || own == Some(at) {
        true => Ok(own.unwrap_or(at)),
        false => Err(Error::Elsewhere(own)),
    }
}

fn watch_forks() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| raw::at_fork_in_child(is_forked));
}

/// Default name of this program in the daemon's log.
pub(crate) fn name() -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

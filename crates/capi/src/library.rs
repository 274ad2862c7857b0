//! State and code that all calls share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};

use headworks::service::Service;

use crate::error::{Error, remember};
use crate::handle::locked;
use crate::raw;

/// Daemons that this process has attached to.
static ATTACHED: Mutex<AttachedService> = Mutex::new(AttachedService {
    current: None,
    known: Vec::new(),
});

struct AttachedService {
    /// The service that new connections use.
    current: Option<Service>,
    /// All services, one for each socket, so that attaching to a daemon again finds its service.
    known: Vec<Service>,
}

impl AttachedService {
    /// Makes `service` the one that new connections use.
    fn use_from_now_on(&mut self, service: &Service) {
        let is_known = |known: &Service| known.socket() == service.socket();
        if !self.known.iter().any(is_known) {
            self.known.push(service.clone());
        }
        self.current = Some(service.clone());
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
/// again, so that memory and connections made before and after belong together. The name of the first call remains.
pub(crate) fn attach(path: &Path, name: &str) -> Result<(), Error> {
    watch_forks();
    let mut attached = locked(&ATTACHED);
    let mut known = attached.known.iter();
    let service = match known.find(|service| service.socket() == path) {
        Some(service) => {
            service.reattach()?;
            service.clone()
        }
        None => Service::attach(path, name)?,
    };
    attached.use_from_now_on(&service);
    Ok(())
}

/// The service for new connections. Attaches if no daemon is attached. The service itself attaches again if the daemon
/// is gone, because it may have restarted.
pub(crate) fn service() -> Result<Service, Error> {
    let mut attached = locked(&ATTACHED);
    if let Some(service) = &attached.current {
        return Ok(service.clone());
    }
    watch_forks();
    let service = Service::open(&name())?;
    attached.use_from_now_on(&service);
    Ok(service)
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

//! What all calls have in common.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};

use headworks::service::{Service, ServiceError};

use crate::error::{Error, remember};
use crate::handle::locked;
use crate::raw;

/// The daemons that were attached to.
static ATTACHED: Mutex<Attached> = Mutex::new(Attached {
    current: None,
    known: Vec::new(),
});

struct Attached {
    /// What new connections go through.
    current: Option<Service>,
    /// All that were named, by their sockets. They stay, to be found when they are named again.
    known: Vec<(PathBuf, Service)>,
}

/// Whether this process was forked from one that had used a daemon.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// A call of C's: what goes wrong is in `errno` and `hw_strerror` afterwards, a panic too, and `failed` is its result.
pub(crate) fn call<T>(failed: T, body: impl FnOnce() -> Result<T, Error>) -> T {
    let guarded = catch_unwind(AssertUnwindSafe(|| {
        // Nothing here may be touched: another thread may have been changing it when this process was forked, and what
        // the daemon is told it takes for the parent's word.
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

/// Attaches to the daemon at `path`, for what is asked for from now on. One that is attached to is not again, so that
/// memory and connections that were made before and after belong together.
pub(crate) fn attach(path: &Path, name: &str) -> Result<(), Error> {
    watch_forks();
    let mut attached = locked(&ATTACHED);
    // One that is gone answers nothing.
    let is_there = |service: &Service| !matches!(service.alloc(1), Err(ServiceError::DaemonGone));
    let mut known = attached.known.iter();
    let known = known.rfind(|(socket, service)| socket == path && is_there(service));
    let service = match known {
        Some((_, service)) => service.clone(),
        None => {
            let service = Service::attach(path, name)?;
            attached.known.push((path.to_owned(), service.clone()));
            service
        }
    };
    attached.current = Some(service);
    Ok(())
}

/// The daemon, which is attached to if none was.
pub(crate) fn service() -> Result<Service, Error> {
    let mut attached = locked(&ATTACHED);
    if let Some(service) = &attached.current {
        return Ok(service.clone());
    }
    watch_forks();
    let opened = Service::open(&name())?;
    Ok(attached.current.insert(opened).clone())
}

fn watch_forks() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| raw::at_fork_in_child(is_forked));
}

/// What this program is called in the daemon's log.
pub(crate) fn name() -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

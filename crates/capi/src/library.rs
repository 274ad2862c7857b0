//! What all calls have in common.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};

use headworks::service::Service;

use crate::error::{Error, remember};
use crate::handle::locked;
use crate::raw;

/// The daemons that are attached to.
static ATTACHED: Mutex<Attached> = Mutex::new(Attached {
    current: None,
    known: Vec::new(),
});

struct Attached {
    /// What new connections go through, and what this program is called there.
    current: Option<(Service, String)>,
    /// All of them, to be found when they are named again, until they are gone.
    known: Vec<Service>,
}

impl Attached {
    /// What is asked for from now on goes through that one.
    fn use_from_now_on(&mut self, service: Service, name: &str) -> Service {
        let is_known = |known: &Service| known.socket() == service.socket();
        if !self.known.iter().any(is_known) {
            self.known.push(service.clone());
        }
        self.current = Some((service.clone(), name.to_owned()));
        service
    }

    /// Who has gone is not found any more.
    fn forget_the_gone(&mut self) {
        self.known.retain(|service| !service.is_gone());
    }
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
    attached.forget_the_gone();
    let mut known = attached.known.iter();
    let service = match known.find(|service| service.socket() == path) {
        Some(service) => service.clone(),
        None => Service::attach(path, name)?,
    };
    attached.use_from_now_on(service, name);
    Ok(())
}

/// The daemon, which is attached to if none was, and again if it has gone: it may have come back.
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

//! Ctrl-C as a flag and a descriptor to wait on.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Exit code of an interrupted program.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Catches SIGINT, SIGTERM and SIGHUP until the value is dropped. A second signal ends the program at once
/// with [`EXIT_INTERRUPTED`], in case the program no longer reacts. An ignored SIGHUP stays ignored, as
/// `nohup` requires.
pub struct Interrupt {
    raised: Arc<AtomicBool>,
    terminated: Arc<AtomicBool>,
    readable: UnixStream,
    ids: Vec<SigId>,
}

impl Interrupt {
    /// Catches the signals from now on. Call it early, and once.
    pub fn install() -> io::Result<Self> {
        let raised = Arc::new(AtomicBool::new(false));
        let (readable, writable) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        let mut interrupt = Self {
            raised,
            terminated: Arc::default(),
            readable,
            ids: Vec::new(),
        };
        let hangup = (!is_ignored(SIGHUP)?).then_some(SIGHUP);
        // Registered before the other flag: a program that sees `raised` also sees this one.
        let terminated = Arc::clone(&interrupt.terminated);
        interrupt.ids.push(flag::register(SIGTERM, terminated)?);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
            let raised = || Arc::clone(&interrupt.raised);
            let exit = i32::from(EXIT_INTERRUPTED);
            // The order matters: the conditional shutdown checks the flag as an earlier signal left it.
            let ids = [
                flag::register_conditional_shutdown(signal, exit, raised())?,
                flag::register(signal, raised())?,
                low_level::pipe::register(signal, writable.try_clone()?)?,
            ];
            interrupt.ids.extend(ids);
        }
        Ok(interrupt)
    }

    /// Whether a signal came. A relaxed load: cheap enough for every step.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Clears the flag, so that another signal raises it again. Only the signal after that ends the program.
    pub fn rearm(&self) {
        while (&self.readable)
            .read(&mut [0; 16])
            .is_ok_and(|read| read > 0)
        {}
        self.raised.store(false, Ordering::Relaxed);
    }

    /// Whether SIGTERM was among the signals. It asks a program to finish work in progress.
    pub fn is_termination(&self) -> bool {
        self.terminated.load(Ordering::Relaxed)
    }
}

impl AsFd for Interrupt {
    /// Readable once a signal came, until it is [rearmed](Interrupt::rearm).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            low_level::unregister(id);
        }
    }
}

/// Whether this process ignores the signal, as its parent may have arranged.
fn is_ignored(signal: i32) -> io::Result<bool> {
    let mut present = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only writes the present one.
    if unsafe { libc::sigaction(signal, std::ptr::null(), present.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, and so wrote it.
    let present = unsafe { present.assume_init() };
    Ok(present.sa_sigaction == libc::SIG_IGN)
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::io::retry_on_intr;
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[test]
    fn a_signal_raises_the_flag_and_wakes_the_sleeper() {
        let interrupt = Interrupt::install().expect("installs");
        assert!(!interrupt.is_raised());
        kill_process(getpid(), Signal::TERM).expect("signals itself");
        let mut fds = [PollFd::new(&interrupt, PollFlags::IN)];
        // The signal may have gone to another thread, or come while this one sleeps.
        retry_on_intr(|| poll(&mut fds, None)).expect("poll");
        assert!(interrupt.is_raised());
        assert!(interrupt.is_termination());

        // After rearming, another signal is caught; without it, that signal would end the program.
        interrupt.rearm();
        assert!(!interrupt.is_raised() && interrupt.is_termination());
        kill_process(getpid(), Signal::INT).expect("signals itself");
        retry_on_intr(|| poll(&mut fds, None)).expect("poll");
        assert!(interrupt.is_raised());
    }
}

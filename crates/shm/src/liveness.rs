//! Process liveness. A process is identified by its id *and* its start time, because ids are reused.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use crate::segment::{open_fd_of, open_fd_with};

/// Identity of one process. Another process that later gets the same id differs in its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId {
    /// The process id.
    pub pid: u32,
    /// When it started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_time: u64,
}

/// Returns whether `/proc` answered that there is no such process.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::SRCH)
    )
}

impl ProcessId {
    /// Returns the calling process. Fails only where `/proc` is not readable.
    pub fn current() -> io::Result<Self> {
        Self::of_pid(std::process::id())
    }

    /// Returns the process that has the id `pid` now.
    pub fn of_pid(pid: u32) -> io::Result<Self> {
        Ok(Self {
            pid,
            start_time: read_stat(pid)?.start_time,
        })
    }

    /// Returns whether it is certain that no live process has the id `pid` now.
    pub fn is_pid_unused(pid: u32) -> bool {
        match read_stat(pid) {
            Ok(stat) => stat.is_dead(),
            Err(error) => is_gone(&error),
        }
    }

    /// Returns whether the process still runs. A zombie does not, nor does a process whose id now names
    /// another.
    ///
    /// When in doubt (`/proc` refuses) the result is true: a live process must not be cleaned up after.
    pub fn is_alive(&self) -> bool {
        self.runs().unwrap_or(true)
    }

    /// [`is_alive`](Self::is_alive), or the error that leaves it unknown.
    fn runs(&self) -> io::Result<bool> {
        match read_stat(self.pid) {
            Ok(stat) => Ok(stat.start_time == self.start_time && !stat.is_dead()),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a descriptor that becomes readable when the process ends; `None` if it has ended already.
    /// [`pidfd_is_dead`] tests the descriptor.
    pub fn open_pidfd(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return Ok(None);
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            // The id could have been reused before the descriptor pinned it; from here on it cannot.
            Ok(fd) => Ok(self.runs()?.then_some(fd)),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens descriptor `fd_number` of this process for reading and writing; see [`open_fd_of`].
    ///
    /// Fails with `NotFound` if the process is dead or ending, also when another has its id by now.
    pub fn open_fd(&self, fd_number: i32) -> io::Result<OwnedFd> {
        self.check_same_process(open_fd_of(self.pid, fd_number))
    }

    /// [`open_fd`](Self::open_fd), for reading only.
    pub fn open_fd_read_only(&self, fd_number: i32) -> io::Result<OwnedFd> {
        self.check_same_process(open_fd_with(self.pid, fd_number, OFlags::RDONLY))
    }

    /// Returns the name of its command as `ps` shows it (at most 15 arbitrary bytes); `None` if it is dead.
    pub fn command(&self) -> io::Result<Option<String>> {
        match fs::read(format!("/proc/{}/comm", self.pid)) {
            Ok(name) if self.runs()? => {
                let name = String::from_utf8_lossy(&name);
                Ok(Some(name.trim_end_matches('\n').to_owned()))
            }
            Ok(_) => Ok(None),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns how long ago it started, to a clock tick.
    pub fn age(&self) -> std::time::Duration {
        let now = clock_gettime(ClockId::Boottime);
        let per_second = clock_ticks_per_second().max(1);
        let nanos = |count: u64| u128::from(count) * 1_000_000_000;
        let started = nanos(self.start_time) / u128::from(per_second);
        let now = nanos(now.tv_sec as u64) + now.tv_nsec as u128;
        let age = now.saturating_sub(started);
        std::time::Duration::from_nanos(u64::try_from(age).unwrap_or(u64::MAX))
    }

    /// Returns `opened`, unless another process may have had the id when it was opened.
    fn check_same_process(&self, opened: io::Result<OwnedFd>) -> io::Result<OwnedFd> {
        match opened {
            // Still alive after the opening: the descriptor is of this process and of no later one.
            Ok(fd) if self.runs()? => Ok(fd),
            Ok(_) => Err(Errno::NOENT.into()),
            // A process that ends gives up its memory before its descriptors. Once the memory is gone, the
            // kernel refuses access to the descriptors to all but privileged processes. To us they are gone.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && self.is_ending() => {
                Err(Errno::NOENT.into())
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether it has begun to end, or is dead. When in doubt the result is false.
    pub fn is_ending(&self) -> bool {
        match read_stat(self.pid) {
            Ok(stat) => stat.start_time != self.start_time || stat.is_ending(),
            Err(error) => is_gone(&error),
        }
    }
}

/// Returns whether the process of a descriptor from [`ProcessId::open_pidfd`] has ended. It needs no other
/// descriptor, so it also works where no more can be opened.
pub fn pidfd_is_dead(pidfd: BorrowedFd<'_>) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::IN)
}

/// The fields of `/proc/PID/stat` that are used here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    flags: u64,
    threads: u64,
    start_time: u64,
}

impl Stat {
    /// Returns whether the process is dead. A zombie is dead. A process whose first thread has ended while other
    /// threads run looks like a zombie, but is alive.
    fn is_dead(&self) -> bool {
        matches!(self.state, b'X' | b'x') || (self.state == b'Z' && self.threads <= 1)
    }

    /// Returns whether the process is dead or about to be.
    fn is_ending(&self) -> bool {
        /// The kernel's flag of a thread that is being shut down.
        const PF_EXITING: u64 = 4;
        self.is_dead() || self.flags & PF_EXITING != 0
    }

    /// Parses a line of `/proc/PID/stat`. Its second field, the command in parentheses, may hold any bytes.
    fn parse(line: &[u8]) -> Option<Self> {
        let after_command = line.iter().rposition(|&byte| byte == b')')? + 1;
        let rest = std::str::from_utf8(&line[after_command..]).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        // Fields are numbered from 1; the first after the command is field 3.
        let state = *fields.next()?.as_bytes().first()?;
        let flags = fields.nth(9 - 4)?.parse().ok()?;
        let threads = fields.nth(20 - 10)?.parse().ok()?;
        let start_time = fields.nth(22 - 21)?.parse().ok()?;
        Some(Self {
            state,
            flags,
            threads,
            start_time,
        })
    }
}

fn read_stat(pid: u32) -> io::Result<Stat> {
    let line = fs::read(format!("/proc/{pid}/stat"))?;
    Stat::parse(&line).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("/proc/{pid}/stat has an unexpected format"),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::{Child, Command, Stdio};

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep")
            .arg("1000")
            .spawn()
            .expect("sleep starts")
    }

    /// Waits until the child has ended, and leaves it a zombie.
    fn await_zombie(child: &Child) {
        let pid = Pid::from_child(child);
        waitid(
            WaitId::Pid(pid),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        )
        .expect("waitid");
    }

    #[test]
    fn we_are_alive_and_another_start_time_is_not_us() {
        let us = ProcessId::current().expect("own stat");
        assert!(us.is_alive());
        assert!(us.open_pidfd().expect("pidfd").is_some());
        let before = ProcessId {
            start_time: us.start_time - 1,
            ..us
        };
        assert!(!before.is_alive());
        assert!(before.open_pidfd().expect("pidfd").is_none());
        assert!(before.open_fd(0).is_err());
    }

    #[test]
    fn a_killed_and_unreaped_child_is_dead() {
        let mut child = sleeper();
        let id = ProcessId::of_pid(child.id()).expect("child's stat");
        assert!(id.is_alive());
        let pidfd = id.open_pidfd().expect("pidfd").expect("alive");
        assert!(!pidfd_is_dead(pidfd.as_fd()));
        child.kill().expect("kill");
        await_zombie(&child);
        assert!(!id.is_alive(), "a zombie is dead");
        assert!(id.open_pidfd().expect("pidfd").is_none());
        assert!(pidfd_is_dead(pidfd.as_fd()));
        child.wait().expect("reap");
        assert!(!id.is_alive(), "a reaped one is too");
        assert!(id.open_pidfd().expect("pidfd").is_none());
    }

    #[test]
    fn descriptors_of_a_dying_process_read_as_gone() {
        for _ in 0..20 {
            let mut sleeper = Command::new("sleep");
            let mut child = sleeper
                .arg("1000")
                .stdin(Stdio::piped())
                .spawn()
                .expect("sleep starts");
            let id = ProcessId::of_pid(child.id()).expect("child's stat");
            id.open_fd_read_only(0).expect("a pipe");
            child.kill().expect("kill");
            let pidfd = id.open_pidfd().expect("pidfd");
            loop {
                // Test for death first, so that the last attempt is on a process that is certainly dead.
                let dead = pidfd
                    .as_ref()
                    .is_none_or(|pidfd| pidfd_is_dead(pidfd.as_fd()));
                if let Err(error) = id.open_fd_read_only(0) {
                    assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
                } else {
                    assert!(!dead);
                }
                if dead {
                    break;
                }
            }
            child.wait().expect("reap");
        }
    }

    #[test]
    fn a_process_has_a_command_and_an_age() {
        let us = ProcessId::current().expect("own stat");
        let name = us.command().expect("/proc").expect("alive");
        assert!(!name.is_empty() && !name.contains('\n'), "{name:?}");
        // The process started after the machine did, and not in the future.
        let before = us.age();
        let booted = ProcessId {
            start_time: 0,
            ..us
        };
        assert!(before > std::time::Duration::ZERO && before < booted.age());
        assert_eq!(booted.command().expect("/proc"), None, "another one");
        let later = ProcessId {
            start_time: u64::MAX,
            ..us
        };
        assert_eq!(later.age(), std::time::Duration::ZERO);
        assert!(later.open_fd_read_only(0).is_err());
    }

    #[test]
    fn nonsense_ids_are_dead() {
        for pid in [0, u32::MAX, 1 << 30] {
            let id = ProcessId { pid, start_time: 1 };
            assert!(!id.is_alive());
            assert!(id.open_pidfd().expect("pidfd").is_none());
        }
    }

    #[test]
    fn the_command_may_hold_anything() {
        let line = b"12 (a) Z 1 (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 77 0 4242 9\n";
        let stat = Stat::parse(line).expect("parses");
        assert_eq!(
            stat,
            Stat {
                state: b'S',
                flags: 6,
                threads: 77,
                start_time: 4242
            }
        );
        assert_eq!(Stat::parse(b""), None);
        assert_eq!(Stat::parse(b"1 (x) S 1 2"), None);
        assert_eq!(Stat::parse(b"1 (x)"), None);
    }
}

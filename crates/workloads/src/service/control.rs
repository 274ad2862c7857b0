//! Processes that are told what to do and say when they have: a line each way, of JSON.

use std::fmt::Debug;
use std::io::{BufRead, Read, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::hosts::start_with;
use super::{Role, failed};
use crate::external::Running;
use crate::transports::ArmError;

/// How often a listener looks whether to go on.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// A process of this program that is told what to do, until it is dropped.
#[derive(Debug)]
pub struct Told {
    running: Option<Running>,
    pid: Pid,
    tells: ChildStdin,
    says: ChildStdout,
    /// What it said and nobody heard.
    heard: Vec<u8>,
}

impl Told {
    /// Starts a process that plays a role.
    pub fn start(role: &Role, cpu: usize, directory: &Path) -> Result<Self, ArmError> {
        let mut running = start_with(role, cpu, directory, Stdio::piped())?;
        let (tells, says) = running.take_pipes().expect("it was started with both");
        Ok(Self {
            pid: running.pid(),
            running: Some(running),
            tells,
            says,
            heard: Vec::new(),
        })
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Tells it something.
    pub fn tell(&mut self, what: &impl Serialize) -> Result<(), ArmError> {
        write(&mut self.tells, what)
    }

    /// Waits until it says `what`; it is an error if it says something else.
    pub fn hear_that<T>(
        &mut self,
        what: T,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<(), ArmError>
    where
        T: DeserializeOwned + Debug + PartialEq,
    {
        let said: T = self.hear(limit, stop)?;
        match said == what {
            true => Ok(()),
            false => Err(ArmError(format!("a process says {said:?}, not {what:?}"))),
        }
    }

    /// Waits for what it says next, for as long as `limit`.
    pub fn hear<T: DeserializeOwned>(
        &mut self,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<T, ArmError> {
        let failed = failed::<std::io::Error>;
        let deadline = Instant::now() + limit;
        loop {
            if let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map_err(|error| ArmError::at("what a process says", error));
            }
            if stop.load(Ordering::Relaxed) {
                return Err(ArmError("interrupted".to_owned()));
            }
            if Instant::now() > deadline {
                return Err(ArmError(format!("a process said nothing in {limit:?}")));
            }
            let mut fds = [PollFd::new(&self.says, PollFlags::IN)];
            match poll(&mut fds, Some(&LOOK)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(ArmError::at("a process", error)),
            }
            let mut bytes = [0; 4096];
            let read = self.says.read(&mut bytes).map_err(failed("a process"))?;
            if read == 0 {
                return Err(self.why(stop));
            }
            self.heard.extend(&bytes[..read]);
        }
    }

    /// Why it has ended: the first line on its standard error.
    fn why(&mut self, stop: &AtomicBool) -> ArmError {
        let ended = self.running.take();
        let ended = ended.map(|running| running.finish(Duration::from_secs(5), stop));
        let last = match ended {
            Some(Ok(finished)) => finished.err.lines().next().map(str::to_owned),
            Some(Err(error)) => Some(error.0),
            None => None,
        };
        ArmError(last.unwrap_or_else(|| "a process ended without a word".to_owned()))
    }
}

/// Says something to the process that started this one.
pub(super) fn say(what: &impl Serialize) -> Result<(), ArmError> {
    write(&mut std::io::stdout(), what)
}

fn write(to: &mut impl Write, what: &impl Serialize) -> Result<(), ArmError> {
    let mut line = serde_json::to_vec(what).map_err(failed("a word"))?;
    line.push(b'\n');
    let written = to.write_all(&line).and_then(|()| to.flush());
    written.map_err(failed("another process"))
}

/// Waits for what this process is told next; `None`: nothing any more.
pub(super) fn told<T: DeserializeOwned>() -> Result<Option<T>, ArmError> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    match read.map_err(failed("standard input"))? {
        0 => Ok(None),
        _ => serde_json::from_str(&line)
            .map(Some)
            .map_err(failed("what this process is told")),
    }
}

//! Other programs: started on a given processor, limited in time, and always ended.

use std::io::Read;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::cpu_affinity::pin_process;
use crate::error::WorkloadError;

/// First argument of a process of this program that runs a probe.
pub(crate) const PROBE: &str = "__experiment-probe";

/// Reason why another program could not be run, in one clear line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SubprocessError(pub String);

impl From<SubprocessError> for WorkloadError {
    fn from(why: SubprocessError) -> Self {
        Self(why.0)
    }
}

/// Makes the command that starts this program as probe `words`.
pub fn child_program(words: &[&str]) -> Result<Command, SubprocessError> {
    let mut command = Command::new(this_program()?);
    command.arg(PROBE).args(words);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    Ok(command)
}

/// Returns the path of this program's file.
pub fn this_program() -> Result<std::path::PathBuf, SubprocessError> {
    std::env::current_exe().map_err(|e| SubprocessError(format!("this program's file: {e}")))
}

/// A child process that is killed when this is dropped.
#[derive(Debug)]
pub struct Subprocess {
    child: Child,
    name: String,
}

/// Result of a program that has ended.
#[derive(Clone, Debug, Default)]
pub struct SubprocessOutput {
    /// Whether its exit code was 0.
    pub success: bool,
    /// Its standard output, unless that was redirected or taken.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Subprocess {
    /// Starts `command` on processor `cpu`. Its output stays in the pipe until it ends, so this is for
    /// programs that write little.
    pub fn start(command: &mut Command, cpu: Option<usize>) -> Result<Self, SubprocessError> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .spawn()
            .map_err(|why| SubprocessError(format!("cannot start {name}: {why}")))?;
        let running = Self { child, name };
        if let Some(cpu) = cpu {
            let pid = Pid::from_child(&running.child);
            pin_process(Some(pid), cpu).map_err(|why| SubprocessError(why.to_string()))?;
        }
        Ok(running)
    }

    /// Returns the process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Takes the child's standard input and output, if both are pipes that were not taken before. After that,
    /// [`finish`](Self::finish) returns no output.
    pub fn take_pipes(&mut self) -> Option<(ChildStdin, ChildStdout)> {
        self.child.stdin.take().zip(self.child.stdout.take())
    }

    /// Returns whether the child has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the child has ended, at most for `limit`, or until `stop` is set.
    pub fn finish(
        mut self,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<SubprocessOutput, SubprocessError> {
        let deadline = Instant::now() + limit;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if stop.load(Ordering::Relaxed) => {
                    return Err(SubprocessError("interrupted".into()));
                }
                Ok(None) if Instant::now() >= deadline => {
                    return Err(SubprocessError(format!(
                        "{} did not finish in {limit:?}",
                        self.name
                    )));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(why) => return Err(SubprocessError(format!("{}: {why}", self.name))),
            }
        };
        Ok(SubprocessOutput {
            success: status.success(),
            out: drained(self.child.stdout.as_mut()),
            err: drained(self.child.stderr.as_mut()),
        })
    }
}

fn drained(pipe: Option<&mut impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Drop for Subprocess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a command whose output is captured.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    static GO: AtomicBool = AtomicBool::new(false);

    #[test]
    fn keeps_output_and_limits_time() {
        let mut echo = command("sh");
        echo.args(["-c", "echo hello; exit 3"]);
        let finished = Subprocess::start(&mut echo, None)
            .unwrap()
            .finish(Duration::from_secs(5), &GO)
            .unwrap();
        assert_eq!(
            (finished.out.as_str(), finished.success),
            ("hello\n", false)
        );
        let mut sleep = command("sleep");
        let sleep = Subprocess::start(sleep.arg("60"), None).unwrap();
        assert!(sleep.finish(Duration::from_millis(5), &GO).is_err());
        let missing = Subprocess::start(&mut command("no-such-program-here"), None).unwrap_err();
        assert!(missing.to_string().contains("no-such-program-here"));
    }
}

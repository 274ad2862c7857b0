//! `headworks demo`: shows in half a minute what Headworks does.

mod bulk_pipe;
mod daemons;
mod echo;
mod many_connections;
mod os_transports;
mod peer_process;
mod small_messages;
mod stall_limit;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, anyhow};
use headworks::net::{Interrupt, Waiter, WakeReason, clock};
use headworks::verbs::{DeviceName, Duration};

use crate::exit_status::{self, interrupted};
use crate::interruptible_sleep::sleep_unless_interrupted;

pub(crate) use peer_process::run as run_child;
use stall_limit::StepCount;

/// Longest wait for the next step of the other process.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval at which the other process is looked at while it ends: its output is closed already.
const END_CHECK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(1);

/// Devices of the demonstration, and the interrupt that ends it.
pub(crate) struct Demo {
    device: DeviceName,
    /// Device of the other process.
    peer: DeviceName,
    interrupt: Interrupt,
}

/// Longest time of one generated load, in seconds, however slow the device is.
const LONGEST_S: u64 = 5;

/// Time limit of one load: [`LONGEST_S`] from its creation.
struct TimeLimit(Instant);

impl TimeLimit {
    fn new() -> Self {
        Self(Instant::now())
    }

    fn is_over(&self) -> bool {
        self.0.elapsed().as_secs() >= LONGEST_S
    }

    fn is_half_over(&self) -> bool {
        self.0.elapsed().as_secs() * 2 >= LONGEST_S
    }
}

/// Load for the operating system's transports.
#[derive(Clone, Copy)]
struct MeasuredLoad {
    /// Number of stream pieces.
    pieces: usize,
    /// Number of round trips.
    trips: u64,
}

impl MeasuredLoad {
    /// Returns the usual stream, reduced to the part that the device managed in time, and a quarter of the
    /// round trips that it managed.
    fn after(bulk: &bulk_pipe::BulkResult, small: &small_messages::SmallMessageResult) -> Self {
        let pieces = (os_transports::PIECES as f64 * bulk.part).ceil() as usize;
        let trips = small.trips / 4;
        Self {
            pieces: pieces.max(64),
            trips: trips.max(100),
        }
    }
}

/// Throughput and latency of one transport.
struct ResultRow {
    name: &'static str,
    gigabytes: f64,
    one_way_ns: f64,
}

/// Runs the whole demonstration.
pub(crate) fn run(
    path: Option<PathBuf>,
    device: DeviceName,
    peer: Option<DeviceName>,
) -> anyhow::Result<()> {
    // Installed before anything exists that a signal could leave behind.
    let interrupt = Interrupt::install().context("catching signals")?;
    if let Some(path) = &path {
        check(path)
            .map_err(|error| exit_status::bad_input(format_args!("{}: {error}", path.display())))?;
    }
    let peer = peer.unwrap_or_else(|| device.clone());
    for device in [&device, &peer] {
        exit_status::check_not_simulated(device)?;
        headworks::open(device)?;
    }
    let demo = Demo {
        device,
        peer,
        interrupt,
    };
    let shown = demo.show(path);
    if shown.is_err() {
        // The other process was killed, by this one or by the Ctrl-C that reaches both. Opening a device
        // removes what the dead left in the registry.
        let _ = headworks::open(&demo.device);
        // Some devices join no registry, but the two processes met there all the same.
        let _ = headworks::registry().map(|fabric| fabric.remove_dead());
    }
    if demo.interrupt.is_raised() {
        // Whatever else failed, failed because of the interrupt.
        return Err(interrupted());
    }
    shown
}

/// Checks that a path is a readable file or directory.
fn check(path: &Path) -> io::Result<()> {
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_dir() {
        path.read_dir().map(drop)
    } else if kind.is_file() {
        File::open(path).map(drop)
    } else {
        Err(io::Error::other("neither a file nor a directory"))
    }
}

impl Demo {
    fn show(&self, path: Option<PathBuf>) -> anyhow::Result<()> {
        print_line(&format!(
            "Headworks on the device {}: two processes, rings of shared memory driven by RDMA verbs.\n",
            self.device
        ));
        self.stream(path)?;
        let small = self.rings()?;
        let bulk = self.bulk()?;
        let load = MeasuredLoad::after(&bulk, &small);
        let mut rows = vec![ResultRow {
            name: "headworks",
            gigabytes: bulk.gigabytes,
            one_way_ns: small.one_way_ns,
        }];
        for kind in os_transports::OS_TRANSPORTS {
            self.progress(&format!("measuring {}", kind.name()));
            rows.push(self.measure_transport(kind, load)?);
        }
        print_line(
            "3. Compared with the operating system's transports, measured just now between the same two\n   processes: a stream in pieces of 256 KiB, and half a round trip of 64 bytes.\n",
        );
        print_line(&format!(
            "   {:<14}{:>12}{:>18}",
            "", "stream", "64 B one way"
        ));
        for row in &rows {
            print_line(&format!(
                "   {:<14}{:>12}{:>15.2} µs",
                row.name,
                speed(row.gigabytes),
                row.one_way_ns / 1000.0
            ));
        }
        self.many()?;
        print_line(
            "\nNext: `headworks pipe listen NAME` here and `headworks pipe connect NAME` in another terminal.",
        );
        Ok(())
    }

    /// Starts this program as the other process, in the role that `args` name.
    fn spawn(&self, args: &[&str]) -> anyhow::Result<PeerProcess> {
        self.spawn_on(&self.peer, args)
    }

    /// Does what [`Demo::spawn`] does, with the given device.
    fn spawn_on(&self, device: &DeviceName, args: &[&str]) -> anyhow::Result<PeerProcess> {
        let child = Command::new("/proc/self/exe")
            .arg("demo-child")
            .arg("--device")
            .arg(device.to_string())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the other process")?;
        Ok(PeerProcess(child))
    }

    fn progress(&self, what: &str) {
        exit_status::write_line(format_args!("   … {what}"));
    }

    /// Fails once Ctrl-C was pressed. Cheap enough to call for every message.
    fn check_interrupt(&self) -> anyhow::Result<()> {
        check_interrupt(Some(&self.interrupt))
    }

    /// Waits until `fd` is readable: the other process has written something, or has connected. `step` names the wait
    /// in the error.
    fn await_readable(&self, fd: &impl AsFd, step: &str) -> anyhow::Result<()> {
        self.await_readable_within(fd, &StepLimit::of(step, PATIENCE))
    }

    fn await_readable_within(&self, fd: &impl AsFd, limit: &StepLimit<'_>) -> anyhow::Result<()> {
        let fds = [fd.as_fd(), self.interrupt.as_fd()];
        let woken = Waiter::default().wait(&fds, Some(limit.until), |_| false);
        let woken = woken.context("waiting for the other process")?;
        self.check_interrupt()?;
        match woken {
            WakeReason::Deadline => Err(limit.passed("did not answer")),
            _ => Ok(()),
        }
    }

    /// Runs an exchange of the step `step` with the other process. It ends with an error once it has counted no
    /// step for [`PATIENCE`].
    fn with_stall_limit<T>(
        &self,
        other: &PeerProcess,
        step: &str,
        exchange: impl FnOnce(&StepCount) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let limit = StepLimit::of(step, PATIENCE);
        stall_limit::with_stall_limit(other, &self.interrupt, &limit, exchange)
    }

    /// Waits for the other process to end, and returns what it wrote. `step` names the wait in the error.
    fn finish(&self, other: PeerProcess, step: &str) -> anyhow::Result<String> {
        self.finish_within(other, &StepLimit::of(step, PATIENCE))
    }

    fn finish_within(
        &self,
        mut other: PeerProcess,
        limit: &StepLimit<'_>,
    ) -> anyhow::Result<String> {
        drop(other.0.stdin.take());
        let mut said = Vec::new();
        if let Some(mut out) = other.0.stdout.take() {
            // It writes one line, or nothing, and ends.
            let mut piece = [0; 1024];
            loop {
                self.await_readable_within(&out, limit)?;
                match out.read(&mut piece) {
                    Ok(0) => break,
                    Ok(len) => said.extend_from_slice(&piece[..len]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error).context("the other process"),
                }
            }
        }
        let status = loop {
            if let Some(status) = other.0.try_wait().context("the other process")? {
                break status;
            }
            if clock::now() >= limit.until {
                return Err(limit.passed("did not end"));
            }
            sleep_unless_interrupted(&self.interrupt, END_CHECK_INTERVAL)?;
            self.check_interrupt()?;
        };
        if status.success() {
            String::from_utf8(said).context("the other process")
        } else {
            Err(anyhow!("the other process failed: {status}"))
        }
    }
}

/// Time limit of a step of the other process.
struct StepLimit<'a> {
    step: &'a str,
    limit: Duration,
    until: headworks::verbs::Instant,
}

impl<'a> StepLimit<'a> {
    fn of(step: &'a str, limit: Duration) -> Self {
        let until = clock::now() + limit;
        Self { step, limit, until }
    }

    /// Returns the error of an exchange that stood still for the limit.
    fn stalled(&self) -> anyhow::Error {
        anyhow!(
            "{}: nothing moved for {} s",
            self.step,
            self.limit.as_secs_f64()
        )
    }

    /// Returns the error of a step that took too long. `what` says what the other process did not do.
    fn passed(&self, what: &str) -> anyhow::Error {
        let seconds = self.limit.as_secs_f64();
        anyhow!("{}: the other process {what} for {seconds} s", self.step)
    }
}

fn check_interrupt(interrupt: Option<&Interrupt>) -> anyhow::Result<()> {
    match interrupt {
        Some(interrupt) if interrupt.is_raised() => Err(interrupted()),
        _ => Ok(()),
    }
}

/// The other process. Dropping this value kills it.
struct PeerProcess(Child);

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // It has ended already, or must end now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Formats a speed given in GB/s, in the unit that suits it.
fn speed(gigabytes: f64) -> String {
    match gigabytes {
        0.1.. => format!("{gigabytes:.2} GB/s"),
        _ => format!("{:.2} MB/s", gigabytes * 1000.0),
    }
}

/// Returns a name that no other process listens under.
fn unique(what: &str) -> String {
    format!("demo-{what}-{}", std::process::id())
}

/// Prints a line of the demonstration. A closed standard output is no failure.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo() -> Demo {
        Demo {
            device: "soft".parse().unwrap(),
            peer: "soft".parse().unwrap(),
            interrupt: Interrupt::install().unwrap(),
        }
    }

    fn process(script: &str) -> PeerProcess {
        let child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        PeerProcess(child.unwrap())
    }

    /// Finishes on a thread, so that a wait without a limit fails the test instead of blocking it.
    fn finished(script: &'static str, limit: Duration) -> Result<String, String> {
        let (to, result) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let limit = StepLimit::of("a step", limit);
            let finished = demo().finish_within(process(script), &limit);
            let _ = to.send(finished.map_err(|error| error.to_string()));
        });
        let limit = std::time::Duration::from_secs(60);
        result.recv_timeout(limit).expect("a wait that ends")
    }

    #[test]
    fn an_exchange_that_stands_still_ends_at_the_limit() {
        let demo = demo();
        let limit = StepLimit::of("a step", Duration::from_millis(500));
        let mut other = process("read line; echo one; exec sleep 1000");
        let (mut to, mut from) = (
            other.0.stdin.take().unwrap(),
            other.0.stdout.take().unwrap(),
        );
        // The process has started before the limit applies.
        to.write_all(b"line\n").unwrap();
        from.read_exact(&mut [0; 4]).unwrap();
        let (ended, result) = std::sync::mpsc::channel();
        let stalled = std::thread::spawn(move || {
            let exchange = |steps: &StepCount| {
                steps.count();
                Ok(from.read(&mut [0])?)
            };
            let stalled = stall_limit::with_stall_limit(&other, &demo.interrupt, &limit, exchange);
            ended.send(stalled.map_err(|error| error.to_string()))
        });
        let limit = std::time::Duration::from_secs(60);
        let expected = "a step: nothing moved for 0.5 s".to_owned();
        assert_eq!(result.recv_timeout(limit), Ok(Err(expected)));
        stalled.join().unwrap().unwrap();
    }

    #[test]
    fn a_process_that_neither_answers_nor_ends_fails_its_step_at_the_limit() {
        const SHORT: Duration = Duration::from_millis(500);
        for (script, what) in [
            ("exec sleep 1000", "did not answer"),
            // It writes, and keeps its output open.
            ("echo one; exec sleep 1000", "did not answer"),
            // It closes its output, and goes on.
            ("exec sleep 1000 >&-", "did not end"),
        ] {
            let expected = format!("a step: the other process {what} for 0.5 s");
            assert_eq!(finished(script, SHORT), Err(expected), "{script}");
        }
        // The end of its input ends this one.
        let said = finished("read line; echo one; echo two", PATIENCE);
        assert_eq!(said.as_deref(), Ok("one\ntwo\n"));
        let failed = finished("exit 3", PATIENCE).unwrap_err();
        assert!(failed.contains("failed: exit status: 3"), "{failed}");
    }
}

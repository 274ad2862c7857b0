//! `headworks demo`: what this is, shown in half a minute.

mod child;
mod peers;
mod rings;
mod stream;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, anyhow};
use headworks::stage::Interrupt;
use headworks::verbs::DeviceName;

use crate::fail::Exit;

pub(crate) use child::run as run_child;

/// What the demonstration runs with.
pub(crate) struct Demo {
    device: DeviceName,
    interrupt: Interrupt,
}

/// Throughput and latency of one way of passing bytes.
struct Row {
    name: &'static str,
    gigabytes: f64,
    one_way_ns: f64,
}

/// Shows everything.
pub(crate) fn run(path: Option<PathBuf>, device: DeviceName) -> anyhow::Result<()> {
    headworks::open(&device).map_err(crate::fail::bad_input)?;
    if let Some(path) = &path
        && let Err(error) = std::fs::metadata(path)
    {
        return Err(crate::fail::bad_input(format!(
            "{}: {error}",
            path.display()
        )));
    }
    let interrupt = Interrupt::install().context("catching signals")?;
    let demo = Demo { device, interrupt };
    let shown = demo.show(path);
    if demo.interrupt.is_raised() {
        // Whatever broke, broke because of it.
        let line = "interrupted".to_owned();
        return Err(Exit { code: 130, line }.into());
    }
    shown
}

impl Demo {
    fn show(&self, path: Option<PathBuf>) -> anyhow::Result<()> {
        say(&format!(
            "Headworks on the device {}: two processes, rings of shared memory driven by RDMA verbs.\n",
            self.device
        ));
        self.stream(path)?;
        let small = self.rings()?;
        let mut rows = vec![Row {
            name: "headworks",
            gigabytes: self.bulk()?,
            one_way_ns: small.one_way_ns,
        }];
        for kind in peers::KINDS {
            self.progress(&format!("measuring {}", kind.name()));
            rows.push(self.peer(kind)?);
        }
        say(
            "3. Beside what the operating system offers, measured just now between the same two\n   processes: a stream in pieces of 256 KiB, and 64 bytes there and back, halved.\n",
        );
        say(&format!(
            "   {:<14}{:>12}{:>18}",
            "", "stream", "64 B one way"
        ));
        for row in &rows {
            say(&format!(
                "   {:<14}{:>7.2} GB/s{:>15.2} µs",
                row.name,
                row.gigabytes,
                row.one_way_ns / 1000.0
            ));
        }
        say(
            "\nNext: `headworks pipe listen NAME` here and `headworks pipe connect NAME` in another terminal.",
        );
        Ok(())
    }

    /// Starts this program as the other process, in the role that `args` say.
    fn spawn(&self, args: &[&str]) -> anyhow::Result<Started> {
        let child = Command::new("/proc/self/exe")
            .arg("demo-child")
            .arg("--device")
            .arg(self.device.to_string())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the other process")?;
        Ok(Started(child))
    }

    fn progress(&self, what: &str) {
        eprintln!("   … {what}");
    }
}

/// The other process; it does not outlive this value.
struct Started(Child);

impl Started {
    /// Waits for its end, and answers what it said.
    fn finish(mut self) -> anyhow::Result<String> {
        drop(self.0.stdin.take());
        let mut said = String::new();
        if let Some(mut out) = self.0.stdout.take() {
            std::io::Read::read_to_string(&mut out, &mut said).context("the other process")?;
        }
        let status = self.0.wait().context("the other process")?;
        if status.success() {
            Ok(said)
        } else {
            Err(anyhow!("the other process failed: {status}"))
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It has ended already, or must now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A name that nobody else listens under.
fn unique(what: &str) -> String {
    format!("demo-{what}-{}", std::process::id())
}

/// A line of the demonstration; a reader that has seen enough is no failure.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

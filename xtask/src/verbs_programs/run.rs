//! Runs the programs on the drop-in library.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::declared::{Group, How, Program, Shows};
use super::outputs::{self, PythonTests};
use super::table::{Count, Row};

/// Longest run of one set of options. A slow machine needs far less, so only a hang exceeds it.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest run of all tests of pyverbs together.
const PYTHON_LIMIT: Duration = Duration::from_secs(300);
/// Reports after which a program without end works.
const REPORTS: usize = 2;

/// The interpreter that Debian's python3-pyverbs is for.
const PYTHON: &str = "/usr/bin/python3";
/// The tests of pyverbs, as the package installs them.
const PYTHON_FOLDER: &str = "/usr/share/doc/rdma-core/tests";
/// Unpacks and runs them.
const PYTHON_SCRIPT: &str = include_str!("python_tests.py");

/// The command `headworks`, with the library beside it.
#[derive(Debug)]
pub(super) struct DropIn {
    pub(super) headworks: PathBuf,
}

impl DropIn {
    /// Runs one program with all its sets of options. `tell` gets a line for each run that does not work.
    pub(super) fn row(
        &self,
        program: &Program,
        tell: &mut impl FnMut(&str),
    ) -> Result<Row, String> {
        let count = match installed(program) {
            false => None,
            true if program.how == How::PythonTests => Some(count_of(&self.python_tests()?)),
            true => Some(self.count(program, tell)?),
        };
        Ok(Row {
            title: program.title.to_owned(),
            package: program.package.to_owned(),
            count,
        })
    }

    fn count(&self, program: &Program, tell: &mut impl FnMut(&str)) -> Result<Count, String> {
        let mut count = Count::default();
        for group in program.groups {
            for options in group.options {
                let folder = tempfile::tempdir().map_err(|error| format!("a folder: {error}"))?;
                let words = format!("{} {options}", group.always);
                count.run += 1;
                let said = format!("{} {}", program.command, words.trim());
                let once = || self.one(program, group, words.trim(), folder.path());
                // Some programs measure for a moment only, and fail if the machine does something else meanwhile.
                let tried = once().or_else(|why| {
                    tell(&format!("{said}: {why}; again"));
                    once()
                });
                match tried {
                    Ok(()) => count.worked += 1,
                    Err(why) => {
                        tell(&format!("{said}: {why}"));
                        let shown = match options.is_empty() {
                            true => group.always,
                            false => options,
                        };
                        count.notes.push(format!("`{shown}`: {why}"));
                    }
                }
            }
        }
        Ok(count)
    }

    /// Runs one set of options. The error is the reason why it does not work.
    fn one(
        &self,
        program: &Program,
        group: &Group,
        options: &str,
        folder: &Path,
    ) -> Result<(), String> {
        let start = |words: &str| {
            let mut command = self.command(program.link, folder);
            command.envs(program.environment.iter().copied());
            if group.is_endless {
                // Otherwise the reports stay in the program's buffer until it ends.
                command.args(["stdbuf", "-oL"]);
            }
            command.arg(program.command).args(words.split_whitespace());
            Process::start(&mut command)
        };
        let (server, client, ends) = match program.how {
            How::Pair { server, client } => (server, client, !group.is_endless),
            How::Served { server, client } => (server, client, false),
            How::Alone | How::PythonTests => {
                return start(options)?.works(program.shows, false);
            }
        };
        let port = free_port()?;
        let fill = |text: &str| {
            text.replace("{port}", &port.to_string())
                .replace("{options}", options)
        };
        let mut server = start(&fill(server))?;
        server.await_listener(port)?;
        start(&fill(client))?.works(program.shows, group.is_endless)?;
        if ends {
            let status = server.until(LIMIT, |_| false)?;
            server.check(status, "the server: ")?;
        }
        Ok(())
    }

    /// Runs the tests of pyverbs.
    pub(super) fn python_tests(&self) -> Result<PythonTests, String> {
        let folder = tempfile::tempdir().map_err(|error| format!("a folder: {error}"))?;
        let mut command = self.command("ethernet", folder.path());
        command
            .args([PYTHON, "-c", PYTHON_SCRIPT, PYTHON_FOLDER])
            .arg(folder.path().join("tests"));
        let mut process = Process::start(&mut command)?;
        let status = process.until(PYTHON_LIMIT, |_| false)?;
        let read = PythonTests::read(process.lines.iter().map(String::as_str));
        match read.has_ended {
            true => Ok(read),
            false => Err(process
                .check(status, "")
                .err()
                .unwrap_or_else(|| "the tests of pyverbs did not end".to_owned())),
        }
    }

    /// `headworks verbs` on a registry of its own. It ends when this process ends.
    fn command(&self, link: &str, folder: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(&self.headworks)
            .args(["verbs", "--link", link, "--"])
            .env("HEADWORKS_FABRIC", folder.join("registry"))
            .current_dir(folder);
        command
    }
}

/// A shell script that runs the tests of pyverbs on the kernel's device `rxe0`, in the virtual machine.
pub(super) fn python_tests_on_rxe() -> String {
    let quoted = crate::rxe::quoted;
    // The GID at index 0 has no route: the machine has no IPv6.
    format!(
        "exec {PYTHON} -c {} {PYTHON_FOLDER} /tmp/pyverbs/tests --dev rxe0 --gid 1\n",
        quoted(PYTHON_SCRIPT)
    )
}

/// The row's count for the tests of pyverbs: each test is a set of options, and a skipped test did not work.
fn count_of(tests: &PythonTests) -> Count {
    let mut notes = vec![format!("{} are skipped", tests.skipped())];
    notes.extend(tests.failed().map(|(name, why)| {
        let name = name.rsplit('.').next().unwrap_or(name);
        format!("`{name}`: {}", tidy(why))
    }));
    Count {
        run: tests.tests.len(),
        worked: tests.passed(),
        notes,
    }
}

/// Whether the program is installed.
pub(super) fn installed(program: &Program) -> bool {
    if program.how != How::PythonTests {
        let path = std::env::var_os("PATH").unwrap_or_default();
        return std::env::split_paths(&path).any(|folder| folder.join(program.command).is_file());
    }
    let mut import = Command::new(PYTHON);
    import.args(["-c", "import pyverbs.device"]);
    let imported = import.stdin(Stdio::null()).output();
    Path::new(PYTHON_FOLDER).is_dir() && imported.is_ok_and(|done| done.status.success())
}

/// A process, with what it has printed. It is killed when dropped.
struct Process {
    child: Child,
    incoming: Receiver<String>,
    lines: Vec<String>,
}

impl Process {
    fn start(command: &mut Command) -> Result<Self, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        let (lines, incoming) = channel();
        let (out, errors) = (child.stdout.take(), child.stderr.take());
        out.into_iter().for_each(|out| pass(out, lines.clone()));
        errors
            .into_iter()
            .for_each(|errors| pass(errors, lines.clone()));
        Ok(Self {
            child,
            incoming,
            lines: Vec::new(),
        })
    }

    /// Reads what the process prints until it ends, or until `stop` returns `true` for a line. Returns its exit status if it ended.
    fn until(
        &mut self,
        limit: Duration,
        mut stop: impl FnMut(&str) -> bool,
    ) -> Result<Option<ExitStatus>, String> {
        let deadline = Instant::now() + limit;
        let late = || format!("no end after {} s", limit.as_secs());
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.incoming.recv_timeout(left) {
                Ok(line) => {
                    let is_last = stop(&line);
                    self.lines.push(line);
                    if is_last {
                        return Ok(None);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Err(late()),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // It has closed its output, so its end is near.
        loop {
            let ended = self.child.try_wait();
            if let Some(status) = ended.map_err(|error| error.to_string())? {
                return Ok(Some(status));
            }
            if Instant::now() > deadline {
                return Err(late());
            }
            thread::yield_now();
        }
    }

    /// Lets the process run and checks that it works.
    fn works(mut self, shows: Shows, is_endless: bool) -> Result<(), String> {
        let mut left = REPORTS;
        let status = self.until(LIMIT, |line| {
            left -= usize::from(is_endless && outputs::is_report(line));
            left == 0
        })?;
        if is_endless && status.is_some() {
            return Err(self.reason("ended"));
        }
        self.check(status, "")?;
        let mut lines = self.lines.iter().map(String::as_str);
        let shown = match shows {
            Shows::Text(text) => lines.any(|line| line.contains(text)),
            Shows::Results => outputs::are_results(lines),
            Shows::Report => lines.any(outputs::is_report),
        };
        match shown && !outputs::has_wrong_data(self.lines.iter().map(String::as_str)) {
            true => Ok(()),
            false => Err(self.reason("printed no result")),
        }
    }

    /// Checks the exit status of a process that ended.
    fn check(&self, status: Option<ExitStatus>, whose: &str) -> Result<(), String> {
        match status {
            Some(status) if !status.success() => {
                Err(format!("{whose}{}", self.reason(&status.to_string())))
            }
            _ => Ok(()),
        }
    }

    /// The line that tells best why the process did not work, or else `otherwise`.
    fn reason(&self, otherwise: &str) -> String {
        let line = outputs::reason(self.lines.iter().map(String::as_str));
        line.map_or_else(|| otherwise.to_owned(), tidy)
    }

    /// Waits until some process listens on a TCP port. A connection would be taken for the client.
    fn await_listener(&mut self, port: u16) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        let wanted = format!(":{port:04X} ");
        let listens = |table: &str| {
            let text = fs::read_to_string(table).unwrap_or_default();
            let mut lines = text.lines();
            // 0A is the state LISTEN.
            lines.any(|line| line.contains(&wanted) && line.contains(" 0A "))
        };
        while !["/proc/net/tcp", "/proc/net/tcp6"].into_iter().any(listens) {
            let ended = self.child.try_wait();
            if let Some(status) = ended.map_err(|error| error.to_string())? {
                self.until(LIMIT, |_| false)?;
                return Err(format!("the server: {}", self.reason(&status.to_string())));
            }
            if Instant::now() > deadline {
                return Err("the server does not listen".to_owned());
            }
            thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes the lines of a stream on, from a thread of its own.
fn pass(stream: impl Read + Send + 'static, lines: Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            if lines.send(line).is_err() {
                break;
            }
        }
    });
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0));
    let address = listener.and_then(|listener| listener.local_addr());
    let address = address.map_err(|error| format!("no free TCP port: {error}"))?;
    Ok(address.port())
}

/// A reason that is the same in each run and fits in a table: without numbers of processes, times and the like, and short.
fn tidy(line: &str) -> String {
    const LENGTH_MAX: usize = 100;
    let line = line.replace('|', "/").replace('`', "'");
    // UCX begins its messages with "[1764468000.123456] [host:1234 :0]  file.c:57   UCX  ERROR ".
    let line = line
        .rsplit_once(" ERROR ")
        .map_or(line.as_str(), |(_, message)| message);
    let words: Vec<_> = line.split_whitespace().collect();
    words.join(" ").chars().take(LENGTH_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        Process::start(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn a_program_works_if_it_succeeds_and_shows_a_result() {
        let result = Shows::Text("Mbit/sec");
        assert_eq!(shell("echo 12 Mbit/sec").works(result, false), Ok(()));
        let failed = shell("echo 12 Mbit/sec; echo Failed to connect >&2; exit 3");
        assert_eq!(
            failed.works(result, false),
            Err("Failed to connect".to_owned())
        );
        assert!(
            shell("exit 3")
                .works(result, false)
                .unwrap_err()
                .contains('3')
        );
        assert_eq!(
            shell("echo 12").works(result, false),
            Err("printed no result".to_owned())
        );
        let wrong = shell("echo invalid data in page 0; echo 12 Mbit/sec");
        assert_eq!(
            wrong.works(result, false),
            Err("invalid data in page 0".to_owned())
        );
    }

    #[test]
    fn an_endless_program_works_once_it_has_reported_twice() {
        let report = "echo 64 50 1.5 1.25;";
        let endless = shell(&format!("{report} {report} while :; do :; done"));
        assert_eq!(endless.works(Shows::Report, true), Ok(()));
        let ended = shell(report);
        assert_eq!(ended.works(Shows::Report, true), Err("ended".to_owned()));
    }

    #[test]
    fn a_server_that_ends_before_it_listens_tells_why() {
        let port = free_port().unwrap();
        let mut server = shell("echo no such option; exit 1");
        let said = server.await_listener(port).unwrap_err();
        assert_eq!(said, "the server: no such option");
    }

    #[test]
    fn a_process_that_hangs_is_late() {
        let mut hung = shell("while :; do :; done");
        let said = hung.until(Duration::from_millis(10), |_| false);
        assert_eq!(said.unwrap_err(), "no end after 0 s");
    }

    #[test]
    fn reasons_fit_in_a_table() {
        assert_eq!(tidy("a  `b` | c "), "a 'b' / c");
        assert_eq!(
            tidy("[1764468000.1] [host:1 :0]  libperf.c:99   UCX  ERROR unsupported"),
            "unsupported"
        );
        assert_eq!(tidy(&"x".repeat(300)).len(), 100);
    }
}

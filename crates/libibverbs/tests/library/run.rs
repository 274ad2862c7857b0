//! Runs programs with the library on a fabric of their own.

use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest run of a program. It is far longer than the slowest machine needs, so that only a hang fails.
const LIMIT: Duration = Duration::from_secs(90);

/// The library that cargo built for these tests.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let library = test.with_file_name("libibverbs.so");
    assert!(library.is_file(), "{} is missing", library.display());
    library
}

/// Whether `program` is installed. If not, prints that the test is skipped; fails if `HEADWORKS_REQUIRE` names it.
pub(crate) fn there_is(program: &str) -> bool {
    let mut asked = Command::new(program);
    asked.arg("--version").stdin(Stdio::null());
    asked.stdout(Stdio::null()).stderr(Stdio::null());
    let Err(error) = asked.status() else {
        return true;
    };
    println!("skipped: {program}: {error}");
    let required = std::env::var("HEADWORKS_REQUIRE").unwrap_or_default();
    let required = required.split(',').any(|word| word == program);
    assert!(!required, "{program} is required: {error}");
    false
}

/// A private fabric for programs with the library.
pub(crate) struct Fabric {
    folder: tempfile::TempDir,
    /// Value of `HEADWORKS_VERBS_DEVICES`.
    pub(crate) devices: &'static str,
    /// Value of `HEADWORKS_VERBS_LINK`.
    pub(crate) link: &'static str,
}

/// Exit code and output of a program that has ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
}

impl Fabric {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            devices: "headworks_0",
            link: "ethernet",
        }
    }

    /// A path in the fabric's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command that runs with the library.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let (program, arguments) = words.split_first().expect("a program");
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("LD_PRELOAD", library())
            .env("HEADWORKS_FABRIC", self.file("fabric"))
            .env("HEADWORKS_VERBS_DEVICES", self.devices)
            .env("HEADWORKS_VERBS_LINK", self.link)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a program that must succeed, and returns what it printed.
    pub(crate) fn good(&self, words: &[&str]) -> String {
        let ended = end(self.command(words).spawn().expect("starts"));
        assert_eq!(ended.code, Some(0), "{words:?}: {}", ended.text);
        ended.text
    }

    /// Runs a program as server and as client, both of which must succeed, and returns what the client printed. The programs take the
    /// port after `-p`, and the client the server's address last.
    pub(crate) fn pair(&self, words: &[&str]) -> String {
        let port = free_port();
        let text = port.to_string();
        let mut all = words.to_vec();
        all.extend(["-p", &text]);
        let server = Killed(Some(self.command(&all).spawn().expect("starts")));
        await_listener(port, &all);
        all.push("localhost");
        let client = end(self.command(&all).spawn().expect("starts"));
        assert_eq!(client.code, Some(0), "client {all:?}: {}", client.text);
        let server = server.end();
        assert_eq!(server.code, Some(0), "server {all:?}: {}", server.text);
        client.text
    }
}

/// A process that is killed when dropped.
pub(crate) struct Killed(pub(crate) Option<Child>);

impl Killed {
    pub(crate) fn end(mut self) -> Ended {
        end(self.0.take().expect("is there"))
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits for a process to end. Fails if it takes too long.
pub(crate) fn end(mut child: Child) -> Ended {
    let began = Instant::now();
    // The programs print less than a pipe holds.
    let status = loop {
        if let Some(status) = child.try_wait().expect("waits") {
            break status;
        }
        if began.elapsed() > LIMIT {
            let _ = child.kill();
        }
        std::thread::yield_now();
    };
    let mut text = String::new();
    for stream in [
        child
            .stdout
            .take()
            .map(|out| Box::new(out) as Box<dyn Read>),
        child
            .stderr
            .take()
            .map(|err| Box::new(err) as Box<dyn Read>),
    ]
    .into_iter()
    .flatten()
    {
        let mut stream = stream;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("reads");
        text += &String::from_utf8_lossy(&bytes);
    }
    Ended {
        code: status.code(),
        text,
    }
}

/// Standard output of a tool that must succeed.
pub(crate) fn text_of(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("binds");
    listener.local_addr().expect("an address").port()
}

/// Waits until some process listens on a TCP port. A connection would be taken for the client.
fn await_listener(port: u16, words: &[&str]) {
    let began = Instant::now();
    let wanted = format!(":{port:04X} ");
    let listens = |table: &str| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        let mut lines = text.lines();
        lines.any(|line| line.contains(&wanted) && line.contains(" 0A "))
    };
    while !["/proc/net/tcp", "/proc/net/tcp6"].into_iter().any(listens) {
        assert!(began.elapsed() < LIMIT, "{words:?} does not listen");
        std::thread::yield_now();
    }
}

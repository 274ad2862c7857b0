//! The guides must show the example programs exactly as they are built here. The programs of docs/services.md
//! must do what the page says, through two daemons.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SERVERS: [&str; 2] = ["service_echo", "service_echo_poll"];
const CLIENT: &str = "service_echo_client";

#[test]
fn the_guides_show_programs_as_they_are() {
    let files = [SERVERS[0], SERVERS[1], CLIENT].map(|name| format!("examples/{name}.rs"));
    let shown = files.iter().map(|file| ("services", &**file));
    for (page, file) in shown.chain([("testing-your-rdma-code", "tests/fault_injection.rs")]) {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let read = |path: &str| fs::read_to_string(package.join(path)).expect("a file");
        let (page, program) = (read(&format!("../docs/{page}.md")), read(file));
        // Skip the first line: the page describes the program in its own words instead of the module's
        // documentation.
        let (_, program) = program.split_once("\n").expect("code");
        assert!(
            page.contains(program.trim_start()),
            "no guide shows {file} as it is"
        );
    }
}

#[test]
fn either_server_echoes_to_several_clients() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |host| folder.path().join(format!("{host}.sock"));
    let (_first, port) = start_daemon(folder.path(), 0, "0", &at(0));
    let (_second, _) = start_daemon(folder.path(), 1, &port, &at(1));
    for server in SERVERS {
        let (_server, line) = start(example(server).env("HEADWORKS_DAEMON", at(1)));
        assert_eq!(line, "listening on port 7000\n");
        let texts = ["over the weir".to_owned(), "x".repeat(100_000)];
        let clients: Vec<_> = (0..6)
            .map(|number| {
                let text = &texts[number % 2];
                let client = example(CLIENT)
                    .args(["127.0.0.2:7000", text])
                    .env("HEADWORKS_DAEMON", at(0))
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("starts");
                (client, text)
            })
            .collect();
        for (client, text) in clients {
            let output = client.wait_with_output().expect("ends");
            assert!(output.status.success(), "{server}");
            assert_eq!(output.stdout, format!("{text}\n").into_bytes(), "{server}");
        }
    }
}

/// A process that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a daemon as the examples do, and returns the port at which it serves other daemons.
fn start_daemon(folder: &Path, host: u32, port: &str, socket: &Path) -> (Killed, String) {
    let mut command = example("migration");
    command
        .args(["daemon", &host.to_string(), port])
        .arg(socket)
        .env("HEADWORKS_FABRIC", folder.join("fabric"));
    let (daemon, line) = start(&mut command);
    let port = line.trim_end().rsplit(' ').next().expect("a port");
    (daemon, port.to_owned())
}

/// Starts a program, and returns the first line that it prints.
fn start(command: &mut Command) -> (Killed, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
    let stdout = child.stdout.take().expect("a pipe");
    let child = Killed(child);
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    (child, line)
}

/// A command that runs an example. `cargo test` builds the examples beside the folder of this test.
fn example(name: &str) -> Command {
    let this = std::env::current_exe().expect("this program");
    let target: PathBuf = this.ancestors().nth(2).expect("a target folder").into();
    Command::new(target.join("examples").join(name))
}

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, mkfifoat};

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// A directory with a script in it.
struct Script {
    directory: tempfile::TempDir,
}

impl Script {
    fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let script = Self { directory };
        let path = script.path("run");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("is written");
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&path, mode).expect("is allowed");
        script
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn words(&self, arguments: &[&str]) -> Vec<String> {
        let program = self.path("run").to_str().expect("a path").to_owned();
        let arguments = arguments.iter().map(ToString::to_string);
        std::iter::once(program).chain(arguments).collect()
    }
}

fn error(words: &[String], limit: Duration) -> String {
    let done = Runner::default().run(words, limit, None);
    done.expect_err("the command fails").to_string()
}

#[test]
fn arguments_arrive_as_they_are() {
    let script = Script::new("printf '%s\\n' \"$@\" > \"$(dirname \"$0\")/got\"");
    let words = script.words(&["a b", "$HOME", "*", ""]);
    Runner::default().run(&words, LONG, None).expect("runs");
    let got = std::fs::read_to_string(script.path("got")).expect("was run");
    assert_eq!(got, "a b\n$HOME\n*\n\n");
}

#[test]
fn a_failure_has_the_status_and_the_last_line() {
    let script = Script::new("echo first >&2; printf 'last \\033[1m one\\n\\n' >&2; exit 3");
    let line = error(&script.words(&[]), LONG);
    assert!(
        line.ends_with("run: exit status: 3: last [1m one"),
        "{line}"
    );
    let line = error(&["/no/such/program".to_owned()], LONG);
    assert!(
        line.starts_with("/no/such/program cannot be run: No such file"),
        "{line}"
    );
}

#[test]
fn a_command_that_says_much_does_not_stop() {
    let script = Script::new(
        "i=0; while [ $i -lt 4000 ]; do echo 0123456789012345678901234567890123456789 >&2; i=$((i+1)); done; echo the end >&2; exit 1",
    );
    let line = error(&script.words(&[]), LONG);
    assert!(line.ends_with(": exit status: 1: the end"), "{line}");
}

#[test]
fn a_command_that_hangs_is_killed_with_what_it_started() {
    // The script and its child hold a pipe for as long as they live.
    let script =
        Script::new("exec 9>\"$(dirname \"$0\")/pipe\"; echo holds >&2; sleep 1000 & wait");
    let pipe = script.path("pipe");
    mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).expect("a pipe");
    // Opened for both, so that opening waits for nobody.
    let held = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&pipe)
        .expect("opens");
    let mut reader = std::fs::File::open(&pipe).expect("opens");
    let line = error(&script.words(&[]), Duration::from_millis(1500));
    assert!(
        line.ends_with("run was killed after 1500 ms: holds"),
        "{line}"
    );
    drop(held);
    assert_eq!(
        reader.read(&mut [0]).expect("is read"),
        0,
        "nobody holds it"
    );
}

#[test]
fn a_command_is_killed_when_the_daemon_ends() {
    let script = Script::new("sleep 1000");
    let cancel = EventFd::new().expect("a descriptor");
    cancel.signal();
    let done = Runner::default().run(&script.words(&[]), LONG, Some(&cancel));
    let line = done.expect_err("it is killed").to_string();
    assert!(
        line.ends_with("run was killed because the daemon ends"),
        "{line}"
    );
}

#[test]
fn names_of_a_device_come_from_sysfs() {
    let root = tempfile::tempdir().expect("a directory");
    let bus = root.path().join("bus/0000:04:00.0");
    std::fs::create_dir_all(bus.join("net/ens1")).expect("made");
    let own = root.path().join("class/mlx5_0");
    std::fs::create_dir_all(&own).expect("made");
    symlink("../../bus/0000:04:00.0", own.join("device")).expect("made");
    let name = |device: &str, placeholder| {
        let device: DeviceName = device.parse().expect("a name");
        name_of(&device, &root.path().join("class"), placeholder)
    };
    assert_eq!(
        name("ibv:mlx5_0", Placeholder::Device).as_deref(),
        Ok("mlx5_0")
    );
    assert_eq!(
        name("ibv:mlx5_0", Placeholder::Pci).as_deref(),
        Ok("0000:04:00.0")
    );
    assert_eq!(
        name("ibv:mlx5_0", Placeholder::Netdev).as_deref(),
        Ok("ens1")
    );
    assert_eq!(name("soft:h1", Placeholder::Device).as_deref(), Ok("h1"));
    std::fs::create_dir(bus.join("net/ens2")).expect("made");
    for (device, placeholder, why) in [
        (
            "soft:h1",
            Placeholder::Pci,
            "{pci}: soft:h1 is no RNIC; write",
        ),
        (
            "ibv",
            Placeholder::Device,
            "{device}: ibv names no device; write",
        ),
        (
            "ibv:mlx5_0",
            Placeholder::Netdev,
            "{netdev}: ibv:mlx5_0 has several network devices; write",
        ),
        (
            "ibv:mlx5_1",
            Placeholder::Netdev,
            "{netdev}: ibv:mlx5_1 has no network device; write",
        ),
        (
            "ibv:mlx5_1",
            Placeholder::Pci,
            "{pci}: ibv:mlx5_1 is not in sysfs: No such file",
        ),
    ] {
        let line = name(device, placeholder).expect_err("no name");
        assert!(line.starts_with(why), "{line}");
    }
}

//! Runs the programs, each with its server and two daemons.

use std::path::PathBuf;
use std::process::Command;

/// Returns the path of a program, which is built with this test.
fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this test");
    let folder = own.ancestors().nth(2).expect("the folder of the profile");
    folder.join("examples").join(name)
}

fn run(name: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(program(name));
    command.args(args).env("TMPDIR", folder.path());
    command.env("HEADWORKS_FABRIC", folder.path().join("fabric"));
    let done = command.output().expect("runs");
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("lists").collect();
    let left: Vec<_> = left.into_iter().flatten().map(|one| one.path()).collect();
    assert!(left.is_empty(), "{name} left {left:?}");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (done.status.code(), text(done.stdout), text(done.stderr))
}

#[test]
fn hyper_serves_both_versions_of_http() {
    let (code, out, complaint) = run("http_tasks", &["100"]);
    assert_eq!((code, &*complaint), (Some(0), ""));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    assert!(
        lines[0].starts_with("100 requests of HTTP/1.1 in "),
        "{out}"
    );
    assert!(
        lines[1].starts_with("100 requests of HTTP/2.0 in "),
        "{out}"
    );
}

#[test]
fn tonic_serves_grpc() {
    let (code, out, complaint) = run("grpc_echo", &["100"]);
    assert_eq!((code, &*complaint), (Some(0), ""));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    assert!(lines[0].starts_with("1 in flight: "), "{out}");
    assert!(lines[1].starts_with("64 in flight: "), "{out}");
}

#[test]
fn wrong_arguments_are_named() {
    for name in ["http_tasks", "grpc_echo"] {
        for args in [&["0"][..], &["x"], &["1", "2"], &["serve", "--port"]] {
            let (code, out, complaint) = run(name, args);
            assert_eq!((code, &*out), (Some(2), ""), "{name} {args:?}: {complaint}");
            assert_eq!(complaint.lines().count(), 1, "{complaint}");
        }
    }
}

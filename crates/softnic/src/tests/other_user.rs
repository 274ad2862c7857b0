//! Another user of the same machine cannot use this user's fabric, and has a fabric of their own.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::child::PeerTestProcess;
use super::*;

const NOBODY: u32 = 65534;
const AS_NOBODY: [&str; 4] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];

/// Prints why the test is skipped. Fails if HEADWORKS_REQUIRE names `other-user`.
fn skip(why: &str) {
    println!("skipped: {why}");
    let required = std::env::var("HEADWORKS_REQUIRE").unwrap_or_default();
    let required = required.split(',').any(|word| word == "other-user");
    assert!(!required, "other-user is required: {why}");
}

/// Copies this program to where other users can start it. The error says why they cannot.
fn program_for_others(folder: &Path) -> Result<PathBuf, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can be somebody else".to_owned());
    }
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.join("tests");
    // A file that this process wrote could still be open in a child that another thread forked meanwhile,
    // and would not start.
    let own = std::env::current_exe().unwrap();
    let copied = Command::new("cp").args([&own, &program]).status().unwrap();
    assert!(copied.success(), "cp: {copied}");
    let [setpriv, args @ ..] = AS_NOBODY;
    let tried = Command::new(setpriv)
        .args(args)
        .arg(&program)
        .arg("--help")
        .stdout(Stdio::null())
        .status();
    match tried {
        Ok(status) if status.success() => Ok(program),
        Ok(status) => Err(format!("setpriv cannot start the program: {status}")),
        Err(error) => Err(format!("setpriv: {error}")),
    }
}

#[test]
fn another_user_reaches_nothing_of_ours_and_has_a_fabric_of_his_own() {
    let fabric = Fabric::new();
    let program = match program_for_others(fabric.folder.path()) {
        Ok(program) => program,
        Err(why) => return skip(&why),
    };
    let ours = TestQp::new(fabric.open("soft:h3"), None, 16);
    let theirs = tempfile::tempdir().unwrap();
    chown(theirs.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut launcher = Command::new(AS_NOBODY[0]);
    launcher.args(&AS_NOBODY[1..]).arg(&program);
    let mut others = ["h1", "h2"].map(|host| {
        let mut launcher = Command::new(AS_NOBODY[0]);
        launcher.args(&AS_NOBODY[1..]).arg(&program);
        PeerTestProcess::start_by(launcher, theirs.path(), host)
    });
    // Among themselves everything works as usual, also under the same names as ours.
    let [a, b] = &mut others;
    PeerTestProcess::join_each_other(a, b);
    for _ in 0..2 {
        a.tell("write-far");
        assert_eq!(a.hears("wrote"), ["Success"]);
    }
    // They see nothing of ours, and cannot open any of it.
    let pid = std::process::id();
    let table = std::os::fd::AsRawFd::as_raw_fd(&ours.device.context.table.shared().fd());
    let folder = fabric.folder.path().display();
    a.tell(&format!("intrude {folder} {pid} {table}"));
    let said = a.hears("kept-out").join(" ");
    assert!(said.contains("belongs to user 0"), "{said}");
    assert!(said.contains("ermission denied"), "{said}");
    // Nor can they reach a queue pair by its number: it is in another fabric.
    let gid = u128::from_be_bytes(ours.device.info().gid.0);
    a.tell(&format!("seek {gid} {}", ours.qp.qpn().raw()));
    assert_eq!(a.hears("sought"), ["nobody"]);
    drop(others);
    drop(ours);
}

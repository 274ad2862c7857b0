//! Other versions, other users, and too little memory.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use headworks::net::{ControlStream, Listener, WaitLimit, clock, dial};
use headworks::verbs::Duration;
use headworks_runtime::testing::copy_program;

use crate::test_env::{CommandProcess, TestEnv, bytes, create, open};

fn soon() -> WaitLimit<'static> {
    WaitLimit::deadline(clock::now() + Duration::from_secs(80))
}

/// Returns a greeting of the pipe: its kind, its version, and the rest.
fn greeting(kind: u8, version: u16, rest: &[u8]) -> Vec<u8> {
    [&[kind], &version.to_le_bytes()[..], rest].concat()
}

/// Starts a listener and connects to it as a caller that sends `greeting` and, once welcomed, `then`.
fn listener_hears(
    fabric: &TestEnv,
    greeting: &[u8],
    then: &[u8],
) -> (CommandProcess, ControlStream) {
    let listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    let mut control = dial(&fabric.open_registry(), "a").expect("a listener");
    control.send_control(greeting).expect("sends");
    if !then.is_empty() {
        control.recv_control_wait(soon()).expect("a welcome");
        control.send_control(then).expect("sends");
    }
    (listener, control)
}

#[test]
fn a_pipe_of_another_version_is_one_line() {
    let fabric = TestEnv::new();
    let other = headworks::pipe::VERSION + 8;
    let says = format!(
        "version {other}, this is version {}",
        headworks::pipe::VERSION
    );

    let silent = Listener::bind(&fabric.open_registry(), "a").expect("listens");
    let mut connector = fabric.connect(&[], "a", Stdio::null(), Stdio::null());
    let mut control = silent.accept(soon()).expect("a caller");
    let hello = control.recv_control_wait(soon()).expect("a greeting");
    let version = headworks::pipe::VERSION;
    assert_eq!(
        hello,
        greeting(b'H', version, &[0]),
        "the greeting is as this test expects"
    );
    control
        .send_control(&greeting(b'W', other, &[]))
        .expect("sends");
    let complaint = connector.expect_exit(2);
    assert!(complaint.contains(&says), "{complaint}");
    drop((control, silent));
    fabric.is_clean();

    let (mut listener, control) = listener_hears(&fabric, &greeting(b'H', other, &[0]), b"");
    let complaint = listener.expect_exit(2);
    assert!(complaint.contains(&says), "{complaint}");
    drop(control);
    fabric.is_clean();
}

#[test]
fn a_peer_that_speaks_something_else_is_one_line() {
    let fabric = TestEnv::new();
    let version = headworks::pipe::VERSION;
    for (hello, then, code) in [
        (b"GET / HTTP/1.1".to_vec(), &b""[..], 1),
        (greeting(b'H', version, &[9]), b"", 1),
        (greeting(b'H', version, b""), b"", 1),
        // A frame arrives instead of the bring-up.
        (greeting(b'H', version, &[0]), &[b'?'; 300], 2),
    ] {
        let (mut listener, control) = listener_hears(&fabric, &hello, then);
        let complaint = listener.expect_exit(code);
        println!("{complaint}");
        drop(control);
        fabric.is_clean();
    }
}

#[test]
fn a_listener_of_another_layout_is_one_line() {
    let fabric = TestEnv::new();
    let listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    let entry = fabric.registry().join("o.a");
    let whole = std::fs::read(&entry).expect("reads");
    let mut other = whole.clone();
    // The version follows the four letters of the magic.
    other[4] = 77;
    std::fs::write(&entry, &other).expect("writes");
    let mut connector = fabric.connect(&[], "a", Stdio::null(), Stdio::null());
    let complaint = connector.expect_exit(2);
    assert!(complaint.contains("version 77"), "{complaint}");
    std::fs::write(&entry, &whole).expect("writes");
    drop(listener);
    fabric.is_clean_after_next_user();
}

/// Reports that a test is skipped, and fails if `what` is required.
fn skip(what: &str, why: &str) {
    println!("skipped: {why}");
    let is_required = headworks::runtime::testing::is_required(what);
    assert!(!is_required, "{what} is required: {why}");
}

/// The user `nobody`.
const NOBODY: u32 = 65534;
const AS_NOBODY: [&str; 4] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];

/// Returns a fabric whose programs run as another user, who can reach the program and the directory around
/// it; or why there is none.
fn another_users_fabric() -> Result<TestEnv, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can be somebody else".to_owned());
    }
    let fabric = TestEnv::new();
    // Other users may not be able to reach the directory in which the program was built.
    let program = fabric.file("headworks");
    copy_program(Path::new(env!("CARGO_BIN_EXE_headworks")), &program);
    let around = program.parent().expect("a directory");
    std::fs::set_permissions(around, Permissions::from_mode(0o755)).expect("mode");
    let [setpriv, args @ ..] = AS_NOBODY;
    let tried = Command::new(setpriv)
        .args(args)
        .arg(&program)
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    match tried {
        Ok(status) if status.success() => {
            Ok(fabric.with_launcher(&AS_NOBODY).with_program(program))
        }
        Ok(status) => Err(format!("setpriv cannot start the program: {status}")),
        Err(error) => Err(format!("setpriv: {error}")),
    }
}

#[test]
fn another_users_registry_is_refused_in_one_line() {
    let fabric = match another_users_fabric() {
        Ok(fabric) => fabric,
        Err(why) => return skip("other-user", &why),
    };
    let launcher = fabric.launcher.clone();
    let fabric = fabric.with_launcher(&[]);
    let mut ours = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    let launcher: Vec<_> = launcher.iter().map(String::as_str).collect();
    let fabric = fabric.with_launcher(&launcher);
    for args in [
        &["pipe", "connect", "a"][..],
        &["pipe", "listen", "b"],
        &["demo"],
        &["devices"],
    ] {
        let mut theirs = CommandProcess::start(&mut fabric.headworks(args));
        let complaint = theirs.expect_exit(2);
        assert!(complaint.contains("belongs to user 0"), "{complaint}");
    }
    let fabric = fabric.with_launcher(&[]);
    // Our own listener was not affected.
    assert!(ours.0.try_wait().expect("waits").is_none());
    let mut connector = fabric.connect(&[], "a", Stdio::null(), Stdio::null());
    connector.expect_exit(0);
    ours.expect_exit(0);
    fabric.is_clean();
}

#[test]
fn another_user_has_a_fabric_of_its_own() {
    let fabric = match another_users_fabric() {
        Ok(fabric) => fabric,
        Err(why) => return skip("other-user", &why),
    };
    // The directory around the registry must be theirs, too: the last to leave removes the registry.
    let around = fabric.registry().parent().expect("a directory").to_owned();
    chown(&around, Some(NOBODY), Some(NOBODY)).expect("chown");
    let (from, to, sent) = (fabric.file("from"), fabric.file("to"), bytes(1_000_001));
    std::fs::write(&from, &sent).expect("writes");
    let mut listener = fabric.listen(&[], "a", Stdio::null(), create(&to));
    let owner = std::os::unix::fs::MetadataExt::uid;
    let registry = std::fs::metadata(fabric.registry()).expect("a registry");
    assert_eq!(owner(&registry), NOBODY);
    let mut connector = fabric.connect(&[], "a", open(&from), Stdio::null());
    connector.expect_exit(0);
    listener.expect_exit(0);
    assert!(std::fs::read(&to).expect("reads") == sent);
    fabric.is_clean();
}

#[test]
fn too_little_memory_is_reported_with_the_amount_needed() {
    // In blocks of 512 or 1024 bytes, depending on the shell: less than a device needs.
    for blocks in ["16", "1024"] {
        let limited = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let fabric = TestEnv::new().with_launcher(&["sh", "-c", &limited]);
        for args in [
            &["pipe", "listen", "a"][..],
            &["pipe", "connect", "a"],
            &["demo"],
        ] {
            let mut side = CommandProcess::start(&mut fabric.headworks(args));
            let complaint = side.expect_exit(1);
            let says = complaint.contains("file size limit") && complaint.contains("enough");
            assert!(says, "{complaint}");
            fabric.is_clean();
        }
    }
}

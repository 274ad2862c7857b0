use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::process::{Child, Command};
use std::{fs, thread};

use super::*;
use crate::ProcessId;

const HOST: HostKey = HostKey(0xabc);

fn fresh() -> (tempfile::TempDir, Arc<FabricDir>) {
    let parent = tempfile::tempdir().expect("tempdir");
    let fabric = FabricDir::at(parent.path().join("fabric")).expect("made");
    (parent, fabric)
}

fn record(process: ProcessId) -> ContextRecord {
    ContextRecord {
        process,
        layout_version: 1,
        segment_fd: 3,
        wake_fd: 4,
        incarnation: 5,
        host_name: "h1".to_owned(),
    }
}

fn us() -> ProcessId {
    ProcessId::current().expect("stat")
}

/// A process that is alive until killed.
fn other() -> (Child, ProcessId) {
    let child = Command::new("sleep").arg("1000").spawn().expect("sleep");
    let id = ProcessId::of(child.id()).expect("stat");
    (child, id)
}

fn end(mut child: Child) {
    child.kill().expect("kill");
    child.wait().expect("wait");
}

#[test]
fn the_lowest_free_index_is_claimed_and_the_last_to_leave_removes_all() {
    let (_parent, fabric) = fresh();
    let zero = fabric.claim_context(HOST, &record(us())).expect("claim");
    let one = fabric.claim_context(HOST, &record(us())).expect("claim");
    let elsewhere = fabric
        .claim_context(HostKey(1), &record(us()))
        .expect("claim");
    assert_eq!((zero.index, one.index, elsewhere.index), (0, 1, 0));
    drop(zero);
    assert_eq!(fabric.lookup(HOST, 0).expect("lookup"), None);
    assert_eq!(fabric.lookup(HOST, 1).expect("lookup"), Some(record(us())));
    let again = fabric.claim_context(HOST, &record(us())).expect("claim");
    assert_eq!(again.index, 0);
    let listed: Vec<_> = fabric
        .list()
        .expect("list")
        .into_iter()
        .map(|(host, index, _)| (host.0, index))
        .collect();
    assert_eq!(listed, [(1, 0), (0xabc, 0), (0xabc, 1)]);
    drop((again, one, elsewhere));
    assert!(!fabric.path().exists());
    assert_eq!(fabric.lookup(HOST, 0).expect("lookup"), None);
    assert!(fabric.list().expect("list").is_empty());
    assert_eq!(
        fabric
            .claim_context(HOST, &record(us()))
            .expect("made again")
            .index,
        0
    );
}

#[test]
fn what_the_dead_left_is_unseen_and_then_removed() {
    let (_parent, fabric) = fresh();
    let (child, id) = other();
    for host in [HOST, HostKey(1)] {
        std::mem::forget(fabric.claim_context(host, &record(id)).expect("claim"));
    }
    assert!(fabric.lookup(HOST, 0).expect("lookup").is_some());
    end(child);
    assert_eq!(fabric.lookup(HOST, 0).expect("lookup"), None);
    assert!(fabric.list().expect("list").is_empty());
    fs::write(fabric.path().join("t.1.1"), "half an entry").expect("write");
    let claim = fabric.claim_context(HOST, &record(us())).expect("claim");
    assert_eq!(claim.index, 0);
    assert_eq!(
        fs::read_dir(fabric.path()).expect("list").count(),
        2,
        "the lock and our entry"
    );
}

#[test]
fn malformed_entries_and_other_versions_are_typed_errors() {
    let (_parent, fabric) = fresh();
    let claim = fabric.claim_context(HOST, &record(us())).expect("claim");
    let file = fabric.path().join("c.0000000000000abc.0000");
    let bytes = fs::read(&file).expect("entry");
    fs::write(&file, &bytes[..bytes.len() - 1]).expect("write");
    assert!(matches!(
        fabric.lookup(HOST, 0),
        Err(FabricError::Malformed { .. })
    ));
    let mut newer = bytes;
    newer[4] = 2;
    fs::write(&file, &newer).expect("write");
    assert!(matches!(
        fabric.lookup(HOST, 0),
        Err(FabricError::Layout { found: 2, .. })
    ));
    // Another version's live process keeps its index.
    assert_eq!(
        fabric
            .claim_context(HOST, &record(us()))
            .expect("claim")
            .index,
        1
    );
    drop(claim);
}

#[test]
fn directories_that_others_can_reach_are_refused() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("open");
    fs::DirBuilder::new()
        .mode(0o755)
        .create(&path)
        .expect("mkdir");
    let error = FabricDir::at(&path).expect_err("too open");
    assert!(
        matches!(error, FabricError::Mode { mode: 0o755, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("chmod 700") && !error.to_string().contains('\n'));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("chmod");
    FabricDir::at(&path).expect("fine now");

    let link = parent.path().join("link");
    std::os::unix::fs::symlink(&path, &link).expect("symlink");
    assert!(matches!(
        FabricDir::at(&link),
        Err(FabricError::NotDirectory { .. })
    ));
    fs::write(parent.path().join("file"), "").expect("write");
    let error = FabricDir::at(parent.path().join("file")).expect_err("a file");
    assert!(matches!(error, FabricError::NotDirectory { .. }));
    let owner = fs::metadata("/proc/1").ok().map(|_| ());
    if owner.is_some() && !getuid().is_root() {
        assert!(matches!(
            FabricDir::at("/root"),
            Err(FabricError::Owner { .. })
        ));
    }
}

#[test]
fn many_come_and_go_at_once() {
    let (_parent, fabric) = fresh();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let claim = fabric.claim_context(HOST, &record(us())).expect("claim");
                    let found = fabric.lookup(HOST, claim.index).expect("lookup");
                    assert_eq!(found, Some(record(us())));
                }
            });
        }
    });
    assert!(!fabric.path().exists());
}

#[test]
fn names_are_bound_once_and_connected_to() {
    let (_parent, fabric) = fresh();
    assert!(matches!(
        fabric.connect_name("a"),
        Err(FabricError::NobodyListening { .. })
    ));
    let claim = fabric.bind_name("a").expect("bind");
    let error = fabric.bind_name("a").expect_err("in use");
    assert!(matches!(error, FabricError::NameInUse { pid, .. } if pid == std::process::id()));
    let mut near = fabric.connect_name("a").expect("connect");
    let (mut far, _) = claim.listener().accept().expect("accept");
    near.write_all(b"x").expect("write");
    let mut byte = [0];
    far.read_exact(&mut byte).expect("read");
    assert_eq!(&byte, b"x");
    drop(claim);
    assert!(matches!(
        fabric.connect_name("a"),
        Err(FabricError::NobodyListening { .. })
    ));
    assert!(!fabric.path().exists());
    for bad in ["", "a/b", "ä", "a b", &"x".repeat(65)] {
        let error = fabric.bind_name(bad).expect_err("bad name");
        assert!(matches!(error, FabricError::BadName { .. }), "{error}");
        assert!(fabric.connect_name(bad).is_err());
    }
    fabric.bind_name(&"x".repeat(64)).expect("the longest");
}

#[test]
fn who_sees_a_names_socket_may_connect() {
    let (_parent, fabric) = fresh();
    for round in 0..2_000 {
        let (binder, socket) = (fabric.clone(), fabric.path().join("n.a"));
        thread::scope(|scope| {
            let bound = scope.spawn(move || binder.bind_name("a").expect("bind"));
            while !socket.exists() {
                assert!(!bound.is_finished() || socket.exists(), "no socket");
            }
            fabric
                .connect_name("a")
                .unwrap_or_else(|error| panic!("round {round}: {error}"));
            drop(bound.join().expect("binds"));
        });
    }
}

#[test]
fn a_name_of_the_dead_is_free_even_while_its_socket_is_open() {
    let (_parent, fabric) = fresh();
    let claim = fabric.bind_name("a").expect("bind");
    let (child, id) = other();
    // As if the child had bound it: the socket stays open here, as it would in a forked child of the dead.
    fs::write(fabric.path().join("o.a"), record::prefix(id)).expect("write");
    assert!(
        matches!(fabric.bind_name("a"), Err(FabricError::NameInUse { pid, .. }) if pid == id.pid)
    );
    end(child);
    assert!(matches!(
        fabric.connect_name("a"),
        Err(FabricError::NobodyListening { .. })
    ));
    let second = fabric.bind_name("a").expect("replaced");
    drop(claim);
    fabric
        .connect_name("a")
        .expect("the first owner removed nothing of the second's");
    drop(second);
}

#[test]
fn a_half_written_entry_of_a_dead_process_of_our_id_is_replaced() {
    let (_parent, fabric) = fresh();
    let claim = fabric.bind_name("a").expect("bind");
    // The numbers that ours get next, whatever other tests do meanwhile.
    for number in 0..2000 {
        let left = format!("t.{}.{number}", std::process::id());
        fs::write(fabric.path().join(left), "half").expect("write");
    }
    fabric.bind_name("b").expect("bind");
    fabric.connect_name("b").expect_err("dropped at once");
    drop(claim);
}

#[test]
fn deep_directories_have_names_too() {
    let parent = tempfile::tempdir().expect("tempdir");
    let deep = parent.path().join("d".repeat(100)).join("e".repeat(100));
    let fabric = FabricDir::at(deep).expect("made");
    let claim = fabric.bind_name("rendezvous").expect("bind");
    fabric.connect_name("rendezvous").expect("connect");
    assert!(claim.path().exists());
}

#[test]
fn claims_are_inert_in_a_forked_child() {
    let (_parent, fabric) = fresh();
    let context = fabric.claim_context(HOST, &record(us())).expect("claim");
    let name = fabric.bind_name("a").expect("bind");
    // SAFETY: the child drops two inert objects, which only frees memory, and exits.
    match unsafe { libc::fork() } {
        0 => {
            drop((context, name));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: our own child, a valid place for its status.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0);
        }
    }
    assert!(fabric.lookup(HOST, 0).expect("lookup").is_some());
    fabric.connect_name("a").expect("still there");
}

#[test]
fn the_default_place_follows_the_environment() {
    let runtime = tempfile::tempdir().expect("tempdir");
    let uid = getuid().as_raw();
    let path_of = |variables: &[(&str, &Path)]| {
        let find = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| OsString::from(value))
        };
        default_path(find, uid)
    };
    let run = ("XDG_RUNTIME_DIR", runtime.path());
    assert_eq!(
        path_of(&[(FABRIC_VARIABLE, Path::new("/x/y")), run]),
        Path::new("/x/y")
    );
    assert_eq!(
        path_of(&[(FABRIC_VARIABLE, Path::new("")), run]),
        runtime.path().join("headworks")
    );
    let fallback = path_of(&[]);
    assert!(
        fallback.ends_with(format!("headworks-{uid}")),
        "{fallback:?}"
    );
    assert_eq!(
        path_of(&[("XDG_RUNTIME_DIR", Path::new("/nowhere/at/all"))]),
        fallback
    );
}

#[test]
fn two_users_have_two_registries() {
    let of = |uid| default_path(|_| None, uid);
    assert_ne!(of(1000), of(1001));
    assert!(of(1000).is_absolute());
}

#[test]
fn a_registry_is_told_from_any_other() {
    let (parent, fabric) = fresh();
    let identity = fabric.identity().expect("it is there");
    assert_ne!(identity, 0);
    let same = FabricDir::at(fabric.path()).expect("the same");
    assert_eq!(same.identity().expect("it is there"), identity);
    let other = FabricDir::at(parent.path().join("other")).expect("another");
    assert_ne!(other.identity().expect("it is there"), identity);
}

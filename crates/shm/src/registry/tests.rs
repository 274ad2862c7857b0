use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::process::{Child, Command};
use std::{fs, thread};

use super::*;
use crate::ProcessId;

const HOST: HostKey = HostKey(0xabc);

fn new_registry() -> (tempfile::TempDir, Arc<Registry>) {
    let parent = tempfile::tempdir().expect("tempdir");
    let registry = Registry::open_at(parent.path().join("registry")).expect("made");
    (parent, registry)
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

fn this_process() -> ProcessId {
    ProcessId::current().expect("stat")
}

/// Starts a process that is alive until killed.
fn sleeping_process() -> (Child, ProcessId) {
    let child = Command::new("sleep").arg("1000").spawn().expect("sleep");
    let id = ProcessId::of_pid(child.id()).expect("stat");
    (child, id)
}

fn kill_and_wait(mut child: Child) {
    child.kill().expect("kill");
    child.wait().expect("wait");
}

#[test]
fn the_lowest_free_index_is_claimed_and_the_last_to_leave_removes_all() {
    let (_parent, registry) = new_registry();
    let zero = registry
        .claim_context(HOST, &record(this_process()))
        .expect("claim");
    let one = registry
        .claim_context(HOST, &record(this_process()))
        .expect("claim");
    let elsewhere = registry
        .claim_context(HostKey(1), &record(this_process()))
        .expect("claim");
    assert_eq!((zero.index, one.index, elsewhere.index), (0, 1, 0));
    drop(zero);
    assert_eq!(registry.lookup_context(HOST, 0).expect("lookup"), None);
    assert_eq!(
        registry.lookup_context(HOST, 1).expect("lookup"),
        Some(record(this_process()))
    );
    let again = registry
        .claim_context(HOST, &record(this_process()))
        .expect("claim");
    assert_eq!(again.index, 0);
    let listed: Vec<_> = registry
        .list_contexts()
        .expect("list")
        .into_iter()
        .map(|(host, index, _)| (host.0, index))
        .collect();
    assert_eq!(listed, [(1, 0), (0xabc, 0), (0xabc, 1)]);
    drop((again, one, elsewhere));
    assert!(!registry.path().exists());
    assert_eq!(registry.lookup_context(HOST, 0).expect("lookup"), None);
    assert!(registry.list_contexts().expect("list").is_empty());
    assert_eq!(
        registry
            .claim_context(HOST, &record(this_process()))
            .expect("made again")
            .index,
        0
    );
}

#[test]
fn entries_of_the_dead_are_hidden_and_then_removed() {
    let (_parent, registry) = new_registry();
    let (child, id) = sleeping_process();
    for host in [HOST, HostKey(1)] {
        std::mem::forget(registry.claim_context(host, &record(id)).expect("claim"));
    }
    assert!(registry.lookup_context(HOST, 0).expect("lookup").is_some());
    kill_and_wait(child);
    assert_eq!(registry.lookup_context(HOST, 0).expect("lookup"), None);
    assert!(registry.list_contexts().expect("list").is_empty());
    fs::write(registry.path().join("t.1.1"), "half an entry").expect("write");
    let claim = registry
        .claim_context(HOST, &record(this_process()))
        .expect("claim");
    assert_eq!(claim.index, 0);
    assert_eq!(
        fs::read_dir(registry.path()).expect("list").count(),
        2,
        "the lock and our entry"
    );
}

#[test]
fn malformed_entries_and_other_versions_are_typed_errors() {
    let (_parent, registry) = new_registry();
    let claim = registry
        .claim_context(HOST, &record(this_process()))
        .expect("claim");
    let file = registry.path().join("c.0000000000000abc.0000");
    let bytes = fs::read(&file).expect("entry");
    fs::write(&file, &bytes[..bytes.len() - 1]).expect("write");
    assert!(matches!(
        registry.lookup_context(HOST, 0),
        Err(RegistryError::Malformed { .. })
    ));
    let mut newer = bytes;
    newer[4] = 2;
    fs::write(&file, &newer).expect("write");
    assert!(matches!(
        registry.lookup_context(HOST, 0),
        Err(RegistryError::Layout { found: 2, .. })
    ));
    // The live process of another version keeps its index.
    assert_eq!(
        registry
            .claim_context(HOST, &record(this_process()))
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
    let error = Registry::open_at(&path).expect_err("too open");
    assert!(
        matches!(error, RegistryError::Mode { mode: 0o755, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("chmod 700") && !error.to_string().contains('\n'));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("chmod");
    Registry::open_at(&path).expect("fine now");

    let link = parent.path().join("link");
    std::os::unix::fs::symlink(&path, &link).expect("symlink");
    assert!(matches!(
        Registry::open_at(&link),
        Err(RegistryError::NotDirectory { .. })
    ));
    fs::write(parent.path().join("file"), "").expect("write");
    let error = Registry::open_at(parent.path().join("file")).expect_err("a file");
    assert!(matches!(error, RegistryError::NotDirectory { .. }));
    let owner = fs::metadata("/proc/1").ok().map(|_| ());
    if owner.is_some() && !getuid().is_root() {
        assert!(matches!(
            Registry::open_at("/root"),
            Err(RegistryError::Owner { .. })
        ));
    }
}

#[test]
fn many_come_and_go_at_once() {
    let (_parent, registry) = new_registry();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let claim = registry
                        .claim_context(HOST, &record(this_process()))
                        .expect("claim");
                    let found = registry.lookup_context(HOST, claim.index).expect("lookup");
                    assert_eq!(found, Some(record(this_process())));
                }
            });
        }
    });
    assert!(!registry.path().exists());
}

#[test]
fn names_are_bound_once_and_connected_to() {
    let (_parent, registry) = new_registry();
    assert!(matches!(
        registry.connect_name("a"),
        Err(RegistryError::NobodyListening { .. })
    ));
    let claim = registry.bind_name("a").expect("bind");
    let error = registry.bind_name("a").expect_err("in use");
    assert!(matches!(error, RegistryError::NameInUse { pid, .. } if pid == std::process::id()));
    let mut near = registry.connect_name("a").expect("connect");
    let (mut far, _) = claim.listener().accept().expect("accept");
    near.write_all(b"x").expect("write");
    let mut byte = [0];
    far.read_exact(&mut byte).expect("read");
    assert_eq!(&byte, b"x");
    drop(claim);
    assert!(matches!(
        registry.connect_name("a"),
        Err(RegistryError::NobodyListening { .. })
    ));
    assert!(!registry.path().exists());
    for bad in ["", "a/b", "ä", "a b", &"x".repeat(65)] {
        let error = registry.bind_name(bad).expect_err("bad name");
        assert!(matches!(error, RegistryError::BadName { .. }), "{error}");
        assert!(registry.connect_name(bad).is_err());
    }
    registry.bind_name(&"x".repeat(64)).expect("the longest");
}

#[test]
fn a_visible_name_socket_accepts_connections() {
    let (_parent, registry) = new_registry();
    for round in 0..2_000 {
        let (binder, socket) = (registry.clone(), registry.path().join("n.a"));
        thread::scope(|scope| {
            let bound = scope.spawn(move || binder.bind_name("a").expect("bind"));
            while !socket.exists() {
                assert!(!bound.is_finished() || socket.exists(), "no socket");
            }
            registry
                .connect_name("a")
                .unwrap_or_else(|error| panic!("round {round}: {error}"));
            drop(bound.join().expect("binds"));
        });
    }
}

#[test]
fn a_name_of_the_dead_is_free_even_while_its_socket_is_open() {
    let (_parent, registry) = new_registry();
    let claim = registry.bind_name("a").expect("bind");
    let (child, id) = sleeping_process();
    // As if the child had bound it. The socket stays open here, as in a forked child of a dead owner.
    fs::write(registry.path().join("o.a"), record::prefix(id)).expect("write");
    assert!(
        matches!(registry.bind_name("a"), Err(RegistryError::NameInUse { pid, .. }) if pid == id.pid)
    );
    kill_and_wait(child);
    assert!(matches!(
        registry.connect_name("a"),
        Err(RegistryError::NobodyListening { .. })
    ));
    let second = registry.bind_name("a").expect("replaced");
    drop(claim);
    registry
        .connect_name("a")
        .expect("the first owner removed nothing of the second's");
    drop(second);
}

#[test]
fn a_half_written_entry_of_a_dead_process_of_our_id_is_replaced() {
    let (_parent, registry) = new_registry();
    let claim = registry.bind_name("a").expect("bind");
    // Covers the numbers that our next temporary files get, whatever other tests do meanwhile.
    for number in 0..2000 {
        let left = format!("t.{}.{number}", std::process::id());
        fs::write(registry.path().join(left), "half").expect("write");
    }
    registry.bind_name("b").expect("bind");
    registry.connect_name("b").expect_err("dropped at once");
    drop(claim);
}

#[test]
fn deep_directories_have_names_too() {
    let parent = tempfile::tempdir().expect("tempdir");
    let deep = parent.path().join("d".repeat(100)).join("e".repeat(100));
    let registry = Registry::open_at(deep).expect("made");
    let claim = registry.bind_name("rendezvous").expect("bind");
    registry.connect_name("rendezvous").expect("connect");
    assert!(claim.path().exists());
}

#[test]
fn claims_are_inert_in_a_forked_child() {
    let (_parent, registry) = new_registry();
    let context = registry
        .claim_context(HOST, &record(this_process()))
        .expect("claim");
    let name = registry.bind_name("a").expect("bind");
    // SAFETY: the child drops two inert objects, which only frees memory, and exits.
    match unsafe { libc::fork() } {
        0 => {
            drop((context, name));
            // SAFETY: the call ends the child at once.
            unsafe { libc::_exit(0) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: the process is our own child, and `status` is a valid place for its status.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0);
        }
    }
    assert!(registry.lookup_context(HOST, 0).expect("lookup").is_some());
    registry.connect_name("a").expect("still there");
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
        path_of(&[(REGISTRY_VARIABLE, Path::new("/x/y")), run]),
        Path::new("/x/y")
    );
    assert_eq!(
        path_of(&[(REGISTRY_VARIABLE, Path::new("")), run]),
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
fn registries_have_distinct_identities() {
    let (parent, registry) = new_registry();
    let identity = registry.identity().expect("it is there");
    assert_ne!(identity, 0);
    let same = Registry::open_at(registry.path()).expect("the same");
    assert_eq!(same.identity().expect("it is there"), identity);
    let other = Registry::open_at(parent.path().join("other")).expect("another");
    assert_ne!(other.identity().expect("it is there"), identity);
}

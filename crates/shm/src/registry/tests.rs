use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::{fs, thread};

use super::*;
use crate::ProcessId;

const HOST: HostKey = HostKey(0xabc);

fn new_registry() -> (tempfile::TempDir, Arc<Registry>) {
    let parent = tempfile::tempdir().expect("tempdir");
    let registry = Registry::open_at(parent.path().join("registry")).expect("made");
    (parent, registry)
}

fn record(member: &Member) -> ContextRecord {
    ContextRecord {
        process: member.id(),
        layout_version: 1,
        incarnation: 5,
        host_name: "h1".to_owned(),
    }
}

/// A process, as far as the registry is concerned: its own view of the registry, and its membership.
struct Process {
    registry: Arc<Registry>,
    member: Arc<Member>,
}

impl Process {
    fn join(registry: &Arc<Registry>) -> Self {
        let registry = Registry::open_at(registry.path()).expect("opened");
        let member = registry.join().expect("joined");
        Self { registry, member }
    }

    fn id(&self) -> ProcessId {
        self.member.id()
    }

    fn claim(&self, host: HostKey) -> ContextClaim {
        let record = record(&self.member);
        let claim = self.registry.claim_context(host, &self.member, &record);
        claim.expect("claim")
    }

    /// Dies: the kernel releases its lock, and everything else stays as it was.
    fn die(self) {
        let entry = self.registry.path().join(member::file_name(self.id().slot));
        let bytes = fs::read(&entry).expect("its entry");
        // A file without a lock in place of the locked one.
        fs::remove_file(&entry).expect("removed");
        fs::write(&entry, bytes).expect("written");
        std::mem::forget(self.member);
    }
}

/// Returns the names of the entries that belong to processes.
fn entries(registry: &Registry) -> Vec<String> {
    let names = fs::read_dir(registry.path()).expect("list");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("entry").file_name();
    let mut names: Vec<_> = names
        .map(|entry| name(entry).into_string().expect("ASCII"))
        .filter(|name| !matches!(&name[..], "lock" | "id"))
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn the_lowest_free_index_is_claimed_and_the_last_to_leave_removes_all() {
    let (_parent, registry) = new_registry();
    let us = Process::join(&registry);
    let (zero, one, elsewhere) = (us.claim(HOST), us.claim(HOST), us.claim(HostKey(1)));
    assert_eq!((zero.index, one.index, elsewhere.index), (0, 1, 0));
    drop(zero);
    assert_eq!(registry.lookup_context(HOST, 0).expect("lookup"), None);
    assert_eq!(
        registry.lookup_context(HOST, 1).expect("lookup"),
        Some(record(&us.member))
    );
    let again = us.claim(HOST);
    assert_eq!(again.index, 0);
    let listed: Vec<_> = registry
        .list_contexts()
        .expect("list")
        .entries
        .into_iter()
        .map(|((host, index), _)| (host.0, index))
        .collect();
    assert_eq!(listed, [(1, 0), (0xabc, 0), (0xabc, 1)]);
    drop((again, one, elsewhere, us));
    assert!(!registry.path().exists());
    assert_eq!(registry.lookup_context(HOST, 0).expect("lookup"), None);
    assert!(registry.list_contexts().expect("list").entries.is_empty());
    assert_eq!(Process::join(&registry).claim(HOST).index, 0);
}

#[test]
fn entries_of_the_dead_are_hidden_and_then_removed() {
    let (_parent, registry) = new_registry();
    let (us, other) = (Process::join(&registry), Process::join(&registry));
    for host in [HOST, HostKey(1)] {
        std::mem::forget(other.claim(host));
    }
    let id = other.id();
    assert!(registry.lookup_context(HOST, 0).expect("lookup").is_some());
    assert!(registry.is_alive(id) && !registry.is_slot_unused(id.slot));
    other.die();
    assert!(!registry.is_alive(id) && registry.is_slot_unused(id.slot));
    assert_eq!(registry.process_record(id).expect("readable"), None);
    assert_eq!(registry.lookup_context(HOST, 0).expect("lookup"), None);
    assert!(registry.list_contexts().expect("list").entries.is_empty());
    fs::write(registry.path().join("t.1.1"), "half an entry").expect("write");
    assert_eq!(us.claim(HOST).index, 0);
    assert_eq!(entries(&registry), ["p.00000"], "our own");
}

#[test]
fn slots_are_used_again_by_others_that_are_told_apart() {
    let (_parent, registry) = new_registry();
    let (us, first) = (Process::join(&registry), Process::join(&registry));
    assert_eq!((us.id().slot, first.id().slot), (0, 1));
    let watch = registry.watch(first.id(), true).expect("watched");
    let watch = watch.expect("alive");
    assert!(!watch.is_dead());
    let before = first.id();
    drop(first);
    assert!(watch.is_dead());
    let second = Process::join(&registry);
    assert_eq!(second.id().slot, before.slot);
    assert!(registry.is_alive(second.id()) && !registry.is_alive(before));
    assert!(registry.watch(before, true).expect("readable").is_none());
    let record = registry.process_record(second.id()).expect("readable");
    let record = record.expect("alive");
    assert_eq!(record.pid, std::process::id());
    assert!(!record.command().is_empty() && record.age() < std::time::Duration::from_secs(600));
}

#[test]
fn the_last_to_leave_removes_what_the_dead_left() {
    let (_parent, registry) = new_registry();
    let (us, other) = (Process::join(&registry), Process::join(&registry));
    std::mem::forget(other.registry.bind_name("a").expect("bind"));
    other.die();
    assert!(entries(&registry).len() > 1);
    drop(us);
    assert!(!registry.path().exists());
}

#[test]
fn a_directory_that_nobody_of_us_made_is_kept() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("theirs");
    let mut made = fs::DirBuilder::new();
    made.mode(0o700).create(&path).expect("mkdir");
    let registry = Registry::open_at(&path).expect("opened");
    let us = Process::join(&registry);
    let identity = registry.identity().expect("readable");
    assert_eq!(us.registry.identity().expect("readable"), identity);
    drop(us);
    assert_eq!(fs::read_dir(&path).expect("kept").count(), 0);
    let again = Process::join(&registry);
    assert_ne!(again.registry.identity().expect("readable"), identity);
}

#[test]
fn malformed_entries_and_other_versions_are_typed_errors() {
    let (_parent, registry) = new_registry();
    let us = Process::join(&registry);
    let claim = us.claim(HOST);
    let file = registry.path().join("c.0000000000000abc.0000");
    let bytes = fs::read(&file).expect("entry");
    fs::write(&file, &bytes[..bytes.len() - 1]).expect("write");
    assert!(matches!(
        registry.lookup_context(HOST, 0),
        Err(RegistryError::Malformed { .. })
    ));
    let listing = registry.list_contexts().expect("listed");
    assert!(listing.entries.is_empty());
    assert!(
        matches!(
            &listing.unreadable[..],
            [((HOST, 0), RegistryError::Malformed { .. })]
        ),
        "{listing:?}"
    );
    let mut newer = bytes;
    newer[4] = 3;
    fs::write(&file, &newer).expect("write");
    assert!(matches!(
        registry.lookup_context(HOST, 0),
        Err(RegistryError::Layout { found: 3, .. })
    ));
    // The live process of another version keeps its index.
    assert_eq!(us.claim(HOST).index, 1);
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
    let dangling = parent.path().join("dangling");
    std::os::unix::fs::symlink("nowhere", &dangling).expect("symlink");
    let error = Registry::open_at(dangling.join("below")).expect_err("nothing");
    assert!(matches!(error, RegistryError::DanglingLink { path } if path == dangling));
    fs::write(parent.path().join("file"), "").expect("write");
    let error = Registry::open_at(parent.path().join("file")).expect_err("a file");
    assert!(matches!(error, RegistryError::NotDirectory { .. }));
    let error = Registry::open_at("/proc/nowhere/registry").expect_err("no directory");
    assert!(matches!(error, RegistryError::Make { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("nowhere") && text.contains("HEADWORKS_FABRIC"),
        "{text}"
    );
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
                    let us = Process::join(&registry);
                    let claim = us.claim(HOST);
                    let found = registry.lookup_context(HOST, claim.index).expect("lookup");
                    assert_eq!(found, Some(record(&us.member)));
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
    let us = format!("the name a is in use by process {}", std::process::id());
    assert!(error.to_string().starts_with(&us), "{error}");
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
    let other = Process::join(&registry);
    // The socket stays open here, as in a child of a dead owner that a raw system call made.
    let claim = other.registry.bind_name("a").expect("bind");
    registry.connect_name("a").expect("connect");
    let error = registry.bind_name("a").expect_err("in use");
    assert!(matches!(error, RegistryError::NameInUse { .. }), "{error}");
    other.die();
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
    let us = Process::join(&registry);
    let context = us.claim(HOST);
    let name = us.registry.bind_name("a").expect("bind");
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

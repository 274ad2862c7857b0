//! Each property of the environment by itself, and the findings about it.

use std::path::PathBuf;

use super::super::super::environment::{FileSystem, RegistryPlace, Seccomp};
use super::super::tests::{complaints, healthy};
use super::super::{Verdict, advise as advise_all};
use super::*;

/// Returns the only finding of a check.
fn of(facts: &SystemInfo, check: &str) -> Finding {
    let mut findings = advise_all(facts);
    findings.retain(|finding| finding.check == check);
    assert_eq!(findings.len(), 1, "{findings:?}");
    findings.remove(0)
}

/// Checks that a finding is the only bad one, and returns it.
fn only(facts: &SystemInfo, check: &str, verdict: Verdict) -> Finding {
    let bad = complaints(facts);
    assert!(
        matches!(&*bad, [(about, how, _)] if *about == check && *how == verdict),
        "{bad:?}"
    );
    of(facts, check)
}

fn mend(finding: &Finding) -> &str {
    finding.mend.as_deref().unwrap_or_default()
}

fn why(finding: &Finding) -> &str {
    finding.why.as_deref().unwrap_or_default()
}

fn gibibyte(free: u64, is_read_only: bool) -> Option<FileSystem> {
    Some(FileSystem {
        bytes: 1 << 30,
        free,
        is_read_only,
    })
}

/// Facts of a machine on which the software device does not open, for the registry or for something else.
fn unusable(is_registry: bool) -> SystemInfo {
    let mut facts = healthy();
    facts.environment.registry = "/headworks/registry".into();
    facts.soft = Some(Err(Unusable {
        said: "cannot open soft:doctor: for a reason".to_owned(),
        is_registry,
    }));
    facts
}

/// A directory of this user that can be written to.
fn place(path: &str) -> RegistryPlace {
    RegistryPlace {
        path: path.into(),
        is_directory: true,
        owner: 1000,
        mode: 0o1700,
        may_write: true,
        file_system: gibibyte(1 << 29, false),
    }
}

fn limit(bytes: u64, held: u64) -> MemoryLimit {
    let file = PathBuf::from("/sys/fs/cgroup/x/memory.max");
    MemoryLimit { file, bytes, held }
}

#[test]
fn a_software_device_that_works_is_one_line_with_its_registry() {
    let finding = of(&healthy(), "software device");
    assert_eq!(finding.verdict, Verdict::Good);
    let expected = "soft works; its registry is /dev/shm/headworks-1000";
    assert_eq!(
        (&*finding.found, why(&finding), mend(&finding)),
        (expected, "", "")
    );
    // It is the first one.
    assert_eq!(advise_all(&healthy())[0], finding);
}

#[test]
fn a_registry_that_cannot_be_used_is_explained_from_its_directory() {
    type Spoil = fn(&mut RegistryPlace);
    let registry = "/headworks/registry";
    let cases: [(&str, Spoil, &str, &str); 9] = [
        (
            registry,
            |place| place.owner = 0,
            "/headworks/registry belongs to user 0, and this process is of user 1000",
            "HEADWORKS_FABRIC=/path/to/a/directory headworks",
        ),
        (
            registry,
            |place| place.mode = 0o755,
            "other users may enter /headworks/registry (mode 0755)",
            "chmod 700 /headworks/registry",
        ),
        (
            registry,
            |place| place.is_directory = false,
            "/headworks/registry is not a directory",
            "HEADWORKS_FABRIC=",
        ),
        (
            registry,
            |place| (place.mode, place.may_write) = (0o500, false),
            "user 1000 may not write to /headworks/registry, which belongs to user 1000 and has mode 0500",
            "HEADWORKS_FABRIC=",
        ),
        (
            "/headworks",
            |place| {
                place.may_write = false;
                place.file_system = gibibyte(0, true);
            },
            "the file system of /headworks is mounted read-only",
            "HEADWORKS_FABRIC=",
        ),
        (
            "/headworks",
            // The parent may belong to anybody, and others may enter it.
            |place| (place.owner, place.mode, place.may_write) = (0, 0o755, false),
            "user 1000 may not write to /headworks, which belongs to user 0 and has mode 0755",
            "HEADWORKS_FABRIC=",
        ),
        (
            "/headworks",
            |place| place.is_directory = false,
            "/headworks is not a directory",
            "HEADWORKS_FABRIC=",
        ),
        (
            "/headworks",
            |place| place.file_system = gibibyte(0, false),
            "the file system of /headworks is full",
            "HEADWORKS_FABRIC=",
        ),
        (
            "/headworks",
            |place| place.mode = 0o755,
            "no directory can be made in /headworks",
            "HEADWORKS_FABRIC=",
        ),
    ];
    for (path, spoil, expected, command) in cases {
        let mut facts = unusable(true);
        // Neither of these is the reason if the registry is.
        facts.environment.file_size = Some(4096);
        facts.environment.memory_limits = Some(vec![limit(128 << 20, 0)]);
        let mut place = place(path);
        spoil(&mut place);
        facts.environment.place = Some(place);
        let finding = of(&facts, "software device");
        assert_eq!(finding.verdict, Broken);
        assert_eq!(finding.found, "cannot open soft:doctor: for a reason");
        assert!(
            why(&finding).starts_with(expected),
            "{expected}: {finding:?}"
        );
        assert!(mend(&finding).starts_with(command), "{finding:?}");
        assert!(!mend(&finding).contains("volume"), "{finding:?}");
        facts.container = Some("Docker");
        let finding = of(&facts, "software device");
        let names_a_volume = mend(&finding).contains("volume");
        assert_eq!(
            names_a_volume,
            command.starts_with("HEADWORKS"),
            "{finding:?}"
        );
    }
    let finding = of(&unusable(true), "software device");
    assert!(why(&finding).contains("can be seen"), "{finding:?}");
}

#[test]
fn an_owner_that_the_user_namespace_does_not_map_is_no_user_65534() {
    let mut facts = unusable(true);
    let mut place = place("/headworks/registry");
    place.owner = 65534;
    facts.environment.place = Some(place);
    let finding = of(&facts, "software device");
    assert!(
        why(&finding).contains("belongs to user 65534"),
        "{finding:?}"
    );
    let own = facts.environment.namespaces.as_mut().unwrap();
    (own.is_first_user, own.mapped_users) = (false, Some(1));
    let finding = of(&facts, "software device");
    let expected = "belongs to a user that this user namespace does not map (shown as 65534)";
    assert!(why(&finding).contains(expected), "{finding:?}");
}

#[test]
fn a_device_that_fails_for_memory_is_explained_from_limits() {
    let mut facts = unusable(false);
    let finding = of(&facts, "software device");
    assert_eq!(
        why(&finding),
        "programs that open soft devices get this error"
    );
    facts.environment.memory_limits = Some(vec![limit(1 << 40, 0), limit(10 << 20, 8 << 20)]);
    let finding = of(&facts, "software device");
    let expected = "2 of 10 MiB are left by /sys/fs/cgroup/x/memory.max";
    assert_eq!(why(&finding), expected);
    assert_eq!(mend(&finding), "echo 144M > /sys/fs/cgroup/x/memory.max");
    facts.environment.file_size = Some(1 << 20);
    let finding = of(&facts, "software device");
    assert!(
        why(&finding).contains("1024 KiB at most (ulimit -f)"),
        "{finding:?}"
    );
    assert_eq!(mend(&finding), "ulimit -f unlimited");
    let refused = (
        SystemCall::MemfdCreate,
        "Operation not permitted".to_owned(),
    );
    facts.environment.refused_calls = vec![refused];
    let finding = of(&facts, "software device");
    assert!(
        why(&finding).contains("memfd_create (Operation not permitted)"),
        "{finding:?}"
    );
}

#[test]
fn a_small_file_system_of_the_registry_is_improvable() {
    let small = |registry: &str| {
        let mut facts = healthy();
        facts.environment.registry = registry.into();
        facts.environment.shm = gibibyte(1 << 20, false);
        facts.environment.place = Some(RegistryPlace {
            file_system: gibibyte(2 << 20, false),
            ..place("/volume")
        });
        facts
    };
    let facts = small("/dev/shm/headworks-1000");
    let finding = only(&facts, "shared memory", Improvable);
    let expected = "/dev/shm has 1024 MiB, 1 free; only the registry is there";
    assert_eq!(finding.found, expected);
    assert_eq!(mend(&finding), "mount -o remount,size=256m /dev/shm");
    let facts = SystemInfo {
        container: Some("Docker"),
        ..facts
    };
    let finding = only(&facts, "shared memory", Improvable);
    assert!(mend(&finding).contains("--shm-size"), "{finding:?}");
    // The verdict depends on the file system of the registry.
    let finding = only(&small("/volume/registry"), "shared memory", Improvable);
    let expected = "/dev/shm is not used: the registry is /volume/registry, with 2 MiB free";
    assert_eq!(finding.found, expected);
    assert!(
        mend(&finding).starts_with("df -h /volume/registry"),
        "{finding:?}"
    );
}

#[test]
fn shared_memory_that_is_not_used_may_be_missing() {
    let mut facts = healthy();
    // As much as Docker gives.
    facts.environment.shm = gibibyte(64 << 20, false);
    assert_eq!(complaints(&facts), []);
    facts.environment.registry = "/volume/registry".into();
    facts.environment.place = Some(place("/volume"));
    let found = |facts: &SystemInfo| {
        assert_eq!(complaints(facts), []);
        of(facts, "shared memory").found
    };
    facts.environment.shm = gibibyte(1, false);
    let said = found(&facts);
    assert!(said.starts_with("/dev/shm is not used"), "{said}");
    facts.environment.shm = gibibyte(1, true);
    let said = found(&facts);
    assert!(
        said.starts_with("/dev/shm (it is read-only) is not used"),
        "{said}"
    );
    // A file system of the kernel's own, such as proc, has no size.
    let place = facts.environment.place.as_mut().unwrap();
    let space = place.file_system.as_mut().unwrap();
    (space.bytes, space.free) = (0, 0);
    facts.environment.shm = None;
    let said = found(&facts);
    assert!(
        said.starts_with("/dev/shm (it is missing) is not used"),
        "{said}"
    );
    facts.environment.registry = "/dev/shm/headworks".into();
    assert_eq!(
        found(&facts),
        "/dev/shm is missing, and the registry would be there"
    );
}

#[test]
fn a_control_group_that_leaves_little_memory_is_improvable() {
    let mut facts = healthy();
    let found = |facts: &SystemInfo| {
        assert_eq!(complaints(facts), []);
        of(facts, "memory limit").found
    };
    assert_eq!(found(&facts), "no control group limits it");
    facts.environment.memory_limits = Some(vec![limit(100 << 20, 36 << 20)]);
    let said = found(&facts);
    assert_eq!(
        said,
        "64 of 100 MiB are left by /sys/fs/cgroup/x/memory.max"
    );
    // The group around it leaves less.
    let around = limit(64 << 20, 1 << 20);
    facts
        .environment
        .memory_limits
        .as_mut()
        .unwrap()
        .push(around);
    let finding = only(&facts, "memory limit", Improvable);
    assert!(finding.found.starts_with("63 of 64 MiB"), "{finding:?}");
    assert!(why(&finding).contains("the kernel kills"), "{finding:?}");
    assert_eq!(mend(&finding), "echo 130M > /sys/fs/cgroup/x/memory.max");
    facts.container = Some("Docker");
    let finding = only(&facts, "memory limit", Improvable);
    assert_eq!(mend(&finding), "docker run --memory=130m …");
    facts.environment.memory_limits = None;
    assert!(found(&facts).starts_with("not known"));
}

#[test]
fn namespaces_are_no_fault_and_say_what_they_mean() {
    let of = |is_first_pid, is_first_user, mapped_users| {
        let mut facts = healthy();
        facts.environment.namespaces = Some(Namespaces {
            is_first_pid,
            is_first_user,
            mapped_users,
        });
        assert_eq!(complaints(&facts), []);
        of(&facts, "namespaces")
    };
    let first = of(true, true, None);
    assert_eq!(first.found, "the machine's first PID and user namespaces");
    assert_eq!(first.why, None);
    let pid = of(false, true, None);
    assert_eq!(pid.found, "a PID namespace of its own");
    assert!(why(&pid).contains("HEADWORKS_FABRIC names one directory"));
    assert!(why(&pid).contains("private memory") && !why(&pid).contains("65534"));
    let user = of(true, false, Some(65536));
    assert_eq!(
        user.found,
        "a user namespace of its own; 65536 user ids are mapped"
    );
    assert!(why(&user).contains("65534") && !why(&user).contains("private memory"));
    let both = of(false, false, Some(1));
    assert_eq!(
        both.found,
        "a PID and a user namespace of its own; one user id is mapped"
    );
}

#[test]
fn unknown_facts_are_listed() {
    let mut facts = healthy();
    facts.environment.proc = Proc::Missing;
    (facts.environment.namespaces, facts.environment.seccomp) = (None, None);
    (facts.environment.memory_limits, facts.environment.yama) = (None, Yama::Unknown);
    let finding = only(&facts, "/proc", Improvable);
    let expected = "missing; not known: the namespaces, the memory limits of control groups, the mode of seccomp, \
                    Yama's ptrace_scope";
    assert_eq!(finding.found, expected);
    assert_eq!(mend(&finding), "mount -t proc proc /proc");
    // The doctor reports an unknown fact as unknown, and draws no conclusion from it.
    let checks: Vec<_> = advise_all(&facts)
        .iter()
        .map(|finding| finding.check)
        .collect();
    for check in ["namespaces", "memory limit"] {
        assert!(!checks.contains(&check), "{checks:?}");
    }
    let private = of(&facts, "private memory");
    assert!(private.found.contains("unless Yama"), "{private:?}");
    let calls = of(&facts, "system calls");
    assert!(!calls.found.contains("seccomp"), "{calls:?}");
}

#[test]
fn hidden_entries_of_other_processes_are_no_fault() {
    let hiding = |options: &[&str]| {
        let mut facts = healthy();
        let hiding = options.iter().map(|&option| option.to_owned()).collect();
        facts.environment.proc = Proc::Mounted { hiding };
        facts
    };
    assert_eq!(of(&hiding(&[]), "/proc").found, "mounted");
    let facts = hiding(&["hidepid=invisible"]);
    assert_eq!(complaints(&facts), []);
    let expected = "mounted with hidepid=invisible: no process needs the entries of others";
    assert_eq!(of(&facts, "/proc").found, expected);
    let mut facts = hiding(&["subset=pid"]);
    facts.environment.yama = Yama::Unknown;
    let finding = only(&facts, "/proc", Improvable);
    let expected = "mounted with subset=pid; not known: Yama's ptrace_scope";
    assert_eq!((&*finding.found, mend(&finding)), (expected, ""));
}

#[test]
fn a_refused_system_call_is_named_with_its_cost() {
    let refusing = |call| {
        let mut facts = healthy();
        let error = "Operation not permitted".to_owned();
        facts.environment.refused_calls = vec![(call, error)];
        facts.environment.seccomp = Some(Seccomp {
            is_filtered: true,
            no_new_privs: true,
        });
        facts
    };
    for (call, verdict, cost) in [
        (SystemCall::MemfdCreate, Broken, "no software device opens"),
        (SystemCall::PidfdOpen, Improvable, "within 250 ms"),
        (SystemCall::Membarrier, Improvable, "memory fence"),
    ] {
        let mut facts = refusing(call);
        let finding = only(&facts, "system calls", verdict);
        let expected = format!(
            "{} is refused: Operation not permitted; a seccomp filter, no_new_privs",
            call.name()
        );
        assert_eq!(finding.found, expected);
        assert!(why(&finding).contains(cost), "{finding:?}");
        let service = format!("SystemCallFilter={}", call.name());
        assert!(mend(&finding).contains(&service), "{finding:?}");
        facts.container = Some("Docker");
        let finding = only(&facts, "system calls", verdict);
        assert!(
            mend(&finding).contains("--security-opt seccomp="),
            "{finding:?}"
        );
        // Without a filter the kernel is too old.
        facts.environment.seccomp = healthy().environment.seccomp;
        let finding = only(&facts, "system calls", verdict);
        assert!(mend(&finding).starts_with("uname -r"), "{finding:?}");
    }
    let facts = refusing(SystemCall::ProcessVmWritev);
    let finding = only(&facts, "private memory", Improvable);
    assert!(
        finding.found.starts_with("process_vm_writev is refused"),
        "{finding:?}"
    );
    assert!(why(&finding).contains("copied by its owner"), "{finding:?}");
    let finding = of(&facts, "system calls");
    let expected = "memfd_create, pidfd_open and membarrier work; a seccomp filter, no_new_privs";
    assert_eq!(finding.found, expected);
    let finding = of(&healthy(), "system calls");
    let expected = "memfd_create, pidfd_open and membarrier work; no seccomp filter";
    assert_eq!(finding.found, expected);
}

#[test]
fn private_memory_that_the_kernel_does_not_copy_is_improvable() {
    let mut facts = healthy();
    facts.environment.yama = Yama::Absent;
    assert_eq!(of(&facts, "private memory").found, "peers may copy it");
    facts.environment.yama = Yama::Scope(1);
    let finding = only(&facts, "private memory", Improvable);
    assert_eq!(finding.found, "yama.ptrace_scope is 1");
    assert_eq!(mend(&finding), "sysctl kernel.yama.ptrace_scope=0");
    facts.environment.is_dumpable = Some(false);
    let finding = only(&facts, "private memory", Improvable);
    assert!(finding.found.contains("not dumpable"), "{finding:?}");
    assert!(mend(&finding).contains("getcap"), "{finding:?}");
}

//! Situations that a program survives, or in which one line says what to change: sudden ends, forks, several copies of the library,
//! sandboxes, other users, and little of something.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use headworks_softnic::{RECEIVE_QUEUE_HEADER_BYTES, SHARED_BYTES_PER_QP};

use crate::c_programs::compile;
use crate::names::INSTALLED;
use crate::run::{Ended, Fabric, end, library, there_is};

/// Runs a command, which the test has prepared.
fn ended(command: &mut Command) -> Ended {
    end(command.spawn().expect("starts"))
}

/// Whether this process is root. If not, prints that the test is skipped.
fn is_root(why: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: only root {why}");
    }
    is_root
}

/// The lines of the library on standard error.
fn lines(text: &str) -> Vec<&str> {
    let all = text.lines();
    all.filter(|line| line.starts_with("headworks libibverbs: "))
        .collect()
}

#[test]
fn an_end_without_destruction_fails_the_next_request_and_leaves_nothing() {
    let fabric = Fabric::new();
    let Some(pair) = compile(&fabric, "pair", true) else {
        return;
    };
    let Some(next) = compile(&fabric, "wrong", true) else {
        return;
    };
    for words in [
        &["left"][..],
        &["killed"],
        &["private", "left"],
        &["private", "killed"],
    ] {
        let said = fabric.good(&[&[&*pair], words].concat());
        assert!(said.contains("done\n"), "{words:?}: {said}");
        let lines = lines(&said);
        assert_eq!(lines.len(), 1, "{words:?}: {said}");
        assert!(lines[0].contains("no peer that answers"), "{said}");
        // Both processes have left entries, which the next program removes.
        assert!(fabric.file("fabric").exists());
        fabric.good(&[&next]);
        let left = fs::read_dir(fabric.file("fabric"));
        let left = left.map_or(0, |entries| entries.count());
        assert_eq!(left, 0, "{words:?}");
    }
}

#[test]
fn a_thread_forks_while_others_post_and_register() {
    let fabric = Fabric::new();
    let Some(program) = compile(&fabric, "fork_thread", true) else {
        return;
    };
    for _ in 0..5 {
        let said = fabric.good(&[&program]);
        assert!(said.contains("done\n"), "{said}");
    }
}

#[test]
fn the_library_is_opened_by_name_twice_or_beside_others() {
    let fabric = Fabric::new();
    let Some(program) = compile(&fabric, "loads", false) else {
        return;
    };
    let copy = fabric.file("copy.so");
    fs::copy(library(), &copy).expect("copies");
    let (own, copy) = (library(), copy.to_str().expect("a path").to_owned());
    let own = own.to_str().expect("a path");
    let run = |is_preloaded: bool, paths: &[&str]| {
        let mut command = fabric.command(&[&[&*program], paths].concat());
        if !is_preloaded {
            command.env_remove("LD_PRELOAD");
        }
        let done = ended(&mut command);
        assert_eq!(done.code, Some(0), "{paths:?}: {}", done.text);
        done.text.matches("no device").count()
    };
    assert_eq!(run(true, &["libibverbs.so.1"]), 0);
    assert_eq!(run(true, &["libibverbs.so.1", &copy]), 0);
    assert_eq!(run(false, &[own, &copy]), 0);
    let Some(real) = INSTALLED.iter().find(|path| Path::new(path).exists()) else {
        println!("skipped: the installed library: there is none (Debian: libibverbs1)");
        return;
    };
    // The real library has no device of that name.
    assert_eq!(run(true, &["libibverbs.so.1", real]), 1);
    assert_eq!(run(true, &[real, "libibverbs.so.1"]), 1);
    assert_eq!(run(false, &[own, real]), 1);
}

#[test]
fn a_sandbox_that_forbids_copies_between_processes_loses_only_datagrams_to_private_memory() {
    let fabric = Fabric::new();
    let (Some(pair), Some(sandbox)) = (
        compile(&fabric, "pair", true),
        compile(&fabric, "sandbox", false),
    ) else {
        return;
    };
    for words in [&[][..], &["private"], &["ud"]] {
        let said = fabric.good(&[&[&*sandbox, &*pair], words].concat());
        let is_lost = said.contains("lost\n");
        assert!(said.contains("done\n") && !is_lost, "{words:?}: {said}");
        // One of the two is in the sandbox.
        let said = fabric.good(&[&[&*pair], words, &["--", &*sandbox]].concat());
        assert!(said.contains("done\n"), "{words:?}: {said}");
    }
    let said = fabric.good(&[&sandbox, &pair, "ud", "private"]);
    assert!(said.contains("the datagram was lost"), "{said}");
    for line in lines(&said) {
        for expected in ["process_vm_writev", "allow this system call", "whole pages"] {
            assert!(line.contains(expected), "{line}");
        }
    }
    // Each of the two processes says it once.
    assert_eq!(lines(&said).len(), 2, "{said}");
}

#[test]
fn another_user_is_told_apart_in_one_line() {
    if !is_root("becomes another user") || !there_is("setpriv") {
        return;
    }
    let fabric = Fabric::new();
    let Some(pair) = compile(&fabric, "pair", true) else {
        return;
    };
    // The other user reads the program and the library.
    let copy = fabric.file("library.so");
    fs::copy(library(), &copy).expect("copies");
    let folder = copy.parent().expect("a folder");
    fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("is ours");
    let open = fabric.file("open");
    fs::create_dir(&open).expect("a folder");
    fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("is ours");
    let nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let with = |wrapper: &[&str]| {
        let words = [&[&*pair, "--"], wrapper].concat();
        let done = ended(fabric.command(&words).env("LD_PRELOAD", &copy));
        assert_ne!(done.code, Some(0), "{}", done.text);
        assert_ne!(done.code, None, "{}", done.text);
        done.text
    };
    let said = with(&nobody);
    assert!(said.contains("opened no device"), "{said}");
    let lines_of_it = lines(&said);
    assert_eq!(lines_of_it.len(), 1, "{said}");
    for expected in [
        "belongs to user 0, not to us (user 65534)",
        "set HEADWORKS_FABRIC",
    ] {
        assert!(lines_of_it[0].contains(expected), "{said}");
    }
    // Each with a registry of its own: the devices have the same addresses, and the first queue pairs the same numbers.
    let own = format!("HEADWORKS_FABRIC={}", open.join("own").display());
    let said = with(&[&nobody[..], &["env", &own]].concat());
    let lines = lines(&said);
    assert!(!lines.is_empty(), "{said}");
    for line in lines {
        assert!(
            line.contains("HEADWORKS_FABRIC; this program's is "),
            "{said}"
        );
    }
    // Two processes of the other user meet.
    let mut command = fabric.command(&[&nobody[..], &[&*pair]].concat());
    command
        .env("LD_PRELOAD", &copy)
        .env("HEADWORKS_FABRIC", open.join("both"));
    let done = ended(&mut command);
    assert_eq!(done.code, Some(0), "{}", done.text);
}

#[test]
fn more_memory_than_a_small_dev_shm_holds_is_registered() {
    if !is_root("mounts a /dev/shm") || !there_is("unshare") {
        return;
    }
    let fabric = Fabric::new();
    let Some(program) = compile(&fabric, "many", true) else {
        return;
    };
    let script = "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec \"$0\" big";
    let words = ["unshare", "-m", "sh", "-c", script, &program];
    let mut command = fabric.command(&words);
    // The registry is in the small /dev/shm.
    let said = ended(command.env("HEADWORKS_FABRIC", "/dev/shm/registry"));
    if said.text.contains("unshare failed") || said.text.contains("permission denied") {
        println!("skipped: this root may not mount: {}", said.text);
        return;
    }
    assert_eq!(said.code, Some(0), "{}", said.text);
    assert!(said.text.contains("done\n"), "{}", said.text);
}

#[test]
fn a_thousand_descriptors_are_enough_for_more_objects_and_one_line_says_what_is_slower() {
    let fabric = Fabric::new();
    let Some(program) = compile(&fabric, "many", true) else {
        return;
    };
    let said = fabric.good(&[&program, "many"]);
    assert!(said.contains("done\n"), "{said}");
    let told = lines(&said);
    let limit = told.iter().filter(|line| line.contains("ulimit -n"));
    assert_eq!(limit.count(), 1, "{said}");
}

#[test]
fn a_queue_pair_takes_at_most_a_kib_beside_its_queues() {
    let fabric = Fabric::new();
    let Some(program) = compile(&fabric, "many", true) else {
        return;
    };
    let shared = SHARED_BYTES_PER_QP - RECEIVE_QUEUE_HEADER_BYTES;
    // A receive queue of its own takes 128 bytes of heap beside its slots and their header.
    for (receives, most) in [("srq", 1024 - shared), ("own", 1024 + 128 - shared)] {
        let mut command = fabric.command(&[&program, "light", receives, &most.to_string()]);
        // glibc counts the blocks in a thread's cache as allocated. The tunable turns the caches off.
        let said = ended(command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0"));
        assert_eq!(said.code, Some(0), "{}", said.text);
        assert!(said.text.contains("done\n"), "{}", said.text);
    }
}

#[test]
fn memory_without_room_for_a_copy_is_registered_or_refused() {
    let fabric = Fabric::new();
    let Some(program) = compile(&fabric, "many", true) else {
        return;
    };
    let said = fabric.good(&[&program, "full"]);
    assert!(said.contains("done\n"), "{said}");
}

//! C programs of `tests/c`, compiled with the headers of libibverbs.

use std::path::Path;
use std::process::Command;

use crate::run::{Fabric, library, text_of, there_is};

/// Compiles a program to a file of the fabric, linked with the library if `is_linked`. If that is not possible, prints that the test is
/// skipped.
pub(crate) fn compile(fabric: &Fabric, name: &str, is_linked: bool) -> Option<String> {
    if !there_is("cc") || !Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("skipped: no C compiler, or no infiniband/verbs.h (Debian: libibverbs-dev)");
        return None;
    }
    let program = fabric.file(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(name)
        .with_extension("c");
    let mut compiler = Command::new("cc");
    compiler.args([
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-pthread",
    ]);
    compiler.arg(source).arg("-o").arg(&program);
    match is_linked {
        true => compiler.arg(library()),
        false => compiler.arg("-ldl"),
    };
    text_of(compiler.output().expect("cc runs"));
    Some(program.to_str().expect("a path").to_owned())
}

/// Compiles and runs a program, which must succeed.
fn run(name: &str) {
    let fabric = Fabric::new();
    if let Some(program) = compile(&fabric, name, true) {
        let said = fabric.good(&[&program]);
        assert!(said.contains("done\n"), "{said}");
    }
}

#[test]
fn wrong_arguments_are_refused_and_used_objects_are_busy() {
    run("wrong");
}

#[test]
fn the_extended_interface_posts_and_polls() {
    run("extended");
}

#[test]
fn events_wait_as_the_program_asks() {
    run("events");
}

#[test]
fn whole_pages_become_shared_and_hold_their_bytes() {
    run("memory");
}

#[test]
fn forks_threads_and_loading_by_name() {
    run("processes");
}

#[test]
fn regions_have_addresses_of_their_own_and_keep_their_keys() {
    run("regions");
}

#[test]
fn the_files_of_the_devices_are_found() {
    run("files");
}

#[test]
fn completions_of_a_reset_queue_pair_are_discarded_and_no_others() {
    run("reset");
}

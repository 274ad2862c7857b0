//! Compares the declared layouts and numbers with the C headers of libibverbs, where these and a C compiler are installed.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use headworks_verbs_abi::OPERATION_FIELDS;
use headworks_verbs_abi::layout::{all, numbers};

/// Compiles `text`. Returns the C compiler's errors; `None` if there is no compiler.
fn compile(text: &str) -> Option<Result<(), String>> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("headers.c");
    fs::write(&file, text).expect("a temporary file");
    let compiled = Command::new("cc").arg("-fsyntax-only").arg(&file).output();
    let compiled = compiled.ok()?;
    let said = String::from_utf8_lossy(&compiled.stderr).into_owned();
    Some(match compiled.status.success() {
        true => Ok(()),
        false => Err(said),
    })
}

const INCLUDE: &str = "#include <infiniband/verbs.h>\n#include <stddef.h>\n";

/// Assertions of C that every layout and number is that of the headers.
fn assertions() -> String {
    let mut text = INCLUDE.to_owned();
    let mut says = |what: String, name: &str| {
        writeln!(text, "_Static_assert({what}, \"{name}\");").expect("text");
    };
    let offset = |name: &str, field: &str, at: usize| {
        let end = format!("sizeof(struct {name})");
        match name {
            // Newer headers add fields at its front.
            "verbs_context" => format!("{end} - offsetof(struct {name}, {field}) == {}", 648 - at),
            _ => format!("offsetof(struct {name}, {field}) == {at}"),
        }
    };
    for one in all() {
        let relation = match (one.grows, one.name) {
            (true, _) | (_, "verbs_context") => ">=",
            _ => "==",
        };
        says(
            format!("sizeof(struct {}) {relation} {}", one.name, one.size),
            one.name,
        );
        for (field, at) in one.fields {
            says(
                offset(one.name, field, *at),
                &format!("{}.{field}", one.name),
            );
        }
    }
    for (field, at) in OPERATION_FIELDS {
        says(offset("ibv_send_wr", field, *at), field);
    }
    for (name, number) in numbers() {
        says(format!("{name} == {number}"), name);
    }
    text
}

#[test]
fn the_headers_agree() {
    if !cfg!(target_arch = "x86_64") {
        println!("skipped: the offsets are those of x86-64");
        return;
    }
    if compile(INCLUDE) != Some(Ok(())) {
        println!("skipped: no C compiler, or no infiniband/verbs.h (Debian: libibverbs-dev)");
        return;
    }
    let text = assertions();
    assert!(text.lines().count() > 400, "all types are listed");
    assert_eq!(compile(&text), Some(Ok(())));
}

//! A registry in which somebody wrote files of his own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use headworks_shm::{ContextRecord, FabricDir, HostKey, ProcessId};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::hosts::fabric;
use crate::input::Input;

const NAMES: [&str; 10] = [
    "c.0000000000000001.0000",
    "c.0000000000000001.0001",
    "c.1.0",
    "c..",
    "o.name",
    "n.name",
    "o.",
    "t.1.1",
    "t.",
    "other",
];

pub(super) fn run(bytes: &[u8]) {
    let fabric = fabric();
    let mut input = Input::new(bytes);
    let us = ProcessId::current().expect("this process");
    let ours = record(us);
    // Found out rather than known: what an entry of ours looks like.
    let claim = fabric
        .claim_context(HostKey(1), &ours)
        .expect("a new registry");
    let (name, entry) = the_entry(fabric.path());
    let mut odd = false;
    while !input.is_over() {
        let file = match input.below(NAMES.len() + 4) {
            at if at < NAMES.len() => NAMES[at].to_owned(),
            // The name of an entry, nearly.
            _ => changed_name(&mut input, &name),
        };
        odd |= !put(&mut input, &fabric.path().join(file), &entry);
        use_it(&mut input, &fabric, &ours);
    }
    drop(claim);
    clear(fabric.path());
    // Whatever was there, the registry serves who comes next.
    if !odd {
        let fabric = super::hosts::fabric();
        let claim = fabric
            .claim_context(HostKey(2), &ours)
            .expect("it is empty");
        let found = fabric.lookup(HostKey(2), claim.index).expect("readable");
        assert_eq!(found.as_ref(), Some(&ours));
        let name = fabric.bind_name("name").expect("a free name");
        fabric.connect_name("name").expect("a listener");
        drop(name);
    }
}

fn record(process: ProcessId) -> ContextRecord {
    ContextRecord {
        process,
        layout_version: headworks_shm::segment::LAYOUT_VERSION,
        segment_fd: 3,
        wake_fd: 4,
        incarnation: 5,
        host_name: "h1".to_owned(),
    }
}

/// The one entry of a registry, and its name.
fn the_entry(folder: &Path) -> (String, Vec<u8>) {
    let entry = fs::read_dir(folder)
        .expect("the registry")
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .find(|name| name.starts_with("c."))
        .expect("what was claimed");
    let bytes = fs::read(folder.join(&entry)).expect("readable");
    (entry, bytes)
}

fn changed_name(input: &mut Input<'_>, name: &str) -> String {
    let at = 2 + input.below(name.len() - 2);
    let by = input.pick(&['0', '1', 'f', '.', '-', 'z', '+', 'F']);
    name.char_indices()
        .map(|(index, old)| if index == at { by } else { old })
        .collect()
}

/// Makes a file; says whether it is an ordinary one.
fn put(input: &mut Input<'_>, path: &Path, entry: &[u8]) -> bool {
    let _ = fs::remove_file(path);
    match input.byte() {
        250.. => {
            let _ = mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
            false
        }
        246.. => {
            let _ = symlink("/dev/zero", path);
            false
        }
        242.. => {
            let _ = fs::create_dir(path);
            false
        }
        kind => {
            let mut bytes = entry.to_vec();
            if kind % 4 == 0 {
                bytes.clear();
            }
            for _ in 0..kind % 5 {
                if let Some(at) = (!bytes.is_empty()).then(|| input.below(bytes.len())) {
                    bytes[at] = input.byte();
                }
            }
            bytes.truncate(bytes.len().min(usize::from(input.byte())));
            let more = input.byte().into();
            bytes.extend_from_slice(input.bytes(more));
            let _ = fs::write(path, bytes);
            true
        }
    }
}

fn use_it(input: &mut Input<'_>, fabric: &Arc<FabricDir>, ours: &ContextRecord) {
    match input.byte() % 6 {
        0 => {
            let _ = fabric.list();
        }
        1 => {
            let _ = fabric.lookup(HostKey(input.byte().into()), u16::from(input.byte()) % 3);
        }
        2 => {
            let host = HostKey(input.byte().into());
            let _ = fabric.claim_context(host, ours).map(drop);
        }
        3 => {
            let _ = fabric.connect_name("name").map(drop);
        }
        4 => {
            let _ = fabric.bind_name("name").map(drop);
        }
        _ => {
            let name = String::from_utf8_lossy(input.bytes(4)).into_owned();
            let _ = fabric.connect_name(&name).map(drop);
        }
    }
}

/// Away with what the input left.
fn clear(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if fs::remove_file(&path).is_err() {
            let _ = fs::remove_dir(&path);
        }
    }
}

//! A registry in which another program has written files of its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use headworks_shm::{
    CommonSegmentClaim, ContextRecord, HostKey, ProcessId, Registry, RegistryError,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::fixtures::registry;
use crate::input::Input;

const NAMES: [&str; 15] = [
    "p.00000",
    "p.00001",
    "p.0",
    "d.00001",
    "id",
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

/// Names of entries for holders of common segments. The name of this process's entry is added at run time.
const COMMON_NAMES: [&str; 4] = ["s.key.1.0", "s.key.1.1", "s.other.1.0", "s.key"];
const COMMON_BYTES: usize = 64;

pub(super) fn run(bytes: &[u8]) {
    let fabric = registry();
    let mut input = Input::new(bytes);
    let member = fabric.join().expect("a new registry");
    let ours = record(member.id());
    // Claim a context and a segment to obtain the content and the names of valid entries.
    let claim = fabric
        .claim_context(HostKey(1), &member, &ours)
        .expect("a new registry");
    let (name, entry) = the_entry(fabric.path(), "c.");
    let common = hold(&fabric, "key").expect("nobody else's");
    let (common_name, common_entry) = the_entry(fabric.path(), "s.");
    let mut odd = false;
    while !input.is_over() {
        let (file, entry) = match input.below(NAMES.len() + 4 + COMMON_NAMES.len() + 4) {
            at if at < NAMES.len() => (NAMES[at].to_owned(), &entry),
            // The name of a context's entry, with one changed character.
            at if at < NAMES.len() + 4 => (changed_name(&mut input, &name), &entry),
            at => match COMMON_NAMES.get(at - NAMES.len() - 4) {
                Some(&name) => (name.to_owned(), &common_entry),
                // The name of the segment's entry, or that name with one changed character.
                None if input.byte().is_multiple_of(2) => (common_name.clone(), &common_entry),
                None => (changed_name(&mut input, &common_name), &common_entry),
            },
        };
        odd |= !put(&mut input, &fabric.path().join(file), entry);
        exercise(&mut input, &fabric, &ours);
    }
    drop((claim, common, member));
    clear(fabric.path());
    // After the files are removed, the registry must work again. (Special files may have been left.)
    if !odd {
        let fabric = super::fixtures::registry();
        let member = fabric.join().expect("it is empty");
        let ours = record(member.id());
        let claim = fabric
            .claim_context(HostKey(2), &member, &ours)
            .expect("it is empty");
        let found = fabric
            .lookup_context(HostKey(2), claim.index)
            .expect("readable");
        assert_eq!(found.as_ref(), Some(&ours));
        let name = fabric.bind_name("name").expect("a free name");
        fabric.connect_name("name").expect("a listener");
        drop(name);
        let common = hold(&fabric, "key").expect("it is empty");
        assert!(common.is_first());
        let again = hold(&fabric, "key").expect("ours");
        assert!(!again.is_first());
    }
}

fn hold(fabric: &Arc<Registry>, key: &str) -> Result<CommonSegmentClaim, RegistryError> {
    fabric.claim_common_segment(key, COMMON_BYTES, 1)
}

fn record(process: ProcessId) -> ContextRecord {
    ContextRecord {
        process,
        layout_version: headworks_shm::segment::LAYOUT_VERSION,
        incarnation: 5,
        host_name: "h1".to_owned(),
    }
}

/// Returns the name and the content of the entry whose name starts with `beginning`.
fn the_entry(folder: &Path, beginning: &str) -> (String, Vec<u8>) {
    let entry = fs::read_dir(folder)
        .expect("the registry")
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .find(|name| name.starts_with(beginning))
        .expect("the entry of the claim");
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

/// Makes a file as the input describes. Returns whether it is a regular file.
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

fn exercise(input: &mut Input<'_>, fabric: &Arc<Registry>, ours: &ContextRecord) {
    match input.byte() % 8 {
        0 => {
            let _ = fabric.list_contexts();
        }
        1 => {
            let _ =
                fabric.lookup_context(HostKey(input.byte().into()), u16::from(input.byte()) % 3);
        }
        2 => {
            let host = HostKey(input.byte().into());
            if let Ok(member) = fabric.join() {
                let _ = fabric.claim_context(host, &member, ours).map(drop);
            }
        }
        3 => {
            let _ = fabric.connect_name("name").map(drop);
        }
        4 => {
            let _ = fabric.bind_name("name").map(drop);
        }
        5 => {
            let name = String::from_utf8_lossy(input.bytes(4)).into_owned();
            let _ = fabric.connect_name(&name).map(drop);
        }
        6 => {
            if let Ok(claim) = hold(fabric, input.pick(&["key", "other"])) {
                // Whichever entry led to the segment, it must have the promised length.
                assert_eq!(claim.segment().len(), COMMON_BYTES);
            }
        }
        _ => {
            for (_, record) in fabric.common_segments().unwrap_or_default().entries {
                let _ = fabric.attach_common_segment_read_only(&record).map(drop);
            }
        }
    }
}

/// Removes the files that the input made.
fn clear(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if fs::remove_file(&path).is_err() {
            let _ = fs::remove_dir(&path);
        }
    }
}

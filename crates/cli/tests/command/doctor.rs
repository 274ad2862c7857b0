//! `headworks doctor` examines the software device, and other commands then find what it reported.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::test_env::TestEnv;

/// Output of the doctor.
struct Verdict {
    code: Option<i32>,
    text: String,
    complaint: String,
}

/// Runs the doctor. `registry` names another registry than the one of `fabric`.
fn doctor(fabric: &TestEnv, args: &[&str], registry: Option<&OsStr>) -> Verdict {
    let mut command = fabric.headworks(&[&["doctor"], args].concat());
    if let Some(registry) = registry {
        command.env("HEADWORKS_FABRIC", registry);
    }
    let ended = command.stdout(Stdio::piped()).output().expect("starts");
    Verdict {
        code: ended.status.code(),
        text: String::from_utf8(ended.stdout).expect("text"),
        complaint: String::from_utf8(ended.stderr).expect("text"),
    }
}

impl Verdict {
    /// Checks that the software device is broken for these reasons, and returns what the doctor says of it.
    fn is_broken(&self, found: &str, why: &str, mend: &str) {
        assert_eq!(self.code, Some(1), "{} {}", self.text, self.complaint);
        assert_eq!(self.complaint.lines().count(), 1, "{}", self.complaint);
        let lines: Vec<_> = self.text.lines().take(3).collect();
        let [first, second, third] = lines[..] else {
            panic!("{}", self.text)
        };
        assert!(first.starts_with("BROKEN software device"), "{first}");
        assert!(first.contains(found), "{first}");
        assert!(second.trim().starts_with(why), "{second}");
        assert!(third.trim().starts_with(mend), "{third}");
    }
}

/// Whether this machine has devices that may be broken themselves.
fn has_rdma_devices() -> bool {
    Path::new("/sys/class/infiniband").exists()
}

#[test]
fn the_doctor_opens_a_software_device_and_leaves_nothing() {
    let fabric = TestEnv::new();
    let said = doctor(&fabric, &[], None);
    let registry = fabric.registry().display().to_string();
    let expected = format!("ok     software device soft works; its registry is {registry}\n");
    assert!(said.text.starts_with(&expected), "{}", said.text);
    if !has_rdma_devices() {
        assert_eq!(said.code, Some(0), "{} {}", said.text, said.complaint);
        assert_eq!(said.complaint, "");
    }
    assert!(!fabric.registry().exists());
    let said = doctor(&fabric, &["--json"], None);
    let findings: Vec<Value> = serde_json::from_str(&said.text).expect("an array");
    assert_eq!(findings[0]["check"], "software device");
    assert_eq!(findings[0]["verdict"], "ok");
    for check in [
        "namespaces",
        "/proc",
        "shared memory",
        "system calls",
        "private memory",
    ] {
        let found = findings.iter().any(|finding| finding["check"] == check);
        assert!(found, "{check}: {}", said.text);
    }
    assert!(!fabric.registry().exists());
}

#[test]
fn the_doctor_disturbs_no_process_of_the_registry() {
    let fabric = TestEnv::new();
    let mut listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    let entries = || {
        let entries = std::fs::read_dir(fabric.registry())
            .expect("the registry")
            .flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        names.sort();
        names
    };
    let before = entries();
    let said = doctor(&fabric, &[], None);
    assert!(
        said.text.starts_with("ok     software device"),
        "{}",
        said.text
    );
    assert_eq!(entries(), before);
    fabric
        .connect(&[], "a", Stdio::null(), Stdio::null())
        .expect_exit(0);
    listener.expect_exit(0);
    fabric.is_clean();
}

#[test]
fn a_registry_that_cannot_be_made_is_broken() {
    let fabric = TestEnv::new();
    let file = fabric.file("file");
    std::fs::write(&file, "").expect("writes");
    let below = file.join("registry");
    let mend = "$ HEADWORKS_FABRIC=/path/to/a/directory headworks doctor";
    let said = doctor(&fabric, &[], Some(below.as_os_str()));
    let why = format!("{} is not a directory", file.display());
    said.is_broken("cannot open soft:doctor: the registry", &why, mend);
    // Another command gets the same error.
    let mut pipe = fabric.headworks(&["pipe", "listen", "a"]);
    let ended = pipe
        .env("HEADWORKS_FABRIC", &below)
        .output()
        .expect("starts");
    let complaint = String::from_utf8(ended.stderr).expect("text");
    let reason = said
        .text
        .lines()
        .next()
        .and_then(|line| line.split_once("soft:doctor: "));
    let (_, reason) = reason.expect("an error");
    assert!(complaint.contains(reason), "{complaint}, not {reason}");
    let said = doctor(&fabric, &[], Some("/proc/nowhere".as_ref()));
    let user = rustix::process::getuid();
    let why = match user.is_root() {
        true => "no directory can be made in /proc".to_owned(),
        false => format!("user {} may not write to /proc", user.as_raw()),
    };
    said.is_broken("No such file", &why, mend);
    let around = file.parent().expect("a directory");
    let left = std::fs::read_dir(around).expect("lists").flatten();
    let left: Vec<_> = left.map(|entry| entry.path()).collect();
    assert_eq!(left, [file]);
}

#[test]
fn a_read_only_file_system_is_broken() {
    let fabric = TestEnv::new();
    let place = fabric.file("volume");
    std::fs::create_dir(&place).expect("made");
    let shell = |script: &str| {
        let script = format!(
            "mount -t tmpfs -o ro none '{}' && {script}",
            place.display()
        );
        ["unshare", "--mount", "sh", "-c"]
            .map(str::to_owned)
            .into_iter()
            .chain([script])
    };
    let tried: Vec<_> = shell("true").collect();
    match Command::new(&tried[0]).args(&tried[1..]).output() {
        Ok(made) if made.status.success() => {}
        tried => return println!("skipped: no mount of its own: {tried:?}"),
    }
    let launcher: Vec<_> = shell("exec \"$0\" \"$@\"").collect();
    let launcher: Vec<_> = launcher.iter().map(String::as_str).collect();
    let fabric = fabric.with_launcher(&launcher);
    let registry = place.join("registry");
    let said = doctor(&fabric, &[], Some(registry.as_os_str()));
    let why = format!(
        "the file system of {} is mounted read-only",
        place.display()
    );
    said.is_broken("Read-only file system", &why, "$ HEADWORKS_FABRIC=");
    assert!(std::fs::read_dir(&place).expect("lists").next().is_none());
}

#[test]
fn too_small_a_file_size_limit_is_broken() {
    // In blocks of 512 or 1024 bytes, depending on the shell: less than a device needs.
    let fabric = TestEnv::new().with_launcher(&["sh", "-c", "ulimit -f 16; exec \"$0\" \"$@\""]);
    let said = doctor(&fabric, &[], None);
    let why = "a file of this process may have";
    said.is_broken(
        "the file size limit (ulimit -f)",
        why,
        "$ ulimit -f unlimited",
    );
    assert!(!fabric.registry().exists());
}

#[test]
fn a_bundle_is_written_once_and_names_nobody() {
    let fabric = TestEnv::new();
    let file = fabric.file("report.tar");
    let path = file.to_str().expect("text");
    let bundle = |args: &[&str]| {
        let mut command = fabric.headworks(&[&["doctor", "--bundle", path], args].concat());
        command
            .env("HEADWORKS_SEED", "198.51.100.7")
            .env("UCX_TLS", "rc")
            .env("HEADWORKS_PLACE", concat!("/ho", "me/somebody/x"))
            .stdout(Stdio::piped());
        command.output().expect("starts")
    };
    let written = bundle(&[]);
    let said = String::from_utf8(written.stdout).expect("text");
    assert_eq!(written.status.code(), Some(0), "{said}");
    let bytes = std::fs::read(&file).expect("the archive");
    let mut archive = tar::Archive::new(&*bytes);
    let mut texts = Vec::new();
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        let mut text = String::new();
        std::io::Read::read_to_string(&mut entry, &mut text).expect("text");
        texts.push((entry.path().expect("a path").display().to_string(), text));
    }
    for name in [
        "contents.txt",
        "doctor.json",
        "devices.txt",
        "versions.txt",
        "limits.txt",
    ] {
        let path = format!("headworks-report/{name}");
        assert!(said.contains(name), "{said}");
        let (_, text) = texts.iter().find(|(there, _)| *there == path).expect(name);
        assert!(!text.is_empty(), "{name}");
    }
    let text_of = |name: &str| {
        let found = texts.iter().find(|(path, _)| path.ends_with(name));
        &found.expect(name).1
    };
    serde_json::from_str::<Vec<Value>>(text_of("doctor.json")).expect("an array");
    let variables = text_of("environment.txt");
    assert!(variables.contains("UCX_TLS=rc\n"), "{variables}");
    assert!(variables.contains("HEADWORKS_SEED=addr-"), "{variables}");
    let all: String = texts.iter().map(|(_, text)| text.as_str()).collect();
    assert!(!all.contains("198.51.100.7") && !all.contains("somebody"));
    assert!(said.contains("Replaced: addresses: "), "{said}");
    // A second bundle does not replace the first.
    let again = bundle(&["--with-addresses"]);
    let complaint = String::from_utf8(again.stderr).expect("text");
    assert_eq!(again.status.code(), Some(2), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    assert!(complaint.contains("is not replaced"), "{complaint}");
    assert_eq!(std::fs::read(&file).expect("the archive"), bytes);
    std::fs::remove_file(&file).expect("removed");
    assert_eq!(bundle(&["--with-addresses"]).status.code(), Some(0));
    let bytes = std::fs::read(&file).expect("the archive");
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("HEADWORKS_SEED=198.51.100.7\n"));
    let folder = file.parent().expect("a directory");
    let left = std::fs::read_dir(folder).expect("lists").flatten();
    let left: Vec<_> = left.map(|entry| entry.path()).collect();
    assert_eq!(left, [file]);
}

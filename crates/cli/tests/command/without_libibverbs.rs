//! libibverbs is loaded at run time only: one program works with it and without it.

use std::path::Path;
use std::process::Command;

use crate::test_env::TestEnv;

/// Directory in which the dynamic linker looks first for libibverbs.
struct Libraries(tempfile::TempDir);

impl Libraries {
    /// The directory has a file of that name which is no library.
    fn broken() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("libibverbs.so.1"), "none").expect("writes");
        Self(dir)
    }

    /// The directory has a stand-in library with one device. Returns `None` without a C compiler.
    fn stand_in() -> Option<Self> {
        let dir = tempfile::tempdir().expect("a directory");
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../ibverbs/tests/stand_in/libibverbs.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(dir.path().join("libibverbs.so.1"))
            .arg(source)
            .status();
        match compiled {
            Ok(status) => assert!(status.success(), "{status}"),
            Err(why) => {
                println!("skipped: no C compiler ({why})");
                return None;
            }
        }
        Some(Self(dir))
    }

    /// Runs the program, which must succeed, and returns its standard output.
    fn headworks(&self, fabric: &TestEnv, args: &[&str]) -> String {
        let mut command = fabric.headworks(args);
        command.env("LD_LIBRARY_PATH", self.0.path());
        let ended = command
            .stdout(std::process::Stdio::piped())
            .output()
            .expect("starts");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{}: {errors}", ended.status);
        assert_eq!(errors, "");
        String::from_utf8(ended.stdout).expect("text")
    }
}

/// Returns the part of a list that is about soft devices.
fn of_soft(said: &str) -> String {
    let is_of = |block: &&str| block.starts_with("soft");
    let indented = said.replace("\n    ", "\u{1}");
    indented.lines().filter(is_of).collect()
}

#[test]
fn a_missing_libibverbs_is_named_and_soft_devices_work() {
    let fabric = TestEnv::new();
    let broken = Libraries::broken();
    let said = broken.headworks(&fabric, &["devices"]);
    let line = said.lines().last().expect("lines");
    assert!(
        line.starts_with("ibv: ") && line.contains("apt-get install libibverbs1"),
        "{said}"
    );
    assert!(!of_soft(&said).is_empty(), "{said}");
    let is_device = |line: &str| line.starts_with("ibv:") && !line.starts_with("ibv: ");
    assert!(!said.lines().any(is_device), "{said}");
    let json = broken.headworks(&fabric, &["devices", "--json"]);
    assert!(
        json.contains("\"soft:") && !json.contains("\"ibv"),
        "{json}"
    );
    // Without a device, a missing library is no problem for the doctor.
    if !Path::new("/sys/class/infiniband").exists() {
        let said = broken.headworks(&fabric, &["doctor"]);
        assert!(said.contains("no RDMA device: the software one"), "{said}");
        assert!(said.contains("cargo xtask rxe"), "{said}");
        assert!(said.contains("$ apt-get install libibverbs1"), "{said}");
    }
    // A request for such a device fails with one line.
    let mut asked = fabric.headworks(&["pipe", "listen", "x", "--device", "ibv:mlx5_0"]);
    asked.env("LD_LIBRARY_PATH", broken.0.path());
    let ended = asked.output().expect("starts");
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{errors}");
    assert!(errors.contains("apt-get install libibverbs1"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn with_libibverbs_the_same_program_lists_its_devices() {
    let fabric = TestEnv::new();
    let Some(stand_in) = Libraries::stand_in() else {
        return;
    };
    let said = stand_in.headworks(&fabric, &["devices"]);
    assert!(said.contains("ibv:stand_in0\n"), "{said}");
    assert!(!said.contains("install"), "{said}");
    let broken = Libraries::broken().headworks(&fabric, &["devices"]);
    assert_eq!(of_soft(&said), of_soft(&broken));
    let json = stand_in.headworks(&fabric, &["devices", "--json"]);
    assert!(json.contains("\"ibv:stand_in0\""), "{json}");
}

/// Libraries and symbols that a 64-bit ELF file requires from the dynamic linker.
struct ElfDependencies {
    libraries: Vec<String>,
    /// Symbols that it does not define.
    symbols: Vec<String>,
}

/// Reads a little-endian number of `N` bytes at an offset.
fn number<const N: usize>(file: &[u8], at: usize) -> usize {
    let bytes: [u8; N] = file[at..at + N].try_into().expect("so many");
    bytes
        .iter()
        .rev()
        .fold(0, |all, byte| all << 8 | usize::from(*byte))
}

impl ElfDependencies {
    /// Reads the requirements by the section headers of the file (System V ABI, chapters 4 and 5).
    fn by(file: &[u8]) -> Self {
        const DYNAMIC: usize = 6;
        const DYNSYM: usize = 11;
        const NEEDED: usize = 1;
        assert_eq!(&file[..6], b"\x7fELF\x02\x01", "64 bits, little-endian");
        let (sections, count) = (number::<8>(file, 0x28), number::<2>(file, 0x3c));
        let section = |index: usize| sections + index * 0x40;
        let kind = |at: &usize| number::<4>(file, at + 4);
        let bounds = |at: usize| {
            let start = number::<8>(file, at + 0x18);
            start..start + number::<8>(file, at + 0x20)
        };
        let mut asked = Self {
            libraries: Vec::new(),
            symbols: Vec::new(),
        };
        for at in (0..count).map(section) {
            let names = bounds(section(number::<4>(file, at + 0x28))).start;
            let name = |offset: usize| {
                let bytes = file[names + offset..].split(|&byte| byte == 0);
                let bytes = bytes.into_iter().next().unwrap_or_default();
                String::from_utf8_lossy(bytes).into_owned()
            };
            match kind(&at) {
                DYNAMIC => {
                    let entries = bounds(at).step_by(16);
                    let needed = entries.filter(|&entry| number::<8>(file, entry) == NEEDED);
                    let offsets = needed.map(|entry| number::<8>(file, entry + 8));
                    asked.libraries.extend(offsets.map(name));
                }
                DYNSYM => {
                    let entries = bounds(at).step_by(24).skip(1);
                    let undefined = entries.filter(|&entry| number::<2>(file, entry + 6) == 0);
                    let offsets = undefined.map(|entry| number::<4>(file, entry));
                    asked.symbols.extend(offsets.map(name));
                }
                _ => {}
            }
        }
        asked
    }
}

#[test]
fn the_program_needs_no_library_of_rdma_to_start() {
    let file = std::fs::read(env!("CARGO_BIN_EXE_headworks")).expect("the program");
    let asked = ElfDependencies::by(&file);
    // The file was read at all.
    assert!(
        asked.libraries.iter().any(|name| name.starts_with("libc.")),
        "{:?}",
        asked.libraries
    );
    assert!(asked.symbols.iter().any(|name| name == "dlopen"));
    let is_of_rdma = |name: &&String| {
        let parts = ["ibverbs", "rdmacm", "ibv_", "rdma_", "libmlx", "libefa"];
        parts.iter().any(|part| name.contains(part))
    };
    let names = || asked.libraries.iter().chain(&asked.symbols);
    assert_eq!(names().find(is_of_rdma), None);
}

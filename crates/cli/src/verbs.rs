//! `headworks verbs`: runs a verbs program with the drop-in libibverbs.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::exit_status::bad_input;

pub(crate) mod fault_plan;

use fault_plan::FaultArgs;

/// Names the library's file, instead of the places where it is looked for.
const LIBRARY: &str = "HEADWORKS_LIBIBVERBS";
/// The library reads the names of its devices here.
const DEVICES: &str = "HEADWORKS_VERBS_DEVICES";
/// The library reads the kind of their ports here.
const LINK: &str = "HEADWORKS_VERBS_LINK";
/// The library reads here which driver's manners its devices have.
const MANNERS: &str = "HEADWORKS_VERBS_MANNERS";
/// The drivers whose manners the library has (`crates/libibverbs/src/manners.rs`).
const DRIVERS: [&str; 10] = [
    "mlx5",
    "mlx5-ib",
    "mlx5-relaxed",
    "mlx5-arm",
    "irdma",
    "bnxt_re",
    "mana",
    "efa",
    "rxe",
    "siw",
];
/// The library reads its faults here.
const FAULTS: &str = "HEADWORKS_VERBS_FAULTS";
/// The library reads the seed of faults here.
const SEED: &str = "HEADWORKS_VERBS_SEED";
/// The dynamic linker loads these libraries first.
const PRELOAD: &str = "LD_PRELOAD";

/// Places of the library, relative to the directory of this program: as installed, and as cargo builds it.
const PLACES: [&str; 3] = [
    "../lib/headworks/libibverbs.so.1",
    "libibverbs.so.1",
    "libibverbs.so",
];

/// Options of `headworks verbs`.
#[derive(clap::Args)]
pub(crate) struct Verbs {
    /// Name of the device that the program sees, such as mlx5_0: letters, digits, `_`, `-` and `.`.
    #[arg(long, default_value = "headworks_0", value_parser = device_name)]
    name: String,
    /// Number of devices, 1 to 64. The number at the end of NAME counts up.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    devices: u64,
    /// Network that the ports seem to be on. On infiniband programs may use LIDs as addresses; on ethernet (RoCE) they need GIDs.
    #[arg(long, value_enum, default_value_t = Link::Ethernet)]
    link: Link,
    /// Driver whose manners the devices have: what they refuse, ignore, reorder and report (docs/driver-manners.md).
    #[arg(long, value_name = "DRIVER", value_parser = clap::builder::PossibleValuesParser::new(DRIVERS))]
    manners: Option<String>,
    #[command(flatten)]
    faults: FaultArgs,
    /// The program and its arguments, after `--`.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

/// Value of `--link`.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Link {
    Ethernet,
    Infiniband,
}

impl Link {
    /// Returns the name that the library knows it by.
    fn name(self) -> &'static str {
        match self {
            Self::Ethernet => "ethernet",
            Self::Infiniband => "infiniband",
        }
    }
}

fn device_name(name: &str) -> Result<String, String> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    // The interface has room for 63 characters, and a number may get longer.
    match !name.is_empty() && name.len() <= 60 && name.chars().all(is_legal) {
        true => Ok(name.to_owned()),
        false => Err("a name has 1 to 60 letters, digits, `_`, `-` and `.`".to_owned()),
    }
}

/// The names of all devices, separated by commas.
fn names(first: &str, count: u64) -> String {
    let stem = first.trim_end_matches(|c: char| c.is_ascii_digit());
    let number: u64 = first[stem.len()..].parse().unwrap_or(0);
    let further = (1..count).map(|at| format!("{stem}{}", number.saturating_add(at)));
    let all: Vec<_> = std::iter::once(first.to_owned()).chain(further).collect();
    all.join(",")
}

/// Runs the program in place of this one. Returns only if that fails.
pub(crate) fn run(args: &Verbs) -> anyhow::Result<()> {
    let plan = args.faults.plan()?;
    let library = library()?;
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| bad_input("no program is given: headworks verbs -- PROGRAM ARGS…"))?;
    let path = find(program)?;
    check_dynamic(&path)?;
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(&path);
    if let Some(plan) = plan {
        command.env(FAULTS, plan.faults);
        command.env(SEED, plan.seed.to_string());
    }
    let error = command
        .arg0(program)
        .args(arguments)
        .env(PRELOAD, preload)
        .env(DEVICES, names(&args.name, args.devices))
        .env(LINK, args.link.name())
        .envs(args.manners.as_ref().map(|driver| (MANNERS, driver)))
        .exec();
    Err(bad_input(format_args!(
        "cannot run {}: {error}",
        path.display()
    )))
}

/// Finds the library's file.
fn library() -> anyhow::Result<PathBuf> {
    let found = match std::env::var_os(LIBRARY) {
        Some(named) => {
            let named = PathBuf::from(named);
            if !named.is_file() {
                return Err(bad_input(format_args!(
                    "{LIBRARY} is {}: there is no such file",
                    named.display()
                )));
            }
            named
        }
        None => {
            let program = std::env::current_exe()?;
            let places = PLACES.map(|place| program.with_file_name(place));
            let found = places.iter().find(|place| place.is_file());
            found.cloned().ok_or_else(|| {
                bad_input(format_args!(
                    "there is no drop-in libibverbs beside {}: build it with `cargo build -p headworks-libibverbs`, or name its file in {LIBRARY}",
                    program.display()
                ))
            })?
        }
    };
    let found = fs::canonicalize(&found)?;
    // The dynamic linker separates names by these, and nothing quotes them.
    match found
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|b| b" :".contains(b))
    {
        true => Err(bad_input(format_args!(
            "the path of the library, {}, has a space or colon, which {PRELOAD} cannot hold: move it",
            found.display()
        ))),
        false => Ok(found),
    }
}

/// Finds a program as a shell does.
fn find(program: &OsStr) -> anyhow::Result<PathBuf> {
    let named = Path::new(program);
    if program.as_bytes().contains(&b'/') {
        return match named.exists() {
            true => Ok(named.to_owned()),
            false => Err(bad_input(format_args!(
                "there is no program {}",
                named.display()
            ))),
        };
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&folders).map(|folder| folder.join(named));
    places.find(|place| place.is_file()).ok_or_else(|| {
        bad_input(format_args!(
            "there is no program {} in PATH",
            named.display()
        ))
    })
}

/// Refuses a program that the dynamic linker does not start: it would run without the library. A script, or a file that
/// cannot be read, passes.
fn check_dynamic(path: &Path) -> anyhow::Result<()> {
    let mut start = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(4096).read_to_end(&mut start));
    match read {
        Err(error) if error.kind() != ErrorKind::PermissionDenied => Err(bad_input(format_args!(
            "cannot read {}: {error}",
            path.display()
        ))),
        Ok(_) if is_static(&start) => Err(bad_input(format_args!(
            "{} is linked statically, so no library can be put into it: link it with libibverbs.so",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Whether a file that begins so is a program of 64-bit ELF without a dynamic linker.
fn is_static(start: &[u8]) -> bool {
    const PROGRAM_HEADER: usize = 56;
    const INTERPRETER: u32 = 3;
    let word = |at: usize| -> Option<u64> {
        let bytes = start.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let half = |at: usize| -> Option<u16> {
        let bytes = start.get(at..at + 2)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    };
    let parts = || -> Option<bool> {
        let headers = usize::try_from(word(0x20)?).ok()?;
        let count = usize::from(half(0x38)?);
        for at in 0..count {
            let kind = word(headers.checked_add(at * PROGRAM_HEADER)?)? as u32;
            if kind == INTERPRETER {
                return Some(false);
            }
        }
        Some(true)
    };
    start.starts_with(b"\x7fELF\x02\x01") && parts().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_are_those_of_the_library() {
        let table = concat!(env!("CARGO_MANIFEST_DIR"), "/../libibverbs/src/manners.rs");
        let table = std::fs::read_to_string(table).expect("the table");
        let named = table.lines().filter_map(|line| {
            let name = line.trim().strip_prefix("name: \"")?;
            name.strip_suffix("\",")
        });
        let named: Vec<_> = named.filter(|name| *name != "none").collect();
        assert_eq!(named, DRIVERS);
    }

    #[test]
    fn the_number_of_a_name_counts_up() {
        assert_eq!(names("mlx5_0", 1), "mlx5_0");
        assert_eq!(names("mlx5_0", 3), "mlx5_0,mlx5_1,mlx5_2");
        assert_eq!(names("rxe9", 2), "rxe9,rxe10");
        assert_eq!(names("a", 2), "a,a1");
        for wrong in ["", "a b", "a,b", "a:1"] {
            device_name(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn this_test_is_linked_dynamically_and_a_short_or_other_file_is_no_error() {
        let own = std::env::current_exe().expect("a program");
        check_dynamic(&own).expect("is dynamic");
        assert!(!is_static(b"#!/bin/sh"));
        assert!(!is_static(b"\x7fELF\x02\x01"));
        let mut header = vec![0; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert!(is_static(&header), "no program header names a linker");
    }
}

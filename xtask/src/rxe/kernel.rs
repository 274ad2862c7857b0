//! The kernel: Debian's, from its package, which is unpacked but not installed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::find;

/// The modules to load. rxe computes checksums with `crc32_generic` but does not depend on it. A pair of
/// `veth` carries the packets between the two devices.
const MODULES: [&str; 12] = [
    "crc32_generic",
    "virtio_pci",
    "virtio_rng",
    "qemu_fw_cfg",
    "9pnet_virtio",
    "9p",
    "overlay",
    "veth",
    "rdma_rxe",
    "rdma_ucm",
    "ib_uverbs",
    "ib_umad",
];

/// A kernel that can be booted.
#[derive(Debug)]
pub(super) struct Kernel {
    /// The version, as `uname -r` prints it.
    pub(super) version: String,
    pub(super) image: PathBuf,
    /// Module files, each after those it depends on.
    pub(super) modules: Vec<PathBuf>,
}

impl Kernel {
    /// The newest kernel in the package lists, from `folder`; downloads it if it is not there.
    pub(super) fn of(folder: &Path) -> Result<Self, String> {
        let package = match newest()? {
            Some(package) => package,
            // Without package lists, use a kernel that an earlier run downloaded.
            None => fetched(folder).ok_or(
                "the package lists have no linux-image-amd64: run apt-get update (Debian)",
            )?,
        };
        let version = package.trim_start_matches("linux-image-").to_owned();
        let image = folder.join("boot").join(format!("vmlinuz-{version}"));
        if !image.is_file() {
            fetch(folder, &package, &version)?;
        }
        let modules = modules(folder, &version)?;
        Ok(Self {
            version,
            image,
            modules,
        })
    }
}

/// The package that `linux-image-amd64` depends on.
fn newest() -> Result<Option<String>, String> {
    let said = output(Command::new("apt-cache").args(["depends", "linux-image-amd64"]))?;
    let name = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| {
            name.starts_with("linux-image-") && name.contains(|c: char| c.is_ascii_digit())
        });
    Ok(name.map(str::to_owned))
}

fn fetched(folder: &Path) -> Option<String> {
    let entries = std::fs::read_dir(folder.join("boot")).ok()?.flatten();
    let mut versions: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some(format!("linux-image-{}", name.strip_prefix("vmlinuz-")?))
        })
        .collect();
    versions.sort_by_key(|version| numbers(version));
    versions.pop()
}

/// The numbers in a version, so that 10 sorts after 9.
fn numbers(version: &str) -> Vec<u64> {
    let words = version.split(|c: char| !c.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Downloads the package and unpacks it. The image is moved into place last, because it marks the package as
/// complete.
fn fetch(folder: &Path, package: &str, version: &str) -> Result<(), String> {
    println!("fetching {package} (about 70 MB)");
    let unpacked = folder.join(format!("unpacked.{}", std::process::id()));
    let wrong = |error: std::io::Error| format!("{}: {error}", unpacked.display());
    std::fs::create_dir_all(&unpacked).map_err(wrong)?;
    let fetched = (|| {
        // apt-get downloads into its working directory. As root it would switch to a user who may not write
        // there.
        let mut download = Command::new("apt-get");
        download.args(["-qq", "-o", "APT::Sandbox::User=root", "download", package]);
        output(download.current_dir(&unpacked))?;
        let entries = std::fs::read_dir(&unpacked).map_err(wrong)?.flatten();
        let mut files = entries.map(|entry| entry.path());
        let package = files.find(|path| path.extension() == Some(OsStr::new("deb")));
        let package = package.ok_or("apt-get download left no package")?;
        output(Command::new("dpkg").arg("-x").arg(&package).arg(&unpacked))?;
        output(Command::new(depmod()).args([
            "-b".as_ref(),
            unpacked.as_os_str(),
            version.as_ref(),
        ]))?;
        for (from, to) in [
            (format!("lib/modules/{version}"), "lib/modules"),
            (format!("boot/vmlinuz-{version}"), "boot"),
        ] {
            let to = folder.join(to);
            std::fs::create_dir_all(&to).map_err(wrong)?;
            let name = Path::new(&from).file_name().unwrap_or_default();
            let _ = std::fs::remove_dir_all(to.join(name));
            std::fs::rename(unpacked.join(&from), to.join(name)).map_err(wrong)?;
        }
        Ok(())
    })();
    let _ = std::fs::remove_dir_all(&unpacked);
    fetched
}

fn depmod() -> PathBuf {
    find("depmod").unwrap_or_else(|| "depmod".into())
}

/// The files of [`MODULES`] and of their dependencies, each once.
fn modules(folder: &Path, version: &str) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for module in MODULES {
        let modprobe = find("modprobe").unwrap_or_else(|| "modprobe".into());
        let said = output(Command::new(modprobe).arg("-d").arg(folder).args([
            "-S",
            version,
            "--show-depends",
            module,
        ]))?;
        let needed = said.lines().filter_map(|line| line.strip_prefix("insmod "));
        for file in needed.map(|line| PathBuf::from(line.trim())) {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

/// The standard output of a command; on failure the error is its last line of standard error.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().last().unwrap_or("said nothing");
            Err(format!("{name}: {}: {line}", output.status))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn the_newest_is_the_one_of_the_highest_numbers() {
        let mut names = ["linux-image-6.1.0-10-amd64", "linux-image-6.1.0-9-amd64"];
        names.sort_by_key(|name| numbers(name));
        assert_eq!(names[1], "linux-image-6.1.0-10-amd64");
    }
}

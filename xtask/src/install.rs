//! `cargo xtask install-c`: installs the C library, its headers and its pkg-config file below a prefix.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::root;

/// Help text of `cargo xtask install-c`.
pub const USAGE: &str = "\
usage: cargo xtask install-c --prefix DIR [--debug]

  --prefix DIR  install to DIR/lib, DIR/lib/pkgconfig and DIR/include
  --debug       install the debug build instead of the profile dist
";

/// The headers of C and of C++.
const HEADERS: [&str; 2] = ["headworks.h", "headworks.hpp"];

/// The part of `cargo metadata`'s output that is used here.
#[derive(Debug, Deserialize)]
struct Metadata {
    target_directory: PathBuf,
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    version: String,
}

/// Builds the library and installs it. Returns `true`, or the reason of the failure.
pub fn run(args: &[String]) -> Result<bool, String> {
    let (mut prefix, mut is_debug) = (None, false);
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--prefix" => prefix = words.next().map(PathBuf::from),
            "--debug" => is_debug = true,
            _ => return Err(USAGE.to_owned()),
        }
    }
    let prefix = prefix.ok_or_else(|| USAGE.to_owned())?;
    // The pkg-config file contains the prefix and is used from any directory, so the prefix must be absolute.
    let prefix =
        std::path::absolute(&prefix).map_err(|error| format!("{}: {error}", prefix.display()))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(&cargo);
    build.current_dir(root());
    build.args(["build", "--locked", "-p", "headworks-capi"]);
    if !is_debug {
        build.args(["--profile", "dist"]);
    }
    let built = build.status().map_err(|error| format!("cargo: {error}"))?;
    if !built.success() {
        return Err(format!("cargo build: {built}"));
    }
    let metadata = metadata(&cargo)?;
    let is_it = |package: &&Package| package.name == "headworks-capi";
    let package = metadata.packages.iter().find(is_it);
    let version = &package.ok_or("there is no package headworks-capi")?.version;
    let profile = if is_debug { "debug" } else { "dist" };
    let library = metadata
        .target_directory
        .join(profile)
        .join("libheadworks.so");
    install(&library, version, &prefix)?;
    println!("headworks {version} for C is in {}", prefix.display());
    Ok(true)
}

fn metadata(cargo: &std::ffi::OsStr) -> Result<Metadata, String> {
    let output = Command::new(cargo)
        .current_dir(root())
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata: {said}"));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// Installs all files. Existing files are replaced, not overwritten, because running programs may have mapped
/// them.
fn install(library: &Path, version: &str, prefix: &Path) -> Result<(), String> {
    let source = root().join("crates/capi");
    let lib = prefix.join("lib");
    let include = prefix.join("include");
    let pkgconfig = lib.join("pkgconfig");
    for folder in [&lib, &include, &pkgconfig] {
        said(folder, fs::create_dir_all(folder))?;
    }
    let major = version.split('.').next().unwrap_or(version);
    let file = format!("libheadworks.so.{version}");
    let soname = format!("libheadworks.so.{major}");
    fresh(&lib.join(&file), |to| fs::copy(library, to).map(drop))?;
    fresh(&lib.join(&soname), |to| symlink(&file, to))?;
    fresh(&lib.join("libheadworks.so"), |to| symlink(&soname, to))?;
    for name in HEADERS {
        let header = source.join("include").join(name);
        fresh(&include.join(name), |to| fs::copy(&header, to).map(drop))?;
    }
    let template = source.join("headworks.pc.in");
    let text = said(&template, fs::read_to_string(&template))?;
    let text = text.replace("@PREFIX@", &prefix.display().to_string());
    let text = text.replace("@VERSION@", version);
    fresh(&pkgconfig.join("headworks.pc"), |to| fs::write(to, &text))
}

/// Removes the file at `to`, if there is one, and makes it anew.
fn fresh(to: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), String> {
    match fs::remove_file(to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => said(to, Err(error)),
        _ => said(to, make(to)),
    }
}

fn said<T>(path: &Path, done: std::io::Result<T>) -> Result<T, String> {
    done.map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soname_matches_the_link_names() {
        let build = fs::read_to_string(root().join("crates/capi/build.rs"));
        assert!(build.expect("reads").contains("libheadworks.so.0"));
    }

    #[test]
    fn all_of_it_is_there_and_leads_to_the_library() {
        let folder = std::env::temp_dir().join(format!("install-c-{}", std::process::id()));
        let library = folder.join("built");
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(&library, "a library").expect("writes");
        let prefix = folder.join("prefix");
        // The second installation replaces the first.
        for _ in 0..2 {
            install(&library, "0.7.1", &prefix).expect("installs");
        }
        for name in [
            "libheadworks.so",
            "libheadworks.so.0",
            "libheadworks.so.0.7.1",
        ] {
            let found = fs::read_to_string(prefix.join("lib").join(name));
            assert_eq!(found.expect(name), "a library");
        }
        let file = prefix.join("lib/pkgconfig/headworks.pc");
        let text = fs::read_to_string(file).expect("reads");
        assert!(text.starts_with(&format!("prefix={}\n", prefix.display())));
        assert!(text.contains("Version: 0.7.1\n"), "{text}");
        assert!(!text.contains('@'), "{text}");
        for entry in fs::read_dir(root().join("crates/capi/include")).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            let installed = prefix.join("include").join(&name);
            assert!(installed.exists(), "{}", installed.display());
        }
        fs::remove_dir_all(&folder).expect("removes");
    }
}

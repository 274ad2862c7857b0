//! The profile that this is built with, which reports name.

use std::path::PathBuf;

fn main() {
    // TARGET/PROFILE/build/PACKAGE-HASH/out: `PROFILE` in the environment says "release" of every profile like it.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let profile = out.ancestors().nth(3).and_then(|folder| folder.file_name());
    let profile = profile.map_or_else(|| "unknown".into(), |name| name.to_string_lossy());
    println!("cargo:rustc-env=HEADWORKS_PROFILE={profile}");
    println!("cargo:rerun-if-changed=build.rs");
}

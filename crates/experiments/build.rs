//! Passes the name of the build profile to the crate; reports name it.

use std::path::PathBuf;

fn main() {
    // `OUT_DIR` is TARGET/PROFILE/build/PACKAGE-HASH/out. The environment's `PROFILE` does not name custom
    // profiles: it says "release" for every profile that inherits from it.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let profile = out.ancestors().nth(3).and_then(|folder| folder.file_name());
    let profile = profile.map_or_else(|| "unknown".into(), |name| name.to_string_lossy());
    println!("cargo:rustc-env=HEADWORKS_PROFILE={profile}");
    println!("cargo:rerun-if-changed=build.rs");
}

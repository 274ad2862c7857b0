//! Sets the library's soname, by which programs that were linked with it find it when they start.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libheadworks.so.0");
}

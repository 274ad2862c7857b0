//! Sets the library's soname: the name by which the dynamic linker finds it when a program starts.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libheadworks.so.0");
}

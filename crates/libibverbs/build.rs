//! Sets what a program that was linked with libibverbs looks for: the soname and the version nodes.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=nodes.map");
    let variable = |name: &str| std::env::var(name).expect("cargo sets it");
    // On other processors the names are not exported (`src/symbols.rs`), and the linker may refuse a second version script.
    if variable("CARGO_CFG_TARGET_ARCH") != "x86_64" {
        return;
    }
    let folder = variable("CARGO_MANIFEST_DIR");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={folder}/nodes.map");
    // The library has threads, so it must stay mapped after `dlclose`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

//! The exported names, compared with the distribution's library.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::run::{library, text_of, there_is};

/// Paths of the library on Debian and on Fedora.
pub(crate) const INSTALLED: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    "/usr/lib64/libibverbs.so.1",
];

/// The defined names of a library with their versions, such as `ibv_open_device@@IBVERBS_1.1`.
fn names(library: &Path) -> BTreeSet<String> {
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only", "--with-symbol-versions"]);
    let text = text_of(nm.arg(library).output().expect("nm runs"));
    let names = text.lines().filter_map(|line| line.split(' ').nth(2));
    // Version nodes are listed as absolute symbols, which have no version.
    let versioned = names.filter(|name| name.contains('@'));
    let is_node = |name: &str| name.starts_with("IBVERBS_");
    versioned
        .filter(|name| !is_node(name))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_name_of_the_installed_library_is_exported() {
    if !there_is("nm") {
        return;
    }
    let Some(installed) = INSTALLED.iter().find(|path| Path::new(path).exists()) else {
        println!("skipped: no libibverbs.so.1 is installed (Debian: libibverbs1)");
        return;
    };
    let theirs = names(Path::new(installed));
    assert!(theirs.len() > 100, "{installed} has names");
    let ours = names(&library());
    let plain = |name: &str| name.replace("@@", "@");
    let ours: BTreeSet<_> = ours.iter().map(|name| plain(name)).collect();
    let missing: Vec<_> = theirs
        .iter()
        .filter(|name| !ours.contains(&plain(name)))
        .collect();
    assert!(missing.is_empty(), "missing: {missing:#?}");
}

/// Functions of libc that find the files of devices.
const OF_FILES: &str = "
    access closedir dirfd eaccess euidaccess faccessat fopen fopen64 fstatat fstatat64 getxattr lgetxattr listxattr llistxattr
    lstat lstat64 open open64 openat openat64 opendir readdir readdir64 readdir64_r readdir_r readlink readlinkat realpath
    rewinddir scandir scandir64 seekdir socket stat stat64 statx telldir
    __fxstatat __fxstatat64 __lxstat __lxstat64 __open64_2 __open_2 __openat64_2 __openat_2 __realpath_chk __xstat __xstat64
";

#[test]
fn nothing_else_is_exported_but_what_finds_the_files_of_devices() {
    if !there_is("nm") {
        return;
    }
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only"]);
    let text = text_of(nm.arg(library()).output().expect("nm runs"));
    let names = text.lines().filter_map(|line| line.split(' ').nth(2));
    let known = [
        "ibv_",
        "_ibv_",
        "verbs_",
        "_verbs_",
        "__verbs_",
        "IBVERBS_",
        "mult_to",
        "mbps_to",
        "__ioctl",
        "execute_ioctl",
    ];
    let (own, strange): (Vec<_>, Vec<_>) =
        names.partition(|name| known.iter().any(|start| name.starts_with(start)));
    assert!(own.len() > 100, "{own:?}");
    let mut of_files = OF_FILES.split_whitespace().collect::<Vec<_>>();
    of_files.sort_unstable();
    let mut strange = strange;
    strange.sort_unstable();
    assert_eq!(strange, of_files);
}

#[test]
fn its_soname_is_that_of_the_real_one() {
    if !there_is("readelf") {
        return;
    }
    let mut readelf = Command::new("readelf");
    let read = readelf.arg("-d").arg(library()).output();
    let text = text_of(read.expect("readelf runs"));
    assert!(text.contains("soname: [libibverbs.so.1]"), "{text}");
    assert!(text.contains("NODELETE"), "{text}");
}

//! Diagnosis of an unusable connection manager from the file system, which is read only after a failure.

use std::fs;
use std::io;
use std::path::Path;

use super::CmError;

/// Returns whether the kernel has an RDMA device. `root` is `/` except in tests.
pub(super) fn has_device(root: &Path) -> bool {
    match fs::read_dir(root.join("sys/class/infiniband")) {
        Ok(mut devices) => devices.next().is_some(),
        // A folder that cannot be read may hold one.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// The error if librdmacm cannot reach the kernel and fails with `source`.
pub(super) fn why(root: &Path, source: io::Error) -> CmError {
    if !has_device(root) {
        return CmError::NoDevice;
    }
    match root.join("dev/infiniband/rdma_cm").exists() {
        true => CmError::Kernel { source },
        false => CmError::NoManager,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_advised_only_if_it_is_missing() {
        let root = tempfile::tempdir().unwrap();
        let said = || {
            let refused = io::Error::from_raw_os_error(libc::EACCES);
            let said = why(root.path(), refused).to_string();
            assert_eq!(said.lines().count(), 1, "{said}");
            said
        };
        let make = |folder: &str| fs::create_dir_all(root.path().join(folder)).unwrap();
        let none = |said: &str| {
            assert!(
                said.starts_with("there is no RDMA device on this machine"),
                "{said}"
            );
            assert!(
                said.contains("headworks doctor") && !said.contains("modprobe"),
                "{said}"
            );
        };
        none(&said());
        // The kernel has RDMA support but no device; loading its connection manager would not help.
        make("sys/class/infiniband");
        none(&said());
        make("dev/infiniband/rdma_cm");
        none(&said());
        make("sys/class/infiniband/mlx5_0");
        let refused = said();
        assert!(
            refused.contains("Permission denied") && !refused.contains("modprobe"),
            "{refused}"
        );
        fs::remove_dir(root.path().join("dev/infiniband/rdma_cm")).unwrap();
        let missing = said();
        assert!(
            missing.contains("modprobe rdma_ucm") && !missing.contains("no RDMA device"),
            "{missing}"
        );
    }
}

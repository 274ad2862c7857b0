//! Known behaviour of devices beyond the specification, by driver and vendor: pure.
//!
//! | driver | `ordered_between_writes` | `atomic_aligned_8` | `in_order_within_write` | why |
//! |---|---|---|---|---|
//! | `mlx4_core`, `mlx5_core`, of vendor 0x2c9 | on x86-64 | yes | no | a queue pair's WRITEs are placed in order, because PCI Express keeps the order of posted writes (regions are never registered with relaxed ordering). Other architectures than x86-64 may let a processor see them in another order; libibverbs promises no order there either (`ibv_query_qp_data_in_order`). An aligned word is within one posted write. The order within a WRITE is documented nowhere |
//! | `rxe` | on x86-64 | no | no | the kernel's thread copies packet after packet, and other architectures may show its stores in another order; how the copy stores words and bytes is not documented |
//! | any other | no | no | no | not examined |
//!
//! Options of the device's name override these: `ordered_between_writes=yes` and so on. Later ConnectX can be
//! set to out-of-order placement, which breaks the first promise: give `ordered_between_writes=no`.

use std::ffi::OsStr;

use headworks_verbs::Promises;

/// Vendor id of the devices that `mlx4_core` and `mlx5_core` drive.
const VENDOR_MELLANOX: u32 = 0x02c9;
/// Vendor id that the kernel's rxe reports. It has no driver in sysfs.
const VENDOR_RXE: u32 = 0x00ff_ffff;

/// Promises of a device of this driver and vendor on a machine of this architecture, which is called as in
/// [`std::env::consts::ARCH`]. The driver alone is not enough: a software device on top of a NIC shows the NIC's
/// driver.
pub(crate) fn promises(driver: &str, vendor_id: u32, architecture: &str) -> Promises {
    let ordered_between_writes = architecture == "x86_64";
    match (driver, vendor_id) {
        ("mlx4_core" | "mlx5_core", VENDOR_MELLANOX) => Promises {
            ordered_between_writes,
            atomic_aligned_8: true,
            in_order_within_write: 0,
        },
        ("rxe", VENDOR_RXE) => Promises {
            ordered_between_writes,
            ..Promises::default()
        },
        _ => Promises::default(),
    }
}

/// Largest retry count that a device of this driver takes as a number. With a larger one, rxe retries without
/// end, as it should only for RNR; the program would never learn that a peer is gone.
pub(crate) fn most_retries(driver: &str) -> u8 {
    match driver {
        "rxe" => 6,
        _ => 7,
    }
}

/// Driver of a device whose driver sysfs does not show.
pub(crate) const UNKNOWN: &str = "unknown";

/// Module of a device's driver, from the driver's name in sysfs (if it shows one) and the vendor id. The driver of
/// an auxiliary device is called `MODULE.NAME`: that of a scalable function of mlx5 is `mlx5_core.sf`.
pub(crate) fn driver(in_sysfs: Option<String>, vendor_id: u32) -> String {
    match (in_sysfs, vendor_id) {
        (_, VENDOR_RXE) => "rxe".to_owned(),
        // Without a vendor it is a software device, and sysfs shows the driver of the device below it.
        (_, 0) | (None, _) => UNKNOWN.to_owned(),
        (Some(name), _) => match name.split_once('.') {
            Some((module, _)) => module.to_owned(),
            None => name,
        },
    }
}

/// Reason for which a device cannot be used if the environment sets `MLX5_SINGLE_THREADED` to `single_threaded`. The
/// library of `mlx5` then takes no locks, but several threads use a device here.
pub(crate) fn refusal(
    driver: &str,
    vendor_id: u32,
    single_threaded: Option<&OsStr>,
) -> Option<&'static str> {
    // If sysfs does not show the driver, it may be mlx5.
    let may_be_mlx5 = driver == "mlx5_core" || driver == UNKNOWN && vendor_id == VENDOR_MELLANOX;
    let is_set = single_threaded.is_some_and(|value| value == "1");
    (may_be_mlx5 && is_set).then_some(
        "MLX5_SINGLE_THREADED=1 is set: the device's library then takes no locks, but several threads \
         use it; unset the variable",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_drivers_make_promises() {
        for driver in ["mlx4_core", "mlx5_core"] {
            assert!(promises(driver, 0x2c9, "x86_64").atomic_aligned_8);
            assert_eq!(promises(driver, 0x2c9, "x86_64").in_order_within_write, 0);
            // These are software devices on top of such a NIC.
            for vendor_id in [0, 0x62_6d74, 0xff_ffff] {
                let promised = promises(driver, vendor_id, "x86_64");
                assert_eq!(promised, Promises::default());
            }
        }
        assert!(!promises("rxe", 0xff_ffff, "x86_64").atomic_aligned_8);
        for driver in ["siw", "efa", "irdma", "mlx5_core2", "unknown", ""] {
            let promised = promises(driver, 0x2c9, "x86_64");
            assert_eq!(promised, Promises::default(), "{driver}");
        }
    }

    #[test]
    fn writes_are_promised_in_order_on_x86_64_alone() {
        for (driver, vendor_id) in [
            ("mlx4_core", 0x2c9),
            ("mlx5_core", 0x2c9),
            ("rxe", 0xff_ffff),
        ] {
            assert!(promises(driver, vendor_id, "x86_64").ordered_between_writes);
            for architecture in ["aarch64", "powerpc64", "s390x", "riscv64"] {
                let promised = promises(driver, vendor_id, architecture);
                assert!(!promised.ordered_between_writes, "{driver}, {architecture}");
            }
        }
    }

    #[test]
    fn a_scalable_function_is_driven_by_mlx5_core() {
        let of = |in_sysfs: &str| driver(Some(in_sysfs.to_owned()), 0x2c9);
        assert_eq!(of("mlx5_core.sf"), "mlx5_core");
        let promised = promises(&of("mlx5_core.sf"), 0x2c9, "x86_64");
        assert!(promised.ordered_between_writes && promised.atomic_aligned_8);
        let set = Some(OsStr::new("1"));
        assert!(refusal(&of("mlx5_core.sf"), 0x2c9, set).is_some());
        // Another module's name may begin alike.
        for other in ["mlx5_core2", "mlx5_core2.sf", "mlx5.core"] {
            assert_eq!(promises(&of(other), 0x2c9, "x86_64"), Promises::default());
        }
    }

    #[test]
    fn rxe_counts_fewer_retries_than_the_attribute_holds() {
        assert_eq!(["rxe", "mlx5_core"].map(most_retries), [6, 7]);
    }

    #[test]
    fn a_device_of_the_kernel_has_the_name_that_it_has_not_in_sysfs() {
        assert_eq!(driver(None, 0xff_ffff), "rxe");
        // On a virtual NIC, sysfs shows the driver of that NIC.
        assert_eq!(driver(Some("virtio_net".to_owned()), 0xff_ffff), "rxe");
        assert_eq!(driver(Some("mlx5_core".to_owned()), 0x2c9), "mlx5_core");
        assert_eq!(driver(Some("mlx5_core".to_owned()), 0), "unknown");
        assert_eq!(driver(None, 0x2c9), "unknown");
    }

    #[test]
    fn a_library_without_locks_is_refused_where_it_would_be_used() {
        let set = Some(OsStr::new("1"));
        let said = refusal("mlx5_core", 0x2c9, set).unwrap();
        assert!(said.starts_with("MLX5_SINGLE_THREADED=1") && !said.contains('\n'));
        assert!(refusal("unknown", 0x2c9, set).is_some());
        for (driver, vendor_id) in [("rxe", 0xff_ffff), ("mlx4_core", 0x2c9), ("unknown", 0)] {
            assert_eq!(refusal(driver, vendor_id, set), None);
        }
        for value in [None, Some(OsStr::new("0")), Some(OsStr::new(""))] {
            assert_eq!(refusal("mlx5_core", 0x2c9, value), None);
        }
    }
}

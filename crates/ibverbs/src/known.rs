//! What is known of devices beyond the specification, by their drivers: pure.
//!
//! | driver | `ordered_between_writes` | `atomic_aligned_8` | `in_order_within_write` | why |
//! |---|---|---|---|---|
//! | `mlx4_core`, `mlx5_core` | yes | yes | no | one queue pair's WRITEs are placed in order by posted writes of PCI Express, which keep theirs (regions are never registered with relaxed ordering); an aligned word is within one such write. The order within one is nowhere promised |
//! | `rxe`, on x86-64 | yes | no | no | the kernel's thread copies packet after packet; how its copy stores words and bytes it does not say |
//! | any other | no | no | no | nobody has looked |
//!
//! Who knows better says so in the device's name: `ordered_between_writes=yes` and the like. Out-of-order
//! placement, which later ConnectX can be set to, takes the first away: `ordered_between_writes=no`.

use headworks_verbs::Promises;

/// What a device whose driver is `driver` promises.
pub(crate) fn promises(driver: &str) -> Promises {
    match driver {
        "mlx4_core" | "mlx5_core" => Promises {
            ordered_between_writes: true,
            atomic_aligned_8: true,
            in_order_within_write: 0,
        },
        "rxe" => Promises {
            // Stores of one thread are seen in order only there.
            ordered_between_writes: cfg!(target_arch = "x86_64"),
            ..Promises::default()
        },
        _ => Promises::default(),
    }
}

/// The vendor id that the kernel's rxe gives itself. It has no driver in sysfs.
const VENDOR_RXE: u32 = 0x00ff_ffff;
/// The one of the kernel's siw, for the same reason.
const VENDOR_SIW: u32 = 0x0062_6d74;

/// The name of a device's driver, from what sysfs says, where it says something, and else from who made
/// the device.
pub(crate) fn driver(in_sysfs: Option<String>, vendor_id: u32) -> String {
    match (in_sysfs, vendor_id) {
        (_, VENDOR_RXE) => "rxe".to_owned(),
        (_, VENDOR_SIW) => "siw".to_owned(),
        (Some(name), _) => name,
        (None, _) => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_is_promised() {
        assert!(promises("mlx5_core").atomic_aligned_8);
        assert_eq!(promises("mlx5_core").in_order_within_write, 0);
        assert!(!promises("rxe").atomic_aligned_8);
        for driver in ["siw", "efa", "irdma", "unknown", ""] {
            assert_eq!(promises(driver), Promises::default(), "{driver}");
        }
    }

    #[test]
    fn a_device_of_the_kernel_has_the_name_that_it_has_not_in_sysfs() {
        assert_eq!(driver(None, 0xff_ffff), "rxe");
        // On a virtual NIC sysfs names that one's driver.
        assert_eq!(driver(Some("virtio_net".to_owned()), 0xff_ffff), "rxe");
        assert_eq!(driver(None, 0x62_6d74), "siw");
        assert_eq!(driver(Some("mlx5_core".to_owned()), 0x2c9), "mlx5_core");
        assert_eq!(driver(None, 0x2c9), "unknown");
    }
}

//! Known behaviour of devices beyond the specification, by driver and vendor: a table, pure.
//!
//! | driver | WRITEs in order | aligned words whole | why |
//! |---|---|---|---|
//! | `mlx4_core`, `mlx5_core`, of vendor 0x2c9 | on x86-64 | yes | a queue pair's WRITEs are placed in order, because PCI Express keeps the order of posted writes (regions are not registered with relaxed ordering). Other architectures than x86-64 may let a processor see them in another order. An aligned word is within one posted write |
//! | `mlx5_core` on an InfiniBand network | no | yes | switches there route packets of one connection over several paths (adaptive routing), and the device then places them as they come. No setting of the host shows this |
//! | `rxe` | on x86-64 | no | the kernel's thread copies packet after packet, and other architectures may show its stores in another order; how the copy stores words and bytes is not documented |
//! | any other | no | no | not examined |
//!
//! An `mlx5_core` device is asked when it is opened (`ibv_query_qp_data_in_order`, see `probe`). If it promises nothing, no
//! promise of order holds. If it promises the order within a message, `in_order_within_write` holds for all lengths. The
//! answer never promises an order between requests. A device that cannot be asked promises nothing; with a library that has no such
//! function (rdma-core before 36) the table holds.
//!
//! No promise of order holds if regions can only be registered with relaxed ordering, or if the environment says
//! `MLX5_RELAXED_PACKET_ORDERING_ON` with another value than 0. Options of the device's name override the rest: `ordered_between_writes=no` and so on.
//!
//! | driver | other behaviour |
//! |---|---|
//! | `rxe` | retries without end at a retry count of 7, so the count is at most 6. It does not report a failure that the peer caused, so the state of queue pairs is asked for |
//! | `mana`, `vmw_pvrdma` | return the asked length of inline payloads and ignore the flag, so nothing is sent inline |
//! | `bnxt_en`, `ice`, `i40e` | report sizes of a queue pair that it does not have, so the smaller of those and of creation's count |
//! | `mlx4_core`, `mlx5_core`, `bnxt_en`, `ice`, `i40e`, `hns3` | report each failure by an event, so the state of queue pairs is not asked for |
//!
//! A driver is called as sysfs calls it at the PCI function: `ice` and `i40e` are those of irdma, `bnxt_en` is that of bnxt_re.

use std::ffi::OsStr;

use headworks_verbs::Promises;

/// Vendor id of the devices that `mlx4_core` and `mlx5_core` drive.
const VENDOR_MELLANOX: u32 = 0x02c9;
/// Vendor id that the kernel's rxe reports. It has no driver in sysfs.
const VENDOR_RXE: u32 = 0x00ff_ffff;

/// What is known of the devices of a driver.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Quirks {
    driver: &'static str,
    /// The vendor whose devices are meant: a software device on top of a NIC shows the NIC's driver. `None` for any.
    vendor_id: Option<u32>,
    /// Whether a queue pair's WRITEs are placed in order, on x86-64.
    orders_writes: bool,
    /// Whether that holds on an InfiniBand network too.
    orders_writes_on_infiniband: bool,
    atomic_aligned_8: bool,
    /// Whether the device's answer on the order of data has a meaning. Other providers answer 0 to everybody.
    pub(crate) answers_data_in_order: bool,
    /// Largest retry count that the device takes as a number. With a larger one, rxe retries without end, as it should only
    /// for RNR; the program would never learn that a peer is gone.
    pub(crate) most_retries: u8,
    /// Whether the device copies inline payloads when they are posted.
    pub(crate) honours_inline: bool,
    /// Whether the device reports each failure of a queue pair by an event or a completion.
    pub(crate) reports_failures: bool,
    /// Whether a queue pair that is asked for its sizes may report more than it has. Elsewhere the answer is the truth, also where
    /// creation returned less (rxe).
    pub(crate) inflates_sizes: bool,
}

/// A device of which nothing is known.
const OTHER: Quirks = Quirks {
    driver: UNKNOWN,
    vendor_id: None,
    orders_writes: false,
    orders_writes_on_infiniband: false,
    atomic_aligned_8: false,
    answers_data_in_order: false,
    most_retries: 7,
    honours_inline: true,
    reports_failures: false,
    inflates_sizes: false,
};

/// A device that reports failures; else as [`OTHER`].
const fn reporting(driver: &'static str) -> Quirks {
    Quirks {
        driver,
        reports_failures: true,
        ..OTHER
    }
}

/// A device that reports failures, and sizes that queue pairs do not have; else as [`OTHER`].
const fn inflating(driver: &'static str) -> Quirks {
    Quirks {
        inflates_sizes: true,
        ..reporting(driver)
    }
}

/// A device that ignores the flag of inline payloads; else as [`OTHER`].
const fn without_inline(driver: &'static str) -> Quirks {
    Quirks {
        driver,
        honours_inline: false,
        ..OTHER
    }
}

const KNOWN: &[Quirks] = &[
    Quirks {
        vendor_id: Some(VENDOR_MELLANOX),
        orders_writes: true,
        orders_writes_on_infiniband: true,
        atomic_aligned_8: true,
        ..reporting("mlx4_core")
    },
    Quirks {
        vendor_id: Some(VENDOR_MELLANOX),
        orders_writes: true,
        atomic_aligned_8: true,
        answers_data_in_order: true,
        ..reporting("mlx5_core")
    },
    Quirks {
        driver: "rxe",
        vendor_id: Some(VENDOR_RXE),
        orders_writes: true,
        orders_writes_on_infiniband: true,
        most_retries: 6,
        ..OTHER
    },
    inflating("bnxt_en"),
    inflating("ice"),
    inflating("i40e"),
    reporting("hns3"),
    without_inline("mana"),
    without_inline("vmw_pvrdma"),
];

/// What is known of a device of this driver and vendor.
pub(crate) fn of(driver: &str, vendor_id: u32) -> &'static Quirks {
    let is_it = |known: &&Quirks| {
        known.driver == driver && known.vendor_id.is_none_or(|vendor| vendor == vendor_id)
    };
    KNOWN.iter().find(is_it).unwrap_or(&OTHER)
}

/// What a device was found to do, and where it is: the conditions of its promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Circumstances<'a> {
    /// The machine's architecture, called as in [`std::env::consts::ARCH`].
    pub(crate) architecture: &'a str,
    /// Whether the port is on an InfiniBand network.
    pub(crate) is_infiniband: bool,
    /// Whether memory can only be registered with relaxed ordering.
    pub(crate) registers_relaxed: bool,
    /// Whether the environment tells the device's library to place packets out of order.
    pub(crate) is_told_to_relax: bool,
    /// The device's answer on the order of data; `None` if it was not asked.
    pub(crate) data_in_order: Option<DataInOrder>,
}

/// A device's answer on the order in which the bytes of a message become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataInOrder {
    /// In no order.
    No,
    /// In ascending order within a message.
    WholeMessage,
}

impl Quirks {
    /// Promises of a device in these circumstances.
    pub(crate) fn promises(&self, at: Circumstances<'_>) -> Promises {
        let relaxed = at.registers_relaxed || at.is_told_to_relax;
        let in_order = at.architecture == "x86_64" && !relaxed;
        let vetoes = at.data_in_order == Some(DataInOrder::No);
        let network = !at.is_infiniband || self.orders_writes_on_infiniband;
        let whole = at.data_in_order == Some(DataInOrder::WholeMessage);
        Promises {
            ordered_between_writes: self.orders_writes && in_order && network && !vetoes,
            atomic_aligned_8: self.atomic_aligned_8,
            in_order_within_write: if in_order && whole { u32::MAX } else { 0 },
        }
    }
}

/// Driver of a device whose driver sysfs does not show.
pub(crate) const UNKNOWN: &str = "unknown";

/// Module of a device's driver, from the driver's name in sysfs (if it shows one) and the vendor id. The driver of
/// an auxiliary device is called `MODULE.NAME`: that of a scalable function of mlx5 is `mlx5_core.sf`.
pub(crate) fn driver(in_sysfs: Option<String>, vendor_id: u32) -> String {
    match (in_sysfs, vendor_id) {
        (_, VENDOR_RXE) => "rxe".to_owned(),
        // MANA has no vendor id on older kernels.
        (Some(name), 0) if name == "mana" => name,
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

    /// Ethernet and x86-64, where nothing is relaxed and nothing was asked.
    const USUAL: Circumstances<'static> = Circumstances {
        architecture: "x86_64",
        is_infiniband: false,
        registers_relaxed: false,
        is_told_to_relax: false,
        data_in_order: None,
    };

    fn mlx5(at: Circumstances<'_>) -> Promises {
        of("mlx5_core", 0x2c9).promises(at)
    }

    #[test]
    fn only_known_drivers_make_promises() {
        for driver in ["mlx4_core", "mlx5_core"] {
            let promised = of(driver, 0x2c9).promises(USUAL);
            assert!(promised.atomic_aligned_8 && promised.ordered_between_writes);
            assert_eq!(promised.in_order_within_write, 0);
            // These are software devices on top of such a NIC.
            for vendor_id in [0, 0x62_6d74, 0xff_ffff] {
                assert_eq!(of(driver, vendor_id), &OTHER);
            }
        }
        let rxe = of("rxe", 0xff_ffff).promises(USUAL);
        assert!(rxe.ordered_between_writes && !rxe.atomic_aligned_8);
        for driver in [
            "siw",
            "efa",
            "ice",
            "bnxt_en",
            "mana",
            "mlx5_core2",
            "unknown",
            "",
        ] {
            let promised = of(driver, 0x2c9).promises(USUAL);
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
            let quirks = of(driver, vendor_id);
            assert!(quirks.promises(USUAL).ordered_between_writes);
            for architecture in ["aarch64", "powerpc64", "s390x", "riscv64"] {
                let promised = quirks.promises(Circumstances {
                    architecture,
                    data_in_order: Some(DataInOrder::WholeMessage),
                    ..USUAL
                });
                assert!(!promised.ordered_between_writes, "{driver}, {architecture}");
                assert_eq!(promised.in_order_within_write, 0);
            }
        }
    }

    #[test]
    fn what_may_place_packets_out_of_order_takes_the_promise_of_order_away() {
        let whole = Some(DataInOrder::WholeMessage);
        let asked = Circumstances {
            data_in_order: whole,
            ..USUAL
        };
        assert!(mlx5(asked).ordered_between_writes);
        assert_eq!(mlx5(asked).in_order_within_write, u32::MAX);
        for at in [
            Circumstances {
                data_in_order: Some(DataInOrder::No),
                ..USUAL
            },
            Circumstances {
                registers_relaxed: true,
                ..asked
            },
            Circumstances {
                is_told_to_relax: true,
                ..asked
            },
        ] {
            let promised = mlx5(at);
            assert!(!promised.ordered_between_writes, "{at:?}");
            assert_eq!(promised.in_order_within_write, 0, "{at:?}");
            assert!(promised.atomic_aligned_8);
        }
    }

    #[test]
    fn adaptive_routing_of_an_infiniband_network_is_assumed_for_mlx5() {
        let at = Circumstances {
            is_infiniband: true,
            data_in_order: Some(DataInOrder::WholeMessage),
            ..USUAL
        };
        assert!(!mlx5(at).ordered_between_writes);
        // The device answers for one message. What it answers holds.
        assert_eq!(mlx5(at).in_order_within_write, u32::MAX);
        assert!(of("mlx4_core", 0x2c9).promises(at).ordered_between_writes);
    }

    #[test]
    fn a_scalable_function_is_driven_by_mlx5_core() {
        let of_sysfs = |in_sysfs: &str| driver(Some(in_sysfs.to_owned()), 0x2c9);
        assert_eq!(of_sysfs("mlx5_core.sf"), "mlx5_core");
        let promised = of(&of_sysfs("mlx5_core.sf"), 0x2c9).promises(USUAL);
        assert!(promised.ordered_between_writes && promised.atomic_aligned_8);
        let set = Some(OsStr::new("1"));
        assert!(refusal(&of_sysfs("mlx5_core.sf"), 0x2c9, set).is_some());
        // Another module's name may begin alike.
        for other in ["mlx5_core2", "mlx5_core2.sf", "mlx5.core"] {
            assert_eq!(of(&of_sysfs(other), 0x2c9), &OTHER);
        }
    }

    #[test]
    fn other_behaviour_is_that_of_the_table() {
        let retries = |driver, vendor| of(driver, vendor).most_retries;
        assert_eq!(
            (retries("rxe", 0xff_ffff), retries("mlx5_core", 0x2c9)),
            (6, 7)
        );
        for driver in ["mana", "vmw_pvrdma"] {
            assert!(!of(driver, 0x1414).honours_inline);
        }
        for driver in ["mlx5_core", "rxe", "ice", "unknown"] {
            assert!(of(driver, 0x2c9).honours_inline);
        }
        for driver in ["mlx4_core", "mlx5_core", "bnxt_en", "ice", "i40e", "hns3"] {
            assert!(of(driver, 0x2c9).reports_failures, "{driver}");
        }
        assert!(!of("rxe", 0xff_ffff).reports_failures && !OTHER.reports_failures);
    }

    #[test]
    fn a_device_of_the_kernel_has_the_name_that_it_has_not_in_sysfs() {
        assert_eq!(driver(None, 0xff_ffff), "rxe");
        // On a virtual NIC, sysfs shows the driver of that NIC.
        assert_eq!(driver(Some("virtio_net".to_owned()), 0xff_ffff), "rxe");
        assert_eq!(driver(Some("mlx5_core".to_owned()), 0x2c9), "mlx5_core");
        assert_eq!(driver(Some("mlx5_core".to_owned()), 0), "unknown");
        assert_eq!(driver(Some("mana".to_owned()), 0), "mana");
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

//! Manners of drivers: what devices of real RNICs refuse, ignore, reorder and report, as a table. A program, or our own provider of
//! libibverbs, is tested against them without the hardware.
//!
//! The environment variable [`MANNERS`] names a row of [`ROWS`]. Each entry of a row has the source file that it was read in; files
//! without a mark are of rdma-core 65, those with `kernel:` of Linux. No entry was seen on hardware.

use std::ffi::c_int;

use headworks_verbs_abi as abi;

use crate::link::Link;

/// The environment variable with the name of a row; without it the devices have no manners.
pub(crate) const MANNERS: &str = "HEADWORKS_VERBS_MANNERS";

/// The only P_Key: full membership of the default partition.
const PKEY: u16 = 0xffff;

/// Something that devices of a driver do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The driver of the PCI function behind the device is called so in sysfs.
    Driver(&'static str),
    /// The device has this vendor id.
    Vendor(u32),
    /// The device has this transport (`ibv_transport_type`).
    Transport(c_int),
    /// The port is on this network.
    Port(Link),
    /// Queue pairs of this type are refused with this error.
    Refuses(c_int, c_int),
    /// There are no shared receive queues.
    NoSharedReceiveQueues,
    /// There are no extended completion queues, and so no timestamps.
    NoExtendedQueues,
    /// Queue pairs cannot be asked for their attributes.
    NoQueries,
    /// A queue pair that is asked for its sizes reports more than it has.
    ReportsMore,
    /// The device is capable of these atomics (`ibv_atomic_cap`).
    Atomics(c_int),
    /// The longest inline payload, in bytes.
    LongestInline(u32),
    /// The flag of inline payloads is ignored, and the length that was asked for is returned: the device reads the memory, by its key.
    IgnoresInline,
    /// A request without entries must have no list: the first entry of a list is read.
    ReadsEmptyLists,
    /// The answer of `ibv_query_qp_data_in_order` for a connected queue pair is "whole message".
    DataInOrder,
    /// Bytes, and WRITEs of one queue pair, become visible in any order.
    OutOfOrder,
    /// Memory can only be registered with relaxed ordering.
    OnlyRelaxed,
    /// Registration with one of these access flags is refused.
    RefusesAccess(u32),
    /// A retry count of 7 retries without end.
    CountsNoRetries,
    /// A failed request has this number of the vendor.
    VendorError(u32),
    /// GIDs and partition keys move to other places of the port's tables while the device is in use, with an event.
    TablesMove,
    /// The port's table of partition keys.
    PartitionKeys(&'static [u16]),
}

use Manner::{
    Atomics, CountsNoRetries, DataInOrder, Driver, IgnoresInline, LongestInline, NoExtendedQueues,
    NoQueries, NoSharedReceiveQueues, OnlyRelaxed, OutOfOrder, PartitionKeys, Port,
    ReadsEmptyLists, Refuses, RefusesAccess, ReportsMore, TablesMove, Transport, Vendor,
    VendorError,
};

/// The manners of a driver.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Name, as [`MANNERS`] gives it.
    pub(crate) name: &'static str,
    /// The devices that are meant.
    pub(crate) about: &'static str,
    /// What they do, and the source file that says so.
    pub(crate) manners: &'static [(Manner, &'static str)],
}

/// Access flags of atomics by peers.
const REMOTE_ATOMIC: u32 = 1 << 3;

/// All rows.
pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "mlx5",
        about: "ConnectX-4 and later on Ethernet (RoCE)",
        manners: &[
            (
                Driver("mlx5_core"),
                "kernel: drivers/net/ethernet/mellanox/mlx5/core/main.c",
            ),
            (Vendor(0x2c9), "providers/mlx5/mlx5.c"),
            (
                DataInOrder,
                "providers/mlx5/verbs.c, mlx5_query_qp_data_in_order",
            ),
            (TablesMove, "kernel: drivers/infiniband/core/cache.c"),
            (
                VendorError(0x81),
                "an example of providers/mlx5/cq.c, mlx5_handle_error_cqe",
            ),
        ],
    },
    Row {
        name: "mlx5-ib",
        about: "ConnectX on InfiniBand with adaptive routing",
        manners: &[
            (
                Driver("mlx5_core"),
                "kernel: drivers/net/ethernet/mellanox/mlx5/core/main.c",
            ),
            (Vendor(0x2c9), "providers/mlx5/mlx5.c"),
            (
                Port(Link::Infiniband),
                "kernel: drivers/infiniband/hw/mlx5/main.c",
            ),
            (
                OutOfOrder,
                "providers/mlx5/man/mlx5dv_create_qp.3.md, MLX5DV_QP_CREATE_OOO_DP",
            ),
            (
                TablesMove,
                "kernel: drivers/infiniband/hw/mlx5/main.c, mlx5_ib_handle_event",
            ),
            (
                PartitionKeys(&[0x7fff, 0x8001]),
                "an example: a subnet manager assigns the keys",
            ),
            (
                VendorError(0x81),
                "an example of providers/mlx5/cq.c, mlx5_handle_error_cqe",
            ),
        ],
    },
    Row {
        name: "mlx5-relaxed",
        about: "ConnectX with firmware that has relaxed keys only",
        manners: &[
            (
                Driver("mlx5_core"),
                "kernel: drivers/net/ethernet/mellanox/mlx5/core/main.c",
            ),
            (Vendor(0x2c9), "providers/mlx5/mlx5.c"),
            (
                OnlyRelaxed,
                "UCX: src/uct/ib/base/ib_md.c, relaxed_order_required",
            ),
            (
                OutOfOrder,
                "UCX: src/uct/ib/base/ib_md.c, relaxed_order_required",
            ),
            (
                DataInOrder,
                "providers/mlx5/verbs.c, mlx5_query_qp_data_in_order",
            ),
        ],
    },
    Row {
        name: "mlx5-arm",
        about: "ConnectX in a machine with Arm processors",
        manners: &[
            (
                Driver("mlx5_core"),
                "kernel: drivers/net/ethernet/mellanox/mlx5/core/main.c",
            ),
            (Vendor(0x2c9), "providers/mlx5/mlx5.c"),
            // The answer there is 0, whatever the device says.
            (OutOfOrder, "libibverbs/verbs.c, ibv_query_qp_data_in_order"),
        ],
    },
    Row {
        name: "irdma",
        about: "Intel E810 on RoCE",
        manners: &[
            (
                Driver("ice"),
                "kernel: drivers/net/ethernet/intel/ice/ice_main.c",
            ),
            (
                Vendor(0x8086),
                "kernel: drivers/infiniband/hw/irdma/verbs.c, irdma_query_device",
            ),
            (
                Refuses(abi::QPT_UC, libc::EOPNOTSUPP),
                "providers/irdma/uverbs.c, irdma_ucreate_qp",
            ),
            (
                NoSharedReceiveQueues,
                "providers/irdma/umain.c, irdma_ualloc_context",
            ),
            (
                ReadsEmptyLists,
                "providers/irdma/uk.c, irdma_uk_post_receive, irdma_uk_rdma_write",
            ),
            (
                LongestInline(101),
                "kernel: drivers/infiniband/hw/irdma/verbs.c, irdma_validate_qp_attrs",
            ),
            (
                ReportsMore,
                "kernel: drivers/infiniband/hw/irdma/verbs.c, irdma_query_qp",
            ),
            (
                Atomics(abi::ATOMIC_NONE),
                "kernel: drivers/infiniband/hw/irdma/verbs.c, irdma_query_device",
            ),
            (OutOfOrder, "no source promises an order"),
            (
                VendorError(0x1_0005),
                "an example of providers/irdma/uverbs.c, irdma_process_cqe",
            ),
        ],
    },
    Row {
        name: "bnxt_re",
        about: "Broadcom BCM57xxx on RoCE",
        manners: &[
            (
                Driver("bnxt_en"),
                "kernel: drivers/net/ethernet/broadcom/bnxt/bnxt.c",
            ),
            (Vendor(0x14e4), "providers/bnxt_re/main.c"),
            (
                Refuses(abi::QPT_UC, libc::EINVAL),
                "providers/bnxt_re/verbs.c, bnxt_re_check_qp_limits",
            ),
            (NoExtendedQueues, "providers/bnxt_re/main.c"),
            (
                LongestInline(96),
                "providers/bnxt_re/verbs.c, bnxt_re_post_send",
            ),
            (
                ReportsMore,
                "kernel: drivers/infiniband/hw/bnxt_re/ib_verbs.c, bnxt_re_query_qp",
            ),
            (OutOfOrder, "no source promises an order"),
            (VendorError(0x0b), "an example of providers/bnxt_re/verbs.c"),
        ],
    },
    Row {
        name: "mana",
        about: "Microsoft Azure Network Adapter on RoCE",
        manners: &[
            (
                Driver("mana"),
                "kernel: drivers/net/ethernet/microsoft/mana/gdma_main.c",
            ),
            (
                Vendor(0),
                "kernel: drivers/infiniband/hw/mana/main.c, mana_ib_query_device",
            ),
            (
                Refuses(abi::QPT_UC, libc::EOPNOTSUPP),
                "providers/mana/qp.c, mana_create_qp",
            ),
            (
                Refuses(abi::QPT_UD, libc::EOPNOTSUPP),
                "providers/mana/qp.c, mana_create_qp",
            ),
            (NoSharedReceiveQueues, "libibverbs/dummy_ops.c"),
            (NoExtendedQueues, "libibverbs/dummy_ops.c"),
            (NoQueries, "libibverbs/dummy_ops.c"),
            (IgnoresInline, "providers/mana/wr.c"),
            (
                Atomics(abi::ATOMIC_NONE),
                "kernel: drivers/infiniband/hw/mana/main.c, mana_ib_query_device",
            ),
            (
                RefusesAccess(REMOTE_ATOMIC),
                "kernel: drivers/infiniband/hw/mana/mr.c, VALID_MR_FLAGS",
            ),
            (OutOfOrder, "no source promises an order"),
            (VendorError(0x17), "an example of providers/mana/cq.c"),
        ],
    },
    Row {
        name: "efa",
        about: "Amazon Elastic Fabric Adapter, without its own protocol (SRD)",
        manners: &[
            (
                Driver("efa"),
                "kernel: drivers/infiniband/hw/efa/efa_main.c",
            ),
            (
                Vendor(0x1d0f),
                "kernel: drivers/infiniband/hw/efa/efa_verbs.c",
            ),
            (
                Transport(abi::TRANSPORT_UNSPECIFIED),
                "kernel: drivers/infiniband/hw/efa/efa_verbs.c",
            ),
            (
                Refuses(abi::QPT_RC, libc::EOPNOTSUPP),
                "providers/efa/verbs.c, efa_create_qp",
            ),
            (
                Refuses(abi::QPT_UC, libc::EOPNOTSUPP),
                "providers/efa/verbs.c, efa_create_qp",
            ),
            (NoSharedReceiveQueues, "libibverbs/dummy_ops.c"),
            (LongestInline(32), "providers/efa/efa_io_defs.h"),
            (
                Atomics(abi::ATOMIC_NONE),
                "kernel: drivers/infiniband/hw/efa/efa_verbs.c",
            ),
            (
                RefusesAccess(REMOTE_ATOMIC),
                "kernel: drivers/infiniband/hw/efa/efa_verbs.c, efa_reg_mr",
            ),
        ],
    },
    Row {
        name: "rxe",
        about: "the kernel's software RDMA device",
        manners: &[
            (
                Vendor(0xff_ffff),
                "kernel: drivers/infiniband/sw/rxe/rxe_param.h",
            ),
            (
                CountsNoRetries,
                "kernel: drivers/infiniband/sw/rxe/rxe_comp.c, rxe_completer",
            ),
            (
                LongestInline(512),
                "kernel: drivers/infiniband/sw/rxe/rxe_param.h",
            ),
        ],
    },
    Row {
        name: "siw",
        about: "the kernel's software iWARP device",
        manners: &[
            (
                Vendor(0x62_6d74),
                "kernel: drivers/infiniband/sw/siw/siw_verbs.c",
            ),
            (
                Transport(abi::TRANSPORT_IWARP),
                "kernel: drivers/infiniband/sw/siw/siw_verbs.c",
            ),
            (
                Refuses(abi::QPT_UC, libc::EOPNOTSUPP),
                "kernel: drivers/infiniband/sw/siw/siw_verbs.c, siw_create_qp",
            ),
            (
                Refuses(abi::QPT_UD, libc::EOPNOTSUPP),
                "kernel: drivers/infiniband/sw/siw/siw_verbs.c, siw_create_qp",
            ),
            (NoExtendedQueues, "libibverbs/dummy_ops.c"),
            (
                Atomics(abi::ATOMIC_NONE),
                "kernel: drivers/infiniband/sw/siw/siw_verbs.c",
            ),
        ],
    },
];

/// Devices without manners.
pub(crate) const NONE: &Row = &Row {
    name: "none",
    about: "the devices of this library as they are",
    manners: &[],
};

/// The row that the value of [`MANNERS`] names.
///
/// # Errors
///
/// One line on what is wrong with the value.
pub(crate) fn row(name: Option<&str>) -> Result<&'static Row, String> {
    match name {
        None | Some("" | "none") => Ok(NONE),
        Some(name) => ROWS.iter().find(|row| row.name == name).ok_or_else(|| {
            let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
            format!(
                "{MANNERS} is {name:?}: there are {} and none",
                names.join(", ")
            )
        }),
    }
}

impl Row {
    pub(crate) fn has(&self, manner: Manner) -> bool {
        self.find(|it| (it == manner).then_some(())).is_some()
    }

    /// What `take` makes of the first manner that it takes.
    pub(crate) fn find<T>(&self, take: impl FnMut(Manner) -> Option<T>) -> Option<T> {
        self.manners
            .iter()
            .map(|(manner, _)| *manner)
            .find_map(take)
    }

    /// The error with which queue pairs of libibverbs' type `qp_type` are refused, if they are.
    pub(crate) fn refusal(&self, qp_type: c_int) -> Option<c_int> {
        self.find(|it| match it {
            Refuses(refused, errno) if refused == qp_type => Some(errno),
            _ => None,
        })
    }

    /// The port's table of partition keys; 0 for an unused entry.
    pub(crate) fn pkeys(&self) -> &'static [u16] {
        let own = self.find(|it| match it {
            PartitionKeys(pkeys) => Some(pkeys),
            _ => None,
        });
        own.unwrap_or(&[PKEY])
    }

    /// The number of the vendor for a failed request.
    pub(crate) fn vendor_error(&self) -> u32 {
        let own = self.find(|it| match it {
            VendorError(number) => Some(number),
            _ => None,
        });
        own.unwrap_or(0)
    }

    /// Faults of the devices, as `HEADWORKS_VERBS_FAULTS` lists them: so WRITEs of one queue pair overtake each other, where the soft
    /// device declares no order.
    pub(crate) fn faults(&self) -> Option<&'static str> {
        self.has(OutOfOrder).then_some("slow=10%;scatter=25%")
    }

    /// The table of all rows as Markdown.
    #[cfg(test)]
    fn markdown() -> String {
        use std::fmt::Write;
        let mut text =
            "| name | devices | what they do | read in |\n|---|---|---|---|\n".to_owned();
        for row in ROWS {
            let _ = writeln!(text, "| **`{}`** | {} | | |", row.name, row.about);
            for (manner, source) in row.manners {
                let _ = writeln!(text, "| | | {manner} | {source} |");
            }
        }
        text
    }
}

#[cfg(test)]
impl std::fmt::Display for Manner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let qp_type = |code: c_int| match code {
            abi::QPT_RC => "RC",
            abi::QPT_UC => "UC",
            _ => "UD",
        };
        match self {
            Driver(name) => write!(f, "the driver is `{name}` in sysfs"),
            Vendor(id) => write!(f, "vendor id {id:#x}"),
            Transport(code) => write!(f, "transport {code}"),
            Port(Link::Infiniband) => f.write_str("the port is on InfiniBand"),
            Port(Link::Ethernet) => f.write_str("the port is on Ethernet"),
            Refuses(code, errno) => write!(
                f,
                "{} queue pairs are refused: {}",
                qp_type(*code),
                std::io::Error::from_raw_os_error(*errno)
            ),
            NoSharedReceiveQueues => f.write_str("no shared receive queues"),
            NoExtendedQueues => f.write_str("no extended completion queues, no timestamps"),
            NoQueries => f.write_str("`ibv_query_qp` is refused"),
            ReportsMore => f.write_str("`ibv_query_qp` reports twice the sizes"),
            Atomics(0) => f.write_str("no atomics"),
            Atomics(code) => write!(f, "atomics of kind {code}"),
            LongestInline(bytes) => write!(f, "at most {bytes} bytes inline"),
            IgnoresInline => {
                f.write_str("`IBV_SEND_INLINE` is ignored, and the asked length is returned")
            }
            ReadsEmptyLists => {
                f.write_str("of a request without entries, the list is read unless it is NULL")
            }
            DataInOrder => f.write_str("`ibv_query_qp_data_in_order` answers 1 in RTS"),
            OutOfOrder => f.write_str("bytes and WRITEs become visible in any order"),
            OnlyRelaxed => {
                f.write_str("registration without `IBV_ACCESS_RELAXED_ORDERING` is refused")
            }
            RefusesAccess(flags) => write!(f, "registration with access {flags:#x} is refused"),
            CountsNoRetries => f.write_str("a retry count of 7 retries without end"),
            VendorError(number) => write!(f, "`vendor_err` {number:#x} of a failed request"),
            TablesMove => f.write_str("GIDs and partition keys change their places, with an event"),
            PartitionKeys(pkeys) => {
                let keys: Vec<_> = pkeys.iter().map(|key| format!("{key:#06x}")).collect();
                write!(f, "partition keys {}", keys.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_found_by_its_name_or_the_line_lists_all() {
        assert_eq!(row(None), Ok(NONE));
        assert_eq!(row(Some("irdma")).unwrap().name, "irdma");
        let error = row(Some("qlogic")).unwrap_err();
        assert!(
            error.starts_with(MANNERS) && error.contains("mlx5-ib, "),
            "{error}"
        );
        assert!(!error.contains('\n'));
    }

    #[test]
    fn names_are_different_and_each_entry_has_a_source() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..at].iter().all(|other| other.name != row.name));
            assert!(row.manners.iter().all(|(_, source)| !source.is_empty()));
        }
    }

    #[test]
    fn the_faults_of_each_row_are_legal() {
        let mut count = 0;
        for row in ROWS {
            let Some(listed) = row.faults() else {
                continue;
            };
            assert!(crate::faults::rules(Some(listed), None).unwrap().is_some());
            count += 1;
        }
        assert!(count > 3);
    }

    #[test]
    fn the_document_has_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/driver-manners.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (begin, end) = (
            "<!-- manners: written by HEADWORKS_WRITE_TABLE=1 -->\n\n",
            "\n<!-- end of manners -->",
        );
        let from = page.find(begin).unwrap() + begin.len();
        let to = page.find(end).unwrap();
        let table = Row::markdown();
        if std::env::var_os("HEADWORKS_WRITE_TABLE").is_some() {
            std::fs::write(path, format!("{}{table}{}", &page[..from], &page[to..])).unwrap();
            return;
        }
        assert_eq!(&page[from..to], table, "HEADWORKS_WRITE_TABLE=1 writes it");
    }
}

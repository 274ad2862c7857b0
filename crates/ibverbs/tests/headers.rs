//! Compares the layout of libibverbs' types with the C headers, if they and a C compiler are installed.

use std::fs;
use std::process::Command;

/// A C type, its size in bytes, and offsets of some of its fields.
type Layout = (&'static str, usize, &'static [(&'static str, usize)]);

/// Layouts of the types in `src/abi.rs`.
const LAYOUT: &[Layout] = &[
    (
        "ibv_device",
        664,
        &[
            ("transport_type", 20),
            ("name", 24),
            ("dev_name", 88),
            ("ibdev_path", 408),
        ],
    ),
    (
        "ibv_context_ops",
        256,
        &[
            ("poll_cq", 88),
            ("req_notify_cq", 96),
            ("post_srq_recv", 160),
            ("post_send", 200),
            ("post_recv", 208),
        ],
    ),
    (
        "ibv_context",
        328,
        &[("ops", 8), ("async_fd", 268), ("abi_compat", 320)],
    ),
    ("ibv_values_ex", 24, &[("raw_clock", 8)]),
    (
        "ibv_device_attr",
        232,
        &[
            ("vendor_id", 96),
            ("max_qp", 108),
            ("max_sge", 120),
            ("max_qp_rd_atom", 144),
            ("max_qp_init_rd_atom", 156),
            ("atomic_cap", 164),
            ("max_ah", 200),
            ("max_srq", 212),
            ("phys_port_cnt", 227),
        ],
    ),
    (
        "ibv_gid_entry",
        32,
        &[("gid_index", 16), ("gid_type", 24), ("ndev_ifindex", 28)],
    ),
    ("ibv_mr", 48, &[("lkey", 36), ("rkey", 40)]),
    (
        "ibv_ah_attr",
        32,
        &[("sl", 26), ("is_global", 29), ("port_num", 30)],
    ),
    ("ibv_cq", 128, &[("cq_context", 16), ("cqe", 28)]),
    (
        "ibv_cq_ex",
        288,
        &[
            ("status", 132),
            ("wr_id", 136),
            ("start_poll", 144),
            ("read_wc_flags", 216),
            ("read_completion_ts", 248),
        ],
    ),
    (
        "ibv_cq_init_attr_ex",
        56,
        &[("wc_flags", 32), ("flags", 44)],
    ),
    ("ibv_srq", 128, &[("srq_context", 8)]),
    ("ibv_srq_init_attr", 24, &[("attr", 8)]),
    ("ibv_qp", 160, &[("qp_num", 52), ("state", 56)]),
    (
        "ibv_qp_init_attr",
        64,
        &[("cap", 32), ("qp_type", 52), ("sq_sig_all", 56)],
    ),
    (
        "ibv_qp_attr",
        144,
        &[
            ("qkey", 16),
            ("ah_attr", 56),
            ("pkey_index", 120),
            ("max_rd_atomic", 126),
            ("port_num", 129),
            ("rnr_retry", 132),
        ],
    ),
    (
        "ibv_send_wr",
        128,
        &[
            ("sg_list", 16),
            ("opcode", 28),
            ("send_flags", 32),
            ("imm_data", 36),
            ("wr.rdma.rkey", 48),
            ("wr.atomic.swap", 56),
            ("wr.atomic.rkey", 64),
            ("wr.ud.remote_qkey", 52),
        ],
    ),
    ("ibv_recv_wr", 32, &[("sg_list", 16), ("num_sge", 24)]),
    ("ibv_sge", 16, &[("length", 8), ("lkey", 12)]),
    (
        "ibv_wc",
        48,
        &[
            ("status", 8),
            ("opcode", 12),
            ("byte_len", 20),
            ("imm_data", 24),
            ("qp_num", 28),
            ("src_qp", 32),
            ("wc_flags", 36),
            ("slid", 42),
        ],
    ),
    ("ibv_async_event", 16, &[("event_type", 8)]),
];

/// Names of constants, and their values.
const NUMBERS: &[(&str, u32)] = &[
    ("IBV_TRANSPORT_IWARP", 1),
    ("IBV_QPF_GRH_REQUIRED", 1),
    ("IBV_WC_EX_WITH_SLID", 1 << 4),
    ("IBV_ATOMIC_NONE", 0),
    ("IBV_QP_CUR_STATE", 1 << 1),
    ("IBV_QP_CAP", 1 << 19),
    ("IBV_QPS_SQE", 5),
    ("IBV_WC_FATAL_ERR", 19),
    ("IBV_WC_RECV", 128),
];

/// Types that later headers extended: their smallest sizes.
const GROWN: &[Layout] = &[
    (
        "ibv_device_attr_ex",
        400,
        &[("completion_timestamp_mask", 264), ("hca_core_clock", 272)],
    ),
    (
        "ibv_port_attr",
        52,
        &[
            ("active_mtu", 8),
            ("gid_tbl_len", 12),
            ("max_msg_sz", 20),
            ("link_layer", 46),
            ("flags", 47),
        ],
    ),
];

/// C assertions of the size of each type and the offset of each field.
fn assertions(table: &[Layout], relation: &str, has: impl Fn(&str, &str) -> bool) -> String {
    let mut text = String::new();
    for (name, size, fields) in table {
        text += &format!("_Static_assert(sizeof(struct {name}) {relation} {size}, \"{name}\");\n");
        for (field, offset) in fields.iter().filter(|(field, _)| has(name, field)) {
            text += &format!(
                "_Static_assert(offsetof(struct {name}, {field}) == {offset}, \"{name}.{field}\");\n"
            );
        }
    }
    text
}

/// Compiles `text`. Returns the C compiler's errors; `None` if there is no compiler.
fn compile(name: &str, text: &str) -> Option<Result<(), String>> {
    let file = std::env::temp_dir().join(format!("headworks-{name}-{}.c", std::process::id()));
    fs::write(&file, text).expect("a temporary file");
    let compiled = Command::new("cc").arg("-fsyntax-only").arg(&file).output();
    let _ = fs::remove_file(&file);
    let compiled = compiled.ok()?;
    let said = String::from_utf8_lossy(&compiled.stderr).into_owned();
    Some(if compiled.status.success() {
        Ok(())
    } else {
        Err(said)
    })
}

#[test]
fn the_headers_agree() {
    if !cfg!(target_arch = "x86_64") {
        println!("skipped: the offsets are those of x86-64");
        return;
    }
    if compile("none", "#include <infiniband/verbs.h>\n") != Some(Ok(())) {
        println!("skipped: no C compiler, or no infiniband/verbs.h (Debian: libibverbs-dev)");
        return;
    }
    let mut text = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n\
         _Static_assert(sizeof(struct verbs_context) - offsetof(struct verbs_context, context) == 328, \"\");\n\
         _Static_assert(sizeof(struct verbs_context) - offsetof(struct verbs_context, sz) == 336, \"\");\n\
         _Static_assert(sizeof(struct verbs_context) - offsetof(struct verbs_context, query_rt_values) == 456, \"\");\n\
         _Static_assert(sizeof(struct verbs_context) - offsetof(struct verbs_context, create_cq_ex) == 448, \"\");\n\
         _Static_assert(sizeof(struct verbs_context) - offsetof(struct verbs_context, query_device_ex) == 432, \"\");\n",
    );
    for (name, number) in NUMBERS {
        text += &format!("_Static_assert({name} == {number}, \"{name}\");\n");
    }
    text += &assertions(LAYOUT, "==", |_, _| true);
    text += &assertions(GROWN, ">=", |_, _| true);
    let said = compile("abi", &text).expect("the C compiler ran before");
    assert_eq!(said, Ok(()));
}

#[test]
fn the_stand_ins_header_agrees() {
    if !cfg!(target_arch = "x86_64") {
        println!("skipped: the offsets are those of x86-64");
        return;
    }
    let header = include_str!("stand_in/verbs.h");
    // The header declares only what the stand-in needs.
    let body = |name: &str| {
        let (_, rest) = header.split_once(&format!("struct {name} {{"))?;
        rest.split_once("\n};").map(|(body, _)| body)
    };
    let declared: Vec<Layout> = LAYOUT
        .iter()
        .copied()
        .filter(|(name, ..)| body(name).is_some())
        .collect();
    assert!(declared.len() > 10, "{declared:?}");
    let has = |name: &str, field: &str| {
        let words = body(name).unwrap_or_default();
        let mut words = words.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| word == field.rsplit('.').next().unwrap_or_default())
    };
    let text = format!("{header}{}", assertions(&declared, "==", has));
    match compile("stand-in", &text) {
        None => println!("skipped: no C compiler"),
        Some(said) => assert_eq!(said, Ok(())),
    }
}

/// Layouts of librdmacm's types in `src/cm/abi.rs`.
const MANAGER: &[Layout] = &[
    ("rdma_event_channel", 4, &[("fd", 0)]),
    (
        "rdma_cm_id",
        416,
        &[
            ("verbs", 0),
            ("route.addr.addr.ibaddr.sgid", 288),
            ("route.addr.addr.ibaddr.pkey", 320),
            ("route.path_rec", 328),
            ("route.num_paths", 336),
            ("port_num", 348),
        ],
    ),
    (
        "ibv_sa_path_rec",
        64,
        &[
            ("sgid", 16),
            ("flow_label", 40),
            ("traffic_class", 45),
            ("sl", 56),
            ("mtu", 58),
        ],
    ),
    (
        "rdma_conn_param",
        24,
        &[("private_data_len", 8), ("retry_count", 12), ("qp_num", 16)],
    ),
    ("rdma_ud_param", 56, &[("ah_attr", 16), ("qp_num", 48)]),
    (
        "rdma_cm_event",
        80,
        &[("event", 16), ("status", 20), ("param", 24)],
    ),
];

/// Names of librdmacm's constants, and their values.
const EVENTS: &[(&str, u32)] = &[
    ("RDMA_CM_EVENT_ADDR_RESOLVED", 0),
    ("RDMA_CM_EVENT_ROUTE_RESOLVED", 2),
    ("RDMA_CM_EVENT_CONNECT_REQUEST", 4),
    ("RDMA_CM_EVENT_CONNECT_RESPONSE", 5),
    ("RDMA_CM_EVENT_REJECTED", 8),
    ("RDMA_CM_EVENT_ESTABLISHED", 9),
    ("RDMA_CM_EVENT_DISCONNECTED", 10),
    ("RDMA_CM_EVENT_DEVICE_REMOVAL", 11),
    ("RDMA_PS_TCP", 0x106),
];

#[test]
fn the_headers_of_the_connection_manager_agree() {
    if !cfg!(target_arch = "x86_64") {
        println!("skipped: the offsets are those of x86-64");
        return;
    }
    let include = "#include <rdma/rdma_cma.h>\n#include <stddef.h>\n";
    if compile("no-manager", include) != Some(Ok(())) {
        println!("skipped: no C compiler, or no rdma/rdma_cma.h (Debian: librdmacm-dev)");
        return;
    }
    let mut text = include.to_owned();
    for (name, number) in EVENTS {
        text += &format!("_Static_assert({name} == {number}, \"{name}\");\n");
    }
    text += &assertions(MANAGER, "==", |_, _| true);
    assert_eq!(compile("manager", &text), Some(Ok(())));
}

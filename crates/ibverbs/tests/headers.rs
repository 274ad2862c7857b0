//! Compares numbers of libibverbs, and the layout of librdmacm's types, with the C headers, if they and a C compiler are installed.

use std::fs;
use std::process::Command;

use headworks_verbs_abi::layout::all;

/// A C type, its size in bytes, and offsets of some of its fields.
type Layout = (&'static str, usize, &'static [(&'static str, usize)]);

/// Names of constants that this crate has as plain numbers, and their values.
const NUMBERS: &[(&str, u32)] = &[
    ("IBV_QPS_SQE", 5),
    ("IBV_WC_FATAL_ERR", 19),
    ("IBV_WC_RECV", 128),
];

/// C assertions of the size of each type and the offset of each field.
fn assertions(table: &[Layout], has: impl Fn(&str, &str) -> bool) -> String {
    let mut text = String::new();
    for (name, size, fields) in table {
        text += &format!("_Static_assert(sizeof(struct {name}) == {size}, \"{name}\");\n");
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
fn the_headers_agree_on_numbers() {
    if !cfg!(target_arch = "x86_64") {
        println!("skipped: the offsets are those of x86-64");
        return;
    }
    if compile("none", "#include <infiniband/verbs.h>\n") != Some(Ok(())) {
        println!("skipped: no C compiler, or no infiniband/verbs.h (Debian: libibverbs-dev)");
        return;
    }
    let mut text = "#include <infiniband/verbs.h>\n".to_owned();
    for (name, number) in NUMBERS {
        text += &format!("_Static_assert({name} == {number}, \"{name}\");\n");
    }
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
    let declared: Vec<Layout> = all()
        .filter(|one| !one.grows && body(one.name).is_some())
        .map(|one| (one.name, one.size, one.fields))
        .collect();
    assert!(declared.len() > 10, "{declared:?}");
    let has = |name: &str, field: &str| {
        let words = body(name).unwrap_or_default();
        let mut words = words.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| word == field.rsplit('.').next().unwrap_or_default())
    };
    let text = format!("{header}{}", assertions(&declared, has));
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
    text += &assertions(MANAGER, |_, _| true);
    assert_eq!(compile("manager", &text), Some(Ok(())));
}

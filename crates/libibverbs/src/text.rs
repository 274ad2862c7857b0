//! Descriptions of the interface's numbers.

use std::ffi::{CStr, c_char, c_int};

const UNKNOWN: &CStr = c"unknown";

/// Completion statuses, from 0.
const WC_STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"tag matching error",
    c"tag matching rendezvous incomplete",
];

/// Node types, from 1.
const NODES: [&CStr; 7] = [
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

/// States of a port, from 0.
const PORT_STATES: [&CStr; 6] = [
    c"no state change (NOP)",
    c"down",
    c"init",
    c"armed",
    c"active",
    c"active defer",
];

/// Asynchronous events, from 0.
const EVENTS: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

fn text(table: &[&'static CStr], number: c_int) -> *const c_char {
    let known = usize::try_from(number).ok().and_then(|at| table.get(at));
    known.copied().unwrap_or(UNKNOWN).as_ptr()
}

pub(crate) extern "C" fn wc_status(status: c_int) -> *const c_char {
    text(&WC_STATUSES, status)
}

pub(crate) extern "C" fn node_type(node: c_int) -> *const c_char {
    text(&NODES, node.saturating_sub(1))
}

pub(crate) extern "C" fn port_state(state: c_int) -> *const c_char {
    text(&PORT_STATES, state)
}

pub(crate) extern "C" fn event_type(event: c_int) -> *const c_char {
    text(&EVENTS, event)
}

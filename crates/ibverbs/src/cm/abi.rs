//! Types of librdmacm's binary interface, as far as this crate uses them; no code.
//!
//! They are written from knowledge of the binary interface. The names are ours. Sizes and offsets are checked
//! below when compiling for x86-64, and against the C headers in `tests/headers.rs` where those are
//! installed.

use std::ffi::{c_int, c_void};

use crate::abi::{AhAttr, Context, Unused};

/// `rdma_event_channel`.
#[repr(C)]
pub(crate) struct EventChannel {
    pub(crate) fd: c_int,
}

/// `ibv_sa_path_rec`: a path through the network, from the subnet manager (on Ethernet, from the kernel).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct PathRec {
    pub(crate) dgid: [u64; 2],
    pub(crate) sgid: [u64; 2],
    /// In network byte order, as `slid`.
    pub(crate) dlid: u16,
    pub(crate) slid: u16,
    pub(crate) raw_traffic: c_int,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) reversible: c_int,
    pub(crate) numb_path: u8,
    pub(crate) pkey: u16,
    pub(crate) sl: u8,
    pub(crate) mtu_selector: u8,
    pub(crate) mtu: u8,
    pub(crate) rate_selector: u8,
    pub(crate) rate: u8,
    pub(crate) packet_life_time_selector: u8,
    pub(crate) packet_life_time: u8,
    pub(crate) preference: u8,
}

/// `rdma_cm_id` with its `rdma_route`, up to the last field that is used.
#[repr(C)]
pub(crate) struct Id {
    pub(crate) verbs: *mut Context,
    pub(crate) channel: *mut EventChannel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: Unused,
    /// Two `sockaddr_storage`.
    pub(crate) addresses: [[u64; 16]; 2],
    pub(crate) sgid: [u64; 2],
    pub(crate) dgid: [u64; 2],
    pub(crate) pkey: u16,
    pub(crate) path_rec: *mut PathRec,
    pub(crate) num_paths: c_int,
    /// Padding at the end of the route.
    pub(crate) padding: c_int,
    pub(crate) port_space: c_int,
    pub(crate) port_num: u8,
    pub(crate) event: Unused,
}

/// `rdma_port_space`: `RDMA_PS_TCP`, for connected queue pairs.
pub(crate) const PS_TCP: c_int = 0x106;

/// `rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConnParam {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

/// `rdma_ud_param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UdParam {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) ah_attr: AhAttr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

/// Parameters of an event: `conn` for events of connections.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Param {
    pub(crate) conn: ConnParam,
    pub(crate) ud: UdParam,
}

/// `rdma_cm_event`.
#[repr(C)]
pub(crate) struct Event {
    pub(crate) id: *mut Id,
    pub(crate) listen_id: *mut Id,
    pub(crate) event: c_int,
    pub(crate) status: c_int,
    pub(crate) param: Param,
}

/// `Event::event`.
pub(crate) mod event {
    pub(crate) const ADDR_RESOLVED: i32 = 0;
    pub(crate) const ADDR_ERROR: i32 = 1;
    pub(crate) const ROUTE_RESOLVED: i32 = 2;
    pub(crate) const ROUTE_ERROR: i32 = 3;
    pub(crate) const CONNECT_REQUEST: i32 = 4;
    pub(crate) const CONNECT_RESPONSE: i32 = 5;
    pub(crate) const CONNECT_ERROR: i32 = 6;
    pub(crate) const UNREACHABLE: i32 = 7;
    pub(crate) const REJECTED: i32 = 8;
    pub(crate) const ESTABLISHED: i32 = 9;
    pub(crate) const DISCONNECTED: i32 = 10;
    pub(crate) const DEVICE_REMOVAL: i32 = 11;
    /// First of the events that are ignored: multicast, address changes, end of TIMEWAIT, and later
    /// additions.
    pub(crate) const FIRST_OF_OTHERS: i32 = 12;
}

/// Checks at compile time that types have these sizes and their fields these offsets.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
macro_rules! laid_out {
    ($($name:ident is $size:literal $(, $field:ident at $at:literal)*;)*) => {
        $(const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(offset_of!($name, $field) == $at);)*
        };)*
    };
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod layout {
    use std::mem::{offset_of, size_of};

    use super::*;

    laid_out! {
        EventChannel is 4;
        PathRec is 64, sgid at 16, flow_label at 40, traffic_class at 45, pkey at 54, sl at 56, mtu at 58, packet_life_time at 62;
        ConnParam is 24, private_data_len at 8, retry_count at 12, qp_num at 16;
        UdParam is 56, ah_attr at 16, qp_num at 48;
        Event is 80, event at 16, status at 20, param at 24;
    }

    const _: () = {
        assert!(offset_of!(Id, qp) == 24);
        assert!(offset_of!(Id, addresses) == 32);
        assert!(offset_of!(Id, sgid) == 288);
        assert!(offset_of!(Id, pkey) == 320);
        assert!(offset_of!(Id, path_rec) == 328);
        assert!(offset_of!(Id, num_paths) == 336);
        assert!(offset_of!(Id, port_space) == 344);
        assert!(offset_of!(Id, port_num) == 348);
        assert!(offset_of!(Id, event) == 352);
    };
}

//! Requests and completions.

use std::ffi::c_int;

use crate::Ah;

/// `ibv_sge`: laid out as [`headworks_verbs::Sge`], so lists of entries are passed on without copying.
pub type Sge = headworks_verbs::Sge;

/// The remote address and key of a request: laid out as [`headworks_verbs::RemoteAddr`].
pub type Rdma = headworks_verbs::RemoteAddr;

/// Remote address and operands of an atomic.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// Destination of a datagram.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ud {
    pub ah: *mut Ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// The part of a send request that depends on its opcode.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Operation {
    pub rdma: Rdma,
    pub atomic: Atomic,
    pub ud: Ud,
}

/// Offsets within `struct ibv_send_wr` of the fields of [`Operation`], as that table of the whole struct cannot name them.
pub const OPERATION_FIELDS: &[(&str, usize)] = &[
    ("wr.rdma.rkey", 40 + core::mem::offset_of!(Rdma, rkey)),
    (
        "wr.atomic.compare_add",
        40 + core::mem::offset_of!(Atomic, compare_add),
    ),
    ("wr.atomic.swap", 40 + core::mem::offset_of!(Atomic, swap)),
    ("wr.atomic.rkey", 40 + core::mem::offset_of!(Atomic, rkey)),
    (
        "wr.ud.remote_qpn",
        40 + core::mem::offset_of!(Ud, remote_qpn),
    ),
    (
        "wr.ud.remote_qkey",
        40 + core::mem::offset_of!(Ud, remote_qkey),
    ),
];

const _: () = assert!(
    size_of::<Sge>() == 16
        && size_of::<Operation>() == 32
        && core::mem::offset_of!(SendWr, wr) == 40
);

c_structs! {
    /// A send request. `imm_data` is in network byte order.
    #[derive(Clone, Copy)]
    ibv_send_wr as SendWr is 128 {
        0 wr_id: u64,
        8 next: *mut SendWr,
        16 sg_list: *const Sge,
        24 num_sge: c_int,
        28 opcode: u32,
        32 send_flags: u32,
        36 imm_data: u32,
        40 wr: Operation,
        72 xrc_srqn = "qp_type.xrc.remote_srqn": u32,
        80 bind_mw: [u64; 6],
    }

    /// A receive request.
    #[derive(Clone, Copy)]
    ibv_recv_wr as RecvWr is 32 {
        0 wr_id: u64,
        8 next: *mut RecvWr,
        16 sg_list: *const Sge,
        24 num_sge: c_int,
    }

    /// A completion. `imm_data` is in network byte order.
    #[derive(Clone, Copy, Debug, Default)]
    ibv_wc as Wc is 48 {
        0 wr_id: u64,
        8 status: c_int,
        12 opcode: c_int,
        16 vendor_err: u32,
        20 byte_len: u32,
        24 imm_data: u32,
        28 qp_num: u32,
        32 src_qp: u32,
        36 wc_flags: u32,
        40 pkey_index: u16,
        42 slid: u16,
        44 sl: u8,
        45 dlid_path_bits: u8,
    }
}

//! Types of libibverbs' binary interface, as far as this crate uses them; no code.
//!
//! They are written from knowledge of the binary interface, which has been frozen for many years. The names
//! are ours. Sizes and offsets are checked below when compiling for x86-64, and against the C headers in
//! `tests/headers.rs` where those are installed.

use std::ffi::{c_char, c_int, c_void};

/// A field of the interface that this crate does not use.
pub(crate) type Unused = *mut c_void;

/// `ibv_device`.
#[repr(C)]
pub(crate) struct Device {
    pub(crate) ops: [Unused; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// `Device::transport_type`: InfiniBand or RoCE.
pub(crate) const TRANSPORT_IB: c_int = 0;
/// `Device::transport_type`: iWARP.
pub(crate) const TRANSPORT_IWARP: c_int = 1;

pub(crate) type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
pub(crate) type ReqNotifyCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
pub(crate) type PostSrqRecv =
    unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int;
pub(crate) type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
pub(crate) type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// `ibv_context_ops`: the device's own functions, which are not called through libibverbs' exported ones.
#[repr(C)]
pub(crate) struct ContextOps {
    pub(crate) before_poll: [Unused; 11],
    pub(crate) poll_cq: Option<PollCq>,
    pub(crate) req_notify_cq: Option<ReqNotifyCq>,
    pub(crate) before_srq: [Unused; 7],
    pub(crate) post_srq_recv: Option<PostSrqRecv>,
    pub(crate) before_send: [Unused; 4],
    pub(crate) post_send: Option<PostSend>,
    pub(crate) post_recv: Option<PostRecv>,
    pub(crate) rest: [Unused; 5],
}

/// `ibv_context`.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    pub(crate) ops: ContextOps,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

pub(crate) type QueryRtValues = unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int;
pub(crate) type CreateCqEx = unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx;
pub(crate) type QueryDeviceEx =
    unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttrEx, usize) -> c_int;

/// `verbs_context`: the structure around an `ibv_context` whose `abi_compat` is all ones. Newer libraries add
/// fields at its front, so it is located from its end.
#[repr(C)]
pub(crate) struct VerbsContext {
    pub(crate) front: [Unused; 24],
    pub(crate) query_rt_values: Option<QueryRtValues>,
    pub(crate) create_cq_ex: Option<CreateCqEx>,
    pub(crate) private: Unused,
    pub(crate) query_device_ex: Option<QueryDeviceEx>,
    pub(crate) back: [Unused; 11],
    pub(crate) sz: usize,
    pub(crate) context: Context,
}

/// `ibv_values_ex`.
#[repr(C)]
pub(crate) struct ValuesEx {
    pub(crate) comp_mask: u32,
    pub(crate) raw_clock: libc::timespec,
}

/// `ValuesEx::comp_mask`: the raw clock.
pub(crate) const RAW_CLOCK: u32 = 1;

/// `ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DeviceAttr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: u32,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) max_ee: c_int,
    pub(crate) max_rdd: c_int,
    pub(crate) max_mw: c_int,
    pub(crate) max_raw_ipv6_qp: c_int,
    pub(crate) max_raw_ethy_qp: c_int,
    pub(crate) max_mcast_grp: c_int,
    pub(crate) max_mcast_qp_attach: c_int,
    pub(crate) max_total_mcast_qp_attach: c_int,
    pub(crate) max_ah: c_int,
    pub(crate) max_fmr: c_int,
    pub(crate) max_map_per_fmr: c_int,
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// `DeviceAttr::atomic_cap`: no atomics.
pub(crate) const ATOMIC_NONE: c_int = 0;

/// `ibv_device_attr_ex`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DeviceAttrEx {
    pub(crate) orig: DeviceAttr,
    pub(crate) comp_mask: u32,
    pub(crate) odp_caps: [u64; 3],
    pub(crate) completion_timestamp_mask: u64,
    pub(crate) hca_core_clock: u64,
    pub(crate) rest: [u64; 15],
}

/// `ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PortAttr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
}

/// `PortAttr::state`: the port is up.
pub(crate) const PORT_ACTIVE: c_int = 4;
/// `PortAttr::link_layer`: not reported; InfiniBand if the device's transport is [`TRANSPORT_IB`].
pub(crate) const LINK_UNSPECIFIED: u8 = 0;
/// `PortAttr::link_layer`: InfiniBand.
pub(crate) const LINK_INFINIBAND: u8 = 1;
/// `PortAttr::flags`: packets reach the port only with a global routing header.
pub(crate) const GRH_REQUIRED: u8 = 1;

/// `ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct GidEntry {
    /// 16 bytes, aligned as two 8-byte words.
    pub(crate) gid: [u64; 2],
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

/// `ibv_pd`.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) context: *mut Context,
    pub(crate) handle: u32,
}

/// `ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `ibv_ah`.
#[repr(C)]
pub(crate) struct Ah {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) handle: u32,
}

/// `ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GlobalRoute {
    pub(crate) dgid: [u64; 2],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// `ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AhAttr {
    pub(crate) grh: GlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// `ibv_comp_channel`.
#[repr(C)]
pub(crate) struct CompChannel {
    pub(crate) context: *mut Context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

/// `ibv_cq`.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    pub(crate) channel: *mut CompChannel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

/// `ibv_cq_ex`: an `ibv_cq`, with the fields and accessors of its current completion.
#[repr(C)]
pub(crate) struct CqEx {
    pub(crate) cq: Cq,
    pub(crate) comp_mask: u32,
    pub(crate) status: c_int,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: Option<unsafe extern "C" fn(*mut Self, *mut PollCqAttr) -> c_int>,
    pub(crate) next_poll: Option<unsafe extern "C" fn(*mut Self) -> c_int>,
    pub(crate) end_poll: Option<unsafe extern "C" fn(*mut Self)>,
    pub(crate) read_opcode: Option<unsafe extern "C" fn(*mut Self) -> c_int>,
    pub(crate) read_vendor_err: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_byte_len: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_imm_data: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_qp_num: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_src_qp: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_wc_flags: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) read_slid: Option<unsafe extern "C" fn(*mut Self) -> u32>,
    pub(crate) between: [Unused; 2],
    pub(crate) read_completion_ts: Option<unsafe extern "C" fn(*mut Self) -> u64>,
    pub(crate) rest: [Unused; 4],
}

/// `ibv_poll_cq_attr`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct PollCqAttr {
    pub(crate) comp_mask: u32,
}

/// `ibv_cq_init_attr_ex`.
#[repr(C)]
pub(crate) struct CqInitAttrEx {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut CompChannel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: *mut Pd,
}

/// `CqInitAttrEx::wc_flags`: byte length, immediate, queue pair number, source queue pair, timestamp.
pub(crate) const WC_EX_WITH: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 7;
/// `CqInitAttrEx::wc_flags`: the source LID.
pub(crate) const WC_EX_WITH_SLID: u64 = 1 << 4;

/// `ibv_srq`.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) context: *mut Context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) handle: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// `ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct SrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// The SRQ limit, in the mask of `ibv_modify_srq`.
pub(crate) const SRQ_LIMIT: c_int = 2;

/// `ibv_srq_init_attr`.
#[repr(C)]
pub(crate) struct SrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: SrqAttr,
}

/// `ibv_qp`.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_int,
    pub(crate) qp_type: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// `ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `ibv_qp_init_attr`.
#[repr(C)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

/// `QpInitAttr::qp_type`: reliable connection.
pub(crate) const QPT_RC: c_int = 2;
/// `QpInitAttr::qp_type`: unreliable datagram.
pub(crate) const QPT_UD: c_int = 4;

/// `ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// Bits of `ibv_modify_qp`'s mask.
pub(crate) mod mask {
    pub(crate) const STATE: i32 = 1;
    pub(crate) const CUR_STATE: i32 = 1 << 1;
    pub(crate) const ACCESS_FLAGS: i32 = 1 << 3;
    pub(crate) const PKEY_INDEX: i32 = 1 << 4;
    pub(crate) const PORT: i32 = 1 << 5;
    pub(crate) const QKEY: i32 = 1 << 6;
    pub(crate) const AV: i32 = 1 << 7;
    pub(crate) const PATH_MTU: i32 = 1 << 8;
    pub(crate) const TIMEOUT: i32 = 1 << 9;
    pub(crate) const RETRY_CNT: i32 = 1 << 10;
    pub(crate) const RNR_RETRY: i32 = 1 << 11;
    pub(crate) const RQ_PSN: i32 = 1 << 12;
    pub(crate) const MAX_RD_ATOMIC: i32 = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: i32 = 1 << 15;
    pub(crate) const SQ_PSN: i32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub(crate) const CAP: i32 = 1 << 19;
    pub(crate) const DEST_QPN: i32 = 1 << 20;
}

/// `ibv_sge`: laid out as [`headworks_verbs::Sge`], so lists of entries are passed on without copying.
pub(crate) type Sge = headworks_verbs::Sge;

/// The remote address and key of a request: laid out as [`headworks_verbs::RemoteAddr`].
pub(crate) type Rdma = headworks_verbs::RemoteAddr;

/// Remote address and operands of an atomic.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// Destination of a datagram.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ud {
    pub(crate) ah: *mut Ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// The part of a send request that depends on its opcode.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Operation {
    pub(crate) rdma: Rdma,
    pub(crate) atomic: Atomic,
    pub(crate) ud: Ud,
}

/// `ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) send_flags: u32,
    /// In network byte order.
    pub(crate) imm_data: u32,
    pub(crate) wr: Operation,
    pub(crate) xrc_srqn: u32,
    pub(crate) rest: [u64; 6],
}

/// `SendWr::opcode`.
pub(crate) mod opcode {
    pub(crate) const WRITE: u32 = 0;
    pub(crate) const WRITE_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_IMM: u32 = 3;
    pub(crate) const READ: u32 = 4;
    pub(crate) const COMPARE_SWAP: u32 = 5;
    pub(crate) const FETCH_ADD: u32 = 6;
}

/// `SendWr::send_flags`: the payload is copied into the request (inline).
pub(crate) const SEND_INLINE: u32 = 8;

/// `ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
}

/// `ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// In network byte order.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// `ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AsyncEvent {
    /// Pointer to a CQ, a queue pair or an SRQ; or a port number, in the low half.
    pub(crate) element: *mut c_void,
    pub(crate) event_type: c_int,
}

/// `AsyncEvent::event_type`.
pub(crate) mod event {
    pub(crate) const CQ_ERR: i32 = 0;
    pub(crate) const QP_FATAL: i32 = 1;
    pub(crate) const QP_REQ_ERR: i32 = 2;
    pub(crate) const QP_ACCESS_ERR: i32 = 3;
    pub(crate) const DEVICE_FATAL: i32 = 8;
    pub(crate) const PORT_ACTIVE: i32 = 9;
    pub(crate) const PORT_ERR: i32 = 10;
    pub(crate) const SRQ_ERR: i32 = 14;
    pub(crate) const SRQ_LIMIT_REACHED: i32 = 15;
    pub(crate) const QP_LAST_WQE_REACHED: i32 = 16;
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
pub(crate) use laid_out;

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod layout {
    use std::mem::{offset_of, size_of};

    use super::*;

    laid_out! {
        Device is 664, transport_type at 20, name at 24, dev_name at 88, ibdev_path at 408;
        ContextOps is 256, poll_cq at 88, req_notify_cq at 96, post_srq_recv at 160, post_send at 200, post_recv at 208;
        Context is 328, ops at 8, cmd_fd at 264, async_fd at 268, num_comp_vectors at 272, abi_compat at 320;
        VerbsContext is 648, query_rt_values at 192, create_cq_ex at 200, private at 208, query_device_ex at 216, sz at 312, context at 320;
        ValuesEx is 24, raw_clock at 8;
        DeviceAttr is 232, node_guid at 64, vendor_id at 96, max_qp at 108, max_sge at 120, max_cq at 128, max_qp_rd_atom at 144, max_qp_init_rd_atom at 156, atomic_cap at 164, max_ah at 200, max_srq at 212, max_pkeys at 224, phys_port_cnt at 227;
        DeviceAttrEx is 400, completion_timestamp_mask at 264, hca_core_clock at 272;
        PortAttr is 52, active_mtu at 8, gid_tbl_len at 12, max_msg_sz at 20, lid at 34, sm_lid at 36, link_layer at 46, flags at 47;
        GidEntry is 32, gid_index at 16, gid_type at 24, ndev_ifindex at 28;
        Pd is 16;
        Mr is 48, lkey at 36, rkey at 40;
        Ah is 24;
        GlobalRoute is 24;
        AhAttr is 32, dlid at 24, sl at 26, src_path_bits at 27, static_rate at 28, is_global at 29, port_num at 30;
        CompChannel is 16, fd at 8;
        Cq is 128, cq_context at 16, cqe at 28;
        CqEx is 288, status at 132, wr_id at 136, start_poll at 144, read_opcode at 168, read_byte_len at 184, read_wc_flags at 216, read_slid at 224, read_completion_ts at 248;
        CqInitAttrEx is 56, comp_vector at 24, wc_flags at 32, flags at 44;
        Srq is 128, srq_context at 8;
        SrqAttr is 12;
        SrqInitAttr is 24, attr at 8;
        Qp is 160, qp_num at 52, state at 56;
        QpCap is 20;
        QpInitAttr is 64, cap at 32, qp_type at 52, sq_sig_all at 56;
        QpAttr is 144, qkey at 16, cap at 36, ah_attr at 56, pkey_index at 120, max_rd_atomic at 126, port_num at 129, timeout at 130, rnr_retry at 132, rate_limit at 136;
        Sge is 16, addr at 0, len at 8, lkey at 12;
        SendWr is 128, next at 8, sg_list at 16, num_sge at 24, opcode at 28, send_flags at 32, imm_data at 36, wr at 40;
        Operation is 32;
        Rdma is 16, rkey at 8;
        Atomic is 32, compare_add at 8, swap at 16, rkey at 24;
        Ud is 16, remote_qpn at 8, remote_qkey at 12;
        RecvWr is 32, sg_list at 16, num_sge at 24;
        Wc is 48, status at 8, opcode at 12, byte_len at 20, imm_data at 24, qp_num at 28, src_qp at 32, wc_flags at 36, slid at 42;
        AsyncEvent is 16, event_type at 8;
    }
}

//! Devices and contexts, with the functions that programs call through them; attributes of devices and ports.

use std::ffi::{c_char, c_int, c_void};

use libc::{pthread_mutex_t, timespec};

use crate::{
    Cq, CqEx, CqInitAttrEx, ModifyCqAttr, Mr, Mw, MwBind, ParentDomainInitAttr, Pd, Qp,
    QpInitAttrEx, RecvWr, SendWr, Sge, Srq, SrqInitAttrEx, Td, TdInitAttr, Wc,
};

/// A function or pointer of the interface that has no type here: nobody uses it.
pub type Unused = *mut c_void;

/// Polls a completion queue for at most so many completions. Returns their number, or a negative number.
pub type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
/// Asks for an event at the next completion, or the next solicited one.
pub type ReqNotifyCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
/// Posts receives to an SRQ. Returns 0 or an error number, and stores the first request that was not posted.
pub type PostSrqRecv = unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int;
/// Posts send requests, as [`PostSrqRecv`] posts receives.
pub type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
/// Posts receives to a queue pair, as [`PostSrqRecv`] does to an SRQ.
pub type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;
/// Reads values that change.
pub type QueryRtValues = unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int;
/// Creates an extended completion queue.
pub type CreateCqEx = unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx;
/// Reads extended attributes of the device, as many bytes of them as the caller has room for.
pub type QueryDeviceEx =
    unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttrEx, usize) -> c_int;

c_structs! {
    /// A device, as `ibv_get_device_list` returns it.
    ibv_device as Device is 664 {
        0 ops = "_ops": [Unused; 2],
        16 node_type: c_int,
        20 transport_type: c_int,
        24 name: [c_char; 64],
        88 dev_name: [c_char; 64],
        152 dev_path: [c_char; 256],
        408 ibdev_path: [c_char; 256],
    }

    /// Functions of a device. Programs call those with a name here, not exported ones. The others are not called since rdma-core 18.
    ibv_context_ops as ContextOps is 256 {
        0 _compat_query_device: Option<unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int>,
        8 _compat_query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut c_void) -> c_int>,
        16 _compat_alloc_pd: Unused,
        24 _compat_dealloc_pd: Unused,
        32 _compat_reg_mr: Unused,
        40 _compat_rereg_mr: Unused,
        48 _compat_dereg_mr: Unused,
        56 alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_int) -> *mut Mw>,
        64 bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
        72 dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
        80 _compat_create_cq: Unused,
        88 poll_cq: Option<PollCq>,
        96 req_notify_cq: Option<ReqNotifyCq>,
        104 _compat_cq_event: Unused,
        112 _compat_resize_cq: Unused,
        120 _compat_destroy_cq: Unused,
        128 _compat_create_srq: Unused,
        136 _compat_modify_srq: Unused,
        144 _compat_query_srq: Unused,
        152 _compat_destroy_srq: Unused,
        160 post_srq_recv: Option<PostSrqRecv>,
        168 _compat_create_qp: Unused,
        176 _compat_query_qp: Unused,
        184 _compat_modify_qp: Unused,
        192 _compat_destroy_qp: Unused,
        200 post_send: Option<PostSend>,
        208 post_recv: Option<PostRecv>,
        216 _compat_create_ah: Unused,
        224 _compat_destroy_ah: Unused,
        232 _compat_attach_mcast: Unused,
        240 _compat_detach_mcast: Unused,
        248 _compat_async_event: Unused,
    }

    /// An open device.
    ibv_context as Context is 328 {
        0 device: *mut Device,
        8 ops: ContextOps,
        264 cmd_fd: c_int,
        268 async_fd: c_int,
        272 num_comp_vectors: c_int,
        280 mutex: pthread_mutex_t,
        320 abi_compat: *mut c_void,
    }

    /// The structure around a [`Context`] whose `abi_compat` is all ones. Newer libraries add fields at its front, so
    /// programs locate it from its end. A function that the device lacks is null.
    verbs_context as VerbsContext is 648 {
        0 query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
        8 advise_mr: Option<unsafe extern "C" fn(*mut Pd, c_int, u32, *mut Sge, u32) -> c_int>,
        16 alloc_null_mr: Option<unsafe extern "C" fn(*mut Pd) -> *mut Mr>,
        24 read_counters: Unused,
        32 attach_counters_point_flow: Unused,
        40 create_counters: Unused,
        48 destroy_counters: Unused,
        56 reg_dm_mr: Unused,
        64 alloc_dm: Unused,
        72 free_dm: Unused,
        80 modify_flow_action_esp: Unused,
        88 destroy_flow_action: Unused,
        96 create_flow_action_esp: Unused,
        104 modify_qp_rate_limit: Unused,
        112 alloc_parent_domain: Option<unsafe extern "C" fn(*mut Context, *mut ParentDomainInitAttr) -> *mut Pd>,
        120 dealloc_td: Option<unsafe extern "C" fn(*mut Td) -> c_int>,
        128 alloc_td: Option<unsafe extern "C" fn(*mut Context, *mut TdInitAttr) -> *mut Td>,
        136 modify_cq: Option<unsafe extern "C" fn(*mut Cq, *mut ModifyCqAttr) -> c_int>,
        144 post_srq_ops: Unused,
        152 destroy_rwq_ind_table: Unused,
        160 create_rwq_ind_table: Unused,
        168 destroy_wq: Unused,
        176 modify_wq: Unused,
        184 create_wq: Unused,
        192 query_rt_values: Option<QueryRtValues>,
        200 create_cq_ex: Option<CreateCqEx>,
        208 priv_ = "priv": *mut c_void,
        216 query_device_ex: Option<QueryDeviceEx>,
        224 ibv_destroy_flow: Unused,
        232 placeholder2 = "ABI_placeholder2": Unused,
        240 ibv_create_flow: Unused,
        248 placeholder1 = "ABI_placeholder1": Unused,
        256 open_qp: Unused,
        264 create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
        272 get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int>,
        280 create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
        288 open_xrcd: Unused,
        296 close_xrcd: Unused,
        304 placeholder3 = "_ABI_placeholder3": u64,
        312 sz: usize,
        320 context: Context,
    }

    /// Values that change while the device is open.
    ibv_values_ex as ValuesEx is 24 {
        0 comp_mask: u32,
        8 raw_clock: timespec,
    }

    /// Attributes of a device.
    #[derive(Clone, Copy)]
    ibv_device_attr as DeviceAttr is 232 {
        0 fw_ver: [c_char; 64],
        64 node_guid: u64,
        72 sys_image_guid: u64,
        80 max_mr_size: u64,
        88 page_size_cap: u64,
        96 vendor_id: u32,
        100 vendor_part_id: u32,
        104 hw_ver: u32,
        108 max_qp: c_int,
        112 max_qp_wr: c_int,
        116 device_cap_flags: u32,
        120 max_sge: c_int,
        124 max_sge_rd: c_int,
        128 max_cq: c_int,
        132 max_cqe: c_int,
        136 max_mr: c_int,
        140 max_pd: c_int,
        144 max_qp_rd_atom: c_int,
        148 max_ee_rd_atom: c_int,
        152 max_res_rd_atom: c_int,
        156 max_qp_init_rd_atom: c_int,
        160 max_ee_init_rd_atom: c_int,
        164 atomic_cap: c_int,
        168 max_ee: c_int,
        172 max_rdd: c_int,
        176 max_mw: c_int,
        180 max_raw_ipv6_qp: c_int,
        184 max_raw_ethy_qp: c_int,
        188 max_mcast_grp: c_int,
        192 max_mcast_qp_attach: c_int,
        196 max_total_mcast_qp_attach: c_int,
        200 max_ah: c_int,
        204 max_fmr: c_int,
        208 max_map_per_fmr: c_int,
        212 max_srq: c_int,
        216 max_srq_wr: c_int,
        220 max_srq_sge: c_int,
        224 max_pkeys: u16,
        226 local_ca_ack_delay: u8,
        227 phys_port_cnt: u8,
    }

    /// Capabilities of on-demand paging, in general and for each transport.
    #[derive(Clone, Copy)]
    ibv_odp_caps as OdpCaps is 24 {
        0 general_caps: u64,
        8 per_transport_caps: [u32; 3],
    }

    /// Extended attributes of a device. Later libraries may add fields at the end.
    #[derive(Clone, Copy)]
    ibv_device_attr_ex as DeviceAttrEx is 400 or more {
        0 orig_attr: DeviceAttr,
        232 comp_mask: u32,
        240 odp_caps: OdpCaps,
        264 completion_timestamp_mask: u64,
        272 hca_core_clock: u64,
        280 device_cap_flags_ex: u64,
        288 tso_caps: [u32; 2],
        296 rss_caps: [u64; 4],
        328 max_wq_type_rq: u32,
        332 packet_pacing_caps: [u32; 3],
        344 raw_packet_caps: u32,
        348 tm_caps: [u32; 5],
        368 cq_mod_caps: [u16; 2],
        376 max_dm_size: u64,
        384 pci_atomic_caps: [u16; 3],
        392 xrc_odp_caps: u32,
        396 phys_port_cnt_ex: u32,
    }

    /// Attributes of a port. Later libraries may add fields at the end.
    #[derive(Clone, Copy)]
    ibv_port_attr as PortAttr is 52 or more {
        0 state: c_int,
        4 max_mtu: c_int,
        8 active_mtu: c_int,
        12 gid_tbl_len: c_int,
        16 port_cap_flags: u32,
        20 max_msg_sz: u32,
        24 bad_pkey_cntr: u32,
        28 qkey_viol_cntr: u32,
        32 pkey_tbl_len: u16,
        34 lid: u16,
        36 sm_lid: u16,
        38 lmc: u8,
        39 max_vl_num: u8,
        40 sm_sl: u8,
        41 subnet_timeout: u8,
        42 init_type_reply: u8,
        43 active_width: u8,
        44 active_speed: u8,
        45 phys_state: u8,
        46 link_layer: u8,
        47 flags: u8,
        48 port_cap_flags2: u16,
    }

    /// An entry of a GID table.
    #[derive(Clone, Copy, Default)]
    ibv_gid_entry as GidEntry is 32 {
        0 gid: [u64; 2],
        16 gid_index: u32,
        20 port_num: u32,
        24 gid_type: u32,
        28 ndev_ifindex: u32,
    }
}

//! Objects of a context, and the attributes with which they are created and changed.

use std::ffi::{c_int, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use crate::{Context, Unused};

c_structs! {
    /// A protection domain.
    ibv_pd as Pd is 16 {
        0 context: *mut Context,
        8 handle: u32,
    }

    /// A thread domain.
    ibv_td as Td is 8 {
        0 context: *mut Context,
    }

    /// Attributes of a new thread domain.
    ibv_td_init_attr as TdInitAttr is 4 {
        0 comp_mask: u32,
    }

    /// Attributes of a new parent domain.
    ibv_parent_domain_init_attr as ParentDomainInitAttr is 48 {
        0 pd: *mut Pd,
        8 td: *mut Td,
        16 comp_mask: u32,
        24 alloc: Unused,
        32 free: Unused,
        40 pd_context: *mut c_void,
    }

    /// A memory region.
    ibv_mr as Mr is 48 {
        0 context: *mut Context,
        8 pd: *mut Pd,
        16 addr: *mut c_void,
        24 length: usize,
        32 handle: u32,
        36 lkey: u32,
        40 rkey: u32,
    }

    /// A memory window.
    ibv_mw as Mw is 32 {
        0 context: *mut Context,
        8 pd: *mut Pd,
        16 rkey: u32,
        20 handle: u32,
        24 type_ = "type": c_int,
    }

    /// Binding of a memory window: the region and range that it gives access to.
    ibv_mw_bind_info as MwBindInfo is 32 {
        0 mr: *mut Mr,
        8 addr: u64,
        16 length: u64,
        24 mw_access_flags: u32,
    }

    /// Binds a memory window of type 1.
    ibv_mw_bind as MwBind is 48 {
        0 wr_id: u64,
        8 send_flags: u32,
        16 bind_info: MwBindInfo,
    }

    /// The part of an address with GIDs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    ibv_global_route as GlobalRoute is 24 {
        0 dgid: [u64; 2],
        16 flow_label: u32,
        20 sgid_index: u8,
        21 hop_limit: u8,
        22 traffic_class: u8,
    }

    /// An address: of a datagram's destination, or of a connected peer.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    ibv_ah_attr as AhAttr is 32 {
        0 grh: GlobalRoute,
        24 dlid: u16,
        26 sl: u8,
        27 src_path_bits: u8,
        28 static_rate: u8,
        29 is_global: u8,
        30 port_num: u8,
    }

    /// An address handle.
    ibv_ah as Ah is 24 {
        0 context: *mut Context,
        8 pd: *mut Pd,
        16 handle: u32,
    }

    /// A completion channel.
    ibv_comp_channel as CompChannel is 16 {
        0 context: *mut Context,
        8 fd: c_int,
        12 refcnt: c_int,
    }

    /// A completion queue.
    ibv_cq as Cq is 128 {
        0 context: *mut Context,
        8 channel: *mut CompChannel,
        16 cq_context: *mut c_void,
        24 handle: u32,
        28 cqe: c_int,
        32 mutex: pthread_mutex_t,
        72 cond: pthread_cond_t,
        120 comp_events_completed: u32,
        124 async_events_completed: u32,
    }

    /// Moderation of a completion queue's events.
    #[derive(Clone, Copy, Default)]
    ibv_moderate_cq as ModerateCq is 4 {
        0 cq_count: u16,
        2 cq_period: u16,
    }

    /// Changes to a completion queue.
    #[derive(Clone, Copy, Default)]
    ibv_modify_cq_attr as ModifyCqAttr is 8 {
        0 attr_mask: u32,
        4 moderate: ModerateCq,
    }

    /// Attributes of an SRQ that can be changed.
    #[derive(Clone, Copy, Default)]
    ibv_srq_attr as SrqAttr is 12 {
        0 max_wr: u32,
        4 max_sge: u32,
        8 srq_limit: u32,
    }

    /// Attributes of a new SRQ.
    ibv_srq_init_attr as SrqInitAttr is 24 {
        0 srq_context: *mut c_void,
        8 attr: SrqAttr,
    }

    /// Extended attributes of a new SRQ.
    ibv_srq_init_attr_ex as SrqInitAttrEx is 64 {
        0 srq_context: *mut c_void,
        8 attr: SrqAttr,
        20 comp_mask: u32,
        24 srq_type: c_int,
        32 pd: *mut Pd,
        40 xrcd: *mut c_void,
        48 cq: *mut Cq,
        56 tm_cap: [u32; 2],
    }

    /// A shared receive queue.
    ibv_srq as Srq is 128 {
        0 context: *mut Context,
        8 srq_context: *mut c_void,
        16 pd: *mut Pd,
        24 handle: u32,
        32 mutex: pthread_mutex_t,
        72 cond: pthread_cond_t,
        120 events_completed: u32,
    }

    /// Capacities of a queue pair.
    #[derive(Clone, Copy, Default)]
    ibv_qp_cap as QpCap is 20 {
        0 max_send_wr: u32,
        4 max_recv_wr: u32,
        8 max_send_sge: u32,
        12 max_recv_sge: u32,
        16 max_inline_data: u32,
    }

    /// Attributes of a new queue pair.
    ibv_qp_init_attr as QpInitAttr is 64 {
        0 qp_context: *mut c_void,
        8 send_cq: *mut Cq,
        16 recv_cq: *mut Cq,
        24 srq: *mut Srq,
        32 cap: QpCap,
        52 qp_type: c_int,
        56 sq_sig_all: c_int,
    }

    /// Extended attributes of a new queue pair.
    ibv_qp_init_attr_ex as QpInitAttrEx is 136 {
        0 qp_context: *mut c_void,
        8 send_cq: *mut Cq,
        16 recv_cq: *mut Cq,
        24 srq: *mut Srq,
        32 cap: QpCap,
        52 qp_type: c_int,
        56 sq_sig_all: c_int,
        60 comp_mask: u32,
        64 pd: *mut Pd,
        72 xrcd: *mut c_void,
        80 create_flags: u32,
        84 max_tso_header: u16,
        88 rwq_ind_tbl: *mut c_void,
        96 rx_hash_conf: [u64; 3],
        120 source_qpn: u32,
        128 send_ops_flags: u64,
    }

    /// Attributes of a queue pair.
    #[derive(Clone, Copy, Default)]
    ibv_qp_attr as QpAttr is 144 {
        0 qp_state: c_int,
        4 cur_qp_state: c_int,
        8 path_mtu: c_int,
        12 path_mig_state: c_int,
        16 qkey: u32,
        20 rq_psn: u32,
        24 sq_psn: u32,
        28 dest_qp_num: u32,
        32 qp_access_flags: u32,
        36 cap: QpCap,
        56 ah_attr: AhAttr,
        88 alt_ah_attr: AhAttr,
        120 pkey_index: u16,
        122 alt_pkey_index: u16,
        124 en_sqd_async_notify: u8,
        125 sq_draining: u8,
        126 max_rd_atomic: u8,
        127 max_dest_rd_atomic: u8,
        128 min_rnr_timer: u8,
        129 port_num: u8,
        130 timeout: u8,
        131 retry_cnt: u8,
        132 rnr_retry: u8,
        133 alt_port_num: u8,
        134 alt_timeout: u8,
        136 rate_limit: u32,
    }

    /// A queue pair.
    #[derive(Clone, Copy)]
    ibv_qp as Qp is 160 {
        0 context: *mut Context,
        8 qp_context: *mut c_void,
        16 pd: *mut Pd,
        24 send_cq: *mut Cq,
        32 recv_cq: *mut Cq,
        40 srq: *mut Srq,
        48 handle: u32,
        52 qp_num: u32,
        56 state: c_int,
        60 qp_type: c_int,
        64 mutex: pthread_mutex_t,
        104 cond: pthread_cond_t,
        152 events_completed: u32,
    }

    /// An asynchronous event.
    #[derive(Clone, Copy)]
    ibv_async_event as AsyncEvent is 16 {
        0 element: *mut c_void,
        8 event_type: c_int,
    }
}

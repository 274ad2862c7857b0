//! Completion queues and queue pairs with functions of their own.

use std::ffi::{c_int, c_void};

use crate::{Ah, CompChannel, Cq, Mw, MwBindInfo, Pd, Qp, Sge};

c_structs! {
    /// A [`Cq`] with the fields and accessors of its current completion.
    ibv_cq_ex as CqEx is 288 or more {
        0 cq = "context": Cq,
        128 comp_mask: u32,
        132 status: c_int,
        136 wr_id: u64,
        144 start_poll: Option<unsafe extern "C" fn(*mut CqEx, *mut PollCqAttr) -> c_int>,
        152 next_poll: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
        160 end_poll: Option<unsafe extern "C" fn(*mut CqEx)>,
        168 read_opcode: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
        176 read_vendor_err: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        184 read_byte_len: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        192 read_imm_data: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        200 read_qp_num: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        208 read_src_qp: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        216 read_wc_flags: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        224 read_slid: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        232 read_sl: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
        240 read_dlid_path_bits: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
        248 read_completion_ts: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
        256 read_cvlan: Option<unsafe extern "C" fn(*mut CqEx) -> u16>,
        264 read_flow_tag: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
        272 read_tm_info: Option<unsafe extern "C" fn(*mut CqEx, *mut c_void)>,
        280 read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
    }

    /// Attributes of a poll of a [`CqEx`].
    #[derive(Clone, Copy, Default)]
    ibv_poll_cq_attr as PollCqAttr is 4 {
        0 comp_mask: u32,
    }

    /// Attributes of a new [`CqEx`].
    ibv_cq_init_attr_ex as CqInitAttrEx is 56 {
        0 cqe: u32,
        8 cq_context: *mut c_void,
        16 channel: *mut CompChannel,
        24 comp_vector: u32,
        32 wc_flags: u64,
        40 comp_mask: u32,
        44 flags: u32,
        48 parent_domain: *mut Pd,
    }

    /// A [`Qp`] with functions that build requests. Programs call them without a check whether they exist.
    ibv_qp_ex as QpEx is 352 or more {
        0 qp_base: Qp,
        160 comp_mask: u64,
        168 wr_id: u64,
        176 wr_flags: u32,
        184 wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
        192 wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
        200 wr_bind_mw: Option<unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo)>,
        208 wr_local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        216 wr_rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
        224 wr_rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
        232 wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
        240 wr_send: Option<unsafe extern "C" fn(*mut QpEx)>,
        248 wr_send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        256 wr_send_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        264 wr_send_tso: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, u16, u16)>,
        272 wr_set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32)>,
        280 wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
        288 wr_set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, usize)>,
        296 wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)>,
        304 wr_set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
        312 wr_set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
        320 wr_start: Option<unsafe extern "C" fn(*mut QpEx)>,
        328 wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
        336 wr_abort: Option<unsafe extern "C" fn(*mut QpEx)>,
        344 wr_atomic_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, *const c_void)>,
    }

    /// A piece of inline data.
    #[derive(Clone, Copy)]
    ibv_data_buf as DataBuf is 16 {
        0 addr: *mut c_void,
        8 length: usize,
    }
}

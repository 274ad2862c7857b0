//! Constants of the interface.

use std::ffi::c_int;

/// `CqInitAttrEx::wc_flags`: byte length, immediate, queue pair number, source queue pair, timestamp.
pub const WC_EX_WITH: u64 =
    WC_EX_BYTE_LEN | WC_EX_IMM | WC_EX_QP_NUM | WC_EX_SRC_QP | WC_EX_TIMESTAMP;

c_numbers! {
    /// `Device::transport_type`: InfiniBand or RoCE.
    IBV_TRANSPORT_IB as TRANSPORT_IB: c_int = 0;
    /// `Device::transport_type`: iWARP.
    IBV_TRANSPORT_IWARP as TRANSPORT_IWARP: c_int = 1;
    /// `ValuesEx::comp_mask`: the raw clock.
    IBV_VALUES_MASK_RAW_CLOCK as RAW_CLOCK: u32 = 1;
    /// `DeviceAttr::atomic_cap`: no atomics.
    IBV_ATOMIC_NONE as ATOMIC_NONE: c_int = 0;
    /// `PortAttr::state`: the port is up.
    IBV_PORT_ACTIVE as PORT_ACTIVE: c_int = 4;
    /// `PortAttr::link_layer`: not reported; InfiniBand if the device's transport is [`TRANSPORT_IB`].
    IBV_LINK_LAYER_UNSPECIFIED as LINK_UNSPECIFIED: u8 = 0;
    /// `PortAttr::link_layer`: InfiniBand.
    IBV_LINK_LAYER_INFINIBAND as LINK_INFINIBAND: u8 = 1;
    /// `PortAttr::flags`: packets reach the port only with a global routing header.
    IBV_QPF_GRH_REQUIRED as GRH_REQUIRED: u8 = 1;
    /// `CqInitAttrEx::wc_flags`: the source LID.
    IBV_WC_EX_WITH_BYTE_LEN as WC_EX_BYTE_LEN: u64 = 1;
    IBV_WC_EX_WITH_IMM as WC_EX_IMM: u64 = 1 << 1;
    IBV_WC_EX_WITH_QP_NUM as WC_EX_QP_NUM: u64 = 1 << 2;
    IBV_WC_EX_WITH_SRC_QP as WC_EX_SRC_QP: u64 = 1 << 3;
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP as WC_EX_TIMESTAMP: u64 = 1 << 7;
    IBV_WC_EX_WITH_SLID as WC_EX_WITH_SLID: u64 = 1 << 4;
    /// The SRQ limit, in the mask of `ibv_modify_srq`.
    IBV_SRQ_LIMIT as SRQ_LIMIT: c_int = 2;
    /// `QpInitAttr::qp_type`: reliable connection.
    IBV_QPT_RC as QPT_RC: c_int = 2;
    /// `QpInitAttr::qp_type`: unreliable connection.
    IBV_QPT_UC as QPT_UC: c_int = 3;
    /// `QpInitAttr::qp_type`: unreliable datagram.
    IBV_QPT_UD as QPT_UD: c_int = 4;
    /// `SendWr::send_flags`: the payload is copied into the request (inline).
    IBV_SEND_INLINE as SEND_INLINE: u32 = 8;
}

/// Bits of `ibv_modify_qp`'s mask.
pub mod mask {
    c_numbers! {
        IBV_QP_STATE as STATE: i32 = 1;
        IBV_QP_CUR_STATE as CUR_STATE: i32 = 1 << 1;
        IBV_QP_ACCESS_FLAGS as ACCESS_FLAGS: i32 = 1 << 3;
        IBV_QP_PKEY_INDEX as PKEY_INDEX: i32 = 1 << 4;
        IBV_QP_PORT as PORT: i32 = 1 << 5;
        IBV_QP_QKEY as QKEY: i32 = 1 << 6;
        IBV_QP_AV as AV: i32 = 1 << 7;
        IBV_QP_PATH_MTU as PATH_MTU: i32 = 1 << 8;
        IBV_QP_TIMEOUT as TIMEOUT: i32 = 1 << 9;
        IBV_QP_RETRY_CNT as RETRY_CNT: i32 = 1 << 10;
        IBV_QP_RNR_RETRY as RNR_RETRY: i32 = 1 << 11;
        IBV_QP_RQ_PSN as RQ_PSN: i32 = 1 << 12;
        IBV_QP_MAX_QP_RD_ATOMIC as MAX_RD_ATOMIC: i32 = 1 << 13;
        IBV_QP_MIN_RNR_TIMER as MIN_RNR_TIMER: i32 = 1 << 15;
        IBV_QP_SQ_PSN as SQ_PSN: i32 = 1 << 16;
        IBV_QP_MAX_DEST_RD_ATOMIC as MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
        IBV_QP_CAP as CAP: i32 = 1 << 19;
        IBV_QP_DEST_QPN as DEST_QPN: i32 = 1 << 20;
    }
}

/// `SendWr::opcode`.
pub mod opcode {
    c_numbers! {
        IBV_WR_RDMA_WRITE as WRITE: u32 = 0;
        IBV_WR_RDMA_WRITE_WITH_IMM as WRITE_IMM: u32 = 1;
        IBV_WR_SEND as SEND: u32 = 2;
        IBV_WR_SEND_WITH_IMM as SEND_IMM: u32 = 3;
        IBV_WR_RDMA_READ as READ: u32 = 4;
        IBV_WR_ATOMIC_CMP_AND_SWP as COMPARE_SWAP: u32 = 5;
        IBV_WR_ATOMIC_FETCH_AND_ADD as FETCH_ADD: u32 = 6;
    }
}

/// `AsyncEvent::event_type`.
pub mod event {
    c_numbers! {
        IBV_EVENT_CQ_ERR as CQ_ERR: i32 = 0;
        IBV_EVENT_QP_FATAL as QP_FATAL: i32 = 1;
        IBV_EVENT_QP_REQ_ERR as QP_REQ_ERR: i32 = 2;
        IBV_EVENT_QP_ACCESS_ERR as QP_ACCESS_ERR: i32 = 3;
        IBV_EVENT_DEVICE_FATAL as DEVICE_FATAL: i32 = 8;
        IBV_EVENT_PORT_ACTIVE as PORT_ACTIVE: i32 = 9;
        IBV_EVENT_PORT_ERR as PORT_ERR: i32 = 10;
        IBV_EVENT_SRQ_ERR as SRQ_ERR: i32 = 14;
        IBV_EVENT_SRQ_LIMIT_REACHED as SRQ_LIMIT_REACHED: i32 = 15;
        IBV_EVENT_QP_LAST_WQE_REACHED as QP_LAST_WQE_REACHED: i32 = 16;
    }
}

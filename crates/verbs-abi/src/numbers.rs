//! Constants of the interface.

use std::ffi::c_int;

/// `CqInitAttrEx::wc_flags`: byte length, immediate, queue pair number, source queue pair, timestamp.
pub const WC_EX_WITH: u64 =
    WC_EX_BYTE_LEN | WC_EX_IMM | WC_EX_QP_NUM | WC_EX_SRC_QP | WC_EX_TIMESTAMP;

/// `PortAttr::active_width`: four lanes.
pub const WIDTH_4X: u8 = 2;
/// `PortAttr::active_speed`: EDR, 25 Gbit/s for each lane.
pub const SPEED_EDR: u8 = 32;
/// `PortAttr::phys_state`: the link is up.
pub const PHYS_LINK_UP: u8 = 5;
/// `PortAttr::phys_state`: the link is disabled.
pub const PHYS_LINK_DISABLED: u8 = 3;
/// The type of a GID in sysfs, as `ibv_query_gid_type` returns it: RoCE version 2.
pub const SYSFS_GID_TYPE_ROCE_V2: c_int = 1;
/// The type of a GID in sysfs: InfiniBand, or RoCE version 1.
pub const SYSFS_GID_TYPE_IB: c_int = 0;

c_numbers! {
    /// `Device::transport_type`: InfiniBand or RoCE.
    IBV_TRANSPORT_IB as TRANSPORT_IB: c_int = 0;
    /// `Device::transport_type`: iWARP.
    IBV_TRANSPORT_IWARP as TRANSPORT_IWARP: c_int = 1;
    /// `Device::transport_type`: a protocol of the device's own.
    IBV_TRANSPORT_UNSPECIFIED as TRANSPORT_UNSPECIFIED: c_int = 4;
    /// `ValuesEx::comp_mask`: the raw clock.
    IBV_VALUES_MASK_RAW_CLOCK as RAW_CLOCK: u32 = 1;
    /// `DeviceAttr::atomic_cap`: no atomics.
    IBV_ATOMIC_NONE as ATOMIC_NONE: c_int = 0;
    /// `DeviceAttr::atomic_cap`: atomics of the device are atomic with each other.
    IBV_ATOMIC_HCA as ATOMIC_HCA: c_int = 1;
    /// `DeviceAttr::atomic_cap`: atomics of the device are atomic with those of processors too.
    IBV_ATOMIC_GLOB as ATOMIC_GLOB: c_int = 2;
    /// `ModifyCqAttr::attr_mask`: moderation.
    IBV_CQ_ATTR_MODERATE as CQ_MODERATE: u32 = 1;
    /// Access flag, optional: the device may place packets in any order.
    IBV_ACCESS_RELAXED_ORDERING as ACCESS_RELAXED_ORDERING: u32 = 1 << 20;
    /// `Device::node_type`: a channel adapter.
    IBV_NODE_CA as NODE_CA: c_int = 1;
    /// `DeviceAttr::device_cap_flags`: `ibv_modify_qp` takes the current state.
    IBV_DEVICE_CURR_QP_STATE_MOD as DEVICE_CURR_QP_STATE_MOD: u32 = 1 << 7;
    IBV_DEVICE_SYS_IMAGE_GUID as DEVICE_SYS_IMAGE_GUID: u32 = 1 << 11;
    IBV_DEVICE_RC_RNR_NAK_GEN as DEVICE_RC_RNR_NAK_GEN: u32 = 1 << 12;
    /// `PortAttr::port_cap_flags`: GIDs are IP addresses.
    IBV_PORT_IP_BASED_GIDS as PORT_IP_BASED_GIDS: u32 = 1 << 26;
    /// `PortAttr::state`: the port is down.
    IBV_PORT_DOWN as PORT_DOWN: c_int = 1;
    /// `PortAttr::state`: the port is up.
    IBV_PORT_ACTIVE as PORT_ACTIVE: c_int = 4;
    /// `PortAttr::link_layer`: not reported; InfiniBand if the device's transport is [`TRANSPORT_IB`].
    IBV_LINK_LAYER_UNSPECIFIED as LINK_UNSPECIFIED: u8 = 0;
    /// `PortAttr::link_layer`: InfiniBand.
    IBV_LINK_LAYER_INFINIBAND as LINK_INFINIBAND: u8 = 1;
    /// `PortAttr::link_layer`: Ethernet.
    IBV_LINK_LAYER_ETHERNET as LINK_ETHERNET: u8 = 2;
    /// `PortAttr::flags`: packets reach the port only with a global routing header.
    IBV_QPF_GRH_REQUIRED as GRH_REQUIRED: u8 = 1;
    /// `CqInitAttrEx::wc_flags`: the source LID.
    IBV_WC_EX_WITH_BYTE_LEN as WC_EX_BYTE_LEN: u64 = 1;
    IBV_WC_EX_WITH_IMM as WC_EX_IMM: u64 = 1 << 1;
    IBV_WC_EX_WITH_QP_NUM as WC_EX_QP_NUM: u64 = 1 << 2;
    IBV_WC_EX_WITH_SRC_QP as WC_EX_SRC_QP: u64 = 1 << 3;
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP as WC_EX_TIMESTAMP: u64 = 1 << 7;
    IBV_WC_EX_WITH_SLID as WC_EX_WITH_SLID: u64 = 1 << 4;
    /// `CqInitAttrEx::wc_flags`: the time of the completion on the system's clock.
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK as WC_EX_WALLCLOCK: u64 = 1 << 11;
    /// `CqInitAttrEx::wc_flags`: the service level.
    IBV_WC_EX_WITH_SL as WC_EX_SL: u64 = 1 << 5;
    IBV_WC_EX_WITH_DLID_PATH_BITS as WC_EX_DLID_PATH_BITS: u64 = 1 << 6;
    /// `CqInitAttrEx::comp_mask`: the field `flags` is valid.
    IBV_CQ_INIT_ATTR_MASK_FLAGS as CQ_INIT_FLAGS: u32 = 1;
    /// `CqInitAttrEx::comp_mask`: the field `parent_domain` is valid.
    IBV_CQ_INIT_ATTR_MASK_PD as CQ_INIT_PD: u32 = 2;
    /// `CqInitAttrEx::flags`: one thread at a time uses the queue.
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED as CQ_SINGLE_THREADED: u32 = 1;
    /// `CqInitAttrEx::flags`: the queue overwrites completions if it is full.
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN as CQ_IGNORE_OVERRUN: u32 = 2;
    /// `Wc::opcode`.
    IBV_WC_SEND as WC_SEND: c_int = 0;
    IBV_WC_RDMA_WRITE as WC_WRITE: c_int = 1;
    IBV_WC_RDMA_READ as WC_READ: c_int = 2;
    IBV_WC_COMP_SWAP as WC_COMPARE_SWAP: c_int = 3;
    IBV_WC_FETCH_ADD as WC_FETCH_ADD: c_int = 4;
    IBV_WC_RECV as WC_RECV: c_int = 128;
    IBV_WC_RECV_RDMA_WITH_IMM as WC_RECV_WRITE_IMM: c_int = 129;
    /// `Wc::wc_flags`: the first 40 bytes of the receive are the GRH.
    IBV_WC_GRH as WC_GRH: u32 = 1;
    /// `Wc::wc_flags`: the completion has an immediate.
    IBV_WC_WITH_IMM as WC_WITH_IMM: u32 = 2;
    /// `GidEntry::gid_type`: InfiniBand.
    IBV_GID_TYPE_IB as GID_TYPE_IB: u32 = 0;
    /// `GidEntry::gid_type`: RoCE version 2.
    IBV_GID_TYPE_ROCE_V2 as GID_TYPE_ROCE_V2: u32 = 2;
    /// Access to a region by addresses from 0.
    IBV_ACCESS_ZERO_BASED as ACCESS_ZERO_BASED: u32 = 1 << 5;
    IBV_ACCESS_ON_DEMAND as ACCESS_ON_DEMAND: u32 = 1 << 6;
    /// Changes by `ibv_rereg_mr`: the memory, the protection domain, the access rights.
    IBV_REREG_MR_CHANGE_TRANSLATION as REREG_TRANSLATION: c_int = 1;
    IBV_REREG_MR_CHANGE_PD as REREG_PD: c_int = 2;
    IBV_REREG_MR_CHANGE_ACCESS as REREG_ACCESS: c_int = 4;
    /// Results of `ibv_rereg_mr`: the arguments are wrong; the region is as before, or gone.
    IBV_REREG_MR_ERR_INPUT as REREG_ERR_INPUT: c_int = -1;
    IBV_REREG_MR_ERR_CMD as REREG_ERR_CMD: c_int = -4;
    /// `QpInitAttrEx::comp_mask`: the protection domain, the flags, the operations of [`crate::QpEx`].
    IBV_QP_INIT_ATTR_PD as QP_INIT_PD: u32 = 1;
    IBV_QP_INIT_ATTR_CREATE_FLAGS as QP_INIT_CREATE_FLAGS: u32 = 4;
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS as QP_INIT_SEND_OPS: u32 = 64;
    /// `QpInitAttrEx::send_ops_flags`.
    IBV_QP_EX_WITH_RDMA_WRITE as QP_EX_WRITE: u64 = 1;
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM as QP_EX_WRITE_IMM: u64 = 1 << 1;
    IBV_QP_EX_WITH_SEND as QP_EX_SEND: u64 = 1 << 2;
    IBV_QP_EX_WITH_SEND_WITH_IMM as QP_EX_SEND_IMM: u64 = 1 << 3;
    IBV_QP_EX_WITH_RDMA_READ as QP_EX_READ: u64 = 1 << 4;
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP as QP_EX_COMPARE_SWAP: u64 = 1 << 5;
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD as QP_EX_FETCH_ADD: u64 = 1 << 6;
    /// `SrqInitAttrEx::comp_mask`: the type, the protection domain.
    IBV_SRQ_INIT_ATTR_TYPE as SRQ_INIT_TYPE: u32 = 1;
    IBV_SRQ_INIT_ATTR_PD as SRQ_INIT_PD: u32 = 2;
    /// `SrqInitAttrEx::srq_type`: an ordinary one.
    IBV_SRQT_BASIC as SRQT_BASIC: c_int = 0;
    /// The capacity of an SRQ, in the mask of `ibv_modify_srq`.
    IBV_SRQ_MAX_WR as SRQ_MAX_WR: c_int = 1;
    /// The result of `ibv_is_fork_initialized`: forking needs no preparation.
    IBV_FORK_UNNEEDED as FORK_UNNEEDED: c_int = 2;
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
        IBV_QP_EN_SQD_ASYNC_NOTIFY as EN_SQD_ASYNC_NOTIFY: i32 = 1 << 2;
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
        IBV_EVENT_LID_CHANGE as LID_CHANGE: i32 = 11;
        IBV_EVENT_PKEY_CHANGE as PKEY_CHANGE: i32 = 12;
        IBV_EVENT_SM_CHANGE as SM_CHANGE: i32 = 13;
        IBV_EVENT_SRQ_ERR as SRQ_ERR: i32 = 14;
        IBV_EVENT_SRQ_LIMIT_REACHED as SRQ_LIMIT_REACHED: i32 = 15;
        IBV_EVENT_QP_LAST_WQE_REACHED as QP_LAST_WQE_REACHED: i32 = 16;
        IBV_EVENT_CLIENT_REREGISTER as CLIENT_REREGISTER: i32 = 17;
        IBV_EVENT_GID_CHANGE as GID_CHANGE: i32 = 18;
    }
}

/// Flag of `ibv_query_qp_data_in_order` (`IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS`): answer with the two bits below. Headers of rdma-core
/// before 46 have none of the three.
pub const DATA_IN_ORDER_RETURN_CAPS: u32 = 1;
/// Answer (`…_WHOLE_MSG`): all bytes of a message, in ascending order.
pub const DATA_IN_ORDER_WHOLE_MSG: c_int = 1;
/// Answer (`…_ALIGNED_128_BYTES`): those within each aligned block of 128 bytes.
pub const DATA_IN_ORDER_ALIGNED_128_BYTES: c_int = 2;

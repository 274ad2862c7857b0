//! Conversion of completions to libibverbs' numbers: pure.

use headworks_verbs::{Completion, CompletionFlags, Opcode};
use headworks_verbs_abi as abi;

/// The opcode of a completion.
pub(crate) fn opcode(of: Opcode) -> i32 {
    match of {
        Opcode::Send => abi::WC_SEND,
        Opcode::Write => abi::WC_WRITE,
        Opcode::Read => abi::WC_READ,
        Opcode::CompareSwap => abi::WC_COMPARE_SWAP,
        Opcode::FetchAdd => abi::WC_FETCH_ADD,
        Opcode::RecvWriteImm => abi::WC_RECV_WRITE_IMM,
        _ => abi::WC_RECV,
    }
}

/// The flags of a completion.
pub(crate) fn flags(of: &Completion) -> u32 {
    let imm = if of.imm.is_some() {
        abi::WC_WITH_IMM
    } else {
        0
    };
    let grh = if of.flags.grh { abi::WC_GRH } else { 0 };
    imm | grh
}

/// The immediate of a completion, in network byte order.
pub(crate) fn imm(of: &Completion) -> u32 {
    of.imm.unwrap_or(0).to_be()
}

/// The service level of a completion. On RoCE, devices put the kind of a datagram's header there, and programs that check to which
/// address it was sent look at it: 1 for IPv6, 2 for IPv4.
pub(crate) fn service_level(of: &Completion) -> u8 {
    match of.flags {
        CompletionFlags { ipv4: true, .. } => 2,
        CompletionFlags { grh: true, .. } => 1,
        CompletionFlags { .. } => 0,
    }
}

/// A completion as `ibv_poll_cq` returns it.
pub(crate) fn wc(of: &Completion) -> abi::Wc {
    abi::Wc {
        wr_id: of.wr_id,
        status: of.status as i32,
        vendor_err: of.vendor_err,
        opcode: opcode(of.opcode),
        byte_len: of.byte_len,
        imm_data: imm(of),
        qp_num: of.qpn.raw(),
        src_qp: of.src_qpn.raw(),
        wc_flags: flags(of),
        sl: service_level(of),
        ..abi::Wc::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_verbs::{Qpn, Status};

    #[test]
    fn a_received_datagram_keeps_its_facts() {
        let said = Completion {
            wr_id: 7,
            status: Status::Success,
            opcode: Opcode::Recv,
            qpn: Qpn::new(5).unwrap(),
            src_qpn: Qpn::new(6).unwrap(),
            byte_len: 140,
            imm: Some(0x0102_0304),
            flags: CompletionFlags {
                grh: true,
                ipv4: true,
            },
            ..Completion::default()
        };
        let out = wc(&said);
        assert_eq!((out.wr_id, out.status, out.opcode), (7, 0, abi::WC_RECV));
        assert_eq!((out.qp_num, out.src_qp, out.byte_len), (5, 6, 140));
        assert_eq!(out.wc_flags, abi::WC_GRH | abi::WC_WITH_IMM);
        assert_eq!((out.imm_data.to_ne_bytes(), out.sl), ([1, 2, 3, 4], 2));
    }

    #[test]
    fn a_failure_has_libibverbs_number() {
        let said = Completion {
            status: Status::RetryExceeded,
            ..Completion::default()
        };
        assert_eq!(wc(&said).status, 12);
        assert_eq!((wc(&said).wc_flags, wc(&said).sl), (0, 0));
    }
}

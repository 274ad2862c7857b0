//! Conversion between our types and libibverbs' numbers: pure.

use headworks_verbs::{
    Completion, CompletionFlags, Instant, Lid, Opcode, PostErrorKind, Qpn, Status,
};

/// `Wc::wc_flags`: the first 40 bytes of the receive are the GRH.
const WC_GRH: u32 = 1;
/// `Wc::wc_flags`: the completion has an immediate.
const WC_WITH_IMM: u32 = 2;

/// `Wc::opcode` of a receive that a SEND consumed.
const RECV: i32 = 128;
/// `Wc::opcode` of a receive that a WRITE with immediate consumed.
const RECV_WRITE_IMM: i32 = 129;

/// Opcodes of sent requests, by the opcode of their completion. A number that no request of ours leads to
/// counts as a SEND.
const SENT: [Opcode; 5] = [
    Opcode::Send,
    Opcode::Write,
    Opcode::Read,
    Opcode::CompareSwap,
    Opcode::FetchAdd,
];

/// Converts libibverbs' number `code` of a status.
#[cold]
fn status(code: i32) -> Status {
    u8::try_from(code).map_or(Status::Fatal, Status::from_code)
}

/// Converts a queue pair number as the device reports it.
#[inline]
fn qpn(raw: u32) -> Qpn {
    Qpn::new(raw & Qpn::MAX).unwrap_or_default()
}

/// Fields of the completion of a request that succeeded. A device may leave a field unwritten if the kind of
/// request does not use it; such a field is not read.
pub(crate) trait CompletionFields {
    /// Read for every request.
    fn opcode(&self) -> i32;
    /// Read for receives, READs and atomics.
    fn byte_len(&self) -> u32;
    /// Read for receives, as all fields below.
    fn wc_flags(&self) -> u32;
    /// Source queue pair of a datagram.
    fn src_qp(&self) -> u32;
    /// Source LID of a datagram, if the receiving port has a LID; otherwise 0.
    fn slid(&self) -> u16;
    /// Immediate in network byte order; read if the flags say that there is one.
    fn imm_data(&self) -> u32;
}

/// Writes the completion of a request that succeeded, at `timestamp`, to `place`.
#[inline(always)]
pub(crate) fn complete(
    place: &mut Completion,
    (wr_id, qp_num): (u64, u32),
    said: &impl CompletionFields,
    timestamp: Instant,
) {
    let common = Completion {
        wr_id,
        status: Status::Success,
        qpn: qpn(qp_num),
        timestamp,
        ..Completion::default()
    };
    // A case each, so that the compiler knows the opcode and writes it together with the status.
    match said.opcode() {
        RECV => received(place, Opcode::Recv, said, common),
        RECV_WRITE_IMM => received(place, Opcode::RecvWriteImm, said, common),
        code => {
            let opcode = SENT.get(code as u32 as usize).copied().unwrap_or_default();
            *place = Completion { opcode, ..common };
            if !matches!(opcode, Opcode::Send | Opcode::Write) {
                place.byte_len = said.byte_len();
            }
        }
    }
}

/// Writes the completion of a receive to `place`.
#[inline(always)]
fn received(
    place: &mut Completion,
    opcode: Opcode,
    said: &impl CompletionFields,
    common: Completion,
) {
    let flags = said.wc_flags();
    *place = Completion {
        opcode,
        byte_len: said.byte_len(),
        src_qpn: qpn(said.src_qp()),
        src_lid: Lid::new(said.slid()),
        flags: CompletionFlags {
            grh: flags & WC_GRH != 0,
            ..CompletionFlags::default()
        },
        ..common
    };
    if flags & WC_WITH_IMM != 0 {
        place.imm = Some(u32::from_be(said.imm_data()));
    }
}

/// The completion of a request that failed. Its other fields have no meaning.
#[cold]
#[inline(never)]
pub(crate) fn failed(
    wr_id: u64,
    (code, vendor_err): (i32, u32),
    qp_num: u32,
    timestamp: Instant,
) -> Completion {
    Completion {
        wr_id,
        status: status(code),
        vendor_err,
        qpn: qpn(qp_num),
        timestamp,
        ..Completion::default()
    }
}

/// Reason for which the device's library refused to post, from its return code: an error number, or its negative with some
/// libraries.
#[cold]
pub(crate) fn refusal(code: i32) -> PostErrorKind {
    match code.wrapping_abs() {
        libc::ENOMEM | libc::ENOSPC | libc::EAGAIN => PostErrorKind::QueueFull,
        libc::EINVAL | libc::EOPNOTSUPP => PostErrorKind::Operation,
        _ => PostErrorKind::Device,
    }
}

/// Converts `ticks` of a clock of `khz` to nanoseconds.
pub(crate) fn nanos(ticks: u64, khz: u64) -> u64 {
    let nanos = u128::from(ticks) * 1_000_000 / u128::from(khz.max(1));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;
    use proptest::prelude::*;

    impl CompletionFields for abi::Wc {
        fn opcode(&self) -> i32 {
            self.opcode
        }

        fn byte_len(&self) -> u32 {
            self.byte_len
        }

        fn wc_flags(&self) -> u32 {
            self.wc_flags
        }

        fn src_qp(&self) -> u32 {
            self.src_qp
        }

        fn slid(&self) -> u16 {
            self.slid
        }

        fn imm_data(&self) -> u32 {
            assert!(self.wc_flags & WC_WITH_IMM != 0, "there is none");
            self.imm_data
        }
    }

    fn of(wc: &abi::Wc, timestamp: Instant) -> Completion {
        // The place has other values before, none of which may remain.
        let mut place = Completion {
            byte_len: 1,
            imm: Some(2),
            src_qpn: qpn(3),
            src_lid: Lid::new(4),
            flags: CompletionFlags {
                grh: true,
                ipv4: true,
            },
            ..failed(4, (5, 8), 6, Instant::from_nanos(7))
        };
        complete(&mut place, (wc.wr_id, wc.qp_num), wc, timestamp);
        place
    }

    /// The reverse conversion: the completion as a device would write it.
    fn wc_of(completion: &Completion) -> abi::Wc {
        let opcode = match completion.opcode {
            Opcode::Recv => 128,
            Opcode::RecvWriteImm => 129,
            other => other as i32,
        };
        let imm = completion.imm.map_or(0, |_| 2) | u32::from(completion.flags.grh);
        abi::Wc {
            wr_id: completion.wr_id,
            status: completion.status as i32,
            opcode,
            byte_len: completion.byte_len,
            imm_data: completion.imm.unwrap_or(0xdead_beef).to_be(),
            qp_num: completion.qpn.raw(),
            src_qp: completion.src_qpn.raw(),
            slid: completion.src_lid.map_or(0, Lid::raw),
            wc_flags: imm,
            ..abi::Wc::default()
        }
    }

    proptest! {
        #[test]
        fn a_completion_is_converted_back_unchanged(
            wr_id in any::<u64>(), code in 0u8..7, qpns in any::<[u32; 2]>(), len in any::<u32>(),
            imm in any::<Option<u32>>(), grh in any::<bool>(), at in any::<u64>(), lid in any::<u16>(),
        ) {
            let opcode = Opcode::from_code(code);
            let has_length = !matches!(opcode, Opcode::Send | Opcode::Write);
            let said = Completion {
                vendor_err: 0,
                wr_id,
                status: Status::Success,
                opcode,
                qpn: qpn(qpns[0]),
                byte_len: if has_length { len } else { 0 },
                imm: imm.filter(|_| opcode.is_recv()),
                src_qpn: qpn(if opcode.is_recv() { qpns[1] } else { 0 }),
                src_lid: Lid::new(lid).filter(|_| opcode.is_recv()),
                flags: CompletionFlags { grh: grh && opcode.is_recv(), ..CompletionFlags::default() },
                timestamp: Instant::from_nanos(at),
            };
            prop_assert_eq!(of(&wc_of(&said), Instant::from_nanos(at)), said);
        }

        #[test]
        fn whatever_a_device_says_is_a_completion(
            wr_id in any::<u64>(), opcode in any::<i32>(), rest in any::<[u32; 6]>(),
        ) {
            let [vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags] = rest;
            let wc = abi::Wc {
                wr_id, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
                ..abi::Wc::default()
            };
            prop_assert_eq!(of(&wc, Instant::ZERO).wr_id, wr_id);
        }

        #[test]
        fn flags_of_send_completions_are_ignored(opcode in 0i32..5, wc_flags in any::<u32>()) {
            let wc = abi::Wc { opcode, wc_flags, src_qp: 7, imm_data: 8, ..abi::Wc::default() };
            let said = of(&wc, Instant::ZERO);
            prop_assert_eq!((said.imm, said.flags.grh, said.src_qpn), (None, false, Qpn::default()));
        }

        #[test]
        fn a_clock_does_not_go_back(khz in 1u64..10_000_000, ticks in any::<[u64; 2]>()) {
            let (low, high) = (ticks[0].min(ticks[1]), ticks[0].max(ticks[1]));
            prop_assert!(nanos(low, khz) <= nanos(high, khz));
        }
    }

    #[test]
    fn immediates_are_in_network_order() {
        let wc = abi::Wc {
            opcode: 128,
            wc_flags: 2,
            imm_data: u32::from_ne_bytes([1, 2, 3, 4]),
            ..abi::Wc::default()
        };
        assert_eq!(of(&wc, Instant::ZERO).imm, Some(0x0102_0304));
    }

    #[test]
    fn a_failed_completion_reports_only_meaningful_fields() {
        let expected = Completion {
            wr_id: 7,
            vendor_err: 0x81,
            status: Status::RetryExceeded,
            qpn: qpn(5),
            ..Completion::default()
        };
        assert_eq!(failed(7, (12, 0x81), 5, Instant::ZERO), expected);
        assert_eq!(status(-1), Status::Fatal);
        assert_eq!(status(256), Status::Fatal);
        assert_eq!(status(21), Status::Fatal);
    }

    #[test]
    fn errnos_are_classified_regardless_of_sign() {
        for sign in [1, -1] {
            assert_eq!(refusal(sign * libc::ENOMEM), PostErrorKind::QueueFull);
            assert_eq!(refusal(sign * libc::EINVAL), PostErrorKind::Operation);
            assert_eq!(refusal(sign * libc::EIO), PostErrorKind::Device);
        }
        assert_eq!(refusal(i32::MIN), PostErrorKind::Device);
    }

    #[test]
    fn ticks_of_a_megahertz_are_microseconds() {
        assert_eq!(nanos(7, 1_000), 7_000);
        assert_eq!(nanos(1_000_000_007, 1_000_000), 1_000_000_007);
        assert_eq!(nanos(u64::MAX, 1), u64::MAX);
    }
}

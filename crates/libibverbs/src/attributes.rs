//! Conversion of queue pair attributes: pure.

use headworks_verbs::{Access, AhInit, Mtu, Psn, QpAttr, QpState, QpType, Qpn, RnrTimer};
use headworks_verbs_abi::gid::gid_of_words;
use headworks_verbs_abi::{self as abi, mask};

use crate::devices::{PORT, PortTables, VerbsDevice};
use crate::errors::Errno;
use crate::manners::Manner;

/// The transport of `ibv_qp_init_attr::qp_type`. A further transport of the software RNIC gets its line here.
pub(crate) fn transport(qp_type: i32) -> Option<QpType> {
    match qp_type {
        abi::QPT_RC => Some(QpType::Rc),
        abi::QPT_UC => Some(QpType::Uc),
        abi::QPT_UD => Some(QpType::Ud),
        _ => None,
    }
}

/// The rights of a region or queue pair. Rights that the device knows nothing of are left out: no peer can use them.
pub(crate) fn access(flags: u32) -> Access {
    Access::from_bits_truncate(flags)
}

/// The destination of an address vector: a GID, or on InfiniBand a LID.
pub(crate) fn destination(
    (device, tables): (&VerbsDevice, PortTables),
    of: &abi::AhAttr,
) -> Result<AhInit, Errno> {
    let grh = &of.grh;
    if of.port_num != PORT {
        return Err(Errno::INVALID);
    }
    if of.is_global == 0 {
        let gid = device.gid_of_lid(of.dlid).ok_or(Errno::INVALID)?;
        return Ok(AhInit {
            service_level: of.sl & 0xf,
            ..AhInit::to(gid)
        });
    }
    device
        .gid(grh.sgid_index.into(), tables)
        .ok_or(Errno::INVALID)?;
    Ok(AhInit {
        traffic_class: grh.traffic_class,
        flow_label: grh.flow_label & 0xf_ffff,
        hop_limit: grh.hop_limit,
        service_level: of.sl & 0xf,
        ..AhInit::to(gid_of_words(grh.dgid))
    })
}

/// The state with libibverbs' number `code`.
fn state(code: i32) -> Result<QpState, Errno> {
    let known = u8::try_from(code).ok().and_then(QpState::from_code);
    known.ok_or(Errno::INVALID)
}

/// Bits of the mask that name nothing of this device, and are ignored.
const IGNORED: i32 = mask::EN_SQD_ASYNC_NOTIFY;
/// Bits of the mask that are converted or checked.
const KNOWN: i32 = mask::STATE
    | mask::CUR_STATE
    | mask::ACCESS_FLAGS
    | mask::PKEY_INDEX
    | mask::PORT
    | mask::QKEY
    | mask::AV
    | mask::PATH_MTU
    | mask::TIMEOUT
    | mask::RETRY_CNT
    | mask::RNR_RETRY
    | mask::RQ_PSN
    | mask::MAX_RD_ATOMIC
    | mask::MIN_RNR_TIMER
    | mask::SQ_PSN
    | mask::MAX_DEST_RD_ATOMIC
    | mask::DEST_QPN;

/// Converts the attributes of `ibv_modify_qp` for a queue pair in the state `from`. The device checks the rest.
pub(crate) fn modification(
    (device, tables): (&VerbsDevice, PortTables),
    from: QpState,
    attr: &abi::QpAttr,
    bits: i32,
) -> Result<QpAttr, Errno> {
    if bits & !(KNOWN | IGNORED) != 0 {
        return Err(Errno::INVALID);
    }
    let has = |bit: i32| bits & bit != 0;
    let to = match has(mask::STATE) {
        true => state(attr.qp_state)?,
        false => from,
    };
    let is_start = (from, to) == (QpState::Reset, QpState::Init);
    let both = mask::PKEY_INDEX | mask::PORT;
    let is_wrong = is_start && bits & both != both
        || has(mask::PKEY_INDEX) && device.pkey(attr.pkey_index.into(), tables).is_none()
        || has(mask::PORT) && attr.port_num != PORT
        || has(mask::CUR_STATE) && state(attr.cur_qp_state)? != from;
    if is_wrong {
        return Err(Errno::INVALID);
    }
    let mut out = QpAttr {
        state: Some(to),
        ..QpAttr::default()
    };
    if has(mask::ACCESS_FLAGS) {
        out.access = Some(access(attr.qp_access_flags) & Access::ALL);
    }
    if has(mask::AV) {
        out.dest_gid = Some(destination((device, tables), &attr.ah_attr)?.dgid);
    }
    if has(mask::DEST_QPN) {
        out.dest_qpn = Some(Qpn::new(attr.dest_qp_num).ok_or(Errno::INVALID)?);
    }
    if has(mask::PATH_MTU) {
        let code = u8::try_from(attr.path_mtu).map_err(|_| Errno::INVALID)?;
        out.path_mtu = Some(Mtu::from_code(code).ok_or(Errno::INVALID)?);
    }
    if has(mask::MIN_RNR_TIMER) {
        out.min_rnr_timer = Some(RnrTimer::new(attr.min_rnr_timer).ok_or(Errno::INVALID)?);
    }
    out.rq_psn = has(mask::RQ_PSN).then(|| Psn::truncated(attr.rq_psn));
    out.sq_psn = has(mask::SQ_PSN).then(|| Psn::truncated(attr.sq_psn));
    out.max_dest_rd_atomic = has(mask::MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic);
    out.max_rd_atomic = has(mask::MAX_RD_ATOMIC).then_some(attr.max_rd_atomic);
    out.timeout = has(mask::TIMEOUT).then_some(attr.timeout);
    if device.manners.has(Manner::CountsNoRetries) && has(mask::RETRY_CNT) && attr.retry_cnt == 7 {
        // A timeout of 0 never ends.
        out.timeout = Some(0);
    }
    out.retry_count = has(mask::RETRY_CNT).then_some(attr.retry_cnt);
    out.rnr_retry = has(mask::RNR_RETRY).then_some(attr.rnr_retry);
    out.qkey = has(mask::QKEY).then_some(attr.qkey);
    Ok(out)
}

/// The attributes of a queue pair that were set. Without those that the device has not: a queue pair takes less memory.
#[derive(Clone, Copy, Default)]
pub(crate) struct KnownAttr {
    ah_attr: abi::AhAttr,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    pkey_index: u16,
    /// The code of an MTU, which `modification` has checked.
    path_mtu: u8,
    port_num: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
}

impl KnownAttr {
    /// All attributes, as a program is told them.
    pub(crate) fn with(&self, state: i32, cap: abi::QpCap) -> abi::QpAttr {
        abi::QpAttr {
            qp_state: state,
            cur_qp_state: state,
            path_mtu: self.path_mtu.into(),
            qkey: self.qkey,
            rq_psn: self.rq_psn,
            sq_psn: self.sq_psn,
            dest_qp_num: self.dest_qp_num,
            qp_access_flags: self.qp_access_flags,
            cap,
            ah_attr: self.ah_attr,
            pkey_index: self.pkey_index,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            port_num: self.port_num,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            ..abi::QpAttr::default()
        }
    }
}

/// Records in `known` what a modification changed, for `ibv_query_qp`.
pub(crate) fn record(known: &mut KnownAttr, attr: &abi::QpAttr, bits: i32) {
    let has = |bit: i32| bits & bit != 0;
    if has(mask::STATE) && attr.qp_state == QpState::Reset as i32 {
        *known = KnownAttr::default();
        return;
    }
    macro_rules! copy {
        ($($bit:ident $field:ident),*) => {
            $(if has(mask::$bit) { known.$field = attr.$field; })*
        };
    }
    if has(mask::PATH_MTU) {
        known.path_mtu = attr.path_mtu as u8;
    }
    copy!(
        ACCESS_FLAGS qp_access_flags, PKEY_INDEX pkey_index, PORT port_num, QKEY qkey, AV ah_attr,
        TIMEOUT timeout, RETRY_CNT retry_cnt, RNR_RETRY rnr_retry, RQ_PSN rq_psn,
        MAX_RD_ATOMIC max_rd_atomic, MIN_RNR_TIMER min_rnr_timer, SQ_PSN sq_psn,
        MAX_DEST_RD_ATOMIC max_dest_rd_atomic, DEST_QPN dest_qp_num
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::devices;
    use headworks_verbs_abi::gid::words_of_gid;

    /// A device on Ethernet.
    fn device() -> VerbsDevice {
        devices(None, None, None).unwrap().remove(0)
    }

    /// An address vector to the first GID of the device.
    fn way(device: &VerbsDevice) -> abi::AhAttr {
        abi::AhAttr {
            is_global: 1,
            port_num: PORT,
            grh: abi::GlobalRoute {
                dgid: words_of_gid(device.gid(0, PortTables::default()).unwrap()),
                ..abi::GlobalRoute::default()
            },
            ..abi::AhAttr::default()
        }
    }

    #[test]
    fn the_first_step_needs_port_and_key() {
        let device = device();
        let init = abi::QpAttr {
            qp_state: QpState::Init as i32,
            port_num: PORT,
            qp_access_flags: 0xffff_ffff,
            ..abi::QpAttr::default()
        };
        let of = |attr: &abi::QpAttr, bits| {
            modification((&device, PortTables::default()), QpState::Reset, attr, bits)
        };
        let bits = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        let out = of(&init, bits).unwrap();
        assert_eq!(
            (out.state, out.access),
            (Some(QpState::Init), Some(Access::ALL))
        );
        assert_eq!(of(&init, bits & !mask::PORT), Err(Errno::INVALID));
        let wrong = abi::QpAttr {
            port_num: 2,
            ..init
        };
        assert_eq!(of(&wrong, bits), Err(Errno::INVALID));
        let wrong = abi::QpAttr {
            qp_state: 7,
            ..init
        };
        assert_eq!(of(&wrong, bits), Err(Errno::INVALID));
        assert_eq!(of(&init, bits | mask::CAP), Err(Errno::INVALID));
    }

    #[test]
    fn a_destination_needs_a_gid_on_ethernet_and_none_on_infiniband() {
        let ethernet = device();
        let to = destination((&ethernet, PortTables::default()), &way(&ethernet)).unwrap();
        assert_eq!(Some(to.dgid), ethernet.gid(0, PortTables::default()));
        let by_lid = abi::AhAttr {
            is_global: 0,
            dlid: 1,
            ..way(&ethernet)
        };
        assert_eq!(
            destination((&ethernet, PortTables::default()), &by_lid),
            Err(Errno::INVALID)
        );
        let infiniband = devices(None, Some("infiniband"), None).unwrap().remove(0);
        let to = destination((&infiniband, PortTables::default()), &by_lid).unwrap();
        assert_eq!(Some(to.dgid), infiniband.gid(0, PortTables::default()));
        let mut other_index = way(&ethernet);
        other_index.grh.sgid_index = 2;
        assert_eq!(
            destination((&ethernet, PortTables::default()), &other_index),
            Err(Errno::INVALID)
        );
    }

    #[test]
    fn only_what_the_mask_names_is_converted_and_recorded() {
        let device = device();
        let attr = abi::QpAttr {
            qp_state: QpState::Rtr as i32,
            ah_attr: way(&device),
            dest_qp_num: 0x1234,
            path_mtu: 3,
            rq_psn: 5,
            timeout: 14,
            min_rnr_timer: 12,
            ..abi::QpAttr::default()
        };
        let bits = mask::STATE | mask::AV | mask::DEST_QPN | mask::PATH_MTU | mask::MIN_RNR_TIMER;
        let out =
            modification((&device, PortTables::default()), QpState::Init, &attr, bits).unwrap();
        assert_eq!(
            (out.dest_qpn, out.path_mtu),
            (Qpn::new(0x1234), Some(Mtu::B1024))
        );
        assert_eq!((out.rq_psn, out.timeout), (None, None));
        let mut known = KnownAttr::default();
        record(&mut known, &attr, bits);
        assert_eq!(
            (known.dest_qp_num, known.timeout, known.rq_psn),
            (0x1234, 0, 0)
        );
        let reset = abi::QpAttr::default();
        record(&mut known, &reset, mask::STATE);
        assert_eq!(known.dest_qp_num, 0);
        for wrong in [
            abi::QpAttr {
                path_mtu: 6,
                ..attr
            },
            abi::QpAttr {
                dest_qp_num: 1 << 24,
                ..attr
            },
            abi::QpAttr {
                min_rnr_timer: 32,
                ..attr
            },
        ] {
            assert_eq!(
                modification(
                    (&device, PortTables::default()),
                    QpState::Init,
                    &wrong,
                    bits
                ),
                Err(Errno::INVALID)
            );
        }
    }
}

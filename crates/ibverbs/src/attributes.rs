//! Conversion of queue pair attributes for `ibv_modify_qp`: pure.

use headworks_verbs::qp_state::AttrMask;
use headworks_verbs::{
    Access, AhInit, Gid, Lid, ModifyError, Mtu, PKey, QpAttr, QpState, QpType, RnrTimer,
};

pub(crate) use headworks_verbs_abi::gid::gid_of_words as gid;
use headworks_verbs_abi::gid::words_of_gid;

use crate::abi::{self, mask};
use crate::gid::GidType;
use crate::options::Options;

/// The port that queue pairs and address handles use, and its settings.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) number: u8,
    /// The longest packet.
    pub(crate) mtu: Mtu,
    pub(crate) gid_index: u8,
    /// The GID at `gid_index`.
    pub(crate) gid: Gid,
    pub(crate) gid_type: GidType,
    /// The port's LID, if it is on an InfiniBand network.
    pub(crate) lid: Option<Lid>,
    pub(crate) pkey_index: u16,
    /// The key at `pkey_index`, if the device says it.
    pub(crate) pkey: Option<PKey>,
    /// Whether packets need a global routing header even within the subnet.
    pub(crate) needs_grh: bool,
    /// Whether the device supports atomics.
    pub(crate) has_atomics: bool,
    /// Largest retry count that the device takes as a number.
    pub(crate) most_retries: u8,
    pub(crate) options: Options,
    /// Number of times that the port lost something that connections use.
    pub(crate) version: u64,
}

impl Port {
    /// Access flags for `access`, without the order. Without atomics the right to them is left out, because the device would
    /// refuse it.
    pub(crate) fn rights(&self, access: Access) -> u32 {
        let rights = access & Access::ALL;
        match self.has_atomics {
            true => rights.bits(),
            false => rights.bits() & !Access::REMOTE_ATOMIC.bits(),
        }
    }

    /// Returns whether packets to `dgid` need a global routing header. On Ethernet all do. On InfiniBand
    /// those to another subnet do (specification, volume 1, section 8.3), and all packets of a port that
    /// several virtual ports share, because it tells their packets apart by GID.
    fn is_global(&self, dgid: Gid) -> bool {
        self.lid.is_none() || self.needs_grh || dgid.subnet_prefix() != self.gid.subnet_prefix()
    }

    /// Returns whether this port's network needs a LID that the destination lacks.
    pub(crate) fn lacks_lid(&self, dlid: Option<Lid>) -> bool {
        self.lid.is_some() && dlid.is_none()
    }

    /// Refuses a connection to a destination without a LID if this port's network needs one.
    pub(crate) fn check_way(
        &self,
        (from, to): (QpState, QpState),
        attr: &QpAttr,
    ) -> Result<(), ModifyError> {
        if attr.dest_gid.is_none() || !self.lacks_lid(attr.dest_lid) {
            return Ok(());
        }
        Err(ModifyError::Attributes {
            from,
            to,
            missing: AttrMask::DEST_LID,
            illegal: AttrMask::NONE,
        })
    }

    /// The address vector of a destination. The device name's traffic class and service level apply where the
    /// program gives none.
    pub(crate) fn way(&self, to: &AhInit) -> abi::AhAttr {
        let or = |asked: u8, option: Option<u8>| match asked {
            0 => option.unwrap_or(0),
            asked => asked,
        };
        let is_global = self.is_global(to.dgid);
        let grh = abi::GlobalRoute {
            dgid: words_of_gid(to.dgid),
            flow_label: to.flow_label,
            sgid_index: self.gid_index,
            hop_limit: to.hop_limit,
            traffic_class: or(to.traffic_class, self.options.traffic_class),
        };
        abi::AhAttr {
            grh: if is_global {
                grh
            } else {
                abi::GlobalRoute::default()
            },
            // A device on Ethernet only uses the GID.
            dlid: self.lid.and(to.dlid).map_or(0, Lid::raw),
            sl: or(to.service_level, self.options.service_level),
            is_global: is_global.into(),
            port_num: self.number,
            ..abi::AhAttr::default()
        }
    }

    /// Converts `attr`, for the transition from `from` to `to`. Returns the attributes and their mask.
    pub(crate) fn attributes(
        &self,
        qp_type: QpType,
        (from, to): (QpState, QpState),
        attr: &QpAttr,
    ) -> (abi::QpAttr, i32) {
        let mut out = abi::QpAttr {
            qp_state: to as i32,
            ..abi::QpAttr::default()
        };
        let mut bits = mask::STATE;
        if (from, to) == (QpState::Reset, QpState::Init) {
            out.pkey_index = self.pkey_index;
            out.port_num = self.number;
            bits |= mask::PKEY_INDEX | mask::PORT;
        }
        if (from, to) == (QpState::Sqe, QpState::Rts) {
            // The device entered SQE by itself, and its driver may not know it.
            out.cur_qp_state = from as i32;
            bits |= mask::CUR_STATE;
        }
        if let Some(access) = attr.access {
            out.qp_access_flags = self.rights(access);
            bits |= mask::ACCESS_FLAGS;
        }
        if let Some(dgid) = attr.dest_gid {
            out.ah_attr = self.way(&AhInit {
                dlid: attr.dest_lid,
                ..AhInit::to(dgid)
            });
            bits |= mask::AV;
        }
        if let Some(qpn) = attr.dest_qpn {
            out.dest_qp_num = qpn.raw();
            bits |= mask::DEST_QPN;
        }
        if let Some(psn) = attr.rq_psn {
            out.rq_psn = psn.raw();
            bits |= mask::RQ_PSN;
        }
        if let Some(mtu) = attr.path_mtu {
            out.path_mtu = mtu.code().into();
            bits |= mask::PATH_MTU;
        }
        if let Some(count) = attr.max_dest_rd_atomic {
            out.max_dest_rd_atomic = count;
            bits |= mask::MAX_DEST_RD_ATOMIC;
        }
        if let Some(timer) = attr.min_rnr_timer {
            out.min_rnr_timer = RnrTimer::code(timer);
            bits |= mask::MIN_RNR_TIMER;
        }
        if let Some(psn) = attr.sq_psn {
            out.sq_psn = psn.raw();
            bits |= mask::SQ_PSN;
        }
        let options = &self.options;
        if let Some(timeout) = attr.timeout {
            out.timeout = options.timeout.unwrap_or(timeout);
            bits |= mask::TIMEOUT;
        }
        if let Some(count) = attr.retry_count {
            out.retry_cnt = options
                .retry_count
                .unwrap_or_else(|| count.min(self.most_retries));
            bits |= mask::RETRY_CNT;
        }
        if let Some(count) = attr.rnr_retry {
            out.rnr_retry = options.rnr_retry.unwrap_or(count);
            bits |= mask::RNR_RETRY;
        }
        if let Some(count) = attr.max_rd_atomic {
            out.max_rd_atomic = count;
            bits |= mask::MAX_RD_ATOMIC;
        }
        if let (Some(qkey), QpType::Ud) = (attr.qkey, qp_type) {
            out.qkey = qkey;
            bits |= mask::QKEY;
        }
        (out, bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_verbs::{Mtu, Psn, Qpn};

    fn port(options: &str) -> Port {
        let name = format!("ibv:x{options}").parse().unwrap();
        Port {
            number: 2,
            gid_index: 3,
            gid: Gid([1; 16]),
            lid: None,
            mtu: Mtu::B1024,
            gid_type: GidType::RoceV2,
            pkey_index: 0,
            pkey: None,
            needs_grh: false,
            has_atomics: true,
            most_retries: 7,
            version: 0,
            options: Options::of(&name).unwrap(),
        }
    }

    fn to_rtr() -> QpAttr {
        QpAttr {
            state: Some(QpState::Rtr),
            dest_gid: Some(Gid([7; 16])),
            dest_qpn: Qpn::new(0x1234),
            rq_psn: Some(Psn::truncated(5)),
            path_mtu: Some(Mtu::B2048),
            max_dest_rd_atomic: Some(4),
            min_rnr_timer: RnrTimer::new(9),
            ..QpAttr::default()
        }
    }

    #[test]
    fn every_step_up_has_the_attributes_that_libibverbs_demands() {
        use QpState::{Init, Reset, Rtr, Rts};
        let port = port("");
        let init = QpAttr {
            access: Some(Access::ALL),
            ..QpAttr::to_state(Init)
        };
        let (out, bits) = port.attributes(QpType::Rc, (Reset, Init), &init);
        assert_eq!(
            bits,
            mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS
        );
        assert_eq!(
            (out.port_num, out.qp_access_flags, out.qp_state),
            (2, 15, 1)
        );
        // For a second INIT the device wants only what changes.
        let (_, bits) = port.attributes(QpType::Rc, (Init, Init), &QpAttr::to_state(Init));
        assert_eq!(bits, mask::STATE);
        let (out, bits) = port.attributes(QpType::Rc, (Init, Rtr), &to_rtr());
        let demanded = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        assert_eq!(bits, demanded);
        assert_eq!((out.path_mtu, out.dest_qp_num, out.rq_psn), (4, 0x1234, 5));
        let way = out.ah_attr;
        assert_eq!((way.is_global, way.port_num, way.grh.sgid_index), (1, 2, 3));
        assert_eq!(gid(way.grh.dgid), Gid([7; 16]));
        let rts = QpAttr {
            sq_psn: Some(Psn::truncated(6)),
            timeout: Some(14),
            retry_count: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..QpAttr::to_state(Rts)
        };
        let (_, bits) = port.attributes(QpType::Rc, (Rtr, Rts), &rts);
        let demanded = mask::STATE
            | mask::SQ_PSN
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::MAX_RD_ATOMIC;
        assert_eq!(bits, demanded);
    }

    #[test]
    fn on_infiniband_the_lid_leads_and_the_gid_only_to_another_subnet() {
        let port = Port {
            lid: Lid::new(5),
            ..port(",service_level=3,traffic_class=106")
        };
        let (mut near, far) = (Gid([1; 16]), Gid([7; 16]));
        near.0[15] = 2;
        let to = |dgid, dlid| {
            port.way(&AhInit {
                dlid: Lid::new(dlid),
                ..AhInit::to(dgid)
            })
        };
        let way = to(near, 6);
        assert_eq!(
            (way.dlid, way.is_global, way.sl, way.port_num),
            (6, 0, 3, 2)
        );
        assert_eq!(gid(way.grh.dgid), Gid::default());
        let way = to(far, 9);
        assert_eq!((way.dlid, way.is_global, way.sl), (9, 1, 3));
        assert_eq!(gid(way.grh.dgid), far);
        let grh = way.grh;
        assert_eq!(
            (grh.sgid_index, grh.hop_limit, grh.traffic_class),
            (3, 64, 106)
        );
        // A connection is addressed the same way, and refused without a LID.
        let way = (QpState::Init, QpState::Rtr);
        let rtr = QpAttr {
            dest_gid: Some(near),
            dest_lid: Lid::new(6),
            ..to_rtr()
        };
        let (out, bits) = port.attributes(QpType::Rc, way, &rtr);
        assert_eq!((out.ah_attr.dlid, out.ah_attr.is_global), (6, 0));
        assert_ne!(bits & mask::AV, 0);
        assert_eq!(port.check_way(way, &rtr), Ok(()));
        let error = port.check_way(way, &to_rtr()).unwrap_err();
        assert!(error.to_string().contains("missing dest_lid"), "{error}");
        assert_eq!(port.check_way(way, &QpAttr::default()), Ok(()));
    }

    #[test]
    fn on_ethernet_the_gid_leads_and_a_lid_is_not_looked_at() {
        let port = port("");
        let to = AhInit {
            dlid: Lid::new(6),
            ..AhInit::to(port.gid)
        };
        let way = port.way(&to);
        assert_eq!((way.dlid, way.is_global), (0, 1));
        assert_eq!(gid(way.grh.dgid), port.gid);
        let way = (QpState::Init, QpState::Rtr);
        assert_eq!(port.check_way(way, &to_rtr()), Ok(()));
    }

    #[test]
    fn a_silent_peer_is_given_up_where_the_device_takes_seven_retries_for_ever() {
        let retries = |options: &str, asked| {
            let port = Port {
                most_retries: 6,
                ..port(options)
            };
            let rts = QpAttr {
                retry_count: Some(asked),
                ..QpAttr::default()
            };
            let way = (QpState::Rtr, QpState::Rts);
            port.attributes(QpType::Rc, way, &rts).0.retry_cnt
        };
        assert_eq!((retries("", 7), retries("", 2)), (6, 2));
        // An explicit option of the device's name is not limited.
        assert_eq!(retries(",retry_count=7", 7), 7);
    }

    #[test]
    fn options_in_the_device_name_take_precedence() {
        let options = ",timeout=20,retry_count=1,rnr_retry=2,traffic_class=106,service_level=3";
        let port = Port {
            pkey_index: 9,
            ..port(options)
        };
        let rts = QpAttr {
            timeout: Some(14),
            retry_count: Some(7),
            rnr_retry: Some(7),
            ..QpAttr::default()
        };
        let (out, _) = port.attributes(QpType::Rc, (QpState::Rtr, QpState::Rts), &rts);
        assert_eq!((out.timeout, out.retry_cnt, out.rnr_retry), (20, 1, 2));
        let way = port.way(&AhInit::to(Gid::default()));
        assert_eq!((way.grh.traffic_class, way.sl), (106, 3));
        // The program's values for its datagrams override the device's name.
        let asked = AhInit {
            traffic_class: 8,
            service_level: 1,
            ..AhInit::to(Gid::default())
        };
        let way = port.way(&asked);
        assert_eq!((way.grh.traffic_class, way.sl), (8, 1));
        let init = QpAttr::to_state(QpState::Init);
        let (out, _) = port.attributes(QpType::Ud, (QpState::Reset, QpState::Init), &init);
        assert_eq!(out.pkey_index, 9);
    }

    #[test]
    fn a_device_without_atomics_is_not_asked_for_the_right_to_them() {
        let without = Port {
            has_atomics: false,
            most_retries: 7,
            ..port("")
        };
        let init = QpAttr {
            access: Some(Access::ALL),
            ..QpAttr::to_state(QpState::Init)
        };
        let step = (QpState::Reset, QpState::Init);
        let (out, _) = without.attributes(QpType::Rc, step, &init);
        assert_eq!(out.qp_access_flags, 7);
        assert_eq!(without.rights(Access::NONE), 0);
    }

    #[test]
    fn the_state_that_the_device_went_to_by_itself_is_named() {
        let rts = QpAttr::to_state(QpState::Rts);
        let (out, bits) = port("").attributes(QpType::Ud, (QpState::Sqe, QpState::Rts), &rts);
        assert_eq!(bits, mask::STATE | mask::CUR_STATE);
        assert_eq!((out.qp_state, out.cur_qp_state), (3, 5));
        // Other transitions do not name the current state.
        for step in [(QpState::Sqd, QpState::Rts), (QpState::Sqe, QpState::Reset)] {
            let (_, bits) = port("").attributes(QpType::Ud, step, &rts);
            assert_eq!(bits, mask::STATE);
        }
    }
}

//! Creation of queue pairs and their state transitions.

use headworks_verbs::{Access, ModifyError, QpAttr, QpCaps, QpState, QpType, Qpn};

use super::queues::{QpConnection, Receives};
use super::{Model, Qp, QpRef};
use crate::hardware_units::{NS, Ps};
use crate::wqe::cache_key;

/// Unit of the acknowledgement timeout, 4.096 µs; doubled as often as the attribute says.
const TIMEOUT: Ps = 4_096 * NS;

impl Qp {
    pub(crate) fn new(
        reference: QpRef,
        qpn: u32,
        (host, pd): (u32, u32),
        caps: QpCaps,
        (qp_type, signal_all): (QpType, bool),
        (send_cq, recv_cq, srq): (u32, u32, Option<u32>),
    ) -> Self {
        Self {
            index: reference.index,
            life: reference.life,
            qpn,
            unit: 0,
            port: 0,
            context: 0,
            host,
            pd,
            qp_type,
            state: QpState::Reset,
            caps,
            signal_all,
            send_cq,
            recv_cq,
            srq,
            connection: QpConnection::default(),
            sq: std::collections::VecDeque::new(),
            first: 0,
            rung: 0,
            rings_at: 0,
            is_called: false,
            retired: 0,
            sending: 0,
            sent: 0,
            next_psn: 0,
            gone_at: 0,
            acked: 0,
            reads: 0,
            failing: None,
            drains_to: 0,
            is_ready: false,
            not_before: 0,
            paused: false,
            dcqcn: None,
            may_notify_at: 0,
            retries: 0,
            rnr_tries: 0,
            missed: None,
            last_progress: 0,
            timer: None,
            receives: Receives::default(),
            inbound: None,
            expected: 0,
            gap_reported: false,
            received_at: 0,
            placed_at: 0,
            answered_at: 0,
            responses: std::collections::VecDeque::new(),
            answers: std::collections::VecDeque::new(),
            settled: false,
            events: 0,
            rnr: 0,
            sent_bytes: 0,
            read_bytes: 0,
        }
    }
}

impl Model {
    /// Changes the attributes and the state of a queue pair.
    pub(crate) fn modify(&mut self, index: u32, attr: &QpAttr) -> Result<(), ModifyError> {
        let life = self.life();
        let hosts = &self.hosts;
        let (_, Some(qp)) = &mut self.qps[index as usize] else {
            return Ok(());
        };
        let from = qp.state;
        let to = headworks_verbs::qp_state::check_transition(qp.qp_type, from, attr)?;
        let connection = &mut qp.connection;
        if let Some(access) = attr.access {
            connection.access = access;
        }
        if let Some(gid) = attr.dest_gid {
            let host = hosts.iter().position(|host| host.gid == gid);
            connection.host = host.map(|host| host as u32);
        }
        connection.qpn = attr.dest_qpn.map_or(connection.qpn, Qpn::raw);
        connection.mtu = match (attr.path_mtu, qp.qp_type) {
            (Some(mtu), _) => mtu.bytes(),
            (None, QpType::Ud) => self.preset.mtu_bytes as u32,
            (None, _) => connection.mtu,
        };
        connection.max_reads = attr.max_rd_atomic.map_or(connection.max_reads, u32::from);
        connection.max_dest_reads = attr
            .max_dest_rd_atomic
            .map_or(connection.max_dest_reads, u32::from);
        connection.min_rnr = attr
            .min_rnr_timer
            .map_or(connection.min_rnr, |timer| timer.duration().nanos() * NS);
        connection.timeout = match attr.timeout {
            None => connection.timeout,
            Some(0) => 0,
            Some(code) => TIMEOUT << code,
        };
        connection.retry_count = attr.retry_count.unwrap_or(connection.retry_count);
        connection.rnr_retry = attr.rnr_retry.unwrap_or(connection.rnr_retry);
        connection.qkey = attr.qkey.unwrap_or(connection.qkey);
        if let Some(psn) = attr.rq_psn {
            qp.expected = psn.raw().into();
        }
        if let Some(psn) = attr.sq_psn {
            (qp.next_psn, qp.acked) = (psn.raw().into(), psn.raw().into());
        }
        if to == QpState::Sqd && from != to {
            qp.drains_to = match qp.sent {
                0 => qp.sending,
                _ => qp.sending + 1,
            };
        }
        match to {
            QpState::Reset => {
                let host = qp.host as usize;
                for number in qp.first..qp.posted() {
                    self.hosts[host].requests.forget(cache_key(index, number));
                }
                qp.reset(life);
            }
            QpState::Error => {
                qp.state = to;
                qp.responses.clear();
                self.flush(index);
                self.last_receive(index);
            }
            to => {
                qp.state = to;
                self.make_ready(index);
            }
        }
        Ok(())
    }
}

impl Default for QpConnection {
    fn default() -> Self {
        Self {
            access: Access::NONE,
            host: None,
            qpn: 0,
            mtu: 256,
            max_reads: 0,
            max_dest_reads: 0,
            min_rnr: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            qkey: 0,
        }
    }
}

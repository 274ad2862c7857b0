//! Connects two RC or two UC queue pairs over any byte stream.
//!
//! A sans-I/O byte state machine, and the only way Headworks brings up a queue pair. Each side sends one
//! [`Hello`]: its address on the network, and an opaque payload for the layer above, such as the keys of a
//! ring. When the peer's `Hello` arrives, each side moves its queue pair to RTR and RTS, and sends one byte
//! to say so. Neither side therefore posts before the other can receive.
//!
//! To drive it, write [`BringUp::output`] to the stream and feed arriving bytes to [`BringUp::input`], until
//! [`BringUp::is_connected`]. Keep the stream open afterwards: on devices that do not notice a peer's death,
//! the end of the stream is the only sign of it. Two queue pairs of one process need no stream:
//! see [`BringUp::connect_both`].
//!
//! UD queue pairs are not connected; [`bring_up_ud`] makes one ready.

use std::fmt::{self, Write};

use headworks_wire::{Decoder, Encoder};

use crate::address::{Gid, Lid, Mtu, PKey, Psn, Qpn, RoceVersion};
use crate::device::DeviceInfo;
use crate::error::ModifyError;
use crate::memory_region::Access;
use crate::qp_state::QpState;
use crate::queue_pair::{QpAttr, QpType, QueuePair, RnrTimer};

/// First bytes of the exchange.
const MAGIC: [u8; 4] = *b"HWbu";
/// Version of the exchange; peers of another version are refused.
pub const VERSION: u16 = 4;
/// Longest payload of the layer above, in bytes.
pub const PAYLOAD_MAX: usize = 4096;
/// Bytes of the header: magic, version, payload length, GID, QPN, PSN, MTU, READ depth, LID (0 for none),
/// kind, network, version of RoCE (0 for none or unknown), partition key (0 for none or unknown).
const HEADER: usize = 4 + 2 + 2 + 16 + 4 + 4 + 1 + 1 + 2 + KIND_BYTES + 8 + 1 + 2;
/// Bytes of a kind. A longer kind is truncated, a shorter one is padded with zeros.
const KIND_BYTES: usize = 8;
const READY: u8 = b'R';

/// Failure to connect two queue pairs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BringUpError {
    /// The other end does not speak the Headworks connection exchange.
    #[error("the other end does not speak this protocol")]
    NotHeadworks,
    /// The other end speaks another version of the exchange.
    #[error("the other end speaks version {found} of the connection exchange, this one {VERSION}")]
    VersionMismatch {
        /// The version of the other end.
        found: u16,
    },
    /// A field of the other end's hello is out of range.
    #[error("the other end's greeting is malformed: {0}")]
    Malformed(&'static str),
    /// The two ends' devices are of different kinds.
    #[error(
        "the two ends are on devices of different kinds, which do not reach each other: this one on {ours}, the \
         other on {theirs}; name devices of one kind at both ends"
    )]
    KindMismatch {
        /// The kind of this end's device.
        ours: ProviderKind,
        /// The kind of the other end's device.
        theirs: ProviderKind,
    },
    /// The two ends' devices are of the same kind, on networks that do not reach each other. With the
    /// software RNIC these are two machines, users or registries.
    #[error(
        "the two ends are on {kind} devices of different machines, users or registries, which do not reach each \
         other: use RDMA devices between machines"
    )]
    FabricMismatch {
        /// The kind of both ends' devices.
        kind: ProviderKind,
    },
    /// One end is on an InfiniBand network and the other is not.
    #[error(
        "the two ends are on different networks: this one has {}, the other one {}",
        describe_lid(.ours),
        describe_lid(.theirs)
    )]
    NetworkMismatch {
        /// This end's LID, if it is on an InfiniBand network.
        ours: Option<Lid>,
        /// The other end's LID, if it is on an InfiniBand network.
        theirs: Option<Lid>,
    },
    /// The other end is in another InfiniBand subnet. The path leads over a router that only the subnet
    /// manager knows.
    #[error(
        "the other end is in another InfiniBand subnet, {theirs:#018x}, than this one, {ours:#018x}: the path \
         leads over a router that only the subnet manager knows"
    )]
    SubnetMismatch {
        /// The prefix of this end's subnet.
        ours: u64,
        /// The prefix of the other end's subnet.
        theirs: u64,
    },
    /// The two ends' addresses are for different versions of RoCE.
    #[error(
        "the two ends use different versions of RoCE: this one {ours}, the other {theirs}; choose addresses of one version \
         (gid_index=N, gid=ADDRESS)"
    )]
    RoceMismatch {
        /// The version of this end's address.
        ours: RoceVersion,
        /// The version of the other end's address.
        theirs: RoceVersion,
    },
    /// One end has an IPv4 address and the other an IPv6 address.
    #[error(
        "the two ends have addresses of different kinds: this one {}, the other {}; choose two IPv4 or two IPv6 \
         addresses (gid_index=N, gid=ADDRESS)",
        .ours.ip(),
        .theirs.ip()
    )]
    AddressFamilyMismatch {
        /// The address of this end.
        ours: Gid,
        /// The address of the other end.
        theirs: Gid,
    },
    /// The two ends' partition keys do not let them reach each other.
    #[error(
        "the two ends are in partitions that do not reach each other: this one has the partition key {ours} ({}), the other \
         {theirs} ({}); choose keys of one partition, one of them with full membership (pkey_index=N)",
        describe_membership(.ours),
        describe_membership(.theirs)
    )]
    PartitionMismatch {
        /// The key of this end.
        ours: PKey,
        /// The key of the other end.
        theirs: PKey,
    },
    /// The payload of the layer above is too long.
    #[error("connection payload of {0} bytes: at most {PAYLOAD_MAX}")]
    PayloadTooLong(usize),
    /// Neither side has bytes left to send, and they are not connected: one of them was already connected to
    /// another peer.
    #[error("neither end has bytes left to send: one of them was connected to another before")]
    NothingToSend,
    /// The state of the queue pair could not be changed.
    #[error("queue pair: {0}")]
    Modify(#[from] ModifyError),
}

impl From<headworks_wire::Malformed> for BringUpError {
    fn from(headworks_wire::Malformed(what): headworks_wire::Malformed) -> Self {
        Self::Malformed(what)
    }
}

fn describe_lid(lid: &Option<Lid>) -> String {
    match lid {
        Some(lid) => format!("the LID {lid} on an InfiniBand network"),
        None => "no LID".to_owned(),
    }
}

fn describe_membership(pkey: &PKey) -> &'static str {
    match pkey.is_full() {
        true => "full membership",
        false => "limited membership",
    }
}

/// The kind of an end's device, such as `soft` or `ibv`, truncated to 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderKind([u8; KIND_BYTES]);

impl ProviderKind {
    /// The kind of `device`.
    pub fn of(device: &DeviceInfo) -> Self {
        let mut kind = [0; KIND_BYTES];
        for (place, byte) in kind.iter_mut().zip(device.name.kind().bytes()) {
            *place = byte;
        }
        Self(kind)
    }

    /// Parses a kind; `None` if it is not lower-case letters and digits followed by zeros.
    fn parse(bytes: [u8; KIND_BYTES]) -> Option<Self> {
        let len = bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(KIND_BYTES);
        let (name, rest) = bytes.split_at(len);
        let is_name = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_kind = len > 0 && name.iter().all(is_name) && rest.iter().all(|byte| *byte == 0);
        is_kind.then_some(Self(bytes))
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.iter().take_while(|byte| **byte != 0);
        name.map(|byte| char::from(*byte))
            .try_for_each(|c| f.write_char(c))
    }
}

/// Access rights, timeouts and retries of the connection, as QP attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionParams {
    /// The transport of both queue pairs, RC or UC. A UC connection uses none of the timeouts and retries.
    pub qp_type: QpType,
    /// Access of the peer through the queue pair.
    pub access: Access,
    /// ACK timeout, 4.096 µs × 2^timeout. `None`: 14, which is 67 ms; on an RNIC 17, which is 0.5 s.
    pub timeout: Option<u8>,
    /// Transport retries, at most 7.
    pub retry_count: u8,
    /// RNR retries; 7 retries for ever.
    pub rnr_retry: u8,
    /// How long the peer waits after an RNR NAK, when no receive is posted here.
    pub min_rnr_timer: RnrTimer,
}

impl ConnectionParams {
    /// The ACK timeout of a connection of `device`. On an RNIC each of the 8 tries waits 0.5 s and not 67 ms: a network that fails over
    /// to another link is silent for a second or longer, and the connection outlives that.
    fn timeout_on(&self, device: &DeviceInfo) -> u8 {
        // The driver of a software device is `rxe` or unknown.
        let is_rnic = device.driver.as_ref().is_some_and(|driver| driver != "rxe");
        let default = match is_rnic && device.name.kind() == "ibv" {
            true => 17,
            false => 14,
        };
        self.timeout.unwrap_or(default)
    }
}

impl Default for ConnectionParams {
    /// Gives up a silent peer after 8 tries; retries for ever on RNR.
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            access: Access::ALL,
            timeout: None,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::default(),
        }
    }
}

/// Moves a UD queue pair from RESET to RTS, ready to send and to receive. Incoming datagrams must carry
/// `qkey`. `psn_seed` should be random.
pub fn bring_up_ud(qp: &mut dyn QueuePair, qkey: u32, psn_seed: u32) -> Result<(), ModifyError> {
    qp.modify(&QpAttr {
        qkey: Some(qkey),
        ..QpAttr::to_state(QpState::Init)
    })?;
    qp.modify(&QpAttr::to_state(QpState::Rtr))?;
    qp.modify(&QpAttr {
        sq_psn: Some(Psn::truncated(psn_seed)),
        ..QpAttr::to_state(QpState::Rts)
    })
}

/// One side of a connection in progress.
#[derive(Debug)]
pub struct BringUp {
    params: ConnectionParams,
    timeout: u8,
    kind: ProviderKind,
    network: u64,
    gid: Gid,
    lid: Option<Lid>,
    roce: Option<RoceVersion>,
    pkey: Option<PKey>,
    mtu: Mtu,
    max_rd_atomic: u8,
    psn: Psn,
    out: Vec<u8>,
    inbox: Vec<u8>,
    peer: Option<Hello>,
    peer_ready: bool,
}

/// The first message of each side: its device, port and queue pair, and the payload of the layer above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The kind of its device.
    pub kind: ProviderKind,
    /// Its device's network ([`DeviceInfo::network`]).
    pub network: u64,
    /// The GID of its port.
    pub gid: Gid,
    /// The LID of its port, if it is on an InfiniBand network.
    pub lid: Option<Lid>,
    /// The version of RoCE that its GID is for, if it is on such a network and knows the version.
    pub roce: Option<RoceVersion>,
    /// The partition key of its port, if it knows the key.
    pub pkey: Option<PKey>,
    /// Its queue pair number.
    pub qpn: Qpn,
    /// The first packet sequence number it sends.
    pub psn: Psn,
    /// The largest MTU its port supports.
    pub mtu: Mtu,
    /// READs and atomics of the peer that it can hold as responder.
    pub max_rd_atomic: u8,
    /// Opaque bytes for the layer above, at most [`PAYLOAD_MAX`].
    pub payload: Vec<u8>,
}

impl Hello {
    fn emit(&self) -> Vec<u8> {
        let to = Encoder::new().raw(&MAGIC).u16(VERSION);
        let to = to.u16(self.payload.len() as u16).raw(&self.gid.0);
        let to = to.u32(self.qpn.raw()).u32(self.psn.raw());
        let to = to.u8(self.mtu.code()).u8(self.max_rd_atomic);
        let to = to.u16(self.lid.map_or(0, Lid::raw)).raw(&self.kind.0);
        let roce = match self.roce {
            None => 0,
            Some(RoceVersion::V1) => 1,
            Some(RoceVersion::V2) => 2,
        };
        let to = to.u64(self.network).u8(roce);
        let to = to.u16(self.pkey.map_or(0, PKey::raw));
        to.raw(&self.payload).finish()
    }

    /// Parses a hello at the front of `bytes` and returns it with its length; `None` while bytes are missing.
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, BringUpError> {
        let seen = bytes.len().min(4);
        if bytes[..seen] != MAGIC[..seen] {
            return Err(BringUpError::NotHeadworks);
        }
        let mut of = Decoder::new(&bytes[seen..]);
        // The version is checked as soon as it has arrived: another version may have a longer header.
        match of.u16() {
            Ok(VERSION) => {}
            Ok(found) => return Err(BringUpError::VersionMismatch { found }),
            Err(_) => return Ok(None),
        }
        if bytes.len() < HEADER {
            return Ok(None);
        }
        let payload_len = usize::from(of.u16()?);
        if payload_len > PAYLOAD_MAX {
            return Err(BringUpError::Malformed("payload length"));
        }
        let gid = Gid(of.array()?);
        let qpn = Qpn::new(of.u32()?).ok_or(BringUpError::Malformed("queue pair number"))?;
        let psn = of.u32()?;
        if psn > Qpn::MAX {
            return Err(BringUpError::Malformed("packet sequence number"));
        }
        let mtu = Mtu::from_code(of.u8()?).ok_or(BringUpError::Malformed("MTU"))?;
        let max_rd_atomic = of.u8()?;
        let lid = match of.u16()? {
            0 => None,
            raw => Some(Lid::new(raw).ok_or(BringUpError::Malformed("LID"))?),
        };
        let kind = ProviderKind::parse(of.array()?);
        let kind = kind.ok_or(BringUpError::Malformed("kind of device"))?;
        let network = of.u64()?;
        let roce = match of.u8()? {
            0 => None,
            1 => Some(RoceVersion::V1),
            2 => Some(RoceVersion::V2),
            _ => return Err(BringUpError::Malformed("version of RoCE")),
        };
        let pkey = match of.u16()? {
            0 => None,
            raw => Some(PKey::new(raw).ok_or(BringUpError::Malformed("partition key"))?),
        };
        let Ok(payload) = of.raw(payload_len) else {
            return Ok(None);
        };
        let hello = Self {
            kind,
            network,
            gid,
            lid,
            roce,
            pkey,
            qpn,
            psn: Psn::truncated(psn),
            mtu,
            max_rd_atomic,
            payload: payload.to_vec(),
        };
        Ok(Some((hello, HEADER + payload_len)))
    }
}

impl BringUp {
    /// Starts connecting `qp`, which is in RESET or INIT, and moves it to INIT. `psn_seed` should be random;
    /// `payload` is delivered to the other side.
    pub fn start(
        device: &DeviceInfo,
        qp: &mut dyn QueuePair,
        params: ConnectionParams,
        psn_seed: u32,
        payload: Vec<u8>,
    ) -> Result<Self, BringUpError> {
        if payload.len() > PAYLOAD_MAX {
            return Err(BringUpError::PayloadTooLong(payload.len()));
        }
        qp.modify(&QpAttr {
            state: Some(QpState::Init),
            access: Some(params.access),
            ..QpAttr::default()
        })?;
        let psn = Psn::truncated(psn_seed);
        let max_rd_atomic = device.limits.max_rd_atomic;
        let (kind, network) = (ProviderKind::of(device), device.network);
        let hello = Hello {
            kind,
            network,
            gid: device.gid,
            lid: device.lid,
            roce: device.roce,
            pkey: device.pkey,
            qpn: qp.qpn(),
            psn,
            mtu: device.mtu,
            max_rd_atomic,
            payload,
        };
        Ok(Self {
            timeout: params.timeout_on(device),
            params,
            kind,
            network,
            gid: device.gid,
            lid: device.lid,
            roce: device.roce,
            pkey: device.pkey,
            mtu: device.mtu,
            max_rd_atomic,
            psn,
            out: hello.emit(),
            inbox: Vec::new(),
            peer: None,
            peer_ready: false,
        })
    }

    /// Takes the bytes to write to the stream now. The caller must write all of them.
    pub fn output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Takes bytes from the stream and returns how many it used. Unused bytes, once connected, belong to the
    /// layer above.
    pub fn input(&mut self, qp: &mut dyn QueuePair, bytes: &[u8]) -> Result<usize, BringUpError> {
        let before = self.inbox.len();
        self.inbox.extend_from_slice(bytes);
        let mut used = 0;
        if self.peer.is_none() {
            let Some((hello, len)) = Hello::parse(&self.inbox)? else {
                return Ok(bytes.len());
            };
            self.connect(qp, &hello)?;
            self.out.push(READY);
            self.peer = Some(hello);
            used = len;
        }
        if !self.peer_ready
            && let Some(&byte) = self.inbox.get(used)
        {
            if byte != READY {
                return Err(BringUpError::Malformed("ready byte"));
            }
            self.peer_ready = true;
            used += 1;
        }
        self.inbox.clear();
        Ok(used.saturating_sub(before))
    }

    /// Checks that both ports can reach each other by the addresses that the two sides exchanged.
    fn check_reachable(&self, peer: &Hello) -> Result<(), BringUpError> {
        let (ours, theirs) = (self.kind, peer.kind);
        if ours != theirs {
            return Err(BringUpError::KindMismatch { ours, theirs });
        }
        if self.network != peer.network && ![self.network, peer.network].contains(&0) {
            return Err(BringUpError::FabricMismatch { kind: ours });
        }
        let (ours, theirs) = (self.gid.subnet_prefix(), peer.gid.subnet_prefix());
        match (self.lid, peer.lid) {
            (None, None) => self.check_roce(peer)?,
            (Some(_), Some(_)) if ours == theirs => {}
            (Some(_), Some(_)) => return Err(BringUpError::SubnetMismatch { ours, theirs }),
            (ours, theirs) => return Err(BringUpError::NetworkMismatch { ours, theirs }),
        }
        match (self.pkey, peer.pkey) {
            (Some(ours), Some(theirs)) if !ours.reaches(theirs) => {
                Err(BringUpError::PartitionMismatch { ours, theirs })
            }
            _ => Ok(()),
        }
    }

    /// Checks that packets of both ports look alike, as far as both know.
    fn check_roce(&self, peer: &Hello) -> Result<(), BringUpError> {
        let (Some(ours), Some(theirs)) = (self.roce, peer.roce) else {
            return Ok(());
        };
        if ours != theirs {
            return Err(BringUpError::RoceMismatch { ours, theirs });
        }
        let (ours, theirs) = (self.gid, peer.gid);
        match ours.ipv4().is_some() == theirs.ipv4().is_some() {
            true => Ok(()),
            false => Err(BringUpError::AddressFamilyMismatch { ours, theirs }),
        }
    }

    fn connect(&self, qp: &mut dyn QueuePair, peer: &Hello) -> Result<(), BringUpError> {
        self.check_reachable(peer)?;
        // A UC queue pair is refused the attributes of acknowledgements, READs and atomics.
        let is_reliable = self.params.qp_type.is_reliable();
        qp.modify(&QpAttr {
            state: Some(QpState::Rtr),
            dest_gid: Some(peer.gid),
            dest_lid: peer.lid,
            dest_qpn: Some(peer.qpn),
            rq_psn: Some(peer.psn),
            path_mtu: Some(self.mtu.min(peer.mtu)),
            max_dest_rd_atomic: is_reliable.then_some(self.max_rd_atomic),
            min_rnr_timer: is_reliable.then_some(self.params.min_rnr_timer),
            ..QpAttr::default()
        })?;
        qp.modify(&QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(self.psn),
            timeout: is_reliable.then_some(self.timeout),
            retry_count: is_reliable.then_some(self.params.retry_count),
            rnr_retry: is_reliable.then_some(self.params.rnr_retry),
            max_rd_atomic: is_reliable.then_some(self.max_rd_atomic.min(peer.max_rd_atomic)),
            ..QpAttr::default()
        })?;
        Ok(())
    }

    /// Connects two queue pairs of this process: passes each side's output to the other.
    pub fn connect_both(
        &mut self,
        qp: &mut dyn QueuePair,
        other: &mut Self,
        other_qp: &mut dyn QueuePair,
    ) -> Result<(), BringUpError> {
        while !(self.is_connected() && other.is_connected()) {
            let (ours, theirs) = (self.output(), other.output());
            if ours.is_empty() && theirs.is_empty() {
                return Err(BringUpError::NothingToSend);
            }
            other.input(other_qp, &ours)?;
            self.input(qp, &theirs)?;
        }
        Ok(())
    }

    /// The other side's hello, once it has arrived.
    pub fn peer(&self) -> Option<&Hello> {
        self.peer.as_ref()
    }

    /// Whether both sides can send and receive, and nothing is left to write.
    pub fn is_connected(&self) -> bool {
        self.peer_ready && self.out.is_empty()
    }
}

#[cfg(test)]
pub(crate) mod tests;

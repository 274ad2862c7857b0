//! [`Connection`]: one side of a connection by librdmacm.

use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use headworks_verbs::{Access, Lid, Mtu, Psn, QpAttr, QpState, Qpn, QueuePair, RnrTimer};

use super::CmError;
use super::absent;
use super::library::{self as cm_library, CmApi};
use super::phase::{self, NextAction, Phase};
use super::raw::{Channel, CmEventInfo, Id, ResolvedRoute};
use super::route::{self, Route, RouteError};
use crate::attributes;
use crate::library::{self, Api};
use crate::port_tables::{active_mtu, is_infiniband};
use crate::qp::IbvQp;
use crate::raw::Raw;

/// Time that the kernel may take to resolve an address, and then to resolve a route, in milliseconds.
const RESOLVE_MS: i32 = 2_000;
/// Longest ACK timeout of a queue pair, as its exponent: half a second. With seven retries, a host that
/// vanished is detected after four seconds. On Ethernet the kernel's own timeout is two seconds.
const TIMEOUT_MAX: u8 = 17;
/// Number of events that one step handles at most.
const EVENTS: usize = 16;

/// The two libraries that a connection uses.
#[derive(Clone, Copy)]
pub(crate) struct Libraries {
    pub(crate) manager: CmApi,
    pub(crate) verbs: Api,
    /// Root of the file system; `/` except in tests.
    pub(crate) root: &'static Path,
}

impl Libraries {
    /// Loads the machine's libraries.
    pub(crate) fn load() -> Result<Self, CmError> {
        let root = Path::new("/");
        // Without a device, installing a library would not help. So report the missing device.
        let missing = |error| match absent::has_device(root) {
            true => CmError::Library(error),
            false => CmError::NoDevice,
        };
        Ok(Self {
            verbs: *library::api().map_err(missing)?,
            manager: *cm_library::api().map_err(missing)?,
            root,
        })
    }

    pub(crate) fn channel(&self) -> Result<Arc<Channel>, CmError> {
        Channel::create(&self.manager).map_err(|source| absent::why(self.root, source))
    }
}

/// One side of a connection: an outgoing call, or a request that a [`CmListener`](super::CmListener)
/// received.
///
/// The [module](super) describes the order of calls. Dropping it disconnects.
pub struct Connection {
    libraries: Libraries,
    id: Id,
    phase: Phase,
    /// Whether the connection was established and this side has not disconnected.
    stands: bool,
    greeting: Vec<u8>,
    /// The route, once it was requested.
    route: Option<Route>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({:?}, {:?})", self.phase, self.route)
    }
}

impl Connection {
    /// Starts to connect to `to`. With `from`, the connection starts at this address of the machine; its port
    /// should be 0.
    pub fn call(to: &SocketAddr, from: Option<&SocketAddr>) -> Result<Self, CmError> {
        Self::call_by(Libraries::load()?, to, from)
    }

    pub(crate) fn call_by(
        libraries: Libraries,
        to: &SocketAddr,
        from: Option<&SocketAddr>,
    ) -> Result<Self, CmError> {
        let channel = libraries.channel()?;
        let id = Id::create(&channel).map_err(CmError::system("making an identifier"))?;
        id.resolve_addr(from, to, RESOLVE_MS)
            .map_err(|source| CmError::NoWay { source })?;
        Ok(Self::new(libraries, id, Phase::Address))
    }

    fn new(libraries: Libraries, id: Id, phase: Phase) -> Self {
        Self {
            libraries,
            id,
            phase,
            stands: false,
            greeting: Vec::new(),
            route: None,
        }
    }

    /// Creates the accepting side from a request that a listener received, with its private data.
    pub(super) fn asked(libraries: Libraries, mut id: Id, said: Vec<u8>) -> Result<Self, CmError> {
        let channel = libraries.channel()?;
        id.migrate(&channel)
            .map_err(CmError::system("taking over a connection request"))?;
        let mut asked = Self::new(libraries, id, Phase::Ready);
        asked.greeting = said;
        Ok(asked)
    }

    /// Private data of the peer's request or answer. Zeros may follow what the peer sent.
    pub fn greeting(&self) -> &[u8] {
        &self.greeting
    }

    /// Advances an outgoing call. Returns the route once it is resolved. Never blocks.
    pub fn resolve(&mut self) -> Result<Option<Route>, CmError> {
        for _ in 0..EVENTS {
            if self.phase == Phase::Ready {
                return self.route().map(Some);
            }
            let Some(heard) = self.next()? else { break };
            if self.take(&heard)? == NextAction::FindWay {
                let asked = self.id.resolve_route(RESOLVE_MS);
                asked.map_err(|source| CmError::NoWay { source })?;
            }
        }
        Ok(None)
    }

    /// GID of the peer's port, once the route is resolved.
    pub fn peer(&self) -> Option<Ipv6Addr> {
        self.id.way().map(|way| way.dgid.0.into())
    }

    /// The route that the connection uses on this machine.
    pub fn route(&mut self) -> Result<Route, CmError> {
        if let Some(route) = &self.route {
            return Ok(route.clone());
        }
        let way = self.id.way().ok_or(CmError::Unexpected {
            event: super::abi::event::CONNECT_REQUEST,
            phase: "no device is known",
        })?;
        let route = self.route_of(&way)?;
        self.route = Some(route.clone());
        Ok(route)
    }

    fn route_of(&self, way: &ResolvedRoute) -> Result<Route, CmError> {
        let raw = Raw::open(&self.libraries.verbs, &way.device);
        let raw = raw.map_err(CmError::system("opening the device"))?;
        let raw = raw.ok_or(CmError::Removed)?;
        let port = raw.port_attr(way.port);
        let port = port.map_err(CmError::system("asking for the device's port"))?;
        let count = usize::try_from(port.gid_tbl_len).unwrap_or(0);
        let gid_index = route::index_of(&raw.gids(way.port, count), way.gid);
        let gid_index = gid_index.ok_or_else(|| RouteError::NoGid {
            device: way.device.clone(),
            port: way.port,
            gid: way.gid.0.into(),
        })?;
        let path = way.path.unwrap_or_default();
        // On an InfiniBand network the address belongs to a partition. On Ethernet there is only one.
        let pkey_index = match is_infiniband(raw.transport(), &port) {
            true => {
                let how = CmError::system("asking for the partition");
                Some(self.id.attributes(QpState::Init).map_err(how)?.pkey_index)
            }
            false => None,
        };
        Ok(Route {
            device: way.device.clone(),
            port: way.port,
            gid_index,
            // The lower six bits of the byte are the MTU. Opening the device with more than the active MTU
            // would fail.
            mtu: Mtu::from_code(path.mtu & 0x3f).map(|mtu| mtu.min(active_mtu(&port))),
            service_level: path.sl & 15,
            traffic_class: path.traffic_class,
            pkey_index,
        })
    }

    /// Moves a queue pair of the route's device ([`Route::own_device`]) from RESET to INIT. The caller posts
    /// receives next.
    pub fn prepare(&mut self, qp: &mut dyn QueuePair) -> Result<(), CmError> {
        self.usable()?;
        // The peer needs the right to WRITE although no memory is registered for it: it posts WRITEs of 0
        // bytes to check that this side is alive.
        qp.modify(&QpAttr {
            access: Some(Access::LOCAL_WRITE | Access::REMOTE_WRITE),
            ..QpAttr::to_state(QpState::Init)
        })?;
        Ok(())
    }

    /// Asks the peer to connect `qp`, with `greeting` as private data (at most
    /// [`GREETING_MAX`](super::GREETING_MAX) bytes).
    pub fn ask(&mut self, qp: Qpn, greeting: &[u8]) -> Result<(), CmError> {
        self.usable()?;
        let asked = self.id.connect(qp, greeting);
        asked.map_err(CmError::system("asking for a connection"))?;
        self.phase = Phase::Asked;
        Ok(())
    }

    /// Moves `qp` to RTS as the request demands, and accepts with `greeting` as private data.
    pub fn answer(&mut self, qp: &mut dyn QueuePair, greeting: &[u8]) -> Result<(), CmError> {
        self.usable()?;
        self.step_up(qp)?;
        let answered = self.id.accept(qp.qpn(), greeting);
        answered.map_err(CmError::system("accepting a connection"))?;
        self.phase = Phase::Answered;
        Ok(())
    }

    /// Refuses the request, with `greeting` as private data.
    pub fn refuse(mut self, greeting: &[u8]) -> Result<(), CmError> {
        self.usable()?;
        self.phase = Phase::Ended;
        let refused = self.id.reject(greeting);
        refused.map_err(CmError::system("refusing a connection"))
    }

    /// Advances the connection of `qp`. Returns true once both sides can send, and also if the connection has
    /// ended since. Never blocks.
    pub fn step(&mut self, qp: &mut dyn QueuePair) -> Result<bool, CmError> {
        for _ in 0..EVENTS {
            let Some(heard) = self.next()? else { break };
            if self.take(&heard)? == NextAction::StepUp {
                self.greeting = heard.said;
                self.step_up(qp)?;
                let told = self.id.establish();
                told.map_err(CmError::system("confirming a connection"))?;
            }
        }
        Ok(matches!(self.phase, Phase::Up | Phase::Ended))
    }

    /// Returns whether an established connection is over: the peer closed it or died, or the device was
    /// removed. Never blocks.
    pub fn is_ended(&mut self) -> bool {
        for _ in 0..EVENTS {
            let ended = match self.next() {
                Ok(Some(heard)) => self.take(&heard).map(|_| self.phase == Phase::Ended),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                tracing::warn!(%error, "connection given up after an error");
                self.phase = Phase::Ended;
            }
        }
        self.phase == Phase::Ended
    }

    /// Ends an established connection, and tells the peer. Dropping the connection does the same.
    pub fn disconnect(&mut self) {
        if self.usable().is_err() || !std::mem::take(&mut self.stands) {
            return;
        }
        self.phase = Phase::Ended;
        if let Err(error) = self.id.disconnect() {
            // The peer may have disconnected first.
            tracing::debug!(%error, "disconnecting");
        }
    }

    fn usable(&self) -> Result<(), CmError> {
        match self.id.channel.is_foreign() {
            true => Err(CmError::Forked),
            false => Ok(()),
        }
    }

    fn next(&mut self) -> Result<Option<CmEventInfo>, CmError> {
        self.usable()?;
        let heard = self.id.channel.next();
        heard.map_err(CmError::system("reading events of connections"))
    }

    fn take(&mut self, heard: &CmEventInfo) -> Result<NextAction, CmError> {
        let (phase, next_action) = phase::next(self.phase, heard.event, heard.status, &heard.said)?;
        tracing::debug!(event = heard.event, status = heard.status, ?phase, "heard");
        self.phase = phase;
        self.stands |= phase == Phase::Up;
        Ok(next_action)
    }

    /// Moves a queue pair from INIT to RTS, with the connection manager's attributes.
    fn step_up(&mut self, qp: &mut dyn QueuePair) -> Result<(), CmError> {
        let how = CmError::system("asking how to connect");
        let attr = self.id.attributes(QpState::Rtr).map_err(how)?;
        let route = self.route()?;
        let found = attr.ah_attr.grh.sgid_index;
        if attr.ah_attr.is_global != 0 && found != route.gid_index {
            let (device, expected) = (route.device, route.gid_index);
            return Err(RouteError::OtherGid {
                device,
                found,
                expected,
            }
            .into());
        }
        // Within an InfiniBand subnet, the attributes hold only the LID.
        let dest_gid = match attr.ah_attr.is_global {
            0 => self.id.way().map(|way| way.dgid),
            _ => Some(attributes::gid(attr.ah_attr.grh.dgid)),
        };
        let rtr = QpAttr {
            dest_gid,
            dest_lid: Lid::new(attr.ah_attr.dlid),
            dest_qpn: Qpn::new(attr.dest_qp_num),
            rq_psn: Some(Psn::truncated(attr.rq_psn)),
            path_mtu: u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_code),
            max_dest_rd_atomic: Some(attr.max_dest_rd_atomic),
            min_rnr_timer: RnrTimer::new(attr.min_rnr_timer & 31),
            ..QpAttr::to_state(QpState::Rtr)
        };
        // The address vector has fields that `QpAttr` lacks: hop limit, flow label, rate, path bits. So an
        // `IbvQp` gets the address vector itself.
        let ours = qp.as_any_mut().and_then(|qp| qp.downcast_mut::<IbvQp>());
        match ours {
            Some(ours) => ours.modify_by(Some(attr.ah_attr), &rtr)?,
            None => qp.modify(&rtr)?,
        }
        let how = CmError::system("asking how to connect");
        let attr = self.id.attributes(QpState::Rts).map_err(how)?;
        qp.modify(&QpAttr {
            sq_psn: Some(Psn::truncated(attr.sq_psn)),
            // A timeout of 0 means to wait forever.
            timeout: Some(match attr.timeout & 31 {
                0 => TIMEOUT_MAX,
                timeout => timeout.min(TIMEOUT_MAX),
            }),
            retry_count: Some(attr.retry_cnt & 7),
            rnr_retry: Some(attr.rnr_retry & 7),
            max_rd_atomic: Some(attr.max_rd_atomic),
            ..QpAttr::to_state(QpState::Rts)
        })?;
        Ok(())
    }
}

impl AsFd for Connection {
    /// The descriptor, readable when a step has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.channel.fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // This call disconnects only an established connection. Destroying the identifier afterwards also
        // refuses a request that was not answered.
        self.disconnect();
    }
}

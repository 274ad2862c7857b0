//! librdmacm's event channels and identifiers, destroyed in the right order, and the calls on them.
//!
//! An event is acknowledged before anything else is done, so calls that wait for acknowledgements do not wait
//! long.

use std::ffi::{c_int, c_void};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use headworks_shm::fork::ForkGeneration;
use headworks_verbs::{Gid, QpState, Qpn};

use super::abi::{self, event};
use super::hello::GREETING_MAX;
use super::library::CmApi;
use crate::abi::QpAttr;
use crate::attributes;
use crate::raw::{check, lost, make_nonblocking, name_of};

/// Retry count of the connected queue pair.
const RETRY_COUNT: u8 = 7;
/// RNR retry count: without limit. RNR does not occur as long as both sides keep to their credit.
const RNR_RETRY_COUNT: u8 = 7;

/// Event channel: one for each side of a connection and for each listener.
pub(crate) struct Channel {
    api: CmApi,
    ptr: NonNull<abi::EventChannel>,
    made_by: ForkGeneration,
}

// SAFETY: librdmacm may be called from any thread, and only librdmacm changes the channel.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// An event of librdmacm.
pub(crate) struct CmEventInfo {
    pub(crate) event: i32,
    pub(crate) status: i32,
    /// Private data of the peer.
    pub(crate) said: Vec<u8>,
    /// Identifier of the new connection, for a connection request.
    pub(crate) caller: Option<Id>,
}

impl Channel {
    pub(crate) fn create(api: &CmApi) -> io::Result<Arc<Self>> {
        let made_by = ForkGeneration::current();
        // SAFETY: the function takes no arguments.
        let made = unsafe { (api.create_event_channel)() };
        let ptr = NonNull::new(made).ok_or_else(io::Error::last_os_error)?;
        let channel = Self {
            api: *api,
            ptr,
            made_by,
        };
        make_nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps its descriptor open.
        unsafe { BorrowedFd::borrow_raw((*self.ptr.as_ptr()).fd) }
    }

    /// Returns whether this process was forked from the one that created the channel.
    pub(crate) fn is_foreign(&self) -> bool {
        self.made_by.is_foreign()
    }

    /// The next event. Never blocks.
    pub(crate) fn next(self: &Arc<Self>) -> io::Result<Option<CmEventInfo>> {
        let mut ptr = null_mut();
        // SAFETY: the channel is alive, its descriptor does not block, and `ptr` has the right type.
        if let Err(error) = check(unsafe { (self.api.get_cm_event)(self.ptr.as_ptr(), &mut ptr) }) {
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the event was just received and is valid until it is acknowledged below.
        let got = unsafe { &*ptr };
        let (code, status) = (got.event, got.status);
        let caller = (code == event::CONNECT_REQUEST).then_some(got.id);
        let said = match code {
            event::CONNECT_REQUEST
            | event::CONNECT_RESPONSE
            | event::REJECTED
            | event::ESTABLISHED => {
                // SAFETY: an event of this type has the parameters of a connection.
                let param = unsafe { got.param.conn };
                private_data(&param)
            }
            _ => Vec::new(),
        };
        // SAFETY: the event was received above, is acknowledged once, and is not used afterwards.
        lost("event", check(unsafe { (self.api.ack_cm_event)(ptr) }));
        let caller = caller.and_then(NonNull::new).map(|ptr| Id {
            ptr,
            channel: self.clone(),
        });
        Ok(Some(CmEventInfo {
            event: code,
            status,
            said,
            caller,
        }))
    }
}

/// Copies the private data of a connection's event.
fn private_data(param: &abi::ConnParam) -> Vec<u8> {
    if param.private_data.is_null() {
        return Vec::new();
    }
    let len = usize::from(param.private_data_len);
    // SAFETY: `len` bytes belong to the event, which is not acknowledged yet.
    unsafe { std::slice::from_raw_parts(param.private_data.cast::<u8>(), len) }.to_vec()
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.is_foreign() {
            // SAFETY: every identifier holds the channel, so none is left; it is not used afterwards.
            unsafe { (self.api.destroy_event_channel)(self.ptr.as_ptr()) };
        }
    }
}

/// An identifier: one side of a connection, or a listener.
pub(crate) struct Id {
    ptr: NonNull<abi::Id>,
    pub(crate) channel: Arc<Channel>,
}

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for Id {}
// SAFETY: librdmacm may be called from any thread, and shared references give access to the channel's
// descriptor only.
unsafe impl Sync for Id {}

/// The local end of a connection's route, as the library reports it.
pub(crate) struct ResolvedRoute {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) gid: Gid,
    /// GID of the peer.
    pub(crate) dgid: Gid,
    pub(crate) path: Option<abi::PathRec>,
}

/// An IP address in C's representation.
#[repr(C)]
union Address {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Address {
    fn of(address: &SocketAddr) -> Self {
        match address {
            SocketAddr::V4(address) => {
                // SAFETY: the structure has only numbers, for which zeros are valid.
                let mut v4: libc::sockaddr_in = unsafe { std::mem::zeroed() };
                v4.sin_family = libc::AF_INET as libc::sa_family_t;
                v4.sin_port = address.port().to_be();
                v4.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
                Self { v4 }
            }
            SocketAddr::V6(address) => {
                // SAFETY: the structure has only numbers, for which zeros are valid.
                let mut v6: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
                v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                v6.sin6_port = address.port().to_be();
                v6.sin6_addr.s6_addr = address.ip().octets();
                v6.sin6_scope_id = address.scope_id();
                Self { v6 }
            }
        }
    }

    fn as_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut *self).cast()
    }
}

impl Id {
    pub(crate) fn create(channel: &Arc<Channel>) -> io::Result<Self> {
        let mut ptr = null_mut();
        let create = channel.api.create_id;
        // SAFETY: the channel is alive, and `ptr` has the right type.
        check(unsafe { create(channel.ptr.as_ptr(), &mut ptr, null_mut(), abi::PS_TCP) })?;
        let ptr = NonNull::new(ptr).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            ptr,
            channel: channel.clone(),
        })
    }

    fn as_ptr(&self) -> *mut abi::Id {
        self.ptr.as_ptr()
    }

    pub(crate) fn bind(&self, at: &SocketAddr) -> io::Result<()> {
        let mut at = Address::of(at);
        // SAFETY: the identifier is alive, and the address is of the family that it names.
        check(unsafe { (self.channel.api.bind_addr)(self.as_ptr(), at.as_ptr()) })
    }

    pub(crate) fn listen(&self, backlog: c_int) -> io::Result<()> {
        // SAFETY: the identifier is alive.
        check(unsafe { (self.channel.api.listen)(self.as_ptr(), backlog) })
    }

    /// Port number of a listener.
    pub(crate) fn port(&self) -> u16 {
        // SAFETY: the identifier is alive.
        u16::from_be(unsafe { (self.channel.api.get_src_port)(self.as_ptr()) })
    }

    pub(crate) fn resolve_addr(
        &self,
        from: Option<&SocketAddr>,
        to: &SocketAddr,
        timeout_ms: c_int,
    ) -> io::Result<()> {
        let (mut from, mut to) = (from.map(Address::of), Address::of(to));
        let from = from.as_mut().map_or(null_mut(), Address::as_ptr);
        let resolve = self.channel.api.resolve_addr;
        // SAFETY: the identifier is alive; the addresses are of the families that they name, or null.
        check(unsafe { resolve(self.as_ptr(), from, to.as_ptr(), timeout_ms) })
    }

    pub(crate) fn resolve_route(&self, timeout_ms: c_int) -> io::Result<()> {
        // SAFETY: the identifier is alive.
        check(unsafe { (self.channel.api.resolve_route)(self.as_ptr(), timeout_ms) })
    }

    /// Attributes for moving a queue pair to `state`.
    pub(crate) fn attributes(&self, state: QpState) -> io::Result<QpAttr> {
        let mut attr = QpAttr {
            qp_state: state as c_int,
            ..QpAttr::default()
        };
        let mut mask = 0;
        let init = self.channel.api.init_qp_attr;
        // SAFETY: the identifier is alive, and `attr` and `mask` have the right types.
        check(unsafe { init(self.as_ptr(), &mut attr, &mut mask) })?;
        Ok(attr)
    }

    fn param(qpn: Qpn, said: &[u8]) -> abi::ConnParam {
        debug_assert!(said.len() <= GREETING_MAX);
        abi::ConnParam {
            private_data: said.as_ptr().cast(),
            private_data_len: said.len().min(GREETING_MAX) as u8,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: 1,
            retry_count: RETRY_COUNT,
            rnr_retry_count: RNR_RETRY_COUNT,
            srq: 0,
            qp_num: qpn.raw(),
        }
    }

    pub(crate) fn connect(&self, qpn: Qpn, said: &[u8]) -> io::Result<()> {
        let mut param = Self::param(qpn, said);
        // SAFETY: the identifier is alive, and the private data outlives the call.
        check(unsafe { (self.channel.api.connect)(self.as_ptr(), &mut param) })
    }

    pub(crate) fn accept(&self, qpn: Qpn, said: &[u8]) -> io::Result<()> {
        let mut param = Self::param(qpn, said);
        // SAFETY: as above.
        check(unsafe { (self.channel.api.accept)(self.as_ptr(), &mut param) })
    }

    pub(crate) fn establish(&self) -> io::Result<()> {
        // SAFETY: the identifier is alive.
        check(unsafe { (self.channel.api.establish)(self.as_ptr()) })
    }

    pub(crate) fn reject(&self, said: &[u8]) -> io::Result<()> {
        let said = &said[..said.len().min(GREETING_MAX)];
        let reject = self.channel.api.reject;
        let bytes = said.as_ptr().cast::<c_void>();
        // SAFETY: the identifier is alive, and `bytes` has this length.
        check(unsafe { reject(self.as_ptr(), bytes, said.len() as u8) })
    }

    pub(crate) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the identifier is alive.
        check(unsafe { (self.channel.api.disconnect)(self.as_ptr()) })
    }

    /// Moves the identifier to another channel, which gets its events from now on.
    pub(crate) fn migrate(&mut self, to: &Arc<Channel>) -> io::Result<()> {
        // SAFETY: the identifier is alive, all its events are acknowledged, and the channel is alive.
        check(unsafe { (self.channel.api.migrate_id)(self.as_ptr(), to.ptr.as_ptr()) })?;
        self.channel = to.clone();
        Ok(())
    }

    /// The route, or the port that has the address that a listener is bound to; `None` while it is not known.
    pub(crate) fn way(&self) -> Option<ResolvedRoute> {
        // SAFETY: the identifier is alive, and the library changes it only during calls.
        let id = unsafe { &*self.as_ptr() };
        if id.verbs.is_null() {
            return None;
        }
        // SAFETY: the identifier keeps the context open.
        let device = unsafe { (*id.verbs).device };
        let has_path = id.num_paths > 0 && !id.path_rec.is_null();
        // SAFETY: `num_paths` says that there is at least one record.
        let path = has_path.then(|| unsafe { *id.path_rec });
        Some(ResolvedRoute {
            device: name_of(device),
            port: id.port_num,
            gid: attributes::gid(id.sgid),
            dgid: attributes::gid(id.dgid),
            path,
        })
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if self.channel.is_foreign() {
            return;
        }
        let destroy = self.channel.api.destroy_id;
        // SAFETY: the identifier is alive and is not used afterwards.
        lost("identifier", check(unsafe { destroy(self.as_ptr()) }));
    }
}

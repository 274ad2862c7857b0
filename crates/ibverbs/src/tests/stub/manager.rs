//! A stub of librdmacm: it delivers the events that a test queues, and records the calls.
//!
//! Its identifiers resolve to the first device of this thread's stub of libibverbs.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use headworks_verbs::QpState;
use rustix::event::{EventfdFlags, eventfd};

use super::{api as verbs, set_errno};
use crate::abi::{AhAttr, GlobalRoute, QpAttr};
use crate::cm::abi::{self, event};
use crate::cm::library::CmApi;

/// Settings and records of the library.
#[derive(Default)]
pub(in crate::tests) struct State {
    /// Calls with their relevant arguments.
    pub(in crate::tests) log: Vec<String>,
    /// Events to deliver: event, status, private data.
    pub(in crate::tests) events: VecDeque<(i32, i32, Vec<u8>)>,
    /// Calls that fail, and their error numbers.
    pub(in crate::tests) fails: HashMap<&'static str, c_int>,
    /// Address that identifiers get.
    pub(in crate::tests) sgid: [u64; 2],
    /// Index that `sgid` is reported to have in the GID table.
    pub(in crate::tests) sgid_index: u8,
    pub(in crate::tests) has_path: bool,
    /// Path within an InfiniBand subnet: the peer's GID and LID, and the partition key index.
    pub(in crate::tests) infiniband: Option<([u64; 2], u16, u16)>,
    /// Address vector to report instead of the default.
    pub(in crate::tests) way: Option<AhAttr>,
    pub(in crate::tests) unacknowledged: usize,
}

pub(in crate::tests) type Shared = Arc<Mutex<State>>;

thread_local! {
    static CURRENT: RefCell<Shared> = RefCell::default();
}

/// Starts a library for this thread, without events.
pub(in crate::tests) fn start() -> Shared {
    let shared = Shared::default();
    CURRENT.set(shared.clone());
    shared
}

fn current() -> Shared {
    CURRENT.with_borrow(Clone::clone)
}

/// Records a call. Returns its result.
fn called(name: &'static str, detail: String) -> c_int {
    let shared = current();
    let mut state = shared.lock().unwrap();
    state.log.push(match detail.is_empty() {
        true => name.to_owned(),
        false => format!("{name} {detail}"),
    });
    match state.fails.get(name) {
        None => 0,
        Some(&errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// An event channel of the library, with the owner of its descriptor.
#[repr(C)]
struct StubChannel {
    channel: abi::EventChannel,
    fd: OwnedFd,
}

extern "C" fn create_event_channel() -> *mut abi::EventChannel {
    if called("+channel", String::new()) != 0 {
        return null_mut();
    }
    let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let channel = abi::EventChannel { fd: fd.as_raw_fd() };
    Box::into_raw(Box::new(StubChannel { channel, fd })).cast()
}

unsafe extern "C" fn destroy_event_channel(channel: *mut abi::EventChannel) {
    called("-channel", String::new());
    // SAFETY: `create_event_channel` made the channel.
    let channel = unsafe { Box::from_raw(channel.cast::<StubChannel>()) };
    drop(channel.fd);
}

fn new_id() -> *mut abi::Id {
    // SAFETY: the structure has only numbers and pointers, for which zeros are valid.
    Box::into_raw(Box::new(unsafe { zeroed() }))
}

unsafe extern "C" fn create_id(
    _: *mut abi::EventChannel,
    id: *mut *mut abi::Id,
    _: *mut c_void,
    space: c_int,
) -> c_int {
    // SAFETY: the caller's pointer is valid for the write.
    unsafe { *id = new_id() };
    called("+id", format!("{space:#x}"))
}

unsafe extern "C" fn destroy_id(id: *mut abi::Id) -> c_int {
    // SAFETY: `new_id` made the identifier.
    let id = unsafe { Box::from_raw(id) };
    if !id.path_rec.is_null() {
        // SAFETY: `lead` made the record.
        drop(unsafe { Box::from_raw(id.path_rec) });
    }
    if !id.verbs.is_null() {
        // SAFETY: `lead` opened the context.
        unsafe { (verbs().close_device)(id.verbs) };
    }
    called("-id", String::new())
}

/// The IP address and port as text; "anywhere" for null.
unsafe fn of(address: *mut libc::sockaddr) -> String {
    if address.is_null() {
        return "anywhere".to_owned();
    }
    // SAFETY: the address is of the family that it names.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let at = address.cast::<libc::sockaddr_in>();
                let ip = std::net::Ipv4Addr::from((*at).sin_addr.s_addr.to_ne_bytes());
                format!("{ip}:{}", u16::from_be((*at).sin_port))
            }
            libc::AF_INET6 => {
                let at = address.cast::<libc::sockaddr_in6>();
                let ip = std::net::Ipv6Addr::from((*at).sin6_addr.s6_addr);
                format!("[{ip}]:{}", u16::from_be((*at).sin6_port))
            }
            family => format!("family {family}"),
        }
    }
}

unsafe extern "C" fn bind_addr(id: *mut abi::Id, at: *mut libc::sockaddr) -> c_int {
    // SAFETY: the caller's address is valid.
    let at = unsafe { of(at) };
    let is_a_devices = !["127.0.0.1:", "[::1]:", "0.0.0.0:", "[::]:"]
        .iter()
        .any(|other| at.starts_with(other));
    let bound = called("bind", at);
    if is_a_devices && bound == 0 {
        // SAFETY: `new_id` made the identifier.
        unsafe { lead(id) };
    }
    bound
}

unsafe extern "C" fn listen(_: *mut abi::Id, _: c_int) -> c_int {
    called("listen", String::new())
}

unsafe extern "C" fn resolve_addr(
    id: *mut abi::Id,
    from: *mut libc::sockaddr,
    to: *mut libc::sockaddr,
    _: c_int,
) -> c_int {
    // SAFETY: `new_id` made the identifier.
    unsafe { lead(id) };
    // SAFETY: the caller's addresses are valid or null.
    let (from, to) = unsafe { (of(from), of(to)) };
    called("resolve_addr", format!("{from} {to}"))
}

/// Resolves an identifier to the device.
unsafe fn lead(id: *mut abi::Id) {
    let mut count = 0;
    let library = verbs();
    // SAFETY: the list is the stub's, and `new_id` made the identifier.
    unsafe {
        let list = (library.get_device_list)(&mut count);
        (*id).verbs = (library.open_device)(*list);
        (library.free_device_list)(list);
        (*id).port_num = 1;
        let shared = current();
        let state = shared.lock().unwrap();
        (*id).sgid = state.sgid;
        (*id).dgid = state.infiniband.map(|way| way.0).unwrap_or_default();
        if state.has_path {
            (*id).num_paths = 1;
            (*id).path_rec = Box::into_raw(Box::new(abi::PathRec {
                // The two upper bits say that the MTU is exact.
                mtu: 0x80 | 3,
                sl: 5,
                traffic_class: 104,
                ..abi::PathRec::default()
            }));
        }
    }
}

unsafe extern "C" fn resolve_route(_: *mut abi::Id, _: c_int) -> c_int {
    called("resolve_route", String::new())
}

unsafe extern "C" fn init_qp_attr(_: *mut abi::Id, attr: *mut QpAttr, _: *mut c_int) -> c_int {
    // SAFETY: the caller's pointer is valid for the write.
    let attr = unsafe { &mut *attr };
    let sgid_index = current().lock().unwrap().sgid_index;
    let grh = GlobalRoute {
        dgid: [7, 8],
        sgid_index,
        ..GlobalRoute::default()
    };
    attr.ah_attr = AhAttr {
        grh,
        is_global: 1,
        port_num: 1,
        ..AhAttr::default()
    };
    if let Some((_, dlid, pkey_index)) = current().lock().unwrap().infiniband {
        attr.ah_attr = AhAttr {
            dlid,
            sl: 5,
            port_num: 1,
            ..AhAttr::default()
        };
        attr.pkey_index = pkey_index;
    }
    if let Some(way) = current().lock().unwrap().way {
        attr.ah_attr = way;
    }
    (attr.dest_qp_num, attr.rq_psn, attr.sq_psn) = (0x77, 5, 9);
    (attr.path_mtu, attr.min_rnr_timer) = (3, 1);
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (1, 1);
    (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (19, 6, 7);
    let state = QpState::from_code(attr.qp_state as u8).unwrap();
    called("attributes", format!("{state:?}"))
}

unsafe fn with(param: *mut abi::ConnParam) -> String {
    // SAFETY: the caller's parameters are valid.
    unsafe {
        let param = &*param;
        let (said, len) = (param.private_data.cast::<u8>(), param.private_data_len);
        let said = std::slice::from_raw_parts(said, len.into());
        format!("{:#x} {}", param.qp_num, String::from_utf8_lossy(said))
    }
}

unsafe extern "C" fn connect(_: *mut abi::Id, param: *mut abi::ConnParam) -> c_int {
    // SAFETY: the caller's parameters are valid.
    called("connect", unsafe { with(param) })
}

unsafe extern "C" fn accept(_: *mut abi::Id, param: *mut abi::ConnParam) -> c_int {
    // SAFETY: the caller's parameters are valid.
    called("accept", unsafe { with(param) })
}

unsafe extern "C" fn establish(_: *mut abi::Id) -> c_int {
    called("establish", String::new())
}

unsafe extern "C" fn reject(_: *mut abi::Id, said: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller's bytes are valid.
    let said = unsafe { std::slice::from_raw_parts(said.cast::<u8>(), len.into()) };
    called("reject", String::from_utf8_lossy(said).into_owned())
}

unsafe extern "C" fn disconnect(_: *mut abi::Id) -> c_int {
    called("disconnect", String::new())
}

unsafe extern "C" fn migrate_id(_: *mut abi::Id, _: *mut abi::EventChannel) -> c_int {
    // With an unacknowledged event, the library would block without end.
    assert_eq!(current().lock().unwrap().unacknowledged, 0);
    called("migrate", String::new())
}

unsafe extern "C" fn get_src_port(_: *mut abi::Id) -> u16 {
    7471u16.to_be()
}

unsafe extern "C" fn get_cm_event(_: *mut abi::EventChannel, out: *mut *mut abi::Event) -> c_int {
    let next = current().lock().unwrap().events.pop_front();
    let Some((code, status, said)) = next else {
        set_errno(libc::EAGAIN);
        return -1;
    };
    let id = match code {
        event::CONNECT_REQUEST => {
            let id = new_id();
            // SAFETY: the identifier was just made.
            unsafe { lead(id) };
            id
        }
        _ => null_mut(),
    };
    let said = said.into_boxed_slice();
    // SAFETY: the structure has only numbers and pointers, for which zeros are valid.
    let mut conn: abi::ConnParam = unsafe { zeroed() };
    conn.private_data_len = said.len() as u8;
    conn.private_data = Box::into_raw(said).cast_const().cast();
    let made = Box::new(abi::Event {
        id,
        listen_id: null_mut(),
        event: code,
        status,
        param: abi::Param { conn },
    });
    current().lock().unwrap().unacknowledged += 1;
    // SAFETY: the caller's pointer is valid for the write.
    unsafe { *out = Box::into_raw(made) };
    0
}

unsafe extern "C" fn ack_cm_event(event: *mut abi::Event) -> c_int {
    // SAFETY: `get_cm_event` made the event and its private data.
    unsafe {
        let conn = Box::from_raw(event).param.conn;
        let said = conn.private_data.cast_mut().cast::<u8>();
        let len = conn.private_data_len.into();
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(said, len)));
    }
    current().lock().unwrap().unacknowledged -= 1;
    0
}

/// The functions of the stub.
pub(in crate::tests) fn api() -> CmApi {
    CmApi {
        create_event_channel,
        destroy_event_channel,
        create_id,
        destroy_id,
        bind_addr,
        listen,
        resolve_addr,
        resolve_route,
        init_qp_attr,
        connect,
        accept,
        establish,
        reject,
        disconnect,
        migrate_id,
        get_src_port,
        get_cm_event,
        ack_cm_event,
    }
}

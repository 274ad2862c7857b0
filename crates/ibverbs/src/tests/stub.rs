//! A stub of libibverbs and a provider library, with the functions of their C interface. It only records
//! what is called.
//!
//! Each thread sees devices of its own; objects created from them may be used from any thread.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, zeroed};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_verbs::{QpState, QueuePair, Sge};
use rustix::event::{EventfdFlags, eventfd};

use crate::abi;
use crate::library::Api;

mod completions;
pub(super) mod manager;
mod posts;

use completions::{
    ack_cq_events, create_comp_channel, create_cq, create_cq_ex, destroy_comp_channel, destroy_cq,
    get_cq_event, poll_cq, req_notify_cq,
};
use posts::{post_recv, post_send, post_srq_recv};

const SQE: c_int = QpState::Sqe as c_int;

/// A request as the device saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) wr_id: u64,
    pub(super) opcode: u32,
    pub(super) flags: u32,
    /// The immediate as it lies in memory.
    pub(super) imm: u32,
    pub(super) remote: (u64, u32),
    pub(super) operands: (u64, u64),
    /// Address handle, queue pair number, Q_Key.
    pub(super) to: (usize, u32, u32),
    pub(super) sges: Vec<Sge>,
    pub(super) inline: Vec<u8>,
}

/// Settings and records of a device.
#[derive(Default)]
pub(super) struct State {
    /// Objects created and destroyed: `+cq`, `-cq`.
    pub(super) log: Vec<String>,
    /// Chains of sends.
    pub(super) chains: Vec<Vec<Seen>>,
    /// Chains of receives: `wr_id` and scatter list of each.
    pub(super) receives: Vec<Vec<(u64, Vec<Sge>)>>,
    /// Number of requests without entries whose list was not null. The library of irdma reads the first entry
    /// of such a list.
    pub(super) dangling: usize,
    /// Whether posted chains are not recorded.
    pub(super) forgets: bool,
    pub(super) posts: usize,
    /// Index of the request in a chain that is refused, and the error number.
    pub(super) refuses: Option<(usize, c_int)>,
    /// Whether a refusal does not say which request it is.
    pub(super) is_vague: bool,
    /// Calls that fail, and their error numbers.
    pub(super) fails: HashMap<&'static str, c_int>,
    pub(super) completions: HashMap<usize, VecDeque<abi::Wc>>,
    pub(super) polls_broken: bool,
    pub(super) cqs: HashMap<u32, usize>,
    pub(super) qps: HashMap<u32, usize>,
    pub(super) srqs: Vec<usize>,
    pub(super) cq_events: VecDeque<usize>,
    pub(super) acked: usize,
    pub(super) async_events: VecDeque<(usize, c_int)>,
    pub(super) modified: Vec<(abi::QpAttr, c_int)>,
    /// How often a queue pair was asked for its state.
    pub(super) queries: usize,
    /// How often the device was asked for its events.
    pub(super) looks: usize,
    /// Sizes that a queue pair reports when asked; 0 for not reported.
    pub(super) sizes: abi::QpCap,
    /// Size that an SRQ reports when asked; 0 for not reported.
    pub(super) srq_size: u32,
    pub(super) armed: Vec<c_int>,
    pub(super) registered: Vec<c_int>,
    pub(super) limits: Vec<u32>,
    pub(super) ways: Vec<abi::AhAttr>,
    /// Frequency of the clock in kHz, and its value; 0 kHz for no clock.
    pub(super) clock: (u64, u64),
    pub(super) gids: Vec<abi::GidEntry>,
    pub(super) link_layer: u8,
    pub(super) transport_type: c_int,
    pub(super) atomic_cap: c_int,
    pub(super) port_state: c_int,
    pub(super) max_inline: u32,
    /// Bytes of the largest region; 0 for not reported.
    pub(super) max_region: u64,
    /// Largest number of protection domains; 0 for not reported.
    pub(super) max_pd: c_int,
    pub(super) lid: u16,
    pub(super) port_flags: u8,
    pub(super) active_mtu: c_int,
    /// The table of partition keys; 0 for an unused entry.
    pub(super) pkeys: Vec<u16>,
    /// Number of interrupts of completion queues, and the interrupts of the queues that were made.
    pub(super) vectors: c_int,
    pub(super) vectors_used: Vec<c_int>,
    /// Counts and microseconds of moderated completion queues.
    pub(super) moderated: Vec<(u16, u16)>,
    /// Type of queue pairs that the device refuses, and the error number.
    pub(super) refuses_qp_type: Option<(c_int, c_int)>,
    /// Whether memory can only be registered with relaxed ordering.
    pub(super) only_relaxed: bool,
    /// Answer on the order of data.
    pub(super) data_in_order: c_int,
    /// States of the queue pairs that were asked for the order of data.
    pub(super) asked_in_order: Vec<c_int>,
    next_number: u32,
    current: HashMap<usize, abi::Wc>,
    fd: Option<Arc<OwnedFd>>,
}

pub(super) type Shared = Arc<Mutex<State>>;

thread_local! {
    static DEVICES: RefCell<Vec<(String, Shared)>> = const { RefCell::new(Vec::new()) };
}

/// Adds a device called `name` to this thread's devices.
pub(super) fn plug_in(name: &str) -> Shared {
    let ipv4 = std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped();
    let words = |octets: [u8; 16]| {
        let half = |at: usize| u64::from_ne_bytes(octets[at..at + 8].try_into().unwrap());
        [half(0), half(8)]
    };
    let entry = |octets, gid_index, gid_type| abi::GidEntry {
        gid: words(octets),
        gid_index,
        port_num: 1,
        gid_type,
        ndev_ifindex: 0,
    };
    let mut link_local = [0; 16];
    (link_local[0], link_local[1], link_local[15]) = (0xfe, 0x80, 1);
    let state = State {
        gids: vec![
            entry(link_local, 0, 2),
            entry(ipv4.octets(), 1, 1),
            entry(ipv4.octets(), 2, 2),
        ],
        link_layer: 2,
        max_inline: 200,
        pkeys: vec![0xffff, 0],
        vectors: 1,
        active_mtu: 4,
        atomic_cap: 1,
        port_state: abi::PORT_ACTIVE,
        next_number: 0x100,
        ..State::default()
    };
    let shared = Arc::new(Mutex::new(state));
    DEVICES.with_borrow_mut(|devices| {
        devices.retain(|(known, _)| known != name);
        devices.push((name.to_owned(), shared.clone()));
    });
    shared
}

#[repr(C)]
struct StubContext {
    verbs: abi::VerbsContext,
    shared: Shared,
    device: Box<abi::Device>,
    fd: Arc<OwnedFd>,
}

fn stub(context: *mut abi::Context) -> *mut StubContext {
    context
        .wrapping_byte_sub(offset_of!(abi::VerbsContext, context))
        .cast()
}

fn state<'a>(context: *mut abi::Context) -> MutexGuard<'a, State> {
    // SAFETY: `open_device` made the context, and it is not closed yet; the tests check that.
    let shared = unsafe { &(*stub(context)).shared };
    // A test that failed with the lock held still destroys its objects.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a call is set to fail; if so, sets `errno`.
fn failing(context: *mut abi::Context, call: &'static str) -> bool {
    let fails = state(context).fails.get(call).copied();
    if let Some(errno) = fails {
        set_errno(errno);
    }
    fails.is_some()
}

fn set_errno(errno: c_int) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Creates an object of zeros.
fn make<T>(context: *mut abi::Context, what: &'static str) -> *mut T {
    if failing(context, what) {
        return null_mut();
    }
    state(context).log.push(format!("+{what}"));
    // SAFETY: all these types have only numbers and pointers, for which zeros are valid.
    Box::into_raw(Box::new(unsafe { zeroed() }))
}

/// Destroys an object.
fn unmake<T>(context: *mut abi::Context, what: &'static str, object: *mut T) -> c_int {
    let mut state = state(context);
    state.log.push(format!("-{what}"));
    // SAFETY: `make` created the object.
    drop(unsafe { Box::from_raw(object) });
    state.fails.get(what).copied().unwrap_or(0)
}

extern "C" fn fork_init() -> c_int {
    0
}

extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut abi::Device {
    let devices: Vec<_> = DEVICES.with_borrow(|devices| {
        let names = devices.iter().map(|(name, _)| device_called(name));
        names.map(Box::into_raw).collect()
    });
    // SAFETY: the caller's pointer is valid for the write.
    unsafe { *count = devices.len() as c_int };
    let mut ended: Vec<*mut abi::Device> = devices;
    ended.push(null_mut());
    Box::into_raw(ended.into_boxed_slice()).cast()
}

fn device_called(name: &str) -> Box<abi::Device> {
    // SAFETY: the structure has only numbers and pointers, for which zeros are valid.
    let mut device: Box<abi::Device> = Box::new(unsafe { zeroed() });
    for (place, byte) in device.name.iter_mut().zip(name.bytes()) {
        *place = byte as c_char;
    }
    device
}

extern "C" fn free_device_list(list: *mut *mut abi::Device) {
    // SAFETY: the list is from `get_device_list` and ends with a null pointer.
    unsafe {
        let mut count = 0;
        while !(*list.add(count)).is_null() {
            drop(Box::from_raw(*list.add(count)));
            count += 1;
        }
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
            list,
            count + 1,
        )));
    }
}

extern "C" fn open_device(device: *mut abi::Device) -> *mut abi::Context {
    // SAFETY: the device is in the list.
    let name = unsafe { std::ffi::CStr::from_ptr((*device).name.as_ptr()) };
    let name = name.to_str().unwrap().to_owned();
    let found = DEVICES.with_borrow(|devices| {
        let found = devices.iter().find(|(known, _)| *known == name);
        found.map(|(_, shared)| shared.clone())
    });
    let shared = found.unwrap();
    let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let stamps = shared.lock().unwrap().clock.0 != 0;
    shared.lock().unwrap().fd = Some(fd.clone());
    shared.lock().unwrap().log.push("+device".to_owned());
    // SAFETY: the structure has only numbers, pointers and optional functions, for which zeros are valid.
    let mut verbs: abi::VerbsContext = unsafe { zeroed() };
    verbs.sz = size_of::<abi::VerbsContext>();
    verbs.context.abi_compat = usize::MAX as *mut c_void;
    verbs.context.async_fd = fd.as_raw_fd();
    verbs.context.num_comp_vectors = shared.lock().unwrap().vectors;
    verbs.modify_cq = Some(completions::modify_cq);
    let ops = &mut verbs.context.ops;
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
    let mut device = device_called(&name);
    device.transport_type = shared.lock().unwrap().transport_type;
    if stamps {
        verbs.query_device_ex = Some(query_device_ex);
        verbs.query_rt_values = Some(query_rt_values);
        verbs.create_cq_ex = Some(create_cq_ex);
    }
    let opened = Box::into_raw(Box::new(StubContext {
        verbs,
        shared,
        device,
        fd,
    }));
    // SAFETY: the context was just made.
    unsafe {
        (*opened).verbs.context.device = &raw mut *(*opened).device;
        &raw mut (*opened).verbs.context
    }
}

extern "C" fn close_device(context: *mut abi::Context) -> c_int {
    state(context).log.push("-device".to_owned());
    // SAFETY: `open_device` made the context.
    let closed = unsafe { Box::from_raw(stub(context)) };
    drop(closed.fd);
    0
}

extern "C" fn query_device(context: *mut abi::Context, attr: *mut abi::DeviceAttr) -> c_int {
    // SAFETY: the caller's pointer is valid for the write.
    let attr = unsafe { &mut *attr };
    (attr.max_qp, attr.max_qp_wr, attr.max_sge) = (4, 4096, 4);
    (attr.max_cq, attr.max_cqe, attr.max_mr, attr.max_ah) = (8, 4096, 6, 3);
    (attr.max_srq, attr.max_srq_wr, attr.max_srq_sge) = (2, 2048, 3);
    (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom) = (16, 12);
    attr.atomic_cap = state(context).atomic_cap;
    attr.max_mr_size = state(context).max_region;
    attr.max_pd = state(context).max_pd;
    (attr.phys_port_cnt, attr.vendor_id) = (1, 0x2c9);
    0
}

extern "C" fn query_port(context: *mut abi::Context, _: u8, attr: *mut abi::PortAttr) -> c_int {
    let state = state(context);
    // SAFETY: the caller's pointer is valid for the write.
    let attr = unsafe { &mut *attr };
    (attr.state, attr.max_mtu, attr.active_mtu) = (state.port_state, 5, state.active_mtu);
    (attr.max_msg_sz, attr.link_layer) = (1 << 30, state.link_layer);
    attr.gid_tbl_len = state.gids.len() as c_int + 2;
    (attr.lid, attr.pkey_tbl_len) = (state.lid, state.pkeys.len() as u16);
    attr.flags = state.port_flags;
    0
}

extern "C" fn query_gid(
    context: *mut abi::Context,
    _: u8,
    index: c_int,
    gid: *mut [u64; 2],
) -> c_int {
    let found = state(context).gids.get(index as usize).map(|e| e.gid);
    // SAFETY: the caller's pointer is valid for the write.
    unsafe { *gid = found.unwrap_or_default() };
    0
}

extern "C" fn query_pkey(context: *mut abi::Context, _: u8, index: c_int, pkey: *mut u16) -> c_int {
    let Some(found) = state(context).pkeys.get(index as usize).copied() else {
        return -1;
    };
    // SAFETY: the caller's pointer is valid for the write.
    unsafe { *pkey = found.to_be() };
    0
}

unsafe extern "C" fn query_gid_ex(
    context: *mut abi::Context,
    _: u32,
    index: u32,
    entry: *mut abi::GidEntry,
    _: u32,
    size: usize,
) -> c_int {
    assert_eq!(size, size_of::<abi::GidEntry>());
    let found = state(context).gids.get(index as usize).copied();
    let Some(found) = found else {
        return libc::ENODATA;
    };
    // SAFETY: the caller's pointer is valid for the write.
    unsafe { *entry = found };
    0
}

unsafe extern "C" fn query_device_ex(
    context: *mut abi::Context,
    input: *const c_void,
    attr: *mut abi::DeviceAttrEx,
    size: usize,
) -> c_int {
    assert!(input.is_null() && size == size_of::<abi::DeviceAttrEx>());
    // SAFETY: the caller's pointer is valid for the write.
    let attr = unsafe { &mut *attr };
    attr.completion_timestamp_mask = u64::MAX;
    attr.hca_core_clock = state(context).clock.0;
    0
}

unsafe extern "C" fn query_rt_values(
    context: *mut abi::Context,
    values: *mut abi::ValuesEx,
) -> c_int {
    // SAFETY: the caller's pointer is valid.
    let values = unsafe { &mut *values };
    assert_eq!(values.comp_mask, abi::RAW_CLOCK);
    values.raw_clock.tv_nsec = state(context).clock.1 as i64;
    0
}

unsafe extern "C" fn get_async_event(
    context: *mut abi::Context,
    event: *mut abi::AsyncEvent,
) -> c_int {
    let mut state = state(context);
    state.looks += 1;
    let Some((element, event_type)) = state.async_events.pop_front() else {
        set_errno(libc::EAGAIN);
        return -1;
    };
    if state.async_events.is_empty() {
        let fd = state.fd.clone().unwrap();
        rustix::io::read(&*fd, &mut [0; 8]).unwrap();
    }
    let element = element as *mut c_void;
    // SAFETY: the caller's pointer is valid for the write.
    unsafe {
        *event = abi::AsyncEvent {
            element,
            event_type,
        }
    };
    0
}

/// Makes the device report an asynchronous event.
pub(super) fn tell(shared: &Shared, element: usize, event_type: c_int) {
    let mut state = shared.lock().unwrap();
    state.async_events.push_back((element, event_type));
    if state.async_events.len() == 1 {
        let fd = state.fd.clone().unwrap();
        rustix::io::write(&*fd, &1u64.to_ne_bytes()).unwrap();
    }
}

extern "C" fn ack_async_event(_: *mut abi::AsyncEvent) {}

extern "C" fn alloc_pd(context: *mut abi::Context) -> *mut abi::Pd {
    let pd: *mut abi::Pd = make(context, "pd");
    if !pd.is_null() {
        // SAFETY: the object was just made.
        unsafe { (*pd).context = context };
    }
    pd
}

unsafe extern "C" fn dealloc_pd(pd: *mut abi::Pd) -> c_int {
    // SAFETY: `alloc_pd` made the object.
    unmake(unsafe { (*pd).context }, "pd", pd)
}

unsafe extern "C" fn reg_mr(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: `alloc_pd` made the object.
    let context = unsafe { (*pd).context };
    let is_relaxed = access as u32 & abi::ACCESS_RELAXED_ORDERING != 0;
    if state(context).only_relaxed && !is_relaxed {
        set_errno(libc::EINVAL);
        return null_mut();
    }
    let mr: *mut abi::Mr = make(context, "mr");
    if !mr.is_null() {
        let mut state = state(context);
        state.registered.push(access);
        state.next_number += 1;
        let lkey = state.next_number;
        // SAFETY: the object was just made.
        unsafe {
            ((*mr).context, (*mr).addr, (*mr).length) = (context, addr, length);
            ((*mr).lkey, (*mr).rkey) = (lkey, lkey + 0x1000);
        }
    }
    mr
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: std::ffi::c_uint,
) -> *mut abi::Mr {
    assert_eq!(addr.addr() as u64, iova);
    // SAFETY: the caller's arguments are those of `reg_mr`.
    unsafe { reg_mr(pd, addr, length, access as c_int) }
}

unsafe extern "C" fn query_qp_data_in_order(qp: *mut abi::Qp, op: c_int, flags: u32) -> c_int {
    assert_eq!((op, flags), (abi::opcode::WRITE as c_int, 0));
    // SAFETY: `create_qp` made the object.
    let (context, now) = unsafe { ((*qp).context, (*qp).state) };
    let mut state = state(context);
    state.asked_in_order.push(now);
    state.data_in_order
}

unsafe extern "C" fn dereg_mr(mr: *mut abi::Mr) -> c_int {
    // SAFETY: `reg_mr` made the object.
    unmake(unsafe { (*mr).context }, "mr", mr)
}

unsafe extern "C" fn create_srq(pd: *mut abi::Pd, init: *mut abi::SrqInitAttr) -> *mut abi::Srq {
    // SAFETY: `alloc_pd` made the object.
    let context = unsafe { (*pd).context };
    let srq: *mut abi::Srq = make(context, "srq");
    if !srq.is_null() {
        state(context).srqs.push(srq as usize);
        // SAFETY: the object was just made; the caller's attributes are valid.
        unsafe { ((*srq).context, (*srq).srq_context) = (context, (*init).srq_context) };
    }
    srq
}

unsafe extern "C" fn modify_srq(srq: *mut abi::Srq, attr: *mut abi::SrqAttr, mask: c_int) -> c_int {
    assert_eq!(mask, abi::SRQ_LIMIT);
    // SAFETY: `create_srq` made the object; the caller's attributes are valid.
    unsafe { state((*srq).context).limits.push((*attr).srq_limit) };
    0
}

unsafe extern "C" fn query_srq(srq: *mut abi::Srq, attr: *mut abi::SrqAttr) -> c_int {
    // SAFETY: `create_srq` made the object; the caller's pointer is valid for the write.
    unsafe { (*attr).max_wr = state((*srq).context).srq_size };
    0
}

unsafe extern "C" fn destroy_srq(srq: *mut abi::Srq) -> c_int {
    // SAFETY: `create_srq` made the object.
    unmake(unsafe { (*srq).context }, "srq", srq)
}

unsafe extern "C" fn create_qp(pd: *mut abi::Pd, init: *mut abi::QpInitAttr) -> *mut abi::Qp {
    // SAFETY: `alloc_pd` made the object; the caller's attributes are valid.
    let (context, init) = unsafe { ((*pd).context, &mut *init) };
    if let Some((qp_type, errno)) = state(context).refuses_qp_type
        && init.qp_type == qp_type
    {
        set_errno(errno);
        return null_mut();
    }
    if init.cap.max_inline_data > state(context).max_inline {
        set_errno(libc::EINVAL);
        return null_mut();
    }
    let qp: *mut abi::Qp = make(context, "qp");
    if !qp.is_null() {
        init.cap.max_send_wr = init.cap.max_send_wr.next_power_of_two();
        init.cap.max_inline_data = init.cap.max_inline_data.next_multiple_of(8);
        let mut state = state(context);
        state.next_number += 1;
        let number = state.next_number;
        state.qps.insert(number, qp as usize);
        // SAFETY: the object was just made.
        unsafe { ((*qp).context, (*qp).qp_num) = (context, number) };
    }
    qp
}

unsafe extern "C" fn modify_qp(qp: *mut abi::Qp, attr: *mut abi::QpAttr, mask: c_int) -> c_int {
    // SAFETY: `create_qp` made the object; the caller's attributes are valid.
    let (context, attr) = unsafe { ((*qp).context, *attr) };
    let mut state = state(context);
    if let Some(&errno) = state.fails.get("modify") {
        return errno;
    }
    // As in the kernel, the transition from SQE must name the current state.
    let says_so = mask & abi::mask::CUR_STATE != 0 && attr.cur_qp_state == SQE;
    // SAFETY: `create_qp` made the object.
    let now = unsafe { &mut (*qp).state };
    let fails = attr.qp_state == QpState::Error as c_int;
    // As in the kernel, there is no transition from RESET to ERR.
    if *now == QpState::Reset as c_int && fails {
        return libc::EINVAL;
    }
    if *now == SQE && attr.qp_state == QpState::Rts as c_int && !says_so {
        return libc::EINVAL;
    }
    *now = attr.qp_state;
    state.modified.push((attr, mask));
    0
}

/// Makes the device move a queue pair by itself.
pub(super) fn move_to(shared: &Shared, qp: &dyn QueuePair, to: QpState) {
    let state = shared.lock().unwrap();
    let at = state.qps[&qp.qpn().raw()] as *mut abi::Qp;
    // SAFETY: `create_qp` made the object, and it is not destroyed, because `qp` holds it.
    unsafe { (*at).state = to as c_int };
}

unsafe extern "C" fn query_qp(
    qp: *mut abi::Qp,
    attr: *mut abi::QpAttr,
    mask: c_int,
    _: *mut abi::QpInitAttr,
) -> c_int {
    // SAFETY: `create_qp` made the object; the caller's pointer is valid for the write.
    unsafe {
        let mut state = state((*qp).context);
        match mask {
            abi::mask::STATE => {
                state.queries += 1;
                (*attr).qp_state = (*qp).state;
            }
            abi::mask::CAP => (*attr).cap = state.sizes,
            mask => panic!("unexpected mask {mask}"),
        }
    }
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut abi::Qp) -> c_int {
    // SAFETY: `create_qp` made the object.
    unmake(unsafe { (*qp).context }, "qp", qp)
}

unsafe extern "C" fn create_ah(pd: *mut abi::Pd, attr: *mut abi::AhAttr) -> *mut abi::Ah {
    // SAFETY: `alloc_pd` made the object; the caller's attributes are valid.
    let (context, attr) = unsafe { ((*pd).context, *attr) };
    let ah: *mut abi::Ah = make(context, "ah");
    if !ah.is_null() {
        state(context).ways.push(attr);
        // SAFETY: the object was just made.
        unsafe { (*ah).context = context };
    }
    ah
}

unsafe extern "C" fn destroy_ah(ah: *mut abi::Ah) -> c_int {
    // SAFETY: `create_ah` made the object.
    unmake(unsafe { (*ah).context }, "ah", ah)
}

/// The functions of the stub.
pub(super) fn api() -> Api {
    Api {
        fork_init,
        get_device_list,
        free_device_list,
        open_device,
        close_device,
        query_device,
        query_port,
        query_gid,
        query_pkey: Some(query_pkey),
        get_async_event,
        ack_async_event,
        alloc_pd,
        dealloc_pd,
        reg_mr,
        dereg_mr,
        create_comp_channel,
        destroy_comp_channel,
        create_cq,
        destroy_cq,
        get_cq_event,
        ack_cq_events,
        create_srq,
        modify_srq,
        query_srq,
        destroy_srq,
        create_qp,
        modify_qp,
        query_qp,
        destroy_qp,
        create_ah,
        destroy_ah,
        query_gid_ex: Some(query_gid_ex),
        reg_mr_iova2: Some(reg_mr_iova2),
        query_qp_data_in_order: Some(query_qp_data_in_order),
        is_fork_initialized: None,
    }
}

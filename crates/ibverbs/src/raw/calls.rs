//! The calls on each kind of object.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

use headworks_verbs::{CqId, Qpn, SrqId};

use super::{Object, check};
use crate::abi;

impl Object<abi::Pd> {
    /// Registers `len` bytes at `start`, which the caller keeps mapped as long as the object.
    pub(crate) fn register(
        &self,
        start: *mut u8,
        len: usize,
        access: u32,
    ) -> io::Result<Object<abi::Mr>> {
        let api = &self.raw.api;
        // SAFETY: a live domain. The memory is only reached by the device, by this process's leave; the
        // library itself refuses what is not mapped.
        let made = unsafe { (api.reg_mr)(self.as_ptr(), start.cast(), len, access as c_int) };
        self.raw.own(made, api.dereg_mr, "memory region")
    }

    pub(crate) fn create_srq(
        &self,
        id: SrqId,
        attr: abi::SrqAttr,
    ) -> io::Result<(Object<abi::Srq>, abi::SrqAttr)> {
        let api = &self.raw.api;
        let mut init = abi::SrqInitAttr {
            srq_context: id.0 as usize as *mut c_void,
            attr,
        };
        // SAFETY: a live domain and attributes of the right type.
        let made = unsafe { (api.create_srq)(self.as_ptr(), &mut init) };
        let srq = self
            .raw
            .own(made, api.destroy_srq, "shared receive queue")?;
        Ok((srq, init.attr))
    }

    /// Makes a queue pair; `caps` become those that it got.
    pub(crate) fn create_qp(
        &self,
        qp_type: c_int,
        (send_cq, recv_cq): (&Object<abi::Cq>, &Object<abi::Cq>),
        srq: Option<&Object<abi::Srq>>,
        caps: &mut abi::QpCap,
        signal_all: bool,
    ) -> io::Result<Object<abi::Qp>> {
        let api = &self.raw.api;
        let mut init = abi::QpInitAttr {
            qp_context: null_mut(),
            send_cq: send_cq.as_ptr(),
            recv_cq: recv_cq.as_ptr(),
            srq: srq.map_or(null_mut(), Object::as_ptr),
            cap: *caps,
            qp_type,
            sq_sig_all: signal_all.into(),
        };
        // SAFETY: a live domain, and live objects of the same device, which the caller looked at.
        let made = unsafe { (api.create_qp)(self.as_ptr(), &mut init) };
        let qp = self.raw.own(made, api.destroy_qp, "queue pair")?;
        *caps = init.cap;
        Ok(qp)
    }

    pub(crate) fn create_ah(&self, mut attr: abi::AhAttr) -> io::Result<Object<abi::Ah>> {
        let api = &self.raw.api;
        // SAFETY: a live domain and attributes of the right type.
        let made = unsafe { (api.create_ah)(self.as_ptr(), &mut attr) };
        self.raw.own(made, api.destroy_ah, "address handle")
    }
}

impl Object<abi::Mr> {
    /// The local and the remote key.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: a live region; both are set once.
        unsafe { ((*self.as_ptr()).lkey, (*self.as_ptr()).rkey) }
    }
}

impl Object<abi::Srq> {
    pub(crate) fn set_limit(&self, srq_limit: u32) -> io::Result<()> {
        let mut attr = abi::SrqAttr {
            srq_limit,
            ..abi::SrqAttr::default()
        };
        // SAFETY: a live SRQ and attributes of the right type.
        check(unsafe { (self.raw.api.modify_srq)(self.as_ptr(), &mut attr, abi::SRQ_LIMIT) })
    }

    /// What the device says it is.
    pub(crate) fn query(&self) -> io::Result<abi::SrqAttr> {
        let mut attr = abi::SrqAttr::default();
        // SAFETY: a live SRQ and a place of the right type.
        check(unsafe { (self.raw.api.query_srq)(self.as_ptr(), &mut attr) })?;
        Ok(attr)
    }
}

impl Object<abi::Qp> {
    pub(crate) fn qpn(&self) -> Qpn {
        // SAFETY: a live queue pair; its number is set once.
        Qpn::new(unsafe { (*self.as_ptr()).qp_num }).unwrap_or_default()
    }

    pub(crate) fn modify(&self, mut attr: abi::QpAttr, mask: c_int) -> io::Result<()> {
        // SAFETY: a live queue pair and attributes of the right type.
        check(unsafe { (self.raw.api.modify_qp)(self.as_ptr(), &mut attr, mask) })
    }
}

impl Object<abi::Qp> {
    /// What the device says of it: a system call, and for some devices a long one.
    fn query(&self, mask: c_int) -> io::Result<abi::QpAttr> {
        let mut attr = abi::QpAttr::default();
        // SAFETY: numbers and pointers, of which zeros are values.
        let mut init: abi::QpInitAttr = unsafe { std::mem::zeroed() };
        let query = self.raw.api.query_qp;
        // SAFETY: a live queue pair and places of the right types.
        check(unsafe { query(self.as_ptr(), &mut attr, mask, &mut init) })?;
        Ok(attr)
    }

    /// The state that the device says it is in.
    pub(crate) fn state(&self) -> io::Result<c_int> {
        Ok(self.query(abi::mask::STATE)?.qp_state)
    }

    /// The sizes that the device says it has; 0 for those of which it says nothing.
    pub(crate) fn caps(&self) -> io::Result<abi::QpCap> {
        Ok(self.query(abi::mask::CAP)?.cap)
    }
}

impl Object<abi::Cq> {
    /// How many completions it holds.
    pub(crate) fn depth(&self) -> u32 {
        // SAFETY: a live CQ, which is never resized here.
        u32::try_from(unsafe { (*self.as_ptr()).cqe }).unwrap_or(0)
    }
}

impl Object<abi::Cq> {
    /// Asks for an event by `arm`, the device's call.
    pub(crate) fn arm(&self, arm: abi::ReqNotifyCq, solicited_only: bool) {
        // SAFETY: a live CQ of the device whose call it is.
        if let Err(error) = check(unsafe { arm(self.as_ptr(), solicited_only.into()) }) {
            tracing::error!(%error, "a completion queue could not be armed: no event will come");
        }
    }
}

impl Object<abi::CompChannel> {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps its descriptor open.
        unsafe { BorrowedFd::borrow_raw((*self.as_ptr()).fd) }
    }

    /// The number of the next CQ that had an event. Never waits.
    pub(crate) fn next_event(&self) -> io::Result<Option<CqId>> {
        let api = &self.raw.api;
        let (mut cq, mut id) = (null_mut(), null_mut());
        // SAFETY: a live channel, whose descriptor does not block, and places of the right types.
        if unsafe { (api.get_cq_event)(self.as_ptr(), &mut cq, &mut id) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the CQ of the event that was just got: whoever destroys it now waits for this.
        unsafe { (api.ack_cq_events)(cq, 1) };
        Ok(Some(CqId(id as usize as u32)))
    }
}

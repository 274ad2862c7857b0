//! Calls on each kind of object.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

use headworks_verbs::{CqId, QpState, Qpn, SrqId};

use super::{Object, check};
use crate::abi;
use crate::quirks::DataInOrder;

impl Object<abi::Pd> {
    /// Registers `len` bytes at `start`. The caller keeps them mapped as long as the returned object. With `relaxed`, the device
    /// may place packets in any order.
    ///
    /// # Errors
    ///
    /// Those of the device, and `Unsupported` if the library is too old for `relaxed`.
    pub(crate) fn register(
        &self,
        (start, len): (*mut u8, usize),
        access: u32,
        relaxed: bool,
    ) -> io::Result<Object<abi::Mr>> {
        let (api, pd) = (&self.raw.api, self.as_ptr());
        let made = match (relaxed, api.reg_mr_iova2) {
            // SAFETY: the domain is alive. Only the device accesses the memory, as far as this process allows;
            // the library refuses memory that is not mapped.
            (false, _) => unsafe { (api.reg_mr)(pd, start.cast(), len, access as c_int) },
            (true, Some(register)) => {
                let access = access | abi::ACCESS_RELAXED_ORDERING;
                // SAFETY: as above. The region's addresses are those of the memory.
                unsafe { register(pd, start.cast(), len, start.addr() as u64, access) }
            }
            (true, None) => return Err(io::ErrorKind::Unsupported.into()),
        };
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
        // SAFETY: the domain is alive, and `init` has the right type.
        let made = unsafe { (api.create_srq)(self.as_ptr(), &mut init) };
        let srq = self
            .raw
            .own(made, api.destroy_srq, "shared receive queue")?;
        Ok((srq, init.attr))
    }

    /// Creates a queue pair and sets `caps` to the capabilities that it got.
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
        // SAFETY: the domain is alive; the caller checked that the other objects are too, and of this device.
        let made = unsafe { (api.create_qp)(self.as_ptr(), &mut init) };
        let qp = self.raw.own(made, api.destroy_qp, "queue pair")?;
        *caps = init.cap;
        Ok(qp)
    }

    pub(crate) fn create_ah(&self, mut attr: abi::AhAttr) -> io::Result<Object<abi::Ah>> {
        let api = &self.raw.api;
        // SAFETY: the domain is alive, and `attr` has the right type.
        let made = unsafe { (api.create_ah)(self.as_ptr(), &mut attr) };
        self.raw.own(made, api.destroy_ah, "address handle")
    }
}

impl Object<abi::Mr> {
    /// The local and the remote key, in this order.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: the region is alive, and its keys are set once.
        unsafe { ((*self.as_ptr()).lkey, (*self.as_ptr()).rkey) }
    }
}

impl Object<abi::Srq> {
    pub(crate) fn set_limit(&self, srq_limit: u32) -> io::Result<()> {
        let mut attr = abi::SrqAttr {
            srq_limit,
            ..abi::SrqAttr::default()
        };
        // SAFETY: the SRQ is alive, and `attr` has the right type.
        check(unsafe { (self.raw.api.modify_srq)(self.as_ptr(), &mut attr, abi::SRQ_LIMIT) })
    }

    /// Asks the device for the attributes of the SRQ.
    pub(crate) fn query(&self) -> io::Result<abi::SrqAttr> {
        let mut attr = abi::SrqAttr::default();
        // SAFETY: the SRQ is alive, and `attr` has the right type.
        check(unsafe { (self.raw.api.query_srq)(self.as_ptr(), &mut attr) })?;
        Ok(attr)
    }
}

impl Object<abi::Qp> {
    pub(crate) fn qpn(&self) -> Qpn {
        // SAFETY: the queue pair is alive, and its number is set once.
        Qpn::new(unsafe { (*self.as_ptr()).qp_num }).unwrap_or_default()
    }

    pub(crate) fn modify(&self, mut attr: abi::QpAttr, mask: c_int) -> io::Result<()> {
        // SAFETY: the queue pair is alive, and `attr` has the right type.
        check(unsafe { (self.raw.api.modify_qp)(self.as_ptr(), &mut attr, mask) })
    }
}

impl Object<abi::Qp> {
    /// Asks the device for the attributes of the queue pair: a system call, which is slow on some devices.
    fn query(&self, mask: c_int) -> io::Result<abi::QpAttr> {
        let mut attr = abi::QpAttr::default();
        // SAFETY: the structure has only numbers and pointers, for which zeros are valid.
        let mut init: abi::QpInitAttr = unsafe { std::mem::zeroed() };
        let query = self.raw.api.query_qp;
        // SAFETY: the queue pair is alive, and `attr` and `init` have the right types.
        check(unsafe { query(self.as_ptr(), &mut attr, mask, &mut init) })?;
        Ok(attr)
    }

    /// Moves the queue pair to the error state.
    pub(crate) fn fail(&self) -> io::Result<()> {
        let to_error = abi::QpAttr {
            qp_state: QpState::Error as c_int,
            ..abi::QpAttr::default()
        };
        self.modify(to_error, abi::mask::STATE)
    }

    /// Asks the device for the state of the queue pair.
    pub(crate) fn state(&self) -> io::Result<c_int> {
        Ok(self.query(abi::mask::STATE)?.qp_state)
    }

    /// Asks the device whether the bytes of a WRITE to the queue pair, which is in RTS, become visible in order. `None` if the
    /// library is too old.
    pub(crate) fn data_in_order(&self) -> Option<DataInOrder> {
        let query = self.raw.api.query_qp_data_in_order?;
        // SAFETY: the queue pair is alive. Without flags, all versions answer 1 for whole messages only.
        let answer = unsafe { query(self.as_ptr(), abi::opcode::WRITE as c_int, 0) };
        Some(match answer {
            1 => DataInOrder::WholeMessage,
            _ => DataInOrder::No,
        })
    }

    /// Asks the device for the sizes of the queue pair; 0 for each that it does not report.
    pub(crate) fn caps(&self) -> io::Result<abi::QpCap> {
        Ok(self.query(abi::mask::CAP)?.cap)
    }
}

impl Object<abi::Cq> {
    /// Number of completions that the queue has room for.
    pub(crate) fn depth(&self) -> u32 {
        // SAFETY: the CQ is alive and never resized.
        u32::try_from(unsafe { (*self.as_ptr()).cqe }).unwrap_or(0)
    }
}

impl Object<abi::Cq> {
    /// Asks for an event with `arm`, the device's own function.
    pub(crate) fn arm(&self, arm: abi::ReqNotifyCq, solicited_only: bool) {
        // SAFETY: the CQ is alive and belongs to the device whose function `arm` is.
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

    /// Number of the next CQ that had an event. Never blocks.
    pub(crate) fn next_event(&self) -> io::Result<Option<CqId>> {
        let api = &self.raw.api;
        let (mut cq, mut id) = (null_mut(), null_mut());
        // SAFETY: the channel is alive, its descriptor does not block, and both pointers have the right
        // types.
        if unsafe { (api.get_cq_event)(self.as_ptr(), &mut cq, &mut id) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: `cq` is from the event just received; a thread that destroys it waits for this call.
        unsafe { (api.ack_cq_events)(cq, 1) };
        Ok(Some(CqId(id as usize as u32)))
    }
}

//! Address handles.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use headworks_verbs::{GRH_BYTES, Grh};
use headworks_verbs_abi as abi;

use headworks_verbs_abi::gid::words_of_gid;

use crate::attributes::destination;
use crate::devices::{GID_PLACES, PORT};
use crate::errors::{Errno, object, status};
use crate::objects::{AhObject, ContextObject, Front, PdObject, expose, hold, take_back};

fn handle(pd: Arc<PdObject>, attr: &abi::AhAttr) -> Result<*mut abi::Ah, Errno> {
    let handle = pd
        .domain
        .create_ah(&destination((pd.about, pd.tables()), attr)?)?;
    Ok(expose(Arc::new(AhObject {
        front: Front::new(abi::Ah {
            context: pd.context.context(),
            pd: pd.front.get(),
            handle: handle.key().0,
        }),
        handle,
        pd,
    })))
}

pub(crate) unsafe extern "C" fn create_ah(
    pd: *mut abi::Pd,
    attr: *mut abi::AhAttr,
) -> *mut abi::Ah {
    object(|| {
        // SAFETY: the program passes a protection domain, and attributes.
        let (pd, attr) = unsafe { (hold(pd)?, attr.as_ref()) };
        handle(pd, attr.ok_or(Errno::INVALID)?)
    })
}

pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut abi::Ah) -> c_int {
    // SAFETY: the program passes a handle that it does not use again.
    status(|| unsafe { take_back::<AhObject>(ah) }.map(drop))
}

/// The way back to the sender of a datagram, from its completion and the header in front of its bytes.
fn way_back(
    context: &ContextObject,
    port: u8,
    wc: &abi::Wc,
    grh: Option<&[u8; GRH_BYTES]>,
) -> Result<abi::AhAttr, Errno> {
    if port != PORT {
        return Err(Errno::INVALID);
    }
    let mut attr = abi::AhAttr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..abi::AhAttr::default()
    };
    if wc.wc_flags & abi::WC_GRH == 0 {
        return Ok(attr);
    }
    let header = grh.and_then(|bytes| Grh::of_receive(bytes));
    let header = header.ok_or(Errno::INVALID)?;
    let is_it =
        |index: &u8| context.about.gid((*index).into(), context.tables()) == Some(header.dgid);
    let index = (0..GID_PLACES as u8).find(is_it);
    attr.is_global = 1;
    attr.grh = abi::GlobalRoute {
        dgid: words_of_gid(header.sgid),
        flow_label: header.flow_label,
        sgid_index: index.ok_or(Errno::INVALID)?,
        hop_limit: u8::MAX,
        traffic_class: header.traffic_class,
    };
    Ok(attr)
}

pub(crate) unsafe extern "C" fn init_ah_from_wc(
    context: *mut abi::Context,
    port: u8,
    wc: *mut abi::Wc,
    grh: *mut [u8; GRH_BYTES],
    attr: *mut abi::AhAttr,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context, a completion, its header and room for the attributes.
        let (context, wc, grh) =
            unsafe { (ContextObject::of(context)?, wc.as_ref(), grh.as_ref()) };
        let way = way_back(context, port, wc.ok_or(Errno::INVALID)?, grh)?;
        if attr.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: as above.
        unsafe { attr.write(way) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn create_ah_from_wc(
    pd: *mut abi::Pd,
    wc: *mut abi::Wc,
    grh: *mut [u8; GRH_BYTES],
    port: u8,
) -> *mut abi::Ah {
    object(|| {
        // SAFETY: the program passes a protection domain, a completion and its header.
        let (pd, wc, grh): (Arc<PdObject>, _, _) =
            unsafe { (hold(pd)?, wc.as_ref(), grh.as_ref()) };
        let way = way_back(&pd.context, port, wc.ok_or(Errno::INVALID)?, grh)?;
        handle(pd, &way)
    })
}

/// The Ethernet address behind a GID: that of the device itself, as all devices are on one machine.
pub(crate) unsafe extern "C" fn resolve_eth_l2(
    context: *mut abi::Context,
    attr: *mut abi::AhAttr,
    mac: *mut [u8; 6],
    vlan: *mut u16,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context, attributes, and room for the results.
        let (context, attr, mac) =
            unsafe { (ContextObject::of(context)?, attr.as_ref(), mac.as_mut()) };
        destination(
            (context.about, context.tables()),
            attr.ok_or(Errno::INVALID)?,
        )?;
        *mac.ok_or(Errno::INVALID)? = context.about.mac();
        /// No VLAN.
        const NO_VLAN: u16 = 0xffff;
        if !vlan.is_null() {
            // SAFETY: as above.
            unsafe { vlan.write(NO_VLAN) };
        }
        Ok(())
    })
}

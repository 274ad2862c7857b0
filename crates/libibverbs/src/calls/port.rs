//! Attributes of the port: its state, GIDs and P_Keys.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use headworks_verbs::Gid;
use headworks_verbs_abi as abi;
use headworks_verbs_abi::gid::words_of_gid;

use crate::devices::{GID_PLACES, Link, PORT, describe_port};
use crate::errors::{Errno, number, status};
use crate::objects::{ContextObject, zeroed};

/// Bytes of the attributes that the exported function writes, before fields were added.
const OLD_PORT_ATTR: usize = 48;

fn check_port(port: u32) -> Result<(), Errno> {
    match port == PORT.into() {
        true => Ok(()),
        false => Err(Errno::INVALID),
    }
}

/// Writes the first `size` bytes of the port's attributes.
///
/// # Safety
///
/// `attr` has room for them; `context` is an open one.
unsafe fn write_attributes(
    context: *mut abi::Context,
    port: u8,
    attr: *mut c_void,
    size: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller says so.
    let context = unsafe { ContextObject::of(context)? };
    check_port(port.into())?;
    if attr.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the struct has numbers only.
    let mut known: abi::PortAttr = unsafe { zeroed() };
    let limits = &context.device.info().limits;
    describe_port((context.about, context.is_port_down()), limits, &mut known);
    // SAFETY: the caller has room for `size` bytes.
    unsafe {
        attr.cast::<u8>().write_bytes(0, size);
        let shared = size.min(size_of::<abi::PortAttr>());
        attr.cast::<u8>()
            .copy_from_nonoverlapping((&raw const known).cast(), shared);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut abi::Context,
    port: u8,
    attr: *mut c_void,
) -> c_int {
    // SAFETY: the program has room for the attributes as they were in the first version.
    status(|| unsafe { write_attributes(context, port, attr, OLD_PORT_ATTR) })
}

pub(crate) unsafe extern "C" fn query_port_ex(
    context: *mut abi::Context,
    port: u8,
    attr: *mut abi::PortAttr,
    size: usize,
) -> c_int {
    // SAFETY: the program has room for that many bytes.
    status(|| unsafe { write_attributes(context, port, attr.cast(), size) })
}

pub(crate) unsafe extern "C" fn query_gid(
    context: *mut abi::Context,
    port: u8,
    index: c_int,
    gid: *mut [u64; 2],
) -> c_int {
    number(|| {
        // SAFETY: the program passes an open context, and room for a GID.
        let (context, gid) = unsafe { (ContextObject::of(context)?, gid.as_mut()) };
        check_port(port.into())?;
        // The GID of an empty place is zero.
        let known = match context.about.gid(index.into(), context.tables()) {
            None if (0..GID_PLACES as c_int).contains(&index) => Gid::default(),
            known => known.ok_or(Errno::INVALID)?,
        };
        *gid.ok_or(Errno::INVALID)? = words_of_gid(known);
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn query_gid_type(
    context: *mut abi::Context,
    port: u8,
    index: u32,
    gid_type: *mut c_int,
) -> c_int {
    number(|| {
        // SAFETY: the program passes an open context, and room for the type.
        let (context, gid_type) = unsafe { (ContextObject::of(context)?, gid_type.as_mut()) };
        check_port(port.into())?;
        context
            .about
            .gid(index.into(), context.tables())
            .ok_or(Errno::INVALID)?;
        *gid_type.ok_or(Errno::INVALID)? = match context.about.link {
            Link::Ethernet => abi::SYSFS_GID_TYPE_ROCE_V2,
            Link::Infiniband => abi::SYSFS_GID_TYPE_IB,
        };
        Ok(0)
    })
}

/// The entry of the GID table at `index`.
fn entry(context: &ContextObject, index: u32) -> Option<abi::GidEntry> {
    Some(abi::GidEntry {
        gid: words_of_gid(context.about.gid(index.into(), context.tables())?),
        gid_index: index,
        port_num: PORT.into(),
        gid_type: match context.about.link {
            Link::Ethernet => abi::GID_TYPE_ROCE_V2,
            Link::Infiniband => abi::GID_TYPE_IB,
        },
        ndev_ifindex: 0,
    })
}

pub(crate) unsafe extern "C" fn query_gid_ex(
    context: *mut abi::Context,
    port: u32,
    index: u32,
    to: *mut abi::GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { ContextObject::of(context)? };
        check_port(port)?;
        if flags != 0 || size < size_of::<abi::GidEntry>() || to.is_null() {
            return Err(Errno::INVALID);
        }
        let known = entry(context, index).ok_or(Errno(libc::ENODATA))?;
        // SAFETY: the program has room for at least one entry.
        unsafe { to.write(known) };
        Ok(())
    })
}

/// Writes the GID table, and returns the number of entries or a negative error number.
pub(crate) unsafe extern "C" fn query_gid_table(
    context: *mut abi::Context,
    to: *mut abi::GidEntry,
    entries_max: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut written = 0;
    let done = status(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { ContextObject::of(context)? };
        let is_wrong = flags != 0 || size < size_of::<abi::GidEntry>() || to.is_null();
        if is_wrong || entries_max < context.about.gids().len() {
            return Err(Errno::INVALID);
        }
        for (at, known) in (0..GID_PLACES as u32)
            .filter_map(|at| entry(context, at))
            .enumerate()
        {
            // SAFETY: the program has room for all entries, each of `size` bytes.
            unsafe { to.byte_add(at * size).write_unaligned(known) };
            written += 1;
        }
        Ok(())
    });
    match done {
        0 => written,
        error => -(error as isize),
    }
}

pub(crate) unsafe extern "C" fn query_pkey(
    context: *mut abi::Context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    number(|| {
        // SAFETY: the program passes an open context, and room for the key.
        let (context, pkey) = unsafe { (ContextObject::of(context)?, pkey.as_mut()) };
        check_port(port.into())?;
        let known = context.about.pkey(index.into(), context.tables());
        *pkey.ok_or(Errno::INVALID)? = known.ok_or(Errno::INVALID)?.to_be();
        Ok(0)
    })
}

/// Returns the index of a P_Key, which is in network byte order.
pub(crate) unsafe extern "C" fn get_pkey_index(
    context: *mut abi::Context,
    port: u8,
    pkey: u16,
) -> c_int {
    number(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { ContextObject::of(context)? };
        check_port(port.into())?;
        let asked = u16::from_be(pkey);
        let is_it =
            |index: &c_int| context.about.pkey((*index).into(), context.tables()) == Some(asked);
        let count = context.about.manners.pkeys().len() as c_int;
        (0..count).find(is_it).ok_or(Errno::INVALID)
    })
}

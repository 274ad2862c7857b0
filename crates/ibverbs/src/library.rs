//! Loads libibverbs at run time, and finds the functions that this crate calls.
//!
//! These are only the functions of the control path. Posting, polling and arming go through the device's
//! table of functions (`abi::ContextOps`), as in every C program.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::abi;

/// File name that the dynamic linker loads.
const FILE: &CStr = c"libibverbs.so.1";

/// The command that installs libibverbs and its providers on Debian. Every message that says what to install
/// quotes it.
pub const INSTALL: &str = "apt-get install libibverbs1 ibverbs-providers";
/// The command that installs librdmacm, on Debian.
pub const INSTALL_MANAGER: &str = "apt-get install librdmacm1";

/// The reason why libibverbs or librdmacm cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// The dynamic linker cannot load libibverbs.
    #[error("libibverbs.so.1 cannot be loaded ({reason}): on Debian, `{INSTALL}`")]
    Missing {
        /// The dynamic linker's message.
        reason: String,
    },
    /// The loaded libibverbs lacks a function.
    #[error(
        "libibverbs.so.1 has no {symbol}: it is older than any known to work (rdma-core 15, of 2017)"
    )]
    Symbol {
        /// Name of the missing function.
        symbol: &'static str,
    },
    /// The dynamic linker cannot load librdmacm.
    #[error("librdmacm.so.1 cannot be loaded ({reason}): on Debian, `{INSTALL_MANAGER}`")]
    NoManager {
        /// The dynamic linker's message.
        reason: String,
    },
    /// The loaded librdmacm lacks a function.
    #[error(
        "librdmacm.so.1 has no {symbol}: it is older than any known to work (rdma-core 24, of 2019)"
    )]
    ManagerSymbol {
        /// Name of the missing function.
        symbol: &'static str,
    },
}

/// Defines a table of a library's functions and its loader. The symbol of a function is the prefix and the
/// field's name. If a function is missing, the loader returns an error with its symbol. Functions marked `?`
/// have their symbol written out and may be missing.
macro_rules! functions {
    (
        $(#[$about:meta])* $api:ident, $prefix:literal, $missing:ident;
        $($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*
        $(? $perhaps:ident, $symbol:literal: $kind:ty;)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub(crate) struct $api {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub(crate) $perhaps: Option<$kind>,)*
        }

        impl $api {
            fn load(library: *mut c_void) -> Result<Self, LibraryError> {
                Ok(Self {
                    $($name: {
                        const NAME: &str = concat!($prefix, stringify!($name), "\0");
                        let found = $crate::library::find(library, NAME);
                        if found.is_null() {
                            return Err(LibraryError::$missing { symbol: NAME.trim_end_matches('\0') });
                        }
                        // SAFETY: the function of this name has always had this signature; neither library
                        // changes a signature under the same name and version.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(found) }
                    },)*
                    $($perhaps: {
                        let found = $crate::library::find(library, concat!($symbol, "\0"));
                        // SAFETY: as above; a null pointer becomes `None`.
                        unsafe { std::mem::transmute::<*mut c_void, Option<$kind>>(found) }
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;

pub(crate) type RegMrIova2 =
    unsafe extern "C" fn(*mut abi::Pd, *mut c_void, usize, u64, c_uint) -> *mut abi::Mr;
pub(crate) type DataInOrderOf = unsafe extern "C" fn(*mut abi::Qp, c_int, u32) -> c_int;
pub(crate) type ForkInitialized = unsafe extern "C" fn() -> c_int;
pub(crate) type QueryPkey = unsafe extern "C" fn(*mut abi::Context, u8, c_int, *mut u16) -> c_int;
pub(crate) type QueryGidEx =
    unsafe extern "C" fn(*mut abi::Context, u32, u32, *mut abi::GidEntry, u32, usize) -> c_int;

functions! {
    /// The functions of libibverbs that this crate calls.
    Api, "ibv_", Symbol;
    fork_init: fn() -> c_int;
    get_device_list: fn(*mut c_int) -> *mut *mut abi::Device;
    free_device_list: fn(*mut *mut abi::Device);
    open_device: fn(*mut abi::Device) -> *mut abi::Context;
    close_device: fn(*mut abi::Context) -> c_int;
    query_device: fn(*mut abi::Context, *mut abi::DeviceAttr) -> c_int;
    query_port: fn(*mut abi::Context, u8, *mut abi::PortAttr) -> c_int;
    query_gid: fn(*mut abi::Context, u8, c_int, *mut [u64; 2]) -> c_int;
    get_async_event: fn(*mut abi::Context, *mut abi::AsyncEvent) -> c_int;
    ack_async_event: fn(*mut abi::AsyncEvent);
    alloc_pd: fn(*mut abi::Context) -> *mut abi::Pd;
    dealloc_pd: fn(*mut abi::Pd) -> c_int;
    reg_mr: fn(*mut abi::Pd, *mut c_void, usize, c_int) -> *mut abi::Mr;
    dereg_mr: fn(*mut abi::Mr) -> c_int;
    create_comp_channel: fn(*mut abi::Context) -> *mut abi::CompChannel;
    destroy_comp_channel: fn(*mut abi::CompChannel) -> c_int;
    create_cq: fn(*mut abi::Context, c_int, *mut c_void, *mut abi::CompChannel, c_int) -> *mut abi::Cq;
    destroy_cq: fn(*mut abi::Cq) -> c_int;
    get_cq_event: fn(*mut abi::CompChannel, *mut *mut abi::Cq, *mut *mut c_void) -> c_int;
    ack_cq_events: fn(*mut abi::Cq, u32);
    create_srq: fn(*mut abi::Pd, *mut abi::SrqInitAttr) -> *mut abi::Srq;
    modify_srq: fn(*mut abi::Srq, *mut abi::SrqAttr, c_int) -> c_int;
    query_srq: fn(*mut abi::Srq, *mut abi::SrqAttr) -> c_int;
    destroy_srq: fn(*mut abi::Srq) -> c_int;
    create_qp: fn(*mut abi::Pd, *mut abi::QpInitAttr) -> *mut abi::Qp;
    modify_qp: fn(*mut abi::Qp, *mut abi::QpAttr, c_int) -> c_int;
    query_qp: fn(*mut abi::Qp, *mut abi::QpAttr, c_int, *mut abi::QpInitAttr) -> c_int;
    destroy_qp: fn(*mut abi::Qp) -> c_int;
    create_ah: fn(*mut abi::Pd, *mut abi::AhAttr) -> *mut abi::Ah;
    destroy_ah: fn(*mut abi::Ah) -> c_int;
    // In all versions; stand-ins in tests may lack it.
    ? query_pkey, "ibv_query_pkey": QueryPkey;
    // Like `query_gid`, with the type of each GID; since rdma-core 32.
    ? query_gid_ex, "_ibv_query_gid_ex": QueryGidEx;
    // Like `reg_mr`, with optional flags; since rdma-core 28.
    ? reg_mr_iova2, "ibv_reg_mr_iova2": RegMrIova2;
    // Since rdma-core 36.
    ? query_qp_data_in_order, "ibv_query_qp_data_in_order": DataInOrderOf;
    // Since rdma-core 35.
    ? is_fork_initialized, "ibv_is_fork_initialized": ForkInitialized;
}

/// Address of the symbol `name`, which ends with a NUL; null if it is missing. If there are several versions
/// of the symbol, this is the default one.
pub(crate) fn find(library: *mut c_void, name: &str) -> *mut c_void {
    // SAFETY: the library is open and stays open; the name ends with a NUL.
    unsafe { libc::dlsym(library, name.as_ptr().cast::<c_char>()) }
}

/// The functions of the machine's libibverbs. The first call loads the library. It is never unloaded, because
/// its providers keep state of their own.
pub(crate) fn api() -> Result<&'static Api, LibraryError> {
    static LOADED: OnceLock<Result<Api, LibraryError>> = OnceLock::new();
    LOADED
        .get_or_init(|| load(FILE))
        .as_ref()
        .map_err(Clone::clone)
}

/// Opens a library and never closes it. The error is the dynamic linker's message.
pub(crate) fn open(file: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: loading runs the library's initialisers, which are sound in any RDMA program.
    let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return Ok(library);
    }
    // SAFETY: this thread calls `dlerror` right after its own failed call, and the text is copied below.
    let said = unsafe { libc::dlerror() };
    if said.is_null() {
        return Err("no reason given".to_owned());
    }
    // SAFETY: the string is valid until this thread calls the dynamic linker again.
    let said = unsafe { CStr::from_ptr(said) };
    Err(said.to_string_lossy().into_owned())
}

/// Whether huge pages can be registered, from the library's word on forks (`None` from an old library) and the environment variable
/// `RDMAV_HUGEPAGES_SAFE`. Where forks matter, which is on kernels before 5.12, the library marks registered pages one by one, and the
/// kernel refuses that for a part of a huge page; the variable has the library mark whole ones.
pub(crate) fn huge_pages_are_safe(fork_status: Option<c_int>, is_set: bool) -> bool {
    is_set || fork_status == Some(abi::FORK_UNNEEDED)
}

fn load(file: &CStr) -> Result<Api, LibraryError> {
    let library = open(file).map_err(|reason| LibraryError::Missing { reason })?;
    let api = Api::load(library)?;
    // SAFETY: no object was created yet. Without this call, on kernels before 5.12, a fork would take pages
    // away from the device; on later kernels the call does nothing.
    let refused = unsafe { (api.fork_init)() };
    if refused != 0 {
        tracing::warn!(
            error = %std::io::Error::from_raw_os_error(refused),
            "ibv_fork_init: a fork may take registered memory away from the device"
        );
    }
    Ok(api)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_used_where_forks_do_not_matter_or_the_library_was_told() {
        assert!(huge_pages_are_safe(Some(abi::FORK_UNNEEDED), false));
        for status in [None, Some(0), Some(1)] {
            assert!(!huge_pages_are_safe(status, false));
            assert!(huge_pages_are_safe(status, true));
        }
    }

    #[test]
    fn a_library_that_is_not_there_names_the_packages() {
        let error = load(c"libno-such-verbs.so.1").map(drop).unwrap_err();
        let said = error.to_string();
        assert!(said.contains(INSTALL), "{said}");
        assert!(said.contains("libno-such-verbs.so.1"), "{said}");
        assert!(!said.contains('\n'), "{said}");
    }

    #[test]
    fn the_page_on_hardware_names_the_same_commands() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/hardware.md");
        let page = std::fs::read_to_string(page).unwrap();
        for command in [INSTALL, INSTALL_MANAGER] {
            assert!(page.contains(&format!("`{command}`")), "{command}");
        }
        // The page names no other commands.
        assert!(!page.contains("apt install"));
        for (at, _) in page.match_indices("apt-get") {
            let rest = &page[at..];
            assert!(rest.starts_with(INSTALL) || rest.starts_with(INSTALL_MANAGER));
        }
    }

    #[test]
    fn a_library_of_another_kind_is_refused_by_the_missing_name() {
        let error = load(c"libc.so.6").map(drop).unwrap_err();
        let symbol = "ibv_fork_init";
        assert_eq!(error, LibraryError::Symbol { symbol });
    }
}

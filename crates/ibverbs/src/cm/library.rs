//! librdmacm, loaded at run time: the functions that this crate calls, and their addresses.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use super::abi;
use crate::abi::QpAttr;
use crate::library::{self, LibraryError};

/// File name that the dynamic linker loads.
const FILE: &CStr = c"librdmacm.so.1";

library::functions! {
    /// The functions of librdmacm that are called here.
    CmApi, "rdma_", ManagerSymbol;
    create_event_channel: fn() -> *mut abi::EventChannel;
    destroy_event_channel: fn(*mut abi::EventChannel);
    create_id: fn(*mut abi::EventChannel, *mut *mut abi::Id, *mut c_void, c_int) -> c_int;
    destroy_id: fn(*mut abi::Id) -> c_int;
    bind_addr: fn(*mut abi::Id, *mut libc::sockaddr) -> c_int;
    listen: fn(*mut abi::Id, c_int) -> c_int;
    resolve_addr: fn(*mut abi::Id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    resolve_route: fn(*mut abi::Id, c_int) -> c_int;
    init_qp_attr: fn(*mut abi::Id, *mut QpAttr, *mut c_int) -> c_int;
    connect: fn(*mut abi::Id, *mut abi::ConnParam) -> c_int;
    accept: fn(*mut abi::Id, *mut abi::ConnParam) -> c_int;
    establish: fn(*mut abi::Id) -> c_int;
    reject: fn(*mut abi::Id, *const c_void, u8) -> c_int;
    disconnect: fn(*mut abi::Id) -> c_int;
    migrate_id: fn(*mut abi::Id, *mut abi::EventChannel) -> c_int;
    get_src_port: fn(*mut abi::Id) -> u16;
    get_cm_event: fn(*mut abi::EventChannel, *mut *mut abi::Event) -> c_int;
    ack_cm_event: fn(*mut abi::Event) -> c_int;
}

/// The functions of the machine's librdmacm. The first call loads it, and it stays loaded.
pub(crate) fn api() -> Result<&'static CmApi, LibraryError> {
    static LOADED: OnceLock<Result<CmApi, LibraryError>> = OnceLock::new();
    LOADED
        .get_or_init(|| load(FILE))
        .as_ref()
        .map_err(Clone::clone)
}

fn load(file: &CStr) -> Result<CmApi, LibraryError> {
    let library = library::open(file).map_err(|reason| LibraryError::NoManager { reason })?;
    CmApi::load(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_names_the_package() {
        let error = load(c"libno-such-manager.so.1").map(drop).unwrap_err();
        let said = error.to_string();
        assert!(said.contains(library::INSTALL_MANAGER), "{said}");
        assert!(said.contains("libno-such-manager.so.1"), "{said}");
        assert_eq!(said.lines().count(), 1);
    }

    #[test]
    fn a_library_of_another_kind_is_refused_by_the_missing_name() {
        let error = load(c"libc.so.6").map(drop).unwrap_err();
        let symbol = "rdma_create_event_channel";
        assert_eq!(error, LibraryError::ManagerSymbol { symbol });
    }
}

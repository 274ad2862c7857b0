//! The list of devices.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use headworks_verbs_abi as abi;

use crate::devices::{self, LINK, NAMES, VerbsDevice, write_text};
use crate::errors::{Errno, complain, object};
use crate::manners::{MANNERS, Manner};
use crate::objects::{DeviceObject, Front, borrow, zeroed};

/// The devices of this process, or one line on what is wrong with their names.
pub(super) fn known() -> Result<&'static [DeviceObject], Errno> {
    static KNOWN: OnceLock<Result<Vec<DeviceObject>, Errno>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let value = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        match devices::devices(
            value(NAMES).as_deref(),
            value(LINK).as_deref(),
            value(MANNERS).as_deref(),
        ) {
            Ok(devices) => Ok(devices.into_iter().map(device_object).collect()),
            Err(line) => {
                complain(&line);
                Err(Errno::INVALID)
            }
        }
    });
    known.as_deref().map_err(|error| *error)
}

fn device_object(about: VerbsDevice) -> DeviceObject {
    // SAFETY: the struct has pointers that may be null, numbers and characters.
    let mut device: abi::Device = unsafe { zeroed() };
    let index = about.number - 1;
    device.node_type = abi::NODE_CA;
    device.transport_type = about
        .manners
        .find(|it| match it {
            Manner::Transport(code) => Some(code),
            _ => None,
        })
        .unwrap_or(abi::TRANSPORT_IB);
    write_text(&mut device.name, &about.name);
    write_text(&mut device.dev_name, &format!("uverbs{index}"));
    let verbs = format!("/sys/class/infiniband_verbs/uverbs{index}");
    write_text(&mut device.dev_path, &verbs);
    let ibdev = format!("/sys/class/infiniband/{}", about.name);
    write_text(&mut device.ibdev_path, &ibdev);
    DeviceObject {
        front: Front::new(device),
        provider: [0; 16],
        about,
    }
}

pub(crate) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut abi::Device {
    object(|| {
        let known = known()?;
        // SAFETY: the array has room for all devices and a null behind them. The count, if any, is the program's.
        unsafe {
            let list = libc::calloc(known.len() + 1, size_of::<*mut abi::Device>());
            let list = list.cast::<*mut abi::Device>();
            if list.is_null() {
                return Err(Errno::NO_MEMORY);
            }
            for (at, device) in known.iter().enumerate() {
                list.add(at).write(device.front.get());
            }
            if !count.is_null() {
                *count = c_int::try_from(known.len()).unwrap_or(c_int::MAX);
            }
            Ok(list)
        }
    })
}

pub(crate) unsafe extern "C" fn free_device_list(list: *mut *mut abi::Device) {
    // SAFETY: the list is from `get_device_list`. The devices themselves stay.
    unsafe { libc::free(list.cast()) }
}

pub(crate) unsafe extern "C" fn get_device_name(device: *mut abi::Device) -> *const c_char {
    object(|| {
        // SAFETY: the program passes a device of the list.
        let device: &DeviceObject = unsafe { borrow(device)? };
        // SAFETY: the field lies within the struct, and ends with a zero.
        Ok(unsafe { (&raw mut (*device.front.get()).name).cast() })
    })
}

/// Returns the GUID in network byte order; 0 for null.
pub(crate) unsafe extern "C" fn get_device_guid(device: *mut abi::Device) -> u64 {
    // SAFETY: the program passes a device of the list.
    unsafe { borrow::<DeviceObject>(device) }.map_or(0, |device| device.about.guid())
}

pub(crate) unsafe extern "C" fn get_device_index(device: *mut abi::Device) -> c_int {
    // SAFETY: the program passes a device of the list.
    let device = unsafe { borrow::<DeviceObject>(device) };
    device.map_or(-1, |device| c_int::from(device.about.number) - 1)
}

//! Names, addresses and attributes of the devices.
//!
//! The environment variable [`NAMES`] lists the devices' names, separated by commas. The n-th device is on the soft host `hN`. So it
//! reaches the devices `soft:hN` of other Headworks programs too.
//!
//! The environment variable [`LINK`] says what kind of port they have. On Ethernet a device has two GIDs, both of RoCE version 2: index
//! 0 is the soft host's own, an IPv6 address, and index 1 an IPv4 address. On InfiniBand it has the first only, and its number as LID. Nothing
//! else differs: devices of both kinds reach each other.

use std::ffi::c_char;

use headworks_softnic::provider::{host_gid, host_ipv4_gid};
use headworks_verbs::{DeviceLimits, Gid, Mtu};
use headworks_verbs_abi as abi;

pub(crate) use crate::link::{LINK, Link};
use crate::manners::{self, Manner, Row};

/// The environment variable with the devices' names.
pub(crate) const NAMES: &str = "HEADWORKS_VERBS_DEVICES";

/// The one device without that variable.
const DEFAULT_NAME: &str = "headworks_0";

/// The largest number of devices.
const DEVICES_MAX: usize = 64;
/// The longest name, without the zero at its end.
const NAME_MAX: usize = 63;

/// The only port of each device.
pub(crate) const PORT: u8 = 1;
/// Completion vectors of each device. They make no difference.
pub(crate) const COMP_VECTORS: i32 = 1;
/// Places in the port's table of GIDs. Those behind the GIDs are empty, as most are on an RNIC.
pub(crate) const GID_PLACES: usize = 8;
/// Rate of the clock of completion timestamps, in kHz: it counts nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;

/// The number of no vendor: a locally administered one. Programs treat devices of vendors that they know differently.
const VENDOR: u32 = 0x02_6877;

/// A device that programs see.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct VerbsDevice {
    pub(crate) name: String,
    /// From 1.
    pub(crate) number: u8,
    pub(crate) link: Link,
    /// The soft host's own GID, and the IPv4 address.
    gids: [Gid; 2],
    /// What the device does as a driver's would.
    pub(crate) manners: &'static Row,
}

fn host(number: u8) -> String {
    format!("h{number}")
}

impl VerbsDevice {
    fn new(name: &str, number: u8, link: Link, manners: &'static Row) -> Self {
        let own = host_gid(&host(number));
        let ipv4 = host_ipv4_gid(&host(number));
        Self {
            name: name.to_owned(),
            number,
            link,
            gids: [own, ipv4.unwrap_or(own)],
            manners,
        }
    }

    /// Name of the software RNIC behind it. Programs end while their peers still take what has arrived, so a peer's death must not
    /// touch a queue pair.
    pub(crate) fn soft_name(&self) -> String {
        let host = host(self.number);
        match self.manners.has(Manner::OutOfOrder) {
            true => format!("soft:{host},silent_deaths=yes,ordered_between_writes=no"),
            false => format!("soft:{host},silent_deaths=yes"),
        }
    }

    /// The port's LID; 0 on Ethernet.
    pub(crate) fn lid(&self) -> u8 {
        match self.link {
            Link::Ethernet => 0,
            Link::Infiniband => self.number,
        }
    }

    /// The GUID of the node, in network byte order: the soft host's key.
    pub(crate) fn guid(&self) -> u64 {
        let mut guid = [0; 8];
        guid.copy_from_slice(&self.gids[0].0[8..]);
        u64::from_ne_bytes(guid)
    }

    /// An Ethernet address: locally administered, and different for each device.
    pub(crate) fn mac(&self) -> [u8; 6] {
        let [.., a, b, c, d] = self.gids[1].0;
        [2, 0, a, b, c, d]
    }

    /// The port's table of GIDs.
    pub(crate) fn gids(&self) -> &[Gid] {
        match self.link {
            Link::Ethernet => &self.gids,
            Link::Infiniband => &self.gids[..1],
        }
    }

    /// The GID of an index of the port's table, if there is one.
    pub(crate) fn gid(&self, index: i64, tables: PortTables) -> Option<Gid> {
        let index = place(index, GID_PLACES, tables.moves)?;
        let mut gid = self.gids().get(index).copied()?;
        if tables.has_new_gids {
            gid.0[15] ^= 0x80;
        }
        Some(gid)
    }

    /// The partition key of an index of the port's table. `None` beyond the table.
    pub(crate) fn pkey(&self, index: i64, tables: PortTables) -> Option<u16> {
        let pkeys = self.manners.pkeys();
        let pkey = *pkeys.get(place(index, pkeys.len(), tables.moves)?)?;
        Some(match tables.has_new_pkeys {
            true => pkey ^ 0x100,
            false => pkey,
        })
    }

    /// The GID of the device with this LID, if LIDs are addresses on this network.
    pub(crate) fn gid_of_lid(&self, lid: u16) -> Option<Gid> {
        let number = u8::try_from(lid).ok().filter(|number| *number > 0)?;
        (self.link == Link::Infiniband).then(|| host_gid(&host(number)))
    }
}

/// Changes of a port's tables since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortTables {
    /// How many places the entries have moved.
    pub(crate) moves: u32,
    /// Whether the GIDs were replaced.
    pub(crate) has_new_gids: bool,
    /// Whether the partition keys were replaced.
    pub(crate) has_new_pkeys: bool,
}

/// The place from which an entry of a table with `places` moved to `index`.
fn place(index: i64, places: usize, moves: u32) -> Option<usize> {
    let index = usize::try_from(index)
        .ok()
        .filter(|index| *index < places)?;
    let moves = moves as usize % places;
    Some((index + places - moves) % places)
}

/// The devices that [`NAMES`] lists, whose value is `listed`, or the one device without it. `link` is the value of [`LINK`], and
/// `manners` that of [`MANNERS`](crate::manners::MANNERS).
///
/// # Errors
///
/// One line on what is wrong with a value.
pub(crate) fn devices(
    listed: Option<&str>,
    link: Option<&str>,
    manners: Option<&str>,
) -> Result<Vec<VerbsDevice>, String> {
    let manners = manners::row(manners)?;
    let port = manners.find(|it| match it {
        Manner::Port(link) => Some(link),
        _ => None,
    });
    let link = Link::named(link)?;
    let link = port.unwrap_or(link);
    let listed = listed.filter(|listed| !listed.is_empty());
    let names: Vec<&str> = listed.unwrap_or(DEFAULT_NAME).split(',').collect();
    if names.len() > DEVICES_MAX {
        let many = names.len();
        return Err(format!(
            "{NAMES} lists {many} devices: at most {DEVICES_MAX} are possible"
        ));
    }
    for (at, name) in names.iter().enumerate() {
        let is_legal = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_legal) {
            return Err(format!(
                "{NAMES}: {name:?} is no name of a device: 1 to {NAME_MAX} letters, digits, `_`, `-` and `.` are"
            ));
        }
        if names[..at].contains(name) {
            return Err(format!("{NAMES} lists {name} twice"));
        }
    }
    let numbered = names.iter().zip(1..);
    Ok(numbered
        .map(|(name, number)| VerbsDevice::new(name, number, link, manners))
        .collect())
}

/// Copies `text` into a field of a C struct, which is zero so far.
pub(crate) fn write_text(field: &mut [c_char], text: &str) {
    let end = field.len() - 1;
    for (to, byte) in field[..end].iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
}

/// Fills in the attributes of a device, which are zero so far.
pub(crate) fn describe(device: &VerbsDevice, limits: &DeviceLimits, attr: &mut abi::DeviceAttr) {
    let number = |limit: u32| i32::try_from(limit).unwrap_or(i32::MAX);
    let rd_atomic = i32::from(limits.max_rd_atomic);
    write_text(
        &mut attr.fw_ver,
        concat!("headworks ", env!("CARGO_PKG_VERSION")),
    );
    attr.node_guid = device.guid();
    attr.sys_image_guid = device.guid();
    attr.max_mr_size = u64::MAX;
    attr.page_size_cap = !0xfff;
    let manners = device.manners;
    attr.vendor_id = manners
        .find(|it| match it {
            Manner::Vendor(id) => Some(id),
            _ => None,
        })
        .unwrap_or(VENDOR);
    attr.vendor_part_id = 1;
    attr.max_qp = number(limits.max_qp);
    attr.max_qp_wr = number(limits.max_qp_wr);
    attr.device_cap_flags =
        abi::DEVICE_CURR_QP_STATE_MOD | abi::DEVICE_SYS_IMAGE_GUID | abi::DEVICE_RC_RNR_NAK_GEN;
    attr.max_sge = number(limits.max_sge);
    attr.max_sge_rd = number(limits.max_sge);
    attr.max_cq = number(limits.max_cq);
    attr.max_cqe = number(limits.max_cqe);
    attr.max_mr = number(limits.max_mr);
    attr.max_pd = number(limits.max_mr);
    attr.max_qp_rd_atom = rd_atomic;
    attr.max_res_rd_atom = rd_atomic.saturating_mul(number(limits.max_qp));
    attr.max_qp_init_rd_atom = rd_atomic;
    attr.atomic_cap = manners
        .find(|it| match it {
            Manner::Atomics(kind) => Some(kind),
            _ => None,
        })
        .unwrap_or(abi::ATOMIC_HCA);
    attr.max_ah = number(limits.max_ah);
    if !manners.has(Manner::NoSharedReceiveQueues) {
        attr.max_srq = number(limits.max_srq);
        attr.max_srq_wr = number(limits.max_srq_wr);
        attr.max_srq_sge = number(limits.max_sge);
    }
    attr.max_pkeys = manners.pkeys().len() as u16;
    attr.phys_port_cnt = PORT;
}

/// Fills in the extended attributes, but for those that [`describe`] does.
pub(crate) fn describe_extended(attr: &mut abi::DeviceAttrEx) {
    attr.completion_timestamp_mask = u64::MAX;
    attr.hca_core_clock = CLOCK_KHZ;
    attr.device_cap_flags_ex = attr.orig_attr.device_cap_flags.into();
    attr.phys_port_cnt_ex = PORT.into();
}

/// Fills in the attributes of the port, which are zero so far.
pub(crate) fn describe_port(
    (device, is_down): (&VerbsDevice, bool),
    limits: &DeviceLimits,
    attr: &mut abi::PortAttr,
) {
    attr.state = match is_down {
        true => abi::PORT_DOWN,
        false => abi::PORT_ACTIVE,
    };
    attr.max_mtu = Mtu::B4096.code().into();
    attr.active_mtu = Mtu::B4096.code().into();
    attr.gid_tbl_len = GID_PLACES as i32;
    attr.max_msg_sz = limits.max_message;
    attr.pkey_tbl_len = device.manners.pkeys().len() as u16;
    attr.max_vl_num = 1;
    attr.active_width = abi::WIDTH_4X;
    attr.active_speed = abi::SPEED_EDR;
    attr.phys_state = match is_down {
        true => abi::PHYS_LINK_DISABLED,
        false => abi::PHYS_LINK_UP,
    };
    match device.link {
        Link::Ethernet => {
            attr.link_layer = abi::LINK_ETHERNET;
            attr.flags = abi::GRH_REQUIRED;
            attr.port_cap_flags = abi::PORT_IP_BASED_GIDS;
        }
        Link::Infiniband => {
            attr.link_layer = abi::LINK_INFINIBAND;
            attr.lid = device.number.into();
            // The subnet manager's, which nobody asks.
            attr.sm_lid = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_lists_names_and_each_has_a_host() {
        let one = devices(None, None, None).unwrap();
        assert_eq!(devices(Some(""), Some(""), None).unwrap(), one);
        assert_eq!((one.len(), &*one[0].name), (1, "headworks_0"));
        assert!(one[0].soft_name().starts_with("soft:h1,"));
        let two = devices(Some("mlx5_0,mlx5_1"), Some("ethernet"), None).unwrap();
        assert_eq!((&*two[1].name, two[1].number), ("mlx5_1", 2));
        assert_ne!(two[0].guid(), two[1].guid());
        let long = "a".repeat(64);
        let many = vec!["a"; 65].join(",");
        for wrong in ["a,", "a b", "a,a", "é", &*long, &*many] {
            let error = devices(Some(wrong), None, None).unwrap_err();
            assert!(error.starts_with(NAMES), "{error}");
        }
    }

    #[test]
    fn a_driver_has_its_port_and_its_tables_move() {
        let mlx5 = devices(None, Some("ethernet"), Some("mlx5-ib"))
            .unwrap()
            .remove(0);
        assert_eq!(mlx5.link, Link::Infiniband);
        assert!(mlx5.soft_name().contains("ordered_between_writes=no"));
        let moved = |moves| PortTables {
            moves,
            ..PortTables::default()
        };
        let first = mlx5.gid(0, moved(0));
        assert_eq!(
            (mlx5.gid(1, moved(1)), mlx5.gid(0, moved(1))),
            (first, None)
        );
        assert_eq!(mlx5.gid(0, moved(GID_PLACES as u32)), first);
        assert_eq!(
            (
                mlx5.gid(-1, moved(0)),
                mlx5.gid(GID_PLACES as i64, moved(0))
            ),
            (None, None)
        );
        let keys = |moves| [0, 1, 2].map(|index| mlx5.pkey(index, moved(moves)));
        assert_eq!(keys(0), [Some(0x7fff), Some(0x8001), None]);
        assert_eq!(keys(1), [Some(0x8001), Some(0x7fff), None]);
        let new = PortTables {
            has_new_gids: true,
            has_new_pkeys: true,
            ..PortTables::default()
        };
        assert!(mlx5.gid(0, new).is_some() && mlx5.gid(0, new) != first);
        assert_eq!(mlx5.pkey(1, new), Some(0x8101));
        let error = devices(None, None, Some("qlogic")).unwrap_err();
        assert!(error.contains("irdma"), "{error}");
    }

    #[test]
    fn on_infiniband_a_lid_is_an_address() {
        let two = devices(Some("a,b"), Some("infiniband"), None).unwrap();
        assert_eq!(two[0].gids().len(), 1);
        assert_eq!(two[0].gid_of_lid(2), two[1].gid(0, PortTables::default()));
        assert_eq!((two[0].gid_of_lid(0), two[0].gid_of_lid(256)), (None, None));
        let one = devices(None, None, None).unwrap();
        assert_eq!((one[0].gids().len(), one[0].gid_of_lid(1)), (2, None));
        let error = devices(None, Some("token ring"), None).unwrap_err();
        assert!(error.contains("ethernet and infiniband"), "{error}");
    }
}

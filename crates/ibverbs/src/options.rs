//! Options of a device's name: pure.

use std::net::{IpAddr, Ipv6Addr};

use headworks_verbs::{DeviceName, Gid, Mtu, OpenError, Promises, Tuning};

/// The options that the name of a device gives; `None` leaves a choice to the device or to the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) port: Option<u8>,
    pub(crate) gid_index: Option<u8>,
    /// The GID to use, in place of an index.
    pub(crate) gid: Option<Gid>,
    /// The subnet whose GID to use.
    pub(crate) subnet: Option<Subnet>,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) traffic_class: Option<u8>,
    pub(crate) service_level: Option<u8>,
    pub(crate) timeout: Option<u8>,
    pub(crate) retry_count: Option<u8>,
    pub(crate) rnr_retry: Option<u8>,
    pub(crate) pkey_index: Option<u16>,
    pub(crate) comp_vector: Option<u16>,
    pub(crate) cq_moderation: Option<Moderation>,
    pub(crate) relaxed_ordering: Option<bool>,
    pub(crate) inline_up_to: Option<u32>,
    ordered_between_writes: Option<bool>,
    atomic_aligned_8: Option<bool>,
    in_order_within_write: Option<u32>,
}

/// A range of GIDs that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subnet {
    first: Gid,
    bits: u32,
}

impl Subnet {
    /// Reads `ADDRESS/BITS`, where BITS counts from the start of an IPv4 or IPv6 address.
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let bits: u32 = digits(bits)?.parse().ok()?;
        // An IPv4 address is the last 32 bits of its GID.
        let (before, length) = match address {
            IpAddr::V4(_) => (96, 32),
            IpAddr::V6(_) => (0, 128),
        };
        (bits <= length).then_some(Self {
            first: gid_of(address),
            bits: before + bits,
        })
    }

    /// Whether the GID is in the subnet.
    pub(crate) fn contains(&self, gid: Gid) -> bool {
        let differ = u128::from_be_bytes(gid.0) ^ u128::from_be_bytes(self.first.0);
        differ.leading_zeros() >= self.bits
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bits = match self.first.ipv4() {
            Some(_) if self.bits >= 96 => self.bits - 96,
            _ => self.bits,
        };
        write!(f, "{}/{bits}", self.first.ip())
    }
}

/// `text` if it is digits alone: a number without a sign.
fn digits(text: &str) -> Option<&str> {
    let are_all = text.bytes().all(|byte| byte.is_ascii_digit());
    are_all.then_some(text)
}

/// The GID of an IP address.
fn gid_of(address: IpAddr) -> Gid {
    Gid(match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => Ipv6Addr::octets(&address),
    })
}

/// When a completion queue with a channel raises an event: after `count` completions, or `micros` microseconds after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moderation {
    pub(crate) count: u16,
    pub(crate) micros: u16,
}

impl Moderation {
    /// Reads `COUNT:MICROSECONDS`.
    fn parse(text: &str) -> Option<Self> {
        let (count, micros) = text.split_once(':')?;
        let (count, micros) = (digits(count)?.parse().ok()?, digits(micros)?.parse().ok()?);
        (count > 0).then_some(Self { count, micros })
    }
}

const LEGAL: &str = "port=N, gid_index=N, gid=ADDRESS, subnet=ADDRESS/BITS, mtu=BYTES, traffic_class=N, service_level=N, timeout=N, retry_count=N, \
                     rnr_retry=N, pkey_index=N, comp_vector=N, cq_moderation=COUNT:MICROSECONDS, ordered_between_writes=yes|no, atomic_aligned_8=yes|no, \
                     in_order_within_write=all|no|BYTES, relaxed_ordering=yes|no, inline_up_to=BYTES, as in ibv:mlx5_0,gid_index=3";
const PORT: &str = "port=N, a number from 1 to 255";
const GID_INDEX: &str = "gid_index=N, a number from 0 to 255";
const GID: &str = "gid=ADDRESS, an IPv4 or IPv6 address of the port, as in gid=192.0.2.1";
const ONE_GID: &str = "gid_index, gid and subnet exclude each other: give one of them";
const SUBNET: &str = "subnet=ADDRESS/BITS, as in subnet=192.0.2.0/24";
const MTU: &str = "mtu=BYTES: 256, 512, 1024, 2048 or 4096";
const TRAFFIC_CLASS: &str = "traffic_class=N, a number from 0 to 255";
const SERVICE_LEVEL: &str = "service_level=N, a number from 0 to 15";
const TIMEOUT: &str = "timeout=N, 4.096 microseconds times two to the N, from 0 (for ever) to 31";
const RETRY_COUNT: &str = "retry_count=N, a number from 0 to 7";
const RNR_RETRY: &str = "rnr_retry=N, a number from 0 to 7 (7 for ever)";
const PKEY_INDEX: &str = "pkey_index=N, a number from 0 to 65535";
const COMP_VECTOR: &str = "comp_vector=N, a number from 0 to 65535";
const MODERATION: &str =
    "cq_moderation=COUNT:MICROSECONDS, a count from 1 to 65535 and microseconds from 0 to 65535";
const RELAXED: &str = "relaxed_ordering=yes or relaxed_ordering=no";
const INLINE: &str = "inline_up_to=BYTES, a number from 0 to 65535";
const ORDERED: &str = "ordered_between_writes=yes or ordered_between_writes=no";
const ATOMIC: &str = "atomic_aligned_8=yes or atomic_aligned_8=no";
const IN_ORDER: &str =
    "in_order_within_write=all, in_order_within_write=no, or bytes from 1 to 4294967295";

impl Options {
    /// Reads the options of a name. An illegal one is an error that says what is legal.
    pub(crate) fn of(name: &DeviceName) -> Result<Self, OpenError> {
        let mut options = Self::default();
        for (key, value) in name.options() {
            let refused = |legal| OpenError::BadOption {
                option: value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}")),
                kind: "ibv",
                legal,
            };
            let number = |lowest: u64, highest: u64, legal| {
                value
                    .and_then(digits)
                    .and_then(|text| text.parse::<u64>().ok())
                    .filter(|number| (lowest..=highest).contains(number))
                    .ok_or_else(|| refused(legal))
            };
            let small = |lowest, highest, legal| {
                number(lowest, highest, legal).map(|number| Some(number as u8))
            };
            let yes = |legal| match value {
                Some("yes") => Ok(Some(true)),
                Some("no") => Ok(Some(false)),
                _ => Err(refused(legal)),
            };
            match key {
                "port" => options.port = small(1, 255, PORT)?,
                "gid_index" => options.gid_index = small(0, 255, GID_INDEX)?,
                "gid" => {
                    let address = value.and_then(|text| text.parse().ok());
                    options.gid = Some(gid_of(address.ok_or_else(|| refused(GID))?));
                }
                "subnet" => {
                    let subnet = value.and_then(Subnet::parse);
                    options.subnet = Some(subnet.ok_or_else(|| refused(SUBNET))?);
                }
                "comp_vector" => {
                    options.comp_vector = Some(number(0, 65_535, COMP_VECTOR)? as u16);
                }
                "cq_moderation" => {
                    let moderation = value.and_then(Moderation::parse);
                    options.cq_moderation = Some(moderation.ok_or_else(|| refused(MODERATION))?);
                }
                "mtu" => {
                    let bytes = number(256, 4096, MTU)?;
                    let mtu = (1..=5)
                        .filter_map(Mtu::from_code)
                        .find(|mtu| u64::from(mtu.bytes()) == bytes);
                    options.mtu = Some(mtu.ok_or_else(|| refused(MTU))?);
                }
                "traffic_class" => options.traffic_class = small(0, 255, TRAFFIC_CLASS)?,
                "service_level" => options.service_level = small(0, 15, SERVICE_LEVEL)?,
                "timeout" => options.timeout = small(0, 31, TIMEOUT)?,
                "retry_count" => options.retry_count = small(0, 7, RETRY_COUNT)?,
                "rnr_retry" => options.rnr_retry = small(0, 7, RNR_RETRY)?,
                "pkey_index" => {
                    options.pkey_index = Some(number(0, 65_535, PKEY_INDEX)? as u16);
                }
                "relaxed_ordering" => options.relaxed_ordering = yes(RELAXED)?,
                "inline_up_to" => options.inline_up_to = Some(number(0, 65_535, INLINE)? as u32),
                "ordered_between_writes" => options.ordered_between_writes = yes(ORDERED)?,
                "atomic_aligned_8" => options.atomic_aligned_8 = yes(ATOMIC)?,
                "in_order_within_write" => {
                    options.in_order_within_write = Some(match value {
                        Some("all") => u32::MAX,
                        Some("no") => 0,
                        _ => number(1, u32::MAX.into(), IN_ORDER)? as u32,
                    });
                }
                _ => return Err(refused(LEGAL)),
            }
            let ways = [
                options.gid_index.is_some(),
                options.gid.is_some(),
                options.subnet.is_some(),
            ];
            if ways.iter().filter(|way| **way).count() > 1 {
                return Err(refused(ONE_GID));
            }
        }
        Ok(options)
    }

    /// The ways to use the device that the options select.
    pub(crate) fn tuning(&self) -> Tuning {
        Tuning {
            relaxed_ordering: self.relaxed_ordering.unwrap_or(false),
            inline_up_to: self.inline_up_to.unwrap_or(0),
        }
    }

    /// The device's promises: those that the options declare, else those of `known`.
    pub(crate) fn promises(&self, known: Promises) -> Promises {
        Promises {
            ordered_between_writes: self
                .ordered_between_writes
                .unwrap_or(known.ordered_between_writes),
            atomic_aligned_8: self.atomic_aligned_8.unwrap_or(known.atomic_aligned_8),
            in_order_within_write: self
                .in_order_within_write
                .unwrap_or(known.in_order_within_write),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(options: &str) -> Result<Options, String> {
        let name = format!("ibv:mlx5_0{options}").parse().unwrap();
        Options::of(&name).map_err(|error| error.to_string())
    }

    #[test]
    fn given_options_are_set_and_others_left_unset() {
        assert_eq!(of("").unwrap(), Options::default());
        let all = of(
            ",port=2,gid_index=3,mtu=2048,traffic_class=106,service_level=15,timeout=0,\
                     retry_count=7,rnr_retry=1,pkey_index=65535,comp_vector=9,cq_moderation=16:50,\
                     relaxed_ordering=yes,inline_up_to=64",
        )
        .unwrap();
        let expected = Options {
            port: Some(2),
            gid_index: Some(3),
            mtu: Some(Mtu::B2048),
            traffic_class: Some(106),
            service_level: Some(15),
            timeout: Some(0),
            retry_count: Some(7),
            rnr_retry: Some(1),
            pkey_index: Some(65_535),
            comp_vector: Some(9),
            cq_moderation: Some(Moderation {
                count: 16,
                micros: 50,
            }),
            relaxed_ordering: Some(true),
            inline_up_to: Some(64),
            ..Options::default()
        };
        assert_eq!(all, expected);
    }

    #[test]
    fn an_address_or_a_subnet_selects_a_gid() {
        let gid = |text: &str| gid_of(text.parse().unwrap());
        assert_eq!(of(",gid=192.0.2.1").unwrap().gid, Some(gid("192.0.2.1")));
        assert_eq!(of(",gid=fe80::1").unwrap().gid, Some(gid("fe80::1")));
        let subnet = |text: &str| of(&format!(",subnet={text}")).unwrap().subnet.unwrap();
        for (name, inside, outside) in [
            ("192.0.2.0/24", "192.0.2.7", "192.0.3.7"),
            ("192.0.2.7/32", "192.0.2.7", "192.0.2.6"),
            ("0.0.0.0/0", "203.0.113.9", "2001:db8::1"),
            ("2001:db8::/32", "2001:db8::9", "2001:db9::9"),
        ] {
            let subnet = subnet(name);
            assert!(
                subnet.contains(gid(inside)) && !subnet.contains(gid(outside)),
                "{name}"
            );
            assert_eq!(subnet.to_string(), name);
        }
        assert!(subnet("::/0").contains(gid("192.0.2.1")));
        for two in [
            "gid=192.0.2.1,gid_index=3",
            "subnet=192.0.2.0/24,gid=192.0.2.1",
        ] {
            let said = of(&format!(",{two}")).unwrap_err();
            assert!(said.contains("exclude each other"), "{said}");
        }
    }

    #[test]
    fn declarations_are_given_and_taken_back() {
        let nothing = Promises::default();
        let all = Promises {
            ordered_between_writes: true,
            atomic_aligned_8: true,
            in_order_within_write: u32::MAX,
        };
        let given = ",ordered_between_writes=yes,atomic_aligned_8=yes,in_order_within_write=all";
        assert_eq!(of(given).unwrap().promises(nothing), all);
        let taken = ",ordered_between_writes=no,atomic_aligned_8=no,in_order_within_write=no";
        assert_eq!(of(taken).unwrap().promises(all), nothing);
        assert_eq!(of("").unwrap().promises(all), all);
        let some = of(",in_order_within_write=64").unwrap().promises(nothing);
        assert_eq!(some.in_order_within_write, 64);
    }

    #[test]
    fn a_wrong_option_is_named_with_the_legal_values() {
        for (option, legal) in [
            ("port=0", PORT),
            ("port", PORT),
            ("gid_index=256", GID_INDEX),
            ("gid_index=-1", GID_INDEX),
            ("mtu=1500", MTU),
            ("mtu=8192", MTU),
            ("traffic_class=256", TRAFFIC_CLASS),
            ("service_level=16", SERVICE_LEVEL),
            ("timeout=32", TIMEOUT),
            ("retry_count=8", RETRY_COUNT),
            ("rnr_retry=+1", RNR_RETRY),
            ("pkey_index=65536", PKEY_INDEX),
            ("gid=mlx5_0", GID),
            ("gid", GID),
            ("subnet=192.0.2.0", SUBNET),
            ("subnet=192.0.2.0/33", SUBNET),
            ("subnet=::/129", SUBNET),
            ("comp_vector=-1", COMP_VECTOR),
            ("cq_moderation=0:1", MODERATION),
            ("cq_moderation=5", MODERATION),
            ("cq_moderation=+16:50", MODERATION),
            ("subnet=192.0.2.0/+24", SUBNET),
            ("relaxed_ordering=1", RELAXED),
            ("inline_up_to=65536", INLINE),
            ("inline_up_to", INLINE),
            ("ordered_between_writes", ORDERED),
            ("atomic_aligned_8=maybe", ATOMIC),
            ("in_order_within_write=0", IN_ORDER),
            ("hostile", LEGAL),
        ] {
            let said = of(&format!(",{option}")).unwrap_err();
            assert!(said.contains(&format!("{option:?}")), "{said}");
            assert!(said.contains(legal) && !said.contains('\n'), "{said}");
        }
    }
}

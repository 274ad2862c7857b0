//! Each problem by itself, and the findings about it.

use headworks::devices::{Choice, Network, Refusal};
use headworks::verbs::{Gid, Lid, Mtu, PKey};

use super::super::environment::{Environment, FileSystem, Namespaces, Proc, Seccomp, Yama};
use super::super::system_info::{HugePages, Nic, Port, UnusableDevice};
use super::*;
use crate::rdma_facts::{NameOptions, PKeyEntry, PortFacts};

fn gid(address: &str) -> Gid {
    Gid(address.parse::<std::net::Ipv6Addr>().unwrap().octets())
}

fn choice(network: Network, address: &str, mtu: Mtu) -> Choice {
    Choice::new(1, network, (3, gid(address)), mtu)
}

fn unused(refusal: Refusal) -> Option<Result<Choice, UnusableDevice>> {
    Some(Err(UnusableDevice {
        said: format!("cannot open ibv:mlx5_0: {refusal}"),
        refusal: Some(refusal),
    }))
}

pub(super) fn opened(
    network: Network,
    address: &str,
    mtu: Mtu,
) -> Option<Result<Choice, UnusableDevice>> {
    Some(Ok(choice(network, address, mtu)))
}

pub(super) const IPV4: &str = "::ffff:192.0.2.1";

fn port() -> Port {
    Port {
        number: 1,
        state: "ACTIVE".into(),
        link_layer: "Ethernet".into(),
        net: Some(("eth0".into(), 9000)),
        facts: PortFacts {
            pkeys: vec![PKeyEntry {
                index: 0,
                key: PKey::DEFAULT,
            }],
            driver_class: Some(106),
            ..PortFacts::default()
        },
    }
}

/// The facts of a process on a machine where the software device works and nothing is restricted.
fn open_environment() -> Environment {
    Environment {
        user: 1000,
        registry: "/dev/shm/headworks-1000".into(),
        shm: Some(FileSystem {
            bytes: 1 << 30,
            free: 1 << 29,
            is_read_only: false,
        }),
        proc: Proc::Mounted { hiding: Vec::new() },
        namespaces: Some(Namespaces {
            is_first_pid: true,
            is_first_user: true,
            mapped_users: Some(1 << 32),
        }),
        memory_limits: Some(Vec::new()),
        seccomp: Some(Seccomp {
            is_filtered: false,
            no_new_privs: false,
        }),
        yama: Yama::Scope(0),
        is_dumpable: Some(true),
        ..Environment::default()
    }
}

pub(super) fn healthy() -> SystemInfo {
    SystemInfo {
        library: Some(Ok(vec!["mlx4_0".into(), "mlx5_0".into()])),
        devices: vec![Nic {
            name: "mlx5_0".into(),
            uverbs: Some("/dev/infiniband/uverbs0".into()),
            may_open: true,
            opened: opened(Network::RoceV2, IPV4, Mtu::B4096),
            options: NameOptions::default(),
            node: Some(1),
            pci: Some(("0000:3b:00.0".into(), "mlx5_core".into())),
            ports: vec![port()],
        }],
        manager: Some(Ok(())),
        manager_file: ManagerFile::Open,
        memlock: Some(ResourceLimit::UNLIMITED),
        open_files: limit(65536),
        cores: 8,
        governors: vec!["performance".into()],
        nodes: 2,
        environment: open_environment(),
        soft: Some(Ok(())),
        huge: HugePages {
            total: 8,
            free: 8,
            shmem: "never".into(),
        },
        ..SystemInfo::default()
    }
}

/// A limit that cannot be raised.
fn limit(most: u64) -> Option<ResourceLimit> {
    Some(ResourceLimit {
        soft: Some(most),
        hard: Some(most),
    })
}

fn limited(limits: &str) -> Vec<(String, String, std::path::PathBuf)> {
    let file = "/sys/fs/cgroup/x/rdma.max".into();
    vec![("mlx5_0".into(), limits.into(), file)]
}

/// Returns the findings that are not good: check, verdict, and the command that fixes it.
pub(super) fn complaints(facts: &SystemInfo) -> Vec<(&'static str, Verdict, String)> {
    let findings = advise(facts);
    let bad = findings.into_iter().filter(|f| f.verdict != Verdict::Good);
    bad.map(|f| (f.check, f.verdict, f.mend.unwrap_or_default()))
        .collect()
}

#[test]
fn a_healthy_machine_has_no_complaint_and_neither_has_one_without_devices() {
    assert_eq!(complaints(&healthy()), []);
    let bare = SystemInfo {
        devices: Vec::new(),
        library: Some(Err("not there".into())),
        memlock: limit(65536),
        ..healthy()
    };
    assert_eq!(complaints(&bare), []);
}

#[test]
fn missing_devices_are_reported_with_remedies_and_packages() {
    let bare = |library, manager| SystemInfo {
        devices: Vec::new(),
        library: Some(library),
        manager: Some(manager),
        ..healthy()
    };
    let of = |facts: &SystemInfo, check: &str| {
        let findings = advise(facts);
        let found = findings.iter().find(|finding| finding.check == check);
        let Finding {
            found, why, mend, ..
        } = found.expect("was looked for").clone();
        [found, why.unwrap_or_default(), mend.unwrap_or_default()].join("; ")
    };
    let gone = || "cannot be loaded".to_owned();
    let neither = bare(Err(gone()), Err(gone()));
    let said = of(&neither, "devices");
    for way in ["rdma link add", "cargo xtask rxe", "soft"] {
        assert!(said.contains(way), "{said}");
    }
    for (check, install) in [
        ("libibverbs", INSTALL_LIBIBVERBS),
        ("librdmacm", INSTALL_LIBRDMACM),
    ] {
        let said = of(&neither, check);
        assert!(
            said.contains("not installed") && said.contains(install),
            "{said}"
        );
        assert!(said.contains("cannot be loaded"), "{said}");
        let said = of(&bare(Ok(Vec::new()), Ok(())), check);
        assert!(said.starts_with("installed"), "{said}");
    }
}

#[test]
fn a_single_device_check_omits_unrelated_findings() {
    let mut facts = healthy();
    (facts.environment.yama, facts.environment.proc) = (Yama::Scope(1), Proc::Missing);
    facts.environment.namespaces = None;
    assert_eq!(complaints(&facts).len(), 2);
    (facts.is_single_device, facts.soft) = (true, None);
    assert_eq!(complaints(&facts), []);
}

#[test]
fn each_trouble_is_found_alone_and_has_its_command() {
    type Spoil = fn(&mut SystemInfo);
    let troubles: [(Spoil, &str, Verdict, &str); 29] = [
        (
            |f| f.library = Some(Err("gone".into())),
            "libibverbs",
            Broken,
            INSTALL_LIBIBVERBS,
        ),
        (
            |f| f.library = Some(Ok(vec!["mlx4_0".into()])),
            "provider",
            Broken,
            INSTALL_LIBIBVERBS,
        ),
        (
            |f| f.rdma_limits = limited("hca_handle=3 hca_object=max"),
            "cgroup",
            Improvable,
            "hca_object=max' > /sys/fs/cgroup/x/rdma.max",
        ),
        (
            |f| f.rdma_limits = limited("hca_handle=max hca_object=0"),
            "cgroup",
            Broken,
            "hca_object=max' > /sys/fs/cgroup/x/rdma.max",
        ),
        (
            |f| f.devices[0].uverbs = None,
            "device",
            Broken,
            "ib_uverbs",
        ),
        (
            |f| f.devices[0].may_open = false,
            "device",
            Broken,
            "uverbs0",
        ),
        (
            |f| f.devices[0].ports[0].state = "DOWN".into(),
            "port",
            Broken,
            "eth0 up",
        ),
        (
            |f| (f.devices[0].ports[0].state, f.devices[0].ports[0].net) = ("DOWN".into(), None),
            "port",
            Broken,
            "cat /sys/class/infiniband/mlx5_0/ports/1/phys_state",
        ),
        (
            |f| f.devices[0].opened = unused(Refusal::NoAddress { port: 1 }),
            "use",
            Broken,
            "address add A.B.C.D/24 dev eth0",
        ),
        (
            |f| f.devices[0].opened = unused(Refusal::NoLid { port: 1, lid: 0 }),
            "use",
            Broken,
            "opensm",
        ),
        (
            |f| f.devices[0].opened = unused(Refusal::Iwarp),
            "use",
            Broken,
            "rdma link show",
        ),
        (
            |f| f.devices[0].opened = unused(Refusal::NoLocks("MLX5_SINGLE_THREADED=1 is set")),
            "use",
            Broken,
            "unset MLX5_SINGLE_THREADED",
        ),
        (
            |f| {
                f.devices[0].opened = unused(Refusal::NoSuchAddress {
                    asked: "gid=203.0.113.1".to_owned(),
                    port: 1,
                    there: "192.0.2.1".to_owned(),
                });
            },
            "use",
            Broken,
            "headworks devices -v",
        ),
        (
            |f| {
                f.devices[0].opened = unused(Refusal::NoConnections {
                    driver: "efa".to_owned(),
                });
            },
            "use",
            Broken,
            "headworks devices ",
        ),
        (
            |f| f.devices[0].opened = opened(Network::RoceV1, IPV4, Mtu::B4096),
            "address",
            Improvable,
            "dev eth0",
        ),
        (
            |f| f.devices[0].opened = opened(Network::RoceV2, "fe80::1", Mtu::B4096),
            "address",
            Improvable,
            "dev eth0",
        ),
        (
            |f| {
                f.devices[0].opened = opened(Network::RoceV2, IPV4, Mtu::B1024);
                f.devices[0].ports[0].net = Some(("eth0".into(), 1500));
            },
            "mtu",
            Improvable,
            "eth0 mtu",
        ),
        (
            |f| f.manager = Some(Err("librdmacm.so.1 cannot be loaded".into())),
            "manager",
            Improvable,
            INSTALL_LIBRDMACM,
        ),
        (
            |f| f.manager_file = ManagerFile::Missing,
            "manager",
            Improvable,
            "modprobe rdma_ucm",
        ),
        (
            |f| f.manager_file = ManagerFile::Closed,
            "manager",
            Improvable,
            "chmod a+rw /dev/infiniband/rdma_cm",
        ),
        (
            |f| f.numa_balancing = true,
            "numa",
            Improvable,
            "numa_balancing=0",
        ),
        (
            |f| f.memlock = limit(8 << 20),
            "memlock",
            Broken,
            "ulimit -l",
        ),
        (|f| f.memlock = None, "memlock", Improvable, ""),
        (
            |f| f.open_files = limit(1024),
            "open files",
            Improvable,
            "prlimit --nofile=65536:65536",
        ),
        (|f| f.open_files = None, "open files", Improvable, ""),
        (
            |f| f.open_files = limit(31),
            "open files",
            Broken,
            "nofile=65536",
        ),
        (
            |f| f.huge.free = 0,
            "huge pages",
            Improvable,
            "nr_hugepages",
        ),
        (|f| f.cores = 1, "cores", Improvable, "taskset"),
        (
            |f| f.governors.push("powersave".into()),
            "governor",
            Improvable,
            "performance",
        ),
    ];
    for (spoil, check, verdict, mend) in troubles {
        let mut facts = healthy();
        spoil(&mut facts);
        let said = complaints(&facts);
        let [(about, how, command)] = &*said else {
            panic!("{check}: {said:?}")
        };
        assert_eq!((*about, *how), (check, verdict));
        assert!(command.contains(mend), "{check}: {command}");
    }
}

#[test]
fn a_limit_of_open_files_is_raised_as_far_as_the_hard_one() {
    let command = |hard| {
        let mut facts = healthy();
        facts.open_files = Some(ResourceLimit {
            soft: Some(1024),
            hard,
        });
        let said = complaints(&facts);
        let [("open files", Improvable, command)] = &*said else {
            panic!("{said:?}")
        };
        let findings = advise(&facts);
        let finding = findings.iter().find(|f| f.check == "open files").unwrap();
        let why = finding.why.as_deref().unwrap();
        assert!(why.contains("the daemon raises its own"), "{why}");
        format!("{}: {command}", finding.found)
    };
    let said = command(Some(8192));
    assert_eq!(said, "1024 at most; hard limit 8192: ulimit -n 8192");
    let said = command(None);
    assert_eq!(said, "1024 at most; hard limit none: ulimit -n 65536");
    let said = command(Some(2048));
    assert!(
        said.starts_with("1024 at most; hard limit 2048: prlimit"),
        "{said}"
    );
}

#[test]
fn an_iwarp_device_that_also_has_roce_is_switched_to_it() {
    let command = |driver: &str| {
        let mut facts = healthy();
        facts.devices[0].opened = unused(Refusal::Iwarp);
        facts.devices[0].pci = Some(("0000:3b:00.0".into(), driver.into()));
        let said = complaints(&facts);
        let [("use", Broken, command)] = &*said else {
            panic!("{said:?}")
        };
        command.clone()
    };
    let said = command("ice");
    let at = |part: &str| {
        let found = said.find(part);
        found.unwrap_or_else(|| panic!("{part} is not in {said}"))
    };
    // The kernel refuses RoCE as long as iWARP is enabled.
    let off = at(
        "devlink dev param set pci/0000:3b:00.0 name enable_iwarp value false cmode runtime && ",
    );
    let on = at("devlink dev param set pci/0000:3b:00.0 name enable_roce value true cmode runtime");
    assert!(off < on, "{said}");
    // A driver without these parameters has an option of its module. What follows `#` is not executed.
    assert!(
        on < at("   # ") && at("   # ") < at("modprobe irdma roce_ena=1"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1);
    // These have no RoCE.
    for driver in ["i40e", "cxgb4", "ice2"] {
        let said = command(driver);
        assert!(
            said.starts_with("rdma link show") && !said.contains("devlink"),
            "{said}"
        );
    }
}

#[test]
fn in_a_container_the_command_is_the_containers() {
    let mut facts = healthy();
    facts.container = Some("Docker");
    facts.memlock = limit(65536);
    facts.devices[0].uverbs = None;
    let said = complaints(&facts);
    assert!(
        said.iter().all(|(.., mend)| mend.contains("docker run")),
        "{said:?}"
    );
    assert_eq!(said.len(), 2);
}

/// Checks that nothing is wrong with the device, and returns the findings on its address and packets.
fn of_good(opened: Option<Result<Choice, UnusableDevice>>) -> String {
    let mut facts = healthy();
    facts.devices[0].opened = opened;
    assert_eq!(complaints(&facts), []);
    let findings = advise(&facts);
    let said = findings
        .iter()
        .filter(|f| ["address", "mtu"].contains(&f.check));
    said.map(|f| &*f.found).collect::<Vec<_>>().join("; ")
}

#[test]
fn the_providers_choice_is_shown_unchanged() {
    let said = of_good(opened(Network::RoceV2, IPV4, Mtu::B4096));
    let expected = "mlx5_0 port 1: RoCE v2, gid index 3, ::ffff:192.0.2.1; mlx5_0 port 1: packets of 4096 bytes; the MTU of \
                    eth0 is 9000";
    assert_eq!(said, expected);
    // A routable IPv6 address is as good as an IPv4 one.
    let said = of_good(opened(Network::RoceV2, "2001:db8::1", Mtu::B4096));
    assert!(said.contains("2001:db8::1"), "{said}");
    // On InfiniBand the subnet manager sets the packet size, and link-local prefixes are normal.
    let network = Network::Infiniband(Lid::new(7).unwrap());
    let said = of_good(opened(network, "fe80::2:c903:1", Mtu::B2048));
    assert!(
        said.contains("InfiniBand, LID 7") && said.contains("2048 bytes"),
        "{said}"
    );
    // Larger packets are not advised if only the network device, not the RDMA device, could carry them.
    of_good(opened(Network::RoceV2, IPV4, Mtu::B1024));
}

#[test]
fn a_device_of_another_transport_is_not_advised_as_roce_is() {
    let mut facts = healthy();
    facts.devices[0].ports[0].net = Some(("eth0".into(), 1500));
    for (network, count) in [(Network::Other, 0), (Network::RoceV2, 2)] {
        facts.devices[0].opened = opened(network, "fe80::1", Mtu::B2048);
        assert_eq!(complaints(&facts).len(), count, "{network}");
    }
    let said = of_good(opened(Network::Other, "fe80::1", Mtu::B2048));
    assert!(said.contains("a network of its own"), "{said}");
}

#[test]
fn of_several_ports_the_one_that_is_used_counts() {
    let mut facts = healthy();
    let second = Port {
        number: 2,
        state: "DOWN".into(),
        ..port()
    };
    facts.devices[0].ports.push(second);
    assert_eq!(complaints(&facts), []);
    // If no port is used, all count.
    facts.devices[0].opened = None;
    let said = complaints(&facts);
    assert!(matches!(&*said, [("port", Broken, _)]), "{said:?}");
}

#[test]
fn an_unknown_open_error_is_shown_verbatim() {
    let mut facts = healthy();
    let said = "cannot open ibv:mlx5_0: Input/output error".to_owned();
    facts.devices[0].opened = Some(Err(UnusableDevice {
        said: said.clone(),
        refusal: None,
    }));
    let findings = advise(&facts);
    let finding = findings.iter().find(|f| f.check == "use").unwrap();
    assert_eq!((finding.verdict, &finding.found), (Broken, &said));
    assert!(finding.mend.is_some());
}

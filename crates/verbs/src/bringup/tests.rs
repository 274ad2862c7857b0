//! Tests of the connection of two queue pairs.

use super::*;
use crate::error::PostError;
use crate::queue_pair::QpCaps;
use crate::work_request::{RecvWr, SendWr};

/// Records the attributes of each modify.
#[derive(Default)]
struct FakeQp {
    moves: Vec<QpAttr>,
    caps: QpCaps,
}

impl QueuePair for FakeQp {
    fn qpn(&self) -> Qpn {
        Qpn::new(0x11).unwrap()
    }
    fn state(&self) -> QpState {
        let last = self.moves.last().and_then(|attr| attr.state);
        last.unwrap_or_default()
    }
    fn caps(&self) -> &QpCaps {
        &self.caps
    }
    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        crate::qp_state::check_transition(crate::QpType::Rc, self.state(), attr)?;
        self.moves.push(*attr);
        Ok(())
    }
    fn post_send(&mut self, _: &[SendWr<'_>]) -> Result<(), PostError> {
        unreachable!("nothing is sent")
    }
    fn post_recv(&mut self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        unreachable!("nothing is received")
    }
}

pub(crate) fn device(prefix: u8, port: u8, lid: u16) -> DeviceInfo {
    let mut gid = Gid::default();
    (gid.0[0], gid.0[15]) = (prefix, port);
    let mut device = DeviceInfo {
        gid,
        lid: Lid::new(lid),
        mtu: Mtu::B4096,
        ..DeviceInfo::named("paper".parse().unwrap())
    };
    device.limits.max_rd_atomic = 4;
    device
}

fn start(device: &DeviceInfo, qp: &mut FakeQp) -> BringUp {
    BringUp::start(
        device,
        qp,
        ConnectionParams::default(),
        7,
        b"payload".to_vec(),
    )
    .unwrap()
}

/// Connects two queue pairs and returns the attributes that each was moved to RTR with.
fn connect_two(a: &DeviceInfo, b: &DeviceInfo) -> Result<[QpAttr; 2], BringUpError> {
    let (mut one, mut two) = (FakeQp::default(), FakeQp::default());
    let (mut ours, mut theirs) = (start(a, &mut one), start(b, &mut two));
    ours.connect_both(&mut one, &mut theirs, &mut two)?;
    assert_eq!((one.state(), two.state()), (QpState::Rts, QpState::Rts));
    Ok([one.moves[1], two.moves[1]])
}

#[test]
fn each_end_is_moved_to_the_others_port_by_gid_and_by_lid_where_there_are_lids() {
    let (a, b) = (device(0xfe, 1, 5), device(0xfe, 2, 0xbfff));
    let moves = connect_two(&a, &b).unwrap();
    assert_eq!(moves.map(|attr| attr.dest_lid), [b.lid, a.lid]);
    assert_eq!(moves.map(|attr| attr.dest_gid), [Some(b.gid), Some(a.gid)]);
    // Without LIDs, GID prefixes may differ.
    let moves = connect_two(&device(0xfe, 1, 0), &device(0x20, 2, 0)).unwrap();
    assert_eq!(moves.map(|attr| attr.dest_lid), [None; 2]);
}

#[test]
fn unreachable_ends_are_refused_before_a_queue_pair_is_moved() {
    let (a, b) = (device(0xfe, 1, 5), device(0x20, 2, 6));
    let error = connect_two(&a, &b).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("0xfe00000000000000") && said.contains("0x2000000000000000"),
        "{said}"
    );
    let mut qp = FakeQp::default();
    let (mut ours, theirs) = (start(&a, &mut qp), device(0xfe, 2, 0));
    let hello = start(&theirs, &mut FakeQp::default()).output();
    let error = ours.input(&mut qp, &hello).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("LID 5") && !said.contains('\n'), "{said}");
    assert_eq!(qp.state(), QpState::Init);
}

#[test]
fn devices_that_do_not_reach_each_other_are_refused_at_both_ends() {
    let named = |name: &str, network| DeviceInfo {
        name: name.parse().unwrap(),
        network,
        ..device(0xfe, 1, 0)
    };
    let ends =
        |a: &DeviceInfo, b: &DeviceInfo| refusals(a, b).map(|said| said.unwrap_err().to_string());
    for said in ends(&named("soft:h1", 7), &named("ibv:rxe0", 0)) {
        assert!(said.contains("soft") && said.contains("ibv"), "{said}");
        assert_eq!(said.lines().count(), 1);
    }
    for said in ends(&named("soft:h1", 7), &named("soft:h1", 8)) {
        assert!(said.contains("soft devices of different"), "{said}");
    }
    // An unknown network (0) is compatible with any.
    connect_two(&named("soft", 7), &named("soft:h2", 0)).unwrap();
    let longer = ProviderKind::of(&named("eleven8bits", 0));
    assert_eq!(longer.to_string(), "eleven8b");
}

/// Results of both ends with the other's greeting. An end that refuses stays in INIT.
fn refusals(a: &DeviceInfo, b: &DeviceInfo) -> [Result<usize, BringUpError>; 2] {
    let (mut one, mut two) = (FakeQp::default(), FakeQp::default());
    let (mut ours, mut theirs) = (start(a, &mut one), start(b, &mut two));
    let hellos = [theirs.output(), ours.output()];
    let said = [
        ours.input(&mut one, &hellos[0]),
        theirs.input(&mut two, &hellos[1]),
    ];
    for (qp, said) in [one, two].iter().zip(&said) {
        assert_eq!(qp.state() == QpState::Init, said.is_err());
    }
    said
}

#[test]
fn ends_with_different_versions_of_roce_addresses_or_partitions_are_refused_with_both_values() {
    let roce = |version, address: &str| DeviceInfo {
        roce: Some(version),
        gid: Gid(address.parse::<std::net::Ipv6Addr>().unwrap().octets()),
        ..device(0xfe, 1, 0)
    };
    let partition = |pkey| DeviceInfo {
        pkey: PKey::new(pkey),
        ..device(0xfe, 1, 5)
    };
    let (v1, v2) = (RoceVersion::V1, RoceVersion::V2);
    let (here, there) = ("::ffff:192.0.2.1", "::ffff:192.0.2.2");
    for (a, b, values) in [
        (roce(v1, here), roce(v2, there), ["RoCE v1", "RoCE v2"]),
        (
            roce(v2, here),
            roce(v2, "fe80::2"),
            ["192.0.2.1", "fe80::2"],
        ),
        (partition(0x8001), partition(0x8002), ["0x8001", "0x8002"]),
        (
            partition(1),
            partition(1),
            ["0x0001 (limited", "0x0001 (limited"],
        ),
    ] {
        for said in refusals(&a, &b) {
            let said = said.unwrap_err().to_string();
            assert!(values.iter().all(|value| said.contains(value)), "{said}");
            assert_eq!(said.lines().count(), 1);
        }
    }
    // A limited member reaches a full one. What an end does not know is not compared.
    for (a, b) in [
        (partition(1), partition(0x8001)),
        (partition(0x8001), partition(0)),
        (roce(v2, here), roce(v2, there)),
        (roce(v1, here), device(0xfe, 2, 0)),
        (roce(v2, "fe80::1"), roce(v2, "2001:db8::1")),
    ] {
        assert!(refusals(&a, &b).iter().all(Result::is_ok));
    }
}

#[test]
fn an_rnic_waits_longer_for_a_silent_peer_unless_told_otherwise() {
    let of = |name: &str, driver: Option<&str>, timeout| {
        let driver = driver.map(str::to_owned);
        let name = name.parse().unwrap();
        let params = ConnectionParams {
            timeout,
            ..ConnectionParams::default()
        };
        params.timeout_on(&DeviceInfo {
            name,
            driver,
            ..device(0xfe, 1, 0)
        })
    };
    assert_eq!(of("ibv:mlx5_0", Some("mlx5_core"), None), 17);
    assert_eq!(of("ibv:mlx5_0", Some("mlx5_core"), Some(10)), 10);
    for (name, driver) in [
        ("ibv:rxe0", Some("rxe")),
        ("ibv:siw0", None),
        ("soft:h1", None),
        ("sim", Some("mlx5_core")),
    ] {
        assert_eq!(of(name, driver, None), 14, "{name}");
    }
}

#[test]
fn a_hello_round_trips_and_no_multicast_lid_is_accepted() {
    let hello = Hello {
        kind: ProviderKind(*b"paper\0\0\0"),
        network: 0x0102_0304_0506_0708,
        gid: Gid([3; 16]),
        lid: Lid::new(0x1234),
        roce: Some(RoceVersion::V2),
        pkey: PKey::new(0x8001),
        qpn: Qpn::new(9).unwrap(),
        psn: Psn::truncated(8),
        mtu: Mtu::B512,
        max_rd_atomic: 7,
        payload: vec![1, 2, 3],
    };
    let mut bytes = hello.emit();
    let len = bytes.len();
    for short in 0..len {
        assert_eq!(Hello::parse(&bytes[..short]), Ok(None));
    }
    assert_eq!(Hello::parse(&bytes), Ok(Some((hello, len))));
    for no_kind in [*b"\0\0\0\0\0\0\0\0", *b"so\nft\0\0\0", *b"soft\0\0\0x"] {
        let mut bytes = bytes.clone();
        bytes[36..44].copy_from_slice(&no_kind);
        let said = Hello::parse(&bytes).unwrap_err();
        assert_eq!(said, BringUpError::Malformed("kind of device"));
    }
    for (at, wrong, what) in [(52, 3, "version of RoCE"), (54, 0x80, "partition key")] {
        let mut bytes = bytes.clone();
        (bytes[53], bytes[at]) = (0, wrong);
        assert_eq!(Hello::parse(&bytes), Err(BringUpError::Malformed(what)));
    }
    bytes[34..36].copy_from_slice(&0xc000u16.to_le_bytes());
    assert_eq!(Hello::parse(&bytes), Err(BringUpError::Malformed("LID")));
    // Version 1 had no LID. It is refused by its version number as soon as that has arrived.
    bytes[4..6].copy_from_slice(&1u16.to_le_bytes());
    let found = 1;
    assert_eq!(
        Hello::parse(&bytes[..6]),
        Err(BringUpError::VersionMismatch { found })
    );
}

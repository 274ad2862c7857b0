//! Ports of an InfiniBand network: what libibverbs receives for them.

use headworks_verbs::bringup::{BringUp, ConnectionParams};
use headworks_verbs::qp_state::AttrMask;
use headworks_verbs::{
    AhInit, Gid, Lid, ModifyError, Mtu, OpenError, QpAttr, QpState, QpType, ResourceError,
};

use super::{Bench, steps, stub};
use crate::abi::{AhAttr, mask};
use crate::{IbvProvider, Network, Refusal};

/// A device whose port has LID 5 in the subnet fe80::; its name gives service level 3.
fn bench() -> Bench {
    Bench::with(",service_level=3", |stub| {
        (stub.link_layer, stub.lid) = (1, 5);
        stub.gids.truncate(1);
        stub.gids[0].gid_type = 0;
    })
}

/// Another port of that subnet.
fn near() -> Gid {
    let mut gid = Gid::default();
    (gid.0[0], gid.0[1], gid.0[15]) = (0xfe, 0x80, 2);
    gid
}

fn far() -> Gid {
    let mut gid = near();
    gid.0[7] = 1;
    gid
}

fn to(dgid: Gid, dlid: u16) -> AhInit {
    AhInit {
        dlid: Lid::new(dlid),
        ..AhInit::to(dgid)
    }
}

#[test]
fn a_port_of_an_infiniband_network_is_known_by_its_lid() {
    let bench = bench();
    let info = bench.device.info();
    assert_eq!(info.lid, Lid::new(5));
    assert!(
        info.description.contains("InfiniBand, LID 5, GID index 0"),
        "{info:?}"
    );
    // A library that reports no link layer knows only InfiniBand; iWARP it reports as a transport.
    bench.stub.lock().unwrap().link_layer = 0;
    let provider = IbvProvider::with(stub::api());
    let choice = || provider.choice(&"ibv:stub0".parse().unwrap());
    let lid = Lid::new(5).unwrap();
    assert_eq!(choice().unwrap().network, Network::Infiniband(lid));
    for wrong in [0, 0xc000] {
        bench.stub.lock().unwrap().lid = wrong;
        let Err(OpenError::Provider { source, .. }) = choice() else {
            panic!("a port with the LID {wrong:#x}")
        };
        assert!(
            source.to_string().contains(&format!("{wrong:#x}")),
            "{source}"
        );
        let expected = Refusal::NoLid {
            port: 1,
            lid: wrong,
        };
        assert_eq!(source.downcast_ref(), Some(&expected));
    }
    bench.stub.lock().unwrap().transport_type = 1;
    let refused = choice().unwrap_err().to_string();
    assert!(refused.contains("iWARP"), "{refused}");
    // An Ethernet port has no LID, whatever its attributes say.
    {
        let mut stub = bench.stub.lock().unwrap();
        (stub.link_layer, stub.transport_type, stub.lid) = (2, 0, 5);
    }
    assert_eq!(choice().unwrap().network.lid(), None);
}

#[test]
fn address_handles_lead_by_lid_and_by_gid_only_to_another_subnet() {
    let bench = bench();
    let _near = bench.pd.create_ah(&to(near(), 9)).unwrap();
    let _far = bench.pd.create_ah(&to(far(), 7)).unwrap();
    let ways = bench.stub.lock().unwrap().ways.clone();
    let of = |way: &AhAttr| (way.dlid, way.is_global, way.sl, way.port_num);
    assert_eq!(
        ways.iter().map(of).collect::<Vec<_>>(),
        [(9, 0, 3, 1), (7, 1, 3, 1)]
    );
    assert_eq!(ways[0].grh.dgid, [0; 2]);
    let gid = crate::attributes::gid(ways[1].grh.dgid);
    assert_eq!(
        (gid, ways[1].grh.sgid_index, ways[1].grh.hop_limit),
        (far(), 0, 64)
    );
    // Without a LID the device is not asked.
    let error = bench.pd.create_ah(&AhInit::to(near())).map(drop);
    assert!(matches!(error, Err(ResourceError::NoLid)), "{error:?}");
    assert_eq!(bench.stub.lock().unwrap().ways.len(), 2);
}

#[test]
fn a_port_to_which_nothing_comes_without_a_global_header_has_one_on_every_way() {
    for (port_flags, is_global) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
        let bench = Bench::with("", |stub| {
            (stub.link_layer, stub.lid, stub.port_flags) = (1, 5, port_flags);
            stub.gids.truncate(1);
        });
        let _near = bench.pd.create_ah(&to(near(), 9)).unwrap();
        let way = bench.stub.lock().unwrap().ways[0];
        assert_eq!((way.dlid, way.is_global), (9, is_global), "{port_flags}");
        let dgid = match is_global {
            1 => near(),
            _ => Gid::default(),
        };
        assert_eq!(crate::attributes::gid(way.grh.dgid), dgid);
        // A connection is addressed the same way.
        let mut qp = bench.pd.create_qp(&bench.init(QpType::Rc)).unwrap();
        let [init, rtr, _] = steps();
        qp.modify(&init).unwrap();
        let rtr = QpAttr {
            dest_gid: Some(near()),
            dest_lid: Lid::new(9),
            ..rtr
        };
        qp.modify(&rtr).unwrap();
        let (attr, _) = bench.stub.lock().unwrap().modified[1];
        assert_eq!((attr.ah_attr.dlid, attr.ah_attr.is_global), (9, is_global));
    }
}

#[test]
fn on_ethernet_the_gid_leads_always_and_the_lid_never() {
    let bench = Bench::new();
    let _ah = bench.pd.create_ah(&to(bench.device.info().gid, 9)).unwrap();
    let way = bench.stub.lock().unwrap().ways[0];
    assert_eq!((way.dlid, way.is_global, way.grh.sgid_index), (0, 1, 2));
    let mut qp = bench.pd.create_qp(&bench.init(QpType::Rc)).unwrap();
    let [init, rtr, _] = steps();
    qp.modify(&init).unwrap();
    qp.modify(&rtr).unwrap();
    let (attr, bits) = bench.stub.lock().unwrap().modified[1];
    assert_ne!(bits & mask::AV, 0);
    assert_eq!((attr.ah_attr.dlid, attr.ah_attr.is_global), (0, 1));
}

#[test]
fn a_connection_is_made_to_the_lid_that_the_other_end_says() {
    let bench = bench();
    let mut two = [0; 2].map(|_| bench.pd.create_qp(&bench.init(QpType::Rc)).unwrap());
    let mut other = bench.device.info().clone();
    (other.gid, other.lid, other.mtu) = (near(), Lid::new(9), Mtu::B1024);
    let [ours, theirs] = &mut two;
    let start = |info, qp: &mut Box<dyn headworks_verbs::QueuePair>| {
        BringUp::start(info, &mut **qp, ConnectionParams::default(), 7, Vec::new()).unwrap()
    };
    let (mut one, mut far) = (start(bench.device.info(), ours), start(&other, theirs));
    one.connect_both(&mut **ours, &mut far, &mut **theirs)
        .unwrap();
    let modified = bench.stub.lock().unwrap().modified.clone();
    let rtr = modified
        .iter()
        .filter(|(attr, _)| attr.qp_state == QpState::Rtr as i32);
    let mut found: Vec<_> = rtr
        .map(|(attr, bits)| {
            assert_ne!(bits & mask::AV, 0);
            let way = attr.ah_attr;
            (way.dlid, way.is_global, way.sl, attr.path_mtu)
        })
        .collect();
    found.sort_unstable();
    // Each goes to the other's LID, with the smaller of the two MTUs.
    assert_eq!(found, [(5, 0, 3, 3), (9, 0, 3, 3)]);
}

#[test]
fn a_connection_without_a_lid_is_refused_before_the_device_is_asked() {
    let bench = bench();
    let mut qp = bench.pd.create_qp(&bench.init(QpType::Rc)).unwrap();
    let [init, rtr, _] = steps();
    qp.modify(&init).unwrap();
    let error = qp.modify(&rtr).unwrap_err();
    let ModifyError::Attributes { missing, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(missing, AttrMask::DEST_LID);
    assert_eq!(
        (qp.state(), bench.stub.lock().unwrap().modified.len()),
        (QpState::Init, 1)
    );
}

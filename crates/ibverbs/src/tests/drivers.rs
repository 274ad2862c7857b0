//! What differs between drivers, and between ports whose tables change: on the stub, with a folder in the place of sysfs.

use std::os::unix::fs::symlink;
use std::sync::Arc;

use headworks_verbs::{
    Access, AllocRequest, AsyncEvent, Completion, CqInit, Device, Gid, Lid, OpenError, PKey,
    PortChange, PortFailure, Provider, QpCaps, QpInit, QpState, QpType, QueuePair, RoceVersion,
};

use super::stub::{State, move_to, tell};
use super::{Bench, ready, steps, stub};
use crate::abi::{self, event, mask};
use crate::{IbvProvider, Refusal};

/// The stub's device, with this driver in sysfs. `prepare` sets up the stub before.
struct Driven {
    folder: tempfile::TempDir,
    stub: stub::Shared,
}

impl Driven {
    fn by(driver: &str, prepare: impl FnOnce(&mut State)) -> Self {
        let stub = stub::plug_in("stub0");
        prepare(&mut stub.lock().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("stub0/device");
        std::fs::create_dir_all(&device).unwrap();
        symlink(format!("../drivers/{driver}"), device.join("driver")).unwrap();
        Self { folder, stub }
    }

    fn provider(&self) -> IbvProvider {
        IbvProvider::with_sysfs(stub::api(), self.folder.path())
    }

    fn open(&self, options: &str) -> Result<Arc<dyn Device>, OpenError> {
        let name = format!("ibv:stub0{options}").parse().unwrap();
        self.provider().open(&name)
    }

    fn bench(&self) -> Bench {
        let device = self.open("").unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(&CqInit {
            depth: 100,
            ..CqInit::default()
        });
        let mut stub = self.stub.lock().unwrap();
        stub.modified.clear();
        stub.registered.clear();
        drop(stub);
        Bench {
            stub: self.stub.clone(),
            device,
            pd,
            cq: cq.unwrap(),
        }
    }

    fn refusal(&self, options: &str) -> Refusal {
        let Err(OpenError::Provider { source, .. }) = self.open(options) else {
            panic!("the device opens")
        };
        source.downcast_ref::<Refusal>().expect("a refusal").clone()
    }
}

fn gid(address: &str) -> Gid {
    Gid(address.parse::<std::net::Ipv6Addr>().unwrap().octets())
}

/// An entry of the GID table.
fn entry(address: &str, gid_index: u32, gid_type: u32) -> abi::GidEntry {
    abi::GidEntry {
        gid: headworks_verbs_abi::gid::words_of_gid(gid(address)),
        gid_index,
        port_num: 1,
        gid_type,
        ndev_ifindex: 0,
    }
}

#[test]
fn mlx5_is_asked_for_the_order_of_data_when_connected_and_promises_no_more_than_it_answers() {
    for (answer, within, between) in [(1, u32::MAX, true), (0, 0, false)] {
        let driven = Driven::by("mlx5_core", |stub| stub.data_in_order = answer);
        let promises = driven.open("").unwrap().info().promises;
        assert_eq!(promises.in_order_within_write, within);
        assert_eq!(promises.ordered_between_writes, between);
        assert!(promises.atomic_aligned_8);
        let stub = driven.stub.lock().unwrap();
        assert_eq!(stub.asked_in_order, [QpState::Rts as i32]);
        // The queue pair is connected with itself, and destroyed.
        let (rtr, bits) = stub.modified[1];
        assert_ne!(bits & mask::AV, 0);
        assert_eq!(rtr.ah_attr.grh.sgid_index, 2);
        let count = |what: &str| stub.log.iter().filter(|entry| *entry == what).count();
        assert_eq!(count("+qp"), count("-qp"));
    }
    // Others are not asked: their libraries answer 0 to everybody.
    let driven = Driven::by("mlx4_core", |_| {});
    assert!(
        driven
            .open("")
            .unwrap()
            .info()
            .promises
            .ordered_between_writes
    );
    assert!(driven.stub.lock().unwrap().asked_in_order.is_empty());
    // A queue pair that cannot be connected promises nothing.
    let driven = Driven::by("mlx5_core", |stub| {
        stub.fails.insert("modify", libc::ENETUNREACH);
    });
    let promises = driven.open("").unwrap().info().promises;
    assert!(!promises.ordered_between_writes && promises.in_order_within_write == 0);
}

#[test]
fn mlx5_on_infiniband_promises_no_order_between_writes_unless_the_name_does() {
    let driven = Driven::by("mlx5_core", |stub| {
        (stub.link_layer, stub.lid, stub.data_in_order) = (1, 5, 1);
    });
    assert!(
        !driven
            .open("")
            .unwrap()
            .info()
            .promises
            .ordered_between_writes
    );
    let named = driven.open(",ordered_between_writes=yes").unwrap();
    assert!(named.info().promises.ordered_between_writes);
}

#[test]
fn a_device_that_has_only_relaxed_keys_gets_them_and_promises_no_order() {
    let driven = Driven::by("mlx5_core", |stub| {
        (stub.only_relaxed, stub.data_in_order) = (true, 1);
    });
    let bench = driven.bench();
    let promises = bench.device.info().promises;
    assert!(!promises.ordered_between_writes && promises.in_order_within_write == 0);
    let buffer = bench.device.alloc(&AllocRequest::of(4096)).unwrap();
    let _region = bench.pd.register(&buffer, Access::ALL).unwrap();
    let registered = bench.stub.lock().unwrap().registered.clone();
    assert_eq!(registered, [0xf | 1 << 20]);
    // A declaration cannot be kept there.
    assert_eq!(
        driven.refusal(",ordered_between_writes=yes"),
        Refusal::OnlyRelaxed
    );
    // Elsewhere relaxed ordering is requested only for regions that ask for it.
    let bench = Driven::by("mlx5_core", |_| {}).bench();
    let buffer = bench.device.alloc(&AllocRequest::of(4096)).unwrap();
    let asked = [Access::ALL, Access::ALL | Access::RELAXED_ORDERING];
    let _regions = asked.map(|access| bench.pd.register(&buffer, access).unwrap());
    assert_eq!(bench.stub.lock().unwrap().registered, [0xf, 0xf | 1 << 20]);
}

#[test]
fn a_device_with_datagrams_only_is_refused_and_one_without_room_is_not() {
    for errno in [libc::EOPNOTSUPP, libc::EINVAL] {
        let driven = Driven::by("efa", |stub| {
            stub.refuses_qp_type = Some((abi::QPT_RC, errno));
        });
        let driver = "efa".to_owned();
        assert_eq!(driven.refusal(""), Refusal::NoConnections { driver });
        let said = driven.refusal("").to_string();
        assert!(said.contains("efa") && !said.contains('\n'), "{said}");
    }
    let driven = Driven::by("mlx5_core", |stub| {
        stub.refuses_qp_type = Some((abi::QPT_RC, libc::ENOMEM));
    });
    driven.open("").unwrap();
}

#[test]
fn nothing_is_inline_where_the_flag_is_ignored() {
    let bench = Driven::by("mana", |_| {}).bench();
    assert_eq!(bench.device.info().limits.max_inline, 0);
    let with = |max_inline| {
        bench.pd.create_qp(&QpInit {
            caps: QpCaps {
                max_inline,
                ..QpCaps::default()
            },
            ..bench.init(QpType::Rc)
        })
    };
    assert_eq!(with(0).unwrap().caps().max_inline, 0);
    // What a queue pair reports beyond that does not count.
    bench.stub.lock().unwrap().sizes.max_inline_data = 128;
    assert_eq!(with(0).unwrap().caps().max_inline, 0);
    assert!(with(8).is_err());
}

#[test]
fn a_queue_pair_that_reports_more_than_it_was_given_has_what_it_was_given() {
    let bench = Driven::by("bnxt_en", |stub| stub.sizes.max_send_wr = 1000).bench();
    let qp = bench.pd.create_qp(&QpInit {
        caps: QpCaps {
            max_send_wr: 100,
            ..QpCaps::default()
        },
        ..bench.init(QpType::Rc)
    });
    assert_eq!(qp.unwrap().caps().max_send_wr, 128);
}

#[test]
fn a_device_that_reports_failures_is_not_asked_for_states() {
    let bench = Driven::by("bnxt_en", |_| {}).bench();
    let qp = bench.ready(QpType::Rc);
    bench.stub.lock().unwrap().queries = 0;
    let begun = std::time::Instant::now();
    while begun.elapsed().as_millis() < 250 {
        assert_eq!(qp.state(), QpState::Rts);
    }
    assert_eq!(bench.stub.lock().unwrap().queries, 0);
    // What it reports is seen, and a failed request still has it asked.
    move_to(&bench.stub, &*qp, QpState::Error);
    let at = bench.stub.lock().unwrap().qps[&qp.qpn().raw()];
    tell(&bench.stub, at, event::QP_FATAL);
    super::until("the failure", || qp.state() == QpState::Error);
    let qp = bench.ready(QpType::Ud);
    move_to(&bench.stub, &*qp, QpState::Error);
    let failed = abi::Wc {
        wr_id: 1,
        status: 4,
        qp_num: qp.qpn().raw(),
        ..super::polling::wc(1)
    };
    super::polling::complete(&bench, &*bench.cq, [failed]);
    assert_eq!(bench.cq.poll(&mut [Completion::default(); 2]), Ok(1));
    assert_eq!(qp.state(), QpState::Error);
}

/// A port of an InfiniBand network with this table of partition keys.
fn infiniband(pkeys: &[u16]) -> Driven {
    Driven::by("mlx5_core", |stub| {
        (stub.link_layer, stub.lid) = (1, 5);
        stub.gids = vec![entry("fe80::1", 0, 0)];
        stub.pkeys = pkeys.to_vec();
    })
}

/// The index of the key with which a queue pair is made.
fn key_index_of_a_queue_pair(bench: &Bench) -> u16 {
    let mut qp = bench.pd.create_qp(&bench.init(QpType::Rc)).unwrap();
    bench.stub.lock().unwrap().modified.clear();
    qp.modify(&steps()[0]).unwrap();
    bench.stub.lock().unwrap().modified[0].0.pkey_index
}

#[test]
fn on_infiniband_the_first_key_of_full_membership_is_used() {
    for (pkeys, index, key) in [
        (&[0x7fff, 0, 0x8001, 0x8002][..], 2, 0x8001),
        (&[0xffff, 0x8001], 0, 0xffff),
        (&[0, 0x0001], 1, 0x0001),
    ] {
        let driven = infiniband(pkeys);
        let bench = driven.bench();
        assert_eq!(bench.device.info().pkey, PKey::new(key));
        assert_eq!(key_index_of_a_queue_pair(&bench), index);
        let choice = driven.provider().choice(&"ibv:stub0".parse().unwrap());
        let choice = choice.unwrap();
        assert_eq!((choice.pkey_index, choice.pkey), (index, PKey::new(key)));
        let shown = choice.to_string().contains(&format!("{key:#06x}"));
        assert_eq!(shown, key != 0xffff);
    }
    let named = infiniband(&[0xffff, 0x8001]).open(",pkey_index=1").unwrap();
    assert_eq!(named.info().pkey, PKey::new(0x8001));
    let said = infiniband(&[0xffff]).open(",pkey_index=1").map(drop);
    assert!(said.unwrap_err().to_string().contains("pkey_index"));
}

#[test]
fn addresses_and_keys_that_move_in_the_tables_are_found_again() {
    let driven = infiniband(&[0x8001, 0x8002]);
    let bench = driven.bench();
    {
        let mut stub = bench.stub.lock().unwrap();
        stub.pkeys = vec![0x8003, 0x8002, 0x8001];
        stub.gids = vec![entry("fe80::9", 0, 0), entry("fe80::1", 1, 0)];
    }
    // Until the device says so, nothing is read again. What another port's tables do is of no interest.
    tell(&bench.stub, 2, event::PKEY_CHANGE);
    assert_eq!(bench.device.next_async_event(), None);
    assert_eq!(key_index_of_a_queue_pair(&bench), 0);
    tell(&bench.stub, 1, event::PKEY_CHANGE);
    let changed = AsyncEvent::PKeyChanged(1);
    assert_eq!(bench.device.next_async_event(), Some(changed));
    assert_eq!(key_index_of_a_queue_pair(&bench), 2);
    let info = bench.device.info();
    assert_eq!((info.pkey, info.gid), (PKey::new(0x8001), gid("fe80::1")));
    let mut qp = bench.pd.create_qp(&bench.init(QpType::Ud)).unwrap();
    ready(&mut *qp, QpType::Ud);
    let far = gid("fe80:0:0:1::7");
    let to = headworks_verbs::AhInit {
        dlid: Lid::new(7),
        ..headworks_verbs::AhInit::to(far)
    };
    let _ah = bench.pd.create_ah(&to).unwrap();
    assert_eq!(bench.stub.lock().unwrap().ways[0].grh.sgid_index, 1);
}

#[test]
fn a_lost_address_lid_or_key_is_replaced_by_the_one_that_is_there_now() {
    let driven = infiniband(&[0x8001]);
    let bench = driven.bench();
    let before = bench.device.info();
    {
        let mut stub = bench.stub.lock().unwrap();
        stub.lid = 9;
        stub.pkeys = vec![0x8002];
    }
    tell(&bench.stub, 1, event::LID_CHANGE);
    assert!(bench.device.next_async_event().is_some());
    let info = bench.device.info();
    assert_eq!((info.lid, info.pkey), (Lid::new(9), PKey::new(0x8002)));
    // References from before stay as they are.
    assert_eq!((before.lid, before.pkey), (Lid::new(5), PKey::new(0x8001)));
    // A port without any address keeps the last one.
    bench.stub.lock().unwrap().gids.clear();
    tell(&bench.stub, 1, event::GID_CHANGE);
    assert!(bench.device.next_async_event().is_some());
    assert_eq!(bench.device.info().gid, gid("fe80::1"));
    bench.stub.lock().unwrap().gids = vec![entry("fe80::2", 0, 0)];
    tell(&bench.stub, 1, event::GID_CHANGE);
    assert!(bench.device.next_async_event().is_some());
    assert_eq!(bench.device.info().gid, gid("fe80::2"));
}

fn failure(change: PortChange, number: u64) -> PortFailure {
    PortFailure {
        port: 1,
        change,
        number,
    }
}

/// A queue pair after the first `count` steps to RTS, on InfiniBand.
fn connected(bench: &Bench, count: usize) -> Box<dyn QueuePair> {
    let mut qp = bench.pd.create_qp(&bench.init(QpType::Rc)).unwrap();
    let mut steps = steps();
    steps[1].dest_lid = Lid::new(7);
    steps[..count]
        .iter()
        .for_each(|step| qp.modify(step).unwrap());
    qp
}

#[test]
fn connections_end_if_the_port_loses_what_they_use() {
    type Change = fn(&mut stub::State);
    let (old, new) = (gid("fe80::1"), gid("fe80::2"));
    let lost = |after| Some(PortChange::Gid { before: old, after });
    let lid = |after| {
        let before = Lid::new(5);
        Some(PortChange::Lid { before, after })
    };
    let keys = PortChange::PKey {
        before: PKey::new(0x8001),
        after: PKey::new(0x8002),
    };
    let cases: [(Change, i32, Option<PortChange>); 8] = [
        // The entries move, others come, or nothing changes.
        (
            |stub| stub.pkeys.insert(0, 0x7fff),
            event::PKEY_CHANGE,
            None,
        ),
        (
            |stub| stub.gids.push(entry("fe80::9", 1, 0)),
            event::GID_CHANGE,
            None,
        ),
        (|_| {}, event::SM_CHANGE, None),
        (
            |stub| stub.pkeys = vec![0x8002],
            event::PKEY_CHANGE,
            Some(keys),
        ),
        (
            |stub| stub.gids = vec![entry("fe80::2", 0, 0)],
            event::GID_CHANGE,
            lost(Some(new)),
        ),
        (|stub| stub.gids.clear(), event::GID_CHANGE, lost(None)),
        (|stub| stub.lid = 9, event::LID_CHANGE, lid(Lid::new(9))),
        (|stub| stub.lid = 0, event::LID_CHANGE, lid(None)),
    ];
    for (change, code, expected) in cases {
        let bench = infiniband(&[0x8001]).bench();
        let mut ud = bench.pd.create_qp(&bench.init(QpType::Ud)).unwrap();
        ready(&mut *ud, QpType::Ud);
        // One is connected, and one has told its peer the port's address.
        let [rc, begun] = [3, 1].map(|count| connected(&bench, count));
        let unused = bench.pd.create_qp(&bench.init(QpType::Rc)).unwrap();
        change(&mut bench.stub.lock().unwrap());
        tell(&bench.stub, 1, code);
        let failure = expected.map(|change| failure(change, 1));
        assert_eq!(bench.device.port_failure(), failure);
        let heard: Vec<_> = std::iter::from_fn(|| bench.device.next_async_event()).collect();
        let told = |qp: &dyn QueuePair| {
            let fatal = AsyncEvent::QpFatal(qp.qpn());
            heard.iter().filter(|event| **event == fatal).count()
        };
        let is_ended = usize::from(expected.is_some());
        let all = [&*rc, &*begun, &*ud, &*unused].map(|qp| (told(qp), qp.state()));
        let ended = |before| match expected {
            Some(_) => (1, QpState::Error),
            None => (0, before),
        };
        let expected = [
            ended(QpState::Rts),
            ended(QpState::Init),
            (0, QpState::Rts),
            (0, QpState::Reset),
        ];
        assert_eq!(all, expected, "{heard:?}");
        // The device knows that, too, so that requests are flushed.
        let stub = bench.stub.lock().unwrap();
        let to_error = |(attr, _): &&(abi::QpAttr, i32)| attr.qp_state == QpState::Error as i32;
        assert_eq!(stub.modified.iter().filter(to_error).count(), 2 * is_ended);
    }
}

#[test]
fn what_happens_to_a_port_again_is_another_failure() {
    let bench = infiniband(&[0x8001]).bench();
    let before = gid("fe80::1");
    for number in 1..4 {
        let qp = connected(&bench, 3);
        bench.stub.lock().unwrap().gids.clear();
        tell(&bench.stub, 1, event::GID_CHANGE);
        let change = PortChange::Gid {
            before,
            after: None,
        };
        assert_eq!(bench.device.port_failure(), Some(failure(change, number)));
        assert_eq!(qp.state(), QpState::Error);
        // The address is back.
        bench.stub.lock().unwrap().gids = vec![entry("fe80::1", 0, 0)];
        tell(&bench.stub, 1, event::GID_CHANGE);
        assert_eq!(bench.device.port_failure(), Some(failure(change, number)));
    }
}

#[test]
fn a_port_that_is_down_may_come_up_before_the_retries_are_used_up() {
    let bench = Bench::new();
    let qp = bench.ready(QpType::Rc);
    let down = PortChange::Down { was_active: true };
    for (code, expected) in [
        (event::PORT_ERR, Some(failure(down, 1))),
        (event::PORT_ACTIVE, None),
        (event::PORT_ERR, Some(failure(down, 2))),
    ] {
        tell(&bench.stub, 1, code);
        tell(&bench.stub, 2, event::PORT_ERR);
        assert_eq!(bench.device.port_failure(), expected);
        assert_eq!(qp.state(), QpState::Rts);
    }
    let bench = Bench::with("", |stub| stub.port_state = 1);
    let down = PortChange::Down { was_active: false };
    assert_eq!(bench.device.port_failure(), Some(failure(down, 1)));
}

#[test]
fn a_gid_is_chosen_by_address_or_subnet() {
    let driven = || {
        Driven::by("mlx5_core", |stub| {
            stub.gids = vec![
                entry("fe80::1", 0, 1),
                entry("fe80::1", 1, 2),
                entry("::ffff:192.0.2.1", 2, 1),
                entry("::ffff:192.0.2.1", 3, 2),
                entry("::ffff:198.51.100.1", 4, 2),
                entry("2001:db8::1", 5, 2),
            ];
        })
    };
    let choice = |options: &str| {
        let name = format!("ibv:stub0{options}").parse().unwrap();
        driven().provider().choice(&name).unwrap()
    };
    for (options, index) in [
        ("", 3),
        (",gid=198.51.100.1", 4),
        (",gid=192.0.2.1", 3),
        (",gid=fe80::1", 1),
        (",subnet=198.51.0.0/16", 4),
        (",subnet=2001:db8::/32", 5),
    ] {
        assert_eq!(choice(options).gid_index, index, "{options}");
    }
    let said = driven().refusal(",gid=203.0.113.1").to_string();
    assert!(
        said.starts_with("no address of port 1 matches gid=203.0.113.1")
            && said.contains("192.0.2.1, 198.51.100.1")
            && !said.contains('\n'),
        "{said}"
    );
    let said = driven().refusal(",subnet=203.0.113.0/24").to_string();
    assert!(said.contains("matches subnet=203.0.113.0/24"), "{said}");
    let roce = |options: &str| driven().open(options).unwrap().info().roce;
    assert_eq!(roce(""), Some(RoceVersion::V2));
    assert_eq!(roce(",gid_index=2"), Some(RoceVersion::V1));
}

#[test]
fn the_administrators_traffic_class_holds_unless_the_name_gives_one() {
    for (text, class) in [("106\n", 106), ("Global tclass=104\n", 104), ("none", 0)] {
        let driven = Driven::by("mlx5_core", |_| {});
        let tc = driven.folder.path().join("stub0/tc/1");
        std::fs::create_dir_all(&tc).unwrap();
        std::fs::write(tc.join("traffic_class"), text).unwrap();
        let choice = |options: &str| {
            let name = format!("ibv:stub0{options}").parse().unwrap();
            driven.provider().choice(&name).unwrap().traffic_class
        };
        assert_eq!((choice(""), choice(",traffic_class=8")), (class, 8));
        let bench = driven.bench();
        let mut qp = bench.pd.create_qp(&bench.init(QpType::Rc)).unwrap();
        for step in &steps()[..2] {
            qp.modify(step).unwrap();
        }
        let (rtr, _) = bench.stub.lock().unwrap().modified[1];
        assert_eq!(rtr.ah_attr.grh.traffic_class, class);
    }
}

#[test]
fn completion_queues_with_a_channel_take_the_interrupts_in_turn() {
    let interrupts = |options: &str| {
        let driven = Driven::by("mlx5_core", |stub| stub.vectors = 3);
        let device = driven.open(options).unwrap();
        let channel = device.create_channel().unwrap();
        driven.stub.lock().unwrap().vectors_used.clear();
        let _cqs: Vec<_> = (0..4)
            .map(|_| {
                let init = CqInit {
                    depth: 4,
                    channel: Some(channel.clone()),
                    ..CqInit::default()
                };
                device.create_cq(&init).unwrap()
            })
            .collect();
        let stub = driven.stub.lock().unwrap();
        (stub.vectors_used.clone(), stub.moderated.clone())
    };
    assert_eq!(interrupts(""), (vec![0, 1, 2, 0], Vec::new()));
    assert_eq!(interrupts(",comp_vector=2").0, [2; 4]);
    let driven = Driven::by("mlx5_core", |stub| stub.vectors = 3);
    let said = driven
        .open(",comp_vector=3")
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(said.contains("comp_vector") && said.contains('2'), "{said}");
    assert_eq!(interrupts(",cq_moderation=16:50").1, [(16, 50); 4]);
    // Without a channel there are no interrupts.
    let driven = Driven::by("mlx5_core", |stub| stub.vectors = 3);
    let device = driven.open(",cq_moderation=16:50").unwrap();
    driven.stub.lock().unwrap().vectors_used.clear();
    let init = CqInit {
        depth: 4,
        ..CqInit::default()
    };
    let _cqs = [0; 2].map(|_| device.create_cq(&init).unwrap());
    let stub = driven.stub.lock().unwrap();
    assert_eq!(
        (&*stub.vectors_used, stub.moderated.len()),
        (&[0, 0][..], 0)
    );
}

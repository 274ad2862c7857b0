//! Tests of connections over a stub of librdmacm.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use headworks_verbs::interpose::{InterposedDevice, Interposer};
use headworks_verbs::{CqInit, Device, Lid, Mtu, QpAttr, QpInit, QpState, QpType, QueuePair};

use super::stub::{self, manager};
use super::{Bench, steps};
use crate::abi::{AhAttr, GlobalRoute};
use crate::attributes;
use crate::cm::abi::event;
use crate::cm::{CmError, CmListener, Connection, Libraries, Route};

fn libraries() -> Libraries {
    Libraries {
        manager: manager::api(),
        verbs: stub::api(),
        root: Path::new("/nonexistent"),
    }
}

/// A stub device, a queue pair on it, and a stub of librdmacm that knows the device's address.
struct MeetingFixture {
    manager: manager::Shared,
    qp: Box<dyn QueuePair>,
    bench: Bench,
}

fn here() -> MeetingFixture {
    on(Bench::new())
}

fn on(bench: Bench) -> MeetingFixture {
    let qp = bench.pd.create_qp(&bench.init(QpType::Rc)).unwrap();
    let manager = manager::start();
    {
        let mut state = manager.lock().unwrap();
        state.sgid = bench.stub.lock().unwrap().gids[2].gid;
        state.sgid_index = 2;
        state.has_path = true;
    }
    MeetingFixture { manager, qp, bench }
}

impl MeetingFixture {
    fn comes(&self, event: i32, said: &[u8]) {
        self.fails(event, 0, said);
    }

    fn fails(&self, event: i32, status: i32, said: &[u8]) {
        let mut state = self.manager.lock().unwrap();
        state.events.push_back((event, status, said.to_vec()));
    }

    /// Returns and clears the recorded calls of librdmacm. Checks that every event was acknowledged.
    fn log(&self) -> Vec<String> {
        let mut state = self.manager.lock().unwrap();
        assert_eq!(state.unacknowledged, 0, "an event was not acknowledged");
        std::mem::take(&mut state.log)
    }

    fn refuses(&self, call: &'static str, errno: i32) {
        self.manager.lock().unwrap().fails.insert(call, errno);
    }

    fn call(&self) -> Result<Connection, CmError> {
        Connection::call_by(libraries(), &address(), None)
    }

    /// Returns an outgoing call whose route is resolved.
    fn routed(&self) -> Connection {
        let mut call = self.call().unwrap();
        self.comes(event::ADDR_RESOLVED, b"");
        self.comes(event::ROUTE_RESOLVED, b"");
        assert!(call.resolve().unwrap().is_some());
        self.log();
        call
    }

    /// Returns the modifications of the queue pair: state, destination, receive and send PSN, timeout.
    fn moves(&self) -> Vec<(i32, u32, u32, u32, u8)> {
        let state = self.bench.stub.lock().unwrap();
        let of = |(attr, _): &(crate::abi::QpAttr, i32)| {
            let psns = (attr.rq_psn, attr.sq_psn);
            (
                attr.qp_state,
                attr.dest_qp_num,
                psns.0,
                psns.1,
                attr.timeout,
            )
        };
        state.modified.iter().map(of).collect()
    }
}

fn address() -> SocketAddr {
    "192.0.2.1:7471".parse().unwrap()
}

/// The modifications to INIT, RTR and RTS that the stub's attributes demand. The timeout is the maximum,
/// because the stub's is longer.
const MOVES: [(i32, u32, u32, u32, u8); 3] =
    [(1, 0, 0, 0, 0), (2, 0x77, 5, 0, 0), (3, 0, 0, 9, 17)];

#[test]
fn a_call_goes_from_the_address_to_the_queue_pair_and_ends() {
    let mut here = here();
    let from = "10.0.0.1:0".parse().unwrap();
    let mut call = Connection::call_by(libraries(), &address(), Some(&from)).unwrap();
    let resolve = "resolve_addr 10.0.0.1:0 192.0.2.1:7471";
    assert_eq!(here.log(), ["+channel", "+id 0x106", resolve]);
    assert_eq!(call.resolve().unwrap(), None);
    here.comes(event::ADDR_RESOLVED, b"");
    assert_eq!(call.resolve().unwrap(), None);
    assert_eq!(here.log(), ["resolve_route"]);
    here.comes(event::ROUTE_RESOLVED, b"");
    let route = call.resolve().unwrap().unwrap();
    let expected = Route {
        device: "stub0".to_owned(),
        port: 1,
        gid_index: 2,
        mtu: Some(Mtu::B1024),
        service_level: 5,
        traffic_class: 104,
        pkey_index: None,
    };
    assert_eq!(route, expected);
    call.prepare(&mut *here.qp).unwrap();
    call.ask(here.qp.qpn(), b"who?").unwrap();
    let qpn = here.qp.qpn().raw();
    assert_eq!(here.log(), [format!("connect {qpn:#x} who?")]);
    assert!(!call.step(&mut *here.qp).unwrap());
    here.comes(event::CONNECT_RESPONSE, b"me\0\0");
    assert!(call.step(&mut *here.qp).unwrap());
    assert_eq!(call.greeting(), b"me\0\0");
    // This side confirms the connection only when it can receive.
    assert_eq!(
        here.log(),
        ["attributes Rtr", "attributes Rts", "establish"]
    );
    assert_eq!(here.moves(), MOVES);
    // Events that mean nothing for a connection change nothing.
    here.comes(14, b"");
    assert!(!call.is_ended());
    here.comes(event::DISCONNECTED, b"");
    here.comes(15, b"");
    assert!(call.is_ended());
    drop(call);
    assert_eq!(here.log(), ["disconnect", "-id", "-channel"]);
}

#[test]
fn a_listener_takes_callers_over_and_answers_or_refuses() {
    let mut here = here();
    let listener = CmListener::by(libraries(), &"0.0.0.0:0".parse().unwrap()).unwrap();
    assert_eq!(listener.address().port(), 7471);
    let begun = ["+channel", "+id 0x106", "bind 0.0.0.0:0", "listen"];
    assert_eq!(here.log(), begun);
    assert!(listener.try_accept().unwrap().is_none());
    // This event is no connection request.
    here.comes(event::DEVICE_REMOVAL, b"");
    here.comes(event::CONNECT_REQUEST, b"who?");
    let mut asked = listener.try_accept().unwrap().unwrap();
    assert_eq!(asked.greeting(), b"who?");
    assert_eq!(here.log(), ["+channel", "migrate"]);
    assert_eq!(asked.route().unwrap().gid_index, 2);
    asked.prepare(&mut *here.qp).unwrap();
    asked.answer(&mut *here.qp, b"me").unwrap();
    let accepted = format!("accept {:#x} me", here.qp.qpn().raw());
    // The queue pair can receive before this side accepts.
    assert_eq!(here.log(), ["attributes Rtr", "attributes Rts", &accepted]);
    assert_eq!(here.moves(), MOVES);
    assert!(!asked.step(&mut *here.qp).unwrap());
    here.comes(event::ESTABLISHED, b"");
    assert!(asked.step(&mut *here.qp).unwrap());
    drop(asked);
    here.log();
    here.comes(event::CONNECT_REQUEST, b"");
    let asked = listener.try_accept().unwrap().unwrap();
    asked.refuse(b"no").unwrap();
    let refused = ["+channel", "migrate", "reject no", "-id", "-channel"];
    assert_eq!(here.log(), refused);
}

#[test]
fn an_address_that_no_device_has_is_not_listened_at() {
    let here = here();
    let at = |address: &str| CmListener::by(libraries(), &address.parse().unwrap());
    // The kernel accepts the addresses of the loopback device.
    for loopback in ["127.0.0.1:7471", "[::1]:7471"] {
        let error = at(loopback).map(drop).unwrap_err();
        assert!(matches!(error, CmError::NotOfADevice), "{error}");
        assert!(!here.log().contains(&"listen".to_owned()));
    }
    for anywhere in ["0.0.0.0:7471", "[::]:7471"] {
        let listener = at(anywhere).unwrap();
        assert_eq!(listener.check(&"ibv:other".parse().unwrap()), Ok(()));
    }
    let listener = at("192.0.2.1:7471").unwrap();
    here.comes(event::DEVICE_REMOVAL, b"");
    let error = listener.try_accept().map(drop).unwrap_err();
    assert!(matches!(error, CmError::Removed), "{error}");
    drop(listener);
    here.refuses("bind", libc::ENODEV);
    let error = at("192.0.2.1:7471").map(drop).unwrap_err();
    assert!(matches!(error, CmError::NotOfADevice), "{error}");
    here.refuses("bind", libc::EADDRNOTAVAIL);
    let error = at("192.0.2.1:7471").map(drop).unwrap_err();
    assert!(matches!(error, CmError::System { .. }), "{error}");
}

#[test]
fn a_listener_knows_the_device_of_its_address() {
    let here = here();
    let listener = CmListener::by(libraries(), &address()).unwrap();
    let check = |asked: &str| listener.check(&asked.parse().unwrap());
    assert_eq!(check("ibv"), Ok(()));
    assert_eq!(check("ibv:stub0,port=1"), Ok(()));
    for other in ["ibv:stub1", "ibv:stub0,port=2"] {
        let said = check(other).unwrap_err().to_string();
        assert!(said.contains(other) && said.contains("ibv:stub0"), "{said}");
    }
    drop(here);
}

#[test]
fn a_caller_that_cannot_be_taken_over_is_not_the_end_of_the_listener() {
    let here = here();
    let listener = CmListener::by(libraries(), &address()).unwrap();
    here.log();
    for (what, errno) in [("+channel", libc::EMFILE), ("migrate", libc::ENOMEM)] {
        here.refuses(what, errno);
        here.comes(event::CONNECT_REQUEST, b"first");
        assert!(listener.try_accept().unwrap().is_none());
        // The listener destroys the identifier, which refuses the request.
        assert!(here.log().contains(&"-id".to_owned()), "{what}");
        here.manager.lock().unwrap().fails.clear();
        here.comes(event::CONNECT_REQUEST, b"second");
        let asked = listener.try_accept().unwrap().unwrap();
        assert_eq!(asked.greeting(), b"second");
    }
}

#[test]
fn every_connection_failure_is_reported() {
    let here = here();
    let said = |error: &CmError| {
        let said = error.to_string();
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    here.refuses("resolve_addr", libc::ENODEV);
    let error = here.call().unwrap_err();
    assert!(matches!(error, CmError::NoWay { .. }), "{error}");
    here.refuses("+channel", libc::ENOENT);
    let error = here.call().unwrap_err();
    assert!(
        said(&error).contains("no RDMA device on this machine"),
        "{error}"
    );
    here.manager.lock().unwrap().fails.clear();
    for (event, status, expected) in [
        (event::ADDR_ERROR, -libc::ETIMEDOUT, "timed out"),
        (event::DEVICE_REMOVAL, 0, "removed"),
        (event::DISCONNECTED, 0, "resolving the address"),
    ] {
        let mut call = here.call().unwrap();
        here.fails(event, status, b"");
        let error = call.resolve().unwrap_err();
        assert!(said(&error).contains(expected), "{error}");
    }
    for (event, status, expected) in [
        (event::REJECTED, 8, "nobody listens"),
        (event::REJECTED, 28, "has accepted another connection"),
        (event::REJECTED, 99, "(reason 99)"),
        (event::UNREACHABLE, -libc::ETIMEDOUT, "nobody answers"),
    ] {
        let mut here = self::here();
        let mut call = here.routed();
        call.prepare(&mut *here.qp).unwrap();
        call.ask(here.qp.qpn(), b"").unwrap();
        here.fails(event, status, b"");
        let error = call.step(&mut *here.qp).unwrap_err();
        assert!(said(&error).contains(expected), "{error}");
        drop(call);
        // No connection was established, so none is disconnected.
        assert!(!here.log().contains(&"disconnect".to_owned()));
    }
}

#[test]
fn an_address_that_the_port_does_not_have_or_another_entry_is_refused() {
    let mut here = here();
    here.manager.lock().unwrap().sgid = [1, 2];
    let mut call = here.call().unwrap();
    here.comes(event::ADDR_RESOLVED, b"");
    here.comes(event::ROUTE_RESOLVED, b"");
    let error = call.resolve().unwrap_err().to_string();
    assert!(
        error.contains("stub0") && error.contains("address"),
        "{error}"
    );

    let right = here.bench.stub.lock().unwrap().gids[2].gid;
    here.manager.lock().unwrap().sgid = right;
    here.manager.lock().unwrap().sgid_index = 1;
    let mut call = here.routed();
    call.prepare(&mut *here.qp).unwrap();
    call.ask(here.qp.qpn(), b"").unwrap();
    here.comes(event::CONNECT_RESPONSE, b"");
    let error = call.step(&mut *here.qp).unwrap_err().to_string();
    assert!(
        error.contains("index 1") && error.contains("index 2"),
        "{error}"
    );
}

#[test]
fn a_route_without_path_details_is_accepted() {
    let here = here();
    here.manager.lock().unwrap().has_path = false;
    let mut call = here.routed();
    let route = call.route().unwrap();
    assert_eq!((route.mtu, route.service_level), (None, 0));
    let device = route.own_device().unwrap().to_string();
    assert!(
        device.starts_with("ibv:stub0,port=1,gid_index=2"),
        "{device}"
    );
}

#[test]
fn within_a_subnet_of_infiniband_the_lid_and_the_partition_are_the_managers() {
    // The device has the name that the route gives it: the first GID, the second partition.
    let bench = Bench::with(",gid_index=0,pkey_index=1,service_level=5", |stub| {
        (stub.link_layer, stub.lid) = (1, 5);
    });
    let mut here = on(bench);
    let port = here.bench.stub.lock().unwrap().gids[0].gid;
    {
        let mut state = here.manager.lock().unwrap();
        // The GID of the peer's port. Within a subnet only the identifier has it, not the attributes.
        let other = [port[0], port[1].wrapping_add(1)];
        (state.sgid, state.infiniband) = (port, Some((other, 9, 1)));
    }
    let mut call = here.routed();
    let route = call.route().unwrap();
    assert_eq!((route.gid_index, route.pkey_index), (0, Some(1)));
    let device = route.own_device().unwrap().to_string();
    assert!(device.contains("pkey_index=1"), "{device}");
    call.prepare(&mut *here.qp).unwrap();
    call.ask(here.qp.qpn(), b"").unwrap();
    here.comes(event::CONNECT_RESPONSE, b"");
    assert!(call.step(&mut *here.qp).unwrap());
    let moved = here.bench.stub.lock().unwrap().modified.clone();
    assert_eq!(moved[0].0.pkey_index, 1);
    let way = moved[1].0.ah_attr;
    assert_eq!((way.dlid, way.is_global, way.sl), (9, 0, 5));
}

/// Address vectors with fields that `QpAttr` lacks: one to a router, for another subnet; two within a subnet,
/// with a global routing header and without.
fn ways() -> [AhAttr; 3] {
    let far = AhAttr {
        grh: GlobalRoute {
            dgid: [7, 8],
            flow_label: 0x1_2345,
            sgid_index: 0,
            hop_limit: 3,
            traffic_class: 104,
        },
        dlid: 0x33,
        sl: 2,
        src_path_bits: 1,
        static_rate: 6,
        is_global: 1,
        port_num: 1,
    };
    let with = AhAttr { dlid: 9, ..far };
    let without = AhAttr {
        grh: GlobalRoute::default(),
        is_global: 0,
        ..with
    };
    [far, with, without]
}

#[test]
fn the_queue_pair_goes_all_of_the_managers_way_and_once() {
    for way in ways() {
        let bench = Bench::with(",gid_index=0,service_level=5", |stub| {
            (stub.link_layer, stub.lid) = (1, 5);
        });
        let mut here = on(bench);
        let sgid = here.bench.stub.lock().unwrap().gids[0].gid;
        let other = [sgid[0], sgid[1].wrapping_add(1)];
        {
            let mut state = here.manager.lock().unwrap();
            (state.sgid, state.infiniband) = (sgid, Some((other, 9, 0)));
            state.way = Some(way);
        }
        let mut call = here.routed();
        call.prepare(&mut *here.qp).unwrap();
        call.ask(here.qp.qpn(), b"").unwrap();
        here.comes(event::CONNECT_RESPONSE, b"");
        assert!(call.step(&mut *here.qp).unwrap());
        let gone = |at: usize| here.bench.stub.lock().unwrap().modified[at].0.ah_attr;
        assert_eq!(gone(1), way);
        // If the queue pair is connected again without librdmacm, it uses the address vector of the new
        // attributes.
        let [init, rtr, _] = steps();
        let rtr = QpAttr {
            dest_gid: Some(attributes::gid(other)),
            dest_lid: Lid::new(4),
            ..rtr
        };
        for attr in [&QpAttr::to_state(QpState::Reset), &init, &rtr] {
            here.qp.modify(attr).unwrap();
        }
        let own = AhAttr {
            dlid: 4,
            sl: 5,
            port_num: 1,
            ..AhAttr::default()
        };
        assert_eq!(gone(5), own);
    }
}

#[test]
fn a_watched_queue_pair_goes_the_same_way() {
    struct Nobody;
    impl Interposer for Nobody {}
    let here = here();
    let watched = InterposedDevice::new(here.bench.device.clone(), Arc::new(Nobody));
    let cq = watched.create_cq(&CqInit {
        depth: 10,
        ..CqInit::default()
    });
    let cq = cq.unwrap();
    let init = QpInit {
        send_cq: cq.clone(),
        recv_cq: cq,
        ..here.bench.init(QpType::Rc)
    };
    let mut qp = watched.alloc_pd().unwrap().create_qp(&init).unwrap();
    here.manager.lock().unwrap().way = Some(AhAttr {
        grh: GlobalRoute {
            sgid_index: 2,
            ..ways()[0].grh
        },
        ..ways()[0]
    });
    let mut call = here.routed();
    call.prepare(&mut *qp).unwrap();
    call.ask(qp.qpn(), b"").unwrap();
    here.comes(event::CONNECT_RESPONSE, b"");
    assert!(call.step(&mut *qp).unwrap());
    let way = here.manager.lock().unwrap().way;
    let gone = here.bench.stub.lock().unwrap().modified[1].0.ah_attr;
    assert_eq!(Some(gone), way);
}

#[test]
fn a_way_never_asks_for_more_than_the_port_has_active() {
    let here = here();
    let mut call = here.routed();
    assert_eq!(call.route().unwrap().mtu, Some(Mtu::B1024));
    here.bench.stub.lock().unwrap().active_mtu = 2;
    let mut call = here.routed();
    assert_eq!(call.route().unwrap().mtu, Some(Mtu::B512));
}

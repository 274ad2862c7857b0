//! Objects: choice of a device, limits, order of destruction, forks.

use std::process::Command;
use std::sync::Arc;

use headworks_verbs::{
    Access, AhInit, AllocRequest, Atomics, Buffer, Completion, CqInit, Gid, HeapBuffer,
    ModifyError, Mtu, OpenError, PostErrorKind, Promises, Provider, QpAttr, QpCaps, QpInit,
    QpState, QpType, ResourceError, SrqInit,
};

use crate::abi;

use super::{Bench, stub};
use crate::{IbvProvider, Network, Refusal};

fn open(name: &str) -> Result<Arc<dyn headworks_verbs::Device>, OpenError> {
    IbvProvider::with(stub::api()).open(&name.parse().unwrap())
}

fn said<T>(result: Result<T, impl std::fmt::Display>) -> String {
    let said = result
        .map(drop)
        .map_err(|error| error.to_string())
        .unwrap_err();
    assert!(!said.contains('\n'), "{said}");
    said
}

#[test]
fn device_info_reports_attributes_and_promises() {
    let bench = Bench::new();
    let info = bench.device.info();
    assert_eq!(info.name.to_string(), "ibv:stub0");
    // The third entry is RoCE v2 over IPv4.
    let ipv4 = std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped();
    assert_eq!(info.gid, Gid(ipv4.octets()));
    assert!(
        info.description.contains("GID index 2"),
        "{}",
        info.description
    );
    assert_eq!(info.mtu, Mtu::B2048);
    assert_eq!(info.promises, Promises::default());
    let limits = &info.limits;
    assert_eq!(
        (limits.max_qp, limits.max_rd_atomic, limits.max_message),
        (4, 12, 1 << 30)
    );
    // The limit is the smallest of all kinds of queues.
    assert_eq!(limits.max_sge, 3);
    // 192 is the longest of the tried sizes that this device accepts.
    assert_eq!(limits.max_inline, 192);
    let listed = IbvProvider::with(stub::api()).devices().unwrap();
    assert_eq!(listed, std::slice::from_ref(info));
    assert_eq!(open("ibv").unwrap().info().gid, info.gid);
}

#[test]
fn options_apply_and_impossible_ones_fail_in_one_line() {
    let options = ",gid_index=0,mtu=512,ordered_between_writes=yes,in_order_within_write=64";
    let bench = Bench::with(options, |_| {});
    let info = bench.device.info();
    assert_eq!((info.gid.0[0], info.mtu), (0xfe, Mtu::B512));
    assert!(info.promises.ordered_between_writes);
    assert_eq!(info.promises.in_order_within_write, 64);
    assert!(said(open("ibv:stub1")).contains("there is ibv:stub0"));
    assert!(said(open("ibv:stub0,gid_index=3")).contains("in use are 0, 1, 2"));
    assert!(said(open("ibv:stub0,colour=red")).contains("colour=red"));
    stub::plug_in("stub1");
    assert!(said(open("ibv")).contains("ibv:stub0, ibv:stub1"));
    bench.stub.lock().unwrap().gids.clear();
    assert!(said(open("ibv:stub0")).contains("no address"));
    bench.stub.lock().unwrap().transport_type = 1;
    assert!(said(open("ibv:stub0")).contains("iWARP"));
}

#[test]
fn options_beyond_port_limits_are_refused_with_the_limits() {
    stub::plug_in("stub0");
    for (options, expected) in [
        ("port=2", "port=2 is more than stub0 has: at most 1"),
        (
            "mtu=4096",
            "mtu=4096 is more than port 1 of stub0 has active: at most 2048",
        ),
        (
            "pkey_index=2",
            "pkey_index=2 is more than port 1 of stub0 has in its table: at most 1",
        ),
        (
            "inline_up_to=257",
            "inline_up_to=257 is more than stub0 sends inline: at most 192",
        ),
    ] {
        let error = open(&format!("ibv:stub0,{options}")).map(drop).unwrap_err();
        assert!(matches!(error, OpenError::OptionLimit { .. }), "{error}");
        assert_eq!(error.to_string(), format!("device option {expected}"));
    }
    for (options, mtu) in [
        ("mtu=2048", Mtu::B2048),
        ("mtu=256,pkey_index=1", Mtu::B256),
    ] {
        let device = open(&format!("ibv:stub0,{options}")).unwrap();
        assert_eq!(device.info().mtu, mtu);
    }
}

#[test]
fn the_port_choice_and_its_failure_reason_are_reported() {
    let stub = stub::plug_in("stub0");
    let choice = || IbvProvider::with(stub::api()).choice(&"ibv:stub0".parse().unwrap());
    let chosen = choice().unwrap();
    let info = open("ibv:stub0").unwrap().info().clone();
    assert_eq!((chosen.gid, chosen.mtu), (info.gid, info.mtu));
    let found = (chosen.port, chosen.gid_index, chosen.network, chosen.is_up);
    assert_eq!(found, (1, 2, Network::RoceV2, true));
    assert!(info.description.ends_with(&chosen.to_string()), "{info:?}");
    // Only RoCE v1 is left.
    stub.lock().unwrap().gids.truncate(2);
    stub.lock().unwrap().gids[0].gid_type = 0;
    assert_eq!(choice().unwrap().network, Network::RoceV1);
    let refusal = || match choice().unwrap_err() {
        OpenError::Provider { source, .. } => *source.downcast::<Refusal>().unwrap(),
        error => panic!("{error}"),
    };
    // Another transport is not RoCE, whatever its ports and addresses say.
    for (transport_type, link_layer) in [(4, 0), (4, 2), (2, 2), (3, 0), (-1, 0)] {
        {
            let mut stub = stub.lock().unwrap();
            (stub.transport_type, stub.link_layer) = (transport_type, link_layer);
        }
        let chosen = choice().unwrap();
        assert_eq!(
            chosen.network,
            Network::Other,
            "{transport_type} {link_layer}"
        );
        let description = open("ibv:stub0").unwrap().info().description.clone();
        assert!(
            description.contains("a network of its own") && !description.contains("RoCE"),
            "{description}"
        );
    }
    {
        let mut stub = stub.lock().unwrap();
        (stub.transport_type, stub.link_layer) = (0, 2);
    }
    stub.lock().unwrap().gids.clear();
    assert_eq!(refusal(), Refusal::NoAddress { port: 1 });
    stub.lock().unwrap().transport_type = 1;
    assert_eq!(refusal(), Refusal::Iwarp);
}

/// Runs this test in a child process with the variable set, because a test's thread must not set it.
#[test]
fn a_library_that_takes_no_locks_is_refused() {
    const VARIABLE: &str = "MLX5_SINGLE_THREADED";
    if std::env::var_os(VARIABLE).is_some_and(|value| value == "1") {
        stub::plug_in("stub0");
        assert!(said(open("ibv:stub0")).contains("MLX5_SINGLE_THREADED=1"));
        return;
    }
    let path = format!(
        "{}::a_library_that_takes_no_locks_is_refused",
        module_path!()
    );
    let name = path.split_once("::").expect("the crate and the rest").1;
    let again = Command::new(std::env::current_exe().unwrap())
        .env(VARIABLE, "1")
        .args(["--exact", name])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(said.contains("1 passed"), "{said}");
}

#[test]
fn a_device_without_atomics_gives_no_right_to_them() {
    let bench = Bench::with("", |stub| stub.atomic_cap = 0);
    let buffer: Arc<dyn Buffer> = HeapBuffer::new(64);
    let region = bench.pd.register(&buffer, Access::ALL);
    drop(region.unwrap());
    drop(bench.ready(QpType::Rc));
    let stub = bench.stub.lock().unwrap();
    assert_eq!(stub.registered, [7]);
    assert_eq!(stub.modified[0].0.qp_access_flags, 7);
}

#[test]
fn what_the_devices_atomics_are_atomic_with_is_told() {
    for (cap, atomics) in [
        (abi::ATOMIC_NONE, Atomics::None),
        (abi::ATOMIC_HCA, Atomics::Device),
        (abi::ATOMIC_GLOB, Atomics::Global),
    ] {
        let bench = Bench::with("", |stub| stub.atomic_cap = cap);
        assert_eq!(bench.device.info().abilities.atomics, atomics);
    }
}

#[test]
fn without_devices_there_is_none() {
    let provider = IbvProvider::with(stub::api());
    assert_eq!(provider.devices().unwrap(), []);
    assert!(said(open("ibv:mlx5_0")).contains("no RDMA device"));
}

#[test]
fn limits_are_named_before_the_device_is_asked() {
    let bench = Bench::new();
    let limit = |what: &str, error: String| {
        assert!(error.contains(what), "{error}");
        assert!(
            bench.stub.lock().unwrap().log.is_empty(),
            "the device was asked"
        );
    };
    let cq = |depth| {
        said(bench.device.create_cq(&CqInit {
            depth,
            ..CqInit::default()
        }))
    };
    limit("completions is 0: this device allows 1 to 4096", cq(0));
    limit("completions is 4097", cq(4097));
    let qp = |caps| {
        said(bench.pd.create_qp(&QpInit {
            caps,
            ..bench.init(QpType::Rc)
        }))
    };
    let caps = QpCaps::default();
    let max_send_wr = 4097;
    limit(
        "4097: this device allows 0 to 4096",
        qp(QpCaps {
            max_send_wr,
            ..caps
        }),
    );
    let max_recv_wr = 5000;
    limit(
        "receive queue size is 5000",
        qp(QpCaps {
            max_recv_wr,
            ..caps
        }),
    );
    let max_send_sge = 4;
    limit(
        "is 4: this device allows 0 to 3",
        qp(QpCaps {
            max_send_sge,
            ..caps
        }),
    );
    let max_inline = 193;
    limit(
        "is 193: this device allows 0 to 192",
        qp(QpCaps { max_inline, ..caps }),
    );
    let srq = |max_wr, max_sge, limit| {
        said(bench.pd.create_srq(&SrqInit {
            max_wr,
            max_sge,
            limit,
        }))
    };
    limit("is 2049: this device allows 1 to 2048", srq(2049, 1, 0));
    limit("is 4: this device allows 0 to 3", srq(1, 4, 0));
    limit("is 2: this device allows 0 to 1", srq(1, 1, 2));
    let level = AhInit {
        service_level: 16,
        ..AhInit::to(Gid::default())
    };
    limit("service level is 16", said(bench.pd.create_ah(&level)));
}

#[test]
fn a_region_is_as_large_as_the_device_says_at_most() {
    let bench = Bench::with("", |stub| stub.max_region = 4096);
    let register = |buffer: Arc<dyn Buffer>| bench.pd.register(&buffer, Access::ALL);
    let more = said(register(HeapBuffer::new(4097)));
    assert!(
        more.contains("bytes of a memory region is 4097: this device allows 1 to 4096"),
        "{more}"
    );
    assert!(bench.stub.lock().unwrap().log.is_empty());
    // This holds for the program's own memory and for the device's.
    let own = register(HeapBuffer::new(4096)).unwrap();
    let devices = bench.device.alloc(&AllocRequest::of(4096)).unwrap();
    let at = devices.as_ptr();
    let devices = register(devices).unwrap();
    assert_eq!((devices.buffer().as_ptr(), own.buffer().len()), (at, 4096));
    // If the device does not report a limit, it is asked.
    let silent = Bench::new();
    let buffer: Arc<dyn Buffer> = HeapBuffer::new(1 << 20);
    assert!(silent.pd.register(&buffer, Access::ALL).is_ok());
}

#[test]
fn queue_pair_capabilities_are_the_granted_ones() {
    let bench = Bench::new();
    let qp = bench.pd.create_qp(&QpInit {
        caps: QpCaps {
            max_send_wr: 100,
            max_inline: 60,
            ..QpCaps::default()
        },
        ..bench.init(QpType::Rc)
    });
    let caps = *qp.unwrap().caps();
    assert_eq!((caps.max_send_wr, caps.max_inline), (128, 64));
    // Smaller sizes that the device reports when asked replace those that it returned on creation.
    {
        let mut stub = bench.stub.lock().unwrap();
        (stub.sizes.max_send_wr, stub.sizes.max_inline_data) = (100, 56);
        stub.srq_size = 90;
    }
    let qp = bench.pd.create_qp(&bench.init(QpType::Rc)).unwrap();
    let caps = qp.caps();
    assert_eq!((caps.max_send_wr, caps.max_inline), (100, 56));
    assert_eq!((caps.max_recv_wr, caps.max_send_sge), (128, 3));
    let srq = bench.pd.create_srq(&SrqInit {
        max_wr: 70,
        max_sge: 1,
        limit: 0,
    });
    let srq = srq.unwrap();
    assert_eq!(srq.max_wr(), 90);
    srq.set_limit(90).unwrap();
    assert!(said(srq.set_limit(91)).contains("allows 0 to 90"));
}

#[test]
fn more_than_there_are_is_an_error_with_their_number_until_one_goes() {
    let bench = Bench::new();
    let region = || {
        let buffer: Arc<dyn Buffer> = HeapBuffer::new(64);
        bench.pd.register(&buffer, Access::ALL)
    };
    let mut all: Vec<_> = (0..6).map(|_| region().unwrap()).collect();
    assert_eq!(said(region()), "no memory regions left: this device has 6");
    all.pop();
    all.push(region().unwrap());
    assert!(
        bench
            .stub
            .lock()
            .unwrap()
            .registered
            .iter()
            .all(|&access| access == 15)
    );
    // Objects that the provider creates to try the device are gone.
    let limited = Bench::with("", |stub| stub.max_pd = 3);
    let mut domains: Vec<_> = (0..2).map(|_| limited.device.alloc_pd().unwrap()).collect();
    let more = said(limited.device.alloc_pd());
    assert_eq!(more, "no protection domains left: this device has 3");
    assert_eq!(limited.stub.lock().unwrap().log, ["+pd", "+pd"]);
    domains.pop();
    domains.push(limited.device.alloc_pd().unwrap());
    assert!(limited.device.alloc_pd().is_err());
    let handle = || bench.pd.create_ah(&AhInit::to(Gid::default()));
    let _handles: Vec<_> = (0..3).map(|_| handle().unwrap()).collect();
    // Some devices would blame the address.
    bench.stub.lock().unwrap().fails = [("ah", libc::EINVAL)].into();
    assert_eq!(said(handle()), "no address handles left: this device has 3");
    bench.stub.lock().unwrap().fails = [].into();
    let queue = || {
        bench.device.create_cq(&CqInit {
            depth: 1,
            ..CqInit::default()
        })
    };
    // The bench already has one.
    let _queues: Vec<_> = (0..7).map(|_| queue().unwrap()).collect();
    assert_eq!(
        said(queue()),
        "no completion queues left: this device has 8"
    );
    let shared = || {
        bench.pd.create_srq(&SrqInit {
            max_wr: 1,
            max_sge: 1,
            limit: 0,
        })
    };
    let _shared: Vec<_> = (0..2).map(|_| shared().unwrap()).collect();
    assert_eq!(
        said(shared()),
        "no shared receive queues left: this device has 2"
    );
    let _qps: Vec<_> = (0..4).map(|_| bench.ready(QpType::Rc)).collect();
    let more = bench.pd.create_qp(&bench.init(QpType::Rc));
    assert_eq!(said(more), "no queue pairs left: this device has 4");
}

#[test]
fn system_errors_are_passed_on_with_advice() {
    let bench = Bench::new();
    let fails = |call, errno| {
        bench.stub.lock().unwrap().fails = [(call, errno)].into();
    };
    let buffer: Arc<dyn Buffer> = HeapBuffer::new(64);
    fails("mr", libc::ENOMEM);
    assert!(said(bench.pd.register(&buffer, Access::ALL)).contains("ulimit -l"));
    fails("qp", libc::ENOMEM);
    let refused = said(bench.pd.create_qp(&bench.init(QpType::Rc)));
    assert!(refused.contains("ulimit -l") && refused.contains("too large together"));
    fails("mr", libc::EFAULT);
    assert!(said(bench.pd.register(&buffer, Access::ALL)).contains("registering memory"));
    let inconsistent = bench.pd.register(&buffer, Access::REMOTE_WRITE);
    assert!(matches!(inconsistent, Err(ResourceError::Access)));
    fails("modify", libc::EINVAL);
    let mut qp = bench.pd.create_qp(&bench.init(QpType::Ud)).unwrap();
    let up = QpAttr {
        qkey: Some(1),
        ..QpAttr::to_state(QpState::Init)
    };
    assert!(matches!(qp.modify(&up), Err(ModifyError::Refused { .. })));
    assert_eq!(qp.state(), QpState::Reset);
    fails("modify", libc::ETIMEDOUT);
    assert!(matches!(
        qp.modify(&up),
        Err(ModifyError::PeerUnreachable { .. })
    ));
    let skipping = QpAttr::to_state(QpState::Rts);
    assert!(matches!(
        qp.modify(&skipping),
        Err(ModifyError::Transition { .. })
    ));
}

#[test]
fn objects_of_another_device_are_refused() {
    let bench = Bench::new();
    let other = open("ibv:stub0").unwrap();
    let shallow = CqInit {
        depth: 4,
        ..CqInit::default()
    };
    // The first CQ of each device has the same number.
    let cq = other.create_cq(&shallow).unwrap();
    assert_eq!(cq.id(), bench.cq.id());
    let foreign = QpInit {
        recv_cq: cq,
        ..bench.init(QpType::Rc)
    };
    assert!(said(bench.pd.create_qp(&foreign)).contains("belongs to another device"));
    let srq = other.alloc_pd().unwrap().create_srq(&SrqInit {
        max_wr: 4,
        max_sge: 1,
        limit: 0,
    });
    let foreign = QpInit {
        srq: Some(srq.unwrap()),
        ..bench.init(QpType::Rc)
    };
    assert!(said(bench.pd.create_qp(&foreign)).contains("belongs to another device"));
    let foreign = CqInit {
        channel: Some(other.create_channel().unwrap()),
        ..shallow
    };
    assert!(said(bench.device.create_cq(&foreign)).contains("belongs to another device"));
}

/// One object of every kind that a device creates.
fn everything(bench: Bench) -> (stub::Shared, Vec<Box<dyn std::any::Any>>) {
    let Bench {
        stub,
        device,
        pd,
        cq,
    } = bench;
    let channel = device.create_channel().unwrap();
    let evented = device.create_cq(&CqInit {
        depth: 4,
        channel: Some(channel.clone()),
        timestamps: false,
    });
    let evented = evented.unwrap();
    let srq = pd.create_srq(&SrqInit {
        max_wr: 4,
        max_sge: 1,
        limit: 0,
    });
    let srq = srq.unwrap();
    let qp = pd.create_qp(&QpInit {
        qp_type: QpType::Rc,
        send_cq: cq.clone(),
        recv_cq: evented.clone(),
        srq: Some(srq.clone()),
        caps: QpCaps::default(),
        signal_all: true,
    });
    let qp = qp.unwrap();
    let buffer = device.alloc(&AllocRequest::of(100)).unwrap();
    let region = pd.register(&buffer, Access::LOCAL_WRITE).unwrap();
    let ah = pd.create_ah(&AhInit::to(Gid::default())).unwrap();
    let all: Vec<Box<dyn std::any::Any>> = vec![
        Box::new(device),
        Box::new(pd),
        Box::new(channel),
        Box::new(cq),
        Box::new(evented),
        Box::new(srq),
        Box::new(region),
        Box::new(buffer),
        Box::new(ah),
        Box::new(qp),
    ];
    (stub, all)
}

#[test]
fn objects_outlive_their_dependents_in_any_drop_order() {
    for turn in 0..10 {
        for reversed in [false, true] {
            let bench = std::thread::spawn(move || {
                let (stub, mut all) = everything(Bench::new());
                stub.lock().unwrap().log.clear();
                all.rotate_left(turn);
                if reversed {
                    all.reverse();
                }
                all.into_iter().for_each(drop);
                std::mem::take(&mut stub.lock().unwrap().log)
            });
            let log = bench.join().unwrap();
            let mut sorted = log.clone();
            sorted.sort_unstable();
            let gone = [
                "-ah", "-channel", "-cq", "-cq", "-device", "-mr", "-pd", "-qp", "-srq",
            ];
            assert_eq!(sorted, gone, "from {turn}, reversed {reversed}");
            let last = |what: &str| log.iter().rposition(|gone| gone == what).unwrap();
            for (child, parents) in [
                ("-qp", &["-cq", "-srq", "-pd"][..]),
                ("-mr", &["-pd"]),
                ("-ah", &["-pd"]),
                ("-srq", &["-pd"]),
            ] {
                for parent in parents {
                    let first = log.iter().position(|gone| gone == parent).unwrap();
                    assert!(last(child) < first, "{child} after {parent}: {log:?}");
                }
            }
            assert!(log.iter().filter(|gone| *gone == "-cq").count() == 2);
            assert_eq!(log.last().map(String::as_str), Some("-device"));
            // The CQ with events is the second one at the latest, and the channel is destroyed after it.
            assert!(log.iter().position(|g| g == "-cq").unwrap() < last("-channel"));
        }
    }
}

#[test]
fn a_failed_destroy_does_not_stop_the_others() {
    let (stub, all) = everything(Bench::new());
    {
        let mut stub = stub.lock().unwrap();
        stub.log.clear();
        stub.fails = ["qp", "cq", "pd"].map(|what| (what, libc::EBUSY)).into();
    }
    drop(all);
    assert_eq!(stub.lock().unwrap().log.len(), 9);
}

#[test]
fn a_forked_child_is_refused_and_touches_nothing() {
    let bench = Bench::new();
    let mut qp = bench.ready(QpType::Rc);
    let cq = bench.cq.clone();
    let before = bench.stub.lock().unwrap().log.len();
    // SAFETY: the child makes a few calls that are refused, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut out = [Completion::default()];
        let mut right = cq.poll(&mut out).is_err();
        right &= qp.post_send(&[]) == Err(PostErrorKind::Forked.at(0));
        right &= qp.modify(&QpAttr::to_state(QpState::Error)) == Err(ModifyError::Forked);
        right &= bench.device.alloc_pd().is_err() && bench.device.next_async_event().is_none();
        let stub = bench.stub.clone();
        drop((qp, cq, bench));
        right &= stub.lock().unwrap().log.len() == before;
        // SAFETY: this ends the child without running any of the parent's code.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: `child` is this process's child, and `status` has the right type.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "{status:#x}"
    );
    assert_eq!(qp.post_send(&[]), Ok(()));
}

#[test]
fn from_reset_to_error_leads_a_way_that_the_kernel_knows() {
    for qp_type in [QpType::Rc, QpType::Ud] {
        let bench = Bench::new();
        let mut qp = bench.pd.create_qp(&bench.init(qp_type)).unwrap();
        let error = QpAttr::to_state(QpState::Error);
        qp.modify(&error).unwrap();
        assert_eq!(qp.state(), QpState::Error);
        let moved = bench.stub.lock().unwrap().modified.clone();
        let states: Vec<_> = moved.iter().map(|(attr, _)| attr.qp_state).collect();
        assert_eq!(states, [QpState::Init as i32, QpState::Error as i32]);
        // From there on, the states change as usual.
        qp.modify(&QpAttr::to_state(QpState::Reset)).unwrap();
        assert_eq!(qp.state(), QpState::Reset);
        bench.stub.lock().unwrap().fails.insert("modify", 22);
        assert!(qp.modify(&error).is_err());
    }
}

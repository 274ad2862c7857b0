//! Meeting over RDMA: errors without a device, at an address that nobody can reach, and without a listener.
//! Uses the devices of `HEADWORKS_IBV`, if it is set.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;

use headworks::runtime::testing;

use crate::test_env::{CommandProcess, TestEnv};

/// Returns the one line that the program prints on standard error. It must end with `code`.
fn said(fabric: &TestEnv, args: &[&str], code: i32) -> String {
    CommandProcess::start(&mut fabric.headworks(args)).expect_exit(code)
}

fn has_device() -> bool {
    let devices = std::fs::read_dir(Path::new("/sys/class/infiniband"));
    devices.is_ok_and(|mut devices| devices.next().is_some())
}

#[test]
fn a_missing_device_is_reported_without_advising_a_module() {
    if has_device() {
        return println!("skipped: this machine has an RDMA device");
    }
    let fabric = TestEnv::new();
    for args in [
        &["pipe", "listen", "rdma:127.0.0.1:7471"][..],
        &["pipe", "listen", "rdma:0.0.0.0:7471"],
        &["pipe", "connect", "rdma:127.0.0.1:7471"],
        &["pipe", "connect", "rdma:127.0.0.1:7471", "--timeout", "80"],
    ] {
        let said = said(&fabric, args, 1);
        assert!(said.contains("no RDMA device on this machine"), "{said}");
        assert!(said.contains("headworks doctor"), "{said}");
        assert!(!said.contains("modprobe"), "{said}");
    }
    let named = said(&fabric, &["doctor", "ibv:rxe0"], 2);
    assert!(named.contains("no RDMA device on this machine"), "{named}");
    fabric.is_clean();
}

/// Returns the two named devices and their addresses, or prints that there are none.
fn devices() -> Option<[(String, IpAddr); 2]> {
    let Some(names) = testing::devices() else {
        println!("skipped: {} names no devices", testing::DEVICES);
        return None;
    };
    let address = |name: String| {
        let device = headworks::open(&*name).expect("a device that was named");
        let gid = Ipv6Addr::from(device.info().gid.0);
        (name, gid.to_ipv4_mapped().expect("RoCE over IPv4").into())
    };
    Some(names.map(address))
}

/// Returns an address to meet at. Each test uses a port of its own.
fn at(ip: IpAddr, port: u16) -> String {
    format!("rdma:{}", SocketAddr::new(ip, port))
}

#[test]
fn an_unreachable_listen_address_is_refused_at_once() {
    let Some([(one, _), (_, ip)]) = devices() else {
        return;
    };
    let fabric = TestEnv::new();
    let at_other = at(ip, 7470);
    let refused = said(&fabric, &["pipe", "listen", &at_other, "--device", &one], 2);
    assert!(
        refused.contains(&at_other) && refused.contains(&one),
        "{refused}"
    );
    for ip in ["127.0.0.1", "::1"] {
        let at = at(ip.parse().expect("an address"), 7470);
        let refused = said(&fabric, &["pipe", "listen", &at], 2);
        assert!(
            refused.contains("no RDMA device has that address"),
            "{refused}"
        );
    }
    // At an address that somebody can reach, it waits.
    for at in [at(ip, 7470), at(Ipv6Addr::UNSPECIFIED.into(), 7470)] {
        let args = ["pipe", "listen", &at, "--timeout", "1"];
        let waited = said(&fabric, &args, 1);
        assert!(waited.contains("waiting for a caller"), "{waited}");
    }
    fabric.is_clean();
}

#[test]
fn a_connect_timeout_reports_the_missing_listener() {
    let Some([_, (_, ip)]) = devices() else {
        return;
    };
    let fabric = TestEnv::new();
    let at = at(ip, 7469);
    // The slowest machine needs this time for the first call, which finds the refusal.
    let said = said(&fabric, &["pipe", "connect", &at, "--timeout", "10"], 1);
    assert!(
        said.contains("nobody listens") && said.contains(&at),
        "{said}"
    );
    assert!(said.contains("(10 s)"), "{said}");
}

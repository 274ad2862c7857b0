//! Unmodified programs that are installed. Without them the tests are skipped, and say so.

use crate::run::{Fabric, there_is};

#[test]
fn devices_are_listed_and_described() {
    if !there_is("ibv_devinfo") {
        return;
    }
    let mut fabric = Fabric::new();
    fabric.devices = "mlx5_0,mlx5_1";
    let listed = fabric.good(&["ibv_devices"]);
    assert!(
        listed.contains("mlx5_0") && listed.contains("mlx5_1"),
        "{listed}"
    );
    let described = fabric.good(&["ibv_devinfo", "-v", "-d", "mlx5_1"]);
    for expected in [
        "PORT_ACTIVE",
        "RoCE v2",
        "::ffff:10.104.119.2",
        "hca_core_clock",
    ] {
        assert!(described.contains(expected), "{expected}: {described}");
    }
}

/// Runs each list of arguments as a pair.
fn all(program: &str, lists: &[&[&str]]) {
    if !there_is(program) {
        return;
    }
    for list in lists {
        let mut words = vec![program];
        words.extend(*list);
        let said = Fabric::new().pair(&words);
        println!("{words:?}: {}", said.lines().last().unwrap_or_default());
    }
}

#[test]
fn pingpong_on_connections() {
    let lists: [&[&str]; 6] = [
        &["-g", "0"],
        &["-g", "1", "-c"],
        &["-g", "0", "-e", "-c"],
        // Timestamps: an extended completion queue.
        &["-g", "0", "-t"],
        // An extended queue pair.
        &["-g", "0", "-N", "-c"],
        &["-g", "0", "-s", "1000000", "-n", "20", "-c"],
    ];
    all("ibv_rc_pingpong", &lists);
}

#[test]
fn pingpong_on_unreliable_connections() {
    let lists: [&[&str]; 3] = [&["-g", "0"], &["-g", "1", "-c"], &["-g", "1", "-e", "-c"]];
    all("ibv_uc_pingpong", &lists);
}

#[test]
fn pingpong_with_datagrams() {
    let lists: [&[&str]; 3] = [&["-g", "0", "-c"], &["-g", "1"], &["-g", "1", "-e"]];
    all("ibv_ud_pingpong", &lists);
}

#[test]
fn on_infiniband_no_gid_is_needed() {
    for program in ["ibv_rc_pingpong", "ibv_ud_pingpong", "ib_write_bw"] {
        if there_is(program) {
            let mut fabric = Fabric::new();
            fabric.link = "infiniband";
            fabric.pair(&[program, "-n", "100"]);
        }
    }
}

#[test]
fn pingpong_over_a_shared_receive_queue() {
    let lists: [&[&str]; 2] = [&["-g", "0", "-c"], &["-g", "1", "-e", "-q", "32"]];
    all("ibv_srq_pingpong", &lists);
}

#[test]
fn perftest_writes_reads_sends_and_does_atomics() {
    all(
        "ib_write_bw",
        &[
            &["-x", "1", "-n", "100"],
            &["-x", "1", "-n", "100", "-q", "4", "-b"],
            &["-x", "1", "-n", "100", "-c", "UC"],
        ],
    );
    all(
        "ib_write_lat",
        &[
            &["-x", "1", "-n", "100"],
            &["-x", "1", "-n", "100", "-c", "UC"],
            &["-x", "1", "-n", "100", "-a"],
        ],
    );
    all("ib_read_bw", &[&["-x", "1", "-n", "100"]]);
    all("ib_send_lat", &[&["-x", "1", "-n", "100", "-c", "UD"]]);
    all(
        "ib_send_bw",
        &[
            &["-x", "1", "-n", "100", "-e"],
            &["-x", "1", "-n", "100", "--use-srq"],
        ],
    );
    all("ib_atomic_bw", &[&["-x", "1", "-n", "100"]]);
}

//! Runs every target on its corpus and on inputs generated from the corpus. A failure prints the command that
//! repeats it.

use std::path::Path;

use headworks_fuzz::harness;

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                harness::test(stringify!($name), Path::new(env!("CARGO_TARGET_TMPDIR")));
            }
        )*

        #[test]
        fn every_target_is_a_test() {
            let tests = [$(stringify!($name)),*];
            let targets: Vec<_> = headworks_fuzz::TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(targets, tests);
            // `cargo xtask fuzz` finds the targets by the names of these folders.
            let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
            let mut folders: Vec<_> = std::fs::read_dir(corpus)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            let mut names: Vec<_> = tests.iter().map(|name| (*name).to_owned()).collect();
            folders.sort();
            names.sort();
            assert_eq!(folders, names);
        }
    };
}

targets!(
    segment,
    slot_queue,
    cursors,
    pacing_share,
    registry,
    device_name,
    datagram_header,
    bring_up,
    line_frames,
    qp_stream,
    ring_peer,
    baseline_peer,
    ring_group,
    pipe_peer,
    softnic_peer,
    softnic_bounce,
    softnic_datagrams,
    softnic_record,
    softnic_inspect,
    pcap_trace,
    http_request,
    pattern_peer,
    pattern_plan,
    daemon_application,
    daemon_peer,
    egress_records,
    ingress_heads,
    doorbell_marks,
    daemon_memory,
    direct_memory,
);

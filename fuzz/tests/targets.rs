//! Every target on its corpus and on what is made from it. What fails says how to do it again.

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
        }
    };
}

targets!(
    segment,
    slot_queue,
    cursors,
    registry,
    device_name,
    datagram,
    bring_up,
    frames,
    ring_peer,
    pipe_peer,
    softnic_peer,
    softnic_record,
);

//! Every application over the designs that the ring is compared with.

use headworks_baselines::rivals::farm::Farm;
use headworks_baselines::rivals::l5::L5;
use headworks_baselines::rivals::socksdirect::SocksDirect;
use headworks_baselines::rivals::{Design, Plan};

use super::Progress;
use super::flows::meter::truth;
use super::flows::{Meter, Mix, Monitor, RECORD, Synthetic, Tap};
use super::testing::{Hosts, STEPS_MAX, Way};
use super::{http, kv};

/// Room for as few messages as there may be, for a few, and for many.
const ROOM: [u32; 3] = [2, 5, 64];

fn flows<D: Design>(design: impl Fn(Plan) -> D, messages: u32) {
    let longest = RECORD;
    let (mut out, mut from) = Hosts::new().rival(&design(Plan { messages, longest }), Way::There);
    let (traffic, records) = (
        Synthetic::new(&Mix {
            flows: 50,
            ..Mix::default()
        }),
        1000,
    );
    let mut tap = Tap::new(traffic.clone(), records);
    let mut monitor = Monitor::new(Meter::default(), records);
    for _ in 0..STEPS_MAX {
        tap.step(&mut out).expect("sends");
        if monitor.step(&mut from).expect("counts") == Progress::Done {
            let truth = truth(&mut traffic.clone(), records);
            assert_eq!(monitor.meter().compare(&truth), Ok(()));
            return;
        }
    }
    panic!("{} records came, room for {messages}", monitor.taken());
}

fn key_value<D: Design>(design: impl Fn(Plan) -> D, messages: u32) {
    let channel = |longest| design(Plan { messages, longest });
    let hosts = Hosts::new();
    let (mut ask, mut asked) = hosts.rival(&channel(kv::REQUEST), Way::There);
    let (mut answer, mut answered) = hosts.rival(&channel(kv::RESPONSE), Way::Back);
    let mut client = kv::Client::new(kv::Zipf::new(5, 100), 1000, 50);
    let mut server = kv::Server::new(kv::Store::of(100));
    for _ in 0..STEPS_MAX {
        server.step(&mut answer, &mut asked).expect("answers");
        if client.step(&mut ask, &mut answered).expect("asks") == Progress::Done {
            assert_eq!((client.answered(), server.answered()), (1000, 1000));
            return;
        }
    }
    panic!("{} requests were answered", client.answered());
}

fn files<D: Design>(design: impl Fn(Plan) -> D, messages: u32) {
    let longest = http::MESSAGE_MAX;
    let channel = design(Plan { messages, longest });
    let hosts = Hosts::new();
    let (mut ask, mut asked) = hosts.rival(&channel, Way::There);
    let (mut answer, mut answered) = hosts.rival(&channel, Way::Back);
    let mut client = http::Client::new(http::FILES, 200);
    let mut server = http::Server::new(http::Site::new(http::FILES));
    for _ in 0..STEPS_MAX {
        server.step(&mut answer, &mut asked).expect("answers");
        if client.step(&mut ask, &mut answered).expect("asks") == Progress::Done {
            assert_eq!((client.answered(), server.refused()), (200, 0));
            return;
        }
    }
    panic!("{} requests were answered", client.answered());
}

macro_rules! over {
    ($($test:ident: $design:expr;)*) => {
        $(
            #[test]
            fn $test() {
                for messages in ROOM {
                    flows($design, messages);
                    key_value($design, messages);
                    files($design, messages);
                }
            }
        )*
    };
}

over! {
    all_run_over_farm: Farm;
    all_run_over_l5: L5;
    all_run_over_socksdirect: SocksDirect;
}

#[test]
fn a_step_handles_as_many_messages_as_it_is_told_to() {
    let hosts = Hosts::new();
    let plan = |longest| {
        L5(Plan {
            messages: 64,
            longest,
        })
    };
    let (mut out, mut from) = hosts.rival(&plan(RECORD), Way::There);
    let mut tap = Tap::new(Synthetic::new(&Mix::default()), 100);
    let mut monitor = Monitor::new(Meter::default(), 100);
    tap.step_by(1);
    monitor.step_by(1);
    for steps in 1..=3 {
        tap.step(&mut out).expect("sends");
        assert_eq!(tap.left(), 100 - steps);
    }
    let mut vain = 0;
    while monitor.taken() < 3 && vain < STEPS_MAX {
        let before = monitor.taken();
        monitor.step(&mut from).expect("counts");
        assert!(monitor.taken() <= before + 1);
        vain += 1;
    }
    assert_eq!(monitor.taken(), 3);
    // None would never end.
    tap.step_by(0);
    tap.step(&mut out).expect("sends");
    assert_eq!(tap.left(), 96);

    let (mut ask, mut asked) = hosts.rival(&plan(kv::REQUEST), Way::There);
    let (mut answer, mut answered) = hosts.rival(&plan(kv::RESPONSE), Way::Back);
    let mut client = kv::Client::new(kv::Zipf::new(5, 100), 1000, 50);
    let mut server = kv::Server::new(kv::Store::of(100));
    client.step_by(1);
    server.step_by(1);
    for _ in 0..STEPS_MAX {
        let before = (client.answered(), server.answered());
        let progress = client.step(&mut ask, &mut answered).expect("asks");
        server.step(&mut answer, &mut asked).expect("answers");
        let after = (client.answered(), server.answered());
        assert!(after.0 <= before.0 + 1 && after.1 <= before.1 + 1);
        if progress == Progress::Done {
            return;
        }
    }
    panic!("{} requests were answered", client.answered());
}

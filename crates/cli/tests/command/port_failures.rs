//! Ports that fail under pipes and under daemons, by faults of the drop-in library.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use headworks::service::ServiceError;
use rustix::io::ioctl_fionread;

use crate::daemon::{Daemons, DataPath, locked, to};
use crate::test_env::{CommandProcess, TestEnv, until};
use crate::verbs::{is_built, verbs};

/// The lines that a program of ours printed, without those of the library under it.
fn own_lines(said: &str) -> Vec<&str> {
    said.lines()
        .filter(|line| !line.starts_with("headworks libibverbs:"))
        .collect()
}

/// The port of one end of a pipe fails while the pipe waits for more to send. Both ends print one line with the values before and
/// after, and end.
#[test]
fn a_port_that_fails_under_a_pipe_is_one_line_at_both_ends() {
    if !is_built() {
        return;
    }
    let fabric = TestEnv::new();
    let program = env!("CARGO_BIN_EXE_headworks");
    for (fault, before, after) in [
        ("gid_change", "lost the address 10.", "and has 10."),
        (
            "pkey_change",
            "lost the partition key 0xffff",
            "and has 0xfeff",
        ),
        ("port_down", "is DOWN", "and was ACTIVE"),
    ] {
        // A receiver of little posts too few requests for a port to fail.
        for (is_at_sender, is_slow) in [(true, false), (false, false), (true, true)] {
            // A receiver posts few requests, and a port that is down fails the next one only.
            let requests = match (is_at_sender, fault) {
                (true, _) => 20,
                (false, _) => 2,
            };
            let fault = format!("{fault}@after={requests}");
            let start = |is_sender: bool| {
                let mut options = vec!["--devices", "2", "--name", "rdma0", "--manners", "mlx5"];
                if is_sender == is_at_sender {
                    options.extend(["--fault", &fault]);
                }
                let (role, device) = match is_sender {
                    true => ("connect", "ibv:rdma1,timeout=12"),
                    false => ("listen", "ibv:rdma0,timeout=12"),
                };
                let pipe = [program, "pipe", role, "p", "--device", device];
                let mut command = verbs(&fabric, &options, &pipe);
                command.stdin(Stdio::piped()).stdout(Stdio::null());
                CommandProcess::start(&mut command)
            };
            let listener = start(false);
            fabric.until_listening("p");
            let mut ends = [listener, start(true)];
            // Much at once, or a little at a time. The input stays open: the sender waits for more.
            let mut input = ends[1].0.stdin.take().expect("piped");
            match is_slow {
                false => drop(input.write_all(&vec![7; 3_000_000])),
                true => {
                    for _ in 0..100 {
                        if input.write_all(&[7; 1000]).is_err() {
                            break;
                        }
                        // Each piece is read before the next.
                        until("a reader", || {
                            ioctl_fionread(&input).is_ok_and(|left| left == 0)
                                || ends[1].has_ended()
                        });
                    }
                }
            }
            for (end, is_at_it) in ends.iter_mut().zip([!is_at_sender, is_at_sender]) {
                let status = end.wait();
                let said = end.stderr_line();
                assert_eq!(status.code(), Some(1), "{fault}: {said}");
                let lines = own_lines(&said);
                assert_eq!(lines.len(), 1, "{fault}: {said}");
                for part in [before, after] {
                    assert!(lines[0].contains(part), "{fault}: {said}");
                }
                let is_others = lines[0].contains("the other side stopped");
                assert_eq!(is_others, !is_at_it, "{fault}: {said}");
            }
        }
    }
}

/// The port of one daemon's device loses its address, by a fault of the drop-in library. Both applications learn that their connection
/// is over, and the daemon logs the addresses.
#[test]
fn a_port_that_loses_its_address_resets_connections_and_is_logged_once() {
    if !is_built() {
        return;
    }
    let _one = locked();
    let mut daemons = Daemons::none(DataPath::Daemons);
    for (host, fault) in ["gid_change@after=100", "slow@after=1000000000"]
        .iter()
        .enumerate()
    {
        let mut words = vec![
            "verbs",
            "--devices",
            "2",
            "--name",
            "rdma0",
            "--manners",
            "mlx5",
        ];
        words.extend(["--fault", fault, "--", env!("CARGO_BIN_EXE_headworks")]);
        let mut args = daemons.configured_args(host);
        let at = args
            .iter()
            .position(|word| word == "--device")
            .expect("an option")
            + 1;
        args[at] = format!("ibv:rdma{host},timeout=12");
        words.extend(args.iter().map(String::as_str));
        let side = daemons.started(host, &words);
        daemons.sides.push(side);
    }
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let listener = server.listen(7000, 8).unwrap();
    let mut near = client.connect(to(1, 7000)).unwrap();
    let mut far = listener.accept().unwrap();
    let is_over = |result: Result<(), ServiceError>| match result {
        Ok(()) => false,
        Err(ServiceError::Reset(_)) => true,
        Err(error) => panic!("{error}"),
    };
    let mut buffer = [0; 1000];
    until("the end of the connection", || {
        let sent = near.send_all(&[7; 1000]);
        is_over(sent.and_then(|()| far.recv(&mut buffer).map(drop)))
    });
    // Each end learns of it by itself.
    for end in [&mut near, &mut far] {
        end.set_read_timeout(Some(Duration::from_secs(60)));
        until("a reset", || is_over(end.recv(&mut buffer).map(drop)));
    }
    drop((near, far, listener, client, server));
    let said = daemons.end_saying();
    let lines = said[0]
        .lines()
        .filter(|line| line.contains("lost the address 10."));
    assert_eq!(lines.count(), 1, "{}", said[0]);
    assert!(!said[1].contains("lost the address"), "{}", said[1]);
}

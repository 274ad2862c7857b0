//! A daemon from its operator's view: configuration file, shutdown, metrics and log.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use headworks::service::{Refusal, Reset, Service, ServiceError, Transfer};
use headworks_net::packets::{PacketSocket, RecvOutcome};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::Signal;

use crate::daemon::{Daemons, DataPath, device, exchange, locked, serve, test_on_both_paths, to};
use crate::test_env::{CommandProcess, NOTICE, TestEnv, sleep_for, until};

/// Returns a daemon's answer to `GET /metrics`.
pub(crate) fn scraped(daemons: &Daemons, host: usize) -> String {
    let mut path = daemons.socket(host).into_os_string();
    path.push(".metrics");
    let mut stream = UnixStream::connect(&path).expect("somebody listens");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    body.to_owned()
}

pub(crate) fn value(text: &str, name: &str, label: &str) -> f64 {
    let lines = text.lines();
    let mut own = lines.filter(|line| line.starts_with(name) && line.contains(label));
    let line = own.next().unwrap_or_else(|| panic!("no {name} in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

test_on_both_paths!(
    a_terminating_daemon_lets_connections_end,
    only_direct_connections_outlive_the_drain,
    daemon_activity_is_visible_in_its_metrics,
    exceeding_a_quota_is_refused_without_affecting_others,
);

fn a_terminating_daemon_lets_connections_end(path: DataPath) {
    let _one = locked();
    let mut daemons = Daemons::start_on(path);
    let server = daemons.attach(1);
    serve(&server, 7000);
    let client = daemons.attach(0);
    let mut stream = client.connect(to(1, 7000)).unwrap();
    path.check(&stream);
    daemons.sides[0].signal(Signal::TERM);
    until("the daemon to drain", || {
        scraped(&daemons, 0).contains("headworks_draining 1")
    });
    let is_stopping = |error: ServiceError| {
        assert!(
            matches!(error, ServiceError::Refused(Refusal::Stopping)),
            "{error}"
        );
    };
    is_stopping(client.connect(to(1, 7000)).unwrap_err());
    is_stopping(client.listen(7001, 1).unwrap_err());
    is_stopping(server.connect(to(0, 7000)).unwrap_err());
    is_stopping(Service::attach(daemons.socket(0), "late").unwrap_err());
    // The existing connection goes on.
    let mut buffer = [0; 64];
    for _ in 0..100 {
        stream.send_all(b"still here").unwrap();
        let len = stream.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"still here");
    }
    assert!(!daemons.sides[0].has_ended());
    stream.end().unwrap();
    assert_eq!(stream.recv(&mut buffer).unwrap(), 0);
    drop(stream);
    let ended = daemons.sides[0].wait();
    let said = daemons.sides[0].stderr_line();
    assert_eq!(ended.code(), Some(0), "{said}");
    assert!(
        said.contains("2 ends of connections may continue") || said.contains("1 end of a"),
        "{said}"
    );
    // Its address is free again, and the other daemon accepts a connection from its successor.
    daemons.sides[0] = daemons.daemon(0);
    let client = daemons.attach(0);
    let mut again = client.connect(to(1, 7000)).unwrap();
    again.send_all(b"again").unwrap();
    assert_eq!(again.recv(&mut buffer).unwrap(), 5);
    drop((again, client, server));
    daemons.end();
}

fn only_direct_connections_outlive_the_drain(path: DataPath) {
    let _one = locked();
    for (drain, signals, code) in [
        ("0", &[Signal::TERM][..], 0),
        ("0", &[Signal::INT], 130),
        // A second signal ends the drain at once.
        ("600", &[Signal::TERM, Signal::INT], 0),
    ] {
        let mut daemons = Daemons::start_on(path);
        daemons.sides[0].signal(Signal::TERM);
        assert_eq!(daemons.sides[0].wait().code(), Some(0));
        daemons.sides[0] = daemons.daemon_with(0, &["--drain", drain]);
        let server = daemons.attach(1);
        let listener = server.listen(7000, 16).unwrap();
        let client = daemons.attach(0);
        let mut near = client.connect(to(1, 7000)).unwrap();
        let mut far = listener.accept().unwrap();
        path.check(&near);
        daemons.sides[0].signal(signals[0]);
        if let Some(another) = signals.get(1) {
            until("the drain", || {
                let refused = client.connect(to(1, 7000)).map(drop);
                matches!(refused, Err(ServiceError::Refused(Refusal::Stopping)))
            });
            daemons.sides[0].signal(*another);
        }
        let began = Instant::now();
        if path == DataPath::Daemons {
            for stream in [&mut near, &mut far] {
                let error = stream.recv(&mut [0; 64]).unwrap_err();
                assert!(
                    matches!(error, ServiceError::Reset(Reset::Stopping)),
                    "{error}"
                );
            }
            assert!(began.elapsed() < NOTICE, "after {:?}", began.elapsed());
        }
        let ended = daemons.sides[0].wait();
        let said = daemons.sides[0].stderr_line();
        assert_eq!(ended.code(), Some(code), "{said}");
        if path == DataPath::Direct {
            // A direct connection goes on without the daemon.
            for (mut from, mut to) in [(&near, &far), (&far, &near)] {
                from.write_all(b"alone").unwrap();
                let mut came = [0; 5];
                to.read_exact(&mut came).unwrap();
                assert_eq!(&came, b"alone");
            }
        }
        let refused = client.connect(to(1, 7000)).unwrap_err();
        assert!(
            matches!(refused, ServiceError::NoDaemon { .. }),
            "{refused}"
        );
        daemons.sides[0] = daemons.daemon(0);
        drop((near, far, listener, client, server));
        daemons.end();
    }
}

#[test]
fn a_daemon_serves_while_its_log_pipe_is_full() {
    let _one = locked();
    let mut daemons = Daemons::start();
    daemons.sides[0].signal(Signal::TERM);
    daemons.sides[0].wait();
    // Standard error is a full pipe.
    let (read, write) = rustix::pipe::pipe().unwrap();
    fcntl_setfl(&write, OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&write, &[b'x'; 4096]).is_ok() {}
    fcntl_setfl(&write, OFlags::empty()).unwrap();
    let args = daemons.configured_args(0);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    daemons.sides[0] = CommandProcess::start(daemons.fabric.headworks(&args).stderr(write));
    let socket = daemons.socket(0);
    until("the daemon", || Service::attach(&socket, "looks").is_ok());
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    serve(&server, 7000);
    let misused = || {
        let client = PacketSocket::dial(&socket).unwrap();
        client.send(b"nonsense", None).unwrap();
        until("its end", || {
            matches!(client.recv(), Ok(RecvOutcome::Closed) | Err(_))
        });
    };
    misused();
    exchange(client.connect(to(1, 7000)).unwrap(), 100_000).unwrap();
    // A reader that comes back learns how many lines were lost.
    let mut read = std::fs::File::from(read);
    let mut bytes = vec![0; 1 << 20];
    let mut len = read.read(&mut bytes).unwrap();
    misused();
    drop((client, server));
    daemons.sides[0].signal(Signal::TERM);
    assert_eq!(daemons.sides[0].wait().code(), Some(0));
    while let Some(more) = Some(read.read(&mut bytes[len..]).unwrap()).filter(|more| *more > 0) {
        len += more;
    }
    let said = String::from_utf8_lossy(&bytes[..len]).replace("xx", "");
    assert!(
        said.starts_with("2 lines were lost: nobody read standard error\n"),
        "{said}"
    );
    assert!(said.contains("is turned away"), "{said}");
    daemons.sides[0] = daemons.daemon(0);
    daemons.end();
}

#[test]
fn the_service_manager_is_notified() {
    let _one = locked();
    let fabric = TestEnv::new();
    let path = fabric.file("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager
        .set_read_timeout(Some(crate::test_env::LIMIT))
        .unwrap();
    let socket = fabric.file("daemon.sock").display().to_string();
    let words = ["daemon", "--port", "17473", "--socket", &socket];
    let mut daemon = CommandProcess::start(fabric.headworks(&words).env("NOTIFY_SOCKET", &path));
    let mut bytes = [0; 1000];
    let mut heard = || {
        let len = manager.recv(&mut bytes).expect("the daemon says it");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    let ready = heard();
    assert!(
        ready.starts_with("READY=1\nSTATUS=serving 127.0.0.1"),
        "{ready}"
    );
    // The daemon really serves.
    drop(Service::attach(&socket, "test").unwrap());
    daemon.signal(Signal::TERM);
    let stopping = heard();
    assert!(
        stopping.starts_with("STOPPING=1\nSTATUS=stopping"),
        "{stopping}"
    );
    assert_eq!(daemon.wait().code(), Some(0));
    // A `NOTIFY_SOCKET` that nobody listens at keeps no daemon from serving.
    drop(manager);
    let mut daemon = CommandProcess::start(fabric.headworks(&words).env("NOTIFY_SOCKET", &path));
    until("the daemon", || Service::attach(&socket, "test").is_ok());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    fabric.is_clean();
}

#[test]
fn silent_clients_delay_no_scrape() {
    let _one = locked();
    let daemons = Daemons::start();
    let mut path = daemons.socket(0).into_os_string();
    path.push(".metrics");
    let silent: Vec<_> = (0..20)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    let began = std::time::Instant::now();
    assert!(scraped(&daemons, 0).contains("headworks_"));
    // Each silent one is given two seconds. Together they would take 40.
    assert!(began.elapsed() < std::time::Duration::from_secs(20));
    drop(silent);
    daemons.end();
}

#[test]
fn a_configuration_file_that_cannot_be_read_is_named() {
    let fabric = TestEnv::new();
    let folder = fabric.file("headworks");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("daemon.toml");
    std::os::unix::fs::symlink(fabric.file("nowhere"), &file).unwrap();
    let check = ["daemon", "--check"];
    let line = CommandProcess::start(&mut fabric.headworks(&check)).expect_exit(2);
    assert!(line.contains("daemon.toml: No such file"), "{line}");
    std::fs::remove_file(&file).unwrap();
    let endless = ["daemon", "--check", "--config", "/dev/zero"];
    let line = CommandProcess::start(&mut fabric.headworks(&endless)).expect_exit(2);
    assert!(line.contains("longer than 1048576 bytes"), "{line}");
}

fn daemon_activity_is_visible_in_its_metrics(path: DataPath) {
    let _one = locked();
    let daemons = Daemons::start_on(path);
    let server = daemons.attach(1);
    serve(&server, 7000);
    let client = daemons.attach(0);
    let mut streams: Vec<_> = (0..50)
        .map(|_| client.connect(to(1, 7000)).unwrap())
        .collect();
    let mut buffer = [0; 4096];
    for stream in &mut streams {
        stream.send_all(&[7; 1000]).unwrap();
        let mut got = 0;
        while got < 1000 {
            got += stream.recv(&mut buffer).unwrap();
        }
    }
    path.check(&streams[0]);
    // One connection carries 100,000 bytes more, which take another way.
    let one = &mut streams[0];
    let mut got = 0;
    for sent in 1..=100 {
        one.send_all(&[9; 1000]).unwrap();
        // The rings of a direct connection that sends short pieces are short. They do not hold what is not read.
        while path == DataPath::Direct && got < sent * 1000 {
            got += one.recv(&mut buffer).unwrap();
        }
    }
    while got < 100_000 {
        got += one.recv(&mut buffer).unwrap();
    }
    let text = scraped(&daemons, 0);
    let own = format!("pid=\"{}\"", std::process::id());
    let of_application = |what: &str| value(&text, &format!("headworks_application_{what}"), &own);
    assert_eq!(of_application("connections{"), 50.0);
    let direct = match path {
        DataPath::Direct => 50.0,
        DataPath::Daemons => 0.0,
    };
    assert_eq!(of_application("direct_connections{"), direct);
    assert_eq!(of_application("opened_direct_connections_total"), direct);
    assert_eq!(of_application("sent_bytes_total"), 150_000.0);
    assert_eq!(of_application("received_bytes_total"), 150_000.0);
    assert_eq!(of_application("opened_connections_total"), 50.0);
    assert_eq!(value(&text, "headworks_queue_pairs{", "user="), 2.0);
    assert_eq!(
        value(&text, "headworks_qp_group_connections{", "127.0.0.2"),
        50.0
    );
    let mut top = CommandProcess::start(
        daemons
            .fabric
            .headworks(&[
                "top",
                "--daemon",
                &format!("{}.metrics", daemons.socket(0).display()),
                "--count",
                "2",
                "--interval",
                "0.1",
            ])
            .stdout(Stdio::piped()),
    );
    let mut said = String::new();
    let mut out = top.0.stdout.take().unwrap();
    out.read_to_string(&mut said).unwrap();
    top.expect_exit(0);
    for what in [
        &format!("127.0.0.1 on {}", device(0)),
        "50 connections",
        "2 queue pairs",
        "127.0.0.2",
        "B/s",
    ] {
        assert!(said.contains(what), "no {what:?} in\n{said}");
    }
    // Columns: process, name, connections, direct ones.
    let pid = std::process::id().to_string();
    let lines = said.lines().map(|line| line.split_whitespace().collect());
    let mut rows = lines.filter(|words: &Vec<&str>| words.first() == Some(&&*pid));
    let row = rows.next().expect("a line of the application");
    assert_eq!(row[2..4], ["50", &direct.to_string()], "{said}");
    drop((streams, client, server));
    daemons.end();
}

#[test]
fn the_configuration_file_supplements_the_command_line() {
    let fabric = TestEnv::new();
    let file = fabric.file("daemon.toml");
    let path = file.display().to_string();
    let check = |text: &str, words: &[&str]| {
        std::fs::write(&file, text).unwrap();
        let words = [&["daemon", "--check", "--config", &path], words].concat();
        CommandProcess::start(&mut fabric.headworks(&words))
    };
    check("", &[]).expect_exit(0);
    check("address = \"127.0.0.7\"\n[limits]\nreceives = 64\n", &[]).expect_exit(0);
    let ecn = "[ecn]\nlower = [\"/bin/sh\", \"{device}\"]\nrestore = [\"/bin/sh\"]\n[resctrl]\nl3 = \"f\"\n";
    check(ecn, &["--device", "soft:h1"]).expect_exit(0);
    for (text, says) in [
        ("adress = \"127.0.0.7\"\n", "line 1: unknown field `adress`"),
        (
            "\n[limits]\nring_bytes = 5000\n",
            "line 3: ring_bytes is 5000: a power of two from 512 to 1073741824",
        ),
        ("port = 70000\n", "line 1: port is 70000: 0 to 65535"),
        (
            "\nsecret = \"/nonexist\"\n",
            "daemon.toml: line 2: secret /nonexist: No such file",
        ),
        ("address = \"10.0.0.7\"\n", "10.0.0.7"),
        (
            "device = \"hard\"\n",
            "daemon.toml: line 1: device: no device kind \"hard\"",
        ),
        (
            "[ecn]\nlower = [\"/l\", \"{nic}\"]\nrestore = [\"/r\"]\n",
            "daemon.toml: line 2: ecn.lower: \"{nic}\" is unknown: {device}, ",
        ),
        (
            "[ecn]\nlower = [\"lower\"]\nrestore = [\"/r\"]\n",
            "daemon.toml: line 2: ecn.lower: \"lower\" is no absolute path",
        ),
        (
            "[ecn]\nlower = [\"/l\"]\n",
            "daemon.toml: line 1: ecn.restore: the key is missing",
        ),
        (
            "[ecn]\nlower = [\"/bin/sh\"]\nrestore = [\"/r\", \"{netdev}\"]\n",
            "ecn.restore: {netdev}: soft",
        ),
        (
            "[resctrl]\nl3 = \"fg\"\n",
            "daemon.toml: line 2: resctrl.l3 is \"fg\": a capacity mask",
        ),
    ] {
        let line = check(text, &[]).expect_exit(2);
        assert!(line.contains(says), "{text:?}: {line}");
    }
    // The command line overrides the file.
    check("address = \"10.0.0.7\"\n", &["--address", "127.0.0.7"]).expect_exit(0);
    let nowhere = ["daemon", "--check", "--config", "/no/such/file"];
    let line = CommandProcess::start(&mut fabric.headworks(&nowhere)).expect_exit(2);
    assert!(line.contains("/no/such/file"), "{line}");
    let metrics = ["daemon", "--check", "--metrics", "here"];
    let line = CommandProcess::start(&mut fabric.headworks(&metrics)).expect_exit(2);
    assert!(line.contains("IP:PORT"), "{line}");
    // Without `--config`, the file is looked for.
    let own = fabric.file("headworks");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("daemon.toml"), "nonsense").unwrap();
    let line = CommandProcess::start(&mut fabric.headworks(&["daemon", "--check"])).expect_exit(2);
    assert!(line.contains("headworks/daemon.toml"), "{line}");
}

#[test]
fn a_daemon_says_that_all_is_legal_and_refuses_places_that_cannot_be() {
    let fabric = TestEnv::new();
    let checked = |words: &[&str]| {
        let mut command = fabric.headworks(words);
        command.stdout(Stdio::piped()).output().unwrap()
    };
    let check = checked(&["daemon", "--check"]);
    assert_eq!(check.status.code(), Some(0));
    let said = String::from_utf8(check.stdout).unwrap();
    assert_eq!(said, "the configuration is legal: no file was read\n");
    let file = fabric.file("daemon.toml");
    let path = file.display().to_string();
    std::fs::write(&file, "\nsocket = \"\"\n").unwrap();
    let long = format!("/{}", "x".repeat(107));
    let nearly = format!("/{}", "x".repeat(103));
    let one = fabric.file("one").display().to_string();
    let paths = "a path of 1 to 107 bytes";
    let addresses = "neither unspecified nor multicast";
    for (words, names, says) in [
        (&["--config", &*path][..], "line 2: socket \"\"", paths),
        (&["--socket", &long], "--socket", paths),
        (&["--socket", &nearly], "metrics", paths),
        (&["--metrics", &long], "--metrics", paths),
        (
            &["--socket", &one, "--metrics", &one],
            "--metrics",
            "--socket",
        ),
        (&["--address", "0.0.0.0"], "--address 0.0.0.0", addresses),
        (&["--address", "::"], "--address ::", addresses),
        (
            &["--address", "224.0.0.1"],
            "--address 224.0.0.1",
            addresses,
        ),
        (&["--address", "ff02::1"], "--address ff02::1", addresses),
    ] {
        // The error is the same with `--check` and without.
        for first in [&["daemon", "--check"][..], &["daemon"]] {
            let words = [first, words].concat();
            let line = CommandProcess::start(&mut fabric.headworks(&words)).expect_exit(2);
            assert!(line.contains(names) && line.contains(says), "{line}");
        }
    }
    for (lower, says) in [
        ("/no/such", "cannot be run: No such file"),
        ("/etc/passwd", "is not executable"),
        ("/etc", "is no file"),
    ] {
        let commands = format!("[ecn]\nlower = [\"{lower}\"]\nrestore = [\"/bin/sh\"]\n");
        std::fs::write(&file, commands).unwrap();
        for words in [
            &["daemon", "--check", "--config", &*path][..],
            &["daemon", "--config", &path],
        ] {
            let line = CommandProcess::start(&mut fabric.headworks(words)).expect_exit(2);
            let named = format!("ecn.lower: {lower:?} {says}");
            assert!(line.contains(&named), "{line}");
            assert_eq!(line.lines().count(), 1, "{line}");
        }
    }
    std::fs::write(&file, "port = 1\n").unwrap();
    let words = ["daemon", "--check", "--config", &path];
    let said = String::from_utf8(checked(&words).stdout).unwrap();
    assert_eq!(
        said,
        format!("the configuration is legal: {path} was read\n")
    );
}

#[test]
fn hosts_of_another_secret_are_refused() {
    let _one = locked();
    let mut daemons = Daemons::start();
    let secret = |name: &str, says: &str, mode: u32| {
        let path = daemons.fabric.file(name);
        std::fs::write(&path, says).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    };
    let one = secret("one", "what all of them know\n", 0o600);
    let other = secret("other", "what none of them knows", 0o600);
    let open = secret("open", "what all of them know", 0o644);
    let short = secret("short", "short", 0o600);
    for (path, says) in [
        (&*open, "chmod 600"),
        (&short, "the secret has 5 bytes: 16 to 4096 are allowed"),
        ("/no/such/file", "/no/such/file"),
    ] {
        let words = ["daemon", "--check", "--secret", path];
        let line = CommandProcess::start(&mut daemons.fabric.headworks(&words)).expect_exit(2);
        assert!(line.contains(says), "{line}");
    }
    let far = [
        "daemon",
        "--check",
        "--address",
        "10.1.2.3",
        "--secret",
        &one,
    ];
    CommandProcess::start(&mut daemons.fabric.headworks(&far)).expect_exit(0);
    for (secrets, is_same) in [([&one, &other], false), ([&one, &one], true)] {
        for (host, secret) in secrets.into_iter().enumerate() {
            daemons.sides[host].signal(Signal::TERM);
            assert_eq!(daemons.sides[host].wait().code(), Some(0));
            daemons.sides[host] = daemons.daemon_with(host, &["--secret", secret]);
        }
        let server = daemons.attach(1);
        serve(&server, 7000);
        serve(&server, 7001);
        let client = daemons.attach(0);
        match client.connect(to(1, 7000)) {
            Ok(_) => assert!(is_same),
            Err(error) => {
                assert!(!is_same, "{error}");
                assert!(error.to_string().contains("another secret"), "{error}");
            }
        }
        // A daemon always shares the secret with itself.
        server.connect(to(1, 7001)).unwrap();
    }
    daemons.end();
}

#[test]
fn the_unit_is_one() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/headworks.service");
    let text = std::fs::read_to_string(unit).unwrap();
    // The command that the unit starts is legal.
    let start = text
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="));
    let mut words: Vec<&str> = start.unwrap().split(' ').collect();
    assert_eq!(words.remove(0), "/usr/bin/headworks");
    words.push("--check");
    let fabric = TestEnv::new();
    CommandProcess::start(&mut fabric.headworks(&words)).expect_exit(0);
    // systemd accepts the unit, with the path of this program.
    let here = fabric.file("headworks.service");
    let program = env!("CARGO_BIN_EXE_headworks");
    std::fs::write(&here, text.replace("/usr/bin/headworks", program)).unwrap();
    let verified = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&here)
        .output();
    match verified {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            // It has no warnings about this unit either.
            assert!(!said.contains("headworks.service"), "{said}");
        }
        Err(error) => println!("skipped: systemd-analyze: {error}"),
    }
}

#[test]
fn bytes_are_carried_as_is_asked_for() {
    let _one = locked();
    let daemons = Daemons::start();
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    serve(&server, 7000);
    let counts = || {
        let text = scraped(&daemons, 0);
        value(&text, "headworks_qp_group_announced_total", "")
    };
    drop(client.connect(to(1, 7000)).unwrap());
    for (transfer, is_announced) in [(Transfer::Send, false), (Transfer::Read, true)] {
        let before = counts();
        let mut stream = client.connect(to(1, 7000)).unwrap();
        stream.set_transfer(transfer);
        // Longer than what would otherwise go by SEND.
        exchange(stream, 1 << 20).unwrap();
        let after = counts();
        assert_eq!(
            after > before,
            is_announced,
            "{transfer:?}: {before:?} to {after:?}"
        );
    }
    // Each call has a way of its own, whatever the connection's way is, and however short the bytes are.
    let mut stream = client.connect(to(1, 7000)).unwrap();
    stream.set_transfer(Transfer::Read);
    for (transfer, announced) in [
        (Transfer::Send, 0.0),
        (Transfer::Read, 1.0),
        (Transfer::Any, 1.0),
    ] {
        let before = counts();
        assert_eq!(stream.send_as(&[7; 100], transfer).unwrap(), 100);
        let mut echoed = [0; 100];
        std::io::Read::read_exact(&mut stream, &mut echoed).unwrap();
        assert_eq!(counts() - before, announced, "{transfer:?}");
    }
    drop(stream);
    drop((client, server));
    daemons.end();
}

#[test]
fn connections_are_direct_unless_a_daemon_is_configured_otherwise() {
    let _one = locked();
    let mut daemons = Daemons::none(DataPath::Daemons);
    // `None` is a daemon without a configuration file.
    for (configured, path) in [
        ([None, None], DataPath::Direct),
        ([Some(DataPath::Direct), None], DataPath::Direct),
        ([Some(DataPath::Daemons), None], DataPath::Daemons),
        ([None, Some(DataPath::Daemons)], DataPath::Daemons),
    ] {
        for (host, configured) in configured.into_iter().enumerate() {
            let mut words = daemons.args(host);
            if let Some(configured) = configured {
                daemons.path = configured;
                words.extend(daemons.config(host, ""));
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let side = daemons.started(host, &words);
            daemons.sides.push(side);
        }
        let (client, server) = (daemons.attach(0), daemons.attach(1));
        serve(&server, 7000);
        let stream = client.connect(to(1, 7000)).unwrap();
        path.check(&stream);
        exchange(stream, 100_000).unwrap();
        drop((client, server));
        for mut side in daemons.sides.drain(..) {
            side.signal(Signal::TERM);
            assert_eq!(side.wait().code(), Some(0), "{}", side.stderr_line());
        }
    }
    daemons.fabric.is_clean();
}

#[test]
fn a_stopped_daemon_is_noticed_while_an_answer_is_due() {
    let _one = locked();
    let mut daemons = Daemons::start();
    daemons.sides[0].signal(Signal::TERM);
    daemons.sides[0].wait();
    let config = daemons.config(0, "peer_timeout = 1\n");
    daemons.sides[0] = daemons.daemon_with(0, &config.each_ref().map(String::as_str));
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    serve(&server, 7000);
    let mut stream = client.connect(to(1, 7000)).unwrap();
    // The daemon's own time limit for the connect request passes, so that no earlier one wakes it.
    sleep_for(Duration::from_secs(11));
    daemons.sides[1].signal(Signal::STOP);
    until("the stop of the daemon", || daemons.sides[1].stat(3) == "T");
    stream.send_all(b"please answer").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60)));
    let lost = stream.recv(&mut [0; 64]);
    daemons.sides[1].signal(Signal::CONT);
    assert!(
        matches!(lost, Err(ServiceError::Reset(Reset::Unreachable))),
        "{lost:?}"
    );
    drop((stream, client, server));
    daemons.end();
}

fn exceeding_a_quota_is_refused_without_affecting_others(path: DataPath) {
    let _one = locked();
    let mut daemons = Daemons::start_on(path);
    daemons.sides[0].signal(Signal::TERM);
    daemons.sides[0].wait();
    let quotas = "connections_each = 3\nlisteners_each = 1\napplications_each = 2\n\
                  memory_each = 8388608\n";
    let config = daemons.config(0, quotas);
    daemons.sides[0] = daemons.daemon_with(0, &config.each_ref().map(String::as_str));
    let server = daemons.attach(1);
    serve(&server, 7000);
    let greedy = daemons.attach(0);
    let other = daemons.attach(0);
    let limit = |error: ServiceError| {
        let is_limit = matches!(
            error,
            ServiceError::Refused(Refusal::Limit | Refusal::Memory)
        );
        assert!(is_limit, "{error}");
    };
    let held: Vec<_> = (0..3)
        .map(|_| greedy.connect(to(1, 7000)).unwrap())
        .collect();
    limit(greedy.connect(to(1, 7000)).unwrap_err());
    let listener = greedy.listen(0, 1).unwrap();
    limit(greedy.listen(0, 1).unwrap_err());
    let mut memory = Vec::new();
    let over = loop {
        match greedy.alloc(1 << 20) {
            Ok(more) => memory.push(more),
            Err(error) => break error,
        }
        assert!(memory.len() < 9, "more than its quota");
    };
    limit(over);
    let third = Service::attach(daemons.socket(0), "third");
    limit(third.unwrap_err());
    // Neither its existing connections nor another application is affected.
    for stream in held {
        exchange(stream, 50_000).unwrap();
    }
    exchange(other.connect(to(1, 7000)).unwrap(), 500_000).unwrap();
    drop((listener, memory, greedy));
    let mut again = None;
    until("its place", || {
        again = Service::attach(daemons.socket(0), "again").ok();
        again.is_some()
    });
    drop((again, other, server));
    daemons.sides[0].signal(Signal::TERM);
    assert_eq!(daemons.sides[0].wait().code(), Some(0));
    let said = daemons.sides[0].stderr_line();
    for limit in ["applications", "connections", "listeners", "memory"] {
        assert!(
            said.contains(&format!("raise {limit}_each for more")),
            "{said}"
        );
    }
    daemons.sides[0] = daemons.daemon(0);
    daemons.end();
}

//! A daemon whose applications are apart from each other: several sockets, each with limits of its own. And daemons
//! whose devices cannot reach each other.

use headworks::service::{Refusal, Reset, Service, ServiceError};

use crate::daemon::{Daemons, DataPath, exchange, locked, test_on_both_paths, to};
use crate::daemon_operation::{scraped, value};
use crate::test_env::{CommandProcess, until};

fn is_refused(outcome: Result<impl Sized, ServiceError>, why: Refusal) {
    match outcome.map(drop) {
        Err(ServiceError::Refused(refusal)) if refusal == why => {}
        other => panic!("{other:?} instead of {why}"),
    }
}

test_on_both_paths!(applications_at_different_sockets_have_limits_of_their_own);

fn applications_at_different_sockets_have_limits_of_their_own(path: DataPath) {
    let _one = locked();
    let mut daemons = Daemons::none(path);
    let sockets = [0, 1].map(|number| daemons.fabric.file(&format!("tenant{number}.sock")));
    let config = daemons.fabric.file("daemon.toml");
    let paths = sockets
        .each_ref()
        .map(|path| format!("{path:?}"))
        .join(", ");
    let text = format!(
        "socket = [{paths}]\n[limits]\napplications_each = 2\n{}",
        path.config_line()
    );
    std::fs::write(&config, text).unwrap();
    let mut words = daemons.args(0);
    let named = words.iter().position(|word| word == "--socket").unwrap();
    words.drain(named..named + 2);
    words.extend(["--config".to_owned(), config.display().to_string()]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    daemons.sides = vec![CommandProcess::start(&mut daemons.fabric.headworks(&words))];
    let attach = |number: usize| Service::attach(&sockets[number], "test");
    until("the daemon", || {
        assert!(
            !daemons.sides[0].has_ended(),
            "{}",
            daemons.sides[0].stderr_line()
        );
        attach(1).is_ok()
    });
    // The application that looked may still be counted.
    let of_first = [0; 2].map(|first| attach(first).expect("the first tenant has room"));
    is_refused(attach(0), Refusal::Limit);
    let mut second = None;
    until("the second tenant's room", || {
        second = attach(1).ok();
        second.is_some()
    });
    let second = second.expect("it attached");
    // Ports belong to the host: tenants reach each other as users do.
    let listener = second.listen(7000, 4).unwrap();
    is_refused(of_first[0].listen(7000, 4), Refusal::PortTaken);
    let mut near = of_first[0].connect(to(0, 7000)).unwrap();
    let mut far = listener.accept().unwrap();
    path.check(&near);
    near.send_all(b"across").unwrap();
    let mut buffer = [0; 16];
    assert_eq!(far.recv(&mut buffer).unwrap(), 6);
    // Metrics tell the tenants apart.
    let metrics = format!("{}.metrics", sockets[0].display());
    let socket = daemons.socket(0);
    std::os::unix::fs::symlink(&metrics, format!("{}.metrics", socket.display())).unwrap();
    let text = scraped(&daemons, 0);
    for socket in &sockets {
        let label = format!("socket=\"{}\"", socket.display());
        assert!(
            value(&text, "headworks_connections", &label) > 0.0,
            "{text}"
        );
    }
    drop((near, far, listener, second, of_first));
    daemons.sides[0].signal(rustix::process::Signal::TERM);
    assert_eq!(daemons.sides[0].wait().code(), Some(0));
    assert!(
        sockets.iter().all(|path| !path.exists()),
        "a socket is left"
    );
}

#[test]
fn a_connection_is_refused_where_devices_cannot_reach_each_other() {
    if headworks::runtime::testing::devices().is_some() {
        println!("skipped: the devices of HEADWORKS_IBV reach each other");
        return;
    }
    let _one = locked();
    let mut daemons = Daemons::none(DataPath::Daemons);
    for host in 0..2 {
        let words = daemons.args(host);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = daemons.fabric.headworks(&words);
        let registry = daemons.fabric.file(&format!("fabric{host}"));
        command.env("HEADWORKS_FABRIC", registry);
        daemons.sides.push(CommandProcess::start(&mut command));
        let socket = daemons.socket(host);
        until("the daemon", || {
            assert!(!daemons.sides[host].has_ended());
            Service::attach(&socket, "looks").is_ok()
        });
    }
    let (client, server) = (daemons.attach(0), daemons.attach(1));
    let listener = server.listen(7000, 4).unwrap();
    for _ in 0..3 {
        is_refused(client.connect(to(1, 7000)), Refusal::Unreachable);
    }
    // The other application sees no connection, or one that is reset.
    while let Some(mut stream) = listener.try_accept().unwrap() {
        let reset = stream.recv(&mut [0; 1]);
        let is_reset = matches!(
            reset,
            Err(ServiceError::Reset(Reset::Unreachable | Reset::ByPeer))
        );
        assert!(is_reset, "{reset:?}");
    }
    // Each daemon reaches itself.
    let own = client.listen(7001, 4).unwrap();
    let near = client.connect(to(0, 7001)).unwrap();
    let far = own.accept().unwrap();
    let echoes = std::thread::spawn(move || crate::daemon::echo(far));
    exchange(near, 1000).unwrap();
    let _ = echoes.join().expect("no panic");
    drop((client, server, listener, own));
    daemons.end();
}

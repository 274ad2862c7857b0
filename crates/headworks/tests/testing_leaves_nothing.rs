//! Daemons of [`headworks::testing`] leave nothing behind. This is a program of its own, since its test counts the threads
//! and descriptors of the process.

use std::io::{Read, Write};
use std::path::Path;

use headworks::net::clock;
use headworks::testing::Daemons;
use headworks::verbs::Duration;

/// How long a thread that has ended may still be listed.
const PATIENCE: Duration = Duration::from_secs(20);

fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).expect("a directory").count()
}

fn threads() -> usize {
    entries(Path::new("/proc/self/task"))
}

fn descriptors() -> usize {
    entries(Path::new("/proc/self/fd"))
}

/// Waits until `is_so` returns true, for threads that end a little after their device was closed.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = clock::now() + PATIENCE;
    while !is_so() {
        assert!(clock::now() < until, "{what} were left behind");
        std::thread::yield_now();
    }
}

/// Sends bytes from host 0 to host 1, on a connection of its own.
fn transfer(daemons: &Daemons) {
    let [near, far] = [0, 1].map(|host| daemons.attach(host, "test").expect("a daemon"));
    let listener = far.listen(7000, 4).expect("a free port");
    let to = daemons.address(1, 7000);
    let receiving = std::thread::spawn(move || {
        let mut received = Vec::new();
        let mut stream = listener.accept().expect("is called");
        stream.read_to_end(&mut received).expect("arrives");
        received
    });
    let mut stream = near.connect(to).expect("connects");
    stream.write_all(&[7; 200_000]).expect("is sent");
    stream.end().expect("is sent");
    assert!(receiving.join().expect("no panic") == [7; 200_000]);
}

#[test]
fn daemons_leave_no_file_thread_or_descriptor() {
    let parent = tempfile::tempdir().expect("a directory");
    let round = || {
        let builder = Daemons::builder(2).below(parent.path());
        let daemons = builder.options(0, "hostile").start().expect("starts");
        transfer(&daemons);
        daemons.restart(1).expect("starts again");
        transfer(&daemons);
        daemons.stop(0).expect("ends");
        assert_eq!(entries(parent.path()), 1);
        drop(daemons);
        assert_eq!(entries(parent.path()), 0);
    };
    let threads_before = threads();
    let have_ended = || wait_until("threads", || threads() == threads_before);
    // The first device leaves this process a descriptor that later ones use too.
    round();
    have_ended();
    let descriptors_before = descriptors();
    for _ in 0..3 {
        round();
    }
    have_ended();
    wait_until("descriptors", || descriptors() == descriptors_before);
}

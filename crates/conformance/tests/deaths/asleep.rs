//! Deaths while we sleep on a completion channel.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::direct::{DEADLINE, line};
use crate::direct::{Options, Side};
use headworks_conformance::{Verdict, ensure, ensure_eq};
use headworks_stage::clock;
use headworks_verbs::{AsyncEvent, Completion, Device, Duration, Instant, QpState, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::peer::{Manner, connected, open};

/// Sleeps on the side's channel until there is an event, and takes it; an error after `until`.
pub(crate) fn until_event(side: &Side, until: Instant) -> Verdict {
    loop {
        if side.channel.next_event().map_err(line)?.is_some() {
            return Ok(());
        }
        let left = until.since(clock::now()).nanos();
        let timeout = Timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        };
        let mut fds = [PollFd::from_borrowed_fd(side.channel.fd(), PollFlags::IN)];
        let ready = poll(&mut fds, Some(&timeout)).map_err(line)?;
        ensure!(ready > 0, "asleep for ever");
    }
}

/// With nothing posted there is nothing to flush: the channel is readable all the same.
#[test]
fn who_sleeps_without_any_request_is_woken() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let device = open(&path, "soft:h1");
    for _ in 0..5 {
        let mut side = Side::new(&device, &Options::default()).expect("side");
        let mut running = connected(&path, Manner::Idles, &mut side).expect("connects");
        side.send_cq.arm(false);
        side.recv_cq.arm(false);
        running.kill("peer").expect("killed");
        let killed = clock::now();
        until_event(&side, killed + DEADLINE).expect("woken");
        println!(
            "woken after {} us",
            clock::now().since(killed).nanos() / 1000
        );
        assert_eq!(side.qp.state(), QpState::Error);
    }
}

/// Receives asleep, always armed before the last look, until the queue pair fails. How many came.
fn receive_asleep(side: &mut Side, dead: &AtomicBool) -> Result<u64, String> {
    let (mut posted, mut done) = (0, 0);
    let mut out = [Completion::default(); 16];
    let mut flushed = false;
    // How long it sleeps after a death is what counts: a busy peer wakes it, an idle one never does.
    let mut until = clock::now() + DEADLINE;
    while !(flushed && done == posted) {
        while !flushed && posted - done < 32 {
            let into = side.region.sge(0, 1 << 20);
            side.receive(posted, &[into])?;
            posted += 1;
        }
        side.recv_cq.arm(false);
        let count = side.recv_cq.poll(&mut out).map_err(line)?;
        for found in &out[..count] {
            ensure!(
                found.wr_id < posted,
                "receive {} was not posted",
                found.wr_id
            );
            flushed |= found.status == Status::Flushed;
        }
        done += count as u64;
        if count > 0 {
            until = clock::now() + DEADLINE;
            continue;
        }
        until_event(side, until).map_err(|seen| {
            let dead = dead.load(Ordering::Acquire);
            format!("{seen}: {done} of {posted}, peer dead {dead}")
        })?;
    }
    ensure_eq!(side.qp.state(), QpState::Error, "state");
    side.expect_event(AsyncEvent::QpFatal(side.qp.qpn()))?;
    Ok(done)
}

fn round(device: &Arc<dyn Device>, path: &Path, for_us: u64) -> Result<u64, String> {
    let options = Options {
        len: 1 << 20,
        ..Options::default()
    };
    let mut side = Side::new(device, &options)?;
    let mut running = connected(path, Manner::Works, &mut side)?;
    let dead = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| receive_asleep(&mut side, &dead));
        let kill_at = clock::now() + Duration::from_micros(for_us);
        while clock::now() < kill_at {
            std::thread::yield_now();
        }
        running.kill("peer").map_err(line)?;
        dead.store(true, Ordering::Release);
        sleeper.join().map_err(|_| "panicked")?
    })
}

#[test]
fn a_peer_killed_at_any_moment_wakes_who_sleeps() {
    let parent = tempfile::tempdir().expect("tempdir");
    let path = parent.path().join("fabric");
    let device = open(&path, "soft:h1");
    let rounds = match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => 100,
        None => 30,
    };
    for number in 0..rounds {
        let for_us = number * 7919 % 20_011;
        let came = round(&device, &path, for_us)
            .unwrap_or_else(|seen| panic!("round {number}, killed after {for_us} us: {seen}"));
        println!("killed after {for_us} us: {came} receives");
    }
}
